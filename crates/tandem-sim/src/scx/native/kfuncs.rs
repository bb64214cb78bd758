//! What a policy may call: BPF helpers, and kfuncs of `kernel/sched/ext.c` and its neighbours, under their own
//! names. A policy that calls anything else is not loaded.
#![allow(non_snake_case)]

use super::maps::{Kind, Map};
use super::{flush, insert, State, Task, Timer, CURRENT, HEADER};
use crate::scx::kernel::{Effect, Insertion, Iteration, Place, DSQ_LOCAL, DSQ_LOCAL_ON, WAKE_SYNC};
use std::ffi::{c_char, c_void, CStr};
use std::ptr;

const EFAULT: i64 = -14;
const ENOENT: i64 = -2;
const E2BIG: i64 = -7;
const EINVAL: i32 = -22;
const EEXIST: i32 = -17;
/// `BPF_LOCAL_STORAGE_GET_F_CREATE`.
const CREATE: u64 = 1;
/// `BPF_EXIST` for queues: replace the oldest element.
const REPLACE: u64 = 2;
/// `SCX_DSQ_ITER_REV`.
const REVERSE: u64 = 1 << 16;
/// `SCX_PICK_IDLE_CORE`.
const WHOLE_CORE: u64 = 1;

/// Stands for the per-CPU variable `steal_time`: only its address matters.
static STEAL_TIME: u8 = 0;

/// `__cpu_active_mask`: all CPUs, up to 1024.
static ACTIVE: [u64; 16] = [u64::MAX; 16];

/// The instance whose callback runs.
fn state() -> &'static mut State {
    // SAFETY: policies call only while `Policy::with` runs on this thread; it has set the pointer, and holds no
    // reference to the state itself meanwhile. Each function here uses its reference before it returns, and calls
    // nothing that could ask for another one.
    unsafe { &mut *CURRENT.get() }
}

fn number_of(task: Task) -> usize {
    // SAFETY: the task pointers of policies are those of `TaskMemory`, which holds the number before the structure.
    unsafe { *task.cast::<u64>().sub(HEADER) as usize }
}

fn map_of(map: *const c_void) -> &'static mut Map {
    // SAFETY: a map's symbol holds its number since the image was loaded.
    let number = unsafe { map.cast::<u64>().read_unaligned() } as usize;
    &mut state().maps[number]
}

fn bytes<'a>(pointer: *const c_void, length: usize) -> &'a [u8] {
    // SAFETY: keys and values that policies pass are as long as their map says; the verifier has checked the same
    // source.
    unsafe { std::slice::from_raw_parts(pointer.cast(), length) }
}

fn index(key: *const c_void) -> usize {
    // SAFETY: keys of arrays are four bytes.
    unsafe { key.cast::<u32>().read_unaligned() as usize }
}

fn has_cpu(mask: *const c_void, cpu: usize) -> bool {
    // SAFETY: the masks of policies are those of tasks and that of idle CPUs, with a bit for every CPU of the kernel.
    cpu < state().kernel.cpus.len() && unsafe { *mask.cast::<u64>().add(cpu / 64) } >> (cpu % 64) & 1 != 0
}

fn null() -> *mut c_void {
    ptr::null_mut()
}

extern "C" fn bpf_map_lookup_elem(map: *const c_void, key: *const c_void) -> *mut c_void {
    let here = state().kernel.here;
    let map = map_of(map);
    let found = match map.shape.kind {
        Kind::Array | Kind::PerCpuArray => map.cell(index(key), here),
        Kind::Hash => map.find(bytes(key, map.shape.key_size)),
        Kind::Queue | Kind::TaskStorage | Kind::Ring => None,
    };
    found.map_or(null(), <*mut u64>::cast)
}

extern "C" fn bpf_map_lookup_percpu_elem(map: *const c_void, key: *const c_void, cpu: u32) -> *mut c_void {
    if cpu as usize >= state().kernel.cpus.len() {
        return null();
    }
    map_of(map).cell(index(key), cpu as usize).map_or(null(), <*mut u64>::cast)
}

