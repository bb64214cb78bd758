//! The protocol of the lab's machines: JSON lines over a virtio-serial port. Each request has one reply with the same
//! number; requests are served concurrently. The host's agent forwards requests that are addressed to one of its
//! guests.

pub mod signature;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The machine that an agent itself runs on, as a target.
pub const SELF: &str = "host";

/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "tandem";

/// A request to a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the sender, repeated in the reply.
    pub id: u64,
    /// [`SELF`], or the name of a guest.
    pub target: String,
    /// The operation.
    pub op: Op,
}

/// The reply to a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reply {
    /// Number of the request.
    pub id: u64,
    /// The result, or one line that says what went wrong.
    pub result: Result<Value, String>,
}

/// Operations of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Checks that the machine is alive. Replies with [`Facts`].
    Hello,
    /// Runs a program and waits for its end; replies with [`Output`].
    Exec {
        /// Program and arguments.
        argv: Vec<String>,
        /// Time limit, after which the program and all its children are killed.
        timeout_s: f64,
    },
    /// Starts a program and replies immediately, with its handle.
    Spawn {
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// Is a spawned program still running? Replies with true or false.
    Running {
        /// From [`Op::Spawn`].
        handle: u64,
    },
    /// Ends a spawned program; replies with [`Output`].
    Stop {
        /// From [`Op::Spawn`].
        handle: u64,
        /// Signal sent to its process group.
        signal: i32,
        /// Time limit, after which it is killed.
        timeout_s: f64,
    },
    /// Sets an environment variable of all programs that are started from now on.
    SetEnv {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// Reads a small file.
    Read {
        /// Its path.
        path: String,
    },
    /// Writes a small file.
    Write {
        /// Its path.
        path: String,
        /// New content.
        text: String,
    },
    /// Starts a guest (host only).
    StartVm(VmSpec),
    /// Waits for the end of a guest that was told to power off; kills it after the time limit.
    EndVm {
        /// Its name.
        name: String,
        /// Time limit.
        timeout_s: f64,
    },
    /// What a guest is doing that does not answer: its threads, the stacks of its kernel, the end of its console (host only). It ends by that.
    Inspect {
        /// Its name.
        name: String,
    },
    /// Run time and run delay of all vCPU threads (host only); replies with a list of [`VcpuStat`].
    VcpuStats,
    /// Sets the bandwidth of a guest or of one of its vCPUs (host only).
    CpuMax {
        /// Its name.
        name: String,
        /// One vCPU; `None`: the whole guest, emulator threads included.
        vcpu: Option<usize>,
        /// Value for `cpu.max`: quota and period in microseconds.
        value: String,
    },
    /// Starts real-time competitors (host only).
    RtStart(RtSpec),
    /// Shortens the competitors' bursts by the fixed cost of a switch.
    RtCompensate {
        /// CPU of the competitor.
        cpu: usize,
        /// Nanoseconds by which each burst is shortened.
        compensation_ns: u64,
    },
    /// Replies with a list of [`RtStat`].
    RtStats,
    /// Ends all real-time competitors.
    RtStop,
    /// Powers the machine off.
    PowerOff,
}

/// Facts about a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// Kernel release.
    pub kernel: String,
    /// Online CPUs.
    pub cpus: usize,
    /// Are high-resolution timers active on every CPU?
    pub high_resolution: bool,
    /// Clock source in use.
    pub clock_source: String,
    /// Clock event device of CPU 0.
    pub clock_event: String,
    /// Does /dev/kvm exist?
    pub kvm: bool,
}

/// How a program ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Output {
    /// Exit status; the negative signal number if a signal killed it.
    pub status: i32,
    /// Did it reach the time limit?
    pub timed_out: bool,
    /// Standard output, at most 4 MiB.
    pub stdout: String,
    /// Standard error, at most 4 MiB.
    pub stderr: String,
}

