//! Guests of this host: QEMU with KVM, their consoles, their vCPU threads, the connections to their agents.

use crate::{inspect, sys};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tandem_agent::{signature, CgroupLayout, VcpuStat, VmSpec, PORT_NAME};

const CONSOLE_TAIL: i64 = 16 << 10;
/// How often guests' consoles are read.
const CONSOLE_PAUSE: Duration = Duration::from_millis(500);
const CGROUP: &str = "/sys/fs/cgroup";

/// The connection to the lab, to which replies of guests are written.
pub type Uplink = Arc<Mutex<File>>;

struct Vm {
    qemu: Child,
    line: UnixStream,
    /// It was told to power off, so its connection may close.
    ending: Arc<AtomicBool>,
    /// Its cgroup, in which it may not be yet.
    group: String,
    layout: Option<CgroupLayout>,
}

/// All guests by name.
#[derive(Default)]
pub struct Guests(BTreeMap<String, Vm>);

fn console_path(name: &str) -> String {
    format!("/run/vm-{name}.console")
}

fn monitor_path(name: &str) -> String {
    format!("/run/vm-{name}.qmp")
}

impl Guests {
    /// Starts a guest and pins its vCPUs. Its kernel is still booting when this returns.
    pub fn start(&mut self, spec: &VmSpec, uplink: &Uplink) -> Result<(), String> {
        if !spec.name.chars().all(|c| c.is_ascii_alphanumeric()) || self.0.contains_key(&spec.name) {
            return Err(format!("guest name {:?} is taken or not alphanumeric", spec.name));
        }
        if spec.disk_mib > 0 {
            make_disk(spec)?;
        }
        let socket = format!("/run/vm-{}.sock", spec.name);
        let mut qemu =
            qemu_command(spec, &socket).spawn().map_err(|error| format!("cannot run qemu: {error}"))?;
        let deadline = Instant::now() + Duration::from_secs(20);
        let line = loop {
            match UnixStream::connect(&socket) {
                Ok(line) => break line,
                Err(_) if Instant::now() < deadline && matches!(qemu.try_wait(), Ok(None)) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    let _ = qemu.kill();
                    let _ = qemu.wait();
                    return Err(format!(
                        "qemu of {} did not come up ({error}): {}",
                        spec.name,
                        said(&spec.name)
                    ));
                }
            }
        };
        let reader = line.try_clone().map_err(|error| format!("line to {}: {error}", spec.name))?;
        let ending = Arc::new(AtomicBool::new(false));
        pass_on(reader, Arc::clone(uplink), spec.name.clone(), Arc::clone(&ending));
        watch_console(spec.name.clone());
        let pid = qemu.id();
        let group = group_path(&spec.name, spec.layout);
        self.0
            .insert(spec.name.clone(), Vm { qemu, line, ending, group: group.clone(), layout: spec.layout });
        wait_for_vcpus(pid, spec, deadline)?;
        // Threads that are created later inherit their creator's group and affinity.
        if spec.layout.is_some() || spec.weight.is_some() {
            enter(&group, pid, spec.layout)?;
        }
        pin_vcpus(pid, spec)?;
        if let Some(number) = spec.network {
            address(&format!("tap{number}"), &format!("10.0.{number}.1"))?;
        }
        match spec.weight {
            Some(weight) => write_file(&format!("{group}/cpu.weight"), &weight.to_string()),
            None => Ok(()),
        }
    }

    /// What a guest is doing that does not answer. It ends by that: its kernel is told to panic.
    pub fn inspect(&self, name: &str) -> Result<String, String> {
        let vm = self.0.get(name).ok_or_else(|| format!("no guest {name:?}"))?;
        let threads = inspect::threads_twice(vm.qemu.id());
        let path = monitor_path(name);
        let interrupted = match inspect::interrupt(Path::new(&path)) {
            Ok(()) => "all vCPUs interrupted; its console:".to_owned(),
            Err(error) => format!("{path}: {error}; its console:"),
        };
        Ok(format!("{threads}\n{interrupted}\n{}", console(name)?))
    }

    /// Sends a request line to a guest. `last`: it tells the guest to power off.
    pub fn send(&mut self, name: &str, line: &str, last: bool) -> Result<(), String> {
        let vm = self.0.get_mut(name).ok_or_else(|| format!("no guest {name:?}"))?;
        vm.ending.fetch_or(last, Ordering::Relaxed);
        if !matches!(vm.qemu.try_wait(), Ok(None)) {
            return Err(format!("guest {name} is dead: {}", said(name)));
        }
        writeln!(vm.line, "{line}").map_err(|error| format!("line to {name}: {error}"))
    }

    /// Waits for a guest's end; true if it ended by itself.
    pub fn end(&mut self, name: &str, timeout: Duration) -> Result<bool, String> {
        let mut vm = self.0.remove(name).ok_or_else(|| format!("no guest {name:?}"))?;
        let deadline = Instant::now() + timeout;
        while matches!(vm.qemu.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = vm.qemu.kill();
                let _ = vm.qemu.wait();
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(true)
    }

    /// Accounting of all vCPU threads.
    pub fn vcpu_stats(&self) -> Vec<VcpuStat> {
        let mut stats = Vec::new();
        for (name, vm) in &self.0 {
            for (vcpu, tid) in vcpu_threads(vm.qemu.id()) {
                let text = fs::read_to_string(format!("/proc/{tid}/schedstat")).unwrap_or_default();
                let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or(0));
                let (run_ns, run_delay_ns) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
                stats.push(VcpuStat { vm: name.clone(), vcpu, tid, run_ns, run_delay_ns });
            }
        }
        stats
    }

    /// Puts a guest in a cgroup of its own with this `cpu.max`; if `vcpu` is given, that vCPU thread in a group below
    /// it.
    pub fn cpu_max(&self, name: &str, vcpu: Option<usize>, value: &str) -> Result<(), String> {
        let vm = self.0.get(name).ok_or_else(|| format!("no guest {name:?}"))?;
        let (group, layout) = (&vm.group, vm.layout);
        if layout.is_none() {
            enter(group, vm.qemu.id(), None)?;
        }
        let Some(vcpu) = vcpu else { return write_file(&format!("{group}/cpu.max"), value) };
        if layout == Some(CgroupLayout::Libvirt) {
            return write_file(&format!("{group}/libvirt/vcpu{vcpu}/cpu.max"), value);
        }
        let (_, tid) = vcpu_threads(vm.qemu.id())
            .into_iter()
            .find(|(number, _)| *number == vcpu)
            .ok_or_else(|| format!("guest {name} has no vCPU {vcpu}"))?;
        let below = format!("{group}/vcpu{vcpu}");
        create_group(&below)?;
        // Only threaded cgroups can divide the threads of one process.
        write_file(&format!("{below}/cgroup.type"), "threaded")?;
        write_file(&format!("{group}/cgroup.subtree_control"), "+cpu")?;
        write_file(&format!("{below}/cgroup.threads"), &tid.to_string())?;
        write_file(&format!("{below}/cpu.max"), value)
    }
}

