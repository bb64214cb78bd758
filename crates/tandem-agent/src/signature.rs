//! Signatures that kernels and emulators print when they are in trouble. One list for both ends: the host's agent
//! selects lines of its guests' consoles by it, and the lab classifies them.

/// Faults that only the emulator has: it patches code that another emulated CPU still runs in a stale translation; and it leaves the wrong
/// segment base in place, so that the first instructions of an exception fault themselves until the stack that is for
/// nothing else is full.
const EMULATOR: [&str; 2] = ["Oops: int3", "BUG: ENTRY_TRAMPOLINE stack guard page was hit"];

const TROUBLE: [&str; 12] = [
    "Oops:",
    "Kernel panic",
    "BUG:",
    "soft lockup",
    "rcu: INFO: rcu",
    "general protection fault",
    "unable to handle",
    "KVM internal error",
    "KVM: entry failed",
    "blocked for more than",
    "Unexpected reschedule",
    "AGENT-FAILED",
];

/// Prefix of a guest's console line that the host repeats on its own console.
pub const GUEST_PREFIX: &str = "GUEST ";

/// Does a console line show trouble?
pub fn is_trouble(line: &str) -> bool {
    TROUBLE.iter().any(|text| line.contains(text))
}

/// Does it show a fault that only the emulator has?
pub fn is_emulators(line: &str) -> bool {
    EMULATOR.iter().any(|text| line.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_from_chatter() {
        assert!(is_trouble("[ 9.1] watchdog: BUG: soft lockup - CPU#1 stuck for 22s!"));
        assert!(is_trouble("[ 1.2] Oops: int3: 0000 [#1] SMP") && is_emulators("Oops: int3: 0000 [#1] SMP"));
        assert!(!is_trouble("[ 1.0] sched_ext: BPF scheduler \"tandem\" enabled"));
        assert!(is_emulators("[ 1.2] BUG: ENTRY_TRAMPOLINE stack guard page was hit at fffffe0000001fd8"));
        assert!(!is_emulators("[ 1.2] BUG: TASK stack guard page was hit at ffffc90005ddfff8"));
        assert!(!is_emulators("[ 1.2] Oops: general protection fault, probably for non-canonical address"));
    }
}
