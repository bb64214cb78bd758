//! `tandem host`: beneath virtual machines.

use crate::cmd_guest::seconds;
use anyhow::Context;
use clap::Args;
use std::collections::BTreeMap;
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tandem_daemon::exporter::Exporter;
use tandem_daemon::sys::{catch_termination, termination_requested};
use tandem_host::figures::{between, Report, Snapshot};
use tandem_host::metrics::{self, Totals};
use tandem_host::observe::{kvm_is_there, Observer};
use tandem_host::vms::{self, Label};
use tandem_host::{table, HostError};

/// How often it is looked whether to end.
const STEP: Duration = Duration::from_millis(100);

/// Watch the virtual machines of this KVM host: what each gets, what it waits for, and who runs instead.
///
/// Changes nothing, needs no sched_ext, and works beside any scheduler.
#[derive(Debug, Args)]
pub struct HostCmd {
    /// Watch, and print figures every SEC seconds
    #[arg(long, value_name = "SEC", num_args = 0..=1, default_missing_value = "1", value_parser = seconds, required = true)]
    observe: Duration,

    /// End after so many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Show each vCPU, too
    #[arg(long)]
    vcpus: bool,

    /// Print one JSON object per interval
    #[arg(long)]
    json: bool,

    /// Wait until KVM is there
    #[arg(long)]
    wait: bool,

    /// Serve OpenMetrics (Prometheus) over HTTP on this address, under /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// Log more; twice: everything, with libbpf's own messages
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl HostCmd {
    /// Watches until interrupted, or for as many intervals as asked.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        catch_termination();
        if !tandem_daemon::sys::is_root() {
            return Err(HostError::NotRoot.into());
        }
        let render: fn(&Totals) -> String = metrics::render;
        let exporter = self.metrics.map(|addr| Exporter::start(addr, render)).transpose()?;
        if self.wait && !kvm_is_there(Path::new("/")) {
            log::info!("waiting for KVM");
            while !kvm_is_there(Path::new("/")) {
                if termination_requested() {
                    return Ok(ExitCode::SUCCESS);
                }
                std::thread::sleep(STEP);
            }
        }
        let mut storage = MaybeUninit::uninit();
        let observer = Observer::start(&mut storage)?;
        log::info!("observing by {} hooks", observer.hooks());
        self.watch(&observer, exporter.as_ref())
    }

    fn watch(
        &self,
        observer: &Observer<'_>,
        exporter: Option<&Exporter<Totals>>,
    ) -> anyhow::Result<ExitCode> {
        let mut labels: BTreeMap<u32, Label> = BTreeMap::new();
        let mut earlier = observer.snapshot()?;
        let mut next = Instant::now() + self.observe;
        let mut left = self.count;
        while left != Some(0) {
            while Instant::now() < next {
                if termination_requested() {
                    return Ok(ExitCode::SUCCESS);
                }
                std::thread::sleep(STEP.min(next.saturating_duration_since(Instant::now())));
            }
            next += self.observe;
            let later = observer.snapshot()?;
            name(&mut labels, &later);
            let mut report =
                between(&earlier, &later, |pid| labels.get(&pid).cloned().unwrap_or_else(|| unnamed(pid)));
            report.not_observed = observer.not_observed();
            if !self.print(&report)? {
                return Ok(ExitCode::SUCCESS);
            }
            if let Some(exporter) = exporter {
                exporter.update(Totals { snapshot: later.clone(), labels: labels.clone() });
            }
            earlier = later;
            left = left.map(|left| left - 1);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Whether anybody still reads.
    fn print(&self, report: &Report) -> anyhow::Result<bool> {
        let text = if self.json {
            serde_json::to_string(report).context("writing the figures")? + "\n"
        } else {
            table::render(report, self.vcpus) + "\n"
        };
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(error).context("printing the figures"),
        }
    }
}

fn unnamed(pid: u32) -> Label {
    Label { name: format!("vm-{pid}"), cgroup: String::new() }
}

/// Names of VMs that are new; those that have gone are forgotten.
fn name(labels: &mut BTreeMap<u32, Label>, snapshot: &Snapshot) {
    let vms = snapshot.vms();
    labels.retain(|pid, _| vms.contains(pid));
    for pid in vms {
        labels.entry(pid).or_insert_with(|| vms::label(Path::new("/proc"), pid));
    }
}
