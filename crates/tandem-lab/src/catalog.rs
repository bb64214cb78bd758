//! Built-in experiments.

use crate::{Experiment, LabError};
use std::path::Path;

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../experiments/", $name, ".toml")))),*]
    };
}

/// Name and text of each experiment.
const BUILT_IN: &[(&str, &str)] = built_in!(
    "demo",
    "starts",
    "swap",
    "pairs",
    "latency",
    "uncontended",
    "nice",
    "contention-4-4",
    "contention-8-8",
    "contention-16-16",
    "contention-8-2",
    "contention-4-16",
    "contention-2-2",
    "cost",
    "possible-2",
    "possible-64",
    "fair-nice",
    "fair-tree",
    "fair-llc",
    "quota",
    "idle",
    "slices",
    "bench",
    "bench-cost",
    "bench-mmap",
    "series",
    "loads",
    "watchdog",
    "probe-share",
    "probe-share-irregular",
    "probe-preemption",
    "probe-stacking",
    "probe-unstacked",
    "probe-cost",
    "live",
    "vact",
    "share-without-steal",
    "neighbours",
    "neighbours-web",
    "neighbours-bursty",
    "neighbours-weight",
    "neighbours-stacked",
    "neighbours-free",
    "neighbours-more",
    "moving",
    "bvs",
    "bvs-limit",
    "rwc",
    "ivh",
    "ivh-limit",
    "stack",
    "restack",
    "adapt",
    "dedicate",
    "gate",
    "hints",
    "originals",
    "park",
    "cpuset",
    "validation",
    "test-load",
    "test-guest",
    "test-techniques",
    "test-faults",
    "test-reports",
    "test-away",
    "test-hotplug",
    "test-nested",
    "test-probe",
    "test-vcpu-limit",
    "test-torture",
    "test-kernel",
    "test-observe",
    "test-host",
    "test-host-boots",
    "test-host-faults",
    "test-host-resets",
    "test-host-quota",
    "test-host-kvm",
    "test-boost",
    "test-inside",
    "boost-critical",
    "demo-host",
    "host-weights",
    "host-weights-libvirt",
    "host-quota",
    "host-quota-libvirt",
    "host-barrier",
    "host-apart",
    "host-poll",
    "host-echo",
    "host-observed",
    "host-cost",
    "host-io",
    "host-start",
    "host-yield",
    "host-both",
    "host-uncontended",
    "boost-echo",
    "boost-echo-work",
    "boost-ping",
    "boost-baselines",
    "boost-interrupts",
    "boost-shares",
    "boost-throughput",
    "boost-hostile",
    "boost-wakeups-8",
    "boost-wakeups-32",
    "host-validation",
);

/// Finds an experiment by name, or reads a file.
///
/// # Errors
/// There is no such experiment and no such file, or it is invalid.
pub fn find(name_or_file: &str) -> Result<Experiment, LabError> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_file) {
        return Experiment::parse(text, name);
    }
    if name_or_file.ends_with(".toml") || Path::new(name_or_file).exists() {
        let text = std::fs::read_to_string(name_or_file).map_err(LabError::io("read", name_or_file))?;
        return Experiment::parse(&text, name_or_file);
    }
    let known = BUILT_IN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Err(LabError::Unknown { name: name_or_file.into(), known })
}

/// All built-in experiments.
///
/// # Errors
/// One of them is invalid.
pub fn all() -> Result<Vec<Experiment>, LabError> {
    BUILT_IN.iter().map(|(name, text)| Experiment::parse(text, name)).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_built_in_experiment_is_valid_and_named_as_its_file() {
        for (experiment, (name, _)) in super::all().unwrap().iter().zip(super::BUILT_IN) {
            assert_eq!(experiment.name, *name);
        }
    }

    #[test]
    fn each_file_of_experiments_is_built_in() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap();
            let is_experiment = path.extension().is_some_and(|kind| kind == "toml");
            assert!(!is_experiment || super::find(stem).is_ok(), "{stem} is not in BUILT_IN");
        }
    }
}
