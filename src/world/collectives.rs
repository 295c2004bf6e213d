//! Synchronous collectives: every rank makes the call and has its result when the call returns.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{MappedMutexGuard, MutexGuard};

use super::{World, two_levels};
use crate::board::{BROKEN, Blocks, Board, Call, CallWork, Copies, Data, Kind, Sizes, What};
use crate::error::{Error, Misuse, Result};
use crate::executor::caller::Waiter;
use crate::fabric::Fabric;
use crate::reduce::{Dtype, Element, Item, Reduce};
use crate::time::Deadline;

/// The boards of this rank.
#[derive(Debug)]
pub(super) struct Boards {
    /// That among all ranks, or among those of a host in a world of two levels.
    pub(super) main: OpenBoard,
    /// That among agents, on an agent.
    pub(super) between: Option<OpenBoard>,
    /// What calls in two levels work with.
    pub(super) scratch: Vec<u64>,
    /// A call in two levels has not come to its end.
    is_broken: bool,
}

/// A board, and the waiter that blocks its caller.
#[derive(Debug)]
pub(super) struct OpenBoard {
    board: Board,
    waiter: Waiter,
}

/// The reduction that calls pass that reduce nothing.
const NOTHING: (Dtype, Reduce) = (Dtype::F32, Reduce::Sum);

/// # Synchronous collectives
///
/// All ranks make the same calls in the same order, with the same lengths. A call returns when this rank has its result
/// and may write its data again; other ranks may still be in the call then. The first call of a world waits for all
/// ranks. Data has any length and lies in memory of the caller. Reductions combine the data of a host's
/// ranks in the order of ranks, and then that of the [hosts](World::hosts), so all ranks get the same bits, in every run.
///
/// # Errors
/// [`Error::Usage`] for lengths that do not fit together, for a root that is not a rank, and while another thread is in
/// such a call; the call has done nothing then. After any other error the ranks are out of step, and later calls fail.
/// [`Error::Timeout`] names the ranks that did not come. [`Error::Mismatch`] says how the calls of two ranks differ. A
/// mismatch, a failed transport and [`Error::Interrupted`] also abort the world, because a rank that reads nothing
/// cannot notice them. Also a dead peer or an aborted job.
impl World {
    /// Copies `data` of rank `root` to all ranks.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives).
    pub fn broadcast<T: Item>(&self, data: &mut [T], root: u32, deadline: impl Into<Deadline>) -> Result<()> {
        let data = bytemuck::cast_slice_mut(data);
        let block = data.len();
        self.collective("broadcast", (Kind::Broadcast, root, NOTHING), block, Data::even(None, data), deadline)
    }

    /// Gives `mine` of every rank to every rank. `all` is `size()` times as long as `mine` and holds the blocks in the
    /// order of ranks.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives).
    pub fn all_gather<T: Item>(&self, mine: &[T], all: &mut [T], deadline: impl Into<Deadline>) -> Result<()> {
        const OPERATION: &str = "all_gather";
        self.check_blocks(OPERATION, mine.len(), all.len())?;
        let (mine, all) = (bytemuck::cast_slice(mine), bytemuck::cast_slice_mut(all));
        self.collective(OPERATION, (Kind::AllGather, 0, NOTHING), mine.len(), Data::even(mine, all), deadline)
    }

    /// Gives `mine` of every rank to rank `root`, whose `all` is `size()` times as long as `mine` and holds the blocks
    /// in the order of ranks. Other ranks pass `None`.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives).
    pub fn gather<T: Item>(
        &self,
        mine: &[T],
        all: Option<&mut [T]>,
        root: u32,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        const OPERATION: &str = "gather";
        let all = self.at_root(OPERATION, all, root, "an output")?.unwrap_or_default();
        if self.rank() == root {
            self.check_blocks(OPERATION, mine.len(), all.len())?;
        }
        let (mine, all) = (bytemuck::cast_slice(mine), bytemuck::cast_slice_mut(all));
        self.collective(OPERATION, (Kind::Gather, root, NOTHING), mine.len(), Data::even(mine, all), deadline)
    }

