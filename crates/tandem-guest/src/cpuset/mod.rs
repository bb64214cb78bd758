//! vCPUs left without work where the kernel has no sched_ext (`tandem guest --backend cpuset`).
//!
//! Stragglers and spare vCPUs of a stack are judged as the scheduler would (`policy/guest/rwc.h`), and
//! excluded from the machine's services and users through systemd's own `AllowedCPUs`: what an
//! administrator would do by hand, and undo the same way. It is the lesser mode. A cpuset knows no
//! scheduling classes, so SCHED_IDLE tasks have to leave, too. A task that was pinned to an excluded
//! vCPU runs elsewhere until the vCPU is given back. Shares are sampled once a minute, not all the time.

mod check;
mod judge;
mod units;

use crate::{sys, GuestError};
use judge::Judge;
use std::path::Path;
use std::time::{Duration, Instant};
use tandem_daemon::cpulist::kernel_cpu_list;
use tandem_probe::kernel::format_list;
use tandem_probe::threads::Threads;
use tandem_probe::{share, sys::Policy, vtop};
pub(crate) use units::UNITS;
use units::{Limits, Systemctl};

/// Length of a sample of all vCPUs, as SCHED_IDLE, and the time from one to the next: one percent. The
/// first ones follow at once. In a shorter sample the kernel's account of steal is too coarse, and for a
/// vCPU that hardly ever runs there is no other source.
const SAMPLE: Duration = Duration::from_millis(600);
const PAUSE: Duration = Duration::from_secs(60);
const FIRST_SAMPLES: u32 = 3;
/// Time from one probe of the topology to the next, and how long one may take.
const TOPOLOGY_EVERY: Duration = Duration::from_secs(300);
const TOPOLOGY: Duration = Duration::from_secs(1);
/// How often it checks whether to end.
const STEP: Duration = Duration::from_millis(200);
/// The previous settings of the units, for the next start after a crash.
const STATE_FILE: &str = "/run/tandem/cpuset.json";

/// Probes and limits until asked to stop; then restores everything.
///
/// # Errors
/// systemd does not run here or refuses, a sched_ext scheduler is loaded, the user is not root, or the
/// daemon itself is in a unit that it would limit.
pub fn serve() -> Result<(), GuestError> {
    check::check(sys::is_root())?;
    let mut limits = Limits::recover(Systemctl, Path::new(STATE_FILE))?;
    let ended = supervise(&mut limits);
    let restored = limits.release();
    ended.and(restored)
}

/// Restores what a daemon that was killed has left behind.
///
/// # Errors
/// systemd refuses, or its state cannot be read.
pub fn restore() -> Result<(), GuestError> {
    Limits::recover(Systemctl, Path::new(STATE_FILE)).map(drop)
}

fn supervise(limits: &mut Limits<Systemctl>) -> Result<(), GuestError> {
    let began = Instant::now();
    let mut judge = Judge::default();
    let (mut next_sample, mut next_topology, mut samples) = (began, began, 0);
    let mut last = None;
    while !sys::termination_requested() {
        let now = Instant::now();
        if now < next_sample {
            std::thread::sleep(STEP.min(next_sample - now));
            continue;
        }
        let online = kernel_cpu_list("online")?;
        if now >= next_topology {
            next_topology = now + TOPOLOGY_EVERY;
            judge.stacks(stacks_of(&online));
        }
        match share::sample(&online, SAMPLE, Policy::BestEffort) {
            Ok(seen) => {
                let shares: Vec<_> = seen.iter().map(|sample| (sample.cpu, sample.share())).collect();
                log::debug!("shares: {shares:?}");
                judge.seen(&shares, now - began);
            }
            Err(error) => log::warn!("measuring shares: {error}"),
        }
        samples += 1;
        next_sample = Instant::now() + if samples < FIRST_SAMPLES { Duration::ZERO } else { PAUSE };
        let wanted = judge.in_use(&online, now - began);
        if last.as_ref() != Some(&wanted) {
            log::info!("vCPUs in use: {}", format_list(&wanted));
            limits.apply(&online, &wanted)?;
            last = Some(wanted);
        }
    }
    Ok(())
}

/// vCPUs that share a hardware thread. If that cannot be measured, none.
fn stacks_of(online: &[usize]) -> Vec<Vec<usize>> {
    if online.len() < 2 {
        return Vec::new();
    }
    let probed = Threads::beside_work(online)
        .and_then(|mut threads| vtop::full(&mut threads, TOPOLOGY.as_nanos() as u64));
    match probed {
        Ok((topology, _)) => topology.stacked().cloned().collect(),
        Err(error) => {
            log::warn!("measuring the topology: {error}");
            Vec::new()
        }
    }
}
