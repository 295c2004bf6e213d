//! A collective over bytes, for any type of elements.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{Effort, Stats};
use super::protocol::{Goal, Protocol};
use super::recording::Tape;
use super::session::Session;
use crate::error::{Error, Misuse, Result};
use crate::executor::caller::Waiter;
use crate::executor::thread::{Helped, InUse, Lease};
use crate::fabric::HostMemory;
use crate::rank_set::RankSet;
use crate::rule::Executor;
use crate::time::{Deadline, Time};
use crate::trace::{Event, Track};
use crate::world::World;
use crate::world::endpoints::Endpoints;

/// A session and the threads that drive it: its caller, which waits here, and a helper thread if there is one.
#[derive(Debug)]
pub(crate) struct Raw<P: Protocol> {
    lease: Lease<P>,
    session: Session,
    executor: Executor,
    memory: HostMemory,
    waiter: Waiter,
    /// The number of handles that the caller has of each round that it holds, by slot.
    handles: Vec<Cell<u32>>,
    finished: bool,
    /// The recording or replay, if there is one.
    tape: Option<Box<Tape>>,
    track: Option<Arc<Track>>,
    /// The last deadline that passed, to be reported if this rank gives up.
    last_timeout: Option<String>,
    /// Dropped after the lease: a rank may leave with its last handle of the world, and must have closed its endpoint
    /// then.
    world: World,
}

