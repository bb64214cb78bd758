//! The papers' experiments as scenarios, with the papers' findings.

use crate::scenario::Scenario;
use crate::SimError;

/// An experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name.
    pub id: &'static str,
    /// Where it is from.
    pub source: &'static str,
    /// The scenario.
    pub scenario: &'static str,
    /// What the paper says.
    pub finding: &'static str,
    /// Competitors are irregular, where the paper's are periodic: [`Scenario::irregular`].
    pub irregular: bool,
    /// Number of threads in place of the scenario's: [`Scenario::with_threads`].
    pub threads: Option<u32>,
    /// pCPUs and vCPUs of each guest, and guests, in place of the scenario's: [`Scenario::overcommitted`].
    pub overcommit: Option<(usize, usize)>,
}

macro_rules! experiment {
    ($id:literal, $source:expr, $finding:literal) => {
        Experiment {
            id: $id,
            source: $source,
            scenario: include_str!(concat!("../scenarios/", $id, ".toml")),
            finding: $finding,
            irregular: false,
            threads: None,
            overcommit: None,
        }
    };
    ($id:literal with $vcpus:literal vcpus, $guests:literal guests, $threads:literal threads as $name:literal, $source:expr, $finding:literal) => {
        Experiment {
            id: $name,
            threads: Some($threads),
            overcommit: Some(($vcpus, $guests)),
            ..experiment!($id, $source, $finding)
        }
    };
    ($threads:literal threads of $id:literal as $name:literal, $source:expr, $finding:literal) => {
        Experiment { id: $name, threads: Some($threads), ..experiment!($id, $source, $finding) }
    };
    (irregular $id:literal, $source:literal) => {
        Experiment {
            id: concat!($id, "-irregular"),
            irregular: true,
            ..experiment!($id, $source, "not in the paper, where competition is periodic")
        }
    };
}

