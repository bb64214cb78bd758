//! One boot: the host, its guests, the scheduler under test, and the competitors.

use crate::accel::Accel;
use crate::contention::Contenders;
use crate::experiment::{hrtick_command, Background, Experiment, Layout, Mode, Vm};
use crate::fetch::{KernelFiles, Parts};
use crate::image::{self, Images};
use crate::machine::{Machine, Size};
use crate::noise::CpuTime;
use crate::progress::Progress;
use crate::rig;
use crate::speed::{self, Speed};
use crate::LabError;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tandem_agent::{CgroupLayout, Facts, Op, Output, VmSpec, SELF};

/// CPU model of guests. Without a TSC deadline timer a guest stays on jiffies, and a sleep of 1 ms takes 4.
const GUEST_CPU_TCG: &str = "Nehalem,+arat,+tsc-deadline";
const GUEST_CPU_KVM: &str = "host";
/// Features of KVM that QEMU's named models lack. They need the x2APIC, which those have.
const PARAVIRTUAL: &str =
    ",+kvm-pv-unhalt,+kvm-pv-tlb-flush,+kvm-pv-ipi,+kvm-pv-sched-yield,+kvm-asyncpf-int,+kvm-poll-control";
/// KVM offers its steal time page whatever the model.
const NO_STEAL_TIME: &str = ",-kvm-steal-time";
/// Of the host, for guests with a network card or on vsock.
const VHOST_MODULES: [&str; 2] = ["vhost_iotlb", "vhost"];
/// With a network card.
const NETWORK_MODULES: [&str; 3] = ["tun", "tap", "vhost_net"];
/// On vsock.
const VSOCK_MODULES: [&str; 3] = ["vsock", "vmw_vsock_virtio_transport_common", "vhost_vsock"];
const SHORT: Duration = Duration::from_secs(20);
/// Time for loading a scheduler. The verifier checks every BPF program: half a minute in a guest that gets half of an
/// emulated CPU, and several times that on a busy machine.
const LOADING: Duration = Duration::from_secs(240);
/// Among programs that compute on all CPUs loading would take a minute and more. It goes ahead of them, and ends with ordinary priority.
const AHEAD: &str = r#"echo $$ > /tmp/loading; renice -n -15 -p $$ > /dev/null; exec "$@""#;
const AMONG: &str =
    r#"for t in /proc/$(cat /tmp/loading)/task/[0-9]*; do renice 0 -p "${t##*/}" > /dev/null 2>&1; done"#;
const GUEST_BOOT: Duration = Duration::from_secs(90);
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// How often it is asked whether a program has ended.
const POLL: Duration = Duration::from_millis(100);

/// A booted experiment.
pub struct Session {
    /// The host.
    pub machine: Machine,
    /// Facts of the machine under test.
    pub facts: Facts,
    /// Speed of the machines, if the experiment measures times.
    pub speed: Speed,
    /// Is a scheduler under test loaded?
    pub scheduler_loaded: bool,
    /// Competitors on the host's CPUs.
    pub contenders: Contenders,
    /// Schedulers that are loaded: machine and handle.
    schedulers: Vec<(String, u64)>,
    target: String,
    /// Guests that have been started.
    pub guests: Vec<String>,
    /// Background programs that run all the time.
    beside: Vec<Beside>,
}

/// A program that runs beside workloads.
pub struct Beside {
    machine: String,
    argv: Vec<String>,
    handle: u64,
}

