//! Tells a failure of the emulated rig from one of the software under test.
//!
//! The emulator has faults of its own. The surest sign is `Oops: int3`: the kernel patches code while another emulated
//! CPU still runs a stale translation of it. As sure is a host in trouble with a guest's clock (see `sign`). A host that
//! fails before its guest does is the rig's failure as well: a scheduler in a guest cannot bring the host down. Any other
//! trouble counts as the rig's only while no scheduler under test is loaded. With one loaded it counts against the
//! scheduler until a control shows otherwise.

use crate::accel::Accel;
use crate::experiment::{Experiment, Mode, SINGLE};
use crate::sign::Sign;

/// Is it the rig's failure? `signs` are in the order of their appearance: the first trouble causes the rest.
pub fn is_rig_failure(signs: &[Sign], host_is_innocent: bool, scheduler_loaded: bool) -> bool {
    let host_failed_first = host_is_innocent && signs.first() == Some(&Sign::Host);
    !scheduler_loaded || host_failed_first || signs.contains(&Sign::Emulator)
}

/// Is the host another machine than the one under test? A scheduler in a guest cannot bring it down.
pub fn host_is_innocent(experiment: &Experiment) -> bool {
    let loads_there = experiment.also_load.values().flatten().any(|also| also.machine == SINGLE);
    experiment.mode == Mode::Nested && !experiment.is_of_the_host() && !loads_there
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

/// What every kernel is booted with. Emulated CPUs have no faults that a kernel would have to work around, but the model of their CPU says so: each
/// return from a function would go through a thunk (`retbleed=unret`), which costs the emulator two look-ups instead of one.
pub fn kernel_args(accel: Accel) -> &'static str {
    match accel {
        Accel::Kvm => "",
        Accel::Tcg => "mitigations=off",
    }
}

/// Memory that a guest's kernel takes for itself, MiB.
const KERNELS_OWN_MIB: u32 = 128;

/// Minimum memory of a guest with an image of this size: it holds the image packed and unpacked, and the kernel.
pub fn least_memory_mib(image_bytes: u64) -> u32 {
    let image_mib = u32::try_from(image_bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX);
    image_mib.saturating_mul(2).saturating_add(KERNELS_OWN_MIB)
}

/// A command of the scheduler under test with the options that this rig needs.
pub fn bearable(command: Vec<String>, experiment: &Experiment, accel: Accel) -> Vec<String> {
    bearable_on(command, experiment.target(), experiment, accel)
}

/// The same of a scheduler on another machine.
pub fn bearable_on(
    mut command: Vec<String>,
    machine: &str,
    experiment: &Experiment,
    accel: Accel,
) -> Vec<String> {
    let ours = command.starts_with(&["tandem".to_string(), "guest".to_string()]);
    let in_a_guest = experiment.mode == Mode::Nested && machine != SINGLE;
    if ours && in_a_guest && !has_slice_timers(experiment.mode, accel) {
        command.push("--no-slice-timers".into());
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(mode: &str, machines: &str) -> Experiment {
        let text = format!(
            "name='x'\ntitle='t'\nmode='{mode}'\narms=['eevdf']\n{machines}\n[[workload]]\nname='w'\nscript='true'\n"
        );
        Experiment::parse(&text, "x").unwrap()
    }

    #[test]
    fn only_guests_of_an_emulated_host_go_without_timers() {
        let command = || ["tandem", "guest"].map(str::to_string).to_vec();
        let guest = experiment("nested", "[[vm]]\nname='a'\npins=[1]");
        let host = experiment("nested", "under_test='host'\n[[vm]]\nname='a'\npins=[1]");
        let single = experiment("single", "");
        assert_eq!(bearable(command(), &guest, Accel::Tcg).len(), 3);
        assert_eq!(bearable(command(), &guest, Accel::Kvm), command());
        assert_eq!(bearable(command(), &host, Accel::Tcg), command());
        assert_eq!(bearable(command(), &single, Accel::Tcg), command());
        let other = || vec!["scx_other".to_string()];
        assert_eq!(bearable(other(), &guest, Accel::Tcg), other());
        assert!(host_is_innocent(&guest) && !host_is_innocent(&host) && !host_is_innocent(&single));
        assert_eq!(host.command("tandem").unwrap(), ["tandem", "host"]);
    }

    #[test]
    fn trouble_with_our_scheduler_loaded_is_ours() {
        assert!(is_rig_failure(&[Sign::Guest], true, false));
        assert!(!is_rig_failure(&[Sign::Guest], true, true));
        assert!(is_rig_failure(&[Sign::Guest, Sign::Emulator], true, true));
        assert!(!is_rig_failure(&[], true, true));
        assert!(is_rig_failure(&[], false, false));
    }

    #[test]
    fn a_guests_scheduler_is_not_blamed_for_its_host() {
        assert!(is_rig_failure(&[Sign::Host], true, true));
        assert!(!is_rig_failure(&[Sign::Guest, Sign::Host], true, true));
        // Here the scheduler runs on the host itself.
        assert!(!is_rig_failure(&[Sign::Host], false, true));
    }
}
