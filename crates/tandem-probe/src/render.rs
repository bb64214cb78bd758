//! Reports for people: a table, and a heat map for the terminal or as SVG.

use crate::kernel::format_list;
use crate::report::{Report, VcpuReport};
use crate::vtop::topology::{Shares, Topology};
use std::collections::HashMap;
use std::fmt::Write;

/// Maximum number of CPUs that fit side by side into a terminal.
const WIDEST: usize = 64;

/// For each tier: letter, colour of a 256-colour terminal, colour of a page.
const LOOKS: [(Shares, char, u8, &str); 5] = [
    (Shares::Thread, 'T', 196, "#c0392b"),
    (Shares::Core, 'c', 208, "#e67e22"),
    (Shares::Cache, '+', 220, "#f4d03f"),
    (Shares::Socket, '-', 110, "#85c1e9"),
    (Shares::Machine, '.', 60, "#5d6d9e"),
];

fn look(shares: Option<Shares>) -> (char, u8, &'static str) {
    shares
        .and_then(|s| LOOKS.iter().find(|(other, ..)| *other == s))
        .map_or(('?', 238, "#bdc3c7"), |(_, letter, terminal, page)| (*letter, *terminal, page))
}

fn legend(shares: Shares) -> &'static str {
    match shares {
        Shares::Thread => "one hardware thread",
        Shares::Core => "a core",
        Shares::Cache => "a cache",
        Shares::Socket => "a socket",
        Shares::Machine => "the machine",
    }
}

/// The report as text. `colour`: for a terminal with 256 colours.
pub fn text(report: &Report, colour: bool) -> String {
    let mut out = String::new();
    if !report.vcpus.is_empty() {
        table(&mut out, &report.vcpus);
    }
    if let Some(topology) = &report.topology {
        tiers(&mut out, topology, report.topology_ms);
        if topology.cpus.len() <= WIDEST {
            heat(&mut out, topology, colour);
        }
    }
    for finding in &report.findings {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "* {finding}");
    }
    out
}

fn table(out: &mut String, vcpus: &[VcpuReport]) {
    let _ = writeln!(out, "vCPU   share   speed  capacity  preemptions    mean     p95  between");
    let percent = |value: Option<f64>| value.map_or("?".into(), |v| format!("{:.0} %", v * 100.0));
    for v in vcpus {
        let capacity = v.capacity.map_or("?".into(), |c| format!("{:.0}", c * 1024.0));
        let ms = |value: f64| if v.preemptions == 0 { "-".into() } else { format!("{value:.1} ms") };
        let _ = writeln!(
            out,
            "{:>4}  {:>6}  {:>6}  {:>8}  {:>11}  {:>6}  {:>6}  {:>7}",
            v.cpu,
            percent(v.share),
            percent(v.speed),
            capacity,
            v.preemptions,
            ms(v.preemption_ms),
            ms(v.preemption_p95_ms),
            ms(v.active_ms)
        );
    }
    out.push('\n');
}

fn tiers(out: &mut String, topology: &Topology, elapsed_ms: Option<f64>) {
    let _ = writeln!(
        out,
        "topology of {} CPUs, {} pairs measured{}, {:.0} % in agreement",
        topology.cpus.len(),
        topology.measured.len(),
        elapsed_ms.map_or(String::new(), |ms| format!(" in {ms:.0} ms")),
        topology.agreement * 100.0
    );
    for tier in &topology.tiers {
        let groups: Vec<String> =
            tier.groups.iter().filter(|g| g.len() > 1).map(|g| format_list(g)).collect();
        if groups.is_empty() {
            continue;
        }
        let latency = tier.latency_ns.map_or(String::new(), |ns| format!(" ({ns:.0} ns)"));
        let _ = writeln!(out, "  share {:<20} {}{latency}", legend(tier.shares), groups.join(" | "));
    }
    out.push('\n');
}

/// CPUs in an order in which near CPUs are adjacent.
fn order(topology: &Topology) -> Vec<usize> {
    let mut cpus = topology.cpus.clone();
    let key = |cpu: &usize| {
        topology
            .tiers
            .iter()
            .rev()
            .map(|t| t.groups.iter().position(|g| g.contains(cpu)).unwrap_or(0))
            .collect::<Vec<_>>()
    };
    cpus.sort_by_cached_key(|cpu| (key(cpu), *cpu));
    cpus
}

