//! The emulated host: one QEMU on this machine.

use crate::accel::Accel;
use crate::fetch::{with_own_loader, Parts};
use crate::link::Link;
use crate::noise;
use crate::rig;
use crate::sign::{Reader, Sign};
use crate::{sys, LabError};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tandem_agent::{Op, PORT_NAME, SELF};
use tempfile::TempDir;

/// The host's console: its signs of trouble, and its last lines for people.
#[derive(Default)]
struct Console {
    signs: Vec<Sign>,
    first_trouble: Option<String>,
    tail: Vec<String>,
}

const TAIL_LINES: usize = 200;

/// A running host. Dropping it kills the emulator.
pub struct Machine {
    qemu: Arc<Mutex<Child>>,
    pid: u32,
    console: Arc<Mutex<Console>>,
    /// Removed with the machine.
    _socket_dir: TempDir,
    /// The connection to its agent.
    pub link: Link,
}

/// Size of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// CPUs.
    pub cpus: usize,
    /// Possible CPUs, those that are not present included.
    pub max_cpus: usize,
    /// Sockets, each with a last-level cache of its own; a divisor of `cpus` and `max_cpus`.
    pub sockets: usize,
    /// Memory in MiB.
    pub memory_mib: u32,
}

impl Machine {
    /// Boots a host; its agent has answered when this returns.
    pub fn boot(
        parts: &Parts,
        initrd: &Path,
        work: &Path,
        size: Size,
        accel: Accel,
    ) -> Result<Self, LabError> {
        // The cache's path may be longer than the 107 bytes of a socket address.
        let socket_dir = tempfile::Builder::new()
            .prefix("tandem-lab.")
            .tempdir()
            .map_err(LabError::io("create a folder in", std::env::temp_dir()))?;
        let socket = socket_dir.path().join("line");
        let mut command = with_own_loader(&parts.qemu_root, "usr/bin/qemu-system-x86_64");
        for dir in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(parts.qemu_root.join(dir));
        }
        let cpu = match accel {
            Accel::Kvm => "host",
            Accel::Tcg => "EPYC-Rome,+svm,+npt",
        };
        let accel_arg = match accel {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg,thread=multi",
        };
        command
            .args(["-name", "host,debug-threads=on", "-M", "q35", "-accel", accel_arg, "-cpu", cpu])
            .args(["-smp", &format!("{},maxcpus={},sockets={}", size.cpus, size.max_cpus, size.sockets)])
            .args(["-m", &format!("{}M", size.memory_mib)])
            .args(["-display", "none", "-nodefaults", "-no-user-config", "-no-reboot", "-serial", "stdio"])
            .arg("-kernel")
            .arg(&parts.kernel.vmlinux)
            .arg("-initrd")
            .arg(initrd)
            .arg("-append")
            .arg(format!(
                "console=ttyS0 quiet panic=-1 rdinit=/init tandem.role=host {}",
                rig::kernel_args(accel)
            ))
            .args(["-device", "virtio-serial-pci", "-chardev"])
            .arg(format!("socket,id=line,path={},server=on,wait=off", socket.display()))
            .args(["-device", &format!("virtserialport,chardev=line,name={PORT_NAME}")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(work.join("qemu.err")).map_or_else(|_| Stdio::null(), Stdio::from));
        sys::tie(&mut command);
        let mut qemu = command.spawn().map_err(|error| LabError::Rig(format!("cannot run QEMU: {error}")))?;
        let pid = qemu.id();
        let console = Arc::new(Mutex::new(Console::default()));
        if let Some(output) = qemu.stdout.take() {
            listen(output, Arc::clone(&console));
        }
        let qemu = Arc::new(Mutex::new(qemu));
        let line = connect(&socket, &qemu, work);
        let alive = {
            let (qemu, console) = (Arc::clone(&qemu), Arc::clone(&console));
            Box::new(move || check(&qemu, &console))
        };
        let link = line.and_then(|line| Link::new(line, alive)).inspect_err(|_| kill(&qemu))?;
        let mut machine = Self { qemu, pid, console, _socket_dir: socket_dir, link };
        machine.link.wait_for(SELF, Duration::from_secs(60))?;
        machine.pin_threads();
        machine.keep_timers();
        Ok(machine)
    }

