//! Statistics: what the scheduler did, for people (`--stats`) and programs (scx_stats).

use crate::metrics::{self, Totals};
use scx_stats::prelude::{Meta, StatsMeta};
use scx_stats_derive::Stats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use tandem_daemon::exporter;
use tandem_daemon::report::{format_counters, Counters, Report};

/// One virtual machine. What is observed is that of the last two seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "virtual machine", _om_prefix = "vm_", _om_label = "vm")]
pub struct VmStats {
    /// Process of its VMM.
    #[stat(desc = "process of its VMM")]
    pub pid: u64,
    /// vCPUs that the scheduler knows.
    #[stat(desc = "threads that run a vCPU")]
    pub vcpus: u64,
    /// `cpu.weight` of its cgroup.
    #[stat(desc = "cpu.weight of its cgroup")]
    pub weight: f64,
    /// What its weights entitle it to if all VMs want all they can get, percent of one pCPU.
    #[stat(desc = "CPU time that its weights entitle it to beside the other VMs (% of one pCPU)")]
    pub entitled_pct: f64,
    /// 1: the following was observed; 0: it is not known.
    #[stat(desc = "1 if the following was observed, 0 if it is not known")]
    pub observed: u64,
    /// CPU time of its vCPUs, percent of one pCPU.
    #[stat(desc = "CPU time of its vCPUs (% of one pCPU)")]
    pub run_pct: f64,
    /// CPU time of its other threads, percent of one pCPU.
    #[stat(desc = "CPU time of its other threads (% of one pCPU)")]
    pub vmm_run_pct: f64,
    /// CPU ready, percent of the interval, mean over its vCPUs.
    #[stat(desc = "time that a vCPU was runnable and waited for a pCPU (%, mean over vCPUs)")]
    pub ready_pct: f64,
    /// Steal as the guest reads it, percent, mean over its vCPUs.
    #[stat(desc = "steal as the guest reads it (%, mean over vCPUs)")]
    pub steal_pct: f64,
    /// From an interrupt that found its vCPU not running to running: mean, microseconds; 0: there was none.
    #[stat(desc = "from an interrupt for a vCPU that does not run to running, mean (us); 0: none came")]
    pub irq_to_run_mean_us: f64,
    /// 99th percentile of that, microseconds.
    #[stat(desc = "99th percentile of that (us)")]
    pub irq_to_run_p99_us: f64,
    /// What it owes for its boosts, milliseconds; negative: what it is owed.
    #[stat(desc = "CPU time that it owes for its boosts (ms); negative: that it is owed")]
    pub debt_ms: f64,
    /// All that was lent to it since it began, milliseconds.
    #[stat(desc = "CPU time that was lent to it since it began (ms)")]
    pub borrowed_ms: f64,
    /// All that it has paid since it began, milliseconds.
    #[stat(desc = "CPU time that it has paid back since it began (ms)")]
    pub repaid_ms: f64,
    /// What was set for it, as `tandem host set` takes it.
    #[stat(desc = "what was set for it")]
    pub settings: String,
}

/// What the observer does. It is attached while somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObserverState {
    /// It is not there: not wanted, or the kernel lacks what it needs.
    None,
    /// It begins with this request: its first interval has not ended.
    Begins,
    /// What is told of VMs is that of its last interval.
    Tells,
}

/// State at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "runnable tasks, groups and VMs", _om_prefix = "now_")]
pub struct Moment {
    /// 1: the scheduler is loaded.
    #[stat(desc = "1 while the scheduler is loaded")]
    pub loaded: u64,
    /// What the observer does, see [`ObserverState`].
    #[stat(
        desc = "0: VMs are not observed; 1: the observer begins; 2: it tells what VMs got in the last two seconds"
    )]
    pub observer: u64,
    /// Runnable tasks.
    #[stat(desc = "tasks that wait or run")]
    pub tasks: u64,
    /// Their weight.
    #[stat(desc = "effective weight of these tasks, 1 is nice 0 outside of all groups")]
    pub weight: f64,
    /// Virtual machines.
    #[stat(desc = "virtual machines with vCPUs that have run")]
    pub vms: u64,
    /// Their vCPUs.
    #[stat(desc = "threads that run a vCPU")]
    pub vcpus: u64,
    /// Groups.
    #[stat(desc = "cgroups with a record of their own")]
    pub groups: u64,
    /// Groups without a record.
    #[stat(desc = "cgroups that share their parent's record because there are too many")]
    pub groups_shared: u64,
    /// Groups with a quota.
    #[stat(desc = "cgroups with a quota")]
    pub limits: u64,
    /// What VMs owe for their boosts.
    #[stat(desc = "CPU time that VMs owe for their boosts (s)")]
    pub debts_s: f64,
    /// What tasks of no VM owe, and VMs that have ended; negative: what they are owed.
    #[stat(desc = "the same of tasks of no VM and of VMs that have ended (s); negative: that they are owed")]
    pub others_debt_s: f64,
    /// CPU-bound tasks.
    #[stat(desc = "tasks that load balance counts as CPU-bound")]
    pub cpu_bound_tasks: u64,
    /// Their weight.
    #[stat(desc = "effective weight of those")]
    pub cpu_bound_weight: f64,
}