    /// Cuts `all` of rank `root` into blocks of the length of `mine`, and copies block i into `mine` of rank i. Other
    /// ranks pass `None`.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives).
    pub fn scatter<T: Item>(
        &self,
        all: Option<&[T]>,
        mine: &mut [T],
        root: u32,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        const OPERATION: &str = "scatter";
        let all = self.at_root(OPERATION, all, root, "an input")?;
        if let Some(all) = all {
            self.check_blocks(OPERATION, mine.len(), all.len())?;
        }
        let (all, mine) = (all.map(bytemuck::cast_slice), bytemuck::cast_slice_mut(mine));
        self.collective(OPERATION, (Kind::Scatter, root, NOTHING), mine.len(), Data::even(all, mine), deadline)
    }

    /// Gives block i of each rank's `sent` to rank i, whose `received` holds the blocks in the order of the ranks that
    /// sent them. All blocks have one length.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives).
    pub fn all_to_all<T: Item>(&self, sent: &[T], received: &mut [T], deadline: impl Into<Deadline>) -> Result<()> {
        const OPERATION: &str = "all_to_all";
        let ranks = self.size() as usize;
        if sent.len() != received.len() || !sent.len().is_multiple_of(ranks) {
            return Err(self.misuse(
                OPERATION,
                Misuse::Argument("both lengths must be the same, and a multiple of the number of ranks"),
            ));
        }
        let (sent, received) = (bytemuck::cast_slice(sent), bytemuck::cast_slice_mut(received));
        let what = (Kind::AllToAll, 0, NOTHING);
        self.collective(OPERATION, what, sent.len() / ranks, Data::even(sent, received), deadline)
    }

    /// As [`World::all_to_all`], with blocks of any lengths, in elements. This rank sends `sent_lengths[i]` elements to
    /// rank i, and receives `received_lengths[i]` elements from it. Each rank must pass the lengths that the others
    /// send to it.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives); [`Error::Mismatch`] where a rank sends
    /// another length than this one expects.
    pub fn all_to_all_of<T: Item>(
        &self,
        (sent, sent_lengths): (&[T], &[usize]),
        (received, received_lengths): (&mut [T], &[usize]),
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        const OPERATION: &str = "all_to_all_of";
        let ranks = self.size() as usize;
        let bounds = |lengths: &[usize], elements: usize| {
            let mut bounds = vec![0];
            let mut end = 0usize;
            for length in lengths {
                end = end.checked_add(*length)?;
                bounds.push(end.checked_mul(size_of::<T>())?);
            }
            (lengths.len() == ranks && end == elements).then_some(bounds)
        };
        let bounds = (bounds(sent_lengths, sent.len()), bounds(received_lengths, received.len()));
        let (Some(from), Some(to)) = bounds else {
            return Err(self.misuse(
                OPERATION,
                Misuse::Argument("there must be a length for each rank, and their sum that of the data"),
            ));
        };
        let until = deadline.into().instant();
        let mine: Vec<u64> = sent_lengths.iter().map(|&length| length as u64).collect();
        let mut all = vec![0u64; ranks * ranks];
        self.all_gather(&mine, &mut all, until)?;
        for (peer, lengths) in all.chunks_exact(ranks.max(1)).enumerate() {
            let (told, expected) = (lengths[self.rank() as usize], received_lengths[peer] as u64);
            if told != expected {
                let what = "the number of elements that are sent here";
                let error = Error::mismatch(self.rank(), OPERATION, what, expected, (peer as u32, told));
                return Err(self.out_of_step(error));
            }
        }
        // If this is more than any memory holds, the call below refuses it on all ranks.
        let largest = (all.into_iter().max().unwrap_or(0) as usize).saturating_mul(size_of::<T>());
        let (from, to) = (Blocks::Bounds(&from), Blocks::Bounds(&to));
        let data =
            Data { input: Some(bytemuck::cast_slice(sent)), output: bytemuck::cast_slice_mut(received), from, to };
        self.collective(OPERATION, (Kind::AllToAll, 0, NOTHING), largest, data, until)
    }