extern "C" fn bpf_map_update_elem(
    map: *const c_void,
    key: *const c_void,
    value: *const c_void,
    _flags: u64,
) -> i64 {
    let here = state().kernel.here;
    let map = map_of(map);
    let value = bytes(value, map.shape.value_size);
    let kind = map.shape.kind;
    match kind {
        Kind::Hash if map.insert(bytes(key, map.shape.key_size), value) => 0,
        Kind::Array | Kind::PerCpuArray => match map.cell(index(key), here) {
            Some(cell) => {
                // SAFETY: a cell has room for a value.
                unsafe { ptr::copy_nonoverlapping(value.as_ptr(), cell.cast(), value.len()) };
                0
            }
            None => E2BIG,
        },
        _ => E2BIG,
    }
}

extern "C" fn bpf_map_delete_elem(map: *const c_void, key: *const c_void) -> i64 {
    let map = map_of(map);
    if map.shape.kind == Kind::Hash && map.remove(bytes(key, map.shape.key_size)) {
        0
    } else {
        ENOENT
    }
}

extern "C" fn bpf_map_push_elem(map: *const c_void, value: *const c_void, flags: u64) -> i64 {
    let map = map_of(map);
    if map.push(bytes(value, map.shape.value_size), flags & REPLACE != 0) {
        0
    } else {
        E2BIG
    }
}

extern "C" fn bpf_map_pop_elem(map: *const c_void, value: *mut c_void) -> i64 {
    let map = map_of(map);
    match map.pop() {
        Some(found) => {
            // SAFETY: the policy has room for a value of the map.
            unsafe { ptr::copy_nonoverlapping(found.as_ptr(), value.cast(), found.len()) };
            0
        }
        None => ENOENT,
    }
}

extern "C" fn bpf_task_storage_get(
    map: *const c_void,
    task: Task,
    _value: *mut c_void,
    flags: u64,
) -> *mut c_void {
    if task.is_null() {
        return null();
    }
    let task = number_of(task);
    if task >= state().tasks.len() {
        return null();
    }
    map_of(map).of_task(task, flags & CREATE != 0).map_or(null(), <*mut u64>::cast)
}

extern "C" fn bpf_task_storage_delete(map: *const c_void, task: Task) -> i64 {
    if map_of(map).forget_task(number_of(task)) {
        0
    } else {
        ENOENT
    }
}

extern "C" fn bpf_ktime_get_ns() -> u64 {
    state().kernel.now
}

extern "C" fn scx_bpf_now() -> u64 {
    state().kernel.now
}

extern "C" fn bpf_jiffies64() -> u64 {
    let kernel = &state().kernel;
    kernel.now / kernel.tick_ns.max(1)
}

/// The task that calls; none: no task runs on this CPU.
fn current() -> Option<usize> {
    let state = state();
    state.vms.in_kvm.or(state.kernel.cpus[state.kernel.here].curr)
}

extern "C" fn bpf_get_current_pid_tgid() -> u64 {
    // Numbers of tasks begin where `add_task` lets them begin.
    let of = |task: usize| {
        let pid = task as i32 + 100;
        (state().vms.process_of(task, pid) as u64) << 32 | pid as u64
    };
    current().map_or(0, of)
}

/// As far as programs on kernel functions need it: the context holds the arguments.
extern "C" fn bpf_get_func_arg(ctx: *const u64, number: u32, value: *mut u64) -> i64 {
    // SAFETY: who calls a program gives it as many arguments as it asks for, and the program has room for one.
    unsafe { *value = *ctx.add(number as usize) };
    0
}

extern "C" fn bpf_get_smp_processor_id() -> u32 {
    state().kernel.here as u32
}

extern "C" fn bpf_get_current_task_btf() -> Task {
    let state = state();
    match current() {
        Some(task) => state.tasks[task].pointer(),
        None => state.idle_tasks[state.kernel.here].pointer(),
    }
}

extern "C" fn bpf_per_cpu_ptr(variable: *const c_void, cpu: u32) -> *mut c_void {
    let state = state();
    if variable != ptr::from_ref(&STEAL_TIME).cast() {
        state.kernel.fail("a per-CPU variable that the simulator does not have".into());
        return null();
    }
    state.pages.get_mut(cpu as usize).map_or(null(), |page| page.as_mut_ptr().cast())
}

