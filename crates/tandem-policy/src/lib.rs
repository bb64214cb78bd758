//! The decisions of `policy/`, callable from Rust: for tests, and for programs that want to ask the very
//! code that decides in the kernel.
//!
//! Every wrapper is safe: the functions take integers and small structs by value or reference, have no
//! state, allocate nothing and call nothing else. [`limit`] is what user space decides with them.

mod ffi;
pub mod limit;

pub use ffi::{
    answerer, boost_rivals, forecast, ivh_view, place_view, pull_view, rhythm_length, rotation_view,
    straggler_view, vcpu_limit, vcpu_limit_seen, vcpu_model, vcpu_phase, vcpu_pool,
};

/// Fixed point of shares: 1024 is one whole pCPU.
pub const SCALE: u32 = ffi::TANDEM_SCALE;
/// A vCPU with a smaller share counts as contended, 0 to [`SCALE`].
pub const CONTENDED_SHARE: u32 = ffi::TANDEM_CONTENDED_SHARE;
/// Length of a measurement window, nanoseconds.
pub const WINDOW_NS: u64 = ffi::TANDEM_WINDOW_NS as u64;

/// Base request of a CPU for which nothing else is set, nanoseconds.
pub const REQUEST_NS: u64 = ffi::TANDEM_REQUEST_NS as u64;

/// Effective weight of a task of nice 0 outside of all groups: 1 << 20.
pub const UNIT: u64 = 1 << 20;
/// Scale of the root group.
pub const SCALE_ONE: u64 = 1 << 30;

/// Arithmetic and clocks (`policy/base.h`).
pub mod base {
    pub use crate::ffi::safe::tick_length_ns;
}

/// Virtual deadlines (`policy/eevdf.h`).
pub mod eevdf {
    pub use crate::ffi::safe::{
        clock_anchored, clock_shift, deadline_distance, deadline_moved, idle_floor_due, is_ahead, is_bounded,
        lag_after_sleep, lag_against, lag_limit, lag_of, lag_on_join, long_burst_ns, owed_preempts,
        progress_alone, prompt_preempts, real_ns, request_ns, v_of, v_reweighted, virtual_ns, waits_too_long,
        wake_request_ns, wakeup_preempts, weight_of_nice,
    };
}

/// Hierarchical weights (`policy/hweight.h`).
pub mod hweight {
    pub use crate::ffi::safe::{
        effective_weight, group_scale, paid_ns, passed_down, scale_moved, weight_of_cgroup,
    };
}

/// Quotas (`policy/quota.h`).
pub mod quota {
    pub use crate::ffi::safe::{
        may_charge_unstoppable, periods_passed, pool_refilled, quota_loan_ns, quota_run_ns,
        quota_wait_too_long, uncharged_ns,
    };
}

/// Load balance, for fairness across CPUs (`policy/balance.h`).
pub mod balance {
    pub use crate::ffi::safe::{
        excess_weight, is_light, left_by_light, light_share, load_of, matters_for_turns, move_improves,
        owed_after_move, owed_max_ns, rotates_away, settled_ns, settles_itself, vtime_caught_up,
    };
}

/// The capacity of a vCPU (`policy/guest/vcap.h`).
pub mod vcap {
    pub use crate::ffi::safe::{
        preemption_bucket, vcap_arrive, vcap_at_best, vcap_at_worst, vcap_busy, vcap_effective, vcap_fresh,
        vcap_pool_share, vcap_pool_wait, vcap_share_believed, vcap_wait_after_ns, vcap_wait_believed_ns,
        vcap_wait_ns,
    };
}

/// Placement (`policy/guest/place.h`).
pub mod place {
    pub use crate::ffi::safe::{
        far_excess, move_cost_ns, place_cost_ns, place_drain_ns, place_work_ns, pull_helps, push_gains,
        share_beside_busy,
    };
}

/// Work queued on a CPU (`policy/work.h`).
pub mod work {
    pub use crate::ffi::safe::{
        booked_runs_ns, booked_slices_ns, booked_work, delayed_others_ns, delays_others_ns,
    };
}

/// When a vCPU will be preempted, and when it will be scheduled in again (`policy/guest/phase.h`).
pub mod phase {
    pub use crate::ffi::safe::{
        length_even, phase_busy, phase_even, phase_forecast, phase_idle, phase_wants_scouts, phase_woken,
    };
}

