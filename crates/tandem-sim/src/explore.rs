//! Searches for interleavings in which the scheduler loses a task, a quota, or the accounting of either.
//!
//! In each scenario a few actors do a few things on a few CPUs. First each actor starts once, and all run one after
//! the other without a switch. Then each run is repeated with one switch, for every switch point and every actor to
//! switch to. Then two or three switches are drawn at random. In the end every task must have run, and no task may
//! be left in any sum.

use crate::hardware::Hardware;
use crate::random::Stream;
pub use crate::scx::explore::Side;
use crate::scx::explore::{policy, run, Actor, Course, Part, Ran, Switch};
use crate::scx::{NewTask, Policy, Settings};
pub use scenarios::SCENARIOS;
use std::ffi::CStr;

mod scenarios;

/// Process of the VMM of VM 0: beyond the numbers of tasks.
const VMM: i32 = 1000;

/// A group. Its parent is the group before it if `nested`, else the root.
#[derive(Debug, Clone, Copy)]
struct Group {
    nested: bool,
    max_us: Option<(u64, u64)>,
}

/// A task: its group (0 is the root), its nice value, the CPU that it is pinned to, if any, and the VM whose vCPU it runs, if any.
#[derive(Debug, Clone, Copy)]
struct Member {
    group: usize,
    nice: i32,
    only: Option<usize>,
    vm: Option<u32>,
}

/// What several CPUs do concurrently.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Whose scheduler it concerns.
    pub sides: &'static [Side],
    cpus: usize,
    /// CPUs 0 and 1 share a hardware thread, and spare vCPUs of a stack are left without work (`--rwc`).
    stacked: bool,
    /// What all VMs do without, of the host scheduler (`enum vm_technique` in `bpf/host/intf.h`).
    left_out: u32,
    groups: &'static [Group],
    members: &'static [Member],
    prepare: fn(&Actor<'_>),
    parts: &'static [fn(&Actor<'_>)],
    /// Counters that move while the actors are at it, in some run: what the scenario is about takes place.
    moves: &'static [&'static CStr],
    check: fn(&mut Policy) -> Result<(), String>,
}

/// The result of exploring a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explored {
    /// Number of runs.
    pub runs: u64,
    /// For each of the scenario's counters: did it move?
    pub moved: Vec<bool>,
    /// The course (interleaving) that failed, and how; none: no failure was found.
    pub failure: Option<(Course, String)>,
}

impl Scenario {
    fn set_up(&self, side: Side) -> Result<Policy, String> {
        let layout = Hardware { cores: self.cpus, ..Hardware::default() };
        let mut settings = Settings { steal_page: true, slice_timers: true, ..Settings::of(layout) };
        if self.stacked {
            settings.threads[1] = settings.threads[0];
            settings.cores[1] = settings.cores[0];
            settings.techniques.rwc = true;
        }
        if side == Side::Host {
            settings.techniques.left_out = self.left_out;
        }
        let mut policy = policy(side, &settings)?;
        policy.add_group(None, 100, false, None)?;
        for (number, group) in self.groups.iter().enumerate() {
            let parent = if group.nested { number } else { 0 };
            policy.add_group(Some(parent), 100, false, group.max_us)?;
        }
        for (vcpu, member) in self.members.iter().enumerate() {
            let allowed: Vec<bool> =
                (0..self.cpus).map(|cpu| member.only.is_none_or(|only| only == cpu)).collect();
            let task = policy.add_task(&NewTask {
                name: "task",
                cpu: member.only.unwrap_or(0),
                allowed: &allowed,
                policy: 0,
                nice: member.nice,
                slice_ns: 0,
                group: member.group,
            })?;
            if let Some(vm) = member.vm {
                policy.joins_process(task, VMM + vm as i32);
                policy.runs_vcpu(task, vm, vcpu as u32)?;
            }
        }
        Ok(policy)
    }