extern "C" fn bpf_probe_read_kernel(to: *mut c_void, size: u32, from: *const c_void) -> i64 {
    if from.is_null() {
        // SAFETY: the policy has room for what it asks for.
        unsafe { ptr::write_bytes(to.cast::<u8>(), 0, size as usize) };
        return EFAULT;
    }
    // SAFETY: what policies read by this are members of tasks and groups, which live as long as the instance.
    unsafe { ptr::copy(from.cast::<u8>(), to.cast::<u8>(), size as usize) };
    0
}

/// Memory of a guest: what is read of it are variables of the image.
extern "C" fn bpf_probe_read_user(to: *mut c_void, size: u32, from: *const c_void) -> i64 {
    bpf_probe_read_kernel(to, size, from)
}

extern "C" fn bpf_probe_read_kernel_str(to: *mut c_void, size: u32, from: *const c_void) -> i64 {
    if from.is_null() || size == 0 {
        return EFAULT;
    }
    // SAFETY: a string that ends with a zero byte, and room for `size` bytes.
    let text = unsafe { CStr::from_ptr(from.cast::<c_char>()) }.to_bytes();
    let length = text.len().min(size as usize - 1);
    // SAFETY: likewise.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), length);
        to.cast::<u8>().add(length).write(0);
    }
    length as i64 + 1
}

extern "C" fn bpf_strncmp(one: *const c_char, size: u32, other: *const c_char) -> i64 {
    for at in 0..size as usize {
        // SAFETY: `size` bytes of the first, and the second up to its zero byte.
        let (a, b) = unsafe { (*one.add(at), *other.add(at)) };
        if a != b {
            return i64::from(a as u8) - i64::from(b as u8);
        }
        if a == 0 {
            break;
        }
    }
    0
}

extern "C" fn bpf_timer_init(timer: *mut c_void, map: *const c_void, _flags: u64) -> i64 {
    // SAFETY: a map's symbol holds its number.
    let map = unsafe { map.cast::<u64>().read_unaligned() } as usize;
    let number = state().timers.len();
    state().timer_at.insert(timer as usize, number);
    state().timers.push(Timer { address: timer as usize, map, callback: 0, turn: 0, armed: false });
    0
}

fn timer_at(address: *mut c_void) -> Option<usize> {
    state().timer_at.get(&(address as usize)).copied()
}

extern "C" fn bpf_timer_set_callback(timer: *mut c_void, callback: *const c_void) -> i64 {
    let Some(timer) = timer_at(timer) else { return i64::from(EINVAL) };
    state().timers[timer].callback = callback as usize;
    0
}

/// `BPF_F_TIMER_ABS`: the time is absolute, not relative.
const TIMER_ABS: u64 = 1;

extern "C" fn bpf_timer_start(timer: *mut c_void, ns: u64, flags: u64) -> i64 {
    let Some(number) = timer_at(timer) else { return i64::from(EINVAL) };
    let state = state();
    let timer = &mut state.timers[number];
    timer.turn = timer.turn.wrapping_add(1);
    timer.armed = true;
    let kernel = &mut state.kernel;
    kernel.effects.push(Effect::Timer {
        timer: number,
        turn: timer.turn,
        at: if flags & TIMER_ABS == 0 { kernel.now + ns } else { ns.max(kernel.now) },
        cpu: kernel.here,
    });
    0
}

extern "C" fn bpf_ringbuf_output(
    _map: *const c_void,
    _record: *const c_void,
    _size: u64,
    _flags: u64,
) -> i64 {
    0
}

extern "C" fn bpf_timer_cancel(timer: *mut c_void) -> i64 {
    let Some(timer) = timer_at(timer) else { return i64::from(EINVAL) };
    i64::from(std::mem::take(&mut state().timers[timer].armed))
}

extern "C" fn bpf_task_from_pid(pid: i32) -> Task {
    let state = state();
    match state.by_pid.get(&pid) {
        Some(&task) => state.tasks[task].pointer(),
        None => null(),
    }
}

extern "C" fn bpf_task_release(_task: Task) {}

extern "C" fn bpf_rcu_read_lock() {}

extern "C" fn bpf_rcu_read_unlock() {}

