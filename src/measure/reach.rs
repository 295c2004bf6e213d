//! Whether each rank of a world reaches each other one: by a write, an atomic and a read.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::{Error, Misuse, Ranks, Result};
use crate::fabric::{
    Access, At, Atomic, CACHE_LINE, Change, Completion, Endpoint, Fabric, Key, Posted, RawAccess, Region, Signal,
    Window,
};

/// The call that errors name.
const REACH: &str = "reach";

/// Bytes of a peer's share of the memory: a word of data, and the cell of its signal right behind it.
const SHARE: usize = CACHE_LINE;
const SIGNAL: usize = size_of::<u64>();

/// What one rank has found.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// Peers that were reached.
    pub peers: u32,
    /// The peer with the slowest atomic, and its time in seconds: the shortest of several.
    pub slowest: Option<(u32, f64)>,
}

/// A rank's memory and that of its peers.
struct Mesh<'f> {
    fabric: &'f dyn Fabric,
    until: Instant,
    endpoint: Box<dyn Endpoint>,
    /// Peers write it: a share for each, and a counter behind them.
    own: (Region, Window),
    /// What this rank sends and reads, a share for each peer.
    scratch: (Region, Window),
    /// The memory of each rank.
    theirs: Vec<Region>,
}

/// The word that a rank writes to a peer.
fn word(from: u32, to: u32) -> u64 {
    (u64::from(from) << 32 | u64::from(to)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// Writes to each peer, waits for the writes of all, changes a counter of each peer `times` times,
/// and reads back what it wrote. All ranks call it; together they take at most `patience`.
///
/// # Errors
/// A rank that is not reached, or whose memory does not have what was written, by name.
pub fn reach(fabric: &dyn Fabric, times: u64, patience: Duration) -> Result<Reach> {
    let mut mesh = Mesh::open(fabric, Instant::now() + patience)?;
    let peers: Vec<u32> = (0..fabric.ranks()).filter(|&rank| rank != fabric.rank()).collect();
    peers.iter().try_for_each(|&peer| mesh.write(peer))?;
    mesh.hear(&peers)?;
    let mut slowest: Option<(u32, f64)> = None;
    for &peer in &peers {
        let seconds = mesh.count(peer, times)?;
        if slowest.is_none_or(|(_, most)| seconds > most) {
            slowest = Some((peer, seconds));
        }
    }
    peers.iter().try_for_each(|&peer| mesh.read_back(peer))?;
    // All have counted.
    mesh.meet()?;
    mesh.check_counter(peers.len() as u64 * times)?;
    // No rank ends while others may still reach it.
    mesh.meet()?;
    Ok(Reach { peers: peers.len() as u32, slowest })
}

impl<'f> Mesh<'f> {
    fn open(fabric: &'f dyn Fabric, until: Instant) -> Result<Self> {
        let (rank, ranks) = (fabric.rank(), fabric.ranks() as usize);
        let mut endpoint = fabric.open(RawAccess::CRATE)?;
        let own = endpoint.register((ranks + 1) * SHARE, Access::ReadWrite)?;
        let scratch = endpoint.register(ranks * SHARE, Access::Local)?;
        let keys = fabric.exchange(REACH, &endpoint.key(own).encode(), until)?;
        let import = |(peer, key): (u32, &Vec<u8>)| {
            if peer == rank {
                return Ok(own);
            }
            let strange = || Error::transport(rank, peer, REACH, "it makes another call, or is of another version");
            endpoint.import(peer, Key::decode(key).ok_or_else(strange)?)
        };
        let theirs = (0..).zip(&keys).map(import).collect::<Result<Vec<_>>>()?;
        let not_mapped =
            || Error::Usage { rank, operation: REACH, problem: Misuse::Unavailable("own memory is not mapped") };
        let window = |region| endpoint.window(region).ok_or_else(not_mapped);
        let (own, scratch) = ((own, window(own)?), (scratch, window(scratch)?));
        Ok(Mesh { fabric, until, endpoint, own, scratch, theirs })
    }

    fn rank(&self) -> u32 {
        self.fabric.rank()
    }

    fn strange(&self, peer: u32, what: &str) -> Error {
        Error::transport(self.rank(), peer, REACH, what)
    }

    /// The share of `of` in the memory of `at`.
    fn share(&self, at: u32, of: u32) -> At {
        At { region: self.theirs[at as usize], offset: of as usize * SHARE }
    }

    /// The part of the scratch memory for a peer.
    fn scratch(&self, peer: u32) -> At {
        At { region: self.scratch.0, offset: peer as usize * SHARE }
    }

    fn counter(&self, at: u32) -> At {
        self.share(at, self.fabric.ranks())
    }

    fn write(&mut self, peer: u32) -> Result<()> {
        let rank = self.rank();
        let (from, to) = (self.scratch(peer), self.share(peer, rank));
        self.scratch.1.write(from.offset, &word(rank, peer).to_le_bytes());
        let cell = At { offset: to.offset + SIGNAL, ..to };
        let signal = Signal { at: cell, change: Change::Set(1), awaited: true };
        let posted = self.endpoint.put(from, to, size_of::<u64>(), Some(signal), 0);
        self.settle(peer, posted).map(drop)
    }

    /// Waits for the signals of all peers, and looks at their data.
    fn hear(&mut self, peers: &[u32]) -> Result<()> {
        let own = self.own.1.clone();
        let has_come =
            |peer: u32| own.cell((peer as usize * SHARE + SIGNAL) / size_of::<u64>()).load(Ordering::Acquire) == 1;
        let missing = || peers.iter().copied().filter(|&peer| !has_come(peer)).collect::<Vec<_>>();
        while let late = missing()
            && !late.is_empty()
        {
            self.poll()?;
            self.give_up_after(late)?;
        }
        for &peer in peers {
            let mut bytes = [0; size_of::<u64>()];
            own.read(peer as usize * SHARE, &mut bytes);
            if u64::from_le_bytes(bytes) != word(peer, self.rank()) {
                return Err(self.strange(peer, "its write brought other data than it sent"));
            }
        }
        Ok(())
    }

    /// Adds to a peer's counter; returns the shortest time in seconds.
    fn count(&mut self, peer: u32, times: u64) -> Result<f64> {
        let (mut shortest, mut before) = (f64::INFINITY, None);
        for _ in 0..times {
            let start = Instant::now();
            let posted = self.endpoint.atomic(self.counter(peer), Atomic::FetchAdd(1), 0);
            let value = self.settle(peer, posted)?;
            shortest = shortest.min(start.elapsed().as_secs_f64());
            if before.replace(value).is_some_and(|before| before >= value) {
                return Err(self.strange(peer, "its counter went back between two atomics"));
            }
        }
        Ok(shortest)
    }

    fn read_back(&mut self, peer: u32) -> Result<()> {
        let rank = self.rank();
        let to = self.scratch(peer);
        self.scratch.1.write(to.offset, &[0; size_of::<u64>()]);
        let posted = self.endpoint.read(self.share(peer, rank), to, size_of::<u64>(), 0);
        self.settle(peer, posted)?;
        let mut bytes = [0; size_of::<u64>()];
        self.scratch.1.read(to.offset, &mut bytes);
        match u64::from_le_bytes(bytes) == word(rank, peer) {
            true => Ok(()),
            false => Err(self.strange(peer, "a read brought other data than was written there")),
        }
    }

    fn check_counter(&mut self, expected: u64) -> Result<()> {
        let rank = self.rank();
        let posted = self.endpoint.atomic(self.counter(rank), Atomic::FetchAdd(0), 0);
        let counted = self.settle(rank, posted)?;
        match counted == expected {
            true => Ok(()),
            false => {
                let cause = format!("{expected} atomics were made on its counter, which holds {counted}");
                Err(self.strange(rank, &cause))
            }
        }
    }

    fn meet(&self) -> Result<()> {
        self.fabric.exchange(REACH, &[], self.until).map(drop)
    }

    /// Waits for the one operation in flight; returns its value.
    fn settle(&mut self, peer: u32, posted: Result<Posted>) -> Result<u64> {
        if let Posted::Done(value) = posted.map_err(|error| error.in_call(REACH))? {
            return Ok(value);
        }
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(completion.value);
            }
            self.give_up_after(vec![peer])?;
        }
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        self.endpoint.poll().map_err(|error| error.in_call(REACH))
    }

    fn give_up_after(&self, missing: Vec<u32>) -> Result<()> {
        self.fabric.health(REACH)?;
        if Instant::now() < self.until {
            std::thread::yield_now();
            return Ok(());
        }
        self.fabric.check_peers(REACH)?;
        let cause = format!("{} did not answer in time; can its device and port be reached?", Ranks(missing.clone()));
        Err(Error::transport(self.rank(), missing.first().copied(), REACH, cause))
    }
}
