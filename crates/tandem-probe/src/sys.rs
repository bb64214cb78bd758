//! The crate's only unsafe code: affinity and scheduling policy of the calling thread.

use std::io::{Error, Result};

/// Maximum number of CPU ids in a mask.
const MOST_CPUS: usize = 1 << 16;

/// Pins the calling thread to one CPU. Any CPU id: the mask is sized at run time.
///
/// # Errors
/// The CPU is offline, or the thread's cpuset excludes it.
pub fn pin_to(cpu: usize) -> Result<()> {
    let mut mask = vec![0u64; (cpu / 64 + 1).max(16)];
    mask[cpu / 64] |= 1 << (cpu % 64);
    // SAFETY: the mask is a live buffer of the length passed; 0 is the calling thread.
    let failed =
        unsafe { libc::sched_setaffinity(0, mask.len() * 8, mask.as_ptr().cast::<libc::cpu_set_t>()) } != 0;
    if failed {
        return Err(Error::last_os_error());
    }
    Ok(())
}

/// Does the calling thread run on this CPU? When a CPU goes offline, the kernel migrates even threads that are pinned
/// to it.
pub fn is_on(cpu: usize) -> bool {
    // SAFETY: takes and touches nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }) == Ok(cpu)
}

/// Numbers of the CPUs that the calling thread may use, ascending.
///
/// # Errors
/// The kernel has more CPU ids than 65,536.
pub fn usable_cpus() -> Result<Vec<usize>> {
    let mut words = 16;
    loop {
        let mut mask = vec![0u64; words];
        // SAFETY: the mask is a live, writable buffer of the length passed; 0 is the calling thread.
        let failed = unsafe {
            libc::sched_getaffinity(0, mask.len() * 8, mask.as_mut_ptr().cast::<libc::cpu_set_t>())
        } != 0;
        if !failed {
            return Ok(bits(&mask));
        }
        let error = Error::last_os_error();
        // The mask is too small for this kernel.
        if error.raw_os_error() != Some(libc::EINVAL) || words * 64 >= MOST_CPUS {
            return Err(error);
        }
        words *= 2;
    }
}

fn bits(mask: &[u64]) -> Vec<usize> {
    let set = |cpu: &usize| mask[cpu / 64] & (1 << (cpu % 64)) != 0;
    (0..mask.len() * 64).filter(set).collect()
}

/// Policies that a prober asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_IDLE.
    BestEffort,
    /// SCHED_FIFO at its lowest priority.
    RealTime,
    /// An ordinary task of nice -20.
    First,
}

/// Sets the calling thread's policy.
///
/// # Errors
/// The privilege for it is missing.
pub fn set_policy(policy: Policy) -> Result<()> {
    let (number, sched_priority) = match policy {
        Policy::BestEffort => (libc::SCHED_IDLE, 0),
        Policy::RealTime => (libc::SCHED_FIFO, 1),
        Policy::First => {
            // SAFETY: no pointers; 0 is the calling thread.
            if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } != 0 {
                return Err(Error::last_os_error());
            }
            return Ok(());
        }
    };
    let param = libc::sched_param { sched_priority };
    // SAFETY: param outlives the call; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, number, &param) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_any_width() {
        let mut mask = vec![0u64; 32];
        mask[0] = 0b1010;
        mask[31] = 1 << 63;
        assert_eq!(bits(&mask), [1, 3, 2047]);
        assert!(!usable_cpus().unwrap().is_empty());
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error() {
        std::thread::spawn(|| assert!(pin_to(60_000).is_err())).join().unwrap();
    }
}
