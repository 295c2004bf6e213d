//! `earlybird info`: what this build and machine can do.

mod layout;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use crate::Config;
use crate::config::VARIABLES;
use crate::fabric::Scope;
use crate::fabric::ofi::{self, Chosen, Device, Library, devices, provider_variables};
use crate::machine::{host_identity, host_name};
use crate::offload::deferred_work::largest_depth;
use serde_json::json;

use super::table::Table;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// List the environment variables: name, value now, default, meaning
    #[arg(long)]
    env: bool,
    #[command(flatten)]
    layout: layout::LayoutArgs,
    /// JSON Lines, an object a row
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: &Args) -> super::Outcome {
    if args.layout.layout {
        return layout::main(&args.layout, args.json);
    }
    // What a command or a program would refuse.
    let config = Config::from_env();
    if let Err(error) = &config {
        complain!("warning: {error}");
    }
    if args.env {
        list_variables(args.json);
    } else {
        tell(args.json, &config.unwrap_or_default());
    }
    Ok(ExitCode::SUCCESS)
}

fn list_variables(json: bool) {
    let value = |name| match std::env::var(name).unwrap_or_default() {
        value if name == "EARLYBIRD_SECRET" && !value.is_empty() => "(set)".to_owned(),
        value => value,
    };
    if json {
        for variable in VARIABLES {
            say!(
                "{}",
                json!({"name": variable.name, "value": value(variable.name), "default": variable.default, "meaning": variable.meaning})
            );
        }
        return;
    }
    let mut table = Table::new(&["variable", "now", "default", "meaning"]);
    for variable in VARIABLES {
        table.row(&[
            variable.name.to_owned(),
            value(variable.name),
            variable.default.to_owned(),
            variable.meaning.to_owned(),
        ]);
    }
    say!("{table}");
}

/// Prints the fabrics, and what libfabric and RDMA devices could add.
fn tell(json: bool, config: &Config) {
    let cores = crate::machine::parallelism();
    let libfabric = ofi::library();
    let (devices, trouble) = match libfabric.as_ref().map(devices) {
        Ok(Ok(devices)) => (devices, None),
        Ok(Err(problem)) => (Vec::new(), Some(problem)),
        Err(_) => (Vec::new(), None),
    };
    let chosen = libfabric.as_ref().ok().map(|library| ofi::chosen(library, &config.ofi));
    let rdma = verbs::look(&config.verbs);
    if json {
        say!(
            "{}",
            json!({"fabric": "shm", "available": true, "host": host_identity(), "version": env!("CARGO_PKG_VERSION"), "cores": cores, "progress": "target side not needed", "atomics": "processor"})
        );
        let problem = libfabric.as_ref().err().map(ToString::to_string).or(trouble);
        let problem = problem.or(chosen.as_ref().and_then(|chosen| chosen.as_ref().err().cloned()));
        let chosen = chosen.as_ref().and_then(|chosen| chosen.as_ref().ok());
        let (provider, device) = (chosen.map(|it| &it.provider), chosen.map(|it| &it.device));
        let passed_over = chosen.map(|it| &it.passed_over);
        let scope = chosen.map(|it| leads_to(it.scope));
        let version = libfabric.as_ref().ok().map(version);
        let available = version.is_some() && !devices.is_empty();
        say!(
            "{}",
            json!({"fabric": "ofi", "available": available, "library": "libfabric", "found": version.is_some(), "version": version, "problem": problem, "chosen": provider, "chosen_device": device, "leads_to": scope, "passed_over": passed_over, "progress": "by callers and a thread", "atomics": "messages to the home's processor, or the device"})
        );
        say!("{}", json!({"secret": secret()}));
        devices.iter().for_each(|device| say!("{}", object(device)));
        rdma.objects().iter().for_each(|row| say!("{row}"));
        if libfabric.is_ok() {
            tell_provider_variables(true);
        }
        return;
    }
    say!("earlybird {}, {cores} core(s) allowed", env!("CARGO_PKG_VERSION"));
    say!("Host {}: {}. Ranks that have the same names here try to share memory.", host_name(), host_identity());
    let mut table = Table::new(&["fabric", "available", "what it is"]);
    table.row(&[
        "shm".into(),
        "yes".into(),
        "all ranks on this machine; an anonymous memory file, no /dev/shm needed".into(),
    ]);
    let ofi = if devices.is_empty() { "no" } else { "yes" };
    table.row(&[
        "ofi".into(),
        ofi.into(),
        "any hosts, by libfabric; a thread answers for ranks that compute, or the device, where it has atomics".into(),
    ]);
    table.row(&[
        "verbs".into(),
        if rdma.is_available() { "yes" } else { "no" }.into(),
        "any hosts on InfiniBand or RoCE, by libibverbs; devices carry out signals and atomics, where they can".into(),
    ]);
    table.row(&["sim".into(), "in tests".into(), "simulated network, for the protocol's own tests".into()]);
    say!("{table}");
    say!("");
    match libfabric {
        Ok(library) => match (&trouble, devices.is_empty()) {
            (Some(problem), _) => {
                say!("libfabric {} is here, and cannot say what it has: {problem}", version(&library))
            }
            (None, true) => {
                let filter = ofi::filter().map_or_else(String::new, |filter| format!(" {filter}."));
                say!("libfabric {} is here, and has no device that would do.{filter}", version(&library));
            }
            (None, false) => {
                say!(
                    "libfabric {}. What its providers offer (EARLYBIRD_PROVIDER, EARLYBIRD_DEVICE):",
                    version(&library)
                );
                say!("{}", listed(&devices));
                chosen.iter().for_each(tell_chosen);
                say!("");
                say!("{}", programs(&devices));
                say!("");
                tell_provider_variables(false);
                if let Some(absent) = absent(&devices) {
                    say!("Not here: {absent}. libfabric has them where such a device, its driver and its library are.");
                }
            }
        },
        Err(problem) => say!("No libfabric: {problem}."),
    }
    say!("");
    rdma.tell();
    say!("");
    say!("Secret (EARLYBIRD_SECRET): {}.", secret());
    say!("");
    say!("Environment: earlybird info --env");
}

