//! Creates, fills, reads and removes cgroups.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

use super::spec::GroupSpec;

const ROOT: &str = "/sys/fs/cgroup";

/// A tree of cgroups, removed when this value is dropped.
pub struct Groups {
    top: PathBuf,
}

impl Groups {
    /// Creates the groups with their weights and limits, below a group of their own.
    ///
    /// # Errors
    /// No cgroup v2, no cpu controller, or no permission to use them.
    pub fn create(specs: &[GroupSpec]) -> Result<Self> {
        write(&Path::new(ROOT).join("cgroup.subtree_control"), "+cpu")?;
        let top = Path::new(ROOT).join(format!("tandem-tree-{}", std::process::id()));
        std::fs::create_dir(&top).with_context(|| format!("creating {}", top.display()))?;
        let groups = Self { top };
        write(&groups.top.join("cgroup.subtree_control"), "+cpu")?;
        for spec in specs {
            let mut dir = groups.top.clone();
            let names: Vec<&str> = spec.path.split('/').collect();
            for (depth, name) in names.iter().enumerate() {
                dir.push(name);
                std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
                if depth + 1 < names.len() {
                    write(&dir.join("cgroup.subtree_control"), "+cpu")?;
                }
            }
            if spec.idle {
                write(&dir.join("cpu.idle"), "1")?;
            } else {
                write(&dir.join("cpu.weight"), &spec.weight.to_string())?;
            }
            if let Some((quota, period)) = spec.limit {
                write(&dir.join("cpu.max"), &format!("{quota} {period}"))?;
            }
        }
        Ok(groups)
    }

    fn dir(&self, spec: &GroupSpec) -> PathBuf {
        self.top.join(&spec.path)
    }

    /// Moves a process with all of its threads into the group.
    pub fn add_process(&self, spec: &GroupSpec, pid: u32) -> Result<()> {
        write(&self.dir(spec).join("cgroup.procs"), &pid.to_string())
    }

    /// CPU time of a group so far, microseconds.
    pub fn usage_us(&self, spec: &GroupSpec) -> Result<u64> {
        let path = self.dir(spec).join("cpu.stat");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        text.lines()
            .find_map(|line| line.strip_prefix("usage_usec "))
            .and_then(|value| value.trim().parse().ok())
            .with_context(|| format!("{}: no usage_usec", path.display()))
    }

    /// CPU time of all groups so far, microseconds.
    pub fn usage(&self, specs: &[GroupSpec]) -> Result<Vec<u64>> {
        specs.iter().map(|spec| self.usage_us(spec)).collect()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Groups that still contain processes cannot be removed.
        let _ = std::fs::write(self.top.join("cgroup.kill"), "1");
        for _ in 0..100 {
            remove(&self.top);
            if !self.top.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Removes a group and those below it. Groups that are in use stay.
fn remove(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(dir);
}

fn write(path: &Path, value: &str) -> Result<()> {
    std::fs::write(path, value).with_context(|| format!("writing {value:?} to {}", path.display()))
}
