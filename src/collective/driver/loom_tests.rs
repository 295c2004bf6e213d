//! Ranks of one host under every order of effects that the memory model allows. Run as `docs/testing.md` says.
//!
//! Each rank is a production driver with its machine, in a thread of its own. Loom checks each access to a contribution
//! and an outcome for a data race. It also checks that a slot is cleared after all earlier changes of its cells and
//! before all later ones. The tests at the end plant one mistake each and require that loom finds it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use parking_lot::Mutex;

use super::{Driver, Reduction, Regions};
use crate::collective::core::{Cut, Effort, Entry, Part, Particulars, Plan, Terms, program};
use crate::fabric::HostMemory;
use crate::fabric::modelled::Host;
use crate::reduce::{Dtype, Reduce};
use crate::rule::{Absent, AgreementBy, Fire, Grace, MovementBy, Scale, Schedule};
use crate::sync::modelled::{Operation, check, find, narrow};

/// The terms that all ranks of a test agree on. An element has 64 bits; a segment is one element.
#[derive(Clone, Copy)]
struct World {
    ranks: u32,
    movement: MovementBy,
    fire: Fire,
    depth: u64,
    elements: usize,
    /// Whether ranks may sleep. A rank that sleeps then does not fence for another one.
    sleeps: bool,
    /// Whether cuts are given: those of some rounds in which all ranks are fresh.
    given: bool,
}

const REPLICATED: World = World {
    ranks: 2,
    movement: MovementBy::Everyone,
    fire: Fire::ALL,
    depth: 1,
    elements: 1,
    sleeps: false,
    given: false,
};
const EAGER: World = World { movement: MovementBy::Initiator, fire: Fire::SOLO, ..REPLICATED };
const SEGMENTED: World = World { movement: MovementBy::Segments, elements: 2, ..REPLICATED };
const GIVEN: World = World { fire: Fire::SOLO, elements: 1, given: true, ..SEGMENTED };
const PROGRAM: World = World { movement: MovementBy::Program, depth: 2, ..REPLICATED };

/// Returns the contribution of a rank to a round: a bit of its own, so a sum shows its parts.
fn value(rank: u32, round: u64) -> u64 {
    1 << (8 * u64::from(rank) + round)
}

impl World {
    fn plan(self, me: u32) -> Plan {
        let (bytes, grace) = (self.elements * size_of::<u64>(), Grace::NONE);
        let program = || program(self.ranks, (self.fire, grace), Schedule::Doubling, (bytes, 0), self.depth);
        let sample = Terms::sample(me, vec![0; self.ranks as usize], self.fire, self.movement);
        Plan::new(Terms {
            agreement: if self.given { AgreementBy::Given } else { sample.agreement },
            depth: self.depth,
            bytes,
            wide_bytes: bytes,
            program: (self.movement == MovementBy::Program).then(program),
            ..sample
        })
    }

    /// Runs `rank` for each rank, each in its own thread, in every order; with `preemptions`, in all orders with at
    /// most that number of preemptions.
    fn play(self, preemptions: Option<usize>, rank: fn(&mut Rank)) {
        self.play_after(|_| (), preemptions, rank, |_| ());
    }

    /// Runs as [`World::play`]. One thread runs `before` for all ranks first; the last thread to end runs `after`.
    fn play_after(self, before: fn(&mut [Rank]), preemptions: Option<usize>, rank: fn(&mut Rank), after: fn(&[Rank])) {
        // No thread joins another: that would multiply the orders and show nothing.
        let play = move || {
            let mut ranks = self.start();
            before(&mut ranks);
            let ended = Arc::new(Mutex::new(Vec::new()));
            for mut each in ranks {
                let ended = ended.clone();
                spawn(move || {
                    rank(&mut each);
                    let mut ended = ended.lock();
                    ended.push(each);
                    if ended.len() == self.ranks as usize {
                        after(&ended);
                    }
                });
            }
        };
        check(preemptions, move || spawn(play));
    }

    fn start(self) -> Vec<Rank> {
        let plan = self.plan(0);
        let host = Host::new(plan.control_cells(), plan.data_bytes());
        let host = if self.sleeps { host.with_sleepers(self.ranks) } else { host };
        if let Some(cells) = MISTAKEN.get() {
            narrow(cells(&plan).into_iter().map(|cell| host.cell(cell)));
        }
        let mut ranks: Vec<Rank> = (0..self.ranks).map(|me| Rank::new(self.plan(me), &host)).collect();
        ranks.iter_mut().filter(|_| self.given).for_each(Rank::give);
        ranks
    }
}

/// The words of a thread's stack. Loom's default is too small for a driver.
const STACK: usize = 1 << 15;

