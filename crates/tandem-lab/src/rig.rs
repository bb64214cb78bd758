//! Tells a failure of the emulated rig from one of the software under test.
//!
//! The emulator has faults of its own. The surest sign is `Oops: int3`: the kernel patches code while
//! another emulated CPU still runs a stale translation of it. Any other trouble counts as the rig's
//! only while no scheduler of ours is loaded; with one loaded it is ours until a control shows otherwise.

/// What a line of a console means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The emulator's own signature.
    Emulator,
    /// A kernel in trouble.
    Trouble,
}

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

/// Judges a line of a console.
pub fn sign(line: &str) -> Option<Sign> {
    if line.contains("Oops: int3") {
        return Some(Sign::Emulator);
    }
    TROUBLE.iter().any(|text| line.contains(text)).then_some(Sign::Trouble)
}

/// Whose failure is it?
pub fn is_rig_failure(signs: &[Sign], scheduler_loaded: bool) -> bool {
    signs.contains(&Sign::Emulator) || !scheduler_loaded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulators_signature_is_told_from_trouble() {
        assert_eq!(sign("GUEST a: [  1.2] Oops: int3: 0000 [#1] SMP"), Some(Sign::Emulator));
        assert_eq!(sign("[ 9.1] watchdog: BUG: soft lockup - CPU#1 stuck for 22s!"), Some(Sign::Trouble));
        assert_eq!(sign("[ 1.0] sched_ext: BPF scheduler \"tandem\" enabled"), None);
    }

    #[test]
    fn trouble_with_our_scheduler_loaded_is_ours() {
        assert!(is_rig_failure(&[Sign::Trouble], false));
        assert!(!is_rig_failure(&[Sign::Trouble], true));
        assert!(is_rig_failure(&[Sign::Trouble, Sign::Emulator], true));
        assert!(is_rig_failure(&[], false));
    }
}
