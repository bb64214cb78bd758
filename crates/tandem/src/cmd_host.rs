//! `tandem host`: beneath virtual machines.

use crate::cmd_guest::{cost_seconds, record, seconds, trace_seconds};
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tandem_daemon::exporter::Exporter;
use tandem_daemon::sys::{catch_termination, termination_requested};
use tandem_daemon::{server, trace};
use tandem_host::figures::Report;
use tandem_host::inside::seen_table;
use tandem_host::metrics::{self, Totals};
use tandem_host::observe::kvm_is_there;
use tandem_host::options::{Fault, HostOptions};
use tandem_host::settings::{VmSetting, VmSettings};
use tandem_host::stats::{vms_table, HostReport};
use tandem_host::watch::Watch;
use tandem_host::{scheduler, table, vms, HostError};

/// How often it is looked whether to end.
const STEP: Duration = Duration::from_millis(100);

/// Load the scheduler that knows who is a vCPU, and run until interrupted; or, with --observe, only watch.
///
/// The kernel returns to its own scheduler when this process ends, however it ends. Watching changes nothing, needs no
/// sched_ext, and works beside any scheduler.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct HostCmd {
    #[command(subcommand)]
    action: Option<Action>,

    /// Load no scheduler: watch the VMs, and print figures every SEC seconds
    #[arg(long, value_name = "SEC", num_args = 0..=1, default_missing_value = "1", value_parser = seconds, conflicts_with_all = SCHEDULING)]
    observe: Option<Duration>,

    /// With --observe: end after so many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), requires = "observe")]
    count: Option<u64>,

    /// With --observe: show each vCPU, too
    #[arg(long, requires = "observe")]
    vcpus: bool,

    /// With --observe: print one JSON object per interval
    #[arg(long, requires = "observe")]
    json: bool,

    /// With --observe: wait until KVM is there
    #[arg(long, requires = "observe")]
    wait: bool,

    /// Print statistics every SEC seconds
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    stats: Option<Duration>,

    /// Print statistics of a running scheduler every SEC seconds; load nothing
    #[arg(long, value_name = "SEC", value_parser = seconds, conflicts_with = "stats")]
    monitor: Option<Duration>,

    /// Do not watch the VMs beside scheduling them
    #[arg(long)]
    no_observe: bool,

    /// Bytes of the debug dump when the kernel ejects the scheduler (0: the kernel's default, 32768)
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    exit_dump_len: u32,

    /// Schedule only tasks of class SCHED_EXT
    #[arg(long)]
    partial: bool,

    /// Load although cgroup weights or quotas are in use, and ignore them
    #[arg(long)]
    ignore_cgroups: bool,

    /// End slices at the kernel's tick instead of on time by a timer
    #[arg(long)]
    no_slice_timers: bool,

    /// CPU request of a vCPU in microseconds; default: the kernel's own base slice, and 3000 at the least
    #[arg(short, long, value_name = "US", value_parser = clap::value_parser!(u64).range(tandem_host::slice::RANGE_US))]
    slice_us: Option<u64>,

    /// Set something for one VM (repeatable), e.g. web-1:slice-us=10000 or db:yield=off
    #[arg(long, value_name = "VM:KEY=VALUE", value_parser = of_a_vm)]
    set: Vec<(String, VmSetting)>,

    /// Print what the loaded sched_ext scheduler costs, since it was loaded or over the next SEC seconds (JSON; needs
    /// kernel.bpf_stats_enabled); load nothing
    #[arg(long, value_name = "SEC", num_args = 0..=1, default_missing_value = "0", value_parser = cost_seconds, conflicts_with_all = ["stats", "monitor"])]
    cost: Option<Duration>,

    /// Serve OpenMetrics (Prometheus) over HTTP on this address, under /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// Log more; twice: everything, with libbpf's own messages
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Leave something out on purpose (tests)
    #[arg(long, value_enum, hide = true, default_value_t = FaultArg::None)]
    inject: FaultArg,
}

/// Options that make no sense without a scheduler.
const SCHEDULING: [&str; 10] = [
    "stats",
    "monitor",
    "no_observe",
    "exit_dump_len",
    "partial",
    "ignore_cgroups",
    "no_slice_timers",
    "slice_us",
    "set",
    "cost",
];