fn spawn(run: impl FnOnce() + Send + 'static) {
    drop(thread::Builder::new().stack_size(STACK).spawn(run).unwrap());
}

struct Rank {
    driver: Driver,
    memory: HostMemory,
    /// Contributions in the outcomes so far: the rank, and the round that it made them for.
    had: BTreeSet<(u32, u64)>,
}

impl Rank {
    fn new(plan: Plan, host: &Host) -> Self {
        let regions = Regions { control: [Host::CONTROL].into(), data: [Host::DATA].into() };
        let reduction = Reduction { dtype: Dtype::U64, reduce: Reduce::Sum, scale: Scale::Sum, absent: Absent::Carry };
        let endpoint = Box::new(host.endpoint(plan.me));
        let driver = Driver::new(plan, endpoint, regions, reduction, None).unwrap();
        let memory = driver.memory();
        Rank { driver, memory, had: BTreeSet::new() }
    }

    fn me(&self) -> u32 {
        self.driver.machine().plan().me
    }

    fn work(&mut self, effort: Effort) {
        while self.driver.step(0, effort).unwrap() {}
    }

    /// Gives the machine cuts with fresh contributions of all ranks.
    fn give(&mut self) {
        let machine = self.driver.machine_mut();
        for round in 1..=3 {
            let fresh = |rank| Entry::new(rank, Part::Fresh, (0, Particulars::PLAIN), 0);
            machine.give(Cut::of_entries(round, None, (0..machine.plan().ranks).map(fresh).collect()));
            machine.give_end(round);
        }
    }

    /// Writes a part (offset and length in bytes) of the contribution to a round.
    fn write(&mut self, round: u64, buffer: u32, (from, len): (usize, usize)) {
        let me = self.me();
        let at = self.driver.machine().plan().contribution(me, buffer) + from;
        self.memory.contribution::<u64>(at, len).fill(value(me, round));
    }

    /// Writes the next contribution.
    fn contribute(&mut self) {
        let machine = self.driver.machine();
        let (round, buffer, bytes) = (machine.taken() + 1, machine.buffer(), machine.plan().bytes);
        self.write(round, buffer, (0, bytes));
    }

    fn arrive(&mut self) {
        self.contribute();
        self.driver.machine_mut().arrive(0, Particulars::PLAIN);
        self.work(Effort::Nothing);
    }

    /// Arrives first and writes the contribution then, piece by piece.
    fn arrive_unfilled(&mut self) {
        let machine = self.driver.machine_mut();
        let (round, buffer, pieces) = (machine.taken() + 1, machine.buffer(), machine.plan().pieces());
        machine.arrive_unfilled(0, Particulars::PLAIN);
        self.work(Effort::Nothing);
        for piece in 0..pieces {
            let part = self.driver.machine().plan().piece_span(piece);
            self.write(round, buffer, part);
            self.driver.machine_mut().filled(buffer, pieces - piece - 1);
            self.work(Effort::Nothing);
        }
    }

    /// Waits for the outcome of the arrival, and checks each outcome that comes with it.
    fn wait(&mut self) {
        self.wait_and(|_| thread::yield_now());
    }

    /// Does the same, and calls `idle` while there is nothing else to do.
    fn wait_and(&mut self, idle: fn(&mut Rank)) {
        let rounds = loop {
            self.work(Effort::Work);
            let rounds = self.driver.machine_mut().take(false);
            if !rounds.is_empty() {
                break rounds;
            }
            idle(self);
        };
        rounds.for_each(|round| self.check(round));
    }

    /// Sleeps until woken, without a limit, unless there is something to do.
    fn sleep(&mut self) {
        let interest = self.driver.machine().interest() as u32;
        self.driver.endpoint().prepare_wait(interest);
        match self.driver.step(0, Effort::Search).unwrap() {
            true => self.driver.endpoint().cancel_wait(),
            false => self.driver.endpoint().wait(Duration::MAX),
        }
    }

    /// An outcome is the sum of its cut's contributions, and no contribution is in two outcomes.
    fn check(&mut self, round: u64) {
        let machine = self.driver.machine();
        let cut = machine.cut(round);
        assert_eq!(cut.round(), round);
        let mut sum = 0;
        for entry in cut.contributions() {
            let made_for = round - entry.age;
            assert!(self.had.insert((entry.rank, made_for)), "rank {} twice for round {made_for}", entry.rank);
            sum += value(entry.rank, made_for);
        }
        let outcome = self.memory.outcome::<u64>(machine.outcome_at(round), machine.plan().bytes);
        assert!(outcome.iter().all(|&element| element == sum), "{outcome:x?} is not the sum of {cut:?}");
    }

