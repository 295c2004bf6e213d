//! What this machine is called.
#![forbid(unsafe_code)]

/// Tells machines apart, and parts of one machine that cannot reach each other: the boot id of the
/// kernel, and the namespaces of processes and of the network.
pub(crate) fn host_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = |kind: &str| {
        let link = std::fs::read_link(format!("/proc/self/ns/{kind}"));
        link.map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
    };
    format!("{} {} {}", boot.trim(), space("pid"), space("net"))
}

/// The name that people know this machine by.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
