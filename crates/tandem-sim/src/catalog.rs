//! Models of the programs that the papers measure with: 8 of Tailbench, 10 of Parsec, 11 of Splash-2x, nginx, pbzip2,
//! hackbench, fio and sysbench.
//!
//! How a program performs on vCPUs that are preempted depends on how long it works between two synchronisations, on
//! how it waits, and on how much its threads depend on each other. The models take these from the sources below.
//! They do not predict absolute run times. Sources: [B] Bienia et al., Princeton TR-811-08 (counts of
//! synchronisation and total work on simlarge inputs, 8 threads); [W] Woo et al., ISCA 1995; [T] Kasture and
//! Sanchez, IISWC 2016 (Tailbench); [S] loads in vSched's own scripts; [E] estimate.

/// How a program's threads work together.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// An open-loop server: mean service time in microseconds and its coefficient of variation; load per CPU of
    /// capacity, 0 to 1.
    Server { service_us: f64, cv: f64, load: f64 },
    /// Independent threads; pieces of work in microseconds.
    Independent { piece_us: f64 },
    /// Rounds that end at a barrier: work per round in microseconds, its coefficient of variation, spinning before
    /// blocking in microseconds (none: they only block; negative: they only spin).
    Rounds { work_us: f64, cv: f64, spin_us: Option<f64> },
    /// Rounds in which threads also take short locks.
    LockedRounds { work_us: f64, cv: f64, held_us: f64, locks: u32, spin_us: Option<f64> },
    /// Pieces of work from one locked queue, which is refilled when it is empty.
    TaskQueue { work_us: f64, cv: f64, held_us: f64, spin_us: Option<f64> },
    /// Stages with bounded queues; work per item and stage in microseconds.
    Pipeline { stages: [f64; 4], capacity: u32 },
    /// Groups of senders and receivers.
    Messages { groups: u32, members: u32, work_us: f64 },
    /// Threads that read from a device.
    Device { work_us: f64, device_us: f64, parallel: u32 },
    /// One reader, many compressors, one writer.
    Compressor { block_us: f64 },
}

/// A program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// The suite that it belongs to.
    pub suite: &'static str,
    /// Where its parameters are from.
    pub source: &'static str,
    /// Working set of a thread, KiB.
    pub working_set_kib: u32,
    shape: Shape,
}

const fn server(name: &'static str, service_us: f64, cv: f64, load: f64) -> Model {
    let shape = Shape::Server { service_us, cv, load };
    Model { name, suite: "tailbench", source: "[T], loads after [S]", working_set_kib: 256, shape }
}

const fn model(
    name: &'static str,
    suite: &'static str,
    source: &'static str,
    working_set_kib: u32,
    shape: Shape,
) -> Model {
    Model { name, suite, source, working_set_kib, shape }
}

/// Threads that block at once.
const BLOCK: Option<f64> = None;
/// Threads that spin in user space and never sleep.
const SPIN: Option<f64> = Some(-1.0);

