//! The statistics for Prometheus, as OpenMetrics text.

use crate::stats::GuestStats;
use std::fmt::Write;
use tandem_daemon::exporter::{counters, head};

/// OpenMetrics text.
pub(crate) fn render(stats: &GuestStats) -> String {
    let mut text = String::new();
    counters::<GuestStats>(&mut text, &stats.counters());
    let now = &stats.now;
    for (name, help, value) in [
        ("loaded", "1 while the scheduler is loaded, 0 while it is unloaded by --gate", now.loaded as f64),
        ("tasks", "Tasks that wait or run", now.tasks as f64),
        (
            "cpu_bound_tasks",
            "Of these, the CPU-bound ones, which load balance counts",
            now.cpu_bound_tasks as f64,
        ),
        ("cpu_bound_weight", "Effective weight of those", now.cpu_bound_weight),
        ("task_weight", "Their effective weight; 1 is nice 0 outside of all groups", now.weight),
        ("cgroups", "Cgroups with a record of their own", now.groups as f64),
        ("cgroups_shared", "Cgroups that share their parent's record", now.groups_shared as f64),
        ("cgroups_limited", "Cgroups with a quota", now.limits as f64),
    ] {
        let name = format!("tandem_guest_{name}");
        head(&mut text, &name, "gauge", "", help);
        let _ = writeln!(text, "{name} {value}");
    }
    for (name, unit, help, of) in [
        ("share", "ratio", "Share of a pCPU that the vCPU gets when it has work", 0),
        ("preemption", "seconds", "Mean length of a preemption interval of the vCPU", 1),
    ] {
        let name = format!("tandem_guest_vcpu_{name}_{unit}");
        head(&mut text, &name, "gauge", unit, help);
        for (cpu, vcpu) in stats.vcpus.iter().filter(|(_, vcpu)| vcpu.age_ms >= 0.0) {
            let value = if of == 0 { vcpu.share } else { vcpu.inactive_mean_us / 1e6 };
            let _ = writeln!(text, "{name}{{cpu=\"{cpu}\"}} {value}");
        }
    }
    text.push_str("# EOF\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::VcpuStats;

    fn figures() -> GuestStats {
        let mut stats = GuestStats { pulled: 7, ..Default::default() };
        stats.vcpus.insert(
            0,
            VcpuStats { share: 0.5, inactive_mean_us: 1500.0, age_ms: 10.0, ..Default::default() },
        );
        stats
            .vcpus
            .insert(1, VcpuStats { share: 0.0, inactive_mean_us: 0.0, age_ms: -1.0, ..Default::default() });
        stats
    }

    #[test]
    fn counters_and_vcpus_are_rendered_and_unknown_ones_left_out() {
        let text = render(&figures());
        assert!(text.contains("# TYPE tandem_guest_pulled counter\n"), "{text}");
        assert!(text.contains("\ntandem_guest_pulled_total 7\n"), "{text}");
        assert!(text.contains("tandem_guest_vcpu_share_ratio{cpu=\"0\"} 0.5\n"), "{text}");
        assert!(text.contains("tandem_guest_vcpu_preemption_seconds{cpu=\"0\"} 0.0015\n"), "{text}");
        assert!(!text.contains("cpu=\"1\""), "{text}");
        assert!(text.ends_with("# EOF\n"));
        assert_eq!(tandem_daemon::exporter::declared_twice(&text), None, "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let value = line.rsplit(' ').next().unwrap_or("");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
