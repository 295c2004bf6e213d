//! What `info` reports about RDMA verbs: the library, devices and ports, and the limit of locked memory.

use crate::VerbsSettings;
use crate::fabric::verbs::{self, DevicePort, ENOUGH_LOCKED_MEMORY, LinkLayer, LockedMemory, Survey, Waits};
use crate::units::Bytes;
use serde_json::{Value, json};

use super::super::table::Table;

/// The variables that choose a device.
const CHOICE: &str = "EARLYBIRD_DEVICE, EARLYBIRD_GID_INDEX";

/// What this machine has.
pub(super) struct Found {
    /// The devices; or why there is no library, or why it cannot list them.
    survey: Result<Survey, String>,
    /// Whether there is a library.
    has_library: bool,
    memory: LockedMemory,
}

/// Searches for the library and its devices.
pub(super) fn look(settings: &VerbsSettings) -> Found {
    let memory = LockedMemory::now();
    let library = match verbs::library() {
        Ok(library) => library,
        Err(problem) => return Found { survey: Err(problem.to_string()), has_library: false, memory },
    };
    let listed = verbs::survey(&library, settings);
    let survey = listed.map_err(|problem| format!("the RDMA devices cannot be listed: {problem}"));
    Found { survey, has_library: true, memory }
}

impl Found {
    /// Returns whether a rank here could use the fabric.
    pub(super) fn is_available(&self) -> bool {
        self.survey.as_ref().is_ok_and(|survey| survey.chosen.is_ok())
    }

    /// Returns why a rank here cannot use the fabric; `None` if it can.
    fn problem(&self) -> Option<String> {
        match &self.survey {
            Ok(survey) => survey.chosen.clone().err(),
            Err(problem) => Some(problem.clone()),
        }
    }

    /// Returns the rows for programs.
    pub(super) fn objects(&self) -> Vec<Value> {
        let chosen = self.survey.as_ref().ok().and_then(|survey| survey.chosen.as_ref().ok());
        let name = |(device, port): &(String, u8)| format!("{device}:{port}");
        // As in EARLYBIRD_DEVICE.
        let chosen = chosen.map(|rails| rails.iter().map(name).collect::<Vec<_>>().join(","));
        let fabric = json!({
            "fabric": "verbs", "available": self.is_available(), "library": "libibverbs", "found": self.has_library,
            "problem": self.problem(), "chosen": chosen,
            "locked_memory_limit": self.memory.limit, "locked_memory_exempt": self.memory.is_exempt,
            "progress": "by callers and a thread; devices carry out signals and atomics by themselves",
            "atomics": "device, or messages to the home's processor",
        });
        let survey = self.survey.as_ref().ok();
        let closed = survey.into_iter().flat_map(|survey| &survey.closed);
        let closed = closed.map(|(device, problem)| json!({"rdma_device": device, "problem": problem}));
        let ports = survey.into_iter().flat_map(|survey| &survey.ports).map(object);
        [fabric].into_iter().chain(ports).chain(closed).collect()
    }

    /// Prints it for people.
    pub(super) fn tell(&self) {
        match &self.survey {
            Err(problem) => say!("No RDMA verbs: {problem}."),
            Ok(survey) if survey.ports.is_empty() && survey.closed.is_empty() => say!(
                "libibverbs is here, and this machine has no RDMA device. Soft-RoCE makes one of a network interface: \
                 rdma link add rxe0 type rxe netdev INTERFACE"
            ),
            Ok(survey) => tell_devices(survey),
        }
        if self.has_library {
            tell_memory(&self.memory);
        }
    }
}

fn tell_devices(survey: &Survey) {
    match &survey.chosen {
        Ok(chosen) => {
            let rails: Vec<String> = chosen.iter().map(|(device, port)| format!("{device}, port {port}")).collect();
            say!("RDMA devices ({CHOICE}). A rank here uses {}:", rails.join(", and "));
        }
        Err(problem) => say!("RDMA devices ({CHOICE}). A rank here can use none of them: {problem}."),
    }
    if !survey.ports.is_empty() {
        say!("{}", listed(&survey.ports));
    }
    for port in &survey.ports {
        if let Some(problem) = &port.problem {
            say!("Not usable: {}, port {}: {problem}.", port.device, port.port);
        }
    }
    // Both ports of a device give the same answer.
    for port in survey.ports.iter().filter(|port| port.port == 1) {
        if let Err(problem) = &port.waits {
            say!("{} does not tell what its work queues can wait for: {problem}.", port.device);
        }
    }
    for (device, problem) in &survey.closed {
        say!("Not usable: {device}: {problem}. May this process open /dev/infiniband/uverbs* ?");
    }
}