extern "C" fn bpf_cpumask_test_cpu(cpu: u32, mask: *const c_void) -> bool {
    has_cpu(mask, cpu as usize)
}

extern "C" fn scx_bpf_get_idle_cpumask() -> *const c_void {
    state().kernel.idle.as_ptr().cast()
}

extern "C" fn scx_bpf_put_idle_cpumask(_mask: *const c_void) {}

extern "C" fn bpf_cpumask_empty(mask: *const c_void) -> bool {
    let words = state().kernel.cpus.len().div_ceil(64);
    // SAFETY: as above.
    (0..words).all(|word| unsafe { *mask.cast::<u64>().add(word) } == 0)
}

/// Any CPU of a mask, or of the intersection with another one; round-robin, as in the kernel
/// (`cpumask_any_distribute()`).
fn any_of(mask: *const c_void, other: Option<*const c_void>) -> u32 {
    let cpus = state().kernel.cpus.len();
    let first = (state().kernel.distributed + 1) % cpus.max(1);
    let words = cpus.div_ceil(64);
    let mut found = cpus;
    // The search ends in the word in which it began.
    for step in 0..=words {
        let word = (first / 64 + step) % words;
        // SAFETY: as above.
        let mut bits = unsafe { *mask.cast::<u64>().add(word) };
        if let Some(other) = other {
            // SAFETY: as above.
            bits &= unsafe { *other.cast::<u64>().add(word) };
        }
        if step == 0 {
            bits &= u64::MAX << (first % 64);
        }
        if bits != 0 {
            found = word * 64 + bits.trailing_zeros() as usize;
            break;
        }
    }
    if found < cpus {
        state().kernel.distributed = found;
    }
    found as u32
}

extern "C" fn bpf_cpumask_any_distribute(mask: *const c_void) -> u32 {
    any_of(mask, None)
}

extern "C" fn bpf_cpumask_any_and_distribute(mask: *const c_void, other: *const c_void) -> u32 {
    any_of(mask, Some(other))
}

extern "C" fn scx_bpf_create_dsq(dsq: u64, _node: i32) -> i32 {
    let kernel = &mut state().kernel;
    if kernel.dsqs.contains_key(&dsq) {
        return EEXIST;
    }
    if dsq >> 63 != 0 {
        return EINVAL;
    }
    kernel.dsqs.insert(dsq, super::super::dsq::Dsq::default());
    0
}

extern "C" fn scx_bpf_dsq_nr_queued(dsq: u64) -> i32 {
    let kernel = &state().kernel;
    if dsq == DSQ_LOCAL {
        return kernel.cpus[kernel.here].local.len() as i32;
    }
    if dsq & DSQ_LOCAL_ON == DSQ_LOCAL_ON {
        return kernel
            .cpus
            .get((dsq & 0xFFFF_FFFF) as usize)
            .map_or(ENOENT as i32, |cpu| cpu.local.len() as i32);
    }
    kernel.dsqs.get(&dsq).map_or(ENOENT as i32, |dsq| dsq.len() as i32)
}

extern "C" fn scx_bpf_dsq_peek(dsq: u64) -> Task {
    let state = state();
    match state.kernel.dsqs.get(&dsq).and_then(|dsq| dsq.first()) {
        Some(task) => state.tasks[task].pointer(),
        None => null(),
    }
}

/// Insertions in dispatch() are buffered; elsewhere they are carried out when the callback returns.
fn ask_for(task: Task, insertion: Insertion) -> bool {
    let task = number_of(task);
    let kernel = &mut state().kernel;
    if kernel.dispatching.is_some() {
        kernel.buffer.push((task, insertion));
    } else if kernel.tasks[task].direct.is_none() {
        kernel.tasks[task].direct = Some(insertion);
    } else {
        kernel.fail(format!("task {task} is inserted twice"));
        return false;
    }
    true
}

extern "C" fn scx_bpf_dsq_insert___v2___compat(task: Task, dsq: u64, slice_ns: u64, flags: u64) -> bool {
    ask_for(task, Insertion { dsq, slice_ns, key: None, flags })
}