impl<P: Protocol> Raw<P> {
    /// Returns a handle of the engine, whose contributions and outcomes lie in `memory`.
    ///
    /// # Errors
    /// The helper thread cannot be started.
    pub(super) fn new(
        world: &World,
        engine: P,
        memory: HostMemory,
        (executor, waiter, endpoints): (Executor, Waiter, Endpoints),
        (tape, track): (Option<Box<Tape>>, Option<Arc<Track>>),
    ) -> Result<Self> {
        let mut session = Session::new(&engine);
        session.reserve();
        let serves = engine.serves();
        let lease = match executor {
            Executor::Thread => Lease::Shared(Helped::new(engine, waiter.clock(), world.helper(endpoints)?)),
            Executor::Auto | Executor::Caller | Executor::Peer | Executor::Provider => {
                Lease::Own(Box::new(RefCell::new(engine)))
            }
        };
        if serves {
            // Other ranks may need this rank before it calls for the first time.
            lease.leave_work();
        }
        let handles = (0..session.facts().slots).map(|_| Cell::new(0)).collect();
        let world = world.clone();
        let (finished, last_timeout) = (false, None);
        Ok(Raw { lease, session, executor, memory, waiter, handles, finished, tape, track, last_timeout, world })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    pub(super) fn memory(&self) -> &HostMemory {
        &self.memory
    }

    pub(super) fn memory_mut(&mut self) -> &mut HostMemory {
        &mut self.memory
    }

    #[inline]
    pub(super) fn check_process(&self, operation: &'static str) -> Result<()> {
        self.world.check_process(operation)
    }

    /// Checks that the world can be used: a failure is permanent.
    #[inline]
    fn check(&self, operation: &'static str) -> Result<()> {
        self.check_process(operation)?;
        self.world.fabric().health(operation)
    }

    /// Traces an event. Events that a call makes while it works come from the engine.
    #[inline]
    fn trace(&self, event: impl FnOnce(&Session) -> Event) {
        if let Some(track) = &self.track {
            track.tell(event(&self.session));
        }
    }

    pub(super) fn executor(&self) -> Executor {
        self.executor
    }

    pub(super) fn stats(&self) -> Stats {
        self.lease.take().stats()
    }

    /// Returns the ranks whose contributions the outcome of a held round can contain.
    pub(super) fn members(&self, round: u64) -> RankSet {
        self.lease.take().members(round, self.session.active_in(round))
    }

    /// Returns whether no contribution of any rank for a held round or earlier enters a later one.
    pub(super) fn carries_nothing(&self, round: u64) -> bool {
        self.lease.take().carries_nothing(round, self.session.cut(round), &self.session.active_in(round))
    }

    /// Returns whether all ranks are active after a held round.
    pub(super) fn has_all_ranks(&self, round: u64) -> bool {
        let (active, cut) = (self.session.active_in(round), self.session.cut(round));
        active.len() == self.session.facts().ranks && cut.leaving().next().is_none()
    }

    /// Hands in the next contribution.
    #[inline]
    pub(super) fn arrive(&mut self) -> Result<()> {
        let operation = "arrive";
        let now = self.hand_in(operation, false)?;
        self.waiter.explain(operation, self.set_off(now))?;
        self.waiter.check_peers_if_due(operation, now)
    }

    /// Hands in the next contribution, and then copies it, a range of its bytes at a time: `copy` gets the offset in
    /// memory and the range.
    pub(super) fn arrive_with(&mut self, copy: impl Fn(&mut HostMemory, usize, Range<usize>)) -> Result<()> {
        let (operation, pieces, buffer) = ("arrive_with", self.session.facts().pieces, self.session.buffer());
        let (at, bytes) = self.session.contribution();
        if pieces == 1 {
            self.session.check_free(operation)?;
            copy(&mut self.memory, at, 0..bytes);
            return self.arrive();
        }
        let now = self.hand_in(operation, true)?;
        let mut driven = self.set_off(now);
        for piece in 0..pieces {
            let range = self.lease.take().piece(piece);
            copy(&mut self.memory, at + range.start, range);
            let mut engine = self.lease.take();
            engine.fill(buffer, pieces - piece - 1);
            let now = self.now(&engine);
            // Others wait for the rest even if this rank cannot continue.
            driven = driven.and(engine.move_one(now));
        }
        self.waiter.explain(operation, driven)?;
        let mut engine = self.lease.take();
        let now = self.now(&engine);
        self.waiter.explain(operation, engine.drive(now, Effort::Nothing))?;
        engine.filled();
        drop(engine);
        self.waiter.explain(operation, self.set_off(now))?;
        self.waiter.check_peers_if_due(operation, now)
    }

    /// Hands in the next contribution; returns the time.
    #[inline]
    fn hand_in(&mut self, operation: &'static str, unfilled: bool) -> Result<Time> {
        self.check(operation)?;
        self.session.check_free(operation)?;
        let problem = Misuse::Exhausted(
            "it has made all the rounds that can be told apart (2^40, or what its provider can count); make a new one",
        );
        self.session.check(operation, self.session.has_rounds_left(), problem)?;
        self.tape.as_deref().map_or(Ok(()), |tape| tape.check_arrival(operation))?;
        self.settle();
        let mut engine = self.lease.take();
        self.lower_notice();
        let now = self.waiter.clock().now_if(engine.needs_time() || self.session.needs_time());
        self.trace(|session| Event::Arrives { round: session.next_round() });
        self.session.arrive(&mut *engine, now, unfilled);
        if let Some(tape) = &mut self.tape {
            tape.arrived();
        }
        Ok(now)
    }

    /// Returns a descriptor that is readable while an outcome or a failure can be taken.
    pub(super) fn completion(&self) -> Result<BorrowedFd<'_>> {
        let operation = "completion";
        self.check(operation)?;
        if let Some(notice) = self.lease.notice() {
            return Ok(notice.as_fd());
        }
        let made = self.lease.make_notice().map_err(|cause| Error::os(self.world.rank(), operation, cause))?;
        let needs = Misuse::Unavailable(
            "no thread works for this rank while it waits for the descriptor; build with executor=thread",
        );
        let notice = made.ok_or_else(|| self.session.usage(operation, needs))?;
        if self.session.is_outstanding() {
            // The thread may have ended its work for the arrival before.
            notice.raise();
        }
        Ok(notice.as_fd())
    }

    /// Runs the work that an arrival triggers, as far as the caller of `arrive` has to.
    #[inline]
    fn set_off(&self, arrived: Time) -> Result<()> {
        let mut engine = self.lease.take();
        let effort = if self.executor == Executor::Peer { Effort::Work } else { Effort::Nothing };
        engine.drive(arrived, effort)?;
        if engine.wants_time(arrived) {
            engine.time(self.waiter.clock().now());
        }
        self.go_away(engine);
        Ok(())
    }

    /// Returns the engine when the caller returns to the application. A helper thread continues if work is left.
    #[inline]
    fn go_away(&self, mut engine: InUse<'_, P>) {
        if !self.lease.is_shared() {
            return;
        }
        let leaves_work = self.session.leaves_work(&mut *engine);
        drop(engine);
        if leaves_work {
            self.lease.leave_work();
        } else if let Some(notice) = self.lease.notice() {
            notice.raise();
        }
    }

    /// Returns the engine when the caller has its result. A helper thread continues if other ranks need this one
    /// anyway.
    #[inline]
    fn continue_serving(&self, engine: InUse<'_, P>) {
        if self.lease.is_shared() && engine.serves() {
            self.go_away(engine);
        }
    }

    /// Returns the time, if the machine uses it.
    #[inline]
    fn now(&self, engine: &P) -> Time {
        self.waiter.clock().now_if(engine.needs_time())
    }

