//! Agreement and movement by a program where ranks share no memory: each rank runs its own table.
//!
//! A rank that has arrived puts its contribution into its *gate*. Activations flood the ranks, and each activation
//! closes the gate of a rank: its contents at that time are the rank's part in the round. Partial sums go from rank to
//! rank with a label that describes them, so the outcome arrives with its cut. The tables contain only the ranks that
//! are still active: a rank that left serves no others.
//!
//! An outcome contains a part of every active rank. So a rank that has it knows that all have closed their gates of
//! that round, and that all have the outcome of the round before. No rank has to ask whether it may write to another
//! one: the data of three rounds lies apart, and when a rank closes a gate, its writes for the round before the last
//! have completed, and so have all writes of the ranks that left with that round. A rank that leaves announces when
//! that is so. Activations and arrivals go out before the gate closes, so there are cells for one round more, and for
//! every slot of the ring: their acks may come late.
//!
//! Under a partial rule a round starts only if every rank has a slot for its outcome. A rank without a free slot
//! reports that in the label of the round before, and notifies all ranks when it has one.

mod sent;

use std::fmt;
use std::hash::{Hash, Hasher};

use super::super::context::Context;
use super::super::input::{Cells, Effort, FOREVER, Time};
use super::super::movement::Movement;
use super::super::op::{Counted, Op, ProgramOp};
use super::super::outbox::Outbox;
use super::super::plan::{OUTCOME, Plan};
use super::arrival::Arrival;
use super::{Form, condition, starts_alone};
use crate::fabric::Change;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::{Condition, Grace};
use crate::trigger::{Act, Buffer, Deposit, Progress, Request, Start, Table};
use sent::{ArrivalNotice, gathered, label_of, relayed, relayed_in, signalled_in};

/// This rank's table, and its progress in the next round.
#[derive(Clone)]
pub(crate) struct Relay {
    start: Start,
    /// The active ranks, in the order of the table.
    members: Vec<u32>,
    table: Table,
    progress: Progress,
    /// The contents of the first gate that is not closed.
    gate: Deposit,
    /// Ranks that had no free slot for the next round when they closed their last gate.
    without_slot: Vec<u32>,
    /// Ranks that left and have not announced that they have nothing in flight, with the round in which they left.
    departed: Vec<(u32, u64)>,
    /// The round for which this rank still has to announce a free slot.
    unsaid: Option<u64>,
    /// The newest round for which it has announced one.
    said: u64,
    /// The rank whose arrival starts the next round, if this rank starts it.
    initiator: Option<u32>,
    /// Where this rank counts the arrivals: the ranks whose arrival it has seen, and when the grace ends.
    seen: RankSet,
    close_at: Option<Time>,
}

impl Hash for Relay {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The table follows from the members.
        let Relay { members, progress, gate, without_slot, departed, unsaid, said, initiator, seen, close_at, .. } =
            self;
        (members, progress, gate, without_slot, departed).hash(state);
        (unsaid, said, initiator, seen, close_at).hash(state);
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Relay { members, progress, gate, without_slot, unsaid, initiator, .. } = self;
        let waits = (progress, gate, without_slot, unsaid, initiator);
        f.debug_tuple("Relay").field(members).field(&waits).finish()
    }
}

/// Returns the table of a rank among the active ones.
fn table(plan: &Plan, start: Start, members: &[u32]) -> Table {
    let request = Request {
        ranks: members.len() as u32,
        start,
        schedule: plan.schedule,
        radix: plan.radix,
        bytes: plan.bytes as u64,
        chunk: 0,
        slots: plan.slots(),
    };
    let number = members.iter().position(|&rank| rank == plan.me).expect("a rank that is active is a member");
    Table::new(&request, number as u32, plan.inputs())
}

/// How far an arrival has come.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum RelayStage {
    /// The contribution is in the gate; this rank starts the round at this time, if no rank has.
    Open { close_at: Time },
    /// The contribution is in the gate of a round that is started, or that another rank starts.
    Published,
    /// The arrival came too late for the gate of its target.
    Late { tried: u64 },
}

