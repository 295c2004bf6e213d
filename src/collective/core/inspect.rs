//! Looking at a machine from outside: for messages, and for the explorer.

use std::hash::{Hash, Hasher};

use super::arrival::{Arrival, Stage};
use super::machine::{Cells, FOREVER, Machine};
use super::op::Counted;
use super::plan::{BUFFERS, Path};
use super::tag::Tag;
use super::word;
use crate::rank_set::RankSet;

impl Machine {
    /// Who is waited for: those who hold on to what a slot is needed for, those who did not arrive, those whose hosts do
    /// not answer, those whose data is not there yet, or all those of whom some are closing or moving the round.
    pub(crate) fn missing(&self, cells: &impl Cells) -> RankSet {
        let mut missing = RankSet::empty(self.plan.ranks);
        let Some(arrival) = &self.arrival else { return missing };
        if let Some(served) = self.served() {
            missing.clone_from(served);
            return missing;
        }
        let released = |rank| cells.load(self.plan.released(rank));
        if let Some((round, piece)) = self.awaited() {
            self.lacking(round, piece, cells).for_each(|rank| missing.insert(rank));
        } else if arrival.is_blocked() {
            let least = if self.plan.by_tags() { FOREVER } else { arrival.target.saturating_sub(self.plan.depth) };
            let awaited = |rank: &u32| !self.plan.by_tags() || self.leavers.contains(*rank);
            (0..self.plan.ranks)
                .filter(|&rank| rank != self.plan.me && awaited(&rank) && released(rank) < least)
                .for_each(|rank| missing.insert(rank));
        } else if arrival.stage == Stage::Gathering {
            self.untagged(cells).for_each(|rank| missing.insert(rank));
        } else if arrival.stage == Stage::Clearing {
            // Only the host is waited for that clears the words.
        } else if arrival.target > self.fired && self.has_fired(cells) {
            missing = self.holders(cells);
        } else if arrival.target > self.fired {
            let tag = |rank, number| Tag::from_cell(cells.load(self.plan.tag(rank, number)));
            let words_are_here = !self.plan.by_tags() && self.home_host(arrival.target) == self.plan.host();
            let here = |rank: u32| match self.plan.path {
                Path::Program => self.has_deposited(rank, arrival.target, cells),
                Path::Gathered if !self.is_home() => !self.pull_waits_for(rank),
                _ if words_are_here => {
                    let known = cells.load(self.plan.word(arrival.target, rank / word::RANKS_PER_WORD));
                    word::is_present(known, rank % word::RANKS_PER_WORD, self.condition())
                }
                _ => (0..BUFFERS).any(|number| tag(rank, number).target >= arrival.target),
            };
            self.active
                .iter()
                .filter(|&rank| rank != self.plan.me && !here(rank))
                .for_each(|rank| missing.insert(rank));
        }
        if self.plan.path == Path::Scattered && self.fired > self.landed {
            let me = self.plan.me;
            self.silent_homes(self.fired, cells).filter(|&home| home != me).for_each(|home| missing.insert(home));
        }
        self.asked().for_each(|host| missing.insert(self.plan.topology.leader(host)));
        if missing.is_empty() {
            self.unanswered().for_each(|host| missing.insert(self.plan.topology.leader(host)));
        }
        if missing.is_empty() {
            self.may_be_working().for_each(|rank| missing.insert(rank));
        }
        missing
    }

    /// The hosts whose answers this rank waits for: of the next round's words, and of a round's claims. Usually an answer
    /// takes no time; while there is none, others may seem to be missing because they wait for the same host.
    fn asked(&self) -> impl Iterator<Item = u32> {
        let by_arrival = self.arrival.as_ref().and_then(Arrival::asked);
        by_arrival.into_iter().chain(self.mover.asked()).filter(|&host| host != self.plan.host())
    }

