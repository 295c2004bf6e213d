//! Which provider and device of libfabric a rank takes.
//!
//! libfabric lists what fits, best first, and a rank takes the first entry, with two exceptions. It passes over a provider
//! that needs locked memory where the kernel lets the rank lock little, unless the user has named that provider: libfabric
//! lists it first wherever there is an RDMA device, and large collectives would fail. And it prefers addresses that other
//! hosts reach to those that lead to its own machine only.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::net::IpAddr;

use earlybird_ffi::ofi::{Info, InfoList, Library, Wanted, sys};

use super::{environment, probe};
use crate::config::OfiSettings;
use crate::fabric::locked_memory::{ENOUGH_LOCKED_MEMORY, LockedMemory};
use crate::fabric::scope::Scope;
use crate::units::Bytes;

/// What the choice depends on of an entry of libfabric's list.
#[derive(Clone, Debug)]
struct Candidate {
    provider: String,
    device: String,
    /// The kernel counts its memory against the limit of locked memory.
    locks_memory: bool,
    address: Option<IpAddr>,
    /// It reaches other hosts, as far as the provider says.
    is_remote: bool,
}

impl Candidate {
    fn of(info: Info<'_>) -> Self {
        Candidate {
            provider: info.provider().to_owned(),
            device: info.domain_name().to_owned(),
            locks_memory: locks_memory(info.provider(), info.domain().map_or(0, |domain| domain.mr_mode)),
            address: info.source(),
            is_remote: info.capabilities() & sys::FI_REMOTE_COMM != 0,
        }
    }

    fn scope(&self) -> Scope {
        match self.address {
            Some(address) => Scope::of(address),
            None if !self.is_remote => Scope::Machine,
            None => Scope::Anywhere,
        }
    }

    fn name(&self) -> String {
        format!("{} on {}", self.provider, self.device)
    }
}

/// Whether a provider has the kernel lock memory. A mode that asks for pages before memory is registered says so. The
/// layer `ofi_rxd` hides the modes of the provider below it.
fn locks_memory(provider: &str, modes: i32) -> bool {
    modes & sys::FI_MR_ALLOCATED as i32 != 0 || provider.split(';').any(|layer| layer == "verbs")
}

/// An entry of a list, and why it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    index: usize,
    scope: Scope,
    passed_over: Option<String>,
    /// The limit of locked memory, if it is low and concerns the provider.
    tight: Option<u64>,
}

/// The entry that a rank takes, where the kernel lets it lock up to `limit` bytes; `None` if no entry has the device.
fn choose(entries: &[Candidate], settings: &OfiSettings, limit: Option<u64>) -> Option<Choice> {
    let limit = limit.filter(|&limit| limit < ENOUGH_LOCKED_MEMORY);
    let exceeds = |entry: &Candidate| limit.filter(|_| entry.locks_memory && settings.provider.is_none());
    let has_device = |entry: &Candidate| settings.device.as_deref().is_none_or(|device| device == entry.device);
    let all = || entries.iter().enumerate().filter(|(_, entry)| has_device(entry));
    let rank = |&(index, entry): &(usize, &Candidate)| (exceeds(entry).is_some(), Reverse(entry.scope()), index);
    let best = all().min_by_key(rank)?;
    // Other machines need not reach a rank whose job is on this one.
    let is_inside = |&(_, entry): &(usize, &Candidate)| {
        entry.provider == best.1.provider && entry.address.is_some_and(|at| at.is_loopback())
    };
    let (index, entry) = all().find(is_inside).filter(|_| settings.on_one_machine).unwrap_or(best);
    let better = all().filter(|&(other, _)| other < index && exceeds(entry).is_none());
    let passed_over = better.filter_map(|(_, other)| Some((other, exceeds(other)?))).next();
    let passed_over = passed_over.map(|(other, limit)| {
        format!(
            "{} needs locked memory, and ulimit -l is {}; raise it, or say EARLYBIRD_PROVIDER='{}'",
            other.name(),
            Bytes(limit),
            other.provider
        )
    });
    // A user that names a device, or a provider without addresses such as shm, knows where it leads.
    let is_named = settings.device.is_some() || (settings.provider.is_some() && entry.address.is_none());
    let scope = if is_named { Scope::Anywhere } else { entry.scope() };
    Some(Choice { index, scope, passed_over, tight: limit.filter(|_| entry.locks_memory) })
}

/// What libfabric has for a rank.
pub(super) struct Found {
    list: InfoList,
    choice: Choice,
    /// What was asked for.
    pub(super) wanted: Wanted,
}