/// What a guest's QEMU has complained about.
fn said(name: &str) -> String {
    fs::read_to_string(format!("/run/vm-{name}.err")).unwrap_or_default().trim().to_owned()
}

/// A guest's cgroup.
fn group_path(name: &str, layout: Option<CgroupLayout>) -> String {
    match layout {
        None => format!("{CGROUP}/{name}"),
        Some(CgroupLayout::Proxmox) => format!("{CGROUP}/qemu.slice/{name}.scope"),
        // systemd's way to write `-` in a name.
        Some(CgroupLayout::Libvirt) => {
            format!("{CGROUP}/machine.slice/machine-qemu\\x2d1\\x2d{name}.scope")
        }
    }
}

/// Puts a guest's process into its cgroup, and with libvirt's layout its threads into groups below.
fn enter(group: &str, pid: u32, layout: Option<CgroupLayout>) -> Result<(), String> {
    let mut path = CGROUP.to_owned();
    for part in group.trim_start_matches(CGROUP).split('/').filter(|part| !part.is_empty()) {
        write_file(&format!("{path}/cgroup.subtree_control"), "+cpu")?;
        path = format!("{path}/{part}");
        create_group(&path)?;
    }
    if layout != Some(CgroupLayout::Libvirt) {
        return write_file(&format!("{group}/cgroup.procs"), &pid.to_string());
    }
    write_file(&format!("{group}/cgroup.subtree_control"), "+cpu")?;
    let domain = format!("{group}/libvirt");
    create_group(&domain)?;
    write_file(&format!("{domain}/cgroup.procs"), &pid.to_string())?;
    let vcpus = vcpu_threads(pid);
    let place = |name: &str, tids: &[i32]| -> Result<(), String> {
        let below = format!("{domain}/{name}");
        create_group(&below)?;
        // Only threaded cgroups can divide the threads of one process.
        write_file(&format!("{below}/cgroup.type"), "threaded")?;
        tids.iter().try_for_each(|tid| write_file(&format!("{below}/cgroup.threads"), &tid.to_string()))
    };
    let others: Vec<i32> =
        threads_of(pid).into_iter().filter(|tid| vcpus.iter().all(|(_, vcpu)| vcpu != tid)).collect();
    place("emulator", &others)?;
    for (number, tid) in vcpus {
        place(&format!("vcpu{number}"), &[tid])?;
    }
    write_file(&format!("{domain}/cgroup.subtree_control"), "+cpu")
}

