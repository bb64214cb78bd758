//! Lines of a console that show trouble.

use tandem_agent::signature;

/// What a line of a console means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The signature of the emulator's own fault.
    Emulator,
    /// The host's kernel, or the emulator that runs it, is in trouble.
    Host,
    /// A guest is in trouble.
    Guest,
}

/// Classifies a line of the host's console, which repeats suspicious lines of its guests.
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
}
