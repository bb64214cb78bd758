//! System calls that the standard library lacks; the only module with `unsafe`.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::AtomicU32;

/// CPU numbers are below this.
pub const MAX_CPUS: usize = libc::CPU_SETSIZE as usize;

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A chain of `iters` steps from `state`, not 0, each of which depends on the one before (xorshift64).
///
/// The same instructions in every build, on one cache line: an emulator runs a loop that crosses a page up to ten times slower, and it is
/// chance where a compiler puts it.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
pub fn chain(mut state: u64, iters: u64) -> u64 {
    if iters == 0 {
        return state;
    }
    // SAFETY: only the registers named are changed; no memory is used; the loop ends after `iters` steps.
    unsafe {
        std::arch::asm!(
            ".p2align 6",
            "2:",
            "mov {shifted}, {state}",
            "shl {shifted}, 13",
            "xor {state}, {shifted}",
            "mov {shifted}, {state}",
            "shr {shifted}, 7",
            "xor {state}, {shifted}",
            "mov {shifted}, {state}",
            "shl {shifted}, 17",
            "xor {state}, {shifted}",
            "dec {left}",
            "jnz 2b",
            state = inout(reg) state,
            left = inout(reg) iters => _,
            shifted = out(reg) _,
            options(nomem, nostack),
        );
    }
    state
}

/// The same.
#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
pub fn chain(mut state: u64, iters: u64) -> u64 {
    for _ in 0..iters {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    state
}

/// Sleeps until CLOCK_MONOTONIC reads `deadline_ns`; returns at once if it already does.
pub fn sleep_until_ns(deadline_ns: u64) {
    let time = libc::timespec {
        tv_sec: (deadline_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (deadline_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `time` is a valid timespec; the remaining-time pointer is not used with an absolute deadline.
    while unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, ptr::null_mut()) }
        == libc::EINTR
    {}
}

/// Sleeps while `*word == expected`. Spurious wake-ups are possible, so the caller has to check again.
pub fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: `word` outlives the call, is aligned, and a null timeout means none. Every error (EAGAIN, EINTR)
    // just returns early, which callers expect.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            ptr::null::<libc::timespec>(),
        );
    }
}

/// Commands of membarrier(2), from the kernel's uapi/linux/membarrier.h.
const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Announces that this process will call [`membarrier`].
pub fn register_membarrier() -> io::Result<()> {
    call_membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

/// Interrupts every CPU on which another thread of this process runs, and returns when all have answered.
pub fn membarrier() -> io::Result<()> {
    call_membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
}

fn call_membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes three numbers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    check(libc::c_int::try_from(result).unwrap_or(-1))
}

/// Wakes up to `count` threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    // SAFETY: the kernel uses only the address of `word`, which is valid.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, count)
    };
}

/// Sets the calling thread's nice value.
pub fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: no pointers; who == 0 is the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })
}

/// The kernel's accounting of a thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadUsage {
    /// CPU time, milliseconds.
    pub cpu_ms: f64,
    /// Involuntary context switches.
    pub preempted: u64,
}

/// Usage of the calling thread so far.
pub fn thread_usage() -> ThreadUsage {
    // SAFETY: rusage is plain integers, for which zero is a value; the kernel writes only into it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    ThreadUsage { cpu_ms: ms(usage.ru_utime) + ms(usage.ru_stime), preempted: usage.ru_nivcsw.max(0) as u64 }
}

/// Makes the calling thread SCHED_IDLE.
pub fn set_idle_policy() -> io::Result<()> {
    set_policy(libc::SCHED_IDLE, 0)
}

/// Makes the calling thread a normal one (SCHED_OTHER).
pub fn set_normal_policy() -> io::Result<()> {
    set_policy(libc::SCHED_OTHER, 0)
}

/// Makes the calling thread SCHED_FIFO.
pub fn set_fifo_policy(priority: i32) -> io::Result<()> {
    set_policy(libc::SCHED_FIFO, priority)
}

/// Parameters of a scheduling class (`struct sched_attr`, sched(7)).
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    sched_policy: u32,
    sched_flags: u64,
    sched_nice: i32,
    sched_priority: u32,
    sched_runtime: u64,
    sched_deadline: u64,
    sched_period: u64,
}