    /// Reduces `data` of all ranks, element by element, and writes the result to `data` on every rank. For a repeated
    /// reduction an [`Allreduce`](crate::Allreduce) with `Fire::ALL` is faster, because it reads and writes in place.
    /// [`SymmetricMemory::all_reduce`](crate::SymmetricMemory::all_reduce) copies nothing either.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives).
    pub fn all_reduce<T: Element>(&self, data: &mut [T], reduce: Reduce, deadline: impl Into<Deadline>) -> Result<()> {
        self.all_reduce_bytes(T::DTYPE, bytemuck::cast_slice_mut(data), reduce, deadline)
    }

    /// As [`World::all_reduce`], for elements whose type is known only at run time.
    ///
    /// # Errors
    /// As [`World::all_reduce`]; [`Error::Usage`] for bytes that are not whole elements or not aligned to elements.
    pub fn all_reduce_bytes(
        &self,
        dtype: Dtype,
        data: &mut [u8],
        reduce: Reduce,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        const OPERATION: &str = "all_reduce";
        self.check_elements(OPERATION, (dtype, reduce), data)?;
        let block = data.len();
        let what = (Kind::AllReduce, 0, (dtype, reduce));
        self.collective(OPERATION, what, block, Data::even(None, data), deadline)
    }

    /// Reduces `mine` of all ranks, element by element, and writes the result to `result` of rank `root`. Other ranks
    /// pass `None`.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives).
    pub fn reduce<T: Element>(
        &self,
        mine: &[T],
        result: Option<&mut [T]>,
        reduce: Reduce,
        root: u32,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let result = result.map(bytemuck::cast_slice_mut);
        self.reduce_bytes(T::DTYPE, bytemuck::cast_slice(mine), result, reduce, root, deadline)
    }

    /// As [`World::reduce`], for elements whose type is known only at run time.
    ///
    /// # Errors
    /// As [`World::reduce`]; [`Error::Usage`] for bytes that are not whole elements or not aligned to elements.
    pub fn reduce_bytes(
        &self,
        dtype: Dtype,
        mine: &[u8],
        result: Option<&mut [u8]>,
        reduce: Reduce,
        root: u32,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        const OPERATION: &str = "reduce";
        let result = self.at_root(OPERATION, result, root, "a result")?.unwrap_or_default();
        self.check_elements(OPERATION, (dtype, reduce), mine)?;
        self.check_elements(OPERATION, (dtype, reduce), result)?;
        if self.rank() == root && result.len() != mine.len() {
            return Err(
                self.misuse(OPERATION, Misuse::Argument("the result must have the length of what a rank contributes"))
            );
        }
        let what = (Kind::Reduce, root, (dtype, reduce));
        self.collective(OPERATION, what, mine.len(), Data::even(mine, result), deadline)
    }

    /// Reduces `all` of all ranks, element by element, and writes block i of the result to `mine` of rank i. `all` is
    /// `size()` times as long as `mine`.
    ///
    /// # Errors
    /// As for all [synchronous collectives](World#synchronous-collectives).
    pub fn reduce_scatter<T: Element>(
        &self,
        all: &[T],
        mine: &mut [T],
        reduce: Reduce,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let (all, mine) = (bytemuck::cast_slice(all), bytemuck::cast_slice_mut(mine));
        self.reduce_scatter_bytes(T::DTYPE, all, mine, reduce, deadline)
    }

    /// As [`World::reduce_scatter`], for elements whose type is known only at run time.
    ///
    /// # Errors
    /// As [`World::reduce_scatter`]; [`Error::Usage`] for bytes that are not whole elements or not aligned to elements.
    pub fn reduce_scatter_bytes(
        &self,
        dtype: Dtype,
        all: &[u8],
        mine: &mut [u8],
        reduce: Reduce,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        const OPERATION: &str = "reduce_scatter";
        self.check_elements(OPERATION, (dtype, reduce), all)?;
        self.check_elements(OPERATION, (dtype, reduce), mine)?;
        self.check_blocks(OPERATION, mine.len(), all.len())?;
        let (what, block) = ((Kind::ReduceScatter, 0, (dtype, reduce)), mine.len());
        self.collective(OPERATION, what, block, Data::even(all, mine), deadline)
    }

    /// Returns the bytes that the synchronous collectives of this rank have copied so far. A call in progress is not
    /// counted.
    #[must_use]
    pub fn copies(&self) -> Copies {
        let [into_boards, out_of_boards] = self.inner.copies.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        Copies { into_boards, out_of_boards }
    }