extern "C" fn sim_insert_ordered(task: Task, dsq: u64, slice_ns: u64, key: u64, flags: u64) -> bool {
    ask_for(task, Insertion { dsq, slice_ns, key: Some(key), flags })
}

extern "C" fn scx_bpf_dsq_move_to_local___v2___compat(dsq: u64, _flags: u64) -> bool {
    flush(state());
    state().kernel.move_to_local(dsq)
}

/// The first word of an iterator is the number of its iteration plus one.
fn iteration(iterator: *mut u64) -> Option<&'static mut Iteration> {
    // SAFETY: the policy's iterators are six words.
    let number = unsafe { *iterator } as usize;
    state().kernel.iterations.get_mut(number.checked_sub(1)?)?.as_mut()
}

extern "C" fn bpf_iter_scx_dsq_new(iterator: *mut u64, dsq: u64, flags: u64) -> i32 {
    let kernel = &mut state().kernel;
    // SAFETY: the policy's iterators are six words.
    unsafe { *iterator = 0 };
    let Some(queue) = kernel.dsqs.get(&dsq) else { return ENOENT as i32 };
    let mut tasks: Vec<usize> = queue.iter().collect();
    if flags & REVERSE != 0 {
        tasks.reverse();
    }
    let new = Iteration { dsq, tasks, inserted: kernel.inserted, ..Iteration::default() };
    let slot = kernel.iterations.iter().position(Option::is_none).unwrap_or_else(|| {
        kernel.iterations.push(None);
        kernel.iterations.len() - 1
    });
    kernel.iterations[slot] = Some(new);
    // SAFETY: likewise.
    unsafe { *iterator = slot as u64 + 1 };
    0
}

extern "C" fn bpf_iter_scx_dsq_next(iterator: *mut u64) -> Task {
    let State { kernel, tasks, .. } = state();
    // SAFETY: the policy's iterators are six words.
    let number = unsafe { *iterator } as usize;
    let slot = number.checked_sub(1).and_then(|slot| kernel.iterations.get_mut(slot));
    let Some(iteration) = slot.and_then(Option::as_mut) else { return null() };
    while let Some(&task) = iteration.tasks.get(iteration.next) {
        iteration.next += 1;
        // Tasks that have left the DSQ meanwhile are skipped.
        if kernel.tasks[task].is_in(iteration.dsq, iteration.inserted) {
            iteration.slice_ns = None;
            iteration.key = None;
            return tasks[task].pointer();
        }
    }
    null()
}

extern "C" fn bpf_iter_scx_dsq_destroy(iterator: *mut u64) {
    // SAFETY: the policy's iterators are six words.
    let number = unsafe { std::mem::take(&mut *iterator) } as usize;
    if let Some(slot) = number.checked_sub(1).and_then(|slot| state().kernel.iterations.get_mut(slot)) {
        *slot = None;
    }
}

extern "C" fn scx_bpf_dsq_move_set_slice___new(iterator: *mut u64, slice_ns: u64) {
    if let Some(iteration) = iteration(iterator) {
        iteration.slice_ns = Some(slice_ns);
    }
}

extern "C" fn scx_bpf_dsq_move_set_vtime___new(iterator: *mut u64, key: u64) {
    if let Some(iteration) = iteration(iterator) {
        iteration.key = Some(key);
    }
}

extern "C" fn scx_bpf_dsq_move_vtime___new(iterator: *mut u64, task: Task, dsq: u64, flags: u64) -> bool {
    let Some(iteration) = iteration(iterator) else { return false };
    let (from, inserted, slice_ns, key) =
        (iteration.dsq, iteration.inserted, iteration.slice_ns, iteration.key);
    let number = number_of(task);
    let moves = || {
        let state = state();
        if !state.kernel.tasks[number].is_in(from, inserted) {
            return false;
        }
        let key = key.unwrap_or_else(|| (state.functions.key)(task));
        state.kernel.withdraw(number);
        insert(state, number, &Insertion { dsq, slice_ns: slice_ns.unwrap_or(0), key: Some(key), flags });
        true
    };
    let there = state().kernel.tasks[number].cpu;
    match state().kernel.dispatching {
        Some(cpu) if cpu != there => super::explore::with_other_queue(cpu, there, moves),
        _ => moves(),
    }
}

