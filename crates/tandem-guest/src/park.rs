//! Parking: vCPUs are taken out of use and back while the guest runs, without hotplug. This is for hosts
//! that take pCPUs away for a while and would rather have the guest know.
//!
//! The scheduler's ban clears a vCPU within a millisecond of its own time (`bpf/guest/park.bpf.h`). Interrupts that
//! may go elsewhere are sent elsewhere. Tasks that may run nowhere else stay, and are reported. Parking ends with
//! the daemon. While it has no scheduler loaded (`--gate`, a pause of the machine) all vCPUs are in use, since the kernel's own scheduler knows nothing
//! of parking; with the next one the operator's are parked again.

use crate::bpf::{intf, GuestSkel};
use crate::irqs::Irqs;
use crate::stats::GuestStats;
use crate::GuestError;
use libbpf_rs::ProgramInput;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tandem_daemon::bytes::{u32_at, u64_at};
use tandem_daemon::cpulist::parse_cpu_list;
use tandem_daemon::{server, DaemonError};

/// Name of the request.
pub(crate) const ASK_PARK: &str = "park";

/// Tasks that are still queued there after this time have to stay.
const DRAIN: Duration = Duration::from_millis(50);
const POLL: Duration = Duration::from_micros(100);

/// Which vCPUs to park or unpark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkOrder {
    /// Their numbers in the guest.
    pub cpus: Vec<usize>,
    /// Park them, or unpark?
    pub park: bool,
}

impl ParkOrder {
    /// Parses a request: `cpus` is a list such as `2-3,7`, `do` is `park` or `unpark`.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn from_args(args: &BTreeMap<String, String>) -> Result<Self, GuestError> {
        let park = match args.get("do").map(String::as_str) {
            Some("park") => true,
            Some("unpark") => false,
            other => return Err(GuestError::ParkRequest(other.unwrap_or("").into())),
        };
        let list = args.get("cpus").map_or("", String::as_str);
        Ok(Self { cpus: parse_cpu_list(list, "the request to park")?, park })
    }

    fn to_args(&self) -> [(&'static str, String); 2] {
        let cpus: Vec<String> = self.cpus.iter().map(ToString::to_string).collect();
        [("do", if self.park { "park" } else { "unpark" }.into()), ("cpus", cpus.join(","))]
    }
}

/// One vCPU after a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParkedVcpu {
    /// Its number.
    pub cpu: usize,
    /// Is it parked now?
    pub parked: bool,
    /// Tasks that stayed because they may run nowhere else.
    pub left: u32,
    /// How long that took, in milliseconds.
    pub took_ms: f64,
}

/// The result of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ParkReport {
    /// Each of the vCPUs in the request.
    pub vcpus: Vec<ParkedVcpu>,
    /// Interrupts that were sent elsewhere, or back.
    pub irqs_moved: usize,
}

impl std::fmt::Display for ParkReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for vcpu in &self.vcpus {
            let state = if vcpu.parked { "out of use" } else { "in use" };
            write!(f, "vCPU {}: {state} after {:.2} ms", vcpu.cpu, vcpu.took_ms)?;
            if vcpu.parked && vcpu.left > 0 {
                write!(f, "; {} tasks stay that may run nowhere else", vcpu.left)?;
            }
            writeln!(f)?;
        }
        write!(f, "{} interrupts moved", self.irqs_moved)
    }
}

/// Sends an order to a running scheduler.
///
/// # Errors
/// No scheduler runs, or it refuses.
pub fn request(order: &ParkOrder) -> Result<ParkReport, GuestError> {
    Ok(server::ask::<GuestStats, _>(ASK_PARK, &order.to_args())?)
}

/// The daemon's side.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    irqs: Irqs,
    /// vCPUs that the operator has parked.
    parked: BTreeSet<usize>,
}

