//! Helpers for parsing the output of other programs, which is untrusted and differs between versions.

use anyhow::{Context, Result};

/// The number right after `label`, anywhere in the text, e.g. `Time: 1.25`.
pub fn number_after(text: &str, label: &str) -> Option<f64> {
    let at = text.find(label)? + label.len();
    leading_number(text[at..].trim_start())
}

/// As [`number_after`], but a missing number is an error that names program and label.
pub fn expect_number_after(text: &str, label: &str, program: &str) -> Result<f64> {
    number_after(text, label).with_context(|| format!("{program}: no number after \"{label}\" in its output"))
}

/// The number at the very beginning of the text.
pub fn leading_number(text: &str) -> Option<f64> {
    let end =
        text.find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+' | 'e' | 'E')).unwrap_or(text.len());
    text[..end].parse().ok().filter(|number: &f64| number.is_finite())
}

/// Rounds to three digits after the point: no latency is more precise.
pub fn round3(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_after_labels() {
        assert_eq!(number_after("a\nTime: 1.25\n", "Time:"), Some(1.25));
        assert_eq!(number_after("x=-3us", "x="), Some(-3.0));
        assert_eq!(number_after("Time: soon", "Time:"), None);
        assert_eq!(number_after("", "Time:"), None);
        let error = expect_number_after("", "Time:", "hackbench").unwrap_err().to_string();
        assert_eq!(error, "hackbench: no number after \"Time:\" in its output");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,60}") {
            if let Some(number) = number_after(&text, ":") {
                prop_assert!(number.is_finite());
            }
        }
    }
}
