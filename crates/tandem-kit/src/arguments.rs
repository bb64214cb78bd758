//! Parsers for arguments with bounds. Each error names the value and what is accepted.

/// Maximum number of threads, stages, connections or groups of a workload: far above any sensible use, far below what
/// would exhaust a machine.
pub const MAX_THREADS: i64 = 1024;

/// A duration in seconds, 0.01 to 3600.
pub fn seconds(text: &str) -> Result<f64, String> {
    bounded(text, 0.01, 3600.0, "seconds")
}

/// A length in microseconds, 0.1 to 10 000 000.
pub fn microseconds(text: &str) -> Result<f64, String> {
    bounded(text, 0.1, 1e7, "microseconds")
}

/// An event rate in 1/s, 0.1 to 1 000 000.
pub fn rate(text: &str) -> Result<f64, String> {
    bounded(text, 0.1, 1e6, "events per second")
}

/// Environment variable with the work rate, so that all runs of a series do the same work, however disturbed the machine is when they start.
pub const ITERS_PER_US: &str = "TANDEM_ITERS_PER_US";

/// A work rate in iterations per microsecond, 0.01 to 100 000.
pub fn iters_per_us(text: &str) -> Result<f64, String> {
    bounded(text, 0.01, 1e5, "iterations per microsecond")
}

fn bounded(text: &str, low: f64, high: f64, what: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("expected {what} from {low} to {high}")),
    }
}

/// A list of CPUs in the kernel's notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl std::str::FromStr for CpuList {
    type Err = String;

    /// Reads e.g. `0-2,5`. Duplicates and the order are kept, so that `1,1,0` places two threads on CPU 1.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let cpu = part.trim().parse::<usize>().ok().filter(|&cpu| cpu < crate::sys::MAX_CPUS);
            cpu.ok_or_else(|| format!("{part:?} is not a CPU number below {}", crate::sys::MAX_CPUS))
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(format!("{part:?} is not an ascending range of CPUs, as in 0-3"));
                    }
                    cpus.extend(first..=last);
                }
                None => cpus.push(number(part)?),
            }
            if cpus.len() > MAX_THREADS as usize {
                return Err(format!("names more than {MAX_THREADS} CPUs"));
            }
        }
        Ok(CpuList(cpus))
    }
}

/// Number of CPUs that this process may use; the default number of threads.
pub fn available_cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32).min(MAX_THREADS as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cpu_lists() {
        assert_eq!("0-2,5".parse(), Ok(CpuList(vec![0, 1, 2, 5])));
        assert_eq!("1,1,0".parse(), Ok(CpuList(vec![1, 1, 0])));
        for bad in ["", "a", "1-", "3-1", "-1", "1,,2", "99999999999", "0-1023,0-1023"] {
            assert!(bad.parse::<CpuList>().is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(seconds("1.5"), Ok(1.5));
        for bad in ["0", "-1", "nan", "inf", "3601", "x", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert!(seconds("0").unwrap_err().contains("0.01 to 3600"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,30}") {
            if let Ok(CpuList(cpus)) = text.parse() {
                prop_assert!(!cpus.is_empty() && cpus.len() <= MAX_THREADS as usize);
            }
        }
    }
}
