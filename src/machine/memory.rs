//! The limits on memory.

use super::groups::{Group, Version};
use crate::units::parse_size;

/// Returns the bytes that this process may still allocate, and the name of the limit that applies.
pub(crate) fn available_memory() -> (u64, String) {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let machine = kilobytes.map(|kilobytes| (kilobytes << 10, "the machine's available memory"));
    let given = std::env::var("EARLYBIRD_MEMORY_LIMIT").ok().and_then(|text| parse_size(&text).ok());
    let given = given.map(|bytes| (bytes, "EARLYBIRD_MEMORY_LIMIT"));
    let groups = Group::of_this_process("memory");
    let groups = groups.iter().filter_map(free_in);
    let least = machine.into_iter().chain(groups).chain(given).min_by_key(|&(bytes, _)| bytes);
    least.map_or((u64::MAX, "nothing".to_owned()), |(bytes, limit)| (bytes, limit.to_owned()))
}

/// Returns the bytes that a group may still allocate, if it has a limit. The kernel drops pages of files when it needs
/// memory.
fn free_in(group: &Group) -> Option<(u64, &'static str)> {
    let (limit, usage, inactive, name) = match group.version {
        Version::One => (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file ",
            "the memory limit of the container or job (cgroup memory.limit_in_bytes)",
        ),
        Version::Two => (
            "memory.max",
            "memory.current",
            "inactive_file ",
            "the memory limit of the container or job (cgroup memory.max)",
        ),
    };
    let (limit, usage) = (group.number(limit)?, group.number(usage)?);
    let stat = group.text("memory.stat").unwrap_or_default();
    let reclaimable = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
    Some((limit.saturating_sub(usage).saturating_add(reclaimable.unwrap_or(0)), name))
}

#[cfg(test)]
mod tests {
    use super::super::groups::tests::Files;
    use super::*;

    fn least(machine: &Files) -> Option<u64> {
        machine.groups("memory").iter().filter_map(free_in).map(|(bytes, _)| bytes).min()
    }

    #[test]
    fn the_tightest_group_counts_in_both_versions() {
        let mounts = "27 20 0:24 / %/v2 rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("v2/job/memory.max", "1000\n"),
            ("v2/job/memory.current", "400\n"),
            ("v2/job/memory.stat", "anon 7\ninactive_file 50\n"),
            ("v2/job/step/memory.max", "max\n"),
            ("v2/job/step/memory.current", "300\n"),
        ];
        assert_eq!(least(&Files::new("memory-2", mounts, "0::/job/step\n", &files)), Some(650));
        let mounts = "26 20 0:23 / %/v1 rw - cgroup cgroup rw,memory\n";
        let files = [
            ("v1/memory.limit_in_bytes", "9223372036854771712\n"),
            ("v1/memory.usage_in_bytes", "900\n"),
            ("v1/job/memory.limit_in_bytes", "1000\n"),
            ("v1/job/memory.usage_in_bytes", "1200\n"),
            ("v1/job/memory.stat", "inactive_file 9\ntotal_inactive_file 30\n"),
        ];
        assert_eq!(least(&Files::new("memory-1", mounts, "5:cpu:/x\n4:memory:/job\n", &files)), Some(30));
        assert_eq!(least(&Files::new("memory-0", mounts, "4:memory:/other\n", &[])), None);
    }
}
