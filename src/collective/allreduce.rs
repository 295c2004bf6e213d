//! The handle of a partial allreduce.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use super::core::{Cut, Effort, FOREVER, Machine, Part, Plan, Stats, Time};
use super::driver::Driver;
use super::outcome::Outcomes;
use super::patience::Patience;
use super::seat::{Helper, Seat};
use crate::error::{Error, Result};
use crate::executor::deferred_work::Provider;
use crate::reduce::Element;
use crate::rule::{Executor, Grace, Mover};
use crate::time::Deadline;
use crate::world::World;

/// A persistent partial allreduce: round after round over the same memory.
///
/// The order of calls is *contribution, arrive, wait*, and at the end *finish*. A handle belongs
/// to one thread at a time. Dropping it without [`finish`](Allreduce::finish) aborts the job: the
/// others would wait for this rank for ever.
#[derive(Debug)]
pub struct Allreduce<T> {
    seat: Seat,
    plan: Plan,
    executor: Executor,
    pub(super) memory: crate::fabric::Lender,
    patience: Patience,
    lengths: Vec<usize>,
    /// Cuts of the rounds that the caller holds, by slot.
    cuts: Vec<Cut>,
    /// Where their outcomes lie.
    places: Vec<usize>,
    /// The last round that can be made.
    last_round: u64,
    /// Newest round that was returned.
    taken: u64,
    /// The buffer of the next contribution.
    buffer: u32,
    /// The caller may have begun to write it.
    begun: bool,
    /// The weight of the next contribution.
    weight: u16,
    /// An arrival whose outcome was not taken.
    outstanding: bool,
    /// Outcomes that the caller holds.
    pub(super) held: Cell<usize>,
    /// Newest round that was released.
    released: Cell<u64>,
    /// Newest round in which each rank was fresh, up to `released`.
    pub(super) last_fresh: RefCell<Vec<u64>>,
    leaving: bool,
    finished: bool,
    /// The last deadline that passed, to be told to the others if this rank gives up.
    last_timeout: Option<String>,
    /// Dropped behind the seat: a rank may leave with its last handle of the world, and closes its endpoint before.
    world: World,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Allreduce<T> {
    pub(super) fn new(
        world: &World,
        driver: Driver,
        executor: Executor,
        patience: Patience,
        lengths: Vec<usize>,
    ) -> Result<Self> {
        let memory = driver.lender();
        let plan = driver.machine().plan().clone();
        let last_round = driver.last_round();
        let seat = match executor {
            Executor::Thread => Seat::Shared(Helper::start(driver, patience.clone(), plan.me)?),
            Executor::Auto | Executor::Caller | Executor::Peer | Executor::Provider => {
                Seat::Own(Box::new(RefCell::new(driver)))
            }
        };
        Ok(Allreduce {
            world: world.clone(),
            seat,
            executor,
            memory,
            patience,
            lengths,
            cuts: (0..plan.slots()).map(|_| Cut::with_room_for(plan.ranks)).collect(),
            places: vec![0; plan.slots() as usize],
            last_round,
            taken: 0,
            buffer: 0,
            begun: false,
            weight: 1,
            outstanding: false,
            held: Cell::new(0),
            released: Cell::new(0),
            last_fresh: RefCell::new(vec![0; world.size() as usize]),
            leaving: false,
            finished: false,
            last_timeout: None,
            plan,
            element: std::marker::PhantomData,
        })
    }

    /// Lengths of the tensors, in elements, as they were given: a contribution is one after the
    /// other.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The memory of the next contribution: registered, in place, holding whatever an earlier one
    /// left there. May be written while the last arrival is still under way.
    ///
    /// # Errors
    /// [`Error::Usage`] after `finish`.
    pub fn contribution(&mut self) -> Result<&mut [T]> {
        self.settle();
        self.check("contribution", !self.leaving, "this rank has finished")?;
        self.begun = true;
        Ok(self.memory.contribution(self.plan.contribution(self.plan.me, self.buffer), self.plan.bytes))
    }

    /// One tensor of the next contribution, as [`contribution`](Allreduce::contribution) has it.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is no such tensor, or after `finish`.
    pub fn tensor(&mut self, index: usize) -> Result<&mut [T]> {
        let missing = || self.usage("tensor", "there is no tensor of this number in the collective");
        let range = self.tensor_range(index).ok_or_else(missing)?;
        Ok(&mut self.contribution()?[range])
    }

    /// Where a tensor lies in contributions and outcomes.
    pub(super) fn tensor_range(&self, index: usize) -> Option<Range<usize>> {
        let length = *self.lengths.get(index)?;
        let from = self.lengths[..index].iter().sum();
        Some(from..from + length)
    }

    /// Copies tensors in and hands them in: for data that lies elsewhere. Where it can be made in
    /// [`contribution`](Allreduce::contribution), nothing has to be copied.
    ///
    /// Large data of ranks that share memory is handed in first, and copied then, a piece that fits
    /// into a cache at a time, while others reduce what is there already. For each piece this call
    /// reduces a segment that is complete everywhere, if there is one.
    ///
    /// # Errors
    /// [`Error::Usage`] if these are not as many tensors, or not as long, as the collective has;
    /// else as [`arrive`](Allreduce::arrive).
    pub fn arrive_with(&mut self, tensors: &[&[T]]) -> Result<()> {
        let fits = tensors.iter().map(|tensor| tensor.len()).eq(self.lengths.iter().copied());
        self.check("arrive_with", fits, "the tensors must be as many and as long as the collective was built for")?;
        let pieces = self.plan.pieces();
        let buffer = self.buffer;
        if pieces == 1 {
            self.check_free("arrive_with")?;
            self.copy_in(tensors, buffer, 0..self.plan.bytes);
            return self.arrive();
        }
        let now = self.hand_in("arrive_with", Machine::arrive_unfilled)?;
        let mut driven = self.set_off(now);
        for piece in 0..pieces {
            let (from, len) = self.plan.piece_span(piece);
            self.copy_in(tensors, buffer, from..from + len);
            let mut driver = self.seat.take();
            driver.machine_mut().filled(buffer, pieces - piece - 1);
            let now = self.patience.clock.now_for(driver.machine());
            // Others wait for the rest even if this rank cannot go on.
            driven = driven.and(driver.move_one(now));
        }
        driven?;
        let mut driver = self.seat.take();
        let now = self.patience.clock.now_for(driver.machine());
        driver.drive(now, Effort::Nothing)?;
        // The others must not have to wait until this rank is back.
        driver.machine_mut().count_segments();
        // What this rank closed meanwhile took as long as its copy, which says nothing of rounds.
        driver.machine_mut().measured(None);
        drop(driver);
        self.set_off(now)?;
        self.patience.look("arrive_with", now)
    }

    /// Copies bytes of tensors that lie one after the other into a buffer.
    fn copy_in(&mut self, tensors: &[&[T]], buffer: u32, range: Range<usize>) {
        let at = self.plan.contribution(self.plan.me, buffer) + range.start;
        let mut to = self.memory.contribution::<T>(at, range.len());
        let mut skip = range.start / size_of::<T>();
        for tensor in tensors {
            let from = &tensor[skip.min(tensor.len())..];
            let (place, rest) = to.split_at_mut(from.len().min(to.len()));
            place.copy_from_slice(&from[..place.len()]);
            skip -= tensor.len() - from.len();
            to = rest;
        }
    }

    /// Gives the next contribution a weight: it counts as much as so many of weight 1, for instance
    /// one for each sample in a batch. Needs [`Scale::Weights`](crate::Scale::Weights), which makes a
    /// weighted mean of a round; its cut tells the weights.
    ///
    /// A whole number, so that it is exact and fits the cut; 0 for a contribution that has nothing
    /// to say and counts towards firing all the same. Elements are multiplied by it before they are
    /// added up: what is near the largest number of its type may become infinite.
    ///
    /// # Errors
    /// [`Error::Usage`] under another scale, or after `finish`.
    pub fn weigh(&mut self, weight: u16) -> Result<()> {
        self.check("weigh", !self.leaving, "this rank has finished")?;
        self.check("weigh", self.plan.weighted, "this collective has no weights; build it with Scale::Weights")?;
        self.weight = weight;
        Ok(())
    }

    /// Hands the contribution in and returns at once. Small data may be reduced here, if this
    /// arrival fires the round; large data only under the peer executor, which does here whatever
    /// this arrival sets off.
    ///
    /// The contribution is made for the round after the newest outcome that was returned. It is
    /// *fresh* if that round is still open; else it is *carried* into the next one that fires.
    ///
    /// # Errors
    /// [`Error::Usage`] while the outcome of the last arrival was not taken, or after `finish`;
    /// a dead peer or an aborted job.
    pub fn arrive(&mut self) -> Result<()> {
        let now = self.hand_in("arrive", Machine::arrive)?;
        self.patience.explain("arrive", self.set_off(now))?;
        self.patience.look("arrive", now)
    }

    /// Hands in the next contribution; says when.
    fn hand_in(&mut self, operation: &'static str, start: fn(&mut Machine, Time, u16)) -> Result<Time> {
        self.settle();
        self.check_free(operation)?;
        // A late contribution may be carried a whole ring further, and whoever leaves needs a round.
        let is_left = self.taken < self.last_round.saturating_sub(1 << 20);
        let problem =
            "it has made all the rounds that can be told apart (2^40, or what its provider can count); make a new one";
        self.check(operation, is_left, problem)?;
        self.world.fabric().health(operation)?;
        let mut driver = self.seat.take();
        let now = self.patience.clock.now_for(driver.machine());
        // How long a round took that was closed in an earlier call cannot be known any more.
        driver.machine_mut().measured(None);
        start(driver.machine_mut(), now, std::mem::replace(&mut self.weight, 1));
        self.outstanding = true;
        (self.buffer, self.begun) = (driver.machine().buffer(), false);
        Ok(now)
    }

    /// Does what an arrival sets off, as far as the caller of `arrive` has to.
    fn set_off(&self, arrived: Time) -> Result<()> {
        let mut driver = self.seat.take();
        let effort = if self.executor == Executor::Peer { Effort::Work } else { Effort::Nothing };
        driver.drive(arrived, effort)?;
        if driver.machine().unmeasured().is_some_and(|round| round <= driver.machine().landed()) {
            let latency = self.patience.clock.now().saturating_sub(arrived);
            driver.machine_mut().measured(Some(latency));
        }
        let complete = !driver.machine().ready().is_empty();
        drop(driver);
        if !complete {
            self.seat.leave_work();
        }
        Ok(())
    }

    /// Waits for the outcome of the last arrival, and returns it with everything that was missed,
    /// oldest first. While waiting, this rank moves data for everybody.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming who is missing: call again to go on waiting. [`Error::Usage`]
    /// without an arrival; a dead peer or an aborted job.
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Outcomes<'_, T>> {
        self.settle();
        self.check("wait", self.outstanding && !self.leaving, "nothing was handed in; call arrive first")?;
        let rounds = self.wait_and_take("wait", deadline.into())?;
        Ok(Outcomes::new(self, rounds))
    }

