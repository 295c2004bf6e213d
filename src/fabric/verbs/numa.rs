//! How far a NUMA node is from the processor on which this thread runs.
#![forbid(unsafe_code)]

/// The kernel's distance from this thread's node to another, 10 for the same; the largest number if
/// it is not known.
pub(super) fn distance(to: u32) -> u32 {
    let processor = rustix::thread::sched_getcpu();
    let node = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("node")?.parse::<u32>().ok();
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{processor}")).into_iter().flatten();
    let own = entries.filter_map(|entry| node(entry.ok()?)).next();
    let list = own.and_then(|own| std::fs::read_to_string(format!("/sys/devices/system/node/node{own}/distance")).ok());
    list.and_then(|list| list.split_whitespace().nth(to as usize)?.parse().ok()).unwrap_or(u32::MAX)
}