/// All models.
pub const MODELS: &[Model] = &[
    server("img-dnn", 1500.0, 0.1, 0.3),
    server("masstree", 250.0, 0.25, 0.15),
    server("moses", 3500.0, 0.75, 0.3),
    server("shore", 1000.0, 1.5, 0.2),
    server("silo", 40.0, 1.2, 0.1),
    server("specjbb", 120.0, 1.5, 0.15),
    server("sphinx", 200_000.0, 0.55, 0.3),
    server("xapian", 1100.0, 0.65, 0.3),
    model("blackscholes", "parsec", "[B] 8 barriers", 128, Shape::Independent { piece_us: 20_000.0 }),
    model(
        "bodytrack",
        "parsec",
        "[B] 619 barriers, 2042 waits",
        512,
        Shape::TaskQueue { work_us: 900.0, cv: 0.4, held_us: 2.0, spin_us: BLOCK },
    ),
    model("canneal", "parsec", "[B] 34 locks", 4096, Shape::Independent { piece_us: 10_000.0 }),
    model(
        "dedup",
        "parsec",
        "[B] 159 k locks, 1619 waits",
        1024,
        Shape::Pipeline { stages: [120.0, 450.0, 800.0, 150.0], capacity: 64 },
    ),
    model(
        "facesim",
        "parsec",
        "[B] 3137 waits",
        2048,
        Shape::Rounds { work_us: 1500.0, cv: 0.2, spin_us: BLOCK },
    ),
    model(
        "ferret",
        "parsec",
        "[B] 346 k locks, 1255 waits",
        512,
        Shape::Pipeline { stages: [300.0, 700.0, 900.0, 2500.0], capacity: 20 },
    ),
    model(
        "fluidanimate",
        "parsec",
        "[B] 17.8 M locks",
        512,
        Shape::LockedRounds { work_us: 4000.0, cv: 0.1, held_us: 0.5, locks: 20, spin_us: BLOCK },
    ),
    model(
        "freqmine",
        "parsec",
        "[B]; OpenMP spins before it sleeps",
        1024,
        Shape::Rounds { work_us: 8000.0, cv: 0.5, spin_us: Some(300.0) },
    ),
    model(
        "streamcluster",
        "parsec",
        "[B] 129600 barriers; its own barrier spins, then sleeps",
        512,
        Shape::Rounds { work_us: 350.0, cv: 0.1, spin_us: Some(1000.0) },
    ),
    model("swaptions", "parsec", "[B] 23 locks", 64, Shape::Independent { piece_us: 15_000.0 }),
    model(
        "barnes",
        "splash2x",
        "[W]",
        512,
        Shape::LockedRounds { work_us: 3000.0, cv: 0.3, held_us: 1.0, locks: 10, spin_us: BLOCK },
    ),
    model(
        "fft",
        "splash2x",
        "[W] few barriers",
        4096,
        Shape::Rounds { work_us: 30_000.0, cv: 0.05, spin_us: BLOCK },
    ),
    model(
        "fmm",
        "splash2x",
        "[W]",
        512,
        Shape::LockedRounds { work_us: 4000.0, cv: 0.25, held_us: 1.0, locks: 8, spin_us: BLOCK },
    ),
    model(
        "lu_cb",
        "splash2x",
        "[W] barrier per column of blocks",
        512,
        Shape::Rounds { work_us: 2500.0, cv: 0.6, spin_us: BLOCK },
    ),
    model(
        "ocean_cp",
        "splash2x",
        "[W] hundreds of barriers per step",
        2048,
        Shape::Rounds { work_us: 600.0, cv: 0.1, spin_us: BLOCK },
    ),
    model(
        "radiosity",
        "splash2x",
        "[W] task queues",
        512,
        Shape::TaskQueue { work_us: 250.0, cv: 1.0, held_us: 3.0, spin_us: BLOCK },
    ),
    model(
        "radix",
        "splash2x",
        "[W] barriers per digit",
        2048,
        Shape::Rounds { work_us: 12_000.0, cv: 0.05, spin_us: BLOCK },
    ),
    model(
        "raytrace",
        "splash2x",
        "[W] task queue per thread",
        512,
        Shape::TaskQueue { work_us: 1200.0, cv: 0.8, held_us: 1.0, spin_us: BLOCK },
    ),
    model(
        "volrend",
        "splash2x",
        "[W]; spins at its barriers (vSched 5.6)",
        256,
        Shape::Rounds { work_us: 1200.0, cv: 0.4, spin_us: SPIN },
    ),
    model(
        "water_nsquared",
        "splash2x",
        "[W]",
        128,
        Shape::LockedRounds { work_us: 5000.0, cv: 0.1, held_us: 0.5, locks: 16, spin_us: BLOCK },
    ),
    model(
        "water_spatial",
        "splash2x",
        "[W]",
        128,
        Shape::LockedRounds { work_us: 5000.0, cv: 0.1, held_us: 0.5, locks: 4, spin_us: BLOCK },
    ),
    model(
        "nginx",
        "other",
        "[E] 50 us per request of 1 KiB; connections stay with their worker",
        128,
        Shape::Server { service_us: 50.0, cv: 0.3, load: 0.5 },
    ),
    model("pbzip2", "other", "[E] 900 kB blocks", 4096, Shape::Compressor { block_us: 90_000.0 }),
    model(
        "hackbench",
        "other",
        "messages of 100 bytes",
        16,
        Shape::Messages { groups: 2, members: 10, work_us: 2.0 },
    ),
    model(
        "fio",
        "other",
        "[E] random reads of 4 KiB from flash, depth 1 per thread",
        16,
        Shape::Device { work_us: 6.0, device_us: 80.0, parallel: 32 },
    ),
    model("sysbench", "other", "prime numbers", 16, Shape::Independent { piece_us: 1000.0 }),
];

