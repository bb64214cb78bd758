//! Runs threads that set themselves up and start together, and waits for them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{anyhow, Context, Result};

use crate::sys;

enum Phase {
    Waiting,
    /// Started at this time (monotonic, nanoseconds).
    Started(u64),
    Abandoned,
}

struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

struct GateState {
    ready: usize,
    failure: Option<anyhow::Error>,
    phase: Phase,
}

/// Locks a mutex whose data stays valid even if another holder panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `count` threads named `name`-*i*. Each calls `setup(i)`. When all are ready, each calls `body(i, start_ns)`
/// with one common start time. Returns the results of the bodies, in order.
///
/// # Errors
/// A thread cannot be created, or a set-up fails. No body runs then.
pub fn run_together<T: Send>(
    name: &str,
    count: usize,
    setup: impl Fn(usize) -> Result<()> + Sync,
    body: impl Fn(usize, u64) -> T + Sync,
) -> Result<Vec<T>> {
    let gate = Gate {
        state: Mutex::new(GateState { ready: 0, failure: None, phase: Phase::Waiting }),
        changed: Condvar::new(),
    };
    thread::scope(|scope| {
        let mut members = Vec::with_capacity(count);
        for index in 0..count {
            let (gate, setup, body) = (&gate, &setup, &body);
            let spawned =
                thread::Builder::new().name(format!("{name}-{index}")).spawn_scoped(scope, move || {
                    let start_ns = gate.arrive(setup(index))?;
                    Some(body(index, start_ns))
                });
            match spawned {
                Ok(member) => members.push(member),
                Err(error) => {
                    gate.abandon();
                    return Err(error)
                        .with_context(|| format!("cannot create thread {} of {count}", index + 1));
                }
            }
        }
        gate.open(count)?;
        let results = members.into_iter().map(|member| member.join().ok().flatten());
        results.collect::<Option<Vec<T>>>().ok_or_else(|| anyhow!("a thread of {name} died"))
    })
}

impl Gate {
    /// Reports the set-up and waits for the start; `None` if the start is cancelled.
    fn arrive(&self, setup: Result<()>) -> Option<u64> {
        let mut state = lock(&self.state);
        state.ready += 1;
        if let Err(error) = setup {
            state.failure.get_or_insert(error);
        }
        self.changed.notify_all();
        loop {
            match state.phase {
                Phase::Waiting => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Phase::Started(start_ns) => return Some(start_ns),
                Phase::Abandoned => return None,
            }
        }
    }

    fn open(&self, count: usize) -> Result<()> {
        let mut state = lock(&self.state);
        while state.ready < count {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let failure = state.failure.take();
        state.phase = if failure.is_some() { Phase::Abandoned } else { Phase::Started(sys::now_ns()) };
        self.changed.notify_all();
        failure.map_or(Ok(()), Err)
    }

    fn abandon(&self) {
        lock(&self.state).phase = Phase::Abandoned;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_start_at_the_same_time_after_all_set_ups() {
        let ready = AtomicUsize::new(0);
        let setup = |_| {
            ready.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let seen = run_together("t", 8, setup, |i, start| (i, start, ready.load(Ordering::SeqCst))).unwrap();
        assert!(seen.iter().enumerate().all(|(i, s)| *s == (i, seen[0].1, 8)), "{seen:?}");
    }

    #[test]
    fn a_failed_set_up_stops_everything() {
        let setup = |i| if i == 3 { Err(anyhow!("no luck")) } else { Ok(()) };
        let ran = AtomicUsize::new(0);
        let outcome = run_together("t", 8, setup, |_, _| ran.fetch_add(1, Ordering::SeqCst));
        assert_eq!(outcome.unwrap_err().to_string(), "no luck");
        assert_eq!(ran.load(Ordering::SeqCst), 0);
    }
}
