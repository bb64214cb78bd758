//! `tandem guest`: the scheduler for the inside of a VM.

use crate::cmd_probe::ProbeCmd;
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tandem_daemon::report::Report;
use tandem_daemon::{server, trace};
use tandem_guest::observe::{Observation, Probed};
use tandem_guest::park::{self, ParkOrder};
use tandem_guest::stats::GuestStats;
use tandem_guest::{parse_cpu_list, Fault, GuestOptions, Part};

/// Load the vCPU-aware scheduler and run until interrupted.
///
/// The kernel returns to its own scheduler when this process ends, however it ends.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GuestCmd {
    #[command(subcommand)]
    action: Option<Action>,

    /// Print statistics every SEC seconds
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    stats: Option<Duration>,

    /// Print statistics of a running scheduler every SEC seconds; load nothing
    #[arg(long, value_name = "SEC", value_parser = seconds, conflicts_with = "stats")]
    monitor: Option<Duration>,

    /// Bytes of the debug dump when the kernel ejects the scheduler (0: the kernel's default, 32768)
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    exit_dump_len: u32,

    /// Schedule only tasks of class SCHED_EXT
    #[arg(long)]
    partial: bool,

    /// Load although cgroup weights or quotas are in use, and ignore them
    #[arg(long)]
    ignore_cgroups: bool,

    /// Do not probe idle vCPUs; measure only vCPUs that run anyway
    #[arg(long)]
    no_probe: bool,

    /// Part of the VM's CPU time that probes and daemon may take together, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent_of_the_vm)]
    probe_budget: f64,

    /// Probe vCPUs that the kernel was told to isolate (isolcpus, nohz_full), too
    #[arg(long)]
    probe_isolated: bool,

    /// End slices at the kernel's tick instead of on time by a timer
    #[arg(long)]
    no_slice_timers: bool,

    /// CPU request of a normal task in microseconds
    #[arg(short, long, value_name = "US", default_value_t = 3000, value_parser = clap::value_parser!(u64).range(500..=100_000))]
    slice_us: u64,

    /// Proactive migration: a running task leaves its vCPU before a predictable preemption (experimental)
    #[arg(long)]
    ivh: bool,

    /// Place wake-ups as the kernel does, not by expected completion
    #[arg(long)]
    no_bvs: bool,

    /// Leave out a part of a technique (repeatable), to measure what it is worth
    #[arg(long, value_enum, value_name = "PART")]
    without: Vec<PartArg>,

    /// Leave stragglers and spare vCPUs of a stack without work (experimental)
    #[arg(long)]
    rwc: bool,

    /// Use all vCPUs even if the host gives the VM fewer pCPUs
    #[arg(long)]
    no_vcpu_limit: bool,

    /// Give every thread a vCPU of its own while they last; no load balance. For VMs with many more vCPUs than pCPUs
    #[arg(long, conflicts_with = "ivh")]
    dedicate: bool,

    /// Tasks of this name are latency-sensitive (repeatable): short slices, and vCPUs that serve them soonest
    #[arg(long, value_name = "NAME", value_parser = tandem_guest::hints::task_name)]
    latency_name: Vec<String>,

    /// Tasks of this cgroup and those below it are latency-sensitive (repeatable), e.g. system.slice/nginx.service
    #[arg(long, value_name = "PATH", conflicts_with = "ignore_cgroups")]
    latency_cgroup: Vec<PathBuf>,

    /// Unload the scheduler while it does not help: while nothing is stolen, or where trials show it
    #[arg(long)]
    gate: bool,

    /// Print what the loaded sched_ext scheduler costs, since it was loaded or over the next SEC seconds (JSON; needs
    /// kernel.bpf_stats_enabled); load nothing
    #[arg(long, value_name = "SEC", num_args = 0..=1, default_missing_value = "0", value_parser = cost_seconds, conflicts_with_all = ["stats", "monitor"])]
    cost: Option<Duration>,

    /// Probe for SEC seconds, say what would be done with each vCPU, and load nothing
    #[arg(long, value_name = "SEC", num_args = 0..=1, default_missing_value = "1", value_parser = seconds, conflicts_with_all = ["stats", "monitor", "cost"])]
    observe: Option<Duration>,

    /// Backend: a scheduler, or, where the kernel has no sched_ext, systemd's AllowedCPUs, which can only leave
    /// stragglers and spare vCPUs of a stack without work
    #[arg(long, value_enum, default_value_t = BackendArg::Scx)]
    backend: BackendArg,

    /// With --backend cpuset: put back AllowedCPUs that a killed run has left behind, and end
    #[arg(long)]
    restore: bool,

    /// Log more; twice: everything, with libbpf's own messages
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Serve OpenMetrics (Prometheus) over HTTP on this address, under /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<std::net::SocketAddr>,

    /// Misbehave on purpose towards tasks named "tandem-fault" (tests of ejection)
    #[arg(long, value_enum, hide = true, default_value_t = FaultArg::None)]
    inject: FaultArg,
}

