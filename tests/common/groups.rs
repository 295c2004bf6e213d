//! Control groups with limits, for processes of a test (cgroups(7)).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Need, skipped, unique, wait_at_most};

/// A resource whose use a group limits.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Hundredths of a processor's time.
    Processor(u32),
    /// Bytes of memory.
    Memory(u64),
}

/// A group that has a limit, and one inside that has the processes, as batch systems and containers make them. A drop removes
/// both.
pub struct Group {
    outer: PathBuf,
    inner: PathBuf,
}

impl Group {
    /// A new group, by the version of the interface that this machine has. Prints a message where none can be made.
    pub fn new(limit: Limit) -> Option<Self> {
        let made = Self::make(limit);
        made.map_err(|why| skipped(Need::Groups, format_args!("no control group can be made: {why}; root can"))).ok()
    }

    fn make(limit: Limit) -> std::io::Result<Self> {
        let (controller, old, new) = match limit {
            Limit::Processor(percent) => (
                "cpu",
                vec![("cpu.cfs_period_us", 100_000.to_string()), ("cpu.cfs_quota_us", (percent * 1000).to_string())],
                ("cpu.max", format!("{} 100000", percent * 1000)),
            ),
            Limit::Memory(bytes) => {
                ("memory", vec![("memory.limit_in_bytes", bytes.to_string())], ("memory.max", bytes.to_string()))
            }
        };
        let first = Path::new("/sys/fs/cgroup").join(controller);
        let (root, files) = if first.is_dir() { (first, old) } else { (PathBuf::from("/sys/fs/cgroup"), vec![new]) };
        if root.join("cgroup.subtree_control").exists() {
            fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"))?;
        }
        let outer = root.join(unique());
        let group = Group { inner: outer.join("inner"), outer };
        fs::create_dir(&group.outer)?;
        fs::create_dir(&group.inner)?;
        files.into_iter().try_for_each(|(name, value)| fs::write(group.outer.join(name), value))?;
        Ok(group)
    }

    /// Has a process, and all that it starts from now on.
    pub fn hold(&self, pid: u32) {
        fs::write(self.inner.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may still be about to remove the last process.
        for folder in [&self.inner, &self.outer] {
            wait_at_most(Duration::from_secs(2), || fs::remove_dir(folder).is_ok() || !folder.exists());
        }
    }
}
