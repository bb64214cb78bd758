//! The table of constants in docs/HOST.md says what the code says, and leaves nothing out.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of the sources, below the root of the project; not those of the guest's side.
const SOURCES: [&str; 4] = ["bpf/core", "bpf/host", "policy", "policy/host"];
/// Beginnings of names that are no choice of ours: of the kernel's and KVM's interfaces, and of the layout of words and records.
const LAYOUT: [&str; 18] = [
    "K_",
    "KVM_",
    "PF_",
    "STAKE_",
    "NR_QUEUE",
    "NR_GROUP",
    "NR_WAITING",
    "THROTTLE_QUEUE_BASE",
    "LATE_QUEUE",
    "ROOT_GROUP",
    "TANDEM_CACHE_LINE",
    "TANDEM_EFFECTIVE_",
    "TANDEM_UNIT",
    "TANDEM_SCALE",
    "TANDEM_BOOKED_RUNS_SHIFT",
    "TAKEN_UNKNOWN",
    "TAKEN_OTHER",
    "NO_QUOTA_US",
];
/// Of traces, and units.
const OTHERS: [&str; 4] = ["TASK_NAME_LEN", "TRACE_BYTES", "NSEC_PER_USEC_", "NSEC_PER_MSEC_"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Value of an expression of numbers, names of units and `*`, `/`, `<<`, from left to right. `None`: it is none.
fn value_of(text: &str) -> Option<f64> {
    let plain = text.split("/*").next()?.replace(['(', ')'], " ");
    let mut words = plain.split_whitespace();
    let number = |word: &str| match word {
        "NSEC_PER_USEC_" => Some(1e3),
        "NSEC_PER_MSEC_" => Some(1e6),
        "TANDEM_SCALE" => Some(1024.0),
        _ => word.trim_end_matches(['U', 'L']).parse().ok(),
    };
    let mut value: f64 = number(words.next()?)?;
    while let Some(operator) = words.next() {
        let operand = number(words.next()?)?;
        value = match operator {
            "*" => value * operand,
            "/" => value / operand,
            "<<" => value * operand.exp2(),
            _ => return None,
        };
    }
    Some(value)
}

/// Constants of the code: name and value.
fn defined() -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    for folder in SOURCES {
        for entry in
            fs::read_dir(root().join(folder)).unwrap().flatten().filter(|entry| entry.path().is_file())
        {
            for line in fs::read_to_string(entry.path()).unwrap().lines() {
                let Some((name, text)) = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' '))
                else {
                    continue;
                };
                if let Some(value) = value_of(text) {
                    found.insert(name.to_owned(), value);
                }
            }
        }
    }
    found
}

/// Rows of the tables: name and value, times in ns.
fn documented() -> BTreeMap<String, f64> {
    let text = fs::read_to_string(root().join("docs/HOST.md")).unwrap();
    let section = text.split("### Constants").nth(1).unwrap().split("\n## ").next().unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.trim_end_matches('`').to_owned();
        let mut words = cells.next()?.split_whitespace();
        let number: f64 = words.next()?.parse().ok()?;
        let unit = match words.next() {
            Some("ms") => 1e6,
            Some("us") => 1e3,
            _ => 1.0,
        };
        Some((name, number * unit))
    };
    section.lines().filter_map(row).collect()
}

#[test]
fn the_table_of_constants_is_that_of_the_code() {
    let (code, table) = (defined(), documented());
    assert!(table.len() > 50, "{} rows", table.len());
    for (name, value) in &table {
        let there = code.get(name).unwrap_or_else(|| panic!("{name} is in the table and not in the code"));
        assert!((there - value).abs() < 1e-6, "{name} is {there} in the code and {value} in the table");
    }
    let fixed = |name: &&String| {
        !OTHERS.contains(&name.as_str()) && !LAYOUT.iter().any(|beginning| name.starts_with(beginning))
    };
    let missing: Vec<&String> = code.keys().filter(fixed).filter(|name| !table.contains_key(*name)).collect();
    assert!(missing.is_empty(), "not in the table: {missing:?}");
}

#[test]
fn expressions_are_read() {
    assert_eq!(value_of("(3 * NSEC_PER_MSEC_)"), Some(3e6));
    assert_eq!(value_of("(1ULL << 20)\t/* a comment */"), Some(1_048_576.0));
    assert_eq!(value_of("(TANDEM_SCALE * 3 / 4)"), Some(768.0));
    assert_eq!(value_of("__weak __noinline"), None);
    assert_eq!(value_of("(1UL << 17 | 1UL << 19)"), None);
}