impl Found {
    /// The entry that the rank takes.
    pub(super) fn info(&self) -> Option<Info<'_>> {
        self.list.iter().nth(self.choice.index)
    }

    /// How far its address leads.
    pub(super) fn scope(&self) -> Scope {
        self.choice.scope
    }

    /// The better entry that the rank has passed over, and why.
    pub(super) fn passed_over(&self) -> Option<&str> {
        self.choice.passed_over.as_deref()
    }

    /// What may explain an error, for the end of its text.
    pub(super) fn hint(&self) -> String {
        let limit = self.choice.tight.map(Bytes);
        limit.map_or_else(String::new, |limit| format!("; it needs locked memory, and ulimit -l is {limit}"))
    }
}

/// Asks libfabric, and chooses.
///
/// # Errors
/// Nothing fits, with what to do.
pub(super) fn find(library: &Library, settings: &OfiSettings) -> Result<Found, String> {
    let provider = settings.provider.as_deref().map(CString::new).transpose();
    let provider = provider.map_err(|_| "the name of the provider contains a zero byte")?;
    let wanted = Wanted { provider, threading: sys::FI_THREAD_SAFE, ..probe::needed() };
    let filter = environment::filter().map_or_else(String::new, |filter| format!("; {filter}"));
    let list = library.info(&wanted).map_err(|code| {
        let (named, cause) = (settings.provider.as_deref().unwrap_or("any provider"), library.error_text(code));
        format!(
            "libfabric has no device of {named} that can do this ({cause}){filter}; `earlybird info` lists what there is"
        )
    })?;
    let entries: Vec<Candidate> = list.iter().map(Candidate::of).collect();
    let choice = choose(&entries, settings, LockedMemory::now().binding_limit());
    let choice = choice.ok_or_else(|| {
        // Several providers have the same ones.
        let devices: BTreeSet<&str> = entries.iter().map(|entry| &*entry.device).collect();
        let devices = devices.into_iter().collect::<Vec<_>>().join(", ");
        let device = settings.device.as_deref().unwrap_or_default();
        match &settings.provider {
            Some(provider) => format!("{provider} has no device {device}; it has {devices}{filter}"),
            None => format!("no provider has a device {device}; there are {devices}{filter}"),
        }
    })?;
    Ok(Found { list, choice, wanted })
}

/// The provider and device that a rank with these settings takes on this machine now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The provider, with the providers below it.
    pub provider: String,
    /// Its device.
    pub device: String,
    /// The hosts that reach it.
    pub scope: Scope,
    /// A better one that is passed over, and why.
    pub passed_over: Option<String>,
}