impl Session {
    /// Boots everything that `experiment` names.
    pub fn boot(
        parts: &Parts,
        images: &Images,
        work: &Path,
        experiment: &Experiment,
        accel: Accel,
        progress: &Progress,
    ) -> Result<Self, LabError> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let cpus = experiment.cpus.unwrap_or(cores + 1);
        let initrd = initrd(parts, images, work, experiment)?;
        progress.step("booting the host");
        let size = Size {
            cpus,
            max_cpus: experiment.max_cpus.unwrap_or(cpus),
            sockets: experiment.sockets.unwrap_or(1),
            memory_mib: 3072,
        };
        let mut machine = Machine::boot(parts, &initrd, work, size, accel)?;
        for module in ["irqbypass", "kvm"].iter().filter(|_| experiment.mode == Mode::Nested) {
            insert_module(&mut machine, module)?;
        }
        if let Some(command) = experiment.host.command() {
            shell(&mut machine, SELF, &command)?;
        }
        let network = experiment.vms.iter().any(|vm| vm.network);
        let vsock = experiment.vms.iter().any(|vm| vm.vsock);
        let vhost = VHOST_MODULES.iter().filter(|_| network || vsock);
        let network = NETWORK_MODULES.iter().filter(|_| network);
        for module in vhost.chain(network).chain(VSOCK_MODULES.iter().filter(|_| vsock)) {
            insert_module(&mut machine, module)?;
        }
        let mut guests = Vec::new();
        if experiment.mode == Mode::Nested {
            if insert_module(&mut machine, "kvm-amd").is_err() {
                insert_module(&mut machine, "kvm-intel")?;
            }
            progress.step("booting guests");
            for vm in &experiment.vms {
                let spec = VmSpec {
                    name: vm.name.clone(),
                    vcpus: vm.pins.len(),
                    memory_mib: vm.memory_mib,
                    pins: vm.pins.clone(),
                    free: vm.free,
                    weight: vm.weight,
                    network: experiment.network_of(vm),
                    vsock: experiment.vsock_of(vm),
                    disk_mib: vm.disk_mib,
                    layout: vm.layout.map(|layout| match layout {
                        Layout::Proxmox => CgroupLayout::Proxmox,
                        Layout::Libvirt => CgroupLayout::Libvirt,
                    }),
                    cpu_model: cpu_model(accel, vm),
                    kernel: parts.kernel_of(&vm.name).release.clone(),
                    kernel_args: format!("{} {}", rig::kernel_args(accel), vm.kernel_args),
                    emulator_apart: vm.emulator_apart,
                };
                let started = machine.link.ask(SELF, Op::StartVm(spec), SHORT * 2);
                // No software under test is running yet.
                started.map_err(|error| match error {
                    LabError::Agent { message, .. } => LabError::Rig(message),
                    other => other,
                })?;
                guests.push(vm.name.clone());
            }
        }
        let mut facts = None;
        for vm in &experiment.vms {
            let found = machine.link.wait_for(&vm.name, GUEST_BOOT)?;
            if !found.high_resolution {
                return Err(LabError::Rig(format!("guest {} has no high-resolution timers", vm.name)));
            }
            if vm.name == experiment.target() {
                facts = Some(found);
            }
            if !rig::has_slice_timers(experiment.mode, accel) {
                shell(&mut machine, &vm.name, &hrtick_command(false))?;
            }
        }
        let facts = match facts {
            Some(facts) => facts,
            None => machine.link.ask_for(SELF, Op::Hello, SHORT)?,
        };
        // Before limits and background work are in place.
        let speed = if experiment.timed {
            for name in guests.iter().map(String::as_str).chain([SELF]) {
                speed::settle_work(&mut machine.link, name)?;
            }
            speed::measure(&mut machine.link, experiment.target())?
        } else {
            Speed::default()
        };
        let mut session = Self {
            machine,
            facts,
            speed,
            scheduler_loaded: false,
            contenders: Contenders::default(),
            schedulers: Vec::new(),
            target: experiment.target().to_string(),
            guests,
            beside: Vec::new(),
        };
        if !experiment.contention.is_empty() {
            progress.step("calibrating contention");
            session.contenders.calibrate(&mut session.machine.link, experiment)?;
        }
        // After the calibration, which would take a limit for a cost of contention.
        for throttle in &experiment.throttle {
            let value = format!("{} {}", throttle.quota_us, throttle.period_us);
            let op = Op::CpuMax { name: throttle.vm.clone(), vcpu: throttle.vcpu, value };
            session.machine.link.ask(SELF, op, SHORT)?;
        }
        for background in experiment.background.iter().filter(|background| background.workloads.is_none()) {
            let beside = session.spawn_beside(background)?;
            session.beside.push(beside);
        }
        Ok(session)
    }

    /// Time of the host's CPU 0, where clients run.
    pub fn cpu0(&mut self) -> Result<CpuTime, LabError> {
        let argv = ["grep", "^cpu0 ", "/proc/stat"].map(str::to_string);
        let output = self.machine.link.exec(SELF, &argv, SHORT)?;
        CpuTime::parse(&output.stdout)
            .ok_or_else(|| LabError::Rig(format!("/proc/stat of the host: {:.80}", output.stdout)))
    }

    /// Starts a scheduler on a machine (none: the one under test), and waits until the kernel has enabled it.
    pub fn load(&mut self, machine: Option<&str>, command: &[String]) -> Result<(), LabError> {
        let machine = machine.unwrap_or(&self.target).to_owned();
        let mut argv = ["sh", "-c", AHEAD, "sh"].map(str::to_string).to_vec();
        argv.extend_from_slice(command);
        let handle: u64 = self.machine.link.ask_for(&machine, Op::Spawn { argv }, SHORT)?;
        self.schedulers.push((machine.clone(), handle));
        // From here on trouble counts against the scheduler: enabling it is part of the test.
        self.scheduler_loaded = true;
        let deadline = Instant::now() + LOADING;
        while self.scheduler_state(&machine)? != "enabled" {
            let running: bool = self.machine.link.ask_for(&machine, Op::Running { handle }, SHORT)?;
            if !running || Instant::now() >= deadline {
                self.schedulers.pop();
                let output = self.stop_scheduler(&machine, handle)?;
                return Err(LabError::UnderTest(format!(
                    "the scheduler was not enabled on {machine}: {}",
                    last_words(Some(&output))
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let among = ["sh", "-c", AMONG].map(str::to_string);
        self.machine.link.exec(&machine, &among, SHORT).map(|_| ())
    }

    /// The sched_ext state of a machine.
    fn scheduler_state(&mut self, machine: &str) -> Result<String, LabError> {
        let op = Op::Read { path: "/sys/kernel/sched_ext/state".into() };
        let text: String = self.machine.link.ask_for(machine, op, SHORT)?;
        Ok(text.trim().to_string())
    }

    /// Which schedulers are loaded, and whether they still are, for a message.
    pub fn schedulers_in_words(&mut self) -> String {
        let machines: Vec<String> = self.schedulers.iter().map(|(machine, _)| machine.clone()).collect();
        let state = |machine: String| match self.scheduler_state(&machine) {
            Ok(state) => format!("scheduler on {machine}: {state}"),
            Err(error) => format!("scheduler on {machine}: {error}"),
        };
        machines.into_iter().map(state).collect::<Vec<_>>().join("; ")
    }

    /// Ends all schedulers, the last one first, checks that each was enabled until now, and returns their output.
    pub fn unload(&mut self) -> Result<Option<Output>, LabError> {
        if self.schedulers.is_empty() {
            return Ok(None);
        }
        let mut all: Option<Output> = None;
        while let Some((machine, handle)) = self.schedulers.pop() {
            let state = self.scheduler_state(&machine)?;
            let output = self.stop_scheduler(&machine, handle)?;
            if state != "enabled" {
                return Err(LabError::UnderTest(format!(
                    "the scheduler on {machine} did not last (state {state}): {}",
                    last_words(Some(&output))
                )));
            }
            let deadline = Instant::now() + SHORT;
            while self.scheduler_state(&machine)? != "disabled" {
                if Instant::now() >= deadline {
                    let reason = format!("the scheduler on {machine} did not unload within 20 s");
                    return Err(LabError::UnderTest(reason));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            match &mut all {
                Some(all) => {
                    all.stdout += &format!("--- on {machine}\n{}", output.stdout);
                    all.stderr += &format!("--- on {machine}\n{}", output.stderr);
                }
                None => all = Some(output),
            }
        }
        self.scheduler_loaded = false;
        Ok(all)
    }

    fn stop_scheduler(&mut self, machine: &str, handle: u64) -> Result<Output, LabError> {
        let op = Op::Stop { handle, signal: SIGTERM, timeout_s: 15.0 };
        self.machine.link.ask_for(machine, op, SHORT * 2)
    }

    /// Starts a program beside the workloads.
    pub fn spawn(&mut self, machine: &str, argv: &[String]) -> Result<u64, LabError> {
        self.machine.link.ask_for(machine, Op::Spawn { argv: argv.to_vec() }, SHORT)
    }

    /// Starts a program that is to run beside workloads.
    pub fn spawn_beside(&mut self, background: &Background) -> Result<Beside, LabError> {
        let handle = self.spawn(&background.machine, &background.argv)?;
        Ok(Beside { machine: background.machine.clone(), argv: background.argv.clone(), handle })
    }

    /// Ends it.
    pub fn stop(&mut self, beside: &Beside) -> Result<(), LabError> {
        let op = Op::Stop { handle: beside.handle, signal: SIGTERM, timeout_s: 10.0 };
        self.machine.link.ask(&beside.machine, op, SHORT).map(|_| ())
    }

    /// Does each of these programs, and of those that run all the time, still run? What was measured beside one that has ended is void.
    pub fn still_beside(&mut self, chosen: &[Beside]) -> Result<(), LabError> {
        for beside in self.beside.iter().chain(chosen) {
            let Beside { machine, handle, argv } = beside;
            if self.machine.link.ask_for(machine, Op::Running { handle: *handle }, SHORT)? {
                continue;
            }
            let op = Op::Stop { handle: *handle, signal: SIGKILL, timeout_s: 10.0 };
            let output: Output = self.machine.link.ask_for(machine, op, SHORT)?;
            let (argv, words) = (argv.join(" "), last_words(Some(&output)));
            return Err(LabError::UnderTest(format!(
                "[[background]] of {machine}: \"{argv:.100}\" did not last until the end of the workload: {words}"
            )));
        }
        Ok(())
    }

    /// Runs a program on a machine; none: the one under test.
    pub fn exec_on(
        &mut self,
        machine: Option<&str>,
        argv: &[String],
        timeout: Duration,
    ) -> Result<Output, LabError> {
        let target = machine.unwrap_or(&self.target).to_owned();
        self.machine.link.exec(&target, argv, timeout)
    }

    /// Waits for the end of a program that was started with [`Session::spawn`]; at the deadline it is killed.
    pub fn ended(&mut self, machine: &str, handle: u64, deadline: Instant) -> Result<Output, LabError> {
        loop {
            let running: bool = self.machine.link.ask_for(machine, Op::Running { handle }, SHORT)?;
            if !running || Instant::now() >= deadline {
                let op = Op::Stop { handle, signal: SIGKILL, timeout_s: 10.0 };
                let mut output: Output = self.machine.link.ask_for(machine, op, SHORT)?;
                output.timed_out |= running;
                return Ok(output);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Shuts everything down, guests first. A machine that does not respond is a rig failure.
    pub fn end(mut self) -> Result<(), LabError> {
        self.machine.link.ask(SELF, Op::RtStop, SHORT)?;
        for name in std::mem::take(&mut self.guests) {
            self.machine.link.ask(&name, Op::PowerOff, SHORT)?;
            let clean: bool = self.machine.link.ask_for(
                SELF,
                Op::EndVm { name: name.clone(), timeout_s: 20.0 },
                SHORT * 2,
            )?;
            if !clean {
                return Err(LabError::Rig(format!("guest {name} did not power off within 20 s")));
            }
        }
        self.machine.power_off()
    }
}

/// CPU model of a guest.
fn cpu_model(accel: Accel, vm: &Vm) -> String {
    let model = if accel == Accel::Kvm { GUEST_CPU_KVM } else { GUEST_CPU_TCG };
    let more = if vm.paravirtual { PARAVIRTUAL } else { "" };
    format!("{model}{more}{}", if vm.no_steal_time { NO_STEAL_TIME } else { "" })
}

/// Runs a setup command; its failure is a rig failure.
fn shell(machine: &mut Machine, target: &str, command: &str) -> Result<(), LabError> {
    let argv = ["/bin/sh", "-c", command].map(str::to_string);
    let output = machine.link.exec(target, &argv, SHORT)?;
    if output.status == 0 {
        return Ok(());
    }
    Err(LabError::Rig(format!("{target}: {command}: {}", output.stderr.trim())))
}

fn insert_module(machine: &mut Machine, name: &str) -> Result<(), LabError> {
    shell(machine, SELF, &format!("insmod /lib/mods/{name}.ko"))
}

/// The end of a program's output, for a message. Both streams: a script may have written the reason to either.
pub fn last_words(output: Option<&Output>) -> String {
    let Some(output) = output else { return "it was gone".into() };
    let end = |text: &str, lines: usize| {
        let last: Vec<String> = text.trim().lines().rev().take(lines).map(str::to_owned).collect();
        last.into_iter().rev()
    };
    let words = end(&output.stdout, 8).chain(end(&output.stderr, 4)).collect::<Vec<_>>().join(" / ");
    format!("status {}{}: {words}", output.status, if output.timed_out { ", timed out" } else { "" })
}

/// Refuses a kernel that is offered without modules: it knows neither KVM nor virtio.
fn has_modules(experiment: &Experiment, kernel: &KernelFiles) -> Result<(), LabError> {
    if image::find_module(&kernel.modules, "virtio_mmio").is_some() {
        return Ok(());
    }
    Err(LabError::Experiment {
        origin: experiment.name.clone(),
        message: format!(
            "kernel {}: no package with its modules is offered, so only mode \"single\" can boot it",
            kernel.release
        ),
    })
}

/// Refuses a guest that is too small for its image: it would die without naming the reason ("unable to mount root").
fn enough_memory(experiment: &Experiment, vm: &Vm, image: &Path) -> Result<(), LabError> {
    let bytes = std::fs::metadata(image).map_err(LabError::io("read", image))?.len();
    let least = rig::least_memory_mib(bytes);
    if vm.memory_mib >= least {
        return Ok(());
    }
    Err(LabError::Experiment {
        origin: experiment.name.clone(),
        message: format!(
            "guest {:?} has memory_mib = {}: its image needs {least} at least",
            vm.name, vm.memory_mib
        ),
    })
}

fn initrd(parts: &Parts, images: &Images, work: &Path, experiment: &Experiment) -> Result<PathBuf, LabError> {
    let overlay = work.join("overlay.cpio");
    image::overlay(&overlay, |peer| experiment.uses(peer))?;
    let own = work.join("kernel.cpio");
    // With KVM, which a single host under test may load itself.
    let is_host = experiment.mode == Mode::Nested || experiment.under_test.as_deref() == Some(SELF);
    image::kernel(&own, &parts.kernel, is_host)?;
    let initrd = work.join("host.cpio");
    if experiment.mode == Mode::Single {
        image::concatenate(&initrd, &[&images.guest, &own, &overlay])?;
        return Ok(initrd);
    }
    has_modules(experiment, &parts.kernel)?;
    let mut carried: Vec<(PathBuf, String)> = Vec::new();
    for vm in &experiment.vms {
        let kernel = parts.kernel_of(&vm.name);
        has_modules(experiment, kernel)?;
        let guest = work.join(format!("guest-{}.cpio", kernel.release));
        if !guest.exists() {
            let modules = work.join("modules.cpio");
            image::kernel(&modules, kernel, false)?;
            image::concatenate(&guest, &[&images.guest, &modules, &overlay])?;
            carried.push((guest.clone(), format!("lib/guest-{}.cpio", kernel.release)));
            carried.push((kernel.vmlinux.clone(), format!("lib/vmlinux-{}", kernel.release)));
        }
        enough_memory(experiment, vm, &guest)?;
    }
    let carrier = work.join("carrier.cpio");
    image::of_files(&carrier, &carried)?;
    let mut archives = vec![images.host.clone(), own, overlay, carrier];
    if experiment.vms.iter().any(|vm| vm.vsock || vm.network || vm.disk_mib > 0) {
        let emulator = work.join("emulator.cpio");
        image::full_emulator(&emulator, parts)?;
        archives.push(emulator);
    }
    image::concatenate(&initrd, &archives.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    Ok(initrd)
}
