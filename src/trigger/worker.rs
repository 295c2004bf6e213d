//! Runs the operations that a counter triggers when it reaches their threshold.
//!
//! A worker is one rank's share in running the operations of all ranks, as a state machine: it
//! reads cells and requests changes of them. A rank claims a task by compare-swap (owner and
//! round), so a task has one runner. Inputs are immutable and outputs fresh: if the runner dies,
//! another rank takes over the claim and runs the task again. After *written* only the signals are
//! repeated, because a rank may already read the output.
//!
//! Two workers cannot both miss an operation. Each raises its input, fences, and then reads the
//! other inputs, so at least one of the last two sees both.

use std::hash::{Hash, Hasher};

use super::compile::Start;
use super::gate::Gate;
use super::layout::{Layout, Phase, Row, State, TaskWork};
use crate::fault::Fault;

/// An operation of the table, in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Task {
    pub(crate) round: u64,
    pub(crate) row: u32,
}

/// A request of the worker. Cells are those of the round's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Compare-swap of a cell; [`Worker::answer`] takes the result.
    Swap { round: u64, cell: usize, expect: u64, new: u64 },
    /// Carries out the reduction of a task.
    Run(Task),
    /// Stores a cell, with release order.
    Store { round: u64, cell: usize, value: u64 },
    /// Raises an input to the round.
    Raise { round: u64, cell: usize },
    /// Makes earlier raises visible before later loads.
    Fence,
    /// Wakes ranks that wait for an outcome: at most `most`, or all that can help.
    Call { most: Option<u32> },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum WorkerState {
    #[default]
    Idle,
    /// The claim's compare-swap is in flight.
    Claiming { task: Task, found: u64 },
    /// Claimed; a dead owner may have written the output.
    Owning { task: Task, written: bool },
    /// The compare-swap that closes the gate is in flight.
    Sealing { task: Task, found: u64 },
    /// The worker has signalled; it reads which operations that triggered.
    Signalled { task: Task },
}

/// One rank's worker; see the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    me: u32,
    fault: Option<Fault>,
    todo: Vec<Task>,
    state: WorkerState,
    /// A round, and the number of its shared operations that this worker has checked.
    helped: (u64, usize),
    /// Operations carried out.
    pub(crate) tasks: u64,
    /// Signals to other ranks that the round has fired.
    pub(crate) activations: u64,
    /// Operations taken over from a dead rank.
    pub(crate) inherited: u64,
}

/// The cells of a slot, by round and cell.
pub(crate) trait SlotCells {
    fn load(&self, round: u64, cell: usize) -> u64;
}

impl Row {
    /// Returns whether all effects of the operation are visible.
    pub(crate) fn has_signalled(&self, round: u64, cells: &impl SlotCells) -> bool {
        self.then.iter().all(|&(_, cell)| cells.load(round, cell) >= round)
    }
}

impl Layout {
    /// Returns the number of a counter's inputs that have come for a round.
    pub(crate) fn value(&self, counter: u32, round: u64, cells: &impl SlotCells) -> u32 {
        let counter = &self.counters[counter as usize];
        let inputs = counter.first..counter.first + counter.inputs as usize;
        inputs.filter(|&cell| cells.load(round, cell) >= round).count() as u32
    }

    /// Returns whether a counter has reached the threshold of its operations.
    fn is_reached(&self, counter: u32, round: u64, cells: &impl SlotCells) -> bool {
        let counter = &self.counters[counter as usize];
        let (mut left, mut spare) = (counter.threshold, counter.inputs - counter.threshold);
        // The last inputs usually come last, so the search ends soonest from there.
        for cell in (counter.first..counter.first + counter.inputs as usize).rev() {
            if cells.load(round, cell) >= round {
                left -= 1;
                if left == 0 {
                    return true;
                }
            } else if spare == 0 {
                return false;
            } else {
                spare -= 1;
            }
        }
        false
    }

    /// Returns whether a triggered operation lacks some of its effects.
    pub(crate) fn is_pending(&self, round: u64, cells: &impl SlotCells) -> bool {
        let unfinished = |row: &Row| !row.has_signalled(round, cells);
        self.rows.iter().any(|row| self.is_reached(row.when, round, cells) && unfinished(row))
    }

    /// Returns the owners of claimed operations that are not complete.
    pub(crate) fn held(&self, round: u64, cells: &impl SlotCells) -> impl Iterator<Item = u32> {
        let claimed = move |row: u32| State::from_cell(cells.load(round, self.state(row)));
        let rows = (0..self.rows.len() as u32).map(move |row| (row, claimed(row)));
        let unfinished = move |(row, state): &(u32, State)| {
            state.round == round && !self.rows[*row as usize].has_signalled(round, cells)
        };
        rows.filter(unfinished).map(|(_, state)| state.owner)
    }