/// Proactive migration: leaving a vCPU before it is preempted (`policy/guest/ivh.h`).
pub mod ivh {
    pub use crate::ffi::safe::{
        ivh_caught, ivh_cost_ns, ivh_forgotten, ivh_gain_ns, ivh_learns, ivh_left_in_time, ivh_risk,
    };
}

/// What higher classes leave of a pCPU (`policy/host/away.h`).
pub mod away {
    pub use crate::ffi::safe::share_left;
}

/// When I/O is over (`policy/host/answer.h`).
pub mod answer {
    pub use crate::ffi::safe::{answer_slot, is_voted, vote_for, votes_after};

    /// Vectors of a vCPU that are told apart.
    pub const VECTORS: u32 = crate::ffi::TANDEM_ANSWER_VECTORS;
}

/// Does a vCPU do I/O? (`policy/host/io.h`)
pub mod io {
    pub use crate::ffi::safe::{does_io, io_confidence, is_near_io};

    /// There is no more confidence than this.
    pub const CONFIDENCE_MAX: u32 = crate::ffi::TANDEM_IO_CONFIDENCE_MAX;
}

/// What a guest does, as its own memory says (`policy/host/inside.h`).
pub mod inside {
    pub use crate::ffi::safe::{is_critical, is_guest_task, is_preempt_count, may_hold};

    /// So many times a turn goes on because of a critical section.
    pub const CRITICAL_STEPS_MAX: u32 = crate::ffi::TANDEM_CRITICAL_STEPS_MAX;
    /// Set in a preemption count while the kernel need not reschedule.
    pub const NO_RESCHED_BIT: u32 = crate::ffi::K_NO_RESCHED_BIT;
}

/// Interrupts that hardware has posted (`policy/host/posted.h`).
pub mod posted {
    pub use crate::ffi::safe::{lowest_bit, posted_vector};
}

/// What a boost costs, and who pays (`policy/host/debt.h`).
pub mod debt {
    pub use crate::ffi::safe::{
        for_others_ns, forgotten_ns, lent_ns, loan_room_ns, of_one_ns, of_others_ns, payment_ns,
    };

    /// Limit of the debt of a VM of weight 100, ns.
    pub const MAX_NS: u64 = crate::ffi::TANDEM_DEBT_MAX_NS as u64;
}

/// When a vCPU comes before its turn (`policy/host/boost.h`).
pub mod boost {
    pub use crate::ffi::safe::{displaces, goes_on_for_io, may_wake_fast, wake_use_left_ns};

    /// The one that does more I/O runs.
    pub const BY_CONFIDENCE: u32 = crate::ffi::boost_conflict_CONFLICT_CONFIDENCE;
    /// The one whose VM owes less.
    pub const BY_DEBT: u32 = crate::ffi::boost_conflict_CONFLICT_DEBT;
    /// The one that runs already.
    pub const NONE: u32 = crate::ffi::boost_conflict_CONFLICT_NONE;
}

/// vCPUs that are better left without work (`policy/guest/rwc.h`).
pub mod rwc {
    pub use crate::ffi::safe::{
        delayed_others, holds_others_up, is_straggler, takes_best_effort, takes_normal, trials_failed,
    };

    /// SCHED_IDLE tasks only.
    pub const STRAGGLER: u32 = crate::ffi::TANDEM_BAN_STRAGGLER;
    /// Nothing, while the working vCPU of its stack has normal work.
    pub const STACKED: u32 = crate::ffi::TANDEM_BAN_STACKED;
    /// Nothing.
    pub const PARKED: u32 = crate::ffi::TANDEM_BAN_PARKED;
}

/// The vCPU limit: how many vCPUs are worth using (`policy/guest/vcpu_limit.h`).
pub mod vcpu_limiting {
    pub use crate::ffi::safe::vcpu_limit_window;

    /// State: as few vCPUs as were found to be enough.
    pub const FEW: u32 = crate::ffi::vcpu_limit_state_VCPU_LIMIT_FEW;
    /// State: a trial window with more than that.
    pub const MORE: u32 = crate::ffi::vcpu_limit_state_VCPU_LIMIT_MORE;
    /// Length of the first window, nanoseconds.
    pub const WINDOW_NS: u64 = crate::ffi::TANDEM_VCPU_LIMIT_WINDOW_NS as u64;
    /// Length of a trial window, nanoseconds.
    pub const TRIAL_NS: u64 = crate::ffi::TANDEM_VCPU_LIMIT_TRIAL_NS as u64;
    /// Pause after a change, nanoseconds.
    pub const SETTLE_NS: u64 = crate::ffi::TANDEM_VCPU_LIMIT_SETTLE_NS as u64;
}
