//! The figures of an interval for people.

use crate::figures::{OfVcpus, Part, Report, VmReport};
use crate::times::Times;
use std::fmt::Write;

/// Longest name in the table.
const NAME_WIDTH: usize = 24;
/// Takers that are named.
const TAKERS: usize = 2;
/// Classes of exits that are named.
const CLASSES: usize = 3;

/// One line per VM, and with `vcpus` one per vCPU below it.
pub fn render(report: &Report, vcpus: bool) -> String {
    let mut text = format!(
        "{:<NAME_WIDTH$} {:>5} {:>7} {:>7} {:>7} {:>7}  {:>24}  {:>8}  {}\n",
        "VM",
        "vCPUs",
        "run %",
        "ready %",
        "steal %",
        "VMM %",
        "irq to run ms avg/p50/p99",
        "exits/s",
        "who ran instead"
    );
    for vm in &report.vms {
        vm_line(&mut text, vm);
        for part in vm.parts.iter().filter(|_| vcpus) {
            part_line(&mut text, part);
        }
    }
    if report.vms.is_empty() {
        text.push_str("no virtual machine runs\n");
    }
    if !report.not_observed.is_empty() {
        let _ = writeln!(text, "not observed on this kernel: {}", report.not_observed.join("; "));
    }
    if let Some(pct) = report.bpf_pct {
        let _ = writeln!(text, "watching took {pct:.2} % of a pCPU");
    }
    if report.no_room > 0 {
        let _ = writeln!(
            text,
            "{} threads or pairs of VMs found no room: the figures are not complete",
            report.no_room
        );
    }
    text
}

/// Mean, median and 99th percentile, ms.
fn latency(times: &Times) -> String {
    let ms = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.2}", ns / 1e6));
    format!("{} / {} / {}", ms(times.mean_ns()), ms(times.quantile_ns(0.5)), ms(times.quantile_ns(0.99)))
}

fn all_exits(of: &OfVcpus) -> f64 {
    of.exits_per_s.values().sum()
}

fn vm_line(text: &mut String, vm: &VmReport) {
    let name: String = vm.label.name.chars().take(NAME_WIDTH).collect();
    let takers: Vec<String> =
        vm.taken_by_pct.iter().take(TAKERS).map(|(name, pct)| format!("{name} {pct:.1} %")).collect();
    let all = all_exits(&vm.of_vcpus);
    let _ = writeln!(
        text,
        "{name:<NAME_WIDTH$} {:>5} {:>7.1} {:>7.1} {:>7.1} {:>7.1}  {:>25}  {all:>8.0}  {}",
        vm.vcpus,
        vm.run_pct,
        vm.ready_pct,
        vm.of_vcpus.steal_pct,
        vm.vmm_run_pct,
        latency(&vm.of_vcpus.interrupt_to_run),
        if takers.is_empty() { "-".to_owned() } else { takers.join(", ") }
    );
    if all > 0.0 {
        let mut exits: Vec<_> = vm.of_vcpus.exits_per_s.iter().collect();
        exits.sort_by(|a, b| b.1.total_cmp(a.1));
        let classes: Vec<String> =
            exits.iter().take(CLASSES).map(|(name, rate)| format!("{name} {rate:.0}")).collect();
        let _ = writeln!(text, "{:<NAME_WIDTH$} exits/s: {}", "", classes.join(", "));
    }
}

/// A vCPU in the columns of its VM, or the VMM's other threads.
fn part_line(text: &mut String, part: &Part) {
    let name = part.vcpu.map_or_else(|| "  other threads".to_owned(), |index| format!("  vCPU {index}"));
    let of = part.of_vcpu.as_ref();
    let figure = |figure: Option<f64>, digits| figure.map_or_else(String::new, |it| format!("{it:.digits$}"));
    let halts = of.map_or_else(String::new, |of| format!(", halted {:.0}/s", of.halts_per_s[0]));
    let _ = writeln!(
        text,
        "{name:<NAME_WIDTH$} {:>5} {:>7.1} {:>7.1} {:>7} {:>7}  {:>25}  {:>8}  preempted {:.0}/s, woken {:.0}/s{halts}",
        "",
        part.run_pct,
        part.ready_pct,
        figure(of.map(|of| of.steal_pct), 1),
        "",
        of.map_or_else(String::new, |of| latency(&of.interrupt_to_run)),
        figure(of.map(all_exits), 0),
        part.preemptions_per_s,
        part.wakeups_per_s
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::{label, two_vms};
    use crate::figures::{between, Snapshot};

    #[test]
    fn each_vm_has_a_line_with_who_ran_instead() {
        let (earlier, later) = two_vms();
        let report = between(&earlier, &later, label);
        let text = render(&report, false);
        let line = text.lines().find(|line| line.starts_with("vm10")).unwrap();
        assert!(
            line.contains("150.0") && line.contains("25.0") && line.contains("vm20 40.0 %, host 10.0 %"),
            "{line}"
        );
        assert!(!text.contains("vCPU 1"));
        let text = render(&report, true);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("  vCPU 1").contains("50.0") && line("  vCPU 1").ends_with("halted 0/s"), "{text}");
        assert!(line("  other threads").ends_with("woken 0/s"), "{text}");
    }

    #[test]
    fn nothing_to_show_is_said() {
        let mut report = between(&Snapshot::default(), &Snapshot::default(), label);
        report.not_observed = vec!["exits by reason"];
        report.no_room = 3;
        let text = render(&report, false);
        assert!(text.contains("no virtual machine runs") && text.contains("exits by reason"), "{text}");
        assert!(text.contains("3 threads"), "{text}");
    }
}
