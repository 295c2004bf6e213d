//! What this machine is called.
#![forbid(unsafe_code)]

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// A namespace of this process.
fn space(kind: &str) -> String {
    let link = std::fs::read_link(format!("/proc/self/ns/{kind}"));
    link.map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The same text for processes that reach each other by loopback addresses.
pub(crate) fn network_stack() -> String {
    format!("{} {}", boot(), space("net"))
}

/// Tells machines apart, and parts of one machine that cannot reach each other: the boot id of the
/// kernel, and the namespaces of processes and of the network.
pub(crate) fn host_identity() -> String {
    format!("{} {} {}", boot(), space("pid"), space("net"))
}

/// The name that people know this machine by.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