/// The provider and device that a rank with these settings takes on this machine now.
///
/// # Errors
/// Nothing fits, with what to do.
pub fn chosen(library: &Library, settings: &OfiSettings) -> Result<Chosen, String> {
    let found = find(library, settings)?;
    let info = found.info().ok_or("libfabric described nothing")?;
    Ok(Chosen {
        provider: info.provider().to_owned(),
        device: info.domain_name().to_owned(),
        scope: found.scope(),
        passed_over: found.passed_over().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn entry(provider: &str, device: &str, address: &str) -> Candidate {
        let pins = matches!(provider, "verbs;ofi_rxm" | "efa");
        let modes = if pins { (sys::FI_MR_LOCAL | sys::FI_MR_ALLOCATED) as i32 } else { 0 };
        let (locks_memory, address) = (locks_memory(provider, modes), address.parse().ok());
        Candidate {
            provider: provider.into(),
            device: device.into(),
            locks_memory,
            address,
            is_remote: provider != "shm",
        }
    }

    /// As libfabric lists them on a host with an RDMA device.
    fn rdma_host() -> Vec<Candidate> {
        vec![
            entry("verbs;ofi_rxm", "mlx5_0", "10.0.0.1"),
            entry("tcp;ofi_rxm", "eth0", "10.0.0.1"),
            entry("tcp;ofi_rxm", "lo", "127.0.0.1"),
            entry("verbs;ofi_rxd", "mlx5_0-dgram", ""),
            entry("udp;ofi_rxd", "eth0", "10.0.0.1"),
            entry("shm", "shm", ""),
        ]
    }

    fn named(provider: Option<&str>, device: Option<&str>) -> OfiSettings {
        let (provider, device) = (provider.map(str::to_owned), device.map(str::to_owned));
        OfiSettings { provider, device, ..OfiSettings::default() }
    }

    /// The entry that is taken, and what is passed over.
    fn taken(entries: &[Candidate], settings: &OfiSettings, limit: Option<u64>) -> (String, Option<String>) {
        let choice = choose(entries, settings, limit).unwrap();
        (entries[choice.index].name(), choice.passed_over)
    }

    #[test]
    fn locked_memory_is_not_used_where_there_is_little() {
        let host = rdma_host();
        let any = OfiSettings::default();
        let first = ("verbs;ofi_rxm on mlx5_0".to_owned(), None);
        for enough in [None, Some(ENOUGH_LOCKED_MEMORY), Some(u64::MAX)] {
            assert_eq!(taken(&host, &any, enough), first, "{enough:?}");
        }
        for (limit, told) in [(64 << 10, "64 KiB"), (8 * MIB, "8 MiB"), (ENOUGH_LOCKED_MEMORY - 1, "1024.0 MiB")] {
            let (name, passed_over) = taken(&host, &any, Some(limit));
            assert_eq!(name, "tcp;ofi_rxm on eth0");
            let told = format!(
                "verbs;ofi_rxm on mlx5_0 needs locked memory, and ulimit -l is {told}; raise it, or say \
                 EARLYBIRD_PROVIDER='verbs;ofi_rxm'"
            );
            assert_eq!(passed_over, Some(told));
        }
        let aws = [entry("efa", "rdmap0s6", ""), entry("tcp;ofi_rxm", "ens5", "10.0.0.1")];
        assert_eq!(taken(&aws, &any, Some(8 * MIB)).0, "tcp;ofi_rxm on ens5");
        // The layer hides that verbs locks memory.
        assert_eq!(taken(&host[3..5], &any, Some(8 * MIB)).0, "udp;ofi_rxd on eth0");
    }

    #[test]
    fn what_the_user_names_is_taken() {
        let (host, little) = (rdma_host(), Some(8 * MIB));
        let choice = choose(&host[..1], &named(Some("verbs;ofi_rxm"), None), little).unwrap();
        assert_eq!((choice.index, choice.passed_over, choice.tight), (0, None, little));
        // The only provider of the device.
        let choice = choose(&host, &named(None, Some("mlx5_0")), little).unwrap();
        assert_eq!((choice.index, choice.passed_over, choice.tight), (0, None, little));
        let choice = choose(&host, &named(None, Some("lo")), None).unwrap();
        assert_eq!((choice.index, choice.scope), (2, Scope::Anywhere));
        assert_eq!(choose(&host, &named(None, Some("eth7")), None), None);
    }

    #[test]
    fn a_job_on_one_machine_listens_inside() {
        let (mut inside, host) = (OfiSettings { on_one_machine: true, ..OfiSettings::default() }, rdma_host());
        let index = |settings: &OfiSettings, entries: &[Candidate]| choose(entries, settings, None).unwrap().index;
        assert_eq!(index(&inside, &host[1..]), 1);
        // A device is not left for a slower provider.
        assert_eq!(index(&inside, &host), 0);
        inside.provider = Some("tcp;ofi_rxm".to_owned());
        assert_eq!(index(&inside, &host[1..3]), 1);
        inside.device = Some("eth0".to_owned());
        assert_eq!(index(&inside, &host[1..3]), 0);
    }

    #[test]
    fn addresses_that_other_hosts_reach_come_first() {
        let any = OfiSettings::default();
        let at = |address: &str| entry("tcp;ofi_rxm", address, address);
        let scope = |entries: &[Candidate]| choose(entries, &any, None).map(|choice| (choice.index, choice.scope));
        assert_eq!(scope(&[at("127.0.0.1"), at("fe80::1"), at("10.0.0.1")]), Some((2, Scope::Anywhere)));
        assert_eq!(scope(&[at("127.0.0.1"), at("fe80::1")]), Some((1, Scope::Link)));
        let shm = [entry("shm", "shm", "")];
        assert_eq!(scope(&shm), Some((0, Scope::Machine)));
        assert_eq!(choose(&shm, &named(Some("shm"), None), None).map(|choice| choice.scope), Some(Scope::Anywhere));
        let alone = [at("127.0.0.1"), entry("sockets", "lo", "127.0.0.1"), entry("shm", "shm", "")];
        assert_eq!(scope(&alone), Some((0, Scope::Machine)));
        // An interface may come up, and the limit stays.
        let choice = choose(&[rdma_host()[0].clone(), at("127.0.0.1")], &any, Some(8 * MIB)).unwrap();
        assert_eq!((choice.index, choice.scope), (1, Scope::Machine));
        assert!(choice.passed_over.is_some());
        assert_eq!(scope(&[]), None);
    }
}
