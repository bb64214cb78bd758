//! The crate's only unsafe code: system calls.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

static TERMINATE: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    TERMINATE.store(true, Ordering::Relaxed);
}

/// Records SIGINT and SIGTERM instead of dying of them, so that the way out is always the same.
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
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Process at the other end of a local connection.
pub fn peer_pid(stream: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = std::mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both point to what is as large as they say, and outlive the call.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(peer.pid).and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of the scheduler's own time stamps.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time that all threads of this process have used.
pub fn cpu_time_of_process() -> std::time::Duration {
    std::time::Duration::from_nanos(clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID))
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is valid for writes; the clocks asked for exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_at_the_other_end_is_known() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_pid(&one), Some(std::process::id()));
    }
}
