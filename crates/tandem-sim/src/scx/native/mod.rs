//! Calls into a policy, and the functions that it may call. The only unsafe code of this crate.
//!
//! A policy is C that was written for the kernel's verifier: it checks every pointer that it is given. It is
//! trusted that far. The numbers that it passes (CPUs, DSQs, tasks) are checked here.

mod accounts;
pub mod explore;
mod groups;
mod image;
mod kfuncs;
mod maps;
mod properties;
mod vcpus;
mod vms;

use super::kernel::{Effect, Kernel, Mask, ScxCpu, ScxTask};
use super::settings::{NewTask, Settings, Techniques};
use crate::queue::Ns;
use accounts::REFRESH_TIMER;
use image::Image;
use maps::{Kind, Map, Shape};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr};
use std::ptr;
use tandem_bpf::native::{Side, GUEST, HOST};

/// Maps that the daemon sizes to the number of CPUs.
const PER_CPU_MAPS: &[&str] = &["cpus", "domains", "slice_timers", "ivh_timers", "posted_timers"];

/// One, in the policy's fixed point (`TANDEM_SCALE` in `policy/base.h`).
const SCALE: f64 = 1024.0;

/// Callbacks of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Op {
    SelectCpu,
    Enqueue,
    Dispatch,
    Tick,
    Runnable,
    Running,
    Stopping,
    Quiescent,
    Yield,
    UpdateIdle,
    CpuRelease,
    Init,
    Disable,
    SetBandwidth,
    Online,
    Offline,
    CgroupMove,
    SetWeight,
    Enable,
}

const OPS: usize = Op::Enable as usize + 1;

type Task = *mut c_void;

/// Memory of a task's structure, with the task's number before it.
struct TaskMemory {
    words: Box<[u64]>,
}

/// Words before the structure, which keep it aligned; the first is the task's number.
const HEADER: usize = 8;

impl TaskMemory {
    fn new(index: usize, size: usize) -> Self {
        let mut words = vec![0; HEADER + size.div_ceil(8)].into_boxed_slice();
        words[0] = index as u64;
        Self { words }
    }

    fn pointer(&mut self) -> Task {
        self.words[HEADER..].as_mut_ptr().cast()
    }
}

struct Timer {
    address: usize,
    map: usize,
    callback: usize,
    turn: u32,
    armed: bool,
}

struct Functions {
    slice: extern "C" fn(Task) -> u64,
    set_slice: extern "C" fn(Task, u64),
    key: extern "C" fn(Task) -> u64,
    set_key: extern "C" fn(Task, u64),
    set_queued: extern "C" fn(Task, bool),
    add_run_time: extern "C" fn(Task, u64),
    counter: extern "C" fn(*const c_char) -> u64,
    write_page: extern "C" fn(*mut c_void, u64, u32, bool),
}

/// Everything that belongs to one instance of a policy. Its address does not change.
struct State {
    kernel: Kernel,
    maps: Vec<Map>,
    tasks: Vec<TaskMemory>,
    idle_tasks: Vec<TaskMemory>,
    by_pid: HashMap<i32, usize>,
    vms: vms::Vms,
    cgroups: Vec<Box<[u64]>>,
    pages: Vec<Box<[u64]>>,
    timers: Vec<Timer>,
    /// Numbers of timers, by their addresses in a map.
    timer_at: HashMap<usize, usize>,
    functions: Functions,
}

thread_local! {
    /// State of the policy whose callback runs on this thread.
    static CURRENT: Cell<*mut State> = const { Cell::new(ptr::null_mut()) };
}

/// A policy that is loaded in one kernel.
pub struct Policy {
    state: Box<State>,
    ops: [usize; OPS],
    flags: u64,
    timeout_ns: Ns,
    image: Image,
    task_size: usize,
    cgroup_size: usize,
    refreshed: bool,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy").field("cpus", &self.state.kernel.cpus.len()).finish_non_exhaustive()
    }
}

/// # Safety
/// `F` must be the type of the function that the symbol names.
unsafe fn function<F: Copy>(image: &Image, name: &str) -> Result<F, String> {
    let address = image.address(name).ok_or_else(|| format!("the policy has no {name}"))?;
    // SAFETY: as the caller says; F is as large as a pointer to a function.
    Ok(unsafe { std::mem::transmute_copy::<*mut u8, F>(&address) })
}