include!(concat!(env!("OUT_DIR"), "/counters.rs"));

impl HostStats {
    /// Totals since the scheduler was loaded.
    pub(crate) fn totals(
        counters: [u64; COUNTERS.len()],
        now: Moment,
        vms: BTreeMap<String, VmStats>,
    ) -> Self {
        Self::new(counters, now, vms)
    }
}

/// What the daemon reports: the statistics, and for its metrics what the observer saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostReport {
    /// The statistics.
    pub stats: HostStats,
    /// Totals of the observer.
    #[serde(skip)]
    pub observed: Arc<Totals>,
}

impl Meta for HostReport {
    fn meta() -> StatsMeta {
        HostStats::meta()
    }
}

impl Report for HostReport {
    const SIDE: &'static str = "host";
    const COUNTERS: &'static Counters = &COUNTERS;

    fn parts() -> Vec<StatsMeta> {
        vec![VmStats::meta(), Moment::meta()]
    }

    /// VMs are as they are now.
    fn since(&self, earlier: &Self) -> Self {
        let (counters, before) = (self.stats.counters(), earlier.stats.counters());
        self.with(std::array::from_fn(|id| counters[id].saturating_sub(before[id])))
    }

    fn after(&self, earlier: &Self) -> Self {
        let (counters, before) = (self.stats.counters(), earlier.stats.counters());
        self.with(std::array::from_fn(|id| counters[id] + before[id]))
    }

    fn unloaded(self) -> Self {
        let stats = HostStats { now: Moment::default(), vms: BTreeMap::new(), ..self.stats };
        Self { stats, observed: self.observed }
    }

    fn format(&self, out: &mut dyn Write) -> std::io::Result<()> {
        format_counters(&COUNTERS, &self.stats.counters(), out)?;
        let now = &self.stats.now;
        if now.loaded == 0 {
            writeln!(out, "  not loaded")?;
        }
        writeln!(
            out,
            "  now: tasks {} weight {:.3} VMs {} vCPUs {} groups {} (shared {}) limits {} CPU-bound {} weight {:.3} debts {:.3} s",
            now.tasks,
            now.weight,
            now.vms,
            now.vcpus,
            now.groups,
            now.groups_shared,
            now.limits,
            now.cpu_bound_tasks,
            now.cpu_bound_weight,
            now.debts_s
        )?;
        write!(out, "{}", vms_table(&self.stats.vms))
    }
}

impl HostReport {
    fn with(&self, counters: [u64; COUNTERS.len()]) -> Self {
        let stats = HostStats::new(counters, self.stats.now.clone(), self.stats.vms.clone());
        Self { stats, observed: Arc::clone(&self.observed) }
    }

    /// OpenMetrics text: the scheduler's counters, what there is now, and what the observer saw.
    pub fn render(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        exporter::counters::<Self>(&mut text, &self.stats.counters());
        let now = &self.stats.now;
        for (name, help, value) in [
            ("loaded", "1 while the scheduler is loaded", now.loaded as f64),
            ("tasks", "Tasks that wait or run", now.tasks as f64),
            ("task_weight", "Their effective weight; 1 is nice 0 outside of all groups", now.weight),
            (
                "cpu_bound_tasks",
                "Tasks that load balance counts as CPU-bound: they run long between two sleeps",
                now.cpu_bound_tasks as f64,
            ),
            ("cpu_bound_weight", "Effective weight of those", now.cpu_bound_weight),
            ("vms", "Virtual machines with vCPUs that have run", now.vms as f64),
            ("vcpus", "Threads that run a vCPU", now.vcpus as f64),
            ("cgroups", "Cgroups with a record of their own", now.groups as f64),
            ("cgroups_shared", "Cgroups that share their parent's record", now.groups_shared as f64),
            ("cgroups_limited", "Cgroups with a quota", now.limits as f64),
            ("debt_seconds", "CPU time that VMs owe for their boosts", now.debts_s),
            (
                "others_debt_seconds",
                "CPU time that VMs owed that have ended, and that is forgotten; negative: that they were owed",
                now.others_debt_s,
            ),
        ] {
            let name = format!("tandem_host_{name}");
            exporter::head(&mut text, &name, "gauge", "", help);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name} {value}");
        }
        metrics::of_debts(&self.stats.vms, &mut text);
        metrics::of_vms(&self.observed, &mut text);
        text.push_str("# EOF\n");
        text
    }
}