/// Makes the calling thread SCHED_DEADLINE, with the deadline at the end of the period.
pub fn set_deadline_policy(runtime_ns: u64, period_ns: u64) -> io::Result<()> {
    const SCHED_DEADLINE: u32 = 6;
    let attr = SchedAttr {
        size: std::mem::size_of::<SchedAttr>() as u32,
        sched_policy: SCHED_DEADLINE,
        sched_runtime: runtime_ns,
        sched_deadline: period_ns,
        sched_period: period_ns,
        ..SchedAttr::default()
    };
    // SAFETY: `attr` is valid for the call and has the size that it names; thread 0 is the calling one, and there are no flags.
    let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0) };
    check(libc::c_int::try_from(failed).unwrap_or(-1))
}

/// Sets the slice of a thread, ns (Linux 6.12 and newer); 0: as long as the scheduler says. Its policy and nice value stay. Returns whether it is
/// there and of the fair class (SCHED_OTHER or SCHED_BATCH).
pub fn set_slice(tid: u32, slice_ns: u64) -> io::Result<bool> {
    let Ok(tid) = libc::pid_t::try_from(tid) else { return Ok(false) };
    // SAFETY: no memory is passed.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    if ![libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&policy) {
        return Ok(false);
    }
    // SAFETY: no memory is passed.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, tid as libc::id_t) };
    let attr = SchedAttr {
        size: std::mem::size_of::<SchedAttr>() as u32,
        sched_policy: policy as u32,
        sched_nice: nice,
        sched_runtime: slice_ns,
        ..SchedAttr::default()
    };
    // SAFETY: `attr` is valid for the call and has the size that it names, and there are no flags.
    let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &attr, 0) };
    match check(libc::c_int::try_from(failed).unwrap_or(-1)) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

fn set_policy(policy: libc::c_int, priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: `param` is valid for the call; pid 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, policy, &param) })
}

/// Lets the calling thread run on `cpu` only.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    pin_to_cpus(&[cpu])
}

/// Lets the calling thread run on these CPUs only.
pub fn pin_to_cpus(cpus: &[usize]) -> io::Result<()> {
    if cpus.iter().any(|&cpu| cpu >= MAX_CPUS) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: an all-zero cpu_set_t is an empty set; all numbers are below its size; pid 0 is the calling thread.
    check(unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        for &cpu in cpus {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &set)
    })
}

/// Moves the calling thread to `cpu` without pinning it there: its affinity is the same as before.
pub fn move_to_cpu(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is an empty set of the size passed; pid 0 is the calling thread.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        check(libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &mut set))?;
        set
    };
    pin_to_cpu(cpu)?;
    // SAFETY: `allowed` is a live set of the size passed; pid 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &allowed) })
}

/// The CPUs that the calling thread may use, ascending.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is an empty set of the size passed; pid 0 is the calling thread; the numbers asked
    // for are below its size.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        check(libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &mut set))?;
        Ok((0..MAX_CPUS).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect())
    }
}

/// Runs a BPF program of the type `syscall` on `context`, which it may change.
pub fn run_bpf_program(program: &OwnedFd, context: &mut [u8]) -> io::Result<()> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: mem::size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: context.as_mut_ptr().cast(),
        ctx_size_in: context.len() as u32,
        ..Default::default()
    };
    // SAFETY: the options are of the size that they name; the context is live, writable and as long as they say. For
    // this type of program the kernel writes its result back to where it read it.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

/// Removes the default timer slack of 50 us from the calling thread, so that its sleeps end on time.
pub fn set_exact_timers() {
    // SAFETY: no pointers. A refusal leaves the slack, which the reported dispatch delay would show.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// Puts the child in a process group of its own and has the kernel send it SIGTERM when this process dies, however it
/// dies. (SIGTERM, so that a server ends its own workers.) Must be spawned from the main thread: the signal is sent
/// when the spawning thread ends.
pub fn tie_to_parent(command: &mut Command) {
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong))?;
            // The parent may have died before the request was in place.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Makes this process the subreaper: it becomes the parent of descendants whose own parent ends, so that [`reap_group`]
/// can wait for them.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as libc::c_ulong) })
}

