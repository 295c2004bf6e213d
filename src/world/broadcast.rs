//! Broadcasts: what one rank has is copied to all. A world opens one endpoint for all of them, and memory for a chunk: longer
//! data is copied chunk by chunk.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::World;
use crate::error::{Error, Ranks, Result};
use crate::fabric::{Access, At, Endpoint, Key, Posted, RawAccess, Region};
use crate::fault::Fault;
use crate::reduce::Item;
use crate::time::Deadline;

/// Bytes of a chunk, by size of the data: that of the first kind that all of it fits into, or the last.
const CHUNKS: [usize; 2] = [64 << 10, 4 << 20];

const OPERATION: &str = "broadcast";

/// What a rank has made for broadcasts so far.
#[derive(Debug)]
pub(super) struct Broadcasts {
    endpoint: Box<dyn Endpoint>,
    /// Where other ranks read what this one sends, for each size of a chunk.
    sent: [Option<Region>; CHUNKS.len()],
    /// Where a chunk from another host is received.
    received: [Option<Region>; CHUNKS.len()],
    /// The regions of other ranks.
    imported: Vec<(u32, Key, Region)>,
}

/// The data, the size of its chunks, and until when all must be copied.
struct Job<'a> {
    data: &'a mut [u8],
    kind: usize,
    until: Instant,
}

impl World {
    /// Copies `data` of rank `root` to all ranks, which must pass the same length. Returns when all
    /// ranks have read it: meant for data that is shared seldom, such as initial weights.
    ///
    /// # Errors
    /// As [`World::barrier`]; [`Error::Mismatch`] for different lengths or roots; [`Error::Usage`]
    /// if `root` is not a rank, or while another thread is in a broadcast.
    pub fn broadcast<T: Item>(&self, data: &mut [T], root: u32, deadline: impl Into<Deadline>) -> Result<()> {
        let rank = self.rank();
        self.check_process(OPERATION)?;
        let usage = |problem| Error::Usage { rank, operation: OPERATION, problem };
        if root >= self.size() {
            return Err(usage("the root is not a rank of this world"));
        }
        let mut made = self.inner.broadcasts.try_lock().ok_or_else(|| usage("another thread is in a broadcast"))?;
        let broadcasts = match &mut *made {
            Some(made) => made,
            none => none.insert(Broadcasts::new(self.fabric().open(RawAccess::CRATE)?)),
        };
        let data = bytemuck::cast_slice_mut(data);
        let kind = CHUNKS.iter().position(|&chunk| data.len() <= chunk).unwrap_or(CHUNKS.len() - 1);
        broadcasts.copy(self, root, Job { data, kind, until: deadline.into().instant() })
    }
}

impl Broadcasts {
    fn new(endpoint: Box<dyn Endpoint>) -> Self {
        Broadcasts { endpoint, sent: Default::default(), received: Default::default(), imported: Vec::new() }
    }

