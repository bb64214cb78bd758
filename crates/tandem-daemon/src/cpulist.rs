//! CPU lists as the kernel writes them.

use crate::DaemonError;

/// Parses a kernel CPU list such as `0-3,8`.
///
/// # Errors
/// What is wrong with the list, and where it came from.
pub fn parse_cpu_list(text: &str, origin: &str) -> Result<Vec<usize>, DaemonError> {
    const MAX_CPU: usize = 65_535;
    let error = |reason| DaemonError::CpuList { text: text.trim().into(), origin: origin.into(), reason };
    let number = |part: &str| part.trim().parse::<usize>().map_err(|_| error("not a number"));
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if last > MAX_CPU {
            return Err(error("a CPU number above 65535"));
        }
        if first > last {
            return Err(error("a range that runs backwards"));
        }
        cpus.extend(first..=last);
    }
    if cpus.is_empty() {
        return Err(error("no CPU in it"));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// Reads one of the kernel's CPU lists below `/sys/devices/system/cpu`.
///
/// # Errors
/// There is no list of that name, or it is malformed.
pub fn kernel_cpu_list(name: &str) -> Result<Vec<usize>, DaemonError> {
    let path = std::path::PathBuf::from("/sys/devices/system/cpu").join(name);
    let text =
        std::fs::read_to_string(&path).map_err(|source| DaemonError::Read { path: path.clone(), source })?;
    parse_cpu_list(&text, &path.display().to_string())
}

/// CPUs that the kernel was told to isolate (`isolcpus`, `nohz_full`): they must not be disturbed unless
/// that is asked for. Without such a file or entry: none.
pub fn isolated_cpus() -> Vec<usize> {
    let mut cpus: Vec<usize> =
        ["isolated", "nohz_full"].iter().flat_map(|name| kernel_cpu_list(name).unwrap_or_default()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

#[cfg(test)]
mod tests {
    use super::parse_cpu_list;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpu_list("0-2,5\n", "test").unwrap(), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list("3", "test").unwrap(), [3]);
    }

    #[test]
    fn broken_lists_are_refused_with_their_origin() {
        for text in ["", "a", "3-1", "0-99999999999", "1-", "-1"] {
            let error = parse_cpu_list(text, "somewhere").unwrap_err().to_string();
            assert!(error.contains("somewhere"), "{error}");
        }
    }
}
