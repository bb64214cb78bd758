//! Generated bindings and their safe wrappers: the crate's only unsafe code.
#![allow(missing_docs, non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/policy.rs"));

/// Safe wrappers. Units, ranges and sources are documented at the C functions of the same name.
pub mod safe {
    use super::{
        answerer, boost_rivals, forecast, ivh_view, place_view, pull_view, rhythm_length, rotation_view,
        straggler_view, vcpu_limit, vcpu_limit_seen, vcpu_model, vcpu_phase, vcpu_pool,
    };

    macro_rules! by_value {
        ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
            pub fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: a pure function of integers passed by value.
                unsafe { super::$name($($arg),*) }
            }
        )*};
    }

    by_value! {
        tick_length_ns(measured_ns: u64) -> u64;
        weight_of_nice(nice: i32) -> u32;
        virtual_ns(service_ns: u64, weight: u64) -> u64;
        real_ns(virt_ns: u64, weight: u64) -> u64;
        long_burst_ns(base_ns: u64) -> u64;
        request_ns(base_ns: u64, weight: u64, queue_weight: u64, queue_tasks: u32) -> u64;
        deadline_distance(remaining_ns: u64, weight: u64, base_ns: u64) -> u64;
        lag_limit(request: u64) -> i64;
        lag_of(clock: u64, v: u64, weight: u64, request: u64) -> i64;
        v_of(clock: u64, lag: i64, weight: u64) -> u64;
        lag_on_join(lag: i64, weight: u64, others: u64, request: u64) -> i64;
        clock_anchored(clock: u64, picked_v: u64, weight: u64, longest_ns: u64, tasks: u32, total: u64) -> u64;
        v_reweighted(clock: u64, v: u64, old_weight: u64, new_weight: u64, request: u64) -> u64;
        ivh_cost_ns(cost_ns: u64, late_ns: u64) -> u64;
        ivh_forgotten(learned: u64) -> u64;
        ivh_learns(own_share: u32, share: u32, since_ns: u64) -> bool;
        ivh_risk(risk: u32, failed: bool) -> u32;
        lag_after_sleep(lag: i64, progress: i64, weight: u64) -> i64;
        waits_too_long(ahead_ns: u64, queue_weight: u64, watchdog_ns: u64) -> bool;
        weight_of_cgroup(cgroup_weight: u32) -> u64;
        effective_weight(own_weight: u32, scale: u64) -> u64;
        group_scale(parent_scale: u64, group_weight: u64, active_weight: u64) -> u64;
        scale_moved(old_scale: u64, new_scale: u64) -> bool;
        paid_ns(unpaid_ns: i64, owed_ns: i64, service_ns: u64) -> i64;
        passed_down(unpaid_ns: i64, own_cpu_bound: u64, child_cpu_bound: u64) -> u64;
        periods_passed(now_ns: u64, start_ns: u64, period_ns: u64) -> u64;
        may_charge_unstoppable(pool_ns: i64, quota_ns: u64) -> bool;
        pool_refilled(pool_ns: i64, quota_ns: u64, burst_ns: u64, periods: u64, uncharged: u64) -> i64;
        uncharged_ns(running: u32, periods: u64, period_ns: u64) -> u64;
        quota_run_ns(pool_ns: i64, running_cpus: u32) -> u64;
        quota_loan_ns(pool_ns: i64, quota_ns: u64, part: u32, cpus: u32) -> u64;
        quota_wait_too_long(waited_ns: u64, watchdog_ns: u64) -> bool;
        load_of(weight: u64, capacity: u32) -> u64;
        light_share(old: u32, light_ns: u64, interval_ns: u64) -> u32;
        missed_much(behind_ns: u64, queue_weight: u64, longest_ns: u64) -> bool;
        is_light(mean_burst_ns: u64) -> bool;
        left_by_light(capacity: u32, light: u32) -> u32;
        excess_weight(heavy_weight: u64, heavy_capacity: u32, light_weight: u64, light_capacity: u32) -> u64;
        move_improves(weight: u64, excess: u64) -> bool;
        settles_itself(excess: u64, heavy_weight: u64) -> bool;
        matters_for_turns(weight: u64, excess: u64) -> bool;
        owed_max_ns(longest_ns: u64) -> u64;
        owed_after_move(owed_ns: i64, vtime_from: u64, vtime_to: u64, weight: u64, queue_weight: u64, longest_ns: u64) -> i64;
        settled_ns(owed_ns: i64, service_ns: u64) -> i64;
        vtime_caught_up(vtime: u64, furthest: u64, gives_all: bool, weight: u64, longest_ns: u64) -> u64;
        owed_preempts(owed_ns: i64, curr_lead: i64, base_ns: u64) -> bool;
        wakeup_preempts(wakee_deadline: u64, curr_deadline: u64, curr_lead: i64, curr_ran_ns: u64, curr_burst_ns: u64, base_ns: u64) -> bool;
        is_ahead(clock: u64, v: u64) -> bool;
        prompt_preempts(clock: u64, v: u64, need_ns: u64, weight: u64, curr_base_ns: u64, curr_weight: u64) -> bool;
        progress_alone(clock: u64, v: u64, gained: u64) -> u64;
        lag_against(lag: i64, weight: u64, others: u64) -> i64;
        clock_shift(lag: i64, weight: u64) -> u64;
        is_bounded(request_ns: u64, weight: u64, base_ns: u64) -> bool;
        deadline_moved(deadline: u64, bounded: bool, v: u64, end_v: u64, base_ns: u64) -> u64;
        wake_request_ns(base_ns: u64, mean_burst_ns: u64) -> u64;
        share_beside_busy(share: u32, stacked_busy: u32, siblings_busy: u32) -> u32;
        idle_floor_due(now_ns: u64, last_ns: u64, waiting: u32, watchdog_ns: u64) -> bool;
        push_gains(from: u32, to: u32) -> bool;
        delayed_others(part: u32, others_idle: bool) -> u32;
        holds_others_up(part: u32, banned: bool, since_ns: u64, failed: u32) -> bool;
        trials_failed(failed: u32, lasted_ns: u64) -> u32;
        booked_work(burst_ns: u64) -> u64;
        booked_slices_ns(booked: u64) -> u64;
        booked_runs_ns(booked: u64) -> u64;
        delayed_others_ns(booked: u64, work_ns: u64) -> u64;
        delays_others_ns(waits_for_ns: u64, nr_tasks: u32, work_ns: u64) -> u64;
        preemption_bucket(preemption_ns: u64) -> u32;
        place_drain_ns(work_ns: u64, share: u32) -> u64;
        place_work_ns(mean_burst_ns: u64, request_ns: u64, ordinary_request_ns: u64) -> u64;
        move_cost_ns(far: bool) -> u64;
        far_excess(excess: u64, heavy_weight: u64) -> u64;
        share_left(share: u32, away: bool, ns: u64) -> u32;
        io_confidence(confidence: u32, points: u32, ticks: u64) -> u32;
        does_io(confidence: u32) -> bool;
        answer_slot(vector: u32) -> u32;
        votes_after(votes: u32, favour: bool) -> u32;
        is_voted(votes: u32) -> bool;
        is_near_io(device_at_ns: u64, now_ns: u64) -> bool;
        loan_room_ns(debt_ns: i64, limit_ns: u64) -> u64;
        lent_ns(service_ns: u64, ahead: bool, debt_ns: i64, limit_ns: u64) -> u64;
        payment_ns(service_ns: u64, debt_ns: i64, credit_ns: i64) -> u64;
        forgotten_ns(debt_ns: i64, seconds: u64) -> i64;
        of_others_ns(ns: u64, weight: u64, total: u64) -> u64;
        for_others_ns(ns: u64, weight: u64, total: u64) -> u64;
        of_one_ns(ns: u64, weight_of_one: u64, weight: u64, total: u64) -> u64;
        goes_on_for_io(io: bool, ran_ns: u64, room_ns: u64) -> bool;
        wake_use_left_ns(used_ns: u64, elapsed_ns: u64, budget_ns: u64) -> u64;
        may_wake_fast(used_ns: u64, budget_ns: u64) -> bool;
        is_guest_task(word: u64) -> bool;
        is_preempt_count(word: u32) -> bool;
        is_critical(preempt_count: u32) -> bool;
        may_hold(steps: u32, votes: u32) -> bool;
        lowest_bit(bits: u64) -> u32;
        posted_vector(bits: u64, word: u32, end: u32, timer: u32) -> u32;
        takes_normal(bans: u32) -> bool;
        takes_best_effort(bans: u32, stack_busy: bool) -> bool;
    }

    pub fn vcpu_limit_window(vcpu_limit: &mut vcpu_limit, seen: &vcpu_limit_seen, usable: u32) -> u64 {
        // SAFETY: the references are valid for the call and the function keeps no pointer.
        unsafe { super::vcpu_limit_window(vcpu_limit, seen, usable) }
    }

    pub fn vote_for(answerer: &mut answerer, tid: i32) {
        // SAFETY: the reference is valid for the call and the function keeps no pointer.
        unsafe { super::vote_for(answerer, tid) }
    }

    pub fn displaces(conflict: u32, rivals: &boost_rivals) -> bool {
        // SAFETY: the reference is valid for the call and the function keeps no pointer; read only.
        unsafe { super::displaces(conflict, rivals) }
    }

    pub fn length_even(length: &rhythm_length) -> bool {
        // SAFETY: the reference is valid for the call and the function keeps no pointer; read only.
        unsafe { super::length_even(length) }
    }

    pub fn phase_even(phase: &vcpu_phase) -> bool {
        // SAFETY: as above.
        unsafe { super::phase_even(phase) }
    }

    pub fn phase_busy(
        phase: &mut vcpu_phase,
        now_ns: u64,
        elapsed_ns: u64,
        stolen_ns: u64,
        returns: u32,
        overdue: bool,
    ) {
        // SAFETY: the reference is valid for the call and the function keeps no pointer.
        unsafe { super::phase_busy(phase, now_ns, elapsed_ns, stolen_ns, returns, overdue) }
    }

    pub fn phase_woken(phase: &mut vcpu_phase, now_ns: u64, waited_ns: u64, returns: u32) {
        // SAFETY: as above.
        unsafe { super::phase_woken(phase, now_ns, waited_ns, returns) }
    }

    pub fn phase_idle(phase: &mut vcpu_phase) {
        // SAFETY: as above.
        unsafe { super::phase_idle(phase) }
    }

    pub fn phase_forecast(phase: &vcpu_phase, at_ns: u64) -> forecast {
        // SAFETY: as above; read only.
        unsafe { super::phase_forecast(phase, at_ns) }
    }

    pub fn phase_wants_scouts(phase: &vcpu_phase) -> bool {
        // SAFETY: as above; read only.
        unsafe { super::phase_wants_scouts(phase) }
    }

    pub fn ivh_left_in_time(early_ns: u64) -> u64 {
        // SAFETY: plain numbers.
        unsafe { super::ivh_left_in_time(early_ns) }
    }

    pub fn ivh_caught(early_ns: u64, on: &rhythm_length) -> u64 {
        // SAFETY: as above; read only.
        unsafe { super::ivh_caught(early_ns, on) }
    }

    pub fn ivh_gain_ns(view: &ivh_view) -> u64 {
        // SAFETY: as above; read only.
        unsafe { super::ivh_gain_ns(view) }
    }

    pub fn is_straggler(view: &straggler_view) -> bool {
        // SAFETY: as above; read only.
        unsafe { super::is_straggler(view) }
    }

    pub fn vcap_busy(
        model: &mut vcpu_model,
        now_ns: u64,
        elapsed_ns: u64,
        stolen_ns: u64,
        returns: u32,
    ) -> u32 {
        // SAFETY: the reference is valid for the call and the function keeps no pointer.
        unsafe { super::vcap_busy(model, now_ns, elapsed_ns, stolen_ns, returns) }
    }

    pub fn vcap_arrive(model: &mut vcpu_model, now_ns: u64, idle_ns: u64, waited_ns: u64) -> u32 {
        // SAFETY: as above.
        unsafe { super::vcap_arrive(model, now_ns, idle_ns, waited_ns) }
    }

    pub fn vcap_fresh(model: &vcpu_model, now_ns: u64) -> bool {
        // SAFETY: as above; read only.
        unsafe { super::vcap_fresh(model, now_ns) }
    }

    pub fn vcap_wait_ns(model: &vcpu_model, now_ns: u64) -> u64 {
        // SAFETY: as above; read only.
        unsafe { super::vcap_wait_ns(model, now_ns) }
    }

    pub fn vcap_wait_after_ns(model: &vcpu_model, now_ns: u64, idle_ns: u64) -> u64 {
        // SAFETY: as above; read only.
        unsafe { super::vcap_wait_after_ns(model, now_ns, idle_ns) }
    }

    pub fn vcap_share_believed(model: &vcpu_model, now_ns: u64, pool: &vcpu_pool) -> u32 {
        // SAFETY: as above; read only.
        unsafe { super::vcap_share_believed(model, now_ns, pool, super::vcap_prior(model, pool)) }
    }

    pub fn vcap_wait_believed_ns(model: &vcpu_model, now_ns: u64, wait_ns: u64, pool: &vcpu_pool) -> u64 {
        // SAFETY: as above; read only.
        unsafe { super::vcap_wait_believed_ns(model, now_ns, wait_ns, pool, super::vcap_prior(model, pool)) }
    }

    pub fn vcap_pool_share(pool: &mut vcpu_pool, model: &vcpu_model) {
        // SAFETY: exclusive access to one live struct, shared access to another.
        unsafe { super::vcap_pool_share(pool, model) }
    }

    pub fn vcap_pool_wait(pool: &mut vcpu_pool, waited_ns: u64) {
        // SAFETY: exclusive access to a live struct.
        unsafe { super::vcap_pool_wait(pool, waited_ns) }
    }

    pub fn vcap_at_best(model: &vcpu_model, now_ns: u64) -> u32 {
        // SAFETY: as above; read only.
        unsafe { super::vcap_at_best(model, now_ns) }
    }

    pub fn vcap_at_worst(model: &vcpu_model, now_ns: u64) -> u32 {
        // SAFETY: as above; read only.
        unsafe { super::vcap_at_worst(model, now_ns) }
    }

    pub fn vcap_effective(model: &vcpu_model, now_ns: u64) -> u32 {
        // SAFETY: as above; read only.
        unsafe { super::vcap_effective(model, now_ns) }
    }

    pub fn place_cost_ns(view: &place_view, work_ns: u64) -> u64 {
        // SAFETY: as above; read only.
        unsafe { super::place_cost_ns(view, work_ns) }
    }

    pub fn rotates_away(view: &rotation_view) -> bool {
        // SAFETY: as above; read only.
        unsafe { super::rotates_away(view) }
    }

    pub fn pull_helps(view: &pull_view) -> bool {
        // SAFETY: as above; read only.
        unsafe { super::pull_helps(view) }
    }
}