    /// One run of a side's scheduler with a course.
    ///
    /// # Errors
    /// The policy cannot be loaded.
    pub fn run(&self, side: Side, course: &Course) -> Result<Ran, String> {
        let mut policy = self.set_up(side)?;
        let parts: Vec<Part<'_>> = self
            .parts
            .iter()
            .map(|part| -> Part<'_> { Box::new(move |actor: &Actor<'_>| part(actor)) })
            .collect();
        let (cpus, groups) = (self.cpus, self.groups.len());
        Ok(run(&mut policy, self.prepare, parts, course, self.moves, |actor| {
            actor.with(|policy| {
                for cpu in 0..cpus {
                    let left = policy.left(cpu);
                    if !left.is_empty() {
                        return Err(format!(
                            "tasks that sleep are left in sums of CPU {cpu}: {}",
                            left.join(", ")
                        ));
                    }
                }
                if let Some(group) = (0..=groups).find(|group| policy.left_of_group(*group)) {
                    return Err(format!("tasks that sleep are left in the record of group {group}"));
                }
                (self.check)(policy)
            })
        }))
    }

    /// Runs with each actor first: without a switch, then with every single switch. Then `most` runs with two or
    /// three random switches.
    ///
    /// # Errors
    /// The policy cannot be loaded.
    pub fn explore(&self, side: Side, most: u64, seed: u64) -> Result<Explored, String> {
        let actors = self.parts.len();
        let mut explored = Explored { runs: 0, moved: vec![false; self.moves.len()], failure: None };
        let mut points = Vec::new();
        for first in 0..actors {
            let course = Course { first, switches: Vec::new() };
            points.push(self.attempt(side, course, &mut explored)?);
        }
        for (first, points) in points.iter().enumerate() {
            for point in 1..=*points {
                for to in 0..actors {
                    let switches = vec![Switch { point, to }];
                    self.attempt(side, Course { first, switches }, &mut explored)?;
                }
            }
        }
        let mut random = Stream::new(seed, self.name, 0);
        for _ in 0..most {
            let first = random.below(actors as u64) as usize;
            let mut at: Vec<u64> =
                (0..2 + random.below(2)).map(|_| 1 + random.below(points[first])).collect();
            at.sort_unstable();
            at.dedup();
            let switch = |point| Switch { point, to: random.below(actors as u64) as usize };
            let switches = at.into_iter().map(switch).collect();
            self.attempt(side, Course { first, switches }, &mut explored)?;
        }
        Ok(explored)
    }

    /// One more run, unless a failure was already found. Returns the number of switch points that it passed.
    fn attempt(&self, side: Side, course: Course, explored: &mut Explored) -> Result<u64, String> {
        if explored.failure.is_some() {
            return Ok(1);
        }
        let ran = self.run(side, &course)?;
        explored.runs += 1;
        for (moved, also) in explored.moved.iter_mut().zip(&ran.moved) {
            *moved |= also;
        }
        explored.failure = ran.failure.map(|what| (course, format!("{what} [{}]", ran.places.join("; "))));
        Ok(ran.points.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_interleaving_loses_anything() {
        let all: Vec<_> =
            SCENARIOS.iter().flat_map(|one| one.sides.iter().map(move |side| (*side, one))).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((side, scenario)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                let explored = scenario.explore(*side, 50, 1).unwrap();
                let name = format!("{}: {}", side.name(), scenario.name);
                assert_eq!(explored.failure, None, "{name}");
                let moved = explored.moved.iter().all(|moved| *moved);
                assert!(moved, "{name}: {:?} of {:?}", explored.moved, scenario.moves);
                assert!(explored.runs > 50, "{name}: {} runs", explored.runs);
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    }

    /// Control: the switches of a course take place, and change the run.
    #[test]
    fn courses_are_followed() {
        let scenario = &SCENARIOS[0];
        let straight = scenario.run(Side::Guest, &Course::default()).unwrap();
        let course = |point| Course { first: 0, switches: vec![Switch { point, to: 1 }] };
        let points: Vec<u64> = (1..straight.points)
            .map(|point| scenario.run(Side::Guest, &course(point)).unwrap().points)
            .collect();
        assert!(points.iter().any(|points| *points != straight.points), "all runs were alike");
        let middle = course(straight.points / 2);
        assert_eq!(scenario.run(Side::Guest, &middle).unwrap(), scenario.run(Side::Guest, &middle).unwrap());
    }
}
