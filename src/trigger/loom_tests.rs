//! The counters, claims and gates of the peer executor under every order of effects that the memory
//! model allows. `docs/testing.md` says how to run them.
#![allow(unsafe_code)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::compile::{Request, Start};
use super::gate::{Deposit, Gate};
use super::layout::{Layout, Target, TaskWork};
use super::worker::{SlotCells, Task, Want, Worker};
use crate::rule::Schedule;
use crate::sync::modelled::{Operation, find};
use crate::sync::{AtomicU64, announce, full_fence, look, raise, swap};

const ROUND: u64 = 1;

/// One slot and the outputs of its reductions: by partial sum, the outcome last.
struct Memory {
    layout: Layout,
    cells: Vec<AtomicU64>,
    /// Runs of each row. Loom finds two at the same time, and a reader that comes too early.
    written: Vec<UnsafeCell<u64>>,
}

impl SlotCells for Memory {
    fn load(&self, _: u64, cell: usize) -> u64 {
        look(&self.cells[cell])
    }
}

impl Memory {
    fn new(ranks: u32, start: Start) -> Arc<Self> {
        let layout = Layout::new(&Request {
            ranks,
            start,
            schedule: Schedule::Doubling,
            radix: 2,
            bytes: 8,
            chunk: 0,
            slots: 2,
        });
        let cells = (0..layout.cells()).map(|_| AtomicU64::new(0)).collect();
        let written = layout.rows.iter().map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Memory { layout, cells, written })
    }

    fn run(&self, task: Task) {
        let TaskWork::Reduce { from, to, .. } = &self.layout.rows[task.row as usize].work else { return };
        assert!(from.len() == 2 && *to == Target::Outcome);
        // SAFETY: the row is claimed; loom checks that no other thread accesses it.
        self.written[task.row as usize].with_mut(|runs| unsafe { *runs += 1 });
    }
}

/// One rank's worker on a memory; it may die after a number of changes.
struct Rank {
    memory: Arc<Memory>,
    worker: Worker,
    changes: usize,
    dies_after: usize,
    /// Set when rank 0 is dead; stands for its process descriptor.
    dead: Arc<AtomicBool>,
}

impl Rank {
    fn new(memory: &Arc<Memory>, me: u32, dead: &Arc<AtomicBool>, dies_after: usize) -> Self {
        let worker = Worker::new(me, &memory.layout, None);
        Rank { memory: memory.clone(), worker, changes: 0, dies_after, dead: dead.clone() }
    }

    /// Carries out the worker's requests; false if the rank died of it.
    fn do_all(&mut self, wants: &mut Vec<Want>) -> bool {
        let mut more = Vec::new();
        for want in wants.drain(..) {
            if !matches!(want, Want::Fence | Want::Call { .. }) {
                if self.changes == self.dies_after {
                    return false;
                }
                self.changes += 1;
            }
            let cell = |cell: usize| &self.memory.cells[cell];
            match want {
                Want::Swap { cell: index, expect, new, .. } => {
                    let value = swap(cell(index), expect, new);
                    self.worker.answer(&self.memory.layout, value, &mut |want| more.push(want));
                }
                Want::Run(task) => self.memory.run(task),
                Want::Store { cell: index, value, .. } => announce(cell(index), value),
                Want::Raise { round, cell: index } => raise(cell(index), round),
                Want::Fence => full_fence(),
                Want::Call { .. } => {}
            }
        }
        wants.append(&mut more);
        wants.is_empty() || self.do_all(wants)
    }

    fn work(&mut self) -> bool {
        let mut wants = Vec::new();
        loop {
            let is_dead = |rank| rank == 0 && self.dead.load(Ordering::Acquire);
            let Rank { memory, worker, .. } = self;
            if !worker.step(&memory.layout, is_dead, &**memory, &mut |want| wants.push(want)) {
                return true;
            }
            if !self.do_all(&mut wants) {
                return false;
            }
        }
    }

    /// Arrives: raises the rank's own activation and runs the operations that it triggers. Returns false if the rank
    /// died.
    fn arrive(&mut self, me: u32) -> bool {
        let (counter, cell) = self.memory.layout.activation(me);
        let mut wants = vec![Want::Raise { round: ROUND, cell }, Want::Fence];
        if !self.do_all(&mut wants) {
            return false;
        }
        let Rank { memory, worker, .. } = self;
        worker.moved(&memory.layout, counter, ROUND, &**memory);
        self.work()
    }

    fn search(&mut self) {
        let Rank { memory, worker, dead, .. } = self;
        let is_dead = |rank| rank == 0 && dead.load(Ordering::Acquire);
        worker.search(&memory.layout, ROUND, is_dead, &**memory);
        assert!(self.work());
    }