    /// Works and waits until there are outcomes, and takes them.
    #[inline]
    pub(super) fn wait(&mut self, deadline: Deadline) -> Result<RangeInclusive<u64>> {
        self.check("wait")?;
        self.session.check_outstanding("wait")?;
        self.settle();
        self.take("wait", deadline)
    }

    /// Waits for outcomes, and takes them.
    #[inline]
    fn take(&mut self, operation: &'static str, deadline: Deadline) -> Result<RangeInclusive<u64>> {
        self.session.waits(|| self.waiter.clock().now());
        self.trace(|_| Event::Waits);
        let reached = self.reach(operation, deadline, Session::take);
        self.trace(|_| Event::Returns);
        let rounds = reached?;
        self.took(&rounds);
        Ok(rounds)
    }

    /// Resets the descriptor: the caller handles from now on what it has announced.
    #[inline]
    fn lower_notice(&self) {
        if let Some(notice) = self.lease.notice() {
            notice.lower();
        }
    }

    /// Notes that the caller has these rounds, and records them if the run is recorded.
    #[inline]
    fn took(&mut self, rounds: &RangeInclusive<u64>) {
        self.lower_notice();
        self.session.took(|| self.waiter.clock().now());
        self.trace(|session| session.takes(rounds));
        if let Some(tape) = &mut self.tape {
            let cuts = self.lease.take().recorded();
            tape.took(rounds, &cuts);
        }
    }

    /// Takes outcomes, if there are any.
    pub(super) fn try_wait(&mut self) -> Result<Option<RangeInclusive<u64>>> {
        let operation = "try_wait";
        self.check(operation)?;
        self.session.check_outstanding(operation)?;
        self.settle();
        let now = self.waiter.clock().now();
        self.waiter.check_peers_if_due(operation, now)?;
        self.lease.claim_work();
        let mut engine = self.lease.take();
        self.lower_notice();
        let exhausted = engine.towards(self.session.goal()).exhaust(now);
        let complete = self.waiter.explain(operation, exhausted)?;
        if complete {
            let rounds = self.session.take(&mut *engine);
            self.continue_serving(engine);
            self.took(&rounds);
            return Ok(Some(rounds));
        }
        self.go_away(engine);
        Ok(None)
    }

    /// Leaves in good order, as far as the next outcomes. The caller releases them before it calls again. Returns
    /// `None` when this rank has left.
    pub(super) fn leave(&mut self, deadline: Deadline) -> Result<Option<RangeInclusive<u64>>> {
        let (operation, deadline) = ("finish", Deadline::from(deadline.instant()));
        self.check_process(operation)?;
        if self.finished {
            return Ok(None);
        }
        self.settle();
        if !self.session.is_leaving() {
            self.check(operation)?;
            self.tape.as_deref().map_or(Ok(()), |tape| tape.check_leaving(operation))?;
            if self.session.is_outstanding() {
                return self.take(operation, deadline).map(Some);
            }
        }
        if self.session.is_to_leave() {
            let mut engine = self.lease.take();
            let now = self.waiter.clock().now();
            self.trace(|_| Event::Leaves);
            self.session.leave(&mut *engine, now);
        }
        if self.session.goal() == Goal::Outcome {
            // A recording ends with these rounds.
            let rounds = self.reach(operation, deadline, Session::take)?;
            self.lower_notice();
            if !rounds.is_empty() {
                self.trace(|session| session.takes(&rounds));
                return Ok(Some(rounds));
            }
        }
        while !self.session.is_gone() {
            self.reach(operation, deadline, Session::go_on_leaving)?;
        }
        self.part()?;
        self.finished = true;
        self.trace(|_| Event::Ends);
        let Some(tape) = self.tape.take() else { return Ok(None) };
        let cuts = self.lease.take().recorded();
        tape.left(self.world.rank(), operation, &cuts).map(|()| None)
    }

    /// Where a runner ran the rounds: triggers the operations that are still queued, for rounds that no rank needs any
    /// more. They write to the memory of other ranks, which must not read it then, and must not have left.
    fn part(&mut self) -> Result<()> {
        if self.lease.take().runner().is_none() {
            return Ok(());
        }
        let (operation, fabric) = ("finish", self.world.fabric());
        let until = Deadline::from(self.world.deadline()).instant();
        fabric.exchange(operation, &[], until)?;
        self.lease.take().runner().into_iter().for_each(|runner| runner.set_off());
        let has_run = || self.lease.take().runner().map_or(Ok(true), |runner| runner.has_run());
        while !self.waiter.explain(operation, has_run())? && Instant::now() < until {
            fabric.check_peers(operation)?;
            std::thread::sleep(Duration::from_micros(100));
        }
        fabric.exchange(operation, &[], until).map(drop)
    }