/// Names up to this length leave the columns where they are.
const NAME_WIDTH: usize = 24;

/// The VMs for people.
pub fn vms_table(vms: &BTreeMap<String, VmStats>) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "  {:<NAME_WIDTH$} {:>7} {:>5} {:>7} {:>10} {:>7} {:>7} {:>7}  {:>21} {:>8}  {}\n",
        "VM",
        "PID",
        "vCPUs",
        "weight",
        "entitled %",
        "run %",
        "ready %",
        "steal %",
        "irq to run ms avg/p99",
        "debt ms",
        "settings"
    );
    if vms.is_empty() {
        return "  no virtual machine has run\n".into();
    }
    for (name, vm) in vms {
        let pct = |pct: f64| if vm.observed > 0 { format!("{pct:.1}") } else { "-".into() };
        let ms = |us: f64| if us > 0.0 { format!("{:.2}", us / 1e3) } else { "-".into() };
        let latency = format!("{} / {}", ms(vm.irq_to_run_mean_us), ms(vm.irq_to_run_p99_us));
        let line = format!(
            "  {name:<NAME_WIDTH$} {:>7} {:>5} {:>7} {:>10.1} {:>7} {:>7} {:>7}  {latency:>21} {:>8.1}  {}",
            vm.pid,
            vm.vcpus,
            vm.weight,
            vm.entitled_pct,
            pct(vm.run_pct),
            pct(vm.ready_pct),
            pct(vm.steal_pct),
            vm.debt_ms,
            vm.settings
        );
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_bpf::host::intf;
    use tandem_daemon::report::in_words;

    /// The list of the BPF side is parsed line by line; a line that cannot be parsed would shift all that follow.
    #[test]
    fn every_counter_has_its_name() {
        assert_eq!(COUNTERS.len(), intf::counter_NR_COUNTERS as usize);
        assert_eq!(COUNTERS[intf::counter_CNT_THROTTLED as usize].0, "throttled");
        assert_eq!(COUNTERS[intf::counter_CNT_BROKEN as usize].0, "broken");
    }

    #[test]
    fn the_guide_explains_every_counter() {
        let guide = include_str!("../../../docs/HOST.md");
        for (name, text) in COUNTERS {
            let row = format!("| {} | {text} |", in_words(name));
            assert!(guide.contains(&row), "docs/HOST.md lacks {row:?}");
        }
    }

    fn report() -> HostReport {
        let mut stats = HostStats { direct: 9, yields: 2, ..HostStats::default() };
        let vm =
            VmStats { pid: 7, vcpus: 2, weight: 100.0, observed: 1, run_pct: 150.0, ..VmStats::default() };
        stats.vms.insert("web".into(), vm);
        HostReport { stats, ..HostReport::default() }
    }

    #[test]
    fn counters_are_reported_as_differences_and_vms_as_they_are() {
        let mut earlier = report();
        earlier.stats.direct = 5;
        let since = report().since(&earlier);
        assert_eq!((since.stats.direct, since.stats.yields, since.stats.vms.len()), (4, 0, 1));
        assert_eq!(report().after(&earlier).stats.direct, 14);
        assert!(report().unloaded().stats.vms.is_empty());
    }

    #[test]
    fn what_is_sent_is_what_the_schema_says() {
        let value = serde_json::to_value(report()).unwrap();
        assert_eq!(value["vms"]["web"]["run_pct"], 150.0);
        let back: HostReport = serde_json::from_value(value).unwrap();
        assert_eq!(back.stats.vms["web"].pid, 7);
    }

    #[test]
    fn metrics_are_one_well_formed_text() {
        let text = report().render();
        assert!(text.contains("\ntandem_host_direct_total 9\n"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1);
        assert_eq!(exporter::declared_twice(&text), None, "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.rsplit(' ').next().unwrap_or("").parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn people_see_a_line_per_vm() {
        let text = vms_table(&report().stats.vms);
        assert!(text.lines().any(|line| line.contains("web") && line.contains("150.0")), "{text}");
        assert!(vms_table(&BTreeMap::new()).contains("no virtual machine"));
    }
}
