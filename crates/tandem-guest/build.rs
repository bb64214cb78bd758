//! Generates the statistics from the lists of counters.

use std::fmt::Write as _;

/// Lists of counters, in the order of `enum counter`.
const COUNTERS: [&str; 2] = ["../../bpf/core/counters.h", "../../bpf/guest/counters.h"];

fn main() {
    for list in COUNTERS {
        println!("cargo:rerun-if-changed={list}");
    }
    if let Err(error) = counters() {
        panic!("reading the lists of counters failed: {error}");
    }
}

/// One counter in the form of its list: `X(ID, name, "what it counts")`.
fn counter(line: &str) -> Option<(&str, &str)> {
    let inner = line.trim().trim_end_matches('\\').trim().strip_prefix("X(")?.strip_suffix(')')?;
    let mut parts = inner.splitn(3, ',').map(str::trim);
    let (_, name, text) = (parts.next()?, parts.next()?, parts.next()?);
    Some((name, text.strip_prefix('"')?.strip_suffix('"')?))
}

/// Writes `counters.rs`: the list, and the structure that is generated from it.
fn counters() -> Result<(), String> {
    let mut all = Vec::new();
    for path in COUNTERS {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        all.extend(text.lines().filter_map(counter).map(|(name, text)| (name.to_owned(), text.to_owned())));
    }
    let (mut list, mut fields, mut values, mut rest) =
        (String::new(), String::new(), String::new(), String::new());
    for (number, (name, text)) in all.iter().enumerate() {
        let _ = writeln!(list, "    ({name:?}, {text:?}),");
        let _ = writeln!(fields, "    /// {text}.\n    #[stat(desc = {text:?})]\n    pub {name}: u64,");
        let _ = writeln!(values, "            {name}: counters[{number}],");
        let _ = writeln!(rest, "            self.{name},");
    }
    let n = all.len();
    let text = format!(
        "/// Counters, by number (`enum counter`): name, and what it counts.\n\
         pub const COUNTERS: [(&str, &str); {n}] = [\n{list}];\n\n\
         /// The whole guest; counters since the previous report.\n\
         #[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]\n\
         #[stat(desc = \"Tandem guest scheduler\", _om_prefix = \"tandem_guest_\", top)]\n\
         pub struct GuestStats {{\n{fields}\
         \x20   /// What there is now, not since when.\n\
         \x20   #[stat(desc = \"runnable tasks and groups at this moment\")]\n\
         \x20   pub now: Moment,\n\
         \x20   /// Each vCPU.\n\
         \x20   #[stat(desc = \"vCPUs\")]\n\
         \x20   pub vcpus: BTreeMap<usize, VcpuStats>,\n}}\n\n\
         impl GuestStats {{\n\
         \x20   fn new(counters: [u64; {n}], now: Moment, vcpus: BTreeMap<usize, VcpuStats>) -> Self {{\n\
         \x20       Self {{\n{values}            now,\n            vcpus,\n        }}\n    }}\n\n\
         \x20   /// The counters, by number.\n\
         \x20   pub fn counters(&self) -> [u64; {n}] {{\n        [\n{rest}        ]\n    }}\n}}\n"
    );
    let out = std::env::var("OUT_DIR").map_err(|error| error.to_string())?;
    std::fs::write(format!("{out}/counters.rs"), text).map_err(|error| error.to_string())
}
