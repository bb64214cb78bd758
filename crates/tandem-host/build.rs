//! Generates the statistics from the lists of counters.

use tandem_counters::{generate, Field, Report};

const LISTS: [&str; 2] = ["../../bpf/core/counters.h", "../../bpf/host/counters.h"];

fn main() {
    for list in LISTS {
        println!("cargo:rerun-if-changed={list}");
    }
    let report = Report {
        lists: &LISTS,
        name: "HostStats",
        text: "Tandem host scheduler",
        prefix: "tandem_host_",
        fields: &[
            Field { name: "now", kind: "Moment", text: "runnable tasks, groups and VMs at this moment" },
            Field { name: "vms", kind: "BTreeMap<String, VmStats>", text: "virtual machines" },
        ],
    };
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let written = generate(&report).and_then(|text| {
        std::fs::write(format!("{out}/counters.rs"), text).map_err(|error| error.to_string())
    });
    if let Err(error) = written {
        panic!("generating the statistics failed: {error}");
    }
}