    /// Pins the thread of each CPU of the host to a core of its own. If there are more CPUs than cores, CPU 0 only does
    /// housekeeping, and is not pinned.
    fn pin_threads(&self) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = noise::vcpu_threads(self.pid);
        let floats = threads.len() > cores;
        for (cpu, tid) in threads.into_iter().filter(|(cpu, _)| *cpu > 0 || !floats) {
            // Where pinning is not allowed, contention is less exact and noisier.
            let _ = sys::pin(tid, core_of(cpu, cores));
        }
    }

    /// Gives the emulator's first thread real-time priority. That thread fires the timers of an emulated machine. It
    /// runs rarely and briefly, but at ordinary priority it waits for up to ten milliseconds behind emulated CPUs that
    /// spin, and so do all their timer interrupts.
    fn keep_timers(&self) {
        if let Ok(tid) = i32::try_from(self.pid) {
            // Where this is not allowed, timers fire later.
            let _ = sys::at_once(tid);
        }
    }

    /// Has the emulator ended?
    pub fn ended(&self) -> bool {
        !matches!(self.qemu.lock().unwrap_or_else(PoisonError::into_inner).try_wait(), Ok(None))
    }

    /// Process id of the emulator.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Signs of trouble so far.
    pub fn signs(&self) -> Vec<Sign> {
        self.console.lock().unwrap_or_else(PoisonError::into_inner).signs.clone()
    }

    /// First line that showed trouble.
    pub fn trouble(&self) -> Option<String> {
        self.console.lock().unwrap_or_else(PoisonError::into_inner).first_trouble.clone()
    }

    /// Last lines of the console.
    pub fn tail(&self) -> String {
        self.console.lock().unwrap_or_else(PoisonError::into_inner).tail.join("\n")
    }

    /// Powers the host off; kills it if it does not respond.
    pub fn power_off(mut self) -> Result<(), LabError> {
        self.link.ask(SELF, Op::PowerOff, Duration::from_secs(10))?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            let ended = self.qemu.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
            if !matches!(ended, Ok(None)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(LabError::Rig("the host did not power off within 20 s".into()))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        kill(&self.qemu);
    }
}

fn kill(qemu: &Arc<Mutex<Child>>) {
    let mut qemu = qemu.lock().unwrap_or_else(PoisonError::into_inner);
    // It may have ended already.
    let _ = qemu.kill();
    let _ = qemu.wait();
}

fn listen(output: std::process::ChildStdout, console: Arc<Mutex<Console>>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut bytes = Vec::new();
        let mut signs = Reader::default();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_string();
            bytes.clear();
            let mut console = console.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sign) = signs.sign(&line) {
                console.signs.push(sign);
                console.first_trouble.get_or_insert_with(|| line.clone());
            }
            if console.tail.len() == TAIL_LINES {
                console.tail.remove(0);
            }
            console.tail.push(line);
        }
    });
}

/// Fails if the machine cannot answer any more: the emulator has ended, or the console shows trouble.
fn check(qemu: &Arc<Mutex<Child>>, console: &Arc<Mutex<Console>>) -> Result<(), LabError> {
    let ended = qemu.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
    let trouble = console.lock().unwrap_or_else(PoisonError::into_inner).first_trouble.clone();
    if let Some(line) = trouble {
        return Err(LabError::Rig(line));
    }
    match ended {
        Ok(None) => Ok(()),
        _ => Err(LabError::Rig("the emulator ended".into())),
    }
}

fn connect(socket: &Path, qemu: &Arc<Mutex<Child>>, work: &Path) -> Result<UnixStream, LabError> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match UnixStream::connect(socket) {
            Ok(line) => return Ok(line),
            Err(error) => {
                let running =
                    matches!(qemu.lock().unwrap_or_else(PoisonError::into_inner).try_wait(), Ok(None));
                if !running || Instant::now() >= deadline {
                    kill(qemu);
                    let said = fs::read_to_string(work.join("qemu.err")).unwrap_or_default();
                    let said = said.lines().last().unwrap_or("no message").to_string();
                    return Err(LabError::Rig(format!("QEMU did not start ({error}): {said}")));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Core of an emulated CPU: CPU 1 on core 0, CPU 2 on core 1 and so on, CPU 0 on the last core. Without pinning, a
/// kernel that packs threads onto few cores lets two emulated CPUs share one core, 4 ms each, beside an idle core.
fn core_of(cpu: usize, cores: usize) -> usize {
    (cpu + cores - 1) % cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_have_cores_of_their_own() {
        assert_eq!([core_of(0, 2), core_of(1, 2), core_of(2, 2)], [1, 0, 1]);
        assert_eq!(core_of(0, 1), 0);
    }
}
