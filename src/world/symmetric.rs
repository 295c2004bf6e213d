//! Memory that has the same length on every rank, and that the other ranks read in place.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Instant;

use earlybird_ffi::fork;

use super::{Inner, World};
use crate::board::{Data, Kind, What, is_small, place};
use crate::error::{Error, Misuse, Result};
use crate::fabric::{Access, CACHE_LINE, Endpoint, HostMemory, Key, Window};
use crate::reduce::{BoardSource, Dtype, Element, Gathered, Item, Reduce};
use crate::time::Deadline;

/// The bytes reduced at a time, into memory that stays in a core's first-level cache. A result must not overwrite a
/// source that is still being read.
const CHUNK: usize = 16 << 10;

/// Memory that has the same length on every rank. Where ranks share memory, the others read it in place, so a reduction
/// of it copies nothing into [boards](World#synchronous-collectives) or out of them. Over a network only its own rank
/// reaches it, and a reduction copies as [`World::all_reduce`] does.
///
/// It does not keep its world alive: calls fail once the last handle of the world is dropped. The memory is freed when
/// all ranks have dropped theirs.
#[derive(Debug)]
pub struct SymmetricMemory {
    world: Weak<Inner>,
    rank: u32,
    /// The fork generation of the process that joined.
    generation: u32,
    /// The number of this memory among the symmetric memories of the world.
    number: u64,
    bytes: usize,
    own: HostMemory,
    own_window: Window,
    /// The memory of each rank; empty where ranks do not share memory.
    windows: Vec<Window>,
    /// Keeps the memory of all ranks until each rank has closed it.
    _endpoint: Box<dyn Endpoint>,
    /// Whether other ranks may read it: a call is in progress or has failed.
    is_lent: bool,
    sources: Gathered,
    scratch: Vec<u64>,
    /// What each rank says about the call.
    rows: Vec<Sizes>,
}

/// The number of a memory, and where the data of a call lies in it: its first byte, and its length in bytes.
type Sizes = [u64; 3];

impl World {
    /// Makes memory of `bytes` zeros on every rank. Collective: all ranks call it in the same order, with the same
    /// length.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for different lengths, and [`Error::Memory`] where there is too little memory; nothing is
    /// made then. An error, which may abort the world, where the threads of one rank made their calls in another order
    /// than those of other ranks. [`Error::Timeout`] with the ranks that did not come. Also a dead peer or an aborted
    /// job.
    pub fn symmetric_memory(&self, bytes: usize, deadline: impl Into<Deadline>) -> Result<SymmetricMemory> {
        const OPERATION: &str = "symmetric_memory";
        self.check_process(OPERATION)?;
        self.fabric().health(OPERATION)?;
        let number = self.inner.symmetric.fetch_add(1, Ordering::Relaxed);
        let (made, told) = self.meet(OPERATION, deadline.into().instant(), b's', |mut endpoint, _, _, shared| {
            let region = endpoint.register(bytes, if shared { Access::Read } else { Access::Local })?;
            let told =
                [&number.to_le_bytes()[..], &(bytes as u64).to_le_bytes(), &endpoint.key(region).encode()].concat();
            Ok(((endpoint, region, shared), told))
        })?;
        let (mut endpoint, region, shared) = made;
        let window = |endpoint: &dyn Endpoint, region, bytes| {
            let window = endpoint.window(region).filter(|window| window.len() >= bytes);
            let window = window.map(|window| window.truncated(bytes));
            window.ok_or_else(|| {
                self.misuse(OPERATION, Misuse::Unavailable("the transport gives no access to this memory"))
            })
        };
        let own_window = window(&*endpoint, region, bytes)?;
        let (mut windows, mut different) = (Vec::new(), None);
        for (peer, told) in (0..).zip(&told) {
            let (of_peer, theirs, key) = introduction(told)
                .ok_or_else(|| Error::transport(self.rank(), peer, OPERATION, "it told no key of its memory"))?;
            let both = [
                ("its number among symmetric memories", number, of_peer),
                ("the length in bytes", bytes as u64, theirs),
            ];
            different =
                different.or(both.into_iter().find(|(_, mine, theirs)| mine != theirs).map(|both| (peer, both)));
            if !shared {
                continue;
            }
            // Import also where lengths differ: memory is freed when each rank that expected to import it has closed
            // its endpoint.
            windows.push(match peer == self.rank() {
                true => own_window.clone(),
                false => {
                    let imported = endpoint.import(peer, key);
                    let imported = imported.and_then(|region| window(&*endpoint, region, theirs as usize));
                    imported.map_err(|error| self.out_of_step(error.in_call(OPERATION)))?
                }
            });
        }
        if let Some((peer, (what, mine, theirs))) = different {
            return Err(self.with_hosts(Error::mismatch(self.rank(), OPERATION, what, mine, (peer, theirs))));
        }
        Ok(SymmetricMemory {
            world: std::sync::Arc::downgrade(&self.inner),
            rank: self.rank(),
            generation: self.inner.generation,
            number,
            bytes,
            own: HostMemory::new(own_window.clone()),
            windows,
            own_window,
            _endpoint: endpoint,
            is_lent: false,
            sources: Gathered::default(),
            scratch: Vec::new(),
            rows: Vec::new(),
        })
    }
}

