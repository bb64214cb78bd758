//! For build scripts: turns the lists of counters of the BPF side (`bpf/core/counters.h` and that of a side) into the
//! structure that a daemon reports. A counter is defined once; its field, description and order follow from the list.

use std::fmt::Write as _;

/// A field of the report beside the counters.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type, as the including module sees it.
    pub kind: &'a str,
    /// What it is: one line, without a final stop.
    pub text: &'a str,
}

/// What to generate.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// Lists of counters, in the order of `enum counter`.
    pub lists: &'a [&'a str],
    /// Name of the structure.
    pub name: &'a str,
    /// What reports: one line, without a final stop.
    pub text: &'a str,
    /// Prefix of the metrics.
    pub prefix: &'a str,
    /// What else is in it.
    pub fields: &'a [Field<'a>],
}

/// One counter in the form of its list: `X(ID, name, "what it counts")`.
fn counter(line: &str) -> Option<(&str, &str)> {
    let inner = line.trim().trim_end_matches('\\').trim().strip_prefix("X(")?.strip_suffix(')')?;
    let mut parts = inner.splitn(3, ',').map(str::trim);
    let (_, name, text) = (parts.next()?, parts.next()?, parts.next()?);
    Some((name, text.strip_prefix('"')?.strip_suffix('"')?))
}

/// Rust source: `COUNTERS`, and the structure with `new()` and `counters()`.
///
/// # Errors
/// A list that cannot be read, by its path.
pub fn generate(report: &Report<'_>) -> Result<String, String> {
    let mut all = Vec::new();
    for path in report.lists {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        all.extend(text.lines().filter_map(counter).map(|(name, text)| (name.to_owned(), text.to_owned())));
    }
    Ok(source(report, &all))
}

fn source(report: &Report<'_>, all: &[(String, String)]) -> String {
    let (mut list, mut fields, mut values, mut back) =
        (String::new(), String::new(), String::new(), String::new());
    // Writing to a String cannot fail.
    for (number, (name, text)) in all.iter().enumerate() {
        let _ = writeln!(list, "    ({name:?}, {text:?}),");
        let _ = writeln!(fields, "    /// {text}.\n    #[stat(desc = {text:?})]\n    pub {name}: u64,");
        let _ = writeln!(values, "            {name}: counters[{number}],");
        let _ = writeln!(back, "            self.{name},");
    }
    let mut arguments = String::new();
    for Field { name, kind, text } in report.fields {
        let _ = writeln!(fields, "    /// {text}.\n    #[stat(desc = {text:?})]\n    pub {name}: {kind},");
        let _ = writeln!(values, "            {name},");
        let _ = write!(arguments, ", {name}: {kind}");
    }
    let (n, Report { name, text, prefix, .. }) = (all.len(), report);
    format!(
        "/// Counters, by number (`enum counter`): name, and what it counts.\n\
         pub const COUNTERS: [(&str, &str); {n}] = [\n{list}];\n\n\
         /// {text}; counters since the previous report.\n\
         #[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]\n\
         #[stat(desc = {text:?}, _om_prefix = {prefix:?}, top)]\n\
         pub struct {name} {{\n{fields}}}\n\n\
         impl {name} {{\n\
         \x20   fn new(counters: [u64; {n}]{arguments}) -> Self {{\n\
         \x20       Self {{\n{values}        }}\n    }}\n\n\
         \x20   /// The counters, by number.\n\
         \x20   pub fn counters(&self) -> [u64; {n}] {{\n        [\n{back}        ]\n    }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_list_is_a_counter() {
        assert_eq!(counter("\tX(FAR, far, \"pulled, from afar\")"), Some(("far", "pulled, from afar")));
        assert_eq!(counter("\tX(DUE, due, \"light tasks\") \\"), Some(("due", "light tasks")));
        assert_eq!(counter("#define CORE_COUNTERS(X) \\"), None);
    }

    #[test]
    fn counters_come_first_and_in_order() {
        let all = [("a".to_owned(), "first".to_owned()), ("b".to_owned(), "second".to_owned())];
        let fields = [Field { name: "now", kind: "Moment", text: "at this moment" }];
        let report = Report { lists: &[], name: "R", text: "Reports", prefix: "r_", fields: &fields };
        let text = source(&report, &all);
        assert!(text.contains("pub const COUNTERS: [(&str, &str); 2]"), "{text}");
        assert!(text.contains("fn new(counters: [u64; 2], now: Moment) -> Self"), "{text}");
        assert!(text.contains("a: counters[0],\n            b: counters[1],\n            now,\n"), "{text}");
    }
}
