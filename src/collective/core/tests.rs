//! Tests of which ranks a machine reports as missing when it waits.

use super::tag::Tag;
use super::{Cells, Effort, Machine, Op, Operands, Particulars, Plan, Terms};
use crate::fabric::Atomic;
use crate::rank_set::RankSet;
use crate::rule::{Fire, MovementBy};

/// The cells of a host.
pub(super) struct Memory(pub(super) Vec<u64>);

impl Cells for Memory {
    fn load(&self, cell: usize) -> u64 {
        self.0[cell]
    }
}

impl Memory {
    pub(super) fn of(plan: &Plan) -> Self {
        Memory(vec![0; plan.cells()])
    }

    /// Stores the tag with which an arriving rank shows a buffer, as if it had landed here.
    fn show(&mut self, cell: usize, target: u64) {
        self.0[cell] = Tag { target, buffer: 0, particulars: Particulars::PLAIN, leaving: false }.cell();
    }

    /// Drives a machine whose operations on other hosts never complete, as far as it can proceed.
    fn run(&mut self, machine: &mut Machine) {
        self.run_with(machine, |_| false);
    }

    /// Does the same; operations complete on this host and on other hosts that answer. Their cells lie in one memory.
    fn run_with(&mut self, machine: &mut Machine, answers: impl Fn(u32) -> bool) {
        self.run_and(machine, answers, |_| ());
    }

