//! Work that a provider runs by itself, on the one provider of any machine that can: `sockets`.
#![allow(unsafe_code, clippy::unwrap_used, reason = "a test of bindings")]

mod skipped;

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use earlybird_ffi::ofi::{
    Counter, Domain, Endpoint, Fabric, Library, Local, Memory, Queue, Remote, Sign, Wanted, Work, sys,
};

use skipped::{Need, skipped};

/// A rank: an endpoint, 64 cells that peers write, and a counter of what they wrote.
struct Rank {
    endpoint: Arc<Endpoint>,
    memory: Memory,
    cells: NonNull<u64>,
    written: Arc<Counter>,
}

const CELLS: usize = 64;

fn domain(library: &Library) -> Option<(Arc<Domain>, Vec<Rank>)> {
    let wanted = Wanted {
        caps: sys::FI_MSG | sys::FI_RMA | sys::FI_TRIGGER | sys::FI_RMA_EVENT,
        endpoint: sys::FI_EP_RDM,
        threading: sys::FI_THREAD_SAFE,
        provider: Some(c"sockets".to_owned()),
        ..Wanted::default()
    };
    let Ok(list) = library.info(&wanted) else {
        skipped(Need::Libfabric, "this libfabric has no sockets provider");
        return None;
    };
    let info = list.iter().next().unwrap();
    let domain = Domain::open(Fabric::open(library, info).unwrap(), info).unwrap();
    let rank = |key: u64| {
        let queue = Queue::open(domain.clone(), 64, Sign::None).unwrap();
        let endpoint = Endpoint::open(domain.clone(), info, queue, 2).unwrap();
        let written = Counter::open(domain.clone()).unwrap();
        let cells = NonNull::from(Box::leak(Box::new([0u64; CELLS]))).cast();
        let (part, access) = ((cells.cast(), CELLS * 8), sys::FI_WRITE | sys::FI_REMOTE_WRITE);
        // SAFETY: leaked, so it stays; from here on it is only read as volatile.
        let memory = unsafe { Memory::register(endpoint.clone(), part, access, key, Some(written.clone())).unwrap() };
        Rank { endpoint, memory, cells, written }
    };
    let ranks = vec![rank(1), rank(2)];
    Some((domain, ranks))
}

impl Rank {
    fn cell(&self, index: usize) -> u64 {
        assert!(index < CELLS);
        // SAFETY: inside the leaked cells; peers may write them, so nothing is assumed about the value.
        unsafe { self.cells.add(index).read_volatile() }
    }

    fn set(&self, index: usize, value: u64) {
        assert!(index < CELLS);
        // SAFETY: as above; the test sets only cells that no operation writes.
        unsafe { self.cells.add(index).write_volatile(value) };
    }

    fn local(&self, index: usize) -> Local {
        assert!(index < CELLS);
        // SAFETY: inside the leaked cells.
        let base = unsafe { self.cells.add(index) }.cast().as_ptr();
        Local { base, len: 8, descriptor: self.memory.descriptor() }
    }

    /// A cell of `to`, as this rank names it.
    fn remote(&self, to: &Rank, index: usize) -> Remote {
        let peer = self.endpoint.insert(&to.endpoint.name().unwrap()).unwrap();
        let base = self.endpoint.origin(to.cells.cast());
        Remote { peer, address: base + 8 * index as u64, key: to.memory.key() }
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what} never happened");
        std::thread::yield_now();
    }
}

/// A chain over two ranks: a counter sets a write off, which the target counts, which sets a counter
/// and a write back off. No thread calls the library in between.
#[test]
fn a_chain_of_writes_and_counters_runs_by_itself() {
    let library = match Library::load(None) {
        Ok(library) => library,
        Err(problem) => return skipped(Need::Libfabric, problem),
    };
    let Some((domain, ranks)) = domain(&library) else { return };
    let [a, b] = &ranks[..] else { panic!("two ranks") };
    let counter = || Counter::open(domain.clone()).unwrap();
    let (start, sent, passed, answered) = (counter(), counter(), counter(), counter());
    let mut there = Work::write(start.clone(), a.endpoint.clone(), a.local(0), a.remote(b, 1), sent.clone());
    let mut pass = Work::add(b.written.clone(), passed.clone(), 5);
    let mut back = Work::write(passed.clone(), b.endpoint.clone(), b.local(2), b.remote(a, 3), answered.clone());
    for round in 1..=100 {
        a.set(0, 7 * round);
        b.set(2, 9 * round);
        // SAFETY: each has run when the round is over, lives as long as this test, and reads cells
        // that are set between rounds only.
        unsafe {
            there.queue(&domain, 2 * round).unwrap();
            pass.queue(&domain, round).unwrap();
            back.queue(&domain, 5 * round).unwrap();
        }
        start.add(1).unwrap();
        assert_eq!(sent.read(), Ok(round - 1), "one is not enough");
        start.add(1).unwrap();
        eventually("the answer", || a.written.read() == Ok(round));
        eventually("completion", || sent.read() == Ok(round) && answered.read() == Ok(round));
        assert_eq!((b.cell(1), a.cell(3)), (7 * round, 9 * round));
        assert_eq!(passed.read(), Ok(5 * round));
    }
    assert_eq!((sent.failures(), answered.failures()), (Ok(0), Ok(0)));
}