/// Returns what keeps other users out of jobs on several hosts.
fn secret() -> String {
    let given = std::env::var_os("EARLYBIRD_SECRET");
    match (given, crate::Config::from_env()) {
        (Some(secret), Err(problem)) if problem.to_string().contains("EARLYBIRD_SECRET") => {
            format!("{} bytes, which no rank takes ({problem})", secret.len())
        }
        (Some(_), _) => "set".to_owned(),
        (None, _) => "not set. `earlybird run` draws one for each job, and so do ranks that meet by Open MPI or MPICH, and torch, whose \
             store shows it to processes that reach that; with other launchers others can join a job on several hosts, unless this line is before the one \
             that starts the ranks, with the same value on each host: export EARLYBIRD_SECRET=$(openssl rand -hex 16)"
            .to_owned(),
    }
}

/// Prints which provider and device a rank takes, and why.
fn tell_chosen(chosen: &Result<Chosen, String>) {
    let Chosen { provider, device, scope, passed_over } = match chosen {
        Ok(chosen) => chosen,
        Err(problem) => return say!("A rank here can use none of them: {problem}."),
    };
    let why = passed_over.as_ref().map_or_else(String::new, |why| format!(", because {why}"));
    say!("A rank here uses {provider} on {device}{why}.");
    if *scope < Scope::Anywhere {
        say!("That leads to {}: where ranks are on several, this one waits for another interface.", leads_to(*scope));
    }
}

fn leads_to(scope: Scope) -> &'static str {
    match scope {
        Scope::Machine => "no other host",
        Scope::Link => "hosts on its link only",
        Scope::Anywhere => "other hosts",
    }
}

/// Prints libfabric's own variables, for ranks that are started like this command.
fn tell_provider_variables(json: bool) {
    let all = provider_variables();
    if json {
        for it in all {
            let (variable, set_by) = (it.variable, it.set_by.name());
            say!(
                "{}",
                json!({"variable": variable.name, "value": it.value, "set_by": set_by, "for": variable.provider, "default": variable.default, "reason": variable.reason})
            );
        }
        return;
    }
    say!("libfabric's variables that matter here (a rank sets what you have not, while it has one thread):");
    let mut table = Table::new(&["variable", "value", "set by", "for", "because"]);
    for it in all {
        let cells = [it.variable.name, &it.value, it.set_by.name(), it.variable.provider, it.variable.reason];
        table.row(&cells.map(str::to_owned));
    }
    say!("{table}");
}