    /// As [`wait`](Allreduce::wait) without blocking: nothing where it would have to wait.
    ///
    /// # Errors
    /// As `wait`, but for the timeout.
    pub fn test(&mut self) -> Result<Option<Outcomes<'_, T>>> {
        self.settle();
        self.check("test", self.outstanding && !self.leaving, "nothing was handed in; call arrive first")?;
        self.world.fabric().health("test")?;
        let now = self.patience.clock.now();
        self.patience.look("test", now)?;
        self.seat.claim_work();
        let mut driver = self.seat.take();
        self.patience.explain("test", driver.drive(now, Effort::Search))?;
        if driver.machine().ready().is_empty() {
            drop(driver);
            self.seat.leave_work();
            return Ok(None);
        }
        let taken = take(&mut driver, self.begun, (&mut self.cuts, &mut self.places));
        drop(driver);
        let rounds = self.took(taken);
        Ok(Some(Outcomes::new(self, rounds)))
    }

    /// Leaves in good order: one more, empty arrival that counts towards firing, and nothing is
    /// expected of this rank after the round that it enters. Waits until that round is complete,
    /// so everything this rank contributed has entered. Outcomes that were not taken are dropped.
    ///
    /// # Errors
    /// [`Error::Timeout`]: call again to go on; a dead peer or an aborted job.
    pub fn finish(&mut self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = Deadline::from(deadline.into().instant());
        self.settle();
        if self.finished {
            return Ok(());
        }
        if !self.leaving {
            if self.outstanding {
                self.wait_and_take("finish", deadline)?;
            }
            self.settle();
            self.seat.take().machine_mut().leave();
            self.leaving = true;
        }
        self.block("finish", deadline, Machine::is_finished)?;
        self.seat.take().machine_mut().release(FOREVER);
        // An operation that fails now would leave others waiting, and nobody to say why.
        self.block("finish", deadline, Machine::has_gone)?;
        self.part()?;
        self.finished = true;
        Ok(())
    }

    /// Where a provider ran the rounds: sets off what it has still queued, for rounds that nobody wants any
    /// more. That writes to memory of the others, who must not look at it then, and must not have gone.
    fn part(&mut self) -> Result<()> {
        if self.seat.take().provider().is_none() {
            return Ok(());
        }
        let (operation, fabric) = ("finish", self.world.fabric());
        let until = Deadline::from(self.world.deadline()).instant();
        fabric.exchange(operation, &[], until)?;
        self.seat.take().provider().into_iter().for_each(Provider::set_off);
        while !self.seat.take().provider().map_or(Ok(true), Provider::has_run)? && Instant::now() < until {
            fabric.look_for_dead(operation)?;
            std::thread::sleep(Duration::from_micros(100));
        }
        fabric.exchange(operation, &[], until).map(drop)
    }

    /// Whether the outcome of the last arrival is there. Looks, and does nothing for it.
    ///
    /// # Errors
    /// A broken endpoint.
    pub fn is_complete(&self) -> Result<bool> {
        let mut driver = self.seat.take();
        let now = self.patience.clock.now_for(driver.machine());
        driver.look(now)?;
        driver.drive(now, Effort::Nothing)?;
        Ok(!driver.machine().ready().is_empty())
    }

    /// What happened to this rank so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.seat.take().machine().stats()
    }

    /// The name of the way in which data moves: `replicated`, `gathered`, `scattered`, `eager`, `segmented`, `tree` or
    /// `offloaded`.
    #[must_use]
    pub fn path(&self) -> &'static str {
        self.plan.path.name()
    }

    /// Who carries rounds out.
    #[must_use]
    pub fn executor(&self) -> Executor {
        self.executor
    }

    /// What became of the builder's mover, grace and depth.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn chosen(&self) -> (Mover, Grace, u64) {
        use super::core::Path;
        let is_program = matches!(self.plan.path, Path::Program | Path::Offloaded);
        (if is_program { Mover::Tree } else { Mover::Cut }, self.plan.grace, self.plan.depth)
    }

    pub(super) fn cut(&self, round: u64) -> &Cut {
        &self.cuts[self.plan.slot(round)]
    }

    pub(super) fn place(&self, round: u64) -> (usize, usize) {
        (self.places[self.plan.slot(round)], self.plan.bytes)
    }

    /// Called when the last outcome that was held is dropped.
    pub(super) fn let_go(&self) {
        let before = self.released.replace(self.taken);
        let mut last_fresh = self.last_fresh.borrow_mut();
        for round in before + 1..=self.taken {
            let fresh = self.cut(round).entries().filter(|entry| entry.part == Part::Fresh);
            fresh.for_each(|entry| last_fresh[entry.rank as usize] = round);
        }
        let mut driver = self.seat.take();
        driver.machine_mut().release(self.taken);
        let now = self.patience.clock.now_for(driver.machine());
        // An endpoint that broke says so in the next call.
        let _ = driver.drive(now, Effort::Nothing);
    }

    /// Nobody holds an outcome any more: a caller with `&mut self` has no borrow of it.
    fn settle(&mut self) {
        self.held.set(0);
        if self.released.get() < self.taken {
            self.let_go();
        }
    }

    /// Works and waits until there are outcomes, and takes them.
    fn wait_and_take(&mut self, operation: &'static str, deadline: Deadline) -> Result<RangeInclusive<u64>> {
        self.seat.claim_work();
        let mut driver = self.seat.take();
        let done = self.patience.block(&mut driver, operation, deadline, |machine| !machine.ready().is_empty());
        // The thread must not have the driver in between: with a claim of its own nothing would be ready.
        let taken = done.map(|()| take(&mut driver, self.begun, (&mut self.cuts, &mut self.places)));
        drop(driver);
        let taken = self.explain(operation, taken)?;
        Ok(self.took(taken))
    }

    /// Writes down what was taken.
    fn took(&mut self, (rounds, buffer): (RangeInclusive<u64>, u32)) -> RangeInclusive<u64> {
        self.taken = *rounds.end();
        self.buffer = buffer;
        self.outstanding = false;
        rounds
    }

    /// Works and waits until `over`.
    fn block(&mut self, operation: &'static str, deadline: Deadline, over: impl Fn(&Machine) -> bool) -> Result<()> {
        self.seat.claim_work();
        let done = self.patience.block(&mut self.seat.take(), operation, deadline, over);
        self.explain(operation, done)
    }

    /// After a timeout the thread goes on.
    fn explain<R>(&mut self, operation: &'static str, done: Result<R>) -> Result<R> {
        let done = self.patience.explain(operation, done);
        if let Err(error @ Error::Timeout { .. }) = &done {
            self.last_timeout = Some(error.to_string());
            self.seat.leave_work();
        }
        done
    }

    /// Whether there may be another arrival.
    fn check_free(&self, operation: &'static str) -> Result<()> {
        self.check(operation, !self.leaving, "this rank has finished")?;
        let problem = "the outcome of the last arrival was not taken; call wait or test first";
        self.check(operation, !self.outstanding, problem)
    }

    fn check(&self, operation: &'static str, allowed: bool, problem: &'static str) -> Result<()> {
        if allowed { Ok(()) } else { Err(self.usage(operation, problem)) }
    }

    pub(super) fn usage(&self, operation: &'static str, problem: &'static str) -> Error {
        Error::Usage { rank: self.plan.me, operation, problem }
    }
}

/// Takes what is ready, which is something: the rounds, and the buffer of the next contribution.
fn take(driver: &mut Driver, begun: bool, (cuts, places): (&mut [Cut], &mut [usize])) -> (RangeInclusive<u64>, u32) {
    let rounds = driver.machine_mut().take(begun);
    debug_assert!(!rounds.is_empty());
    driver.machine_mut().hand_cuts_to(rounds.clone(), cuts);
    let machine = driver.machine();
    for round in rounds.clone() {
        places[machine.plan().slot(round)] = machine.outcome_at(round);
    }
    (rounds, machine.buffer())
}

impl<T> Drop for Allreduce<T> {
    fn drop(&mut self) {
        if !self.finished && self.world.fabric().health("drop").is_ok() {
            let after = self.last_timeout.take().map_or(String::new(), |text| format!(", after {text}"));
            self.world.abort(&format!("it dropped a collective without finish{after}"));
        }
    }
}
