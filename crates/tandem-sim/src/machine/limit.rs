//! The vCPU limit of a guest's daemon, at simulated time. The daemon itself needs no CPU time here.

use super::Machine;
use crate::queue::Event;
use tandem_policy::limit::{Sums, VcpuLimit, Window};

/// The limit in one guest.
#[derive(Debug)]
pub struct Limiter {
    limit: VcpuLimit,
    /// Hardware thread of each vCPU; only the equality of numbers has a meaning.
    threads: Vec<usize>,
    /// vCPUs that are out of use.
    parked: Vec<usize>,
}

impl Machine {
    /// From now on a guest with the guest scheduler uses as many vCPUs as its host gives pCPUs. `threads`: hardware thread
    /// of each vCPU, as probed.
    pub fn limit_vcpus(&mut self, world: usize, threads: &[usize]) {
        let limiter = Limiter { limit: VcpuLimit::default(), threads: threads.to_vec(), parked: Vec::new() };
        self.worlds[world].limiter = Some(limiter);
        self.at(self.now, Event::VcpuLimit { world });
    }

    /// Number of vCPUs that the limit keeps out of use.
    pub fn limited(&self, world: usize) -> usize {
        self.worlds[world].limiter.as_ref().map_or(0, |limiter| limiter.parked.len())
    }

    /// A window is over.
    pub(super) fn vcpu_limit(&mut self, world: usize) {
        let Some(mut limiter) = self.worlds[world].limiter.take() else { return };
        let vcpus: Vec<usize> = (0..self.worlds[world].cpus.len()).collect();
        let threads = &limiter.threads;
        let first_of_stack = |cpu: usize, among: &[usize]| {
            let same = |other: &&usize| threads[**other] == threads[cpu];
            among.iter().filter(same).copied().fold(cpu, usize::min)
        };
        let next = limiter.limit.window_ends(&Window {
            now_ns: self.now,
            usable: &vcpus,
            sums: Some(self.sums(world)),
            probes: 0,
            first_of_stack: &first_of_stack,
        });
        if let Some(choice) = next.choice {
            // Those that are given back first: the last one in use cannot be parked.
            for take in [false, true] {
                let (from, unless) = match take {
                    false => (&limiter.parked, &choice.too_many),
                    true => (&choice.too_many, &limiter.parked),
                };
                for &cpu in from.iter().filter(|cpu| !unless.contains(cpu)) {
                    if self.policy(world, cpu, |policy| policy.park(cpu, cpu, take, true)) != Some(true) {
                        self.fail(format!(
                            "vCPU {cpu} cannot be {}",
                            if take { "parked" } else { "given back" }
                        ));
                    }
                }
            }
            limiter.parked = choice.too_many;
        }
        self.worlds[world].limiter = Some(limiter);
        self.at(self.now + next.window_ns, Event::VcpuLimit { world });
    }

    fn sums(&mut self, world: usize) -> Sums {
        let waited_ns = self.tasks.iter().filter(|task| task.world == world).map(|task| task.waited_ns).sum();
        let mut sums = Sums { waited_ns, ..Sums::default() };
        let cpus = self.worlds[world].cpus.len();
        if let Some(policy) = self.worlds[world].policy.as_mut() {
            for cpu in 0..cpus {
                let (wanted, stolen) = policy.wanted_and_stolen_ns(cpu);
                sums.ran_ns += wanted;
                sums.stolen_ns += stolen;
            }
        }
        sums
    }
}