impl Parking {
    /// Carries out an order, for all of its vCPUs or for none.
    pub(crate) fn order(
        &mut self,
        skel: &GuestSkel<'_>,
        order: &ParkOrder,
    ) -> Result<ParkReport, GuestError> {
        let ask = |cpu, what| ask(skel, cpu, what, intf::TANDEM_PARKED_BY_OPERATOR);
        let vcpus = change(order, ask)?;
        let irqs_moved = if order.park {
            self.parked.extend(&order.cpus);
            self.irqs.away(&order.cpus)
        } else {
            self.parked.retain(|cpu| !order.cpus.contains(cpu));
            self.irqs.back(&order.cpus)
        };
        Ok(ParkReport { vcpus, irqs_moved })
    }

    /// A scheduler has been loaded: what the operator had parked under the one before is parked again.
    pub(crate) fn again(&mut self, skel: &GuestSkel<'_>) {
        let mut orders: Vec<Vec<usize>> = vec![std::mem::take(&mut self.parked).into_iter().collect()];
        while let Some(cpus) = orders.pop().filter(|cpus| !cpus.is_empty()) {
            match self.order(skel, &ParkOrder { cpus: cpus.clone(), park: true }) {
                Ok(_) => cpus.iter().for_each(|cpu| log::info!("vCPU {cpu} is parked again")),
                // All at once was refused because of one of them.
                Err(_) if cpus.len() > 1 => orders.extend(cpus.into_iter().map(|cpu| vec![cpu])),
                Err(error) => log::warn!("vCPU {} was parked and is in use now: {error}", cpus[0]),
            }
        }
    }

    /// The scheduler ends: interrupts go back to where they were.
    pub(crate) fn end(&mut self) {
        self.irqs.all_back();
    }
}

/// Observed state of a vCPU.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Tasks that wait or run there.
    left: u32,
    /// How long after it was parked it was empty; 0: not yet.
    emptied_ns: u64,
    /// What had parked it before the query, `TANDEM_PARKED_BY_*`.
    was: u32,
}

/// Carries out an order through the scheduler, completely or not at all: after an error the vCPUs are as they were
/// before. All are parked before any is waited for: tasks that leave one vCPU must not go to the next.
fn change(
    order: &ParkOrder,
    mut ask: impl FnMut(usize, intf::park_what) -> Result<Seen, GuestError>,
) -> Result<Vec<ParkedVcpu>, GuestError> {
    let (to, back) = (intf::park_what_PARK_TAKE, intf::park_what_PARK_GIVE_BACK);
    let (to, back) = if order.park { (to, back) } else { (back, to) };
    let began = Instant::now();
    let mut changed = Vec::new();
    let mut all = || {
        for &cpu in &order.cpus {
            let parked = ask(cpu, to)?.was & intf::TANDEM_PARKED_BY_OPERATOR != 0;
            if parked != order.park {
                changed.push(cpu);
            }
        }
        let mut vcpus = Vec::new();
        for &cpu in &order.cpus {
            let seen = if order.park { drained(cpu, began, &mut ask)? } else { Seen::default() };
            // The time at which the last task left counts, not the time at which this thread saw it.
            let took_ms = match seen.emptied_ns {
                0 => began.elapsed().as_secs_f64() * 1e3,
                ns => ns as f64 / 1e6,
            };
            vcpus.push(ParkedVcpu { cpu, parked: order.park, left: seen.left, took_ms });
        }
        Ok(vcpus)
    };
    let result = all();
    if result.is_err() {
        for cpu in changed {
            ask(cpu, back)?;
        }
    }
    result
}

/// Waits until the vCPU is empty, or has only tasks that have to stay.
fn drained(
    cpu: usize,
    began: Instant,
    ask: &mut impl FnMut(usize, intf::park_what) -> Result<Seen, GuestError>,
) -> Result<Seen, GuestError> {
    loop {
        let seen = ask(cpu, intf::park_what_PARK_LOOK)?;
        if seen.left == 0 || began.elapsed() > DRAIN {
            return Ok(seen);
        }
        std::thread::sleep(POLL);
    }
}

/// Parks or unparks a vCPU for the vCPU limit. Does not wait until it is empty.
pub(crate) fn by_limit(skel: &GuestSkel<'_>, cpu: usize, park: bool) -> Result<(), GuestError> {
    let what = if park { intf::park_what_PARK_TAKE } else { intf::park_what_PARK_GIVE_BACK };
    ask(skel, cpu, what, intf::TANDEM_PARKED_BY_LIMIT).map(|_| ())
}