impl Form for Relay {
    type Stage = RelayStage;

    fn has_room(&self, target: u64, _: &Movement, cx: &mut Context, cells: &impl Cells) -> bool {
        target <= cx.ledger.fired()
            || cx.plan.fault(Fault::StartWithoutRoom)
            || self.ranks_without_room(target, cx, cells).next().is_none()
    }

    fn without_room(&self, target: u64, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        self.ranks_without_room(target, cx, cells).for_each(|rank| missing.insert(rank));
    }

    /// Deposits the contribution into the gate.
    fn enter(&mut self, arrival: &mut Arrival<RelayStage>, _: &mut Movement, cx: &mut Context, _: &impl Cells) {
        arrival.show_particulars(cx);
        let target = arrival.target;
        if self.open_gate(cx) != target {
            return arrival.refused(target, RelayStage::Late { tried: target }, cx);
        }
        self.deposit(target, arrival, cx);
        match self.start {
            Start::Everybody => {
                self.table.activate(&mut self.progress);
                arrival.enter(RelayStage::Published, &mut cx.outbox);
            }
            start @ (Start::First | Start::Designated) if starts_alone(start, cx) => self.initiate(arrival, cx),
            Start::First | Start::Designated => arrival.enter(RelayStage::Published, &mut cx.outbox),
            Start::Count(_) => {
                let (counter, cell) = (self.counter(), cx.plan.arrived(target, cx.plan.me));
                let value = ArrivalNotice { round: target, grace: arrival.pace.grace().unwrap_or(0) }.cell();
                if counter == cx.plan.me {
                    cx.outbox.push(Op::Store { cell, value });
                } else {
                    self.send(target, counter, None, (cell, value), cx);
                }
                let close_at = arrival.closes_at(false, cx);
                arrival.enter(RelayStage::Open { close_at }, &mut cx.outbox);
            }
        }
    }

