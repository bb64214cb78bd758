//! What a guest is doing that does not answer: its threads as the host sees them, then the stacks that its kernel prints.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Between two looks at the threads, and from the interrupt to the guest's last line.
const PAUSE: Duration = Duration::from_secs(2);
/// A monitor that does not reply is left alone.
const MONITOR: Duration = Duration::from_secs(5);

/// Parameters of a guest's kernel: an interrupt that it cannot mask makes it panic and print the stacks of all its CPUs.
pub const KERNEL_ARGS: &str = "sysctl.kernel.panic_on_unrecovered_nmi=1 panic_print=64";

/// One thread's name, state, CPU, run time and run delay in ns, from what /proc has of it.
fn thread_line(stat: &str, schedstat: &str) -> Option<String> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = tail.split_whitespace();
    let state = fields.next()?;
    // The 39th field of proc_pid_stat(5); the state is the third.
    let cpu = fields.nth(35)?;
    Some(format!("{name:<16} {state} CPU {cpu} run, delay, turns: {}", schedstat.trim()))
}

/// Its threads, as they are now.
fn threads(pid: u32) -> String {
    let mut lines = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if let Some(line) = thread_line(&read("stat"), &read("schedstat")) {
            let stack = read("stack");
            let calls = stack.lines().take(6).filter_map(|call| call.split_whitespace().nth(1));
            lines.push(format!("{line} {}", calls.collect::<Vec<_>>().join(" ")));
        }
    }
    lines.sort_unstable();
    lines.join("\n")
}

/// Twice, so that one sees which of them run.
pub fn threads_twice(pid: u32) -> String {
    let first = threads(pid);
    std::thread::sleep(PAUSE);
    format!("{first}\n{} s later\n{}", PAUSE.as_secs(), threads(pid))
}

/// Interrupts all of a guest's vCPUs through its emulator's monitor, and waits for what its kernel has to say.
pub fn interrupt(monitor: &Path) -> std::io::Result<()> {
    let mut line = UnixStream::connect(monitor)?;
    line.set_read_timeout(Some(MONITOR))?;
    let mut replies = BufReader::new(line.try_clone()?);
    let mut reply = String::new();
    replies.read_line(&mut reply)?;
    for command in ["qmp_capabilities", "inject-nmi"] {
        writeln!(line, "{{\"execute\":\"{command}\"}}")?;
        reply.clear();
        replies.read_line(&mut reply)?;
        if reply.contains("\"error\"") {
            return Err(std::io::Error::other(reply.trim().to_owned()));
        }
    }
    std::thread::sleep(PAUSE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_one_line() {
        let stat = "71 (CPU 0/KVM) R 1 71 71 0 -1 4194304 0 0 0 0 5 6 0 0 20 0 5 0 100 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 2 0 0";
        let line = thread_line(stat, "12 34 5\n").unwrap();
        assert_eq!(line, "CPU 0/KVM        R CPU 2 run, delay, turns: 12 34 5");
        assert_eq!(thread_line("71 (x", ""), None);
        assert!(threads(std::process::id()).contains("run, delay"));
    }
}
