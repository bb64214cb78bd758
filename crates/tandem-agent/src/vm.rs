//! Guests of this host: QEMU with KVM, their consoles, their vCPU threads, the line to their agents.

use crate::sys;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tandem_agent::{VcpuStat, VmSpec, PORT_NAME};

const CONSOLE_TAIL: i64 = 16 << 10;
const CGROUP: &str = "/sys/fs/cgroup";

/// Where replies of guests go: the line to the lab.
pub type Uplink = Arc<Mutex<File>>;

struct Vm {
    qemu: Child,
    line: UnixStream,
}

/// All guests by name.
#[derive(Default)]
pub struct Guests(BTreeMap<String, Vm>);

fn console_path(name: &str) -> String {
    format!("/run/vm-{name}.console")
}

impl Guests {
    /// Starts a guest and pins its vCPUs. Its kernel is still booting when this returns.
    pub fn start(&mut self, spec: &VmSpec, uplink: &Uplink) -> Result<(), String> {
        if !spec.name.chars().all(|c| c.is_ascii_alphanumeric()) || self.0.contains_key(&spec.name) {
            return Err(format!("guest name {:?} is taken or not alphanumeric", spec.name));
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
                    let said = fs::read_to_string(format!("/run/vm-{}.err", spec.name)).unwrap_or_default();
                    return Err(format!("qemu of {} did not come up ({error}): {}", spec.name, said.trim()));
                }
            }
        };
        let reader = line.try_clone().map_err(|error| format!("line to {}: {error}", spec.name))?;
        pass_on(reader, Arc::clone(uplink));
        watch_console(spec.name.clone());
        let pid = qemu.id();
        self.0.insert(spec.name.clone(), Vm { qemu, line });
        pin_vcpus(pid, spec, deadline)
    }

    /// Sends a request line to a guest.
    pub fn send(&mut self, name: &str, line: &str) -> Result<(), String> {
        let vm = self.0.get_mut(name).ok_or_else(|| format!("no guest {name:?}"))?;
        if !matches!(vm.qemu.try_wait(), Ok(None)) {
            return Err(format!("guest {name} is dead"));
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

    /// Puts a guest in a cgroup of its own with this `cpu.max`.
    pub fn cpu_max(&self, name: &str, value: &str) -> Result<(), String> {
        let vm = self.0.get(name).ok_or_else(|| format!("no guest {name:?}"))?;
        let group = format!("{CGROUP}/{name}");
        let write =
            |path: String, text: &str| fs::write(&path, text).map_err(|error| format!("{path}: {error}"));
        write(format!("{CGROUP}/cgroup.subtree_control"), "+cpu")?;
        if !Path::new(&group).exists() {
            fs::create_dir(&group).map_err(|error| format!("{group}: {error}"))?;
        }
        write(format!("{group}/cgroup.procs"), &vm.qemu.id().to_string())?;
        write(format!("{group}/cpu.max"), value)
    }
}

/// Last part of a guest's console.
pub fn console(name: &str) -> Result<String, String> {
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

fn qemu_command(spec: &VmSpec, socket: &str) -> Command {
    let mut command = Command::new("/bin/qemu");
    let errors =
        File::create(format!("/run/vm-{}.err", spec.name)).map_or_else(|_| Stdio::null(), Stdio::from);
    command
        .env("LD_LIBRARY_PATH", "/usr/lib")
        .args(["-name", &format!("{},debug-threads=on", spec.name)])
        .args(["-L", "/usr/share/qemu", "-bios", "qboot.rom"])
        .args(["-M", "microvm,x-option-roms=off,rtc=on", "-accel", "kvm", "-cpu", &spec.cpu_model])
        .args(["-smp", &spec.vcpus.to_string(), "-m", &format!("{}M", spec.memory_mib)])
        .args(["-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-serial", &format!("file:{}", console_path(&spec.name))])
        .args(["-kernel", "/lib/vmlinux", "-initrd", "/lib/guest.cpio", "-append"])
        .arg(format!(
            "console=ttyS0 panic=-1 quiet rdinit=/init tandem.role={} tandem.modules=virtio_mmio {}",
            spec.name, spec.kernel_args
        ))
        .args(["-device", "virtio-serial-device"])
        .args(["-chardev", &format!("socket,id=ctl,path={socket},server=on,wait=off")])
        .args(["-device", &format!("virtserialport,chardev=ctl,name={PORT_NAME}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors);
    command
}

fn vcpu_threads(pid: u32) -> Vec<(usize, i32)> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let number = name.trim().strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
        let tid = entry.file_name().to_string_lossy().parse();
        if let (Some(Ok(vcpu)), Ok(tid)) = (number.map(str::parse), tid) {
            threads.push((vcpu, tid));
        }
    }
    threads.sort_unstable();
    threads
}

fn pin_vcpus(pid: u32, spec: &VmSpec, deadline: Instant) -> Result<(), String> {
    // CPU 0 of the host is for its own work; the emulator's other threads share the guests' CPUs, as on a real host.
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
    for (vcpu, tid) in vcpu_threads(pid) {
        if let Some(&cpu) = spec.pins.get(vcpu) {
            sys::pin(tid, &[cpu]).map_err(|error| format!("pinning vCPU {vcpu} to CPU {cpu}: {error}"))?;
        }
    }
    Ok(())
}

/// Replies of a guest travel up unchanged.
fn pass_on(line: UnixStream, uplink: Uplink) {
    std::thread::spawn(move || {
        for reply in BufReader::new(line).lines().map_while(Result::ok) {
            let mut up = uplink.lock().unwrap_or_else(PoisonError::into_inner);
            if writeln!(up, "{reply}").is_err() {
                return;
            }
        }
    });
}

/// What a kernel prints when it is in trouble. The lab's own list decides; this one only selects lines.
const TROUBLE: [&str; 9] = [
    "Oops",
    "Kernel panic",
    "BUG:",
    "soft lockup",
    "rcu: INFO",
    "general protection fault",
    "blocked for more than",
    "unable to handle",
    "sched_ext:",
];

/// Repeats suspicious lines of a guest's console on this machine's own, where the lab looks.
fn watch_console(name: String) {
    std::thread::spawn(move || {
        let Ok(file) = File::open(console_path(&name)) else { return };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            match reader.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => {
                    std::thread::sleep(Duration::from_millis(500));
                    if !Path::new(&format!("/run/vm-{name}.sock")).exists() {
                        return;
                    }
                }
                Ok(_) if line.ends_with(b"\n") => {
                    let text = String::from_utf8_lossy(&line).trim().to_string();
                    if TROUBLE.iter().any(|sign| text.contains(sign)) {
                        println!("GUEST {name}: {text}");
                    }
                    line.clear();
                }
                // A partial line: the rest comes with the next read.
                Ok(_) => {}
            }
        }
    });
}