    fn release(&mut self) {
        let taken = self.driver.machine().taken();
        self.driver.machine_mut().release(taken);
        self.work(Effort::Nothing);
    }

    fn round(&mut self) {
        self.arrive();
        self.wait();
        self.release();
    }
}

/// Tags. A rank that sees a peer's tag may read its contribution. A rank that sees the peer's next tag may rewrite its
/// own earlier contribution.
#[test]
fn a_tag_publishes_a_contribution_and_gives_one_back() {
    REPLICATED.play(Some(3), |rank| {
        rank.round();
        rank.round();
        assert_eq!(rank.driver.machine().buffer(), 0, "the peer read it in round 1");
        rank.contribute();
    });
}

/// Tags of three ranks. At least one sees all tags without polling again; it would wake the ranks that sleep.
#[test]
fn one_of_the_last_to_arrive_sees_every_tag() {
    let has_outcome = |ranks: &[Rank]| {
        assert!(ranks.iter().any(|rank| rank.driver.machine().landed() == 1), "every rank would sleep");
    };
    World { ranks: 3, ..REPLICATED }.play_after(|_| (), None, Rank::arrive, has_outcome);
}

/// Tags of two ranks that sleep and fence for themselves only. At least one of these, too, sees both tags without
/// polling again, and wakes the other.
#[test]
fn two_ranks_that_sleep_are_woken() {
    World { sleeps: true, ..REPLICATED }.play(Some(2), |rank| {
        rank.arrive();
        rank.wait_and(Rank::sleep);
    });
}

/// Words and records. A late rank learns from the record that the round's outcome is there and that the next round's
/// word was cleared, before it adds its carried bit to that word.
#[test]
fn a_record_publishes_the_outcome_and_the_next_word() {
    EAGER.play(None, Rank::round);
}

/// Releases. A slot that every rank has released is cleared, and its outcome is rewritten.
#[test]
fn a_released_slot_is_used_again() {
    EAGER.play(Some(2), |rank| (0..3).for_each(|_| rank.round()));
}

/// Bits. An initiator that finds a carried bit finds its tag, although an older tag of that rank lies beside it.
#[test]
fn a_carried_bit_publishes_its_tag() {
    let before = |ranks: &mut [Rank]| {
        ranks[1].round();
        ranks[0].round();
    };
    let arrivals = |rank: &mut Rank| {
        let count = if rank.me() == 0 { 2 } else { 1 };
        for _ in 0..count {
            rank.arrive();
            rank.wait();
        }
    };
    World { depth: 2, ..EAGER }.play_after(before, None, arrivals, |_| ());
}

/// Segments. Each is claimed once; a rank that finds all of them counted sees the data of all.
#[test]
fn segments_are_reduced_once_and_seen_when_counted() {
    SEGMENTED.play(Some(3), Rank::round);
}

/// The home clears the claims of a slot when no rank claims from it any more. Outcomes are rewritten.
#[test]
fn claims_are_used_again() {
    SEGMENTED.play(Some(1), |rank| (0..3).for_each(|_| rank.round()));
}

/// Given cuts. Each rank sees by itself that a round fires, from tags or from a record that the other rank also writes.
#[test]
fn given_cuts_need_tags_alone() {
    GIVEN.play(Some(2), Rank::round);
}

/// Given cuts. No rank clears claims: claims of an older use of a slot do not count.
#[test]
fn claims_of_given_cuts_are_used_again() {
    GIVEN.play(Some(1), |rank| (0..3).for_each(|_| rank.round()));
}

/// Pieces. A rank reduces a segment only when every contribution has that piece.
#[test]
fn a_piece_is_read_when_it_is_filled() {
    SEGMENTED.play(Some(1), |rank| {
        match rank.me() {
            0 => rank.arrive(),
            _ => rank.arrive_unfilled(),
        }
        rank.wait();
    });
}

/// Counters and claims of a program. At least one of the last two ranks to raise a counter continues.
#[test]
fn a_program_for_all_completes() {
    PROGRAM.play(None, Rank::round);
}

/// More rounds than a program has slots, and twice as many as it has outcomes.
#[test]
fn the_slots_of_a_program_are_used_again() {
    PROGRAM.play(Some(1), |rank| (0..4).for_each(|_| rank.round()));
}

/// Gates of a program. The first arrival closes the gates of ranks that may be depositing.
#[test]
fn a_program_for_the_first_completes() {
    World { fire: Fire::SOLO, ..PROGRAM }.play(Some(2), Rank::round);
}

type Cells = fn(&Plan) -> Vec<usize>;

thread_local! {
    /// The cells of a planted mistake; without any, it applies to all cells.
    static MISTAKEN: Cell<Option<Cells>> = const { Cell::new(None) };
}

