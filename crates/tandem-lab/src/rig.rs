//! Tells a failure of the emulated rig from one of the software under test.
//!
//! The emulator has faults of its own. The surest sign is `Oops: int3`: the kernel patches code while another emulated
//! CPU still runs a stale translation of it. A host that fails before its guest does is the rig's failure as well: a
//! scheduler in a guest cannot bring the host down. Any other trouble counts as the rig's only while no scheduler under
//! test is loaded. With one loaded it counts against the scheduler until a control shows otherwise.

use crate::experiment::Mode;
use crate::machine::Accel;
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

/// Is it the rig's failure? `signs` are in the order of their appearance: the first trouble causes the rest.
pub fn is_rig_failure(signs: &[Sign], mode: Mode, scheduler_loaded: bool) -> bool {
    let host_failed_first = mode == Mode::Nested && signs.first() == Some(&Sign::Host);
    !scheduler_loaded || host_failed_first || signs.contains(&Sign::Emulator)
}

/// Do slices end by a timer in the machine under test?
///
/// A guest of an emulated host does not survive the guest scheduler's slice timers: after some tens of seconds of
/// hackbench it double-faults in the kernel's exit from a system call, with the user's stack pointer still in place.
/// The same load does not fail without nesting, or in a guest with the timers off. The cause in the emulation of nested
/// virtualisation is not known; docs/LAB.md has the figures. So no scheduler has slice timers there, neither Tandem nor
/// the kernel's fair class (HRTICK): an emulated timer interrupt costs a tenth of a millisecond, and a comparison must
/// not depend on that.
pub fn has_slice_timers(mode: Mode, accel: Accel) -> bool {
    mode != Mode::Nested || accel != Accel::Tcg
}

/// Memory that a guest's kernel takes for itself, MiB.
const KERNELS_OWN_MIB: u32 = 96;

/// Minimum memory of a guest with an image of this size: it holds the image packed and unpacked, and the kernel.
pub fn least_memory_mib(image_bytes: u64) -> u32 {
    let image_mib = u32::try_from(image_bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX);
    image_mib.saturating_mul(2).saturating_add(KERNELS_OWN_MIB)
}

/// A scheduler's command with the options that this rig needs.
pub fn bearable(mut command: Vec<String>, mode: Mode, accel: Accel) -> Vec<String> {
    let ours = command.starts_with(&["tandem".to_string(), "guest".to_string()]);
    if ours && !has_slice_timers(mode, accel) {
        command.push("--no-slice-timers".into());
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_guests_of_an_emulated_host_go_without_timers() {
        let command = || ["tandem", "guest"].map(str::to_string).to_vec();
        assert_eq!(bearable(command(), Mode::Nested, Accel::Tcg).len(), 3);
        assert_eq!(bearable(command(), Mode::Nested, Accel::Kvm), command());
        assert_eq!(bearable(command(), Mode::Single, Accel::Tcg), command());
        let other = || vec!["scx_other".to_string()];
        assert_eq!(bearable(other(), Mode::Nested, Accel::Tcg), other());
    }

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