/// A guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VmSpec {
    /// Its name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Host CPU of each vCPU.
    pub pins: Vec<usize>,
    /// Each vCPU may run on all of these CPUs.
    pub free: bool,
    /// `cpu.weight` of its cgroup; `None`: it has no cgroup of its own.
    pub weight: Option<u32>,
    /// The emulator's other threads run on the host's CPU 0 (libvirt: `emulatorpin`), not on the vCPUs' CPUs.
    pub emulator_apart: bool,
    /// Where its threads are among the cgroups; `None`: in the root, or, with a weight or limit, in a group of its own.
    #[serde(default)]
    pub layout: Option<CgroupLayout>,
    /// Number of its network: it is 10.0.N.2, the host 10.0.N.1. `None`: it has no network card.
    #[serde(default)]
    pub network: Option<u8>,
    /// Its number on vsock; the host's is 2. `None`: it has no such device.
    pub vsock: Option<u32>,
    /// Size of its disk in MiB; 0: it has none.
    pub disk_mib: u32,
    /// QEMU CPU model.
    pub cpu_model: String,
    /// Release of its kernel: the host has `/lib/vmlinux-RELEASE` and `/lib/guest-RELEASE.cpio`.
    pub kernel: String,
    /// Additional kernel parameters.
    pub kernel_args: String,
}

/// How a management system lays out a guest's cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupLayout {
    /// One scope with all threads: `qemu.slice/NAME.scope`.
    Proxmox,
    /// One group per vCPU and one for the emulator, in `machine.slice/machine-qemu-N-NAME.scope/libvirt`.
    Libvirt,
}

/// The host's accounting of one vCPU thread.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VcpuStat {
    /// Name of the guest.
    pub vm: String,
    /// Number of the vCPU.
    pub vcpu: usize,
    /// Host thread.
    pub tid: i32,
    /// Time on a CPU, nanoseconds.
    pub run_ns: u64,
    /// Time runnable but not running, nanoseconds.
    pub run_delay_ns: u64,
}

/// Competitors of class SCHED_FIFO that keep host CPUs busy for `on_us` of every `on_us + off_us`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RtSpec {
    /// Host CPUs, one competitor each.
    pub cpus: Vec<usize>,
    /// Busy time in microseconds.
    pub on_us: u64,
    /// Idle time in microseconds.
    pub off_us: u64,
    /// With a seed both are exponential with these means.
    pub seed: Option<u64>,
    /// If not 0, only one competitor is active at a time, and the active one changes every so many milliseconds.
    pub swap_ms: u64,
    /// Each competitor begins this much later than the one before it, microseconds.
    #[serde(default)]
    pub stagger_us: u64,
    /// Phases with other lengths than `on_us` and `off_us`, one after another, repeated cyclically.
    #[serde(default)]
    pub phases: Vec<RtPhase>,
}

/// A phase of a competitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RtPhase {
    /// Its length, milliseconds.
    pub for_ms: u64,
    /// Busy time in microseconds; 0: it is idle throughout the phase.
    pub on_us: u64,
    /// Idle time in microseconds.
    pub off_us: u64,
}

/// Statistics of a competitor since it was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RtStat {
    /// Its CPU.
    pub cpu: usize,
    /// Number of bursts so far.
    pub bursts: u64,
    /// Number of bursts that followed the one before without a pause: the pause was shorter than a timer needs.
    pub joined: u64,
    /// Total length of these bursts before compensation, nanoseconds. With random lengths a short measurement has to be
    /// compared with this sum, not with the mean that was asked for.
    pub asked_ns: u64,
    /// Busy time so far, nanoseconds.
    pub busy_ns: u64,
    /// Time of this reading, nanoseconds of the machine's monotonic clock.
    pub at_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_survive_the_wire() {
        let request = Request { id: 7, target: "a".into(), op: Op::Read { path: "/proc/stat".into() } };
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'));
        let back: Request = serde_json::from_str(&line).unwrap();
        assert!(matches!(back.op, Op::Read { path } if path == "/proc/stat"));
        let reply = Reply { id: 7, result: Err("no such file".into()) };
        let back: Reply = serde_json::from_str(&serde_json::to_string(&reply).unwrap()).unwrap();
        assert_eq!(back.result, Err("no such file".to_string()));
    }
}
