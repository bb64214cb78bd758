//! Results on disk.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use crate::error::ResultError;
use crate::schema::ExperimentResult;

/// Larger than any real result by orders of magnitude. Keeps a wrong path (a disk image) from filling memory.
const MAX_FILE_BYTES: u64 = 64 << 20;

impl ExperimentResult {
    /// Reads and checks a result file.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or fails [`Self::from_json`]. The error names the file.
    pub fn load(path: &Path) -> Result<Self, ResultError> {
        let io = |source| ResultError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let mut text = String::new();
        // The bound is on the bytes read, not on the file's size: a pipe or a device has none.
        let bytes = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(io)? as u64;
        if bytes > MAX_FILE_BYTES {
            return Err(ResultError::TooLarge { path: path.to_owned(), bytes, limit: MAX_FILE_BYTES });
        }
        Self::from_json(&text)
            .map_err(|source| ResultError::InFile { path: path.to_owned(), source: Box::new(source) })
    }

    /// Checks the result and writes it, so that a reader sees either the old file or the whole new one.
    ///
    /// # Errors
    /// The result is not valid, or the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), ResultError> {
        self.validate()?;
        let text = one_line_per_list(&serde_json::to_string_pretty(self)?);
        let io = |source| ResultError::Io { path: path.to_owned(), source };
        if is_special(path) {
            // `--json /dev/stdout` must not try to replace the device.
            return File::options()
                .write(true)
                .open(path)
                .and_then(|mut f| f.write_all(text.as_bytes()))
                .map_err(io);
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            // A failure to remove it is ignored: the first error matters.
            let _ = fs::remove_file(&part);
        }
        written.map_err(io)
    }
}

/// Objects of plain values up to this length are on one line.
const LINE: usize = 160;

/// A list of plain values on one line, and so is a short object: results consist of samples, and would have thousands of lines.
fn one_line_per_list(pretty: &str) -> String {
    let mut text = String::with_capacity(pretty.len());
    // Lines of a list or object that has begun, and may turn out to be one of plain values.
    let mut open: Vec<&str> = Vec::new();
    for line in pretty.lines() {
        let part = line.trim();
        if part.starts_with([']', '}']) {
            let values: Vec<&str> = open.iter().skip(1).map(|value| value.trim()).collect();
            let one = open.first().map(|first| format!("{first}{}{part}", values.join(" ")));
            match one.filter(|one| part.starts_with(']') || one.len() <= LINE) {
                Some(one) => push_line(&mut text, &one),
                None => open.iter().copied().chain([line]).for_each(|line| push_line(&mut text, line)),
            }
            open.clear();
        } else if part.ends_with(['[', '{']) {
            open.drain(..).for_each(|line| push_line(&mut text, line));
            open.push(line);
        } else if open.is_empty() {
            push_line(&mut text, line);
        } else {
            open.push(line);
        }
    }
    open.drain(..).for_each(|line| push_line(&mut text, line));
    text
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Evidence;

    #[test]
    fn saves_and_loads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        let result = ExperimentResult::new("x", Evidence::Kernel, "a", &["a"], 1);
        result.save(&path).unwrap();
        assert_eq!(ExperimentResult::load(&path).unwrap(), result);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file stays behind");
    }

    #[test]
    fn lists_of_samples_have_a_line_each() {
        let value =
            serde_json::json!({"a": [1, 2.5, -3], "b": [{"c": [], "d": ["x, [y", "z"]}], "e": [[1], [2, 3]]});
        let text = one_line_per_list(&serde_json::to_string_pretty(&value).unwrap());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert!(
            text.contains("  \"a\": [1, 2.5, -3],\n") && text.contains("\"d\": [\"x, [y\", \"z\"]\n"),
            "{text}"
        );
        assert!(text.lines().count() < 16, "{text}");
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broken.json");
        assert!(ExperimentResult::load(&path).unwrap_err().to_string().contains("broken.json"));
        fs::write(&path, "{").unwrap();
        assert!(ExperimentResult::load(&path).unwrap_err().to_string().contains("broken.json"));
        let result = ExperimentResult::new("x", Evidence::Kernel, "a", &["a"], 1);
        let missing = dir.path().join("none").join("run.json");
        assert!(result.save(&missing).unwrap_err().to_string().contains("none/run.json"));
    }

    #[test]
    fn an_invalid_result_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        let result = ExperimentResult::new("x", Evidence::Kernel, "other", &["a"], 1);
        assert!(result.save(&path).is_err());
        assert!(!path.exists());
    }
}