extern "C" fn scx_bpf_task_cpu(task: Task) -> i32 {
    state().kernel.tasks[number_of(task)].cpu as i32
}

/// Number of the DSQ that a task is in; -1: none.
extern "C" fn sim_dsq_of(task: Task) -> u64 {
    match state().kernel.tasks[number_of(task)].place {
        Place::Queue(dsq) => dsq,
        _ => u64::MAX,
    }
}

extern "C" fn scx_bpf_task_running(task: Task) -> bool {
    state().kernel.tasks[number_of(task)].running
}

extern "C" fn scx_bpf_task_set_slice___new(task: Task, slice_ns: u64) -> bool {
    (state().functions.set_slice)(task, slice_ns);
    true
}

extern "C" fn scx_bpf_kick_cpu(cpu: i32, flags: u64) {
    let kernel = &mut state().kernel;
    match usize::try_from(cpu) {
        Ok(cpu) if cpu < kernel.cpus.len() => kernel.effects.push(Effect::Kick { cpu, flags }),
        _ => kernel.fail(format!("there is no CPU {cpu} to kick")),
    }
}

/// No interrupt arrives during a callback in the simulator.
extern "C" fn bpf_local_irq_save(_flags: *mut u64) {}

extern "C" fn bpf_local_irq_restore(_flags: *mut u64) {}

extern "C" fn scx_bpf_select_cpu_dfl(task: Task, prev: i32, flags: u64, idle: *mut bool) -> i32 {
    let task = number_of(task);
    let kernel = &mut state().kernel;
    let (cpu, found) = kernel.select_cpu_default(task, prev.max(0) as usize, flags & WAKE_SYNC != 0);
    // SAFETY: the policy passes a variable of its own.
    unsafe { *idle = found };
    cpu as i32
}

extern "C" fn scx_bpf_test_and_clear_cpu_idle(cpu: i32) -> bool {
    usize::try_from(cpu).is_ok_and(|cpu| state().kernel.test_and_clear_idle(cpu))
}

extern "C" fn scx_bpf_pick_idle_cpu(mask: *const c_void, flags: u64) -> i32 {
    let allowed: Vec<bool> = (0..state().kernel.cpus.len()).map(|cpu| has_cpu(mask, cpu)).collect();
    let whole = flags & WHOLE_CORE != 0;
    let found = state().kernel.pick_idle(&|cpu| allowed[cpu], None, whole);
    found.map_or(-16, |cpu| cpu as i32)
}

extern "C" fn scx_bpf_dsq_reenq___compat(_dsq: u64, _flags: u64) {
    let state = state();
    let here = state.kernel.here;
    let list: Vec<usize> = state.kernel.cpus[here].local.iter().collect();
    for task in list {
        state.kernel.withdraw(task);
        state.kernel.effects.push(Effect::Again { task });
    }
}

/// printf for policies: integers, pointers and strings.
fn formatted(format: *const c_char, data: *const u64, size: u32) -> String {
    // SAFETY: a string that ends with a zero byte, and `size` bytes of arguments.
    let (format, data) = unsafe {
        (CStr::from_ptr(format).to_string_lossy(), std::slice::from_raw_parts(data, size as usize / 8))
    };
    let mut result = String::new();
    let mut data = data.iter();
    let mut parts = format.chars().peekable();
    while let Some(c) = parts.next() {
        if c != '%' {
            result.push(c);
            continue;
        }
        while parts.peek().is_some_and(|c| c.is_ascii_digit() || "lhz-+.# ".contains(*c)) {
            parts.next();
        }
        let kind = parts.next();
        if kind == Some('%') {
            result.push('%');
            continue;
        }
        let value = data.next().copied().unwrap_or(0);
        match kind {
            Some('d' | 'i') => result.push_str(&(value as i64).to_string()),
            Some('x' | 'p') => result.push_str(&format!("{value:x}")),
            // SAFETY: strings of policies end with a zero byte.
            Some('s') => {
                result.push_str(&unsafe { CStr::from_ptr(value as *const c_char) }.to_string_lossy())
            }
            _ => result.push_str(&value.to_string()),
        }
    }
    result
}

