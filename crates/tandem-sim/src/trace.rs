//! A run as a trace that ui.perfetto.dev reads (trace-event JSON): one process per kernel, one track per CPU.

use crate::machine::Machine;
use crate::queue::Ns;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Writes what a machine has recorded.
///
/// # Errors
/// Writing fails.
pub fn write(machine: &Machine, out: &mut dyn Write) -> io::Result<()> {
    let us = |ns: Ns| ns as f64 / 1e3;
    let mut first = true;
    let mut line = |out: &mut dyn Write, event: serde_json::Value| -> io::Result<()> {
        let separator = if std::mem::take(&mut first) { "[\n" } else { ",\n" };
        write!(out, "{separator}{event}")
    };
    for (number, world) in machine.worlds.iter().enumerate() {
        line(out, json!({"ph": "M", "name": "process_name", "pid": number, "args": {"name": world.name}}))?;
        let kind = if number == 0 { "pCPU" } else { "vCPU" };
        for cpu in 0..world.cpus.len() {
            let name = format!("{kind} {cpu}");
            line(
                out,
                json!({"ph": "M", "name": "thread_name", "pid": number, "tid": cpu, "args": {"name": name}}),
            )?;
        }
    }
    let mut running: BTreeMap<(usize, usize), (Ns, usize)> = BTreeMap::new();
    let mut ends = Vec::new();
    for switch in machine.record.switches.iter().flatten() {
        let place = (switch.world, switch.cpu);
        if let Some((since, task)) = running.remove(&place) {
            ends.push((place, since, switch.at, task));
        }
        if let Some(task) = switch.task {
            running.insert(place, (switch.at, task));
        }
    }
    ends.extend(running.into_iter().map(|(place, (since, task))| (place, since, machine.now, task)));
    for ((world, cpu), since, until, task) in ends {
        let name = &machine.tasks[task].name;
        line(
            out,
            json!({"ph": "X", "name": name, "pid": world, "tid": cpu, "ts": us(since), "dur": us(until - since)}),
        )?;
    }
    writeln!(out, "\n]")
}