    /// Returns whether the outcome is complete; if so, checks that it was written.
    fn look(&self) -> bool {
        let complete = self.memory.layout.is_complete(ROUND, &*self.memory);
        if complete {
            let last = self.memory.layout.rows.len() - 1;
            let reduce = self.memory.layout.rows.iter().position(|row| matches!(row.work, TaskWork::Reduce { .. }));
            // SAFETY: the outcome is complete; loom checks that no thread writes it.
            let runs = self.memory.written[reduce.unwrap_or(last)].with(|runs| unsafe { *runs });
            assert!(runs > 0);
        }
        complete
    }
}

const NEVER: usize = usize::MAX;

/// Two ranks arrive: the later one reduces, once, and afterwards both have the outcome.
#[test]
fn the_last_input_triggers_the_reduction() {
    loom::model(|| {
        let memory = Memory::new(2, Start::Everybody);
        let dead = Arc::new(AtomicBool::new(false));
        let mut other = Rank::new(&memory, 1, &dead, NEVER);
        let thread = thread::spawn(move || {
            assert!(other.arrive(1));
            other.look()
        });
        let mut own = Rank::new(&memory, 0, &dead, NEVER);
        assert!(own.arrive(0));
        let early = own.look();
        let theirs = thread.join().unwrap();
        assert!(own.look(), "no rank has reduced");
        assert!(early || theirs, "the rank that reduced has seen the outcome complete");
        assert_eq!(memory_tasks(&own.memory), 1);
    });
}

/// Returns the number of reductions that have run.
fn memory_tasks(memory: &Memory) -> u64 {
    // SAFETY: all threads have ended.
    memory.written.iter().map(|runs| runs.with(|runs| unsafe { *runs })).sum()
}

/// Both ranks start the flood at the same time: every gate is closed and the sum is computed once.
#[test]
fn two_initiators_reduce_once() {
    let mut model = loom::model::Builder::new();
    // Schedules with up to two preemptions; all schedules would take hours.
    model.preemption_bound = Some(2);
    model.check(|| {
        let memory = Memory::new(2, Start::First);
        let dead = Arc::new(AtomicBool::new(false));
        let mut other = Rank::new(&memory, 1, &dead, NEVER);
        let thread = thread::spawn(move || {
            assert!(other.arrive(1));
            other.look();
        });
        let mut own = Rank::new(&memory, 0, &dead, NEVER);
        assert!(own.arrive(0));
        thread.join().unwrap();
        assert!(own.look());
        assert_eq!(memory_tasks(&memory), 1);
    });
}

/// Rank 0 dies after any number of changes. Rank 1 learns of it and completes the round.
#[test]
fn a_survivor_completes_the_round_of_a_dead_rank() {
    for dies_after in 1..8 {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let memory = Memory::new(2, Start::First);
            let dead = Arc::new(AtomicBool::new(false));
            let mut mortal = Rank::new(&memory, 0, &dead, dies_after);
            let thread = thread::spawn(move || {
                if !mortal.arrive(0) {
                    mortal.dead.store(true, Ordering::Release);
                }
            });
            let mut own = Rank::new(&memory, 1, &dead, NEVER);
            assert!(own.arrive(1));
            thread.join().unwrap();
            own.search();
            assert!(own.look(), "rank 0 died after {dies_after} changes, and the round is not complete");
        });
    }
}

/// A deposit is in the gate, with its data, when the gate closes; or its rank learns that it is not.
#[test]
fn a_deposit_is_in_or_refused() {
    loom::model(|| {
        let shared = Arc::new((AtomicU64::new(0), UnsafeCell::new(0)));
        let depositor = {
            let shared = shared.clone();
            thread::spawn(move || {
                // SAFETY: no rank reads it before it is deposited.
                shared.1.with_mut(|data| unsafe { *data = 5 });
                let mut found = look(&shared.0);
                loop {
                    let gate = Gate(found).at(ROUND);
                    if gate.is_closed() {
                        return false;
                    }
                    let new = gate.with(|deposit| deposit.fresh = Some(0));
                    match swap(&shared.0, found, new.0) {
                        value if value == found => return true,
                        value => found = value,
                    }
                }
            })
        };
        let mut found = look(&shared.0);
        let sealed = loop {
            let gate = Gate(found).at(ROUND);
            match swap(&shared.0, found, gate.closed().0) {
                value if value == found => break gate.deposit(),
                value => found = value,
            }
        };
        if sealed.fresh.is_some() {
            // SAFETY: deposited, so its rank does not write it any more.
            assert_eq!(shared.1.with(|data| unsafe { *data }), 5);
        }
        let accepted = depositor.join().unwrap();
        assert_eq!(accepted, sealed != Deposit::default());
    });
}

#[test]
fn a_deposit_without_its_orderings_is_found() {
    find(Operation::Swap, a_deposit_is_in_or_refused);
}

#[test]
fn a_counter_without_its_orderings_is_found() {
    for operation in [Operation::Raise, Operation::Look, Operation::Fence] {
        find(operation, the_last_input_triggers_the_reduction);
    }
}
