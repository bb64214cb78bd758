//! Generates the statistics from the lists of counters.

use tandem_counters::{generate, Field, Report};

const LISTS: [&str; 2] = ["../../bpf/core/counters.h", "../../bpf/guest/counters.h"];

fn main() {
    for list in LISTS {
        println!("cargo:rerun-if-changed={list}");
    }
    let report = Report {
        lists: &LISTS,
        name: "GuestStats",
        text: "Tandem guest scheduler",
        prefix: "tandem_guest_",
        fields: &[
            Field { name: "now", kind: "Moment", text: "runnable tasks and groups at this moment" },
            Field { name: "vcpus", kind: "BTreeMap<usize, VcpuStats>", text: "vCPUs" },
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