/// What to do with a running scheduler.
#[derive(Debug, Subcommand)]
enum Action {
    /// List the VMs: weight, what that entitles them to, what they get and wait for, and what was set for them
    Vms {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what the vCPUs of a VM run right now, as its guest's memory says (Linux guests that read their steal time)
    Inside {
        /// Its name
        #[arg(value_name = "VM")]
        vm: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Compare with what the guest records itself at this address of its memory (tests)
        #[arg(long, value_name = "GPA", hide = true)]
        against: Option<u64>,
        /// So many times
        #[arg(long, hide = true, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        samples: u64,
        /// With a distance that is wrong by so many bytes
        #[arg(long, hide = true, default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-4096..=4096))]
        off: i32,
    },
    /// Set something for the VMs of this name, until the daemon ends: slice-us=US|default, debt-max-ms=MS|default, wake-budget-us=US|default, conflict=confidence|debt|none, or KEY=on|off of apart, yield, safe-points, prompt, boost, forward, fast-wakeup, introspect, critical
    Set {
        /// Its name
        #[arg(value_name = "VM")]
        vm: String,
        /// What to set
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FaultArg {
    None,
    NoRelease,
    NoYield,
    NoHooks,
    RefusedHooks,
    NoKicks,
}

fn of_a_vm(text: &str) -> Result<(String, VmSetting), String> {
    let (vm, setting) = text.rsplit_once(':').ok_or("expected VM:KEY=VALUE")?;
    if vm.is_empty() {
        return Err("expected a VM's name before the colon".into());
    }
    Ok((vm.to_owned(), setting.parse::<VmSetting>().map_err(|error| error.to_string())?))
}

impl Action {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Action::Vms { json: true } => {
                say(&(serde_json::to_string(&scheduler::vms()?).context("writing the VMs")? + "\n"))?
            }
            Action::Vms { json: false } => say(&vms_table(&scheduler::vms()?))?,
            Action::Inside { vm, against: Some(record), samples, off, .. } => {
                let agreement = scheduler::inside(&vm)?.agreement(record, samples, off)?;
                say(&(serde_json::to_string(&agreement).context("writing what agrees")? + "\n"))?
            }
            Action::Inside { vm, json, .. } => {
                let seen = scheduler::inside(&vm)?.look()?;
                let text = if json {
                    serde_json::to_string(&seen).context("writing what is seen")? + "\n"
                } else {
                    seen_table(&seen)
                };
                say(&text)?
            }
            Action::Set { vm, settings } => {
                // All or none.
                settings.iter().try_for_each(|setting| setting.parse::<VmSetting>().map(drop))?;
                let mut all = VmSettings::default();
                for setting in settings {
                    all = scheduler::set(&vm, &setting)?;
                }
                let text = all.to_string();
                say(&format!("{vm}: {}\n", if text.is_empty() { "as any other VM" } else { &text }))?
            }
            Action::Trace { secs, output } => {
                let names = ThreadNames::default();
                let task = |pid: i32, comm: &str| names.of(pid, comm);
                let labels = trace::Labels { cpu: "pCPU", taken_by: None, task: &task };
                record::<HostReport>(secs, &output, &labels)?;
                true
            }
        };
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints, and returns whether anybody still reads.
fn say(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("printing"),
    }
}

/// Names of threads in a trace, which names each of them many times.
#[derive(Default)]
struct ThreadNames {
    /// The VM of each thread, and of each process; none: of no VM.
    threads: RefCell<HashMap<i32, Option<String>>>,
    vmms: RefCell<HashMap<u32, Option<String>>>,
}

impl ThreadNames {
    /// A thread of a VM with the VM's name, any other as the kernel calls it.
    fn of(&self, pid: i32, comm: &str) -> String {
        let plain = trace::plain(pid, comm);
        let vm = self.threads.borrow_mut().entry(pid).or_insert_with(|| self.vm_of(pid)).clone();
        vm.map_or_else(|| plain.clone(), |vm| format!("{vm}: {plain}"))
    }

    fn vm_of(&self, pid: i32) -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let tgid = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
        let mut vmms = self.vmms.borrow_mut();
        let vm = vmms
            .entry(tgid)
            .or_insert_with(|| vms::label_of_vmm(Path::new("/proc"), tgid).map(|label| label.name));
        vm.clone()
    }
}

impl HostCmd {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        catch_termination();
        if let Some(action) = self.action {
            return action.run();
        }
        if let Some(interval) = self.monitor {
            server::monitor::<HostReport>(interval, termination_requested)?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(over) = self.cost {
            println!("{}", serde_json::to_string(&tandem_daemon::cost::read(over)?)?);
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(interval) = self.observe {
            return self.observe(interval);
        }
        let options = HostOptions {
            stats_interval: self.stats,
            metrics: self.metrics,
            exit_dump_len: self.exit_dump_len,
            partial: self.partial,
            ignore_cgroups: self.ignore_cgroups,
            slice_timers: !self.no_slice_timers,
            slice_us: self.slice_us,
            observe: !self.no_observe,
            vms: self.set,
            debug: self.verbose > 1,
            fault: match self.inject {
                FaultArg::None => Fault::None,
                FaultArg::NoRelease => Fault::NoRelease,
                FaultArg::NoYield => Fault::NoYield,
                FaultArg::NoHooks => Fault::NoHooks,
                FaultArg::RefusedHooks => Fault::RefusedHooks,
                FaultArg::NoKicks => Fault::NoKicks,
            },
        };
        scheduler::serve(&options)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Watches until interrupted, or for as many intervals as asked.
    fn observe(&self, interval: Duration) -> anyhow::Result<ExitCode> {
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
        let mut watch = Watch::start(&mut storage, true, true)?;
        let mut labels = vms::Labels::default();
        let mut next = Instant::now() + interval;
        let mut left = self.count;
        while left != Some(0) {
            while Instant::now() < next {
                if termination_requested() {
                    return Ok(ExitCode::SUCCESS);
                }
                std::thread::sleep(STEP.min(next.saturating_duration_since(Instant::now())));
            }
            next += interval;
            // It was stopped, or its output was not read: no interval is made up for.
            if next <= Instant::now() {
                next = Instant::now() + interval;
            }
            labels.read_cgroups_again();
            let Some((report, totals)) = watch.interval(&mut labels)? else { continue };
            labels.keep(&totals.snapshot.vms());
            if !self.print(&report)? {
                return Ok(ExitCode::SUCCESS);
            }
            if let Some(exporter) = &exporter {
                exporter.update(Totals::clone(&totals));
            }
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
        say(&text)
    }
}