/// Waits until every child in the group has ended, including orphans that this process has adopted. Must be called
/// after [`kill_group`] and after the wait for the group's leader.
pub fn reap_group(group: u32) {
    let Some(group) = i32::try_from(group).ok().filter(|&group| group > 1) else { return };
    // An orphan is adopted before a wait for its parent returns, so no child left means no process left.
    loop {
        // SAFETY: a null status pointer means that the status is not wanted.
        let reaped = unsafe { libc::waitpid(-group, ptr::null_mut(), 0) };
        if reaped == -1 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// Sends SIGTERM to every process of the group.
pub fn terminate_group(group: u32) {
    signal_group(group, libc::SIGTERM);
}

/// Sends SIGKILL to every process of the group.
pub fn kill_group(group: u32) {
    signal_group(group, libc::SIGKILL);
}

fn signal_group(group: u32, signal: libc::c_int) {
    // kill(2) takes 0 for the caller's own group, and -1 for all processes.
    if let Some(group) = i32::try_from(group).ok().filter(|&group| group > 1) {
        // SAFETY: no pointers. A group that is already gone (ESRCH) needs no signal.
        unsafe { libc::kill(-group, signal) };
    }
}

/// Whether child `pid` has ended. It is not reaped, so that its number is not reused yet.
pub fn has_exited(pid: u32) -> io::Result<bool> {
    // SAFETY: an all-zero siginfo_t is valid, and waitid writes only to it. With WNOHANG and no ended child the
    // kernel leaves si_pid at 0.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        check(libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG))?;
        Ok(info.si_pid() != 0)
    }
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    // SAFETY: always succeeds, no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Brings the loopback interface up if it is down.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: plain socket creation; a valid descriptor is owned by exactly one OwnedFd. `request` is a zeroed
    // ifreq with a terminated name, and SIOCGIFFLAGS fills the union member that is read afterwards.
    unsafe {
        let raw = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        check(raw)?;
        let socket = OwnedFd::from_raw_fd(raw);
        let mut request: libc::ifreq = mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request))?;
        let up = libc::IFF_UP as libc::c_short;
        if request.ifr_ifru.ifru_flags & up != 0 {
            return Ok(());
        }
        request.ifr_ifru.ifru_flags |= up;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request))
    }
}

/// An address of a machine on this host (`cid`), or of the host seen from a guest.
fn vsock_address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: all bytes 0 are a valid sockaddr_vm.
    let mut address: libc::sockaddr_vm = unsafe { mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    address
}

fn vsock() -> io::Result<OwnedFd> {
    // SAFETY: plain socket creation; a valid descriptor is owned by exactly one OwnedFd.
    unsafe {
        let raw = libc::socket(libc::AF_VSOCK, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        check(raw)?;
        Ok(OwnedFd::from_raw_fd(raw))
    }
}

const VSOCK_ADDRESS_BYTES: libc::socklen_t = mem::size_of::<libc::sockaddr_vm>() as libc::socklen_t;

/// Listens for connections over vsock from any machine, with messages that keep their bounds.
pub fn vsock_listen(port: u32) -> io::Result<OwnedFd> {
    let (socket, address) = (vsock()?, vsock_address(libc::VMADDR_CID_ANY, port));
    // SAFETY: `address` is a valid sockaddr_vm of that many bytes, and is not kept.
    unsafe {
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), VSOCK_ADDRESS_BYTES))?;
        check(libc::listen(socket.as_raw_fd(), 16))?;
    }
    Ok(socket)
}

/// Waits for the next connection.
pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: without an address to fill in; a valid descriptor is owned by exactly one OwnedFd.
    unsafe {
        let raw = libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), libc::SOCK_CLOEXEC);
        check(raw)?;
        Ok(OwnedFd::from_raw_fd(raw))
    }
}

/// Connects to a machine on this host, or from a guest to the host.
pub fn vsock_connect(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let (socket, address) = (vsock()?, vsock_address(cid, port));
    // SAFETY: `address` is a valid sockaddr_vm of that many bytes, and is not kept.
    unsafe { check(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), VSOCK_ADDRESS_BYTES))? };
    Ok(socket)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The processor of a PC starts 16 bytes below 4 GiB.
const GUEST_BASE: u64 = 0xffff_0000;
const GUEST_BYTES: usize = 1 << 16;
const GUEST_START: usize = GUEST_BYTES - 16;
/// HLT, and a jump back to it.
const GUEST_CODE: [u8; 3] = [0xf4, 0xeb, 0xfd];
const KVM_CREATE_VM: libc::Ioctl = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: libc::Ioctl = 0xae04;
const KVM_CREATE_VCPU: libc::Ioctl = 0xae41;
const KVM_SET_USER_MEMORY_REGION: libc::Ioctl = 0x4020_ae46;
const KVM_RUN: libc::Ioctl = 0xae80;
const KVM_EXIT_HLT: u32 = 5;

