//! Whether a device carries out atomics by itself.
//!
//! A provider that says it has atomics may carry them out in a call of the target's process, or in a
//! thread of it (fi_query_atomic(3) does not tell). So a device is opened for atomics by itself only
//! where it is known to have them, and only after all that a change of a cell consists of
//! ([`Changing`]) has worked on an endpoint that makes no call.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use earlybird_ffi::ofi::{
    self, Atomics, Code, Endpoint, Info, InfoList, Library, Local, NO_COMPLETION, Remote, Sign, Wanted, sys,
};

use super::change::{Changing, Words, operands};
use super::registration::{Failed, Registered, Registrar};
use crate::fabric::net::{CellChange, Purpose, Registered as _};
use crate::fabric::{Access, Atomic};

/// Providers of devices that carry out atomics. Others are opened for them on demand only.
const BY_DEVICES: [&str; 1] = ["cxi"];

/// How long the probe may take, and how long if the user asked for atomics.
const PATIENCE: Duration = Duration::from_millis(200);
const PATIENCE_ON_DEMAND: Duration = Duration::from_secs(10);

const CELL: usize = size_of::<u64>();

/// What a device that carries out atomics must be able to do, beside what is wanted.
fn wanted(plain: &Wanted) -> Wanted {
    Wanted { caps: plain.caps | sys::FI_ATOMIC, progress: sys::FI_PROGRESS_AUTO, ..plain.clone() }
}

/// What devices of a provider offer that are opened for atomics; `None` if they are not. `on_demand`:
/// also where it is not known who carries them out. Utility layers do it in calls of the target.
pub(super) fn offers(library: &Library, plain: &Wanted, provider: &str, on_demand: bool) -> Option<InfoList> {
    let is_tried = BY_DEVICES.contains(&provider) || (on_demand && !provider.contains(';'));
    if is_tried { library.info(&wanted(plain)).ok() } else { None }
}

/// The description of a device with atomics, if these work.
pub(super) fn of<'l>(
    (rank, library): (u32, &Library),
    offers: &'l InfoList,
    plain: Info<'_>,
    on_demand: bool,
) -> Option<Info<'l>> {
    let key = |info: Info<'_>| {
        let names = [info.provider(), info.fabric_name(), info.domain_name()].map(str::to_owned);
        (names, info.address_format())
    };
    let info = offers.iter().find(|&info| key(info) == key(plain))?;
    let patience = if on_demand { PATIENCE_ON_DEMAND } else { PATIENCE };
    let works = Probe::open(rank, library, info).and_then(|probe| probe.run(Instant::now() + patience));
    tracing::debug!(rank, provider = info.provider(), device = info.domain_name(), ?works, "atomics by the device");
    works.is_ok_and(|works| works).then_some(info)
}

/// Two endpoints on domains of their own, of which one makes no call.
struct Probe {
    words: Registered,
    cells: Registered,
    atomics: Atomics,
    asking: Arc<Endpoint>,
    idle: Arc<Endpoint>,
    /// Behind the endpoints, which may use it until they end.
    context: Box<sys::fi_context2>,
}

/// The memory of both: data, a cell that is added to or swapped, and one that is set.
const SHARED: usize = 4 * CELL;
const DATA: usize = 0;
const ADDED: usize = 1;
const SET: usize = 2;

/// Where the words of a change lie in the memory of the endpoint that asks.
const WORDS: usize = 8 * CELL;

impl Probe {
    fn open(rank: u32, library: &Library, info: Info<'_>) -> Result<Self, Failed> {
        let endpoint = || {
            let domain = ofi::Domain::open(ofi::Fabric::open(library, info)?, info)?;
            let queue = ofi::Queue::open(domain.clone(), 16, Sign::None)?;
            Endpoint::open(domain, info, queue, 2)
        };
        let open = || endpoint().map_err(Failed::Code);
        let (idle, asking) = (open()?, open()?);
        let memory = |endpoint: &Arc<Endpoint>, bytes, purpose| {
            Registrar::new(rank, endpoint.clone()).with_atomics().allocate(bytes, purpose)
        };
        Ok(Probe {
            cells: memory(&idle, SHARED, Purpose::Operations(Access::ReadWrite))?,
            words: memory(&asking, 2 * WORDS, Purpose::Operations(Access::ReadWrite))?,
            atomics: asking.atomics().map_err(Failed::Code)?,
            asking,
            idle,
            context: Box::new(sys::fi_context2 { internal: [std::ptr::null_mut(); 8] }),
        })
    }

    /// Whether all that a change consists of works: at the idle endpoint, and at the own one.
    fn run(mut self, until: Instant) -> Result<bool, Failed> {
        let works = self.change_all(until);
        if works != Ok(true) {
            // An operation may be in flight, and the provider may still use the memory.
            std::mem::forget(self);
        }
        works.map_err(Failed::Code)
    }