fn listed(ports: &[DevicePort]) -> Table {
    let mut table =
        Table::new(&["device", "port", "link", "state", "address", "mtu", "atomics", "waits for", "NUMA node"]);
    for port in ports {
        table.row(&[
            port.device.clone(),
            port.port.to_string(),
            port.link.to_string(),
            port.state.to_owned(),
            address(port),
            port.mtu.to_string(),
            if port.atomics { "device" } else { "-" }.to_owned(),
            waits(port).to_owned(),
            port.numa_node.map_or("-".to_owned(), |node| node.to_string()),
        ]);
    }
    table
}

/// Describes what the device's work queues can wait for, in a word or two.
fn waits(port: &DevicePort) -> &'static str {
    match port.waits {
        Err(_) => "?",
        Ok(None | Some(Waits { completions: false, memory: false })) => "-",
        Ok(Some(Waits { completions: true, memory: false })) => "completions",
        Ok(Some(Waits { completions: false, memory: true })) => "memory",
        Ok(Some(Waits { completions: true, memory: true })) => "completions, memory",
    }
}

/// Returns the LID on InfiniBand, and the GID with its index and kind, if there is one.
fn address(port: &DevicePort) -> String {
    let lid = (port.link == LinkLayer::InfiniBand).then(|| format!("LID {}", port.lid));
    let all: Vec<String> = lid.into_iter().chain(port.gid.clone()).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn object(port: &DevicePort) -> Value {
    let waits = port.waits.as_ref().ok().and_then(Option::as_ref);
    json!({
        "rdma_device": port.device, "port": port.port, "link": port.link.to_string(), "state": port.state,
        "active": port.active, "lid": port.lid, "gid": port.gid, "mtu": port.mtu, "atomics": port.atomics,
        "waits_for_completions": waits.map(|waits| waits.completions), "waits_for_memory": waits.map(|waits| waits.memory),
        "waits_problem": port.waits.as_ref().err(),
        "numa_node": port.numa_node, "problem": port.problem,
    })
}

fn tell_memory(memory: &LockedMemory) {
    match (memory.limit, memory.binding_limit()) {
        (None, _) => say!("Locked memory (ulimit -l): no limit."),
        (Some(limit), None) => {
            say!("Locked memory (ulimit -l): {}, which does not bind this process (CAP_IPC_LOCK).", Bytes(limit))
        }
        (_, Some(limit)) if limit < ENOUGH_LOCKED_MEMORY => say!(
            "Locked memory (ulimit -l): {}. WARNING: ranks over verbs need as much as their collectives have, \
             and EARLYBIRD_FABRIC=auto takes other networks; raise the limit (ulimit -l unlimited, memlock in /etc/security/limits.conf; Slurm: sbatch --propagate=NONE).",
            Bytes(limit)
        ),
        (_, Some(limit)) => say!("Locked memory (ulimit -l): {}.", Bytes(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_what_the_link_needs() {
        let port = |link, gid: Option<&str>| DevicePort {
            device: "mlx5_0".to_owned(),
            port: 1,
            link,
            active: true,
            state: "active",
            lid: 7,
            gid: gid.map(str::to_owned),
            mtu: 4096,
            atomics: true,
            waits: Ok(None),
            numa_node: Some(0),
            problem: None,
        };
        let gid = "::ffff:10.0.0.1 (3, RoCE v2)";
        for (port, expected) in [
            (port(LinkLayer::InfiniBand, None), "LID 7"),
            (port(LinkLayer::InfiniBand, Some("fe80::1 (0, InfiniBand)")), "LID 7, fe80::1 (0, InfiniBand)"),
            (port(LinkLayer::Ethernet, Some(gid)), gid),
            (port(LinkLayer::Ethernet, None), "-"),
        ] {
            assert_eq!(address(&port), expected);
        }
    }

    #[test]
    fn what_is_missing_is_said_in_every_row_that_is_there() {
        let memory = LockedMemory { locked: 0, limit: Some(64 << 10), is_exempt: false };
        let missing = Found { survey: Err("no library".to_owned()), has_library: false, memory };
        let rows = missing.objects();
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0]["available"], &rows[0]["problem"]), (&false.into(), &"no library".into()));
        assert_eq!(rows[0]["locked_memory_limit"], 64 << 10);
        let closed = vec![("mlx5_0".to_owned(), "Permission denied".to_owned())];
        let survey = Survey { ports: Vec::new(), closed, chosen: Err("no device can be used".to_owned()) };
        let rows = Found { survey: Ok(survey), has_library: true, memory }.objects();
        assert_eq!((&rows[0]["found"], &rows[0]["problem"]), (&true.into(), &"no device can be used".into()));
        assert_eq!((&rows[1]["rdma_device"], &rows[1]["problem"]), (&"mlx5_0".into(), &"Permission denied".into()));
    }
}