    /// Makes a call, and waits until this rank has its result.
    fn collective(
        &self,
        operation: &'static str,
        (kind, root, reduction): (Kind, u32, (Dtype, Reduce)),
        block: usize,
        data: Data<'_>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        self.collective_of(What::new(operation, (kind, root, reduction), block, 0), data, deadline)
    }

    pub(super) fn collective_of(&self, what: What, data: Data<'_>, deadline: impl Into<Deadline>) -> Result<()> {
        if what.root >= self.size() {
            return Err(self.misuse(what.operation, Misuse::Argument("the root is not a rank of this world")));
        }
        if what.block.checked_mul(self.size() as usize).is_none() {
            return Err(self.misuse(what.operation, Misuse::Argument("more bytes than there can be")));
        }
        let mut deadline = deadline.into();
        let mut boards = self.lock_boards(what.operation, &mut deadline)?;
        self.collective_on(&mut boards, what, data, deadline)
    }

    /// Locks the boards, for one call or for several that no call of another thread may separate. The first call of a
    /// world opens the boards, and turns a relative deadline into an instant.
    ///
    /// # Errors
    /// This process or the world cannot continue, another thread has the boards, or they cannot be opened. The call did
    /// not begin then.
    pub(super) fn lock_boards(
        &self,
        operation: &'static str,
        deadline: &mut Deadline,
    ) -> Result<MappedMutexGuard<'_, Boards>> {
        self.check_process(operation)?;
        self.fabric().health(operation)?;
        let another = Misuse::Order("another thread is in a collective of this world");
        let mut boards = self.inner.boards.try_lock().ok_or_else(|| self.misuse(operation, another))?;
        match &*boards {
            Some(Boards { is_broken: true, .. }) => {
                return Err(self.misuse(operation, Misuse::OutOfStep(BROKEN)));
            }
            Some(Boards { main, .. }) => main.board.check(operation)?,
            None => {
                *deadline = deadline.instant().into();
                *boards = Some(self.open_boards(operation, *deadline)?);
            }
        }
        Ok(MutexGuard::map(boards, |boards| boards.as_mut().unwrap_or_else(|| unreachable!("they were opened"))))
    }

    /// Makes a call with locked boards.
    pub(super) fn collective_on(
        &self,
        boards: &mut Boards,
        what: What,
        data: Data<'_>,
        deadline: Deadline,
    ) -> Result<()> {
        let called = match &self.inner.levels {
            None => self.call_on(&mut boards.main, what, data, deadline, &|error| error),
            Some(levels) => {
                // They stay broken also if this thread panics.
                boards.is_broken = true;
                let called = two_levels::call((self, levels), boards, what, data, deadline.instant().into());
                boards.is_broken = called.is_err();
                called
            }
        };
        let Boards { main, between, .. } = boards;
        let copies = || std::iter::once(&*main).chain(&*between).map(|open| open.board.copies());
        let [into_boards, out_of_boards] = &self.inner.copies;
        into_boards.store(copies().map(|copies| copies.into_boards).sum(), Ordering::Relaxed);
        out_of_boards.store(copies().map(|copies| copies.out_of_boards).sum(), Ordering::Relaxed);
        called
    }

    /// Makes a call on one board. `named` gives the ranks of an error their numbers in this world.
    pub(super) fn call_on(
        &self,
        OpenBoard { board, waiter }: &mut OpenBoard,
        what: What,
        data: Data<'_>,
        deadline: Deadline,
        named: &dyn Fn(Error) -> Error,
    ) -> Result<()> {
        let operation = what.operation;
        let mut call = Call::new(board, what, data);
        // The board stays broken also if this thread panics.
        board.break_off();
        let blocked = waiter.block(&mut CallWork::new(&mut call, board), operation, deadline);
        blocked.map(|()| board.resume()).map_err(|error| match named(error) {
            Error::Timeout { rank, operation, waited, missing, .. } => {
                self.with_hosts(Error::timeout(rank, operation, waited, missing, true))
            }
            error => self.out_of_step(error.in_call(operation)),
        })
    }

    fn open_boards(&self, operation: &'static str, deadline: Deadline) -> Result<Boards> {
        let open = |fabric: &Arc<dyn Fabric>, shared: bool, named: &dyn Fn(Error) -> Error| -> Result<OpenBoard> {
            let (call, make) = ((operation, deadline.instant()), Sizes::new(fabric.ranks(), shared));
            let (mut board, told) =
                self.meet_over((&**fabric, named), shared, call, b'c', |endpoint, rank, _, _| {
                    Board::new(endpoint, rank, make)
                })?;
            board.meet(&told).map_err(named)?;
            Ok(OpenBoard { board, waiter: Waiter::new(fabric.clone(), self.spin()) })
        };
        let scratch = Vec::new();
        let Some(levels) = &self.inner.levels else {
            let main = open(self.fabric(), self.topology().is_one_host(), &|error| error)?;
            return Ok(Boards { main, between: None, scratch, is_broken: false });
        };
        let here: Arc<dyn Fabric> = levels.here().clone();
        let main = open(&here, true, &|error| levels.of_here(error))?;
        let between = levels.network().map(|network| {
            let network: Arc<dyn Fabric> = network.clone();
            open(&network, false, &|error| levels.of_network(error))
        });
        // The others of this host have their boards already, and cannot notice that this rank has none.
        let between =
            between.transpose().inspect_err(|error| self.abort(&format!("it could not join a collective: {error}")));
        Ok(Boards { main, between: between?, scratch, is_broken: false })
    }

    /// Returns the error for a rank that met a peer in a call of another kind. The ranks are out of step.
    pub(super) fn other_call(&self, operation: &'static str, peer: u32) -> Error {
        self.out_of_step(Error::mismatch(self.rank(), operation, "the call", operation, (peer, "another call")))
    }

    /// Adds host names to an error, and aborts the world if other ranks could not notice that this rank stopped: ranks
    /// that read nothing from it.
    pub(super) fn out_of_step(&self, error: Error) -> Error {
        let error = self.with_hosts(error);
        if matches!(
            error,
            Error::Mismatch { .. }
                | Error::Transport { .. }
                | Error::PeerLeft { .. }
                | Error::Usage { .. }
                | Error::Interrupted { .. }
        ) {
            self.abort(&format!("it could not go on with a collective: {error}"));
        }
        error
    }

    pub(super) fn misuse(&self, operation: &'static str, problem: Misuse) -> Error {
        Error::Usage { rank: self.rank(), operation, problem }
    }

    fn check_blocks(&self, operation: &'static str, block: usize, all: usize) -> Result<()> {
        match block.checked_mul(self.size() as usize) == Some(all) {
            true => Ok(()),
            false => Err(self.misuse(
                operation,
                Misuse::Argument("the data of all ranks must be as long as that of one, times the number of ranks"),
            )),
        }
    }

    /// Checks bytes for a reduction.
    fn check_elements(&self, operation: &'static str, (dtype, reduce): (Dtype, Reduce), data: &[u8]) -> Result<()> {
        self.check_reduction(operation, (dtype, reduce))?;
        let is_aligned = (data.as_ptr() as usize).is_multiple_of(dtype.size()) || data.is_empty();
        match is_aligned && data.len().is_multiple_of(dtype.size()) {
            true => Ok(()),
            false => Err(self
                .misuse(operation, Misuse::Argument("the bytes are not whole elements, or not aligned to elements"))),
        }
    }

    pub(super) fn check_reduction(&self, operation: &'static str, reduction: (Dtype, Reduce)) -> Result<()> {
        match reduction {
            (Dtype::Bool, Reduce::Mean) => Err(self.misuse(operation, Misuse::Argument("there is no mean of bool"))),
            _ => Ok(()),
        }
    }

    /// Checks that `data` is given at the root and only there, and returns it.
    fn at_root<D>(&self, operation: &'static str, data: Option<D>, root: u32, what: &str) -> Result<Option<D>> {
        let problem = match (self.rank() == root, data.is_some(), what) {
            (true, true, _) | (false, false, _) => return Ok(data),
            (true, false, "an input") => "the root needs an input",
            (true, false, _) => "the root needs an output",
            (false, true, "an input") => "only the root has an input",
            (false, true, _) => "only the root has an output",
        };
        Err(self.misuse(operation, Misuse::Argument(problem)))
    }
}