/// What to do with a running scheduler.
#[derive(Debug, Subcommand)]
enum Action {
    /// Take vCPUs out of use: tasks and interrupts are moved elsewhere, no new ones are placed there
    Park {
        /// Their numbers, e.g. 2-3,7
        #[arg(value_name = "CPUS")]
        cpus: String,
    },
    /// Take parked vCPUs back into use
    Unpark {
        /// Their numbers, e.g. 2-3,7
        #[arg(value_name = "CPUS")]
        cpus: String,
    },
    /// Record what the running scheduler decides, for ui.perfetto.dev
    Trace {
        /// Duration in seconds, 0.1 to 3600
        #[arg(long, value_name = "SEC", default_value = "2", value_parser = trace_seconds)]
        secs: Duration,
        /// Where to write it
        #[arg(short, long, value_name = "FILE", default_value = "tandem-trace.json")]
        output: PathBuf,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendArg {
    /// A sched_ext scheduler
    Scx,
    /// AllowedCPUs of system.slice, user.slice and machine.slice
    Cpuset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PartArg {
    /// Pooling: the mean over all vCPUs, beside the measurements of one
    Pool,
    /// Measured wake-up waits
    Waits,
    /// Which vCPUs are preempted now, and when the others were scheduled in
    State,
    /// With --ivh: migrating to a vCPU in order to learn its preemption period
    Learning,
}

impl PartArg {
    /// Its name on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn meant(self) -> Part {
        match self {
            PartArg::Pool => Part::Pool,
            PartArg::Waits => Part::Waits,
            PartArg::State => Part::State,
            PartArg::Learning => Part::Learning,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FaultArg {
    None,
    Stall,
    Error,
    NoRelease,
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=86_400.0).contains(&value) => Ok(Duration::from_secs_f64(value)),
        _ => Err("expected seconds from 0.1 to 86400".into()),
    }
}

/// The length of a trace.
pub(crate) fn trace_seconds(text: &str) -> Result<Duration, String> {
    let longest = tandem_daemon::trace::LONGEST;
    match seconds(text) {
        Ok(length) if length <= longest => Ok(length),
        _ => Err(format!("expected seconds from 0.1 to {}", longest.as_secs())),
    }
}

/// A part of the VM's CPU time: more than 0, up to 10.
fn percent_of_the_vm(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 10.0 => Ok(percent),
        _ => Err("give a number of percent above 0 and up to 10".into()),
    }
}

pub(crate) fn cost_seconds(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    seconds(text)
}

impl Action {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (cpus, park) = match self {
            Action::Park { cpus } => (cpus, true),
            Action::Unpark { cpus } => (cpus, false),
            Action::Trace { secs, output } => {
                let labels = trace::Labels { cpu: "vCPU", taken_by: Some("the host"), task: &trace::plain };
                record::<GuestStats>(secs, &output, &labels)?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        let order = ParkOrder { cpus: parse_cpu_list(&cpus, "the command line")?, park };
        println!("{}", park::request(&order)?);
        Ok(ExitCode::SUCCESS)
    }
}

impl GuestCmd {
    /// Is the technique in use to which this part belongs?
    fn uses(&self, part: PartArg) -> bool {
        match part {
            PartArg::Learning => self.ivh,
            PartArg::Pool | PartArg::Waits | PartArg::State => !self.no_bvs,
        }
    }

    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        tandem_guest::catch_termination();
        if let Some(action) = self.action {
            return action.run();
        }
        match (self.backend, self.restore) {
            (BackendArg::Cpuset, true) => {
                return Ok(tandem_guest::cpuset::restore().map(|()| ExitCode::SUCCESS)?)
            }
            (BackendArg::Cpuset, false) => {
                return Ok(tandem_guest::cpuset::serve().map(|()| ExitCode::SUCCESS)?)
            }
            (BackendArg::Scx, true) => {
                anyhow::bail!("--restore: a scheduler leaves nothing behind; it is for --backend cpuset")
            }
            (BackendArg::Scx, false) => {}
        }
        if let Some(interval) = self.monitor {
            server::monitor::<GuestStats>(interval, tandem_guest::termination_requested)?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(length) = self.observe {
            println!("{}", observe(length)?);
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(over) = self.cost {
            println!("{}", serde_json::to_string(&tandem_daemon::cost::read(over)?)?);
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(idle) = self.without.iter().find(|part| !self.uses(**part)) {
            let missing = if *idle == PartArg::Learning { "without --ivh" } else { "with --no-bvs" };
            anyhow::bail!("--without {}: {missing} it is left out anyway", idle.name());
        }
        let options = GuestOptions {
            stats_interval: self.stats,
            exit_dump_len: self.exit_dump_len,
            partial: self.partial,
            ignore_cgroups: self.ignore_cgroups,
            probe: !self.no_probe,
            probe_budget_pct: self.probe_budget,
            probe_isolated: self.probe_isolated,
            slice_timers: !self.no_slice_timers,
            slice_us: self.slice_us,
            ivh: self.ivh,
            place_by_cost: !self.no_bvs,
            without: self.without.iter().map(|part| part.meant()).collect(),
            ban: self.rwc,
            vcpu_limit: !self.no_vcpu_limit,
            dedicate: self.dedicate,
            latency_names: self.latency_name,
            latency_groups: self.latency_cgroup,
            gate: self.gate,
            metrics: self.metrics,
            debug: self.verbose > 1,
            fault: match self.inject {
                FaultArg::None => Fault::None,
                FaultArg::Stall => Fault::Stall,
                FaultArg::Error => Fault::Error,
                FaultArg::NoRelease => Fault::NoRelease,
            },
        };
        tandem_guest::serve(&options)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Records what the scheduler of side `R` does, into a file.
pub(crate) fn record<R: Report>(
    length: Duration,
    path: &Path,
    labels: &trace::Labels<'_>,
) -> anyhow::Result<()> {
    // Before the file is made.
    server::running::<R>()?;
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let recorded =
        trace::record::<R>(length, BufWriter::new(file), labels, tandem_daemon::sys::termination_requested)?;
    println!(
        "{} events in {} ({} dropped): open it in ui.perfetto.dev",
        recorded.events,
        path.display(),
        recorded.dropped
    );
    Ok(())
}

/// Probes all vCPUs that this process may use.
fn observe(length: Duration) -> anyhow::Result<Observation> {
    let report = ProbeCmd::of_everything(length)?;
    let vcpus: Vec<Probed> = report
        .vcpus
        .iter()
        .map(|v| Probed { cpu: v.cpu, share: v.share, preemption_ms: v.preemption_ms })
        .collect();
    let stacks: Vec<_> = report.topology.iter().flat_map(|topology| topology.stacked().cloned()).collect();
    Ok(tandem_guest::observe::observe(&vcpus, &stacks, report.neighbours))
}