/// A program by name.
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}

fn wait_of(spin_us: Option<f64>) -> String {
    match spin_us {
        None => r#""x_wait": {"policy": "block"}"#.into(),
        Some(us) if us < 0.0 => r#""x_wait": {"policy": "spin"}"#.into(),
        Some(us) => format!(r#""x_wait": {{"policy": "spin_block", "spin_us": {us}}}"#),
    }
}

fn lognormal(mean: f64, cv: f64) -> String {
    format!(r#"{{"x_dist": "lognormal", "mean": {mean}, "cv": {cv}}}"#)
}

impl Model {
    /// Is it measured by latency? Otherwise by rounds of work.
    pub fn is_server(&self) -> bool {
        matches!(self.shape, Shape::Server { .. })
    }

    /// A workload with this number of threads. `capacity`: of all its vCPUs, in CPUs; the load of servers depends
    /// on it, unless it is given as `rate_hz`, requests per second.
    pub fn workload(&self, threads: u32, capacity: f64, rate_hz: Option<f64>) -> String {
        let ws = format!(r#""x_ws_kb": {}"#, self.working_set_kib);
        match self.shape {
            Shape::Server { service_us, cv, load } => {
                let rate = rate_hz.unwrap_or(load * capacity * 1e6 / service_us);
                let service = lognormal(service_us, cv);
                if self.suite == "tailbench" {
                    // As Tailbench's networked configuration does it.
                    return format!(
                        r#"{{"resources": {{"x_arrivals": {{"requests": {{"rate_hz": {rate:.3}, "service": {service}, "intake": "locked"}}}}}},
 "tasks": {{"worker": {{"instance": {threads}, "loop": -1, {ws}, "x_serve": "requests"}}}}}}"#
                    );
                }
                // A connection stays with the worker that has accepted it.
                let each =
                    |what: &dyn Fn(u32) -> String| (0..threads).map(what).collect::<Vec<_>>().join(",\n  ");
                let one_s = rate / f64::from(threads.max(1));
                format!(
                    r#"{{"resources": {{"x_arrivals": {{{}}}}},
 "tasks": {{{}}}}}"#,
                    each(&|i| format!(
                        r#""connections{i}": {{"rate_hz": {one_s:.3}, "service": {service}}}"#
                    )),
                    each(&|i| format!(r#""worker{i}": {{"loop": -1, {ws}, "x_serve": "connections{i}"}}"#))
                )
            }
            Shape::Independent { piece_us } => format!(
                r#"{{"tasks": {{"worker": {{"instance": {threads}, "loop": -1, {ws}, "run": {piece_us}}}}}}}"#
            ),
            Shape::Rounds { work_us, cv, spin_us } => format!(
                r#"{{"tasks": {{"worker": {{"instance": {threads}, "loop": -1, {ws}, {}, "run": {}, "barrier": "all"}}}}}}"#,
                wait_of(spin_us),
                lognormal(work_us, cv)
            ),
            Shape::LockedRounds { work_us, cv, held_us, locks, spin_us } => {
                let part = work_us / f64::from(locks);
                let mut steps = String::new();
                for i in 0..locks {
                    let lock = i % 4;
                    steps.push_str(&format!(
                        r#""run#{i}a": {}, "lock#{i}": "l{lock}", "run#{i}b": {held_us}, "unlock#{i}": "l{lock}", "#,
                        lognormal(part, cv)
                    ));
                }
                format!(
                    r#"{{"tasks": {{"worker": {{"instance": {threads}, "loop": -1, {ws}, {}, {steps}"barrier": "all"}}}}}}"#,
                    wait_of(spin_us)
                )
            }
            Shape::TaskQueue { work_us, cv, held_us, spin_us } => {
                // Four pieces per thread and round, then a barrier.
                let piece = format!(
                    r#""lock#N": "queue", "run#Na": {held_us}, "unlock#N": "queue", "run#Nb": {}, "#,
                    lognormal(work_us, cv)
                );
                let steps: String = (0..4).map(|i| piece.replace('N', &i.to_string())).collect();
                format!(
                    r#"{{"tasks": {{"worker": {{"instance": {threads}, "loop": -1, {ws}, {}, {steps}"barrier": "all"}}}}}}"#,
                    wait_of(spin_us)
                )
            }
            Shape::Pipeline { stages, capacity } => {
                let total: f64 = stages.iter().sum();
                // Threads per stage in proportion to its work, at least one.
                let share = |us: f64| ((us / total * f64::from(threads)).round() as u32).max(1);
                let queue = |name: &str| format!(r#""{name}": {{"cap": {capacity}}}"#);
                format!(
                    r#"{{"resources": {{"x_queues": {{{}, {}, {}}}}},
 "tasks": {{"read": {{"instance": {}, "loop": -1, {ws}, "run": {}, "x_put": "a"}},
  "second": {{"instance": {}, "loop": -1, {ws}, "x_get": "a", "run": {}, "x_put": "b"}},
  "third": {{"instance": {}, "loop": -1, {ws}, "x_get": "b", "run": {}, "x_put": "c"}},
  "last": {{"instance": {}, "loop": -1, {ws}, "x_get": "c", "run": {}, "x_count": 1}}}}}}"#,
                    queue("a"),
                    queue("b"),
                    queue("c"),
                    share(stages[0]),
                    lognormal(stages[0], 0.5),
                    share(stages[1]),
                    lognormal(stages[1], 0.5),
                    share(stages[2]),
                    lognormal(stages[2], 0.5),
                    share(stages[3]),
                    lognormal(stages[3], 0.5),
                )
            }
            Shape::Messages { groups, members, work_us } => {
                let queues: Vec<String> =
                    (0..groups).map(|g| format!(r#""pipe{g}": {{"cap": 600}}"#)).collect();
                let tasks: Vec<String> = (0..groups)
                    .map(|g| {
                        format!(
                            r#""sender{g}": {{"instance": {members}, "loop": -1, "run": {work_us}, "x_put": "pipe{g}"}},
  "receiver{g}": {{"instance": {members}, "loop": -1, "x_get": "pipe{g}", "run": {work_us}, "x_count": 1}}"#
                        )
                    })
                    .collect();
                format!(
                    r#"{{"resources": {{"x_queues": {{{}}}}},
 "tasks": {{{}}}}}"#,
                    queues.join(", "),
                    tasks.join(",\n  ")
                )
            }
            Shape::Device { work_us, device_us, parallel } => format!(
                r#"{{"resources": {{"x_devices": {{"disk": {{"service": {}, "parallel": {parallel}}}}}}},
 "tasks": {{"worker": {{"instance": {threads}, "loop": -1, {ws}, "run": {work_us}, "x_device": "disk"}}}}}}"#,
                lognormal(device_us, 0.3)
            ),
            Shape::Compressor { block_us } => format!(
                r#"{{"resources": {{"x_queues": {{"in": {{"cap": {}}}, "out": {{"cap": {}}}}}}},
 "tasks": {{"reader": {{"loop": -1, {ws}, "run": 1200, "x_put": "in"}},
  "compressor": {{"instance": {threads}, "loop": -1, {ws}, "x_get": "in", "run": {}, "x_put": "out"}},
  "writer": {{"loop": -1, {ws}, "x_get": "out", "run": 600, "x_count": 1}}}}}}"#,
                2 * threads,
                2 * threads,
                lognormal(block_us, 0.15)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn all_of_them_can_be_read() {
        assert_eq!(MODELS.len(), 34);
        for model in MODELS {
            let text = model.workload(12, 5.0, None);
            let workload =
                Workload::parse(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", model.name));
            assert_eq!(model.is_server(), !workload.streams.is_empty(), "{}", model.name);
        }
    }
}