    /// The hosts that have not completed an operation without which this rank does not go on, although every rank is here.
    fn unanswered(&self) -> impl Iterator<Item = u32> {
        let awaited = |what: &Counted| {
            let Some(arrival) = &self.arrival else { return false };
            match (*what, &arrival.stage) {
                _ if self.left => true,
                (Counted::Read, _) => true,
                (Counted::Outcome, Stage::Tagged | Stage::Over { .. }) => true,
                (Counted::Tag { buffer }, Stage::Over { needs }) => {
                    self.landed >= *needs && self.writes_soon(arrival, buffer)
                }
                (Counted::Tag { buffer }, Stage::Blocked) => buffer == arrival.buffer && !self.plan.by_tags(),
                (Counted::Tag { buffer }, Stage::Late { tried }) => buffer == arrival.buffer && self.fired >= *tried,
                (Counted::Push, Stage::Blocked) => self.plan.by_tags() || self.release_later > 0,
                (Counted::Outcome, Stage::Blocked) => self.plan.by_tags(),
                _ => false,
            }
        };
        let hosts = Counted::ALL.into_iter().filter(awaited).flat_map(|what| self.in_flight.hosts(what));
        hosts.filter(|&host| host != self.plan.host())
    }

    /// All are here, so somebody is closing the round or moves a piece of it. An arrival that fulfils
    /// the condition closes at once where there is no grace: it is none of those who were there before
    /// this rank came.
    fn may_be_working(&self) -> impl Iterator<Item = u32> {
        let closing = self.arrival.as_ref().is_some_and(|arrival| {
            arrival.target > self.fired && arrival.stage != Stage::Adding && self.pace.grace().is_none()
        });
        let came_before = move |rank: u32| {
            let arrived = word::arrived(self.words[(rank / word::RANKS_PER_WORD) as usize]);
            closing && arrived >> (rank % word::RANKS_PER_WORD) & 1 == 1
        };
        self.active.iter().filter(move |&rank| rank != self.plan.me && !came_before(rank))
    }