    /// Fires the next round if its outcome is complete.
    #[inline(never)]
    fn learn(
        &mut self,
        arrival: &mut Arrival<RelayStage>,
        _: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool {
        let round = cx.ledger.open();
        let early = cx.plan.fault(Fault::CompleteEarly) && self.table.has_run(&self.progress);
        if !early && !self.table.is_complete(&mut self.progress, is_given(round, cx, cells)) {
            return false;
        }
        let plan = cx.plan.clone();
        let label = label_of(plan.area(OUTCOME, round), &plan, cells);
        cx.ledger.cut_mut(round).decode(round, |index| label.record(index));
        self.without_slot.clear();
        self.without_slot.extend(label.without_slot());
        arrival.fire(round, cx);
        if cx.ledger.leavers().iter().next().is_some() {
            self.members.retain(|&rank| cx.ledger.active().contains(rank));
            // Ranks that leave together send each other nothing.
            if self.members.contains(&cx.plan.me) {
                self.departed.extend(cx.ledger.leavers().iter().map(|rank| (rank, round)));
                if !cx.plan.fault(Fault::KeepOldTable) {
                    self.table = table(&cx.plan, self.start, &self.members);
                }
            }
        }
        self.table.begin_again(&mut self.progress);
        self.seen.clear();
        (self.initiator, self.close_at) = (None, None);
        true
    }

    fn step(
        &mut self,
        stage: RelayStage,
        arrival: &mut Arrival<RelayStage>,
        _: Effort,
        _: &mut Movement,
        cx: &mut Context,
        _: &impl Cells,
    ) {
        match stage {
            RelayStage::Open { .. } | RelayStage::Published if cx.ledger.fired() >= arrival.target => {
                arrival.entered(cx)
            }
            RelayStage::Open { close_at } if cx.now >= close_at => {
                arrival.expired(cx);
                self.initiate(arrival, cx);
            }
            RelayStage::Open { .. } | RelayStage::Published => {}
            RelayStage::Late { tried } => self.find_a_gate(tried, arrival, cx),
        }
    }

    /// Runs the rows that are due.
    #[inline(never)]
    fn work(&mut self, effort: Effort, arrival: &mut Arrival<RelayStage>, cx: &mut Context, cells: &impl Cells) {
        let is_here = |&(rank, _): &(u32, u64)| cells.load(cx.plan.released(rank)) != FOREVER;
        let before = self.departed.len();
        self.departed.retain(|departed| is_here(departed) && !cx.plan.fault(Fault::ForgetDeparted));
        if self.departed.len() < before {
            cx.outbox.note();
        }
        if !cx.ledger.active().contains(cx.plan.me) {
            return;
        }
        self.say_room(cx);
        let round = cx.ledger.open();
        if matches!(self.start, Start::Count(_)) && self.counter() == cx.plan.me && !self.is_sealed() {
            self.count_arrivals(round, cx, cells);
        }
        while !changes_memory(&cx.outbox) {
            let Some(row) = self.table.next(&mut self.progress, is_given(round, cx, cells)) else { return };
            if !self.run(row, round, effort, cx, cells) {
                return;
            }
            if matches!(self.table.row(row).act, Act::Seal { .. }) {
                // From here on the round waits for no arrival.
                arrival.unmeasured = Some(round);
            }
        }
    }

    fn missing(
        &self,
        arrival: &Arrival<RelayStage>,
        _: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    ) {
        if arrival.target > cx.ledger.fired() {
            self.awaited(cx, cells).into_iter().for_each(|rank| missing.insert(rank));
        }
    }

    fn next_timer(&self, arrival: &Arrival<RelayStage>) -> Time {
        let own = if let Some(RelayStage::Open { close_at }) = arrival.stage() { close_at } else { Time::MAX };
        let counted = self.close_at.filter(|_| !self.is_sealed()).unwrap_or(Time::MAX);
        own.min(counted)
    }

    /// Returns whether the next round of the other ranks needs this rank's table.
    fn serves(&self, cx: &Context) -> bool {
        cx.ledger.active().contains(cx.plan.me)
    }

    /// Returns whether no rank that left will write to this one any more, or notify it.
    fn has_served(&self, _: &Context) -> bool {
        self.departed.is_empty()
    }
}

impl Relay {
    pub(super) fn new(plan: &Plan) -> Self {
        let start = Start::of(plan.fire, plan.grace, plan.ranks);
        let members: Vec<u32> = (0..plan.ranks).collect();
        let table = table(plan, start, &members);
        Relay {
            start,
            members,
            progress: table.begin(),
            table,
            gate: Deposit::default(),
            without_slot: Vec::with_capacity(plan.ranks as usize),
            departed: Vec::new(),
            unsaid: None,
            said: 0,
            initiator: None,
            seen: RankSet::empty(plan.ranks),
            close_at: None,
        }
    }

    fn is_sealed(&self) -> bool {
        self.table.is_sealed(&self.progress)
    }

    /// Returns the first round whose gate is open.
    fn open_gate(&self, cx: &Context) -> u64 {
        cx.ledger.open() + u64::from(self.is_sealed())
    }

    /// Returns the rank that counts the arrivals.
    fn counter(&self) -> u32 {
        self.members[0]
    }