fn write_file(path: &str, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{path}: {error}"))
}

fn create_group(path: &str) -> Result<(), String> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(format!("{path}: {error}")),
        _ => Ok(()),
    }
}

/// Last part of a guest's console.
fn console(name: &str) -> Result<String, String> {
    let path = console_path(name);
    let tail = || -> std::io::Result<String> {
        let mut file = File::open(&path)?;
        let length = file.metadata()?.len() as i64;
        file.seek(SeekFrom::End(-length.min(CONSOLE_TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    tail().map_err(|error| format!("{path}: {error}"))
}

/// More modules than any guest needs, and the address of its network card.
fn modules_of(spec: &VmSpec) -> String {
    let disk = if spec.disk_mib > 0 { ",virtio_blk" } else { "" };
    let network = spec.network.map_or_else(String::new, |number| {
        format!(",failover,net_failover,virtio_net tandem.address=10.0.{number}.2")
    });
    // Before the address, which ends the list.
    let vsock =
        spec.vsock.map_or("", |_| ",vsock,vmw_vsock_virtio_transport_common,vmw_vsock_virtio_transport");
    format!("{disk}{vsock}{network}")
}

fn disk_path(name: &str) -> String {
    format!("/run/disk-{name}")
}

/// An empty disk. It takes memory only where it is written.
fn make_disk(spec: &VmSpec) -> Result<(), String> {
    let path = disk_path(&spec.name);
    let made = File::create(&path).and_then(|file| file.set_len(u64::from(spec.disk_mib) << 20));
    made.map_err(|error| format!("{path}: {error}"))
}

/// A network card and a disk are on PCI, as those of users' VMs: their interrupts are messages, which vhost and KVM deliver between them. Of a device
/// without PCI each interrupt takes three exits to QEMU, which wait for its main thread.
fn on_pci(spec: &VmSpec) -> bool {
    spec.network.is_some() || spec.disk_mib > 0
}

fn qemu_command(spec: &VmSpec, socket: &str) -> Command {
    let mut command = Command::new("/bin/qemu");
    let machine = if on_pci(spec) {
        "microvm,x-option-roms=off,rtc=on,pcie=on"
    } else {
        "microvm,x-option-roms=off,rtc=on"
    };
    let errors =
        File::create(format!("/run/vm-{}.err", spec.name)).map_or_else(|_| Stdio::null(), Stdio::from);
    command
        .env("LD_LIBRARY_PATH", "/usr/lib")
        .args(["-name", &format!("{},debug-threads=on", spec.name)])
        .args(["-L", "/usr/share/qemu", "-bios", "qboot.rom"])
        .args(["-M", machine, "-accel", "kvm", "-cpu", &spec.cpu_model])
        .args(["-smp", &spec.vcpus.to_string(), "-m", &format!("{}M", spec.memory_mib)])
        .args(["-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-serial", &format!("file:{}", console_path(&spec.name))])
        .args(["-qmp", &format!("unix:{},server=on,wait=off", monitor_path(&spec.name))])
        .args(["-kernel", &format!("/lib/vmlinux-{}", spec.kernel)])
        .args(["-initrd", &format!("/lib/guest-{}.cpio", spec.kernel), "-append"])
        .arg(format!(
            "console=ttyS0 panic=-1 quiet {} rdinit=/init tandem.role={} tandem.modules=virtio_mmio{} {}",
            inspect::KERNEL_ARGS,
            spec.name,
            modules_of(spec),
            spec.kernel_args
        ))
        .args(["-device", if on_pci(spec) { "virtio-serial-pci" } else { "virtio-serial-device" }])
        .args(["-chardev", &format!("socket,id=ctl,path={socket},server=on,wait=off")])
        .args(["-device", &format!("virtserialport,chardev=ctl,name={PORT_NAME}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors);
    if let Some(number) = spec.network {
        command
            .args(["-netdev", &format!("tap,id=net,ifname=tap{number},script=no,downscript=no,vhost=on")])
            .args(["-device", "virtio-net-pci,netdev=net,romfile="]);
    }
    if let Some(cid) = spec.vsock {
        command.args(["-device", &format!("vhost-vsock-device,guest-cid={cid}")]);
    }
    if spec.disk_mib > 0 {
        command
            .args([
                "-drive",
                &format!("if=none,id=disk,format=raw,cache=unsafe,file={}", disk_path(&spec.name)),
            ])
            .args(["-device", "virtio-blk-pci,drive=disk"]);
    }
    command
}

/// Gives a network interface its address.
pub fn address(interface: &str, address: &str) -> Result<(), String> {
    let mut command = Command::new("/bin/ifconfig");
    let status = command.args([interface, address, "netmask", "255.255.255.0", "up"]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("address {address} of {interface}: {other:?}")),
    }
}

fn threads_of(pid: u32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect()
}

fn vcpu_threads(pid: u32) -> Vec<(usize, i32)> {
    let mut threads = Vec::new();
    for tid in threads_of(pid) {
        let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
        let number = name.trim().strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
        if let Some(Ok(vcpu)) = number.map(str::parse) {
            threads.push((vcpu, tid));
        }
    }
    threads.sort_unstable();
    threads
}

fn wait_for_vcpus(pid: u32, spec: &VmSpec, deadline: Instant) -> Result<(), String> {
    while vcpu_threads(pid).len() < spec.vcpus {
        if Instant::now() >= deadline {
            return Err(format!(
                "{} has {} of {} vCPU threads",
                spec.name,
                vcpu_threads(pid).len(),
                spec.vcpus
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// CPU 0 of the host is for its own work. Without `emulator_apart` the emulator's other threads share the guests'
/// CPUs, as on most hosts: a device's timer then sometimes preempts a vCPU for half a millisecond.
fn pin_vcpus(pid: u32, spec: &VmSpec) -> Result<(), String> {
    if spec.emulator_apart {
        for tid in threads_of(pid) {
            sys::pin(tid, &[0]).map_err(|error| format!("pinning the emulator to CPU 0: {error}"))?;
        }
    }
    for (vcpu, tid) in vcpu_threads(pid) {
        if let Some(cpu) = spec.pins.get(vcpu) {
            sys::pin(tid, if spec.free { &spec.pins } else { std::slice::from_ref(cpu) })
                .map_err(|error| format!("pinning vCPU {vcpu} to CPU {cpu}: {error}"))?;
        }
    }
    Ok(())
}

/// Forwards replies of a guest unchanged. If the guest ends unexpectedly, reports it, so that the lab does not wait for
/// its replies.
fn pass_on(line: UnixStream, uplink: Uplink, name: String, ending: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        for reply in BufReader::new(line).lines().map_while(Result::ok) {
            let mut up = uplink.lock().unwrap_or_else(PoisonError::into_inner);
            if writeln!(up, "{reply}").is_err() {
                return;
            }
        }
        if !ending.load(Ordering::Relaxed) {
            // The guest kernel's last console lines explain more than this one: let them be repeated first.
            std::thread::sleep(CONSOLE_PAUSE * 2);
            println!("{}{name}: AGENT-FAILED the guest ended unasked", signature::GUEST_PREFIX);
        }
    });
}

/// Repeats suspicious lines of a guest's console on this machine's own console, which the lab reads.
fn watch_console(name: String) {
    std::thread::spawn(move || {
        let socket = format!("/run/vm-{name}.sock");
        let open = || File::open(console_path(&name)).ok();
        // QEMU creates the file at about the same time as the socket.
        let file = (0..100).find_map(|_| {
            open().or_else(|| {
                std::thread::sleep(Duration::from_millis(20));
                None
            })
        });
        let Some(file) = file else {
            println!("AGENT-WARNING no console of {name}");
            return;
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        let mut context = 0;
        loop {
            // Checked before reading: the last lines are written before the socket is removed.
            let last = !Path::new(&socket).exists();
            while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                // The rest of a partial line comes with the next read.
                if line.ends_with(b"\n") {
                    repeat_if_trouble(&name, &line, &mut context);
                    line.clear();
                }
            }
            if last {
                return repeat_if_trouble(&name, &line, &mut context);
            }
            std::thread::sleep(CONSOLE_PAUSE);
        }
    });
}

/// Number of lines after a suspicious one that are repeated, too: registers and the stack.
const TROUBLE_CONTEXT: u32 = 70;

fn repeat_if_trouble(name: &str, line: &[u8], context: &mut u32) {
    let text = String::from_utf8_lossy(line);
    if signature::is_trouble(&text) {
        *context = TROUBLE_CONTEXT;
    }
    if *context > 0 {
        *context -= 1;
        println!("{}{name}: {}", signature::GUEST_PREFIX, text.trim());
    }
}