extern "C" fn scx_bpf_error_bstr(format: *const c_char, data: *const u64, size: u32) {
    let text = formatted(format, data, size);
    state().kernel.fail(text);
}

extern "C" fn scx_bpf_dump_bstr(format: *const c_char, data: *const u64, size: u32) {
    let text = formatted(format, data, size);
    state().kernel.dump.push_str(&text);
}

/// The arguments of a variadic function come in registers, too: up to three.
extern "C" fn bpf_trace_printk(format: *const c_char, _size: u32, one: u64, two: u64, three: u64) -> i64 {
    let arguments = [one, two, three];
    let text = formatted(format, arguments.as_ptr(), 24);
    state().kernel.dump.push_str(&text);
    text.len() as i64
}

extern "C" fn memset(to: *mut c_void, byte: i32, size: usize) -> *mut c_void {
    // SAFETY: as for the C function.
    unsafe { libc::memset(to, byte, size) }
}

extern "C" fn memcpy(to: *mut c_void, from: *const c_void, size: usize) -> *mut c_void {
    // SAFETY: as for the C function.
    unsafe { libc::memcpy(to, from, size) }
}

macro_rules! supply {
    ($($name:ident),* $(,)?) => {
        /// Address of a symbol that a policy imports.
        pub(super) fn supplied(name: &str) -> Option<usize> {
            match name {
                "sim_switch_point" => Some(super::explore::sim_switch_point as *const () as usize),
                "__cpu_active_mask" => Some(ptr::from_ref(&ACTIVE) as usize),
                "steal_time" => Some(ptr::from_ref(&STEAL_TIME) as usize),
                $(stringify!($name) => Some($name as *const () as usize),)*
                _ => None,
            }
        }
    };
}

supply!(
    bpf_cpumask_empty,
    bpf_cpumask_any_distribute,
    bpf_cpumask_any_and_distribute,
    bpf_cpumask_test_cpu,
    bpf_get_current_pid_tgid,
    bpf_get_current_task_btf,
    bpf_get_func_arg,
    bpf_get_smp_processor_id,
    bpf_iter_scx_dsq_destroy,
    bpf_iter_scx_dsq_new,
    bpf_iter_scx_dsq_next,
    bpf_jiffies64,
    bpf_ktime_get_ns,
    bpf_map_delete_elem,
    bpf_map_lookup_elem,
    bpf_map_lookup_percpu_elem,
    bpf_map_pop_elem,
    bpf_map_push_elem,
    bpf_map_update_elem,
    bpf_per_cpu_ptr,
    bpf_probe_read_kernel,
    bpf_probe_read_kernel_str,
    bpf_probe_read_user,
    bpf_rcu_read_lock,
    bpf_rcu_read_unlock,
    bpf_strncmp,
    bpf_task_from_pid,
    bpf_task_release,
    bpf_task_storage_delete,
    bpf_task_storage_get,
    bpf_local_irq_restore,
    bpf_local_irq_save,
    bpf_ringbuf_output,
    bpf_timer_cancel,
    bpf_timer_init,
    bpf_timer_set_callback,
    bpf_timer_start,
    bpf_trace_printk,
    memcpy,
    memset,
    scx_bpf_create_dsq,
    scx_bpf_dsq_insert___v2___compat,
    scx_bpf_dsq_move_set_slice___new,
    scx_bpf_dsq_move_set_vtime___new,
    scx_bpf_dsq_move_to_local___v2___compat,
    scx_bpf_dsq_move_vtime___new,
    scx_bpf_dsq_nr_queued,
    scx_bpf_dsq_peek,
    scx_bpf_dsq_reenq___compat,
    scx_bpf_dump_bstr,
    scx_bpf_error_bstr,
    scx_bpf_get_idle_cpumask,
    scx_bpf_kick_cpu,
    scx_bpf_now,
    scx_bpf_pick_idle_cpu,
    scx_bpf_put_idle_cpumask,
    scx_bpf_select_cpu_dfl,
    scx_bpf_task_cpu,
    scx_bpf_task_running,
    scx_bpf_task_set_slice___new,
    scx_bpf_test_and_clear_cpu_idle,
    sim_dsq_of,
    sim_insert_ordered,
);