    /// Returns whether no rank has claimed an operation for a round.
    fn is_unclaimed(&self, row: u32, round: u64, cells: &impl SlotCells) -> bool {
        State::from_cell(cells.load(round, self.state(row))).round < round
    }

    /// Returns the contents of an operation's claim, if it can be claimed: no rank has claimed it, or the owner died
    /// before its last signal.
    fn free_claim(
        &self,
        Task { round, row }: Task,
        is_dead: impl Fn(u32) -> bool,
        cells: &impl SlotCells,
    ) -> Option<u64> {
        let found = cells.load(round, self.state(row));
        let state = State::from_cell(found);
        let abandoned = || state.round == round && is_dead(state.owner);
        let free = state.round < round || (abandoned() && !self.rows[row as usize].has_signalled(round, cells));
        free.then_some(found)
    }

    /// Returns whether the round has fired, so that it needs nothing more from any application.
    pub(crate) fn has_fired(&self, round: u64, cells: &impl SlotCells) -> bool {
        let mut seals = self.rows.iter().filter(|row| matches!(row.work, TaskWork::Seal(_)));
        let mut reached = |row: &Row| self.is_reached(row.when, round, cells);
        if self.start == Start::Everybody { seals.all(&mut reached) } else { seals.any(reached) }
    }

    /// Returns whether the outcome of a round is complete.
    pub(crate) fn is_complete(&self, round: u64, cells: &impl SlotCells) -> bool {
        self.is_reached(self.done, round, cells)
    }
}

impl Worker {
    pub(crate) fn new(me: u32, layout: &Layout, fault: Option<Fault>) -> Self {
        let signals = layout.rows.iter().map(|row| row.then.len().max(1)).sum();
        Worker {
            me,
            fault,
            todo: Vec::with_capacity(signals),
            state: WorkerState::Idle,
            helped: (0, 0),
            tasks: 0,
            activations: 0,
            inherited: 0,
        }
    }