    /// Does the same, and passes each operation to `note`.
    fn run_and(&mut self, machine: &mut Machine, answers: impl Fn(u32) -> bool, mut note: impl FnMut(&Op)) {
        let me = machine.plan().me;
        let answers = |host| host == me || answers(host);
        while machine.poll(0, Effort::Work, self) {
            let mut operands = Operands::default();
            while let Some(op) = machine.next_op(&mut operands) {
                note(&op);
                match op {
                    Op::Store { cell, value } => self.0[cell] = value,
                    Op::Put { host, token, .. } | Op::Clear { host, token, .. } if answers(host) => {
                        machine.complete(token, 0, 0);
                    }
                    Op::Atomic { host, cell, atomic, token } if answers(host) => {
                        let before = self.0[cell];
                        self.0[cell] = match atomic {
                            Atomic::FetchAdd(value) => before + value,
                            Atomic::CompareSwap { expect, new } if expect == before => new,
                            Atomic::CompareSwap { .. } => before,
                        };
                        machine.complete(token, before, 0);
                    }
                    Op::Record { last, cell, round, .. } => {
                        operands.words.iter().enumerate().for_each(|(index, &word)| self.0[last - index] = word);
                        self.0[cell] = round;
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Returns a plan in which each rank is on a host of its own.
fn plan(me: u32, ranks: u32, fire: Fire, movement: MovementBy) -> Plan {
    Plan::new(Terms::sample(me, (0..ranks).collect(), fire, movement))
}

fn missing(machine: &Machine, memory: &Memory) -> Vec<u32> {
    machine.missing(memory).iter().collect()
}

/// This rank has arrived. The third rank has not, perhaps because the home does not answer it either.
#[test]
fn a_home_that_does_not_answer_is_missing() {
    let of = |me| plan(me, 3, Fire::SOLO, MovementBy::Initiator);
    let home = of(0).home(1, &RankSet::full(3), None);
    let mut machine = Machine::new(of((home + 1) % 3));
    let mut memory = Memory::of(machine.plan());
    memory.show(machine.plan().tag(home, 0), 1);
    machine.arrive(0, Particulars::PLAIN);
    memory.run(&mut machine);
    let mut expected = [home, (home + 2) % 3];
    expected.sort_unstable();
    assert_eq!(missing(&machine, &memory), expected);
}

/// The round has landed here. What this rank sent for the round before has not landed at one of the others.
#[test]
fn a_rank_that_takes_nothing_is_missing() {
    for silent in [1, 2] {
        let mut machine = Machine::new(plan(0, 3, Fire::ALL, MovementBy::Everyone));
        let mut memory = Memory::of(machine.plan());
        for round in 1..=2 {
            machine.arrive(0, Particulars::PLAIN);
            memory.run_with(&mut machine, |host| host != silent);
            (1..3).for_each(|rank| memory.show(machine.plan().tag(rank, Plan::tag_of(round)), round));
            memory.run_with(&mut machine, |host| host != silent);
            assert_eq!(machine.landed(), round);
            let taken = machine.take(true);
            assert_eq!(taken.is_empty(), round == 2, "{taken:?}");
        }
        assert_eq!(missing(&machine, &memory), [silent]);
    }
}

/// This rank fires rounds by itself. What it sent to one of the others has not landed there.
#[test]
fn a_rank_that_answers_nothing_holds_up_what_follows_and_the_end() {
    let of = |me| plan(me, 3, Fire::SOLO, MovementBy::Initiator);
    let (all, me) = (RankSet::full(3), 0);
    // The silent rank holds no word of the first round or of those that `me` closes: it only receives messages.
    let silent = (1..3).find(|&rank| of(me).home(1, &all, None) != rank);
    for leaves in [false, true] {
        let silent = silent.expect("choose other rounds");
        let mut machine = Machine::new(of(me));
        let mut memory = Memory::of(machine.plan());
        let answers = |host| host != silent;
        if leaves {
            machine.leave();
            memory.run_with(&mut machine, answers);
            assert!(!machine.is_finished());
        } else {
            machine.arrive(0, Particulars::PLAIN);
            memory.run_with(&mut machine, answers);
            assert_eq!(machine.take(true), 1..=1);
            // The release does not take effect yet, because the record of the round may still be read.
            machine.release(1);
            memory.0[machine.plan().released(3 - silent)] = 1;
            machine.arrive(0, Particulars::PLAIN);
            memory.run_with(&mut machine, answers);
        }
        assert_eq!(missing(&machine, &memory), [silent], "leaves: {leaves}");
    }
}

/// A partial round has fired with this rank as its initiator. A member's tag is missing here; or this rank leaves, and
/// the words of the next round lie on a host that does not clear them.
#[test]
fn a_rank_that_holds_up_an_initiator_is_missing() {
    let of = |me| plan(me, 4, Fire::quorum(3), MovementBy::Segments);
    let all = RankSet::full(4);
    let me = of(0).home(1, &all, None);
    for leaves in [false, true] {
        let mut machine = Machine::new(of(me));
        let mut memory = Memory::of(machine.plan());
        let others: Vec<u32> = (0..4).filter(|&rank| rank != me).collect();
        memory.0[machine.plan().word(1, 0)] = others[..2].iter().map(|&rank| 1u64 << rank).sum();
        if leaves {
            machine.leave()
        } else {
            machine.arrive(0, Particulars::PLAIN)
        }
        memory.run(&mut machine);
        assert_eq!(missing(&machine, &memory), others[..2]);
        memory.show(machine.plan().tag(others[0], 0), 1);
        memory.run(&mut machine);
        assert_eq!(missing(&machine, &memory), others[1..2]);
        memory.show(machine.plan().tag(others[1], 0), 1);
        memory.run(&mut machine);
        match leaves {
            true => assert_eq!(missing(&machine, &memory), [of(0).home(2, &all, Some((me + 1) % 4))]),
            false => assert!(machine.cut(1).round() == 1 && machine.has_arrival(), "{}", machine.summary()),
        }
    }
}

/// The first rank to arrive writes once to each other host. The next round's word lies in its own memory, unless it is
/// the turn of any rank, so it asks no other rank a second time.
#[test]
fn a_rank_that_fires_rounds_alone_writes_once_to_each_host() {
    let depth = 3;
    let mut machine = Machine::new(Plan::new(Terms {
        depth,
        ..Terms::sample(0, (0..5).collect(), Fire::SOLO, MovementBy::Initiator)
    }));
    let mut memory = Memory::of(machine.plan());
    for round in 1..=depth {
        machine.arrive(0, Particulars::PLAIN);
        let mut elsewhere = Vec::new();
        let mut note = |op: &Op| match *op {
            Op::Put { host, .. } | Op::Clear { host, .. } | Op::Atomic { host, .. } if host != 0 => elsewhere.push(*op),
            _ => {}
        };
        memory.run_and(&mut machine, |_| true, &mut note);
        let fetches = usize::from(round == 1 && machine.plan().home(1, &RankSet::full(5), None) != 0);
        assert_eq!(elsewhere.len(), 4 + fetches, "round {round}: {elsewhere:?}");
        assert_eq!(machine.take(true), round..=round);
    }
}

/// The round has not fired. The words are on this host and show which ranks have arrived.
#[test]
fn a_rank_whose_bit_is_there_is_not_missing() {
    let of = |me| plan(me, 4, Fire::quorum(3), MovementBy::Segments);
    let me = of(0).home(1, &RankSet::full(4), None);
    let mut machine = Machine::new(of(me));
    let mut memory = Memory::of(machine.plan());
    let others: Vec<u32> = (0..4).filter(|&rank| rank != me).collect();
    memory.0[machine.plan().word(1, 0)] = 1 << others[1];
    machine.arrive(0, Particulars::PLAIN);
    memory.run(&mut machine);
    assert_eq!(missing(&machine, &memory), [others[0], others[2]]);
}

#[test]
fn a_trace_names_operations_and_where_a_rank_stands() {
    let mut machine = Machine::new(plan(0, 3, Fire::ALL, MovementBy::Everyone));
    let memory = Memory::of(machine.plan());
    machine.arrive(0, Particulars::PLAIN);
    machine.poll(0, Effort::Work, &memory);
    let ops: Vec<Op> = std::iter::from_fn(|| machine.next_op(&mut Operands::default())).collect();
    let names: Vec<String> = ops.iter().map(|op| machine.plan().op_name(op)).collect();
    assert!(names.iter().any(|name| name.starts_with("puts ") && name.contains("on host 2")), "{names:?}");
    assert!(machine.summary().starts_with("taken 0 fired 0 landed 0 active [0, 1, 2]"), "{}", machine.summary());
}