/// `struct kvm_userspace_memory_region` of the kernel.
#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_address: u64,
    bytes: u64,
    address: u64,
}

/// The start of `struct kvm_run` of the kernel.
#[repr(C)]
struct RunPage {
    unused: u64,
    exit_reason: u32,
}

/// A VM with one vCPU that halts again and again: each run ends at once, in user space.
pub struct Vm {
    vcpu: OwnedFd,
    run: *const RunPage,
    _vm: OwnedFd,
    _memory: Vec<u8>,
}

impl Vm {
    /// Makes it.
    ///
    /// # Errors
    /// There is no KVM, or it refuses.
    pub fn new() -> io::Result<Self> {
        let kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm")?;
        let fd = |number: libc::c_int| {
            // SAFETY: a non-negative result of these calls is a new descriptor that nobody else owns.
            checked(number).map(|number| unsafe { OwnedFd::from_raw_fd(number) })
        };
        // SAFETY: the descriptor is open; the argument is a number.
        let vm = fd(unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_CREATE_VM, 0) })?;
        let page = 4096;
        let mut memory = vec![0; GUEST_BYTES + page];
        // Memory of a guest begins on a page.
        let at = memory.as_ptr().align_offset(page);
        memory[at + GUEST_START..][..GUEST_CODE.len()].copy_from_slice(&GUEST_CODE);
        let address = memory[at..].as_ptr() as u64;
        let region =
            MemoryRegion { slot: 0, flags: 0, guest_address: GUEST_BASE, bytes: GUEST_BYTES as u64, address };
        // SAFETY: `region` is what this call reads; the memory that it names lives as long as the VM.
        checked(unsafe { libc::ioctl(vm.as_raw_fd(), KVM_SET_USER_MEMORY_REGION, &region) })?;
        // SAFETY: the descriptor is open; the argument is a number.
        let vcpu = fd(unsafe { libc::ioctl(vm.as_raw_fd(), KVM_CREATE_VCPU, 0) })?;
        // SAFETY: the descriptor is open; the argument is a number.
        let bytes = checked(unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_GET_VCPU_MMAP_SIZE, 0) })?;
        // SAFETY: a new mapping of the vCPU's page, as long as KVM says.
        let run = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                vcpu.as_raw_fd(),
                0,
            )
        };
        if run == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { vcpu, run: run.cast(), _vm: vm, _memory: memory })
    }

    /// Runs the vCPU once.
    ///
    /// # Errors
    /// KVM refuses, or the vCPU did not halt.
    pub fn run(&mut self) -> io::Result<()> {
        // SAFETY: the descriptor is open; the argument is a number.
        checked(unsafe { libc::ioctl(self.vcpu.as_raw_fd(), KVM_RUN, 0) })?;
        // SAFETY: the page is mapped as long as the process lives; KVM writes it during the call above only.
        let reason = unsafe { ptr::addr_of!((*self.run).exit_reason).read_volatile() };
        if reason == KVM_EXIT_HLT {
            Ok(())
        } else {
            Err(io::Error::other(format!("the vCPU left the guest for reason {reason} of KVM")))
        }
    }
}

/// Maps the first page of a map that can be, to be read. Returns its address; it stays mapped.
///
/// # Errors
/// The kernel refuses.
pub fn map_page(map: std::os::fd::BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: a new mapping, which nobody writes through.
    let page =
        unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, map.as_raw_fd(), 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it has just been mapped. A page that was never read has no entry in the page map.
    unsafe { page.cast::<u8>().read_volatile() };
    Ok(page as u64)
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn sleeping_reaches_its_deadline() {
        let deadline_ns = now_ns() + 2_000_000;
        sleep_until_ns(deadline_ns);
        assert!(now_ns() >= deadline_ns);
        sleep_until_ns(0);
    }

    #[test]
    fn futex_passes_a_word_between_threads() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                word.store(1, Ordering::SeqCst);
                futex_wake(&word, 1);
            });
            while word.load(Ordering::SeqCst) == 0 {
                futex_wait(&word, 0);
            }
        });
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused() {
        assert!(pin_to_cpu(MAX_CPUS).is_err());
        assert!(pin_to_cpu(MAX_CPUS - 1).is_err());
    }
}
