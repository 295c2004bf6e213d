//! The names and identities of this machine.
#![forbid(unsafe_code)]

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Returns a text that is equal for processes that share the cores of a machine, in whatever namespaces they are.
pub(crate) fn machine_identity() -> String {
    boot()
}

/// Returns a namespace of this process.
fn space(kind: &str) -> String {
    let link = std::fs::read_link(format!("/proc/self/ns/{kind}"));
    link.map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns a text that is equal for processes that reach each other by loopback addresses.
pub(crate) fn network_stack() -> String {
    format!("{} {}", boot(), space("net"))
}

/// Returns a text that distinguishes machines, and parts of one machine that cannot reach each other: the boot id of
/// the kernel, and the namespaces of processes and of the network. Copies of a machine may have the same one.
pub(crate) fn host_identity() -> String {
    format!("{} {} {}", boot(), space("pid"), space("net"))
}

/// Returns a text that is equal for processes that share a monotonic clock.
pub(crate) fn clock_identity() -> String {
    format!("{} {}", boot(), space("time"))
}

/// Returns the kernel of this machine, such as `Linux 6.1.0`.
#[cfg(feature = "cli")]
pub(crate) fn kernel() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}

/// Returns the name by which people know this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
