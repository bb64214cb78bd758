//! System calls that the standard library lacks: the crate's only unsafe code.

use std::ffi::CString;
use std::io;

/// Reaps orphans until `child` has ended.
pub fn reap_until(child: u32) {
    loop {
        // SAFETY: a null status pointer is allowed.
        let ended = unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) };
        let interrupted = io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if ended == child as i32 || (ended < 0 && !interrupted) {
            return;
        }
    }
}

/// Turns the machine off.
pub fn power_off() {
    // SAFETY: no memory is involved. On failure the kernel panics when process 1 ends, which the lab detects.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
}

/// mount(2) without options.
pub fn mount(kind: &str, target: &str) -> io::Result<()> {
    let (kind, target) = (CString::new(kind)?, CString::new(target)?);
    // SAFETY: all pointers are valid C strings for the call; data may be null.
    let failed =
        unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) } != 0;
    if failed {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Pins a thread (0: the calling one) to CPUs below 1024.
pub fn pin(tid: i32, cpus: &[usize]) -> io::Result<()> {
    let mut mask = [0u64; 16];
    for &cpu in cpus.iter().filter(|cpu| **cpu < 1024) {
        mask[cpu / 64] |= 1 << (cpu % 64);
    }
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

/// Makes the calling thread real-time.
pub fn become_fifo(priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: param outlives the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until a time of CLOCK_MONOTONIC.
pub fn sleep_until_ns(when_ns: u64) {
    let time = libc::timespec {
        tv_sec: (when_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (when_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: time is valid for the call; no remainder is requested. An early return by a signal does no harm.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, std::ptr::null_mut()) };
}

/// Signals a process group.
pub fn kill_group(leader: i32, signal: i32) {
    // SAFETY: no memory is involved. A group that does not exist any more is not an error here.
    unsafe { libc::kill(-leader, signal) };
}

/// Brings the loopback interface up.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: a zeroed ifreq is valid; the name fits; the socket is closed again.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let failed = libc::ioctl(socket, libc::SIOCSIFFLAGS, &request) != 0;
        let error = io::Error::last_os_error();
        libc::close(socket);
        if failed {
            Err(error)
        } else {
            Ok(())
        }
    }
}