    /// What its next steps depend on, apart from time.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        let Machine { taken, fired, landed, active, cuts, arrival, buffers, mover, dead, left, .. } = self;
        for cut in cuts {
            // With where contributions lie, which is no part of what was agreed.
            cut.round.hash(state);
            cut.encode().for_each(|cell| cell.hash(state));
        }
        (taken, fired, landed, active, arrival, buffers, mover, dead, left).hash(state);
        // What is known of the releases of others says no more than their cells.
        let Machine { leavers, missing, arriving, in_flight, released, words, ops, .. } = self;
        (leavers, missing, arriving, in_flight, released, words, ops).hash(state);
        (
            self.pending,
            self.release_later,
            (self.homes.since, self.homes.rows, self.homes.handed),
            &self.pull,
            &self.offloaded,
        )
            .hash(state);
        if let Some(worker) = &self.worker {
            worker.fingerprint(state);
            (self.passed_on > self.fired).hash(state);
        }
    }

    /// Where it stands, in a line.
    pub(crate) fn summary(&self) -> String {
        let Machine { taken, fired, landed, arrival, pending, mover, in_flight, offloaded, .. } = self;
        let active: Vec<u32> = self.active.iter().collect();
        format!(
            "taken {taken} fired {fired} landed {landed} active {active:?} {in_flight:?} {arrival:?} {pending:?} {mover:?} {offloaded:?}"
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Effort, Op, Plan};
    use super::*;
    use crate::fabric::Atomic;
    use crate::rule::Fire;

    struct Memory(Vec<u64>);

    impl Cells for Memory {
        fn load(&self, cell: usize) -> u64 {
            self.0[cell]
        }
    }

    impl Memory {
        fn of(plan: &Plan) -> Self {
            Memory(vec![0; plan.control_cells()])
        }

        /// The tag with which a rank that arrives for a round shows a buffer lands here.
        fn show(&mut self, cell: usize, target: u64) {
            self.0[cell] = Tag { target, buffer: 0, weight: 1, leaving: false }.cell();
        }

        /// Goes on as far as a machine can whose operations on other hosts never complete.
        fn run(&mut self, machine: &mut Machine) {
            self.run_with(machine, |_| false);
        }

        /// The same where operations complete on the own host, and on others that answer. Their cells lie in one memory.
        fn run_with(&mut self, machine: &mut Machine, answers: impl Fn(u32) -> bool) {
            let me = machine.plan().me;
            let answers = |host| host == me || answers(host);
            while machine.poll(0, Effort::Work, self) {
                while let Some(op) = machine.next_op() {
                    match op {
                        Op::Store { cell, value } => self.0[cell] = value,
                        Op::Signal { host, token, .. } | Op::Clear { host, token, .. } if answers(host) => {
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
                        Op::Publish { host, round, token } if answers(host) => {
                            let record = machine.plan().record(round);
                            let cells: Vec<u64> = machine.cut(round).encode().collect();
                            self.0[record + 1..][..cells.len()].copy_from_slice(&cells);
                            self.0[record] = round;
                            machine.complete(token, 0, 0);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Each rank on a host of its own.
    fn plan(me: u32, ranks: u32, fire: Fire, path: Path) -> Plan {
        Plan::sample(me, (0..ranks).collect(), fire, path)
    }

    fn missing(machine: &Machine, memory: &Memory) -> Vec<u32> {
        machine.missing(memory).iter().collect()
    }

    /// It has arrived, and the third rank has not: perhaps because it does not answer that one either.
    #[test]
    fn a_home_that_does_not_answer_is_missing() {
        let of = |me| plan(me, 3, Fire::SOLO, Path::Eager);
        let home = of(0).home(1, &RankSet::full(3));
        let mut machine = Machine::new(of((home + 1) % 3));
        let mut memory = Memory::of(machine.plan());
        memory.show(machine.plan().tag(home, 0), 1);
        machine.arrive(0, 1);
        memory.run(&mut machine);
        let mut expected = [home, (home + 2) % 3];
        expected.sort_unstable();
        assert_eq!(missing(&machine, &memory), expected);
    }

    /// The round has landed here; what this rank sent for the one before has not landed at one of the others.
    #[test]
    fn a_rank_that_takes_nothing_is_missing() {
        for silent in [1, 2] {
            let mut machine = Machine::new(plan(0, 3, Fire::ALL, Path::Replicated));
            let mut memory = Memory::of(machine.plan());
            for round in 1..=2 {
                machine.arrive(0, 1);
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

    /// It fires rounds by itself; what it sent to one of the others has not landed there.
    #[test]
    fn a_rank_that_answers_nothing_holds_up_what_follows_and_the_end() {
        let of = |me| plan(me, 3, Fire::SOLO, Path::Eager);
        let (all, me) = (RankSet::full(3), 0);
        // Neither the first rounds' words nor any other rank's: the silent one has nothing but what it is sent.
        let silent = (1..3).find(|&rank| (1..=3).all(|round| of(me).home(round, &all) != rank));
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
                machine.arrive(0, 1);
                memory.run_with(&mut machine, answers);
                assert_eq!(machine.take(true), 1..=1);
                // Not yet, since the record of the round may still be read.
                machine.release(1);
                memory.0[machine.plan().released(3 - silent)] = 1;
                machine.arrive(0, 1);
                memory.run_with(&mut machine, answers);
            }
            assert_eq!(missing(&machine, &memory), [silent], "leaves: {leaves}");
        }
    }

    /// A partial round has fired with this rank as its initiator, and the words of the next round lie on a host that does
    /// not clear them; or a member's tag is not here.
    #[test]
    fn a_rank_that_holds_up_an_initiator_is_missing() {
        let of = |me| plan(me, 4, Fire::quorum(3), Path::Segmented);
        let all = RankSet::full(4);
        let me = of(0).home(1, &all);
        let next_home = of(0).home(2, &all);
        let mut machine = Machine::new(of(me));
        let mut memory = Memory::of(machine.plan());
        let others: Vec<u32> = (0..4).filter(|&rank| rank != me).collect();
        memory.0[machine.plan().word(1, 0)] = others[..2].iter().map(|&rank| word::arrived_bit(rank)).sum();
        machine.arrive(0, 1);
        memory.run(&mut machine);
        assert_eq!(missing(&machine, &memory), others[..2]);
        memory.show(machine.plan().tag(others[0], 0), 1);
        memory.run(&mut machine);
        assert_eq!(missing(&machine, &memory), others[1..2]);
        memory.show(machine.plan().tag(others[1], 0), 1);
        memory.run(&mut machine);
        let expected = if next_home == me { Vec::new() } else { vec![next_home] };
        assert_eq!(missing(&machine, &memory), expected);
        assert_ne!(next_home, me, "choose other rounds");
    }
}