impl Policy {
    /// Loads the guest scheduler for a kernel, and initialises it.
    ///
    /// # Errors
    /// It calls what the simulator does not have, or refuses to start.
    pub fn guest(settings: &Settings, now: Ns) -> Result<Self, String> {
        Self::load(&GUEST, GUEST.image, settings, now)
    }

    /// Loads the host scheduler likewise.
    ///
    /// # Errors
    /// The same.
    pub fn host(settings: &Settings, now: Ns) -> Result<Self, String> {
        Self::load(&HOST, HOST.image, settings, now)
    }

    fn load(side: &Side, image: &[u8], settings: &Settings, now: Ns) -> Result<Self, String> {
        let image = Image::load(image, &kfuncs::supplied)?;
        let cpus = settings.cpus;
        let mut maps = Vec::new();
        for &(name, number, key_size, value_size, max_entries) in side.maps {
            let kind = Kind::of(number).ok_or_else(|| format!("map {name} is of unknown type {number}"))?;
            let max_entries = if PER_CPU_MAPS.contains(&name) { cpus } else { max_entries };
            let address = image.address(name).ok_or_else(|| format!("the policy has no map {name}"))?;
            // SAFETY: a map's symbol is a structure of at least one pointer that nobody reads: only its type has a
            // meaning. From now on it holds the map's number.
            unsafe { address.cast::<u64>().write_unaligned(maps.len() as u64) };
            maps.push(Map::new(Shape { name: name.into(), kind, key_size, value_size, max_entries }, cpus));
        }
        // SAFETY: the types are those in native/exports.h and native/common.h.
        let functions = unsafe {
            Functions {
                slice: function(&image, "sim_slice")?,
                set_slice: function(&image, "sim_set_slice")?,
                key: function(&image, "sim_key")?,
                set_key: function(&image, "sim_set_key")?,
                set_queued: function(&image, "sim_set_queued")?,
                add_run_time: function(&image, "sim_add_run_time")?,
                counter: function(&image, "sim_counter")?,
                write_page: function(&image, "sim_page_write")?,
            }
        };
        // SAFETY: likewise.
        let (task_size, cgroup_size, page_size, op, flags, timeout_ms, set_enums) = unsafe {
            (
                function::<extern "C" fn() -> u64>(&image, "sim_task_size")?() as usize,
                function::<extern "C" fn() -> u64>(&image, "sim_cgroup_size")?() as usize,
                function::<extern "C" fn() -> u64>(&image, "sim_page_size")?() as usize,
                function::<extern "C" fn(u32) -> usize>(&image, "sim_op")?,
                function::<extern "C" fn() -> u64>(&image, "sim_flags")?,
                function::<extern "C" fn() -> u32>(&image, "sim_timeout_ms")?,
                function::<extern "C" fn()>(&image, "sim_set_enums")?,
            )
        };
        set_enums();
        let mut ops = [0; OPS];
        for (number, address) in ops.iter_mut().enumerate() {
            *address = op(number as u32);
        }
        let kernel = Kernel {
            now,
            cpus: vec![ScxCpu::default(); cpus],
            idle: Mask::new(cpus, 0..cpus),
            layout: settings.layout.clone(),
            tick_ns: settings.tick_ns,
            ..Kernel::default()
        };
        let state = State {
            kernel,
            maps,
            tasks: Vec::new(),
            idle_tasks: (0..cpus).map(|_| TaskMemory::new(usize::MAX, task_size)).collect(),
            by_pid: HashMap::new(),
            vms: vms::Vms::default(),
            cgroups: Vec::new(),
            pages: (0..cpus).map(|_| vec![0; page_size.div_ceil(8)].into_boxed_slice()).collect(),
            timers: Vec::new(),
            timer_at: HashMap::new(),
            functions,
        };
        let timeout_ns = Ns::from(timeout_ms()) * 1_000_000;
        let mut policy = Self {
            state: Box::new(state),
            ops,
            flags: flags(),
            timeout_ns,
            image,
            task_size,
            cgroup_size,
            refreshed: false,
        };
        policy.set_up(settings)?;
        Ok(policy)
    }