/// Decodes what a rank tells about its memory: its number there, the length, and the key.
fn introduction(told: &[u8]) -> Option<(u64, u64, Key)> {
    let (number, rest) = told.split_first_chunk()?;
    let (length, key) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), u64::from_le_bytes(*length), Key::decode(key)?))
}

impl SymmetricMemory {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the address of the first byte, which begins a page: for bindings of other languages. The address is
    /// valid until this memory is dropped. Other ranks read the memory while a call of this rank is in progress.
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.own_window.bytes(0, self.bytes)
    }

    /// Returns whether this is the process that joined, not a child that was forked from it. A forked child must forget
    /// this memory instead of dropping it ([`World::is_own`]).
    #[must_use]
    pub fn is_own(&self) -> bool {
        fork::generation() == self.generation
    }

    /// Returns the memory as whole elements.
    ///
    /// # Errors
    /// [`Error::Usage`] after a call that failed.
    pub fn as_slice<T: Item>(&self) -> Result<&[T]> {
        self.check_own("as_slice")?;
        Ok(self.own.outcome(0, self.bytes / size_of::<T>() * size_of::<T>()))
    }

    /// Returns the memory as whole elements, to be written.
    ///
    /// # Errors
    /// [`Error::Usage`] after a call that failed: other ranks may still read it.
    pub fn as_mut_slice<T: Item>(&mut self) -> Result<&mut [T]> {
        self.check_own("as_mut_slice")?;
        Ok(self.own.contribution(0, self.bytes / size_of::<T>() * size_of::<T>()))
    }

    /// Reduces a range of elements of all ranks, element by element, and writes the result to the same range on every
    /// rank. All ranks pass the same range. Like [`World::all_reduce`], it is a synchronous collective, and it gives
    /// the same bits.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives). [`Error::Mismatch`] on all ranks for
    /// different ranges or memories: the call has done nothing then, and the ranks are in step. Where data goes through
    /// boards (over a network, and up to 16 KiB of all ranks together) a mismatch aborts the world, as in any other
    /// collective.
    pub fn all_reduce<T: Element>(
        &mut self,
        range: Range<usize>,
        reduce: Reduce,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let scaled = |elements: usize| elements.saturating_mul(size_of::<T>());
        self.all_reduce_bytes(T::DTYPE, scaled(range.start)..scaled(range.end), reduce, deadline)
    }

    /// As [`SymmetricMemory::all_reduce`], for elements whose type is known only at run time. The range is in bytes.
    ///
    /// # Errors
    /// As [`SymmetricMemory::all_reduce`]; [`Error::Usage`] for a range that does not consist of whole elements.
    pub fn all_reduce_bytes(
        &mut self,
        dtype: Dtype,
        range: Range<usize>,
        reduce: Reduce,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        const OPERATION: &str = "all_reduce";
        let inner = self
            .world
            .upgrade()
            .ok_or_else(|| self.misuse(OPERATION, Misuse::Finished("the world of this memory is gone")))?;
        let world = World { inner };
        self.check_own(OPERATION)?;
        world.check_reduction(OPERATION, (dtype, reduce))?;
        let is_whole = [range.start, range.end].iter().all(|place| place.is_multiple_of(dtype.size()));
        if range.start > range.end || range.end > self.bytes || !is_whole {
            return Err(
                self.misuse(OPERATION, Misuse::Argument("the range must lie in the memory, and be of whole elements"))
            );
        }
        if world.size() == 1 {
            return world.fabric().health(OPERATION);
        }
        let what = |kind, block, place| What::new(OPERATION, (kind, 0, (dtype, reduce)), block, place);
        if self.windows.is_empty() || is_small(range.len(), world.size()) {
            let what = what(Kind::AllReduce, range.len(), place(self.number, range.start));
            let data = Data::even(None, self.own.contribution(range.start, range.len()));
            return world.collective_of(what, data, deadline);
        }
        let until: Instant = deadline.into().instant();
        // One lock for all steps: no call of another thread may come between them.
        let mut boards = world.lock_boards(OPERATION, &mut until.into())?;
        let mut call = |mine: &[u8], all: &mut [u8]| {
            let what = what(Kind::Symmetric, mine.len(), 0);
            world.collective_on(&mut boards, what, Data::even(mine, all), until.into())
        };
        let mine = [self.number, range.start as u64, range.len() as u64];
        self.rows.resize(world.size() as usize, Sizes::default());
        self.is_lent = true;
        call(bytemuck::bytes_of(&mine), bytemuck::cast_slice_mut(&mut self.rows))?;
        if let Err(error) = self.compare(OPERATION, &mine) {
            self.is_lent = false;
            return Err(world.with_hosts(error));
        }
        // Each rank reads only its own block, so a result may overwrite this rank's block.
        self.reduce((dtype, reduce), block(&range, world.rank(), world.size()));
        call(&[], &mut [])?;
        // The blocks of other ranks are results now, and no rank reads what was there before in this rank's memory.
        for rank in (world.rank() + 1..world.size()).chain(0..world.rank()) {
            let block = block(&range, rank, world.size());
            let (from, to) = (&self.windows[rank as usize], &self.own_window);
            Window::copy((from, block.start), (to, block.start), block.len());
        }
        call(&[], &mut [])?;
        self.is_lent = false;
        Ok(())
    }

    fn reduce(&mut self, reduction: (Dtype, Reduce), block: Range<usize>) {
        let SymmetricMemory { windows, own_window, sources, scratch, .. } = self;
        scratch.resize(CHUNK / size_of::<u64>(), 0);
        for at in block.clone().step_by(CHUNK) {
            let result: &mut [u8] = &mut bytemuck::cast_slice_mut(scratch)[..CHUNK.min(block.end - at)];
            sources.combine(reduction, windows.iter().map(|window| BoardSource::Board(window, at)), result);
            own_window.write(at, result);
        }
    }

    /// Compares what the ranks say about a call.
    fn compare(&self, operation: &'static str, mine: &Sizes) -> Result<()> {
        const SAID: [&str; 3] = ["the symmetric memory", "the first byte", "the length in bytes"];
        for (peer, theirs) in (0..).zip(&self.rows) {
            for (what, (mine, theirs)) in SAID.into_iter().zip(mine.iter().zip(theirs)) {
                if mine != theirs {
                    return Err(Error::mismatch(self.rank, operation, what, mine, (peer, theirs)));
                }
            }
        }
        Ok(())
    }

    fn check_own(&self, operation: &'static str) -> Result<()> {
        match (self.is_own(), self.is_lent) {
            (true, false) => Ok(()),
            (false, _) => {
                Err(self.misuse(operation, Misuse::Forked("a forked child must not use the memory of its parent")))
            }
            (true, true) => Err(self.misuse(
                operation,
                Misuse::OutOfStep(
                    "an earlier call over this memory failed, and other ranks may still read it; start a new world",
                ),
            )),
        }
    }

    fn misuse(&self, operation: &'static str, problem: Misuse) -> Error {
        Error::Usage { rank: self.rank, operation, problem }
    }
}

/// Returns the part of a range that a rank reduces: whole cache lines that no other rank shares.
fn block(range: &Range<usize>, rank: u32, ranks: u32) -> Range<usize> {
    let each = range.len().div_ceil(ranks as usize).next_multiple_of(CACHE_LINE);
    let place = |rank: u32| range.end.min(range.start.saturating_add(each.saturating_mul(rank as usize)));
    place(rank)..place(rank + 1)
}
