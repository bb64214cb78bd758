//! What a policy's own accounts say: sums that must be 0 in the end, and timers that it expects.

use super::{function, Task, Timer};
use crate::queue::Ns;
use crate::scx::Policy;

/// A timer of the policy.
pub(super) struct PolicyTimer {
    /// Its map.
    pub(super) map: &'static str,
    /// Function that tells when the policy expects it to fire.
    believed: &'static str,
}

/// The timer that refills quotas.
pub(super) const QUOTA_TIMER: PolicyTimer =
    PolicyTimer { map: "quota_timer", believed: "sim_quota_timer_at" };
/// The timer that refreshes the groups' scales.
pub(super) const REFRESH_TIMER: PolicyTimer =
    PolicyTimer { map: "refresh_timer", believed: "sim_refresh_timer_at" };

impl Policy {
    /// Sums of a CPU that are not 0 (they must be while no task is runnable), by name.
    pub fn left(&mut self, cpu: usize) -> Vec<&'static str> {
        // SAFETY: the type is the one in native/common.h.
        let left = unsafe { function::<extern "C" fn(u32) -> u64>(&self.image, "sim_left") };
        let bits = left.map_or(0, |left| self.with(cpu, |_| left(cpu as u32)));
        let names = ["weight", "tasks", "booked work", "CPU-bound weight", "CPU-bound tasks"];
        names.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 != 0).map(|(_, name)| name).collect()
    }

    /// The same of a group's record.
    pub fn left_of_group(&mut self, group: usize) -> bool {
        // SAFETY: likewise.
        let left = unsafe { function::<extern "C" fn(u32) -> u64>(&self.image, "sim_left_of_group") };
        left.is_ok_and(|left| self.with(0, |_| left(group as u32)) != 0)
    }

    /// Does a task count as CPU-bound on a CPU, and not in its group?
    pub(super) fn half_counted(&mut self, task: usize) -> bool {
        let task = self.task(task);
        type Of = extern "C" fn(Task) -> bool;
        // SAFETY: the type is the one in native/common.h, and the task lives as long as the policy.
        let of = unsafe { function::<Of>(&self.image, "sim_half_counted") };
        of.is_ok_and(|of| self.with(0, |_| of(task)))
    }

    /// When the policy expects one of its timers to fire (0: not at all), and the number of that timer.
    pub(super) fn timer(&mut self, of: &PolicyTimer) -> (Ns, usize) {
        // SAFETY: likewise.
        let at = unsafe { function::<extern "C" fn() -> u64>(&self.image, of.believed) };
        let at = at.map_or(0, |at| self.with(0, |_| at()));
        let maps = &self.state.maps;
        let is_it = |timer: &Timer| maps[timer.map].shape.name == of.map;
        (at, self.state.timers.iter().position(is_it).unwrap_or(usize::MAX))
    }

    /// Is nobody going to ask for the scales of groups that are active?
    pub(super) fn refresh_must_come(&mut self) -> bool {
        // SAFETY: likewise.
        let must = unsafe { function::<extern "C" fn() -> bool>(&self.image, "sim_refresh_must_come") };
        must.is_ok_and(|must| self.with(0, |_| must()))
    }

    /// The group whose quota limits the tasks of a group in the policy; 0: none.
    pub fn limit_of(&mut self, group: usize) -> u32 {
        // SAFETY: likewise.
        let limit = unsafe { function::<extern "C" fn(u32) -> u32>(&self.image, "sim_limit_of") };
        limit.map_or(0, |limit| self.with(0, |_| limit(group as u32)))
    }
}
