//! The limits on memory.

use crate::error::{Error, Result};

/// Checks that `need` bytes are available before any are taken. Returns how many are.
///
/// # Errors
/// [`Error::Memory`] with the need.
pub(crate) fn check_memory(rank: u32, operation: &'static str, need: u64) -> Result<u64> {
    let (available, limit) = available_memory();
    match need <= available {
        true => Ok(available),
        false => Err(Error::Memory { rank, operation, need, available, limit }),
    }
}

/// Bytes of the page cache of a control group, which the kernel drops when memory is needed.
fn reclaimable(group: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("{group}/memory.stat")).unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
}

/// Bytes that registered memory may still take, and the limit that says so.
fn available_memory() -> (u64, String) {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let number = |path: &str| read(path).and_then(|text| text.trim().parse::<u64>().ok());
    let mut least = (u64::MAX, "nothing".to_owned());
    let mut consider = |bytes: Option<u64>, limit: &str| {
        if let Some(bytes) = bytes.filter(|&bytes| bytes < least.0) {
            least = (bytes, limit.to_owned());
        }
    };
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    consider(kilobytes.map(|kilobytes| kilobytes << 10), "the machine's available memory");
    let group = read("/proc/self/cgroup").unwrap_or_default();
    for path in group.lines().filter_map(|line| line.strip_prefix("0::")) {
        let base = format!("/sys/fs/cgroup{}", path.trim_end_matches('/'));
        let free = number(&format!("{base}/memory.max"))
            .zip(number(&format!("{base}/memory.current")))
            .map(|(max, current)| max.saturating_sub(current).saturating_add(reclaimable(&base)));
        consider(free, "the memory limit of the container (cgroup memory.max)");
    }
    consider(
        std::env::var("EARLYBIRD_MEMORY_LIMIT").ok().and_then(|text| crate::units::parse_size(&text).ok()),
        "EARLYBIRD_MEMORY_LIMIT",
    );
    least
}