    /// Notes that the application begins to compute its next contribution only now.
    pub(super) fn begin_computation(&mut self) {
        self.session.computes(|| self.waiter.clock().now());
    }

    /// Does all pending work for the last arrival now, as a thread would.
    pub(super) fn tend(&mut self, operation: &'static str) -> Result<()> {
        let now = self.waiter.clock().now();
        let mut engine = self.lease.take();
        let done = engine.towards(self.session.goal()).exhaust(now).map(drop);
        self.waiter.explain(operation, done)
    }

    /// Returns whether the outcome of the last arrival is there. Does no work for it.
    pub(super) fn is_complete(&self) -> Result<bool> {
        self.check("is_complete")?;
        let mut engine = self.lease.take();
        let now = self.now(&engine);
        engine.look(now).map_err(|error| error.in_call("is_complete"))?;
        Ok(engine.is_complete())
    }

    /// Notes that the caller holds one more handle of these rounds.
    #[inline]
    pub(super) fn hold(&self, rounds: RangeInclusive<u64>) {
        for round in rounds {
            let handles = self.handles(round);
            handles.set(handles.get() + 1);
        }
    }

    /// Notes that the caller has dropped a handle of these rounds. Rounds without a handle are released, oldest first.
    #[inline]
    pub(super) fn drop_held(&self, rounds: RangeInclusive<u64>) {
        for round in rounds {
            let handles = self.handles(round);
            handles.set(handles.get() - 1);
        }
        if let Some(newest) = self.session.held().take_while(|&round| self.handles(round).get() == 0).last() {
            self.let_go(newest);
        }
    }

    fn handles(&self, round: u64) -> &Cell<u32> {
        &self.handles[self.session.facts().slot(round)]
    }

    /// Releases the outcomes that were taken, up to a round.
    #[inline]
    fn let_go(&self, newest: u64) {
        if !self.world.is_own() {
            return;
        }
        let mut engine = self.lease.take();
        self.trace(|session| Event::Releases { round: session.facts().base + newest });
        self.session.release(&mut *engine, newest);
        let now = self.now(&engine);
        // The next call reports an endpoint that failed.
        let _ = engine.drive(now, Effort::Nothing);
    }

    /// Releases the taken outcomes. A caller with `&mut self` has no borrow of an outcome, even if it forgot to drop a
    /// handle.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.session.holds() {
            self.release(*self.session.held().end());
        }
    }

    /// Releases the taken outcomes up to a round.
    pub(super) fn release(&mut self, newest: u64) {
        let held = self.session.held();
        let newest = newest.min(*held.end());
        (*held.start()..=newest).for_each(|round| self.handles(round).set(0));
        if held.contains(&newest) {
            self.let_go(newest);
        }
    }

    /// Works and waits until the session's goal is reached, and then calls `then`.
    #[inline]
    fn reach<R>(
        &mut self,
        operation: &'static str,
        deadline: Deadline,
        then: impl FnOnce(&mut Session, &mut P) -> R,
    ) -> Result<R> {
        self.lease.claim_work();
        let mut engine = self.lease.take();
        let done = self.waiter.block(engine.towards(self.session.goal()), operation, deadline);
        // The helper thread must not get the engine in between: its own claim could leave nothing ready.
        let done = done.map(|()| then(&mut self.session, &mut engine));
        self.continue_serving(engine);
        self.explain(operation, done)
    }

    /// Adds context to an error. After a wait that the caller can repeat, the helper thread continues.
    fn explain<R>(&mut self, operation: &'static str, done: Result<R>) -> Result<R> {
        let done = self.waiter.explain(operation, done);
        if let Err(error @ (Error::Timeout { .. } | Error::Interrupted { .. })) = &done {
            self.last_timeout = Some(error.to_string());
            self.go_away(self.lease.take());
        }
        done
    }
}

impl<P: Protocol> Drop for Raw<P> {
    fn drop(&mut self) {
        if !self.finished {
            self.trace(|_| Event::Ends);
        }
        if !self.finished && self.world.is_own() && self.world.fabric().health("drop").is_ok() {
            let after = self.last_timeout.take().map_or(String::new(), |text| format!(", after {text}"));
            self.world.abort(&format!("it dropped a collective without finish{after}"));
        }
    }
}