    /// What the daemon does before it attaches the policy.
    fn set_up(&mut self, settings: &Settings) -> Result<(), String> {
        // SAFETY: the types are those in native/guest.c and native/host.c.
        let (set_up, set_up_cpu) = unsafe {
            (
                function::<extern "C" fn(u32, bool, u64, bool, u64, u32, bool, u32)>(
                    &self.image,
                    "sim_set_up",
                )?,
                function::<extern "C" fn(u32, u32, i32, i32, i32, u32, bool)>(&self.image, "sim_set_up_cpu")?,
            )
        };
        let cpus = settings.cpus;
        let mut caches = settings.caches.clone();
        caches.sort_unstable();
        caches.dedup();
        // The next CPU with the same number, round-robin.
        let next = |numbers: &[usize], cpu: usize| {
            (1..=cpus)
                .map(|step| (cpu + step) % cpus)
                .find(|other| numbers[*other] == numbers[cpu])
                .unwrap_or(cpu)
        };
        let mut uneven = false;
        for cpu in 0..cpus {
            let cache = caches.iter().position(|other| *other == settings.caches[cpu]).unwrap_or(0);
            let (core, stack) = (next(&settings.cores, cpu), next(&settings.threads, cpu));
            uneven |= stack != cpu || core != cpu;
            let speed = (settings.speeds[cpu] * SCALE).round() as u32;
            let no_tick = settings.nohz_full;
            let near = next(&settings.caches, cpu) as i32;
            self.with(0, |_| {
                set_up_cpu(cpu as u32, cache as u32, core as i32, stack as i32, near, speed, no_tick);
            });
            self.write_page(cpu, 0, 0, true);
        }
        let caches = caches.len();
        let (page, request_ns, timers) = (settings.steal_page, settings.request_ns, settings.slice_timers);
        let (timeout_ns, fault) = (self.timeout_ns, settings.fault as u32);
        self.with(0, |_| {
            set_up(cpus as u32, page, request_ns, timers, timeout_ns, caches as u32, uneven, fault);
        });
        // SAFETY: the type is that in native/guest.c and native/host.c.
        let set_techniques = unsafe {
            function::<extern "C" fn(u32, bool, bool, bool, u32)>(&self.image, "sim_set_techniques")?
        };
        let Techniques { ivh, bvs, rwc, dedicate, left_out } = settings.techniques;
        self.with(0, |_| set_techniques(ivh as u32, bvs, rwc, dedicate, left_out));
        let init = self.ops[Op::Init as usize];
        if init != 0 {
            // SAFETY: that is the type of the operation.
            let init = unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(init) };
            let error = self.with(0, |_| init());
            if error != 0 {
                return Err(self
                    .state
                    .kernel
                    .error
                    .take()
                    .unwrap_or(format!("the policy refuses: error {error}")));
            }
        }
        for cpu in 0..cpus {
            self.update_idle(cpu, true);
        }
        Ok(())
    }

    /// Runs a call into the policy, on a CPU of its kernel. It is a function of its own so that a profiler that
    /// counts instructions can separate the policy's from the simulator's.
    #[inline(never)]
    fn with<R>(&mut self, cpu: usize, call: impl FnOnce(&[usize; OPS]) -> R) -> R {
        self.state.kernel.here = cpu;
        let state: *mut State = &mut *self.state;
        let before = CURRENT.replace(state);
        let result = call(&self.ops);
        CURRENT.set(before);
        result
    }

    /// The kernel as the policy sees it.
    pub fn kernel(&self) -> &Kernel {
        &self.state.kernel
    }

    /// The same, mutable.
    pub fn kernel_mut(&mut self) -> &mut Kernel {
        &mut self.state.kernel
    }

    /// Takes the effects that the machine has to carry out.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.state.kernel.effects)
    }

    /// `SCX_OPS` flags.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// Longest wait that the kernel's watchdog tolerates, ns.
    pub fn timeout_ns(&self) -> Ns {
        self.timeout_ns
    }

    /// Adds a task, and returns its number.
    ///
    /// # Errors
    /// The policy refuses it.
    pub fn add_task(&mut self, new: &NewTask<'_>) -> Result<usize, String> {
        let NewTask { name, cpu, allowed, policy, nice, slice_ns, group } = *new;
        type SetUp = extern "C" fn(Task, i32, *const u8, u32, *const c_void, i32, u32, i32, u64);
        // SAFETY: the types are those in native/exports.h.
        let (set_up, init) = unsafe {
            (
                function::<SetUp>(&self.image, "sim_task_set_up")?,
                function::<extern "C" fn(Task, *mut c_void) -> i32>(&self.image, "sim_init_task")?,
            )
        };
        let task = self.state.tasks.len();
        let named = allowed.iter().enumerate().filter(|(_, ok)| **ok).map(|(cpu, _)| cpu);
        let mask = Mask::new(allowed.len(), named);
        let pid = task as i32 + 100;
        let mut memory = TaskMemory::new(task, self.task_size);
        let pointer = memory.pointer();
        let nr_cpus = allowed.iter().filter(|ok| **ok).count();
        set_up(
            pointer,
            pid,
            name.as_ptr(),
            name.len() as u32,
            mask.as_ptr().cast(),
            nr_cpus as i32,
            policy,
            nice,
            slice_ns,
        );
        self.state.kernel.tasks.push(ScxTask { cpu, allowed: mask, ..ScxTask::default() });
        self.state.tasks.push(memory);
        self.state.by_pid.insert(pid, task);
        let cgroup =
            self.state.cgroups.get_mut(group).map_or(ptr::null_mut(), |memory| memory.as_mut_ptr().cast());
        let error = self.with(cpu, |_| init(pointer, cgroup));
        if error != 0 {
            return Err(format!("the policy refuses task {name}: error {error}"));
        }
        self.enable(cpu, task);
        Ok(task)
    }

    /// `ops.enable()`: the policy schedules a task from now on.
    pub fn enable(&mut self, here: usize, task: usize) {
        self.call_task(Op::Enable, here, task);
    }

    fn task(&mut self, task: usize) -> Task {
        self.state.tasks[task].pointer()
    }

    /// Rest of a task's slice, ns.
    pub fn slice_ns(&mut self, task: usize) -> Ns {
        (self.state.functions.slice)(self.task(task))
    }

    /// Sets the rest of a task's slice.
    pub fn set_slice_ns(&mut self, task: usize, ns: Ns) {
        (self.state.functions.set_slice)(self.task(task), ns);
    }

    /// Adds to a task's run time (`se.sum_exec_runtime`).
    pub fn add_run_time(&mut self, task: usize, ns: Ns) {
        (self.state.functions.add_run_time)(self.task(task), ns);
    }

    /// Sets whether a task is runnable for the kernel (`SCX_TASK_QUEUED`).
    pub fn set_queued(&mut self, task: usize, queued: bool) {
        (self.state.functions.set_queued)(self.task(task), queued);
    }

    /// An event counter of the policy, by its name (`counters.h` of its parts).
    pub fn counter(&mut self, name: &CStr) -> Option<u64> {
        let counter = self.state.functions.counter;
        Some(self.with(0, |_| counter(name.as_ptr()))).filter(|sum| *sum != u64::MAX)
    }

    /// Writes a vCPU's steal time page. The version counts one schedule-in more than `entries`: the vCPU has run
    /// before, when its guest booted.
    pub fn write_page(&mut self, cpu: usize, steal_ns: Ns, entries: u64, preempted: bool) {
        let page = self.state.pages[cpu].as_mut_ptr().cast();
        let version = (entries as u32).wrapping_add(1).wrapping_mul(2);
        (self.state.functions.write_page)(page, steal_ns, version, preempted);
    }

    /// `ops.select_cpu()`.
    pub fn select_cpu(&mut self, here: usize, task: usize, prev: usize, flags: u64) -> usize {
        let pointer = self.task(task);
        self.state.kernel.tasks[task].direct = None;
        let chosen = self.with(here, |ops| {
            // SAFETY: that is the type of the operation, and the pointer is that of a task.
            let call = unsafe {
                std::mem::transmute::<usize, extern "C" fn(Task, i32, u64) -> i32>(
                    ops[Op::SelectCpu as usize],
                )
            };
            call(pointer, prev as i32, flags)
        });
        let kernel = &mut self.state.kernel;
        match usize::try_from(chosen) {
            Ok(cpu) if cpu < kernel.cpus.len() && kernel.may_use(task, cpu) => cpu,
            // The kernel overrides an invalid choice.
            _ => (0..kernel.cpus.len()).find(|cpu| kernel.may_use(task, *cpu)).unwrap_or(prev),
        }
    }

    /// `ops.enqueue()`.
    pub fn enqueue(&mut self, here: usize, task: usize, flags: u64) {
        self.leaves_guest(task);
        self.call_task_flags(Op::Enqueue, here, task, flags);
    }

    /// `ops.dispatch()`; prev is the current task, if the policy schedules it.
    pub fn dispatch(&mut self, cpu: usize, prev: Option<usize>) {
        if let Some(prev) = prev {
            self.leaves_guest(prev);
        }
        let prev = prev.map_or(ptr::null_mut(), |task| self.task(task));
        self.state.kernel.dispatching = Some(cpu);
        self.with(cpu, |ops| {
            // SAFETY: that is the type of the operation; prev is a task or null.
            let call =
                unsafe { std::mem::transmute::<usize, extern "C" fn(i32, Task)>(ops[Op::Dispatch as usize]) };
            call(cpu as i32, prev);
        });
        self.flush();
        self.state.kernel.dispatching = None;
    }

    /// Carries out the insertions that a dispatch() has made so far.
    fn flush(&mut self) {
        flush(&mut self.state);
    }

    /// Carries out the insertion that select_cpu() or enqueue() has requested. Returns whether there was one.
    pub fn insert_direct(&mut self, task: usize) -> bool {
        let Some(insertion) = self.state.kernel.tasks[task].direct.take() else { return false };
        insert(&mut self.state, task, &insertion);
        true
    }

    /// `ops.runnable()`.
    pub fn runnable(&mut self, here: usize, task: usize, flags: u64) {
        self.call_task_flags(Op::Runnable, here, task, flags);
    }

    /// `ops.quiescent()`.
    pub fn quiescent(&mut self, here: usize, task: usize, flags: u64) {
        self.call_task_flags(Op::Quiescent, here, task, flags);
    }

    fn call_task_flags(&mut self, op: Op, here: usize, task: usize, flags: u64) {
        let pointer = self.task(task);
        let address = self.ops[op as usize];
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of these operations, and the pointer is that of a task.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(Task, u64)>(address) };
        self.with(here, |_| call(pointer, flags));
    }

    fn call_task(&mut self, op: Op, here: usize, task: usize) {
        let pointer = self.task(task);
        let address = self.ops[op as usize];
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of these operations, and the pointer is that of a task.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(Task)>(address) };
        self.with(here, |_| call(pointer));
    }

    /// `ops.running()`.
    pub fn running(&mut self, cpu: usize, task: usize) {
        self.call_task(Op::Running, cpu, task);
        self.enters_guest(task);
    }

    /// `ops.tick()`.
    pub fn tick(&mut self, cpu: usize, task: usize) {
        self.leaves_guest(task);
        self.call_task(Op::Tick, cpu, task);
        self.enters_guest(task);
    }

    /// `ops.stopping()`.
    pub fn stopping(&mut self, cpu: usize, task: usize, runnable: bool) {
        let pointer = self.task(task);
        let address = self.ops[Op::Stopping as usize];
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of the operation, and the pointer is that of a task.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(Task, bool)>(address) };
        self.with(cpu, |_| call(pointer, runnable));
    }

    /// `ops.yield()`; a policy without it gives up the slice.
    pub fn yields(&mut self, cpu: usize, task: usize) {
        let pointer = self.task(task);
        let address = self.ops[Op::Yield as usize];
        if address == 0 {
            self.set_slice_ns(task, 0);
            return;
        }
        // SAFETY: that is the type of the operation; the task yields to no particular task.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(Task, Task) -> bool>(address) };
        self.with(cpu, |_| call(pointer, ptr::null_mut()));
    }

    /// `ops.yield()` to a task: is that one promised to run next?
    pub fn yields_to(&mut self, cpu: usize, from: usize, to: usize) -> bool {
        let (from, to) = (self.task(from), self.task(to));
        let address = self.ops[Op::Yield as usize];
        if address == 0 {
            return false;
        }
        // SAFETY: that is the type of the operation, and the pointers are those of tasks.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(Task, Task) -> bool>(address) };
        self.with(cpu, |_| call(from, to))
    }

    /// `ops.update_idle()`: a CPU becomes idle, or stops being idle.
    pub fn update_idle(&mut self, cpu: usize, idle: bool) {
        self.state.kernel.idle.set(cpu, idle);
        let address = self.ops[Op::UpdateIdle as usize];
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of the operation.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(i32, bool)>(address) };
        self.with(cpu, |_| call(cpu as i32, idle));
    }

    /// `ops.cpu_release()`: a higher class has taken the CPU.
    pub fn cpu_release(&mut self, cpu: usize) {
        let address = self.ops[Op::CpuRelease as usize];
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of the operation; policies that look at its arguments check the pointer.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(i32, *mut c_void)>(address) };
        self.with(cpu, |_| call(cpu as i32, ptr::null_mut()));
    }

    /// `ops.disable()`: a task ends, and the policy forgets it.
    pub fn disable(&mut self, here: usize, task: usize) {
        self.set_exiting(task);
        self.call_task(Op::Disable, here, task);
        self.state.by_pid.retain(|_, other| *other != task);
    }

    /// A CPU goes online or offline.
    pub fn set_online(&mut self, here: usize, cpu: usize, online: bool) {
        let address = self.ops[if online { Op::Online } else { Op::Offline } as usize];
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of these operations.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(address) };
        self.with(here, |_| call(cpu as i32));
    }

    /// Fires a timer, unless it was restarted or cancelled since.
    pub fn fire(&mut self, cpu: usize, timer: usize, turn: u32) {
        let (map, callback, address) = {
            let timer = &mut self.state.timers[timer];
            if !timer.armed || timer.turn != turn || timer.callback == 0 {
                return;
            }
            timer.armed = false;
            (timer.map, timer.callback, timer.address)
        };
        let m = &mut self.state.maps[map];
        let Some(mut key) = m.index_of(address) else { return };
        let Some(value) = m.cell(key as usize, 0) else { return };
        self.refreshed = m.shape.name == REFRESH_TIMER.map;
        let Some(map) = self.image.address(&m.shape.name) else { return };
        // SAFETY: that is the type of callbacks; the value lies in the map, whose memory does not move.
        let call = unsafe {
            std::mem::transmute::<usize, extern "C" fn(*mut u8, *mut u32, *mut u64) -> i32>(callback)
        };
        self.with(cpu, |_| call(map, &mut key, value));
    }

    /// Was the timer that fired last the one of group weights? The answer is reset.
    pub fn take_refreshed(&mut self) -> bool {
        std::mem::take(&mut self.refreshed)
    }

    /// Takes the error for which the kernel would eject the policy.
    pub fn take_error(&mut self) -> Option<String> {
        self.state.kernel.error.take()
    }
}