/// The world sizes for which `depths` are printed.
const TOLD: [u32; 3] = [2, 4, 8];

/// Returns how many rounds a provider can be armed ahead, by world size.
fn depths(provider: &str) -> BTreeMap<u32, u64> {
    TOLD.into_iter().map(|ranks| (ranks, largest_depth(provider, ranks))).collect()
}

/// Describes which providers run programs by themselves, and what happens with the others.
fn programs(devices: &[Device]) -> String {
    let able: BTreeSet<&str> = devices.iter().filter(|device| device.triggers).map(|it| &*it.provider).collect();
    let otherwise = "the ranks carry the rounds out, to the same bits";
    if able.is_empty() {
        return format!("Triggers: no provider here runs programs by itself; with --executor provider {otherwise}.");
    }
    let told = |provider: &&str| {
        let depths = depths(provider).into_iter().map(|(ranks, depth)| format!("{depth} with {ranks} ranks"));
        let depths: Vec<_> = depths.collect();
        format!(
            "{provider} runs programs by itself (--executor provider), up to depth {} where the first arrival fires",
            depths.join(", ")
        )
    };
    let able: Vec<_> = able.iter().map(told).collect();
    format!("Triggers: {}; beyond that, and elsewhere, {otherwise}.", able.join("; "))
}

/// The providers of fast networks that a library may have, with the networks.
const NETWORKS: [(&str, &str); 5] = [
    ("verbs", "InfiniBand, RoCE"),
    ("efa", "AWS"),
    ("cxi", "Slingshot; programs for it were never run on one"),
    ("psm3", "Ethernet, Omni-Path"),
    ("opx", "Omni-Path"),
];

/// Returns the providers of fast networks that this machine lacks.
fn absent(devices: &[Device]) -> Option<String> {
    let is_here = |name: &str| devices.iter().any(|device| device.provider.split(';').any(|part| part == name));
    let absent = NETWORKS.iter().filter(|(name, _)| !is_here(name));
    let absent: Vec<_> = absent.map(|(name, network)| format!("{name} ({network})")).collect();
    (!absent.is_empty()).then(|| absent.join(", "))
}

fn version(library: &Library) -> String {
    let (major, minor) = library.version();
    format!("{major}.{minor}")
}

fn listed(devices: &[Device]) -> Table {
    let mut table = Table::new(&[
        "provider", "device", "atomics", "cq data", "ordered", "counters", "progress", "triggers", "largest", "memory",
    ]);
    let yes = |is: bool| if is { "yes" } else { "-" }.to_owned();
    let bytes = |most: usize| match most {
        0 => "-".to_owned(),
        most if most >= usize::MAX / 2 => "any".to_owned(),
        most => most.to_string(),
    };
    for device in devices {
        table.row(&[
            device.provider.clone(),
            device.device.clone(),
            yes(device.atomics),
            device.remote_cq_data.to_string(),
            bytes(device.ordered_writes),
            yes(device.remote_counters),
            device.progress.name().to_owned(),
            device.trigger_budget().map_or("-".to_owned(), |most| most.to_string()),
            bytes(device.most_bytes),
            device.memory.join(", "),
        ]);
    }
    table
}

fn object(device: &Device) -> serde_json::Value {
    json!({
        "provider": device.provider,
        "network": device.fabric,
        "device": device.device,
        "atomics": device.atomics,
        "remote_cq_data": device.remote_cq_data,
        "ordered_writes": device.ordered_writes,
        "remote_counters": device.remote_counters,
        "progress": device.progress.name(),
        "triggers": device.triggers,
        "trigger_budget": device.trigger_budget(),
        "largest_depth": device.triggers.then(|| depths(&device.provider)),
        "most_bytes": device.most_bytes,
        "counters": device.counters,
        "memory": device.memory,
    })
}