    /// Returns the ranks without a free slot for a round, which is the next one.
    fn ranks_without_room<'a>(
        &'a self,
        round: u64,
        cx: &'a Context,
        cells: &'a impl Cells,
    ) -> impl Iterator<Item = u32> + 'a {
        let me = cx.plan.me;
        let mine = Some(me).filter(|_| cx.ledger.released() < round.saturating_sub(cx.plan.depth));
        let others = self.without_slot.iter().copied().filter(move |&rank| rank != me);
        let active = others.filter(|&rank| cx.ledger.active().contains(rank));
        mine.into_iter().chain(active.filter(move |&rank| cells.load(cx.plan.released(rank)) < round))
    }

    /// Puts a late contribution into the first round whose gate is open.
    fn find_a_gate(&mut self, tried: u64, arrival: &mut Arrival<RelayStage>, cx: &mut Context) {
        let open = self.open_gate(cx);
        if arrival.fits_gate(open, &cx.plan) {
            self.deposit(open, arrival, cx);
        } else if arrival.is_carried(&cx.plan) && open > cx.ledger.open() {
            // That round is a full one: a contribution that enters it waits until it is the next round.
        } else if cx.ledger.fired() >= tried && arrival.is_to_enter(cx) {
            arrival.enter_full_round(cx);
        }
    }

    /// Puts the contribution into the open gate: fresh if it was made for that round.
    fn deposit(&mut self, round: u64, arrival: &mut Arrival<RelayStage>, cx: &mut Context) {
        arrival.put_into(&mut self.gate, round);
        match round == arrival.target {
            true => arrival.took_deferred(),
            false => arrival.placed(round, cx),
        }
    }

    /// Starts the round, unless it has been started.
    fn initiate(&mut self, arrival: &mut Arrival<RelayStage>, cx: &mut Context) {
        if self.open_gate(cx) == arrival.target {
            self.initiator = Some(cx.plan.me);
            self.table.activate(&mut self.progress);
            cx.stats.initiated += 1;
        }
        arrival.enter(RelayStage::Published, &mut cx.outbox);
    }

    /// Runs a row; returns whether that was possible.
    fn run(&mut self, row: usize, round: u64, effort: Effort, cx: &mut Context, cells: &impl Cells) -> bool {
        match self.table.row(row).act {
            Act::Signal | Act::Put { .. } => {}
            Act::Seal { parts } => {
                if !self.has_settled(round, cx) {
                    return false;
                }
                self.seal(round, parts, cx);
            }
            Act::Sum { .. } if effort == Effort::Nothing => return false,
            Act::Sum { from, to, parts } => {
                cx.outbox.program(ProgramOp::Sum { round, from, to, parts });
            }
        }
        let signals = self.table.row(row).signals.len();
        for index in 0..signals {
            let table = self.table.row(row);
            let (number, cell) = table.signals[index];
            if table.activates && self.table.takes_part(number, is_given(round, cx, cells)) {
                continue;
            }
            let data = match table.act {
                Act::Put { from, .. } if from.buffer == Buffer::Outcome && !from.chunk.is_whole() => {
                    gathered(from.chunk, round, &cx.plan)
                }
                Act::Put { from, to } => Some(relayed(from, to, round, &cx.plan, cells)),
                _ => None,
            };
            cx.stats.activations += u64::from(table.activates);
            let cell = cx.plan.input_cell(round, cell);
            self.send(round, self.members[number as usize], data, (cell, round), cx);
        }
        cx.stats.operations += 1;
        self.table.ran(row, &mut self.progress);
        cx.outbox.note();
        true
    }

    /// Gives another rank an input for a round, after data if there is any.
    fn send(
        &self,
        round: u64,
        rank: u32,
        data: Option<(usize, usize, usize)>,
        (cell, value): (usize, u64),
        cx: &mut Context,
    ) {
        cx.stats.relayed += 1;
        let counted = if data.is_some() { relayed_in(round) } else { signalled_in(round) };
        cx.outbox.signal(counted, cx.plan.host_of(rank), data, (cell, Change::Set(value)));
    }

    /// Returns whether the writes for the round before the last have completed, so that the gate may close.
    fn has_settled(&self, round: u64, cx: &Context) -> bool {
        let is_under_way = |before: u64, counted: fn(u64) -> Counted| {
            round > before && cx.outbox.has(counted(round - before)) && !cx.plan.fault(Fault::SealEarly)
        };
        // Acks of activations take longest: a rank may have nothing else to send to the rank that activated it.
        let own = is_under_way(2, relayed_in) || is_under_way(cx.plan.signalled_rounds(), signalled_in);
        !own && self.departed.iter().all(|&(_, left)| left + 2 > round)
    }

    /// Closes the gate of the round.
    fn seal(&mut self, round: u64, parts: u8, cx: &mut Context) {
        let deposit = std::mem::take(&mut self.gate);
        let needed = (round + 1).saturating_sub(cx.plan.depth);
        // A synchronous round waits for this rank's arrival, which comes when there is a free slot.
        let without_slot = self.start != Start::Everybody && cx.ledger.released() < needed;
        self.unsaid = without_slot.then_some(round + 1);
        let (initiator, pieces) = (self.initiator, self.table.whole().of);
        cx.outbox.program(ProgramOp::Seal { round, deposit, initiator, without_slot, pieces, parts });
    }

    /// Announces a free slot to all ranks, for the round that they may be waiting to start.
    fn say_room(&mut self, cx: &mut Context) {
        let has_room = |round: &u64| cx.ledger.released() >= round.saturating_sub(cx.plan.depth);
        let Some(round) = self.unsaid.take_if(|round| has_room(round)) else { return };
        if cx.plan.fault(Fault::ForgetRoom) {
            return;
        }
        let change = Change::advance(std::mem::replace(&mut self.said, round), round);
        let cell = cx.plan.released(cx.plan.me);
        for &rank in self.members.iter().filter(|&&rank| rank != cx.plan.me) {
            cx.outbox.signal(Counted::Notice, cx.plan.host_of(rank), None, (cell, change));
        }
    }

    /// Starts the round if enough ranks have arrived.
    fn count_arrivals(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) {
        let condition = condition(cx);
        let all = self.members.len() as u32;
        for &rank in &self.members {
            let notice = ArrivalNotice::from_cell(cells.load(cx.plan.arrived(round, rank)));
            if self.seen.contains(rank) || notice.round < round {
                continue;
            }
            self.seen.insert(rank);
            let fires = match condition {
                Condition::Count(least) => self.seen.len() == least.min(all),
                Condition::Rank(drawn) => rank == drawn,
                Condition::Full => self.seen.len() == all,
            };
            if fires {
                // An automatic grace is that of the rank whose arrival fires: this rank may be slower than all others.
                let fixed = if let Grace::Fixed(time) = cx.plan.grace { Some(time.as_nanos() as Time) } else { None };
                let grace = fixed.unwrap_or(notice.grace);
                (self.initiator, self.close_at) = (Some(rank), Some(cx.now.saturating_add(grace)));
            }
        }
        let has_all = self.seen.len() == all;
        if has_all || self.close_at.is_some_and(|close_at| cx.now >= close_at) {
            cx.stats.graces_expired += u64::from(!has_all && cx.plan.grace != Grace::NONE);
            self.close_at = None;
            self.table.activate(&mut self.progress);
        }
    }

    /// Returns the ranks that the next round waits for, as far as this rank can know.
    fn awaited(&self, cx: &Context, cells: &impl Cells) -> Vec<u32> {
        if self.is_sealed() {
            return self.table.awaited(&self.progress).map(|number| self.members[number as usize]).collect();
        }
        let round = cx.ledger.open();
        if self.table.is_activated(&self.progress) {
            let settling = self.departed.iter().filter(|&&(_, left)| left + 2 <= round);
            return settling.map(|&(rank, _)| rank).collect();
        }
        match (condition(cx), self.start) {
            (_, Start::Count(_)) if self.counter() == cx.plan.me => {
                let is_missing =
                    |&rank: &u32| ArrivalNotice::from_cell(cells.load(cx.plan.arrived(round, rank))).round < round;
                self.members.iter().copied().filter(is_missing).collect()
            }
            (_, Start::Count(_)) => vec![self.counter()],
            (Condition::Rank(rank), _) => vec![rank],
            _ => Vec::new(),
        }
    }
}

/// Returns whether an operation is about to change what the next row reads.
fn changes_memory(outbox: &Outbox) -> bool {
    outbox.newest().is_some_and(|op| matches!(op, Op::Program(ProgramOp::Seal { .. } | ProgramOp::Sum { .. })))
}

/// Returns a function that reports whether another rank has given an input for a round.
fn is_given(round: u64, cx: &Context, cells: &impl Cells) -> impl Fn(usize) -> bool {
    move |input| cells.load(cx.plan.input_cell(round, input)) >= round
}