/// Removes the ordering of an operation on these cells, and requires that the test fails.
fn find_on(operation: Operation, cells: Cells, test: fn()) {
    find(operation, move || {
        MISTAKEN.set(Some(cells));
        test();
    });
}

/// Returns rounds that use all slots.
fn slots(plan: &Plan) -> impl Iterator<Item = u64> + use<> {
    1..=plan.slots()
}

fn tags(plan: &Plan) -> Vec<usize> {
    (0..plan.ranks).flat_map(|rank| plan.tag(rank, 0)..plan.released(rank)).collect()
}

fn words(plan: &Plan) -> Vec<usize> {
    slots(plan).map(|round| plan.word(round, 0)).collect()
}

/// Returns the cell of each record's round.
fn records(plan: &Plan) -> Vec<usize> {
    slots(plan).map(|round| plan.record(round)).collect()
}

fn releases(plan: &Plan) -> Vec<usize> {
    (0..plan.ranks).map(|rank| plan.released(rank)).collect()
}

/// Returns the cells that count the reduced segments.
fn counts(plan: &Plan) -> Vec<usize> {
    slots(plan).map(|round| plan.done(round)).collect()
}

/// Returns the cells that count the missing pieces of each rank's first contribution.
fn pieces(plan: &Plan) -> Vec<usize> {
    (0..plan.ranks).map(|rank| plan.unfilled(rank, 0)).collect()
}

fn gates(plan: &Plan) -> Vec<usize> {
    let Some(layout) = &plan.program else { return Vec::new() };
    let of = |round| (0..plan.ranks).map(move |rank| plan.program_cell(round, layout.gate(rank)));
    slots(plan).flat_map(of).collect()
}

#[test]
fn a_tag_without_release_is_found() {
    find_on(Operation::Announce, tags, a_tag_publishes_a_contribution_and_gives_one_back);
}

#[test]
fn a_look_at_tags_without_acquire_is_found() {
    find_on(Operation::Look, tags, a_tag_publishes_a_contribution_and_gives_one_back);
}

#[test]
fn a_tag_without_a_fence_is_found() {
    find(Operation::Fence, one_of_the_last_to_arrive_sees_every_tag);
}

/// Each rank leaves its fence to the rank that goes to sleep, which does not fence for it.
#[test]
fn a_tag_whose_fence_is_left_to_a_sleeper_is_found() {
    find(Operation::FencePeer, two_ranks_that_sleep_are_woken);
}

#[test]
fn a_record_without_release_is_found() {
    find_on(Operation::Announce, records, a_record_publishes_the_outcome_and_the_next_word);
}

#[test]
fn a_look_at_records_without_acquire_is_found() {
    find_on(Operation::Look, records, a_record_publishes_the_outcome_and_the_next_word);
}

#[test]
fn a_tag_of_a_given_cut_without_release_is_found() {
    find_on(Operation::Announce, tags, given_cuts_need_tags_alone);
}

#[test]
fn a_look_at_tags_of_a_given_cut_without_acquire_is_found() {
    find_on(Operation::Look, tags, given_cuts_need_tags_alone);
}

#[test]
fn a_release_without_release_order_is_found() {
    find_on(Operation::Announce, releases, a_released_slot_is_used_again);
}

#[test]
fn a_look_at_releases_without_acquire_is_found() {
    find_on(Operation::Look, releases, a_released_slot_is_used_again);
}

#[test]
fn a_bit_without_acquire_and_release_is_found() {
    find_on(Operation::Add, words, a_carried_bit_publishes_its_tag);
}

#[test]
fn a_count_of_segments_without_release_is_found() {
    find_on(Operation::Add, counts, segments_are_reduced_once_and_seen_when_counted);
}

#[test]
fn a_look_at_counts_without_acquire_is_found() {
    find_on(Operation::Look, counts, segments_are_reduced_once_and_seen_when_counted);
}

#[test]
fn a_filled_piece_without_release_is_found() {
    find_on(Operation::Announce, pieces, a_piece_is_read_when_it_is_filled);
}

#[test]
fn a_look_at_pieces_without_acquire_is_found() {
    find_on(Operation::Look, pieces, a_piece_is_read_when_it_is_filled);
}

#[test]
fn a_counter_without_release_is_found() {
    find(Operation::Raise, a_program_for_all_completes);
}

#[test]
fn a_counter_without_a_fence_is_found() {
    find(Operation::Fence, a_program_for_all_completes);
}

#[test]
fn a_deposit_without_release_is_found() {
    find_on(Operation::Swap, gates, a_program_for_the_first_completes);
}
