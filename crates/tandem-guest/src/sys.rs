//! The crate's only unsafe code: system calls and CPUID.

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
    // Sized at run time, so that CPU ids above 1023 work too.
    let words = cpu / 64 + 1;
    let mut mask = vec![0u64; words.max(16)];
    mask[cpu / 64] |= 1 << (cpu % 64);
    // SAFETY: the mask is a live buffer of the length passed; 0 is the calling thread.
    let failed =
        unsafe { libc::sched_setaffinity(0, mask.len() * 8, mask.as_ptr().cast::<libc::cpu_set_t>()) } != 0;
    if failed {
        return Err(std::io::Error::last_os_error());
    }
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: param outlives the call; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &param) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of the scheduler's own time stamps.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is valid for writes; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Does KVM maintain the steal time page for this guest? (KVM CPUID leaf 0x40000001, bit 5.)
#[cfg(target_arch = "x86_64")]
pub(crate) fn kvm_steal_time() -> bool {
    use std::arch::x86_64::__cpuid;
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    const STEAL_TIME: u32 = 1 << 5;
    if __cpuid(1).ecx & HYPERVISOR_PRESENT == 0 {
        return false;
    }
    let leaf = __cpuid(0x4000_0000);
    let signature: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|r| r.to_le_bytes()).collect();
    signature == b"KVMKVMKVM\0\0\0" && __cpuid(0x4000_0001).eax & STEAL_TIME != 0
}

/// Other architectures: the kernel's own accounting of steal is used.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn kvm_steal_time() -> bool {
    false
}