    fn copy(&mut self, world: &World, root: u32, job: Job<'_>) -> Result<()> {
        let Job { data, kind, until } = job;
        let (rank, fabric) = (world.rank(), world.fabric());
        let made = if rank == root { self.sending(kind).map(Some) } else { Ok(None) };
        let mine = [u64::from(made.is_ok()), data.len() as u64, u64::from(root)];
        let mut told = mine.map(u64::to_le_bytes).concat();
        if let Ok(Some(region)) = made {
            self.send(region, &data[..data.len().min(CHUNKS[kind])]);
            told.extend(self.endpoint.key(region).encode());
        }
        let everybody = fabric.exchange(OPERATION, &told, until)?;
        let sent = made.map_err(|error| error.in_call(OPERATION))?;
        compare(rank, mine, &everybody)?;
        if said(&everybody, root as usize, 0) == 0 {
            let reason = "it had no memory for a broadcast".to_owned();
            return Err(Error::Aborted { rank, operation: OPERATION, by: root, reason });
        }
        let key = everybody[root as usize].get(size_of_val(&mine)..).and_then(Key::decode).unwrap_or(Key::NONE);
        let count = data.len().div_ceil(CHUNKS[kind]).max(1);
        for (number, chunk) in data.chunks_mut(CHUNKS[kind]).enumerate() {
            match sent {
                // The first one is there.
                Some(region) if number > 0 => {
                    self.send(region, chunk);
                    world.barrier(until)?;
                }
                Some(_) => {}
                None => {
                    if number > 0 {
                        world.barrier(until)?;
                    }
                    let fetched = self.fetch((root, key), kind, chunk, (rank, until));
                    if let Err(error) = fetched.map_err(|error| error.in_call(OPERATION)) {
                        // The others cannot know, and would take this rank's next call for the end of this one.
                        world.abort(&format!("it could not go on with a broadcast: {error}"));
                        return Err(error);
                    }
                }
            }
            if number + 1 < count {
                // All have read it, and the next one takes its place.
                world.barrier(until)?;
            }
        }
        if Fault::BroadcastWithoutBarrier.is_chosen() {
            return Ok(());
        }
        // Other ranks may read the root's memory up to here.
        world.barrier(until)
    }

    /// The memory that others read.
    fn sending(&mut self, kind: usize) -> Result<Region> {
        if let Some(region) = self.sent[kind] {
            return Ok(region);
        }
        let region = self.endpoint.register(CHUNKS[kind], Access::Read)?;
        Ok(*self.sent[kind].insert(region))
    }

    fn send(&self, region: Region, chunk: &[u8]) {
        if let Some(window) = self.endpoint.window(region) {
            window.write(0, chunk);
        }
    }

    /// Reads the root's chunk.
    fn fetch(
        &mut self,
        (root, key): (u32, Key),
        kind: usize,
        chunk: &mut [u8],
        (rank, until): (u32, Instant),
    ) -> Result<()> {
        let known = self.imported.iter().find(|(of, known, _)| (*of, *known) == (root, key));
        let source = match known {
            Some(&(.., region)) => region,
            None => {
                let region = self.endpoint.import(root, key)?;
                self.imported.push((root, key, region));
                region
            }
        };
        if let Some(window) = self.endpoint.window(source) {
            window.read(0, chunk);
            return Ok(());
        }
        let started = Instant::now();
        let target = match self.received[kind] {
            Some(region) => region,
            None => *self.received[kind].insert(self.endpoint.register(CHUNKS[kind], Access::Local)?),
        };
        let (from, to) = (At { region: source, offset: 0 }, At { region: target, offset: 0 });
        if self.endpoint.read(from, to, chunk.len(), 0)? == Posted::Pending {
            while self.endpoint.poll()?.is_none() {
                if Instant::now() >= until {
                    let (waited, missing) = (started.elapsed(), Ranks(vec![root]));
                    return Err(Error::Timeout { rank, operation: OPERATION, waited, missing, together: true });
                }
            }
        }
        if let Some(window) = self.endpoint.window(target) {
            window.read(0, chunk);
        }
        Ok(())
    }
}

/// A number that a rank has told.
fn said(everybody: &[Vec<u8>], peer: usize, index: usize) -> u64 {
    let cell = everybody[peer].get(8 * index..8 * index + 8).and_then(|cell| cell.try_into().ok());
    cell.map_or(0, u64::from_le_bytes)
}

/// The first rank that passed something else.
fn compare(rank: u32, mine: [u64; 3], everybody: &[Vec<u8>]) -> Result<()> {
    for peer in 0..everybody.len() {
        for (index, what) in [(1, "the length in bytes"), (2, "the root")] {
            let (mine, theirs) = (mine[index].to_string(), said(everybody, peer, index).to_string());
            let overlooked = index == 1 && Fault::BroadcastAnyLength.is_chosen();
            if mine != theirs && !overlooked {
                return Err(Error::Mismatch { rank, operation: OPERATION, what, mine, peer: peer as u32, theirs });
            }
        }
    }
    Ok(())
}
