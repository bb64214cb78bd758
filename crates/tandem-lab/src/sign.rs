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

/// A kernel's clock never goes back. Lines of two CPUs may be out of order, by far less than this, seconds.
const OUT_OF_ORDER_S: f64 = 1.0;

/// Reads the host's console, which repeats suspicious lines of its guests.
#[derive(Debug, Default)]
pub struct Reader {
    /// The latest time that the host's kernel has printed, seconds since it booted.
    latest_s: f64,
}

impl Reader {
    /// Classifies the next line.
    ///
    /// The host's kernel in trouble at a time long past runs with a guest's clock: the emulator has not put back the
    /// host's TSC offset at a VM exit, nor its segment bases. No scheduler can touch either.
    pub fn sign(&mut self, line: &str) -> Option<Sign> {
        let guests = line.contains(signature::GUEST_PREFIX);
        let time_s = if guests { None } else { printed_at_s(line) };
        let with_a_guests_clock = time_s.is_some_and(|time_s| time_s < self.latest_s - OUT_OF_ORDER_S);
        if let Some(time_s) = time_s {
            self.latest_s = self.latest_s.max(time_s);
        }
        if signature::is_emulators(line) {
            Some(Sign::Emulator)
        } else if !signature::is_trouble(line) {
            None
        } else if guests {
            Some(Sign::Guest)
        } else if with_a_guests_clock {
            Some(Sign::Emulator)
        } else {
            Some(Sign::Host)
        }
    }
}

/// The time at which a kernel says that it printed a line, seconds.
fn printed_at_s(line: &str) -> Option<f64> {
    let (time, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    time.trim().parse().ok().filter(|time_s: &f64| time_s.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(line: &str) -> Option<Sign> {
        Reader::default().sign(line)
    }

    #[test]
    fn lines_are_told_apart() {
        assert_eq!(sign("GUEST a: [  1.2] Oops: int3: 0000 [#1] SMP"), Some(Sign::Emulator));
        assert_eq!(sign("[ 9.1] watchdog: BUG: soft lockup - CPU#1 stuck for 22s!"), Some(Sign::Host));
        assert_eq!(sign("GUEST a: [ 9.1] Kernel panic - not syncing"), Some(Sign::Guest));
        assert_eq!(sign("[ 1.0] sched_ext: BPF scheduler \"tandem\" enabled"), None);
    }

    #[test]
    fn a_host_whose_clock_is_a_guests_is_the_emulators() {
        let fault = "[   65.599843] BUG: TASK stack guard page was hit at ffffc90005ddfff8";
        let mut host = Reader::default();
        assert_eq!(host.sign("[  271.250000] sched_ext: BPF scheduler \"tandem\" enabled"), None);
        assert_eq!(host.sign(fault), Some(Sign::Emulator));
        assert_eq!(
            host.sign("[  336.924498] Kernel panic - not syncing: Fatal exception in interrupt"),
            Some(Sign::Host)
        );

        // The same fault at its own time is the host's; so is one that another CPU printed first.
        let mut host = Reader::default();
        assert_eq!(host.sign("[   65.100000] sched_ext: BPF scheduler \"tandem\" enabled"), None);
        assert_eq!(host.sign(fault), Some(Sign::Host));
        assert_eq!(host.sign("[   65.599800] BUG: kernel NULL pointer dereference"), Some(Sign::Host));

        // A guest's clock is its own, in front of a line of the host and behind one.
        let mut host = Reader::default();
        assert_eq!(
            host.sign("GUEST a: [  300.0] BUG: soft lockup - CPU#1 stuck for 22s!"),
            Some(Sign::Guest)
        );
        assert_eq!(host.sign(fault), Some(Sign::Host));
        assert_eq!(host.sign("GUEST a: [   1.0] BUG: soft lockup - CPU#1 stuck for 22s!"), Some(Sign::Guest));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for line in ["", "[", "[]", "[nan] BUG: x", "[inf] BUG: x", "[ 1.5 BUG: x", "] BUG: [9]"] {
            assert_eq!(printed_at_s(line), None, "{line}");
        }
        assert_eq!(printed_at_s("[    4.250000] x"), Some(4.25));
    }
}