/// Inserts a task, with its slice and key.
fn insert(state: &mut State, task: usize, insertion: &super::kernel::Insertion) {
    let pointer = state.tasks[task].pointer();
    let slice_ns =
        if insertion.slice_ns > 0 { insertion.slice_ns } else { (state.functions.slice)(pointer).max(1) };
    (state.functions.set_slice)(pointer, slice_ns);
    if let Some(key) = insertion.key {
        (state.functions.set_key)(pointer, key);
    }
    state.kernel.insert(task, insertion);
}

fn flush(state: &mut State) {
    for (task, insertion) in std::mem::take(&mut state.kernel.buffer) {
        insert(state, task, &insertion);
        state.kernel.moved += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Hardware;
    use crate::scx::kernel;

    fn settings(cpus: usize) -> Settings {
        let layout = Hardware { cores: cpus, ..Hardware::default() };
        Settings { steal_page: true, ..Settings::of(layout) }
    }

    #[test]
    fn the_kernels_numbers_are_ours() {
        let policy = Policy::guest(&settings(1), 0).unwrap();
        // SAFETY: that is its type in native/exports.h.
        let constant =
            unsafe { function::<extern "C" fn(u32) -> u64>(&policy.image, "sim_constant").unwrap() };
        let ours = [
            kernel::DSQ_LOCAL,
            kernel::DSQ_LOCAL_ON,
            kernel::DSQ_GLOBAL,
            kernel::ENQ_HEAD,
            kernel::ENQ_WAKEUP,
            kernel::ENQ_PREEMPT,
            kernel::ENQ_LAST,
            kernel::SLICE_INF,
            kernel::DEQ_SLEEP,
            kernel::KICK_IDLE,
            kernel::KICK_PREEMPT,
            kernel::WAKE_SYNC,
            kernel::WAKE_TTWU,
            kernel::WAKE_FORK,
            kernel::OPS_ENQ_LAST,
            kernel::OPS_ENQ_MIGRATION_DISABLED,
        ];
        let theirs: Vec<u64> = (0..ours.len() as u32).map(|i| constant(i)).collect();
        assert_eq!(theirs, ours);
    }

    #[test]
    fn instances_share_nothing() {
        let mut one = Policy::guest(&settings(2), 0).unwrap();
        let mut other = Policy::guest(&settings(2), 0).unwrap();
        one.add_group(None, 100, false, None).unwrap();
        let all = [true, true];
        let new = NewTask { name: "t", cpu: 0, allowed: &all, policy: 0, nice: 0, slice_ns: 0, group: 0 };
        let task = one.add_task(&new).unwrap();
        one.select_cpu(0, task, 0, kernel::WAKE_TTWU);
        assert!(one.kernel().tasks[task].direct.is_some(), "an idle CPU takes it at once");
        assert_eq!((one.counter(c"direct"), other.counter(c"direct")), (Some(1), Some(0)));
        assert_eq!(one.counter(c"no such counter"), None);
    }

    #[test]
    fn what_a_task_ran_in_another_class_is_not_charged() {
        for told in [true, false] {
            let mut policy = Policy::guest(&settings(1), 0).unwrap();
            let root = policy.add_group(None, 100, false, None).unwrap();
            let group = policy.add_group(Some(root), 100, false, Some((20_000, 100_000))).unwrap();
            let all = [true];
            let new = NewTask { name: "t", cpu: 0, allowed: &all, policy: 0, nice: 0, slice_ns: 0, group };
            let task = policy.add_task(&new).unwrap();
            policy.add_run_time(task, 5_000_000_000);
            if told {
                policy.enable(0, task);
            }
            policy.runnable(0, task, kernel::ENQ_WAKEUP);
            policy.enqueue(0, task, kernel::ENQ_WAKEUP);
            policy.running(0, task);
            policy.stopping(0, task, true);
            policy.enqueue(0, task, 0);
            assert_eq!(policy.counter(c"throttled"), Some(u64::from(!told)), "told: {told}");
        }
    }

    /// What is left of a task's request of 3 ms after 1.4 ms, once it was dequeued and enqueued again.
    fn left_after(dequeued: u64, enqueued: u64) -> Ns {
        let mut policy = Policy::guest(&settings(1), 0).unwrap();
        let all = [true];
        let new = NewTask { name: "t", cpu: 0, allowed: &all, policy: 0, nice: 0, slice_ns: 0, group: 0 };
        let [task, other] = [0; 2].map(|_| policy.add_task(&new).unwrap());
        for task in [task, other] {
            policy.runnable(0, task, kernel::ENQ_WAKEUP);
            policy.enqueue(0, task, kernel::ENQ_WAKEUP);
            policy.kernel_mut().tasks[task].direct = None;
        }
        policy.running(0, task);
        policy.kernel_mut().now += 1_400_000;
        policy.add_run_time(task, 1_400_000);
        policy.stopping(0, task, dequeued & kernel::DEQ_SLEEP == 0);
        policy.quiescent(0, task, dequeued);
        policy.running(0, other);
        policy.runnable(0, task, enqueued);
        policy.enqueue(0, task, enqueued);
        policy.kernel().tasks[task].direct.as_ref().unwrap().slice_ns
    }

    #[test]
    fn a_change_of_a_property_is_no_sleep() {
        assert_eq!(left_after(0, 0), 1_600_000);
        assert_eq!(left_after(kernel::DEQ_SLEEP, kernel::ENQ_WAKEUP), 3_000_000);
    }
}