    fn change_all(&mut self, until: Instant) -> Result<bool, Code> {
        let peers = [self.idle.name()?, self.asking.name()?];
        let [idle, own] = [self.asking.insert(&peers[0])?, self.asking.insert(&peers[1])?];
        let (at_idle, at_own) = (self.cells.key().ok_or(Code::NO_KEY)?, self.words.key().ok_or(Code::NO_KEY)?);
        for (peer, (key, base)) in [(idle, at_idle), (own, at_own)] {
            let at = |cell: usize| Remote { peer, address: base + (cell * CELL) as u64, key };
            let added = |change, immediate| (CellChange::Atomic(change), ADDED, immediate);
            // Immediate data to itself is not used.
            let immediate = |data| (peer == idle).then_some(data);
            let changes = [
                added(Atomic::FetchAdd(5), immediate(1)),
                added(Atomic::CompareSwap { expect: 5, new: 7 }, None),
                added(Atomic::FetchAdd(0), None),
                (CellChange::Set(9), SET, immediate(2)),
            ];
            for ((change, cell, immediate), before) in changes.into_iter().zip([0, 5, 7, 9]) {
                if !self.change((at(DATA), at(cell)), change, immediate, until)? {
                    return Ok(false);
                }
                let mut word = [0; CELL];
                self.words.window().read(WORDS, &mut word);
                if u64::from_ne_bytes(word) != before {
                    return Ok(false);
                }
            }
        }
        let shows = |memory: &Registered| {
            [DATA, ADDED, SET].map(|cell| memory.window().cell(cell).load(Ordering::Acquire)) == [3, 7, 9]
        };
        Ok(shows(&self.cells) && shows(&self.words) && self.has_landed(until)?)
    }

    /// Makes one change, behind data; returns whether it has completed.
    fn change(
        &mut self,
        (to, cell): (Remote, Remote),
        change: CellChange,
        immediate: Option<u64>,
        until: Instant,
    ) -> Result<bool, Code> {
        let (window, data) = (self.words.window(), WORDS + 4 * CELL);
        let value = if let CellChange::Set(value) = change { value } else { 0 };
        let [first, second] = operands(change);
        for (index, word) in [value, first, second].into_iter().enumerate() {
            window.write(WORDS + index * CELL, &word.to_ne_bytes());
        }
        window.write(data, &3u64.to_ne_bytes());
        let local = |offset, len| -> Local { self.words.local(offset, len) };
        let mut changing = Changing {
            data: Some((local(data, CELL), to)),
            change: Some(change),
            immediate,
            cell,
            words: Words::new(local(WORDS, CELL + Words::OPERANDS)),
        };
        let mut entries = [NO_COMPLETION];
        let context = (&raw mut *self.context).cast();
        while !changing.is_over() {
            // SAFETY: registered memory and a context that live until the operation has completed, or else
            // for ever; nothing else uses them, and the one before has completed.
            while let Err(code) = unsafe { changing.post(&self.asking, &self.atomics, context) } {
                if code != Code::AGAIN {
                    return Err(code);
                }
                // Nothing of this endpoint is in flight: it only makes progress.
                let _ = self.asking.queue().read(&mut entries);
                if Instant::now() >= until {
                    return Ok(false);
                }
            }
            loop {
                match self.asking.queue().read(&mut entries) {
                    Ok(0) | Err(Code::AGAIN) if Instant::now() < until => std::thread::yield_now(),
                    Ok(0) | Err(Code::AGAIN | Code::AVAILABLE) => return Ok(false),
                    Ok(_) => break,
                    Err(code) => return Err(code),
                }
            }
        }
        Ok(true)
    }

    /// Whether the idle endpoint, once it looks, has the immediate data.
    fn has_landed(&self, until: Instant) -> Result<bool, Code> {
        let mut landed = Vec::new();
        let mut entries = [NO_COMPLETION];
        while landed.len() < 2 {
            match self.idle.queue().read(&mut entries) {
                Ok(0) | Err(Code::AGAIN) if Instant::now() < until => std::thread::yield_now(),
                Ok(0) | Err(Code::AGAIN | Code::AVAILABLE) => return Ok(false),
                Ok(_) => landed.push(entries[0].data),
                Err(code) => return Err(code),
            }
        }
        Ok(landed == [1, 2])
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::super::probe::needed;
    use super::super::stranger_tests::library;
    use super::*;

    /// Whether the first device of a provider is opened for atomics.
    fn carries_out(library: &Library, provider: &str, on_demand: bool) -> bool {
        let provider = Some(CString::new(provider).unwrap());
        let plain = Wanted { provider, threading: sys::FI_THREAD_SAFE, ..needed() };
        let found = library.info(&plain).unwrap();
        let first = found.iter().next().unwrap();
        let offers = offers(library, &plain, first.provider(), on_demand);
        offers.is_some_and(|offers| of((0, library), &offers, first, on_demand).is_some())
    }

    #[test]
    fn a_device_is_one_that_needs_no_call_of_the_target() {
        let Some(library) = library() else { return };
        assert!(carries_out(&library, "sockets", true), "a thread of it carries them out");
        assert!(!carries_out(&library, "sockets", false), "it is no device");
        for provider in ["tcp;ofi_rxm", "udp;ofi_rxd", "shm"] {
            assert!(!carries_out(&library, provider, true), "{provider} carries them out in calls of the target");
        }
    }
}