    /// Hashes everything that its next steps depend on.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        (&self.todo, self.state, self.helped).hash(state);
    }

    /// Returns whether it holds no claim, so that no rank waits for this worker.
    pub(crate) fn has_nothing_pending(&self) -> bool {
        self.state == WorkerState::Idle
    }

    pub(crate) fn has_work(&self) -> bool {
        self.state != WorkerState::Idle || !self.todo.is_empty()
    }

    /// Forgets triggered operations that are not claimed; returns whether there were any. Other ranks can find them.
    pub(crate) fn hand_over(&mut self) -> bool {
        let some = !self.todo.is_empty();
        self.todo.clear();
        some
    }

    /// Removes the queued operations of a round that is complete: other ranks have run them. They must not stay: they
    /// lie below later operations, and the queue has memory for one round.
    pub(crate) fn complete(&mut self, round: u64) {
        self.todo.retain(|task| task.round > round);
    }

    /// Queues the operations that a raised input of a counter triggers.
    pub(crate) fn moved(&mut self, layout: &Layout, counter: u32, round: u64, cells: &impl SlotCells) {
        let lacks_one = || layout.value(counter, round, cells) + 1 == layout.counters[counter as usize].threshold;
        if layout.is_reached(counter, round, cells) || (Fault::StartShort.is(self.fault) && lacks_one()) {
            let rows = layout.counters[counter as usize].rows.iter();
            let free = rows.filter(|&&row| layout.is_unclaimed(row, round, cells));
            self.todo.extend(free.map(|&row| Task { round, row }));
        }
    }

    /// Searches the whole table for triggered operations that no rank runs, because a rank left them when it returned
    /// to its application, or a rank that `is_dead` claimed them. Only for an idle worker.
    pub(crate) fn search(
        &mut self,
        layout: &Layout,
        round: u64,
        is_dead: impl Fn(u32) -> bool,
        cells: &impl SlotCells,
    ) {
        if self.has_work() {
            return;
        }
        for (row, operation) in layout.rows.iter().enumerate() {
            let task = Task { round, row: row as u32 };
            if layout.free_claim(task, &is_dead, cells).is_some() && layout.is_reached(operation.when, round, cells) {
                self.todo.push(task);
            }
        }
    }

    /// Queues the first unclaimed operation of a counter that triggers many, starting with this rank's share.
    pub(crate) fn help(&mut self, layout: &Layout, round: u64, ranks: u32, cells: &impl SlotCells) {
        let Some(counter) = layout.shared_work.filter(|_| !self.has_work()) else { return };
        if self.helped == (round, layout.counters[counter as usize].rows.len())
            || !layout.is_reached(counter, round, cells)
        {
            return;
        }
        let rows = &layout.counters[counter as usize].rows;
        if self.helped.0 != round {
            self.helped = (round, 0);
        }
        let own = rows.len() * self.me as usize / ranks as usize;
        while self.helped.1 < rows.len() {
            let row = rows[(own + self.helped.1) % rows.len()];
            self.helped.1 += 1;
            if layout.is_unclaimed(row, round, cells) {
                return self.todo.push(Task { round, row });
            }
        }
    }

    /// Continues until it needs an answer; returns whether there was anything to do.
    pub(crate) fn step(
        &mut self,
        layout: &Layout,
        is_dead: impl Fn(u32) -> bool,
        cells: &impl SlotCells,
        want: &mut impl FnMut(Want),
    ) -> bool {
        match self.state {
            WorkerState::Idle => {
                while let Some(task) = self.todo.pop() {
                    if let Some(found) = layout.free_claim(task, &is_dead, cells) {
                        self.claim(layout, task, found, want);
                        return true;
                    }
                }
                false
            }
            WorkerState::Owning { task, written } => {
                match layout.rows[task.row as usize].work {
                    TaskWork::Seal(rank) => {
                        let found = cells.load(task.round, layout.gate(rank));
                        self.seal(layout, task, rank, found, want);
                    }
                    TaskWork::Reduce { .. } => {
                        if Fault::SignalBeforeData.is(self.fault) {
                            self.signal(layout, task, want);
                            want(Want::Run(task));
                            return true;
                        }
                        if !written {
                            want(Want::Run(task));
                            let state = State { round: task.round, owner: self.me, phase: Phase::Written };
                            want(Want::Store { round: task.round, cell: layout.state(task.row), value: state.cell() });
                        }
                        self.signal(layout, task, want);
                    }
                }
                true
            }
            WorkerState::Signalled { task } => {
                self.state = WorkerState::Idle;
                for &(counter, _) in &layout.rows[task.row as usize].then {
                    if layout.shared_work == Some(counter) {
                        if layout.is_reached(counter, task.round, cells) {
                            want(Want::Call { most: None });
                        }
                    } else if counter != layout.done {
                        self.moved(layout, counter, task.round, cells);
                    } else if layout.is_complete(task.round, cells) && !Fault::ForgetCall.is(self.fault) {
                        want(Want::Call { most: Some(u32::MAX) });
                    }
                }
                true
            }
            WorkerState::Claiming { .. } | WorkerState::Sealing { .. } => false,
        }
    }

    fn claim(&mut self, layout: &Layout, task: Task, found: u64, want: &mut impl FnMut(Want)) {
        let before = State::from_cell(found);
        // A written output stays written.
        let phase = if before.round == task.round { before.phase } else { Phase::Claimed };
        let new = State { round: task.round, owner: self.me, phase }.cell();
        self.state = WorkerState::Claiming { task, found };
        want(Want::Swap { round: task.round, cell: layout.state(task.row), expect: found, new });
    }

    /// Takes the previous value of the cell of the last [`Want::Swap`].
    pub(crate) fn answer(&mut self, layout: &Layout, value: u64, want: &mut impl FnMut(Want)) {
        match self.state {
            // Another rank has claimed it.
            WorkerState::Claiming { found, .. } if value != found => self.state = WorkerState::Idle,
            WorkerState::Claiming { task, found } => {
                let before = State::from_cell(found);
                let inherits = before.round == task.round;
                self.inherited += u64::from(inherits);
                self.state = WorkerState::Owning { task, written: inherits && before.phase == Phase::Written };
            }
            WorkerState::Sealing { task, found } if value == found => self.signal(layout, task, want),
            // A deposit came in between, or the gate is already closed.
            WorkerState::Sealing { task, .. } => self.state = WorkerState::Owning { task, written: false },
            state => debug_assert!(false, "an answer without a request, in {state:?}"),
        }
    }

    fn seal(&mut self, layout: &Layout, task: Task, rank: u32, found: u64, want: &mut impl FnMut(Want)) {
        let gate = Gate(found).at(task.round);
        debug_assert!(Gate(found).round() <= task.round, "a gate of {} for {task:?}", Gate(found).round());
        let was_closed = Fault::OldGate.is(self.fault) && Gate(found).is_closed();
        if gate.is_closed() || was_closed || Fault::GateOff.is(self.fault) {
            return self.signal(layout, task, want);
        }
        self.state = WorkerState::Sealing { task, found };
        let cell = layout.gate(rank);
        want(Want::Swap { round: task.round, cell, expect: found, new: gate.closed().0 });
    }

    fn signal(&mut self, layout: &Layout, task: Task, want: &mut impl FnMut(Want)) {
        self.tasks += 1;
        self.activations += u64::from(layout.rows[task.row as usize].activations);
        let then = &layout.rows[task.row as usize].then;
        let forgotten = usize::from(Fault::ForgetSignal.is(self.fault));
        for &(_, cell) in &then[..then.len() - forgotten] {
            want(Want::Raise { round: task.round, cell });
        }
        want(Want::Fence);
        self.state = WorkerState::Signalled { task };
    }
}
