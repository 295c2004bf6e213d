//! Hosts on one machine: network namespaces, joined by virtual cables and a switch.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Job, Need, PROVIDERS, skipped, start};

/// So many hosts, removed when this is dropped.
pub struct Hosts {
    count: usize,
    id: String,
    has_ipv6: bool,
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

impl Hosts {
    /// Starts a rank on each of these hosts, which plays `role` in the test `rank`. They meet at a port of the first one.
    pub fn job(&self, places: &[usize], variables: &[(&str, &str)], role: &str) -> Job {
        let address = self.address(places[0]);
        let store = if self.has_ipv6 { format!("tcp:[{address}]:29400") } else { format!("tcp:{address}:29400") };
        let begin = |(rank, host): (u32, &usize)| {
            let mut command = self.command(*host);
            command.env("EARLYBIRD_STORE", &store).env("EARLYBIRD_SECRET", "of all these hosts");
            command.env("EARLYBIRD_PROVIDER", PROVIDERS[0]).envs(variables.iter().copied());
            start(&mut command, (rank, places.len() as u32), "rank", role)
        };
        Job { ranks: (0..).zip(places).map(begin).collect() }
    }

    /// Hosts that all reach each other; prints a message if there can be none.
    pub fn new(count: usize) -> Option<Hosts> {
        Self::with_addresses(count, false)
    }

    /// Hosts that have addresses of IPv6, and none of IPv4.
    pub fn with_ipv6(count: usize) -> Option<Hosts> {
        Self::with_addresses(count, true)
    }

    fn with_addresses(count: usize, has_ipv6: bool) -> Option<Hosts> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let hosts = Hosts { count, id, has_ipv6 };
        if !rustix::process::getuid().is_root() {
            skipped(Need::Root, "network namespaces need root");
            return None;
        }
        if let Err(error) = Command::new("ip").arg("-V").output() {
            skipped(Need::Ip, format_args!("ip cannot be run: {error}; install iproute2"));
            return None;
        }
        let switch = hosts.switch();
        if let Err(problem) = ip(&format!("netns add {switch}")) {
            skipped(Need::Namespaces, format_args!("no network namespaces here: {problem}"));
            return None;
        }
        let all = || -> Result<(), String> {
            ip(&format!("-n {switch} link add hub type bridge"))?;
            ip(&format!("-n {switch} link set hub up"))?;
            for host in 0..count {
                let name = hosts.name(host);
                let address = match has_ipv6 {
                    true => format!("{}/64 dev net0", hosts.address(host)),
                    false => format!("{}/24 dev net0", hosts.address(host)),
                };
                ip(&format!("netns add {name}"))?;
                ip(&format!("-n {name} link set lo up"))?;
                ip(&format!("-n {name} link add net0 type veth peer name port{host} netns {switch}"))?;
                ip(&format!("-n {name} addr add {address}"))?;
                ip(&format!("-n {name} link set net0 up"))?;
                ip(&format!("-n {switch} link set port{host} master hub up"))?;
            }
            Ok(())
        };
        all().unwrap_or_else(|problem| panic!("{problem}"));
        if has_ipv6 {
            // An address can be used once no other host has claimed it for a while.
            let settled = |host: usize| {
                let output = Command::new("ip").args(["-n", &hosts.name(host), "-6", "addr", "show", "net0"]).output();
                let text = String::from_utf8(output.unwrap().stdout).unwrap();
                text.contains("fe80::") && !text.contains("tentative")
            };
            super::until("the hosts can use their addresses", || (0..count).all(settled));
        }
        Some(hosts)
    }

    fn switch(&self) -> String {
        format!("eb{}-hub", self.id)
    }

    fn name(&self, host: usize) -> String {
        format!("eb{}-{host}", self.id)
    }

    pub fn address(&self, host: usize) -> String {
        let last = host + 1;
        if self.has_ipv6 { format!("fd77::{last}") } else { format!("10.77.0.{last}") }
    }

    /// The name that a host has of itself.
    pub fn host_name(host: usize) -> String {
        format!("host{host}")
    }

    /// A command that runs this test on a host.
    pub fn command(&self, host: usize) -> Command {
        self.command_of(host, std::env::current_exe().unwrap())
    }

    /// A command that runs a program on a host.
    pub fn command_of(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        let begin = format!("echo {} > /proc/sys/kernel/hostname && exec \"$0\" \"$@\"", Self::host_name(host));
        command.args(["netns", "exec", &self.name(host), "unshare", "--uts", "sh", "-c", &begin]);
        command.arg(program);
        command
    }

    /// Limits what a host can send per second.
    pub fn limit(&self, host: usize, rate: &str) {
        let limit =
            format!("netns exec {} tc qdisc add dev net0 root tbf rate {rate} burst 32k latency 50ms", self.name(host));
        ip(&limit).unwrap();
    }

    /// Limits what the kernel buffers for connections that begin later, if that can be set.
    pub fn buffer_little(&self, host: usize) {
        for name in ["tcp_rmem", "tcp_wmem"] {
            let set = format!("echo 4096 65536 262144 > /proc/sys/net/ipv4/{name}");
            let _ = Command::new("ip").args(["netns", "exec", &self.name(host), "sh", "-c", &set]).status();
        }
    }

    /// Takes a host's interface down, so that it has the loopback one only, or brings it up again.
    pub fn set_interface(&self, host: usize, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        ip(&format!("-n {} link set net0 {state}", self.name(host))).unwrap();
    }

    /// Gives a host these rules of nftables; says so if there can be none.
    pub fn has_firewall(&self, host: usize, rules: &str) -> bool {
        let output = Command::new("ip").args(["netns", "exec", &self.name(host), "nft", rules]).output().unwrap();
        let problem = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            skipped(Need::Firewall, format_args!("no rules of nftables here: {problem}"));
        }
        output.status.success()
    }

    /// Pulls the cable.
    pub fn unplug(&self, host: usize) {
        ip(&format!("-n {} link set port{host} down", self.switch())).unwrap();
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The cables are removed with their ends.
        for name in (0..self.count).map(|host| self.name(host)).chain([self.switch()]) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
