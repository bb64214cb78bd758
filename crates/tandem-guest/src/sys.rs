//! The crate's only unsafe code: system calls.

use std::sync::atomic::{AtomicBool, Ordering};

static TERMINATE: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    TERMINATE.store(true, Ordering::Relaxed);
}

/// Remember SIGINT and SIGTERM instead of dying of them, so that the way out is always the same.
pub fn catch_termination() {
    let handler = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Has SIGINT or SIGTERM arrived?
pub fn termination_requested() -> bool {
    TERMINATE.load(Ordering::Relaxed)
}

/// Is the effective user root?
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Pin the calling thread to one CPU and make it best effort (SCHED_IDLE).
pub(crate) fn become_prober_on(cpu: usize) -> std::io::Result<()> {
    tandem_probe::sys::pin_to(cpu)?;
    tandem_probe::sys::set_policy(tandem_probe::sys::Policy::BestEffort)
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of the scheduler's own time stamps.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time that all threads of this process have used.
pub(crate) fn cpu_time_of_process() -> std::time::Duration {
    std::time::Duration::from_nanos(clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID))
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is valid for writes; the clocks asked for exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Is there a hypervisor that may take CPUs away without a word? On bare metal and in an emulator a late tick means something
/// else.
pub(crate) fn may_be_stolen_from() -> bool {
    tandem_probe::hypervisor::Hypervisor::detect().is_some_and(|hypervisor| !hypervisor.emulates())
}

/// Does KVM maintain the steal time page for this guest? Elsewhere the kernel's own accounting is used.
pub(crate) fn kvm_steal_time() -> bool {
    tandem_probe::hypervisor::Hypervisor::detect().is_some_and(|hypervisor| hypervisor.reports_steal())
}
