//! System calls that the standard library lacks: the crate's only unsafe code.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static TERMINATE: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    TERMINATE.store(true, Ordering::Relaxed);
}

/// Remembers SIGINT, SIGTERM and SIGHUP instead of dying of them, so that the machines are shut down before exit.
pub fn catch_termination() {
    let handler = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Has one of them arrived?
pub fn termination_requested() -> bool {
    TERMINATE.load(Ordering::Relaxed)
}

/// Takes an exclusive lock on a file; false if another process holds it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open for the duration of the call.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock {
        Ok(false)
    } else {
        Err(error)
    }
}

/// Bytes that an ordinary user may still write to the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all-zero is a valid statvfs, and the path is a C string for the call.
    let (failed, stat) = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &mut stat) != 0, stat)
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.f_bavail * stat.f_frsize)
}

/// Pins a thread to one CPU below 1024.
pub(crate) fn pin(tid: i32, cpu: usize) -> io::Result<()> {
    let mut mask = [0u64; 16];
    mask[cpu / 64 % 16] |= 1 << (cpu % 64);
    // SAFETY: the mask is a live buffer of the length passed.
    let failed = unsafe {
        libc::sched_setaffinity(tid, std::mem::size_of_val(&mask), mask.as_ptr().cast::<libc::cpu_set_t>())
    } != 0;
    if failed {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Gives a thread SCHED_FIFO priority, so that it runs as soon as it wakes. Threads that it starts do not inherit that.
///
/// # Errors
///
/// Without the privilege (CAP_SYS_NICE) or where real-time priorities are not handed out.
pub(crate) fn at_once(tid: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: param outlives the call.
    if unsafe { libc::sched_setscheduler(tid, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &param) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Has the kernel kill the child when this process dies, and keeps the terminal's Ctrl-C from the child.
pub(crate) fn tie(command: &mut Command) {
    command.process_group(0);
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe and touch no memory of ours.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the child asked for the signal.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::other("the parent has gone"));
            }
            Ok(())
        });
    }
}