fn heat(out: &mut String, topology: &Topology, colour: bool) {
    let cpus = order(topology);
    let width = cpus.iter().map(|cpu| cpu.to_string().len()).max().unwrap_or(1).max(2);
    let _ = write!(out, "{:>width$} ", "");
    for cpu in &cpus {
        let _ = write!(out, "{cpu:>width$} ");
    }
    out.push('\n');
    for one in &cpus {
        let _ = write!(out, "{one:>width$} ");
        for other in &cpus {
            let (letter, shade, _) =
                if one == other { (' ', 16, "") } else { look(topology.relation(*one, *other)) };
            if colour {
                let _ = write!(out, "\x1b[48;5;{shade}m{:>width$}\x1b[0m ", "");
            } else {
                let _ = write!(out, "{letter:>width$} ");
            }
        }
        out.push('\n');
    }
    let names = LOOKS.iter().filter(|(shares, ..)| topology.tiers.iter().any(|t| t.shares == *shares));
    let keys: Vec<String> = names
        .map(|(shares, letter, shade, _)| {
            let mark = if colour { format!("\x1b[48;5;{shade}m  \x1b[0m") } else { letter.to_string() };
            format!("{mark} {}", legend(*shares))
        })
        .collect();
    let _ = writeln!(out, "shared: {}   ? unknown\n", keys.join("   "));
}

/// The heat map as a page element of its own. Cells have the measured latency as their title.
pub fn svg(topology: &Topology) -> String {
    const CELL: usize = 22;
    const EDGE: usize = 40;
    let cpus = order(topology);
    let size = EDGE + cpus.len() * CELL + 10;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{size}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"9\">\n",
        size + 24
    );
    let measured: HashMap<(usize, usize), f64> =
        topology.measured.iter().map(|(a, b, ns)| ((*a.min(b), *a.max(b)), *ns)).collect();
    for (row, one) in cpus.iter().enumerate() {
        let at = EDGE + row * CELL;
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{one}</text>", EDGE - 4, at + 14);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{one}</text>",
            at + CELL / 2,
            EDGE - 6
        );
        for (column, other) in cpus.iter().enumerate() {
            let fill = if one == other { "#2c3e50" } else { look(topology.relation(*one, *other)).2 };
            let x = EDGE + column * CELL;
            let _ = write!(
                out,
                "<rect x=\"{x}\" y=\"{at}\" width=\"{0}\" height=\"{0}\" fill=\"{fill}\">",
                CELL - 1
            );
            if let Some(ns) = measured.get(&(*one.min(other), *one.max(other))) {
                let _ = write!(out, "<title>{one} and {other}: {ns:.0} ns</title>");
            }
            out.push_str("</rect>\n");
        }
    }
    let mut x = EDGE;
    for (shares, _, _, page) in
        LOOKS.iter().filter(|(shares, ..)| topology.tiers.iter().any(|t| t.shares == *shares))
    {
        let _ =
            writeln!(out, "<rect x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{page}\"/>", size + 4);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", x + 14, size + 13, legend(*shares));
        x += 30 + 6 * legend(*shares).len();
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Emulated;
    use crate::kernel::KernelView;
    use crate::vtop;

    #[test]
    fn a_report_names_what_matters() {
        let mut machine = Emulated::rcvm(2);
        let (topology, effort) = vtop::full(&mut machine, 2_000_000_000).unwrap();
        let page = svg(&topology);
        assert!(page.starts_with("<svg") && page.ends_with("</svg>\n"));
        assert_eq!(page.matches("<rect").count(), 144 + 3);
        let report = Report::of(&[], &[], Some((topology, effort)), KernelView::default());
        let plain = text(&report, false);
        assert!(plain.contains("share one hardware thread  10-11") || plain.contains("one hardware thread"));
        assert!(!plain.contains('\x1b') && text(&report, true).contains('\x1b'));
    }
}
