//! Tells a failure of the emulated rig from one of the software under test.
//!
//! The emulator has faults of its own. The surest sign is `Oops: int3`: the kernel patches code while
//! another emulated CPU still runs a stale translation of it. A scheduler in a guest cannot bring the
//! host down either. Any other trouble counts as the rig's only while no scheduler of ours is loaded;
//! with one loaded it is ours until a control shows otherwise.

use crate::experiment::Mode;
use tandem_agent::signature;

/// What a line of a console means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The emulator's own signature.
    Emulator,
    /// The host's kernel, or the emulator that runs it, is in trouble.
    Host,
    /// A guest is in trouble.
    Guest,
}

/// Judges a line of the host's console, which repeats suspicious lines of its guests.
pub fn sign(line: &str) -> Option<Sign> {
    if signature::is_emulators(line) {
        Some(Sign::Emulator)
    } else if !signature::is_trouble(line) {
        None
    } else if line.contains(signature::GUEST_PREFIX) {
        Some(Sign::Guest)
    } else {
        Some(Sign::Host)
    }
}

/// Whose failure is it? `signs` in the order of their appearance: the first trouble causes the rest.
pub fn is_rig_failure(signs: &[Sign], mode: Mode, scheduler_loaded: bool) -> bool {
    let host_failed_first = mode == Mode::Nested && signs.first() == Some(&Sign::Host);
    !scheduler_loaded || host_failed_first || signs.contains(&Sign::Emulator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        assert_eq!(sign("GUEST a: [  1.2] Oops: int3: 0000 [#1] SMP"), Some(Sign::Emulator));
        assert_eq!(sign("[ 9.1] watchdog: BUG: soft lockup - CPU#1 stuck for 22s!"), Some(Sign::Host));
        assert_eq!(sign("GUEST a: [ 9.1] Kernel panic - not syncing"), Some(Sign::Guest));
        assert_eq!(sign("[ 1.0] sched_ext: BPF scheduler \"tandem\" enabled"), None);
    }

    #[test]
    fn trouble_with_our_scheduler_loaded_is_ours() {
        assert!(is_rig_failure(&[Sign::Guest], Mode::Nested, false));
        assert!(!is_rig_failure(&[Sign::Guest], Mode::Nested, true));
        assert!(is_rig_failure(&[Sign::Guest, Sign::Emulator], Mode::Nested, true));
        assert!(!is_rig_failure(&[], Mode::Nested, true));
        assert!(is_rig_failure(&[], Mode::Single, false));
    }

    #[test]
    fn a_guests_scheduler_is_not_blamed_for_its_host() {
        assert!(is_rig_failure(&[Sign::Host], Mode::Nested, true));
        assert!(!is_rig_failure(&[Sign::Guest, Sign::Host], Mode::Nested, true));
        // Here the scheduler runs on the host itself.
        assert!(!is_rig_failure(&[Sign::Host], Mode::Single, true));
    }
}
