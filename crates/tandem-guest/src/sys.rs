//! What the guest side needs from threads and from its hypervisor.

pub(crate) use tandem_daemon::sys::{is_root, monotonic_ns, termination_requested};

/// Pins the calling thread to one CPU and makes it SCHED_IDLE.
pub(crate) fn become_prober_on(cpu: usize) -> std::io::Result<()> {
    tandem_probe::sys::pin_to(cpu)?;
    tandem_probe::sys::set_policy(tandem_probe::sys::Policy::BestEffort)
}

/// Is there a hypervisor that may preempt vCPUs without reporting it? On bare metal and in an emulator a
/// late tick means something else.
pub(crate) fn may_be_stolen_from() -> bool {
    tandem_probe::hypervisor::Hypervisor::detect().is_some_and(|hypervisor| !hypervisor.emulates())
}

/// Does KVM maintain the steal time page for this guest? Elsewhere the kernel's own accounting is used.
pub(crate) fn kvm_steal_time() -> bool {
    tandem_probe::hypervisor::Hypervisor::detect().is_some_and(|hypervisor| hypervisor.reports_steal())
}