/// No paper measures beside other guests on a host that schedules fairly.
const NEIGHBOURS: &str = "ours: real neighbours";

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    experiment!(
        "fig2",
        "vSched, Fig. 2",
        "p95 grows up to 20 times from preemptions of 2 ms to preemptions of 16 ms"
    ),
    experiment!(
        "fig3",
        "vSched, Fig. 3",
        "a thread that stays is stalled half of the time; one that moves on gets twice as much"
    ),
    experiment!("fig4-straggler", "vSched, Fig. 4 left", "up to 43 % more without the straggler"),
    experiment!(
        "fig4-stacking",
        "vSched, Fig. 4 right, bars 1 to 6",
        "up to 30 % more on one vCPU of each pair"
    ),
    experiment!(
        "fig4-inversion",
        "vSched, Fig. 4 right, bars 7 to 12",
        "up to 6.7 times as much beside the best-effort tasks"
    ),
    experiment!("fig11a", "vSched, Fig. 11a", "32 % more than CFS with vSched's capacities"),
    experiment!("fig11b", "vSched, Fig. 11b", "4 % more than CFS, 74 % fewer migrations"),
    experiment!("fig12a", "vSched, Fig. 12a", "CFS uses 11 to 12 of 16 cores, vSched 15 to 16"),
    experiment!("fig12b-nginx", "vSched, Fig. 12b", "matrices up to 14 % more, nginx 5 % more"),
    experiment!("fig12b-fio", "vSched, Fig. 12b", "matrices up to 18 % more, fio unchanged"),
    experiment!("fig13", "vSched, Fig. 13", "throughput 26 % higher on average, up to 99 % fewer IPIs"),
    experiment!(
        "fig14",
        "vSched, Fig. 14 and Table 3",
        "p95 42 % lower on average with bvs; masstree's 33.4 and 10.3 ms, of which 32.7 and 9.9 of waiting"
    ),
    experiment!(
        "fig14-filler",
        "vSched, Fig. 14 and Table 3",
        "the same average; masstree's 21.3 and 12.0 ms, of which 20.7 and 11.5 of waiting"
    ),
    experiment!("fig15", "vSched, Fig. 15 and Table 4", "up to 82 % more with ivh"),
    experiment!(1 threads of "fig15" as "table4-1", "vSched, Table 4, 1 thread", "canneal 72 % more with ivh"),
    experiment!(4 threads of "fig15" as "table4-4", "vSched, Table 4, 4 threads", "canneal 32 % more"),
    experiment!(8 threads of "fig15" as "table4-8", "vSched, Table 4, 8 threads", "canneal 31 % more"),
    experiment!(16 threads of "fig15" as "table4-16", "vSched, Table 4, 16 threads", "canneal 44 % more"),
    experiment!(
        "fig16",
        "vSched, Fig. 16",
        "CFS drops to half under contention; vSched keeps more and recovers quickly"
    ),
    experiment!("fig17", "vSched, Fig. 17", "nginx 15 % more beside facesim and ferret, which lose 1.2 %"),
    experiment!("fig21", "vSched, Fig. 21", "0.7 % lost on average"),
    experiment!(
        "rcvm",
        "vSched, Figs. 18 and 20",
        "against CFS: latency 1.6 times lower, throughput 69 % higher; 5.5 and 50.5 % more cycles"
    ),
    experiment!("hpvm", "vSched, Fig. 19", "against CFS: latency 2.3 times lower, throughput 18 % higher"),
    experiment!("neighbours-8", NEIGHBOURS, "a fair host serves both guests"),
    experiment!("neighbours-8-free", NEIGHBOURS, "a fair host serves both guests and places their vCPUs"),
    experiment!("neighbours-8-cfs", NEIGHBOURS, "the same with CFS, where who has slept preempts"),
    experiment!("neighbours-8-bursty", NEIGHBOURS, "the neighbour takes a pCPU for 6 ms now and then"),
    experiment!("neighbours-16", NEIGHBOURS, "twice as many"),
    experiment!("neighbours-16-cfs", NEIGHBOURS, "twice as many, CFS"),
    experiment!("both-8", "ours: both halves", "neither is in the other's way"),
    experiment!(
        "anubis" with 4 vcpus, 2 guests, 1 threads as "anubis-2",
        "Anubis, Figs. 5 and 6, 2:1",
        "an interrupt waits for less than 1 ms for its vCPU instead of 3 to 4; 60 to 97 % of alone"
    ),
    experiment!("anubis" with 4 vcpus, 3 guests, 1 threads as "anubis-3", "Anubis, Fig. 6, 3:1", "1.4 to 6 times CFS's"),
    experiment!("anubis", "Anubis, Fig. 6, 4:1", "1.4 to 6 times CFS's"),
    experiment!("anubis" with 2 vcpus, 2 guests, 1 threads as "anubis-2-vcpus", "Anubis, Fig. 7, 2 vCPUs", "60 to 97 % of alone"),
    experiment!("anubis" with 8 vcpus, 2 guests, 1 threads as "anubis-8-vcpus", "Anubis, Fig. 7, 8 vCPUs", "60 to 97 % of alone"),
    experiment!("anubis" with 4 vcpus, 2 guests, 2 threads as "anubis-2-io", "ours: 2 threads do I/O", "between one and four"),
    experiment!(
        "anubis" with 4 vcpus, 2 guests, 4 threads as "anubis-4-io",
        "Anubis, Fig. 10, as many I/O vCPUs as there are",
        "the VMs beside it have 75 % of what they have under CFS"
    ),
    experiment!(irregular "fig11a", "vSched, Fig. 11a"),
    experiment!(irregular "fig14", "vSched, Fig. 14"),
    experiment!(irregular "fig14-filler", "vSched, Fig. 14"),
    experiment!(irregular "fig15", "vSched, Fig. 15"),
    experiment!(irregular "rcvm", "vSched, Figs. 18 and 20"),
    experiment!(irregular "hpvm", "vSched, Fig. 19"),
];

impl Experiment {
    /// Parses its scenario.
    ///
    /// # Errors
    /// Only if a scenario file of this crate is wrong.
    pub fn read(&self) -> Result<Scenario, SimError> {
        let scenario = Scenario::parse(self.scenario, self.id)?;
        let scenario = if self.irregular { scenario.irregular() } else { scenario };
        let scenario = match self.overcommit {
            Some((vcpus, guests)) => scenario.overcommitted(vcpus, guests),
            None => scenario,
        };
        Ok(match self.threads {
            Some(threads) => scenario.with_threads(self.id, threads),
            None => scenario,
        })
    }
}

/// An experiment by name.
pub fn find(id: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_scenarios_are_sound_and_can_be_staged() {
        for experiment in EXPERIMENTS {
            let scenario = experiment.read().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(scenario.name, experiment.id);
            assert!(
                !experiment.irregular || scenario.contention.iter().any(|competition| competition.irregular)
            );
            for (_, member) in scenario.members().into_iter().take(2) {
                for arm in &member.arms {
                    member
                        .with(arm)
                        .stage(1)
                        .map(|_| ())
                        .unwrap_or_else(|error| panic!("{}: {error}", experiment.id));
                }
            }
        }
    }
}