/// Queries the scheduler. `by`: `TANDEM_PARKED_BY_*`.
fn ask(skel: &GuestSkel<'_>, cpu: usize, what: intf::park_what, by: u32) -> Result<Seen, GuestError> {
    let mut query = vec![0u8; std::mem::size_of::<intf::park_query>()];
    let (cpu_at, what_at) =
        (std::mem::offset_of!(intf::park_query, cpu), std::mem::offset_of!(intf::park_query, what));
    query[cpu_at..cpu_at + 4].copy_from_slice(&u32::try_from(cpu).unwrap_or(u32::MAX).to_ne_bytes());
    query[what_at..what_at + 4].copy_from_slice(&what.to_ne_bytes());
    let by_at = std::mem::offset_of!(intf::park_query, by);
    query[by_at..by_at + 4].copy_from_slice(&by.to_ne_bytes());
    let input = ProgramInput { context_in: Some(&mut query), ..ProgramInput::default() };
    skel.progs.guest_park.test_run(input).map_err(DaemonError::Map)?;
    match u32_at(&query, std::mem::offset_of!(intf::park_query, error)) {
        intf::park_error_PARK_DONE => Ok(Seen {
            left: u32_at(&query, std::mem::offset_of!(intf::park_query, left)),
            emptied_ns: u64_at(&query, std::mem::offset_of!(intf::park_query, emptied_ns)),
            was: u32_at(&query, std::mem::offset_of!(intf::park_query, was)),
        }),
        intf::park_error_PARK_LAST => Err(GuestError::LastVcpu(cpu)),
        _ => Err(GuestError::NoVcpu(cpu)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn args(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn an_order_survives_the_socket() {
        let order = ParkOrder { cpus: vec![2, 3, 7], park: true };
        let sent = args(&order.to_args().each_ref().map(|(key, value)| (*key, value.as_str())));
        assert_eq!(ParkOrder::from_args(&sent).unwrap(), order);
    }

    /// Four vCPUs, of which `parked` are parked, and an order that fails at a fifth. What is parked afterwards?
    fn after(parked: &[usize], order: &ParkOrder) -> (bool, Vec<usize>) {
        let mut now: std::collections::BTreeSet<usize> = parked.iter().copied().collect();
        let result = change(order, |cpu, what| {
            if cpu >= 4 {
                return Err(GuestError::NoVcpu(cpu));
            }
            let was = if now.contains(&cpu) { intf::TANDEM_PARKED_BY_OPERATOR } else { 0 };
            match what {
                intf::park_what_PARK_TAKE => drop(now.insert(cpu)),
                intf::park_what_PARK_GIVE_BACK => drop(now.remove(&cpu)),
                _ => {}
            }
            Ok(Seen { left: 0, emptied_ns: 1, was })
        });
        (result.is_ok(), now.into_iter().collect())
    }

    #[test]
    fn a_refused_order_changes_nothing() {
        let order = |cpus: &[usize], park| ParkOrder { cpus: cpus.to_vec(), park };
        assert_eq!(after(&[], &order(&[2, 3], true)), (true, vec![2, 3]));
        assert_eq!(after(&[2], &order(&[2, 3, 4], true)), (false, vec![2]), "the second was parked before");
        assert_eq!(after(&[2], &order(&[2, 3, 4], false)), (false, vec![2]));
        assert_eq!(after(&[2, 3], &order(&[2], false)), (true, vec![3]));
    }

    #[test]
    fn what_is_missing_is_named() {
        for (request, cause) in [
            (args(&[("cpus", "1")]), "park or unpark"),
            (args(&[("do", "stop"), ("cpus", "1")]), "stop"),
            (args(&[("do", "park")]), "no CPU in it"),
            (args(&[("do", "park"), ("cpus", "x")]), "not a number"),
        ] {
            let error = ParkOrder::from_args(&request).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_request_is_read_or_refused(what in "\\PC*", cpus in "[0-9,-]{0,12}") {
            let _ = ParkOrder::from_args(&args(&[("do", &what), ("cpus", &cpus)]));
        }
    }
}
