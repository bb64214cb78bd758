//! The totals for Prometheus, as OpenMetrics text. Names and labels end as those of the exporters of libvirt do
//! (`..._domain_vcpu_delay_seconds_total{domain,vcpu}`), so that panels need another prefix only.

use crate::figures::{Role, Snapshot, Taker, Thread, EXITS};
use crate::stats::VmStats;
use crate::vms::{Labels, TAKEN_BY_HOST, TAKEN_BY_UNKNOWN};
use std::collections::BTreeMap;
use std::fmt::Write;
use tandem_daemon::exporter::head;

/// Totals and names.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// The totals.
    pub snapshot: Snapshot,
    /// What people call each VM.
    pub labels: Labels,
}

/// Of a vCPU: name, unit, description, value.
type Figure = (&'static str, &'static str, &'static str, fn(&Thread) -> f64);

/// Of a VM: name, kind, description, value in milliseconds.
type DebtFigure = (&'static str, &'static str, &'static str, fn(&VmStats) -> f64);

const SECONDS: &str = "seconds";
const NS_PER_S: f64 = 1e9;
const OF_VCPUS: [Figure; 8] = [
    ("time", SECONDS, "CPU time of the vCPU's thread", |t| t.run_ns as f64 / NS_PER_S),
    ("delay", SECONDS, "Time for which the vCPU was runnable and waited for a pCPU", |t| {
        t.ready_ns as f64 / NS_PER_S
    }),
    ("steal", SECONDS, "Steal time as the guest reads it", |t| t.steal_ns as f64 / NS_PER_S),
    ("preemptions", "", "How often the vCPU lost its pCPU although it had work", |t| t.preemptions as f64),
    ("wakeups", "", "How often the vCPU became runnable", |t| t.wakeups as f64),
    ("interrupts", "", "Interrupts accepted for the vCPU", |t| t.interrupts as f64),
    ("interrupts_waiting", "", "Interrupts that found the vCPU not running", |t| t.interrupts_off as f64),
    (
        "passed_over",
        "",
        "Interrupts of devices that found the vCPU waiting for a pCPU on which another task began to run before it",
        |t| t.passed_over as f64,
    ),
];

/// OpenMetrics text.
pub fn render(totals: &Totals) -> String {
    let mut text = String::new();
    of_vms(totals, &mut text);
    text.push_str("# EOF\n");
    text
}

/// A histogram of each vCPU.
fn histogram(
    text: &mut String,
    name: &str,
    help: &str,
    vcpus: &[(String, &Thread)],
    of: fn(&Thread) -> &crate::times::Times,
) {
    head(text, name, "histogram", SECONDS, help);
    for (labels, thread) in vcpus {
        let times = of(thread);
        let mut below = 0;
        for (bucket, count) in times.buckets.iter().enumerate() {
            below += count;
            let bound_s = (1_u64 << bucket) as f64 / 1e6;
            let bound = if bucket + 1 == times.buckets.len() { "+Inf".into() } else { bound_s.to_string() };
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(text, "{name}_sum{{{labels}}} {}", times.sum_ns as f64 / NS_PER_S);
        let _ = writeln!(text, "{name}_count{{{labels}}} {below}");
    }
}

/// The families that tell of VMs.
pub(crate) fn of_vms(totals: &Totals, text: &mut String) {
    let vcpus = vcpus(totals);
    for (name, unit, help, value) in OF_VCPUS {
        let name = if unit.is_empty() {
            format!("tandem_domain_vcpu_{name}")
        } else {
            format!("tandem_domain_vcpu_{name}_{unit}")
        };
        head(text, &name, "counter", unit, help);
        for (labels, thread) in &vcpus {
            let _ = writeln!(text, "{name}_total{{{labels}}} {}", value(thread));
        }
    }
    let name = "tandem_domain_vcpu_exits";
    head(text, name, "counter", "", "Exits of the vCPU by class of reason");
    for (labels, thread) in &vcpus {
        for (class, count) in EXITS.iter().zip(thread.exits).filter(|(_, count)| *count > 0) {
            let _ = writeln!(text, "{name}_total{{{labels},reason=\"{class}\"}} {count}");
        }
    }
    histogram(
        text,
        "tandem_domain_vcpu_interrupt_to_run_seconds",
        "Time from an interrupt that found the vCPU not running to running",
        &vcpus,
        |thread| &thread.to_run,
    );
    histogram(
        text,
        "tandem_domain_vcpu_device_interrupt_to_run_seconds",
        "Time from an interrupt of a device that found the vCPU waiting for a pCPU to running",
        &vcpus,
        |thread| &thread.device_to_run,
    );
    let name = "tandem_domain_taken_seconds";
    head(text, name, "counter", SECONDS, "Time for which vCPUs of a domain waited while another one ran");
    for ((vm, taker), ns) in &totals.snapshot.taken_ns {
        let by = match taker {
            Taker::Vm(pid) => domain(totals, *pid),
            Taker::Other => TAKEN_BY_HOST.into(),
            Taker::Unknown => TAKEN_BY_UNKNOWN.into(),
        };
        let _ = writeln!(
            text,
            "{name}_total{{domain=\"{}\",by=\"{by}\"}} {}",
            domain(totals, *vm),
            *ns as f64 / NS_PER_S
        );
    }
}

/// What VMs owe for their boosts.
pub(crate) fn of_debts(vms: &BTreeMap<String, VmStats>, text: &mut String) {
    let figures: [DebtFigure; 3] = [
        ("debt", "gauge", "CPU time that the domain owes for its boosts; negative: that it is owed", |vm| {
            vm.debt_ms
        }),
        ("borrowed", "counter", "CPU time beyond its share that was lent to the domain", |vm| vm.borrowed_ms),
        ("repaid", "counter", "CPU time that the domain has paid back", |vm| vm.repaid_ms),
    ];
    for (name, kind, help, value) in figures {
        let name = format!("tandem_domain_{name}_{SECONDS}");
        head(text, &name, kind, SECONDS, help);
        let suffix = if kind == "counter" { "_total" } else { "" };
        for (domain, vm) in vms {
            let _ = writeln!(text, "{name}{suffix}{{domain=\"{}\"}} {}", escaped(domain), value(vm) / 1e3);
        }
    }
}

/// All vCPUs with their labels, each labels once: two VMs in one process are one domain, whose vCPUs of the same number are told apart by their
/// threads.
fn vcpus(totals: &Totals) -> Vec<(String, &Thread)> {
    let vcpus = || totals.snapshot.threads.iter().filter(|(_, thread)| thread.role == Role::Vcpu);
    let mut count = BTreeMap::new();
    for (_, thread) in vcpus() {
        *count.entry((thread.vm, thread.index)).or_insert(0) += 1;
    }
    vcpus()
        .map(|(tid, thread)| {
            let alone = count.get(&(thread.vm, thread.index)) == Some(&1);
            let vcpu = if alone { thread.index.to_string() } else { format!("{}/{tid}", thread.index) };
            (format!("domain=\"{}\",vcpu=\"{vcpu}\"", domain(totals, thread.vm)), thread)
        })
        .collect()
}

/// As a label's value.
fn domain(totals: &Totals, pid: u32) -> String {
    escaped(&totals.labels.of(pid).name)
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::{label, two_vms};
    use crate::vms::Label;
    use std::collections::BTreeSet;

    #[test]
    fn no_series_comes_twice() {
        let (_, mut snapshot) = two_vms();
        // Another VM of the same process.
        let twin = snapshot.threads[&12].clone();
        snapshot.threads.insert(19, twin);
        let text = render(&Totals { snapshot, labels: Labels::from([(10, label(10)), (20, label(20))]) });
        let series =
            || text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        let names: BTreeSet<&str> = series().map(|(name, _)| name).collect();
        assert_eq!(names.len(), series().count(), "{text}");
        assert!(text.contains("vcpu=\"0/19\""), "{text}");
    }

    #[test]
    fn vcpus_and_takers_are_rendered_under_their_names() {
        let (_, mut snapshot) = two_vms();
        if let Some(thread) = snapshot.threads.get_mut(&11) {
            thread.to_run.buckets[3] = 2;
            thread.to_run.sum_ns = 10_000;
        }
        let other = Label { name: "a \"b\"".into(), cgroup: String::new() };
        let labels = Labels::from([(10, label(10)), (20, other)]);
        let text = render(&Totals { snapshot, labels });
        for line in [
            "# TYPE tandem_domain_vcpu_delay_seconds counter",
            "tandem_domain_vcpu_delay_seconds_total{domain=\"vm10\",vcpu=\"1\"} 2",
            "tandem_domain_vcpu_interrupt_to_run_seconds_bucket{domain=\"vm10\",vcpu=\"1\",le=\"0.000008\"} 2",
            "tandem_domain_vcpu_interrupt_to_run_seconds_bucket{domain=\"vm10\",vcpu=\"1\",le=\"+Inf\"} 2",
            "tandem_domain_taken_seconds_total{domain=\"vm10\",by=\"a \\\"b\\\"\"} 1.8",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let value = line.rsplit(' ').next().unwrap_or("");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
