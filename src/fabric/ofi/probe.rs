//! What the providers of libfabric offer on this machine, found by queries: a provider returns what
//! a query asks for if it supports that, and says little about the rest.

use std::collections::{BTreeMap, BTreeSet};

use earlybird_ffi::ofi::{Info, InfoList, Library, Wanted, sys};

/// The agent that moves data at the target of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// The device or a thread of the provider.
    Automatic,
    /// Calls into libfabric by the target's process.
    Manual,
}

impl Progress {
    /// As it is printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Progress::Automatic => "automatic",
            Progress::Manual => "manual",
        }
    }
}

/// A device of a provider that has reliable, unconnected endpoints with remote writes and reads.
#[derive(Clone, Debug)]
pub struct Device {
    /// The provider, with the providers below it.
    pub provider: String,
    /// Its network.
    pub fabric: String,
    /// Its name.
    pub device: String,
    /// Remote atomic operations. A domain says which ones, and on which types.
    pub atomics: bool,
    /// Bytes of immediate data that a write can bring to the target's completion queue.
    pub remote_cq_data: usize,
    /// Up to this many bytes, a write lands before a later one to the same peer, when a query asks
    /// for that.
    pub ordered_writes: usize,
    /// Counters of the target count what others write.
    pub remote_counters: bool,
    /// The agent that moves data at the target.
    pub progress: Progress,
    /// Operations that wait in the provider until a counter has reached a threshold.
    pub triggers: bool,
    /// What memory needs before operations can use it.
    pub memory: Vec<&'static str>,
    /// Most bytes of one operation.
    pub most_bytes: usize,
    /// Counters that a domain can have.
    pub counters: usize,
}

impl Device {
    /// Operations that a rank may have queued in the provider; `None` without triggers.
    #[must_use]
    pub fn trigger_budget(&self) -> Option<u64> {
        self.triggers.then(|| super::most_queued(&self.provider))
    }
}

/// Identifies a device; libfabric describes one device once for each kind of address.
type Key = (String, String);

fn key(info: &Info<'_>) -> Key {
    (info.provider().to_owned(), info.domain_name().to_owned())
}

/// Modes of memory registration that this library supports.
const MEMORY: [(i32, &str); 5] = [
    (sys::FI_MR_LOCAL as i32, "local"),
    (sys::FI_MR_VIRT_ADDR as i32, "virtual address"),
    (sys::FI_MR_ALLOCATED as i32, "allocated"),
    (sys::FI_MR_PROV_KEY as i32, "provider key"),
    (sys::FI_MR_ENDPOINT as i32, "endpoint"),
];

/// What a provider must be able to do for this library.
pub(super) fn needed() -> Wanted {
    Wanted {
        caps: sys::FI_MSG | sys::FI_RMA,
        mode: sys::FI_CONTEXT | sys::FI_CONTEXT2,
        endpoint: sys::FI_EP_RDM,
        memory: MEMORY.iter().fold(0, |modes, (mode, _)| modes | mode),
        ..Wanted::default()
    }
}

/// What a provider that runs programs by itself must be able to do: it also counts remote writes.
pub(super) fn runs_programs() -> Wanted {
    let needed = needed();
    Wanted {
        caps: needed.caps | sys::FI_TRIGGER | sys::FI_RMA_EVENT,
        // Tokens are written without memory for the provider's own use.
        mode: 0,
        threading: sys::FI_THREAD_SAFE,
        memory: needed.memory | sys::FI_MR_RMA_EVENT as i32,
        ..needed
    }
}

/// The devices that fit; `None` if there is none.
///
/// # Errors
/// libfabric's error, if the query fails.
fn offering(library: &Library, wanted: &Wanted) -> Result<Option<InfoList>, String> {
    match library.info(wanted) {
        Ok(list) => Ok(Some(list)),
        Err(code) if code == -(sys::FI_ENODATA as i32) => Ok(None),
        Err(code) => Err(library.error_text(code)),
    }
}

/// The devices of this machine, each once, best first.
///
/// # Errors
/// libfabric's error, if the query fails.
pub fn devices(library: &Library) -> Result<Vec<Device>, String> {
    let all = offering(library, &needed())?;
    // A later query that fails counts as "no".
    let offering = |wanted: &Wanted| offering(library, wanted).ok().flatten();
    let with = |wanted: Wanted| -> BTreeSet<Key> {
        offering(&wanted).iter().flat_map(InfoList::iter).map(|info| key(&info)).collect()
    };
    let with_caps = |caps| with(Wanted { caps: needed().caps | caps, ..needed() });
    let (atomics, triggers) = (with_caps(sys::FI_ATOMIC), with(runs_programs()));
    let remote_counters = with_caps(sys::FI_RMA_EVENT);
    let ordered = offering(&Wanted { order: sys::FI_ORDER_RMA_WAW, ..needed() });
    let ordered: BTreeMap<Key, usize> = ordered
        .iter()
        .flat_map(InfoList::iter)
        .map(|info| (key(&info), info.endpoint().map_or(0, |endpoint| endpoint.max_order_waw_size)))
        .collect();
    let automatic = with(Wanted { progress: sys::FI_PROGRESS_AUTO, ..needed() });
    let mut seen = BTreeSet::new();
    let known = all.iter().flat_map(InfoList::iter).filter_map(|info| {
        let domain = info.domain()?;
        let key = key(&info);
        seen.insert(key.clone()).then(|| Device {
            provider: info.provider().to_owned(),
            fabric: info.fabric_name().to_owned(),
            device: info.domain_name().to_owned(),
            atomics: atomics.contains(&key),
            remote_cq_data: domain.cq_data_size,
            ordered_writes: ordered.get(&key).copied().unwrap_or(0),
            remote_counters: remote_counters.contains(&key),
            progress: if automatic.contains(&key) { Progress::Automatic } else { Progress::Manual },
            triggers: triggers.contains(&key),
            memory: MEMORY.iter().filter(|(mode, _)| domain.mr_mode & mode != 0).map(|&(_, name)| name).collect(),
            most_bytes: info.endpoint().map_or(0, |endpoint| endpoint.max_msg_size),
            counters: domain.cntr_cnt,
        })
    });
    Ok(known.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_ask_for_messages_and_remote_memory() {
        for wanted in [needed(), runs_programs()] {
            assert_eq!(wanted.caps & (sys::FI_MSG | sys::FI_RMA), sys::FI_MSG | sys::FI_RMA, "{wanted:?}");
            assert!(MEMORY.iter().all(|(mode, _)| wanted.memory & mode != 0), "{wanted:?}");
        }
    }
}
