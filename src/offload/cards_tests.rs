//! Machines whose programs run on the model of cards: ranks that enter and leave the library at random, messages that
//! overtake each other, checked against an oracle that knows every contribution.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::Cards;
use crate::collective::core::{
    Cut, Effort, FOREVER, Machine, Op, Operands, Part, Particulars, Plan, ProgramOp, RunnerOp, Terms,
};
use crate::rule::{AgreementBy, Fire, Grace, MovementBy};
use crate::trigger::{Gate, Profile, Request, Role, Schedule, Signal, Start, compile};

struct Rank {
    machine: Machine,
    cells: Vec<u64>,
    /// The number of arrivals that it still makes.
    steps: u64,
    made: Vec<u64>,
    /// The newest round that it has taken and released.
    taken: u64,
    released: u64,
    gone: bool,
}

struct World {
    cards: Cards,
    ranks: Vec<Rank>,
    slots: u64,
    /// Cuts by round, from the rank that saw its outcome first.
    cuts: BTreeMap<u64, Cut>,
    /// The table's counters, by rank.
    counters: Vec<Vec<Role>>,
    /// A deliberate mistake: returns the token before the deposit is written.
    hasty: bool,
}

impl World {
    fn new(ranks: u32, fire: Fire, depth: u64, (seed, hasty): (u64, bool), rng: &mut Xoshiro256PlusPlus) -> Self {
        let sample = |me| Terms::sample(me, (0..ranks).collect(), fire, MovementBy::Program);
        let plan = |me| Plan::new(Terms { depth, agreement: AgreementBy::Runner, ..sample(me) });
        let slots = plan(0).slots();
        let start = Start::of(fire, Grace::NONE, ranks);
        let request = Request { ranks, start, schedule: Schedule::Gather, radix: 2, bytes: 8, chunk: 0, slots };
        let tables = compile(&request, &Profile::NETWORK);
        let roles = |counters: &[crate::trigger::Counter]| counters.iter().map(|counter| counter.role).collect();
        let counters = tables.iter().map(|table| roles(&table.counters)).collect();
        let cards = Cards::new(tables, slots as usize, seed);
        let rank = |me| Rank {
            machine: Machine::new(plan(me)),
            cells: vec![0; plan(me).cells()],
            steps: rng.random_range(1..20),
            made: Vec::new(),
            taken: 0,
            released: 0,
            gone: false,
        };
        World { cards, ranks: (0..ranks).map(rank).collect(), slots, cuts: BTreeMap::new(), counters, hasty }
    }

    fn slot(&self, round: u64) -> usize {
        ((round - 1) % self.slots) as usize
    }

    /// Takes one step of a rank's machine; returns whether there was one.
    fn step(&mut self, me: u32) -> bool {
        if let Some(op) = self.ranks[me as usize].machine.next_op(&mut Operands::default()) {
            self.execute(me, op);
            return true;
        }
        self.look(me);
        let Rank { machine, cells, .. } = &mut self.ranks[me as usize];
        machine.poll(0, Effort::Search, &|cell: usize| cells[cell])
    }

    /// Records what the cards have done, as a driver does.
    fn look(&mut self, me: u32) {
        let machine = &self.ranks[me as usize].machine;
        if let Some(round) = machine.nearly_over() {
            let slot = self.slot(round);
            let full = |role: &Role| self.cards.is_full(slot, me, *role);
            if self.counters[me as usize].iter().all(full) {
                let cell = machine.plan().over(round);
                self.ranks[me as usize].cells[cell] = round;
            }
        }
        let machine = &self.ranks[me as usize].machine;
        let Some((round, _)) = machine.expected() else { return };
        let slot = self.slot(round);
        // The model reduces by itself.
        if !self.cards.is_full(slot, me, Role::Done) {
            return;
        }
        let mut cut = Cut::with_room_for(self.ranks.len() as u32);
        cut.round = round;
        // A later deposit into a gate has all bits of an earlier one, and more.
        let mut gates = BTreeMap::new();
        let outcome = self.cards.outcome(slot, me);
        outcome.iter().flatten().for_each(|&(rank, gate)| _ = gates.insert(rank, gate));
        for (rank, gate) in gates {
            cut.add_gate(rank, Gate(gate).at(round).deposit(), |_| Particulars::PLAIN);
        }
        let known = self.cuts.entry(round).or_insert_with(|| cut.clone());
        assert_eq!(*known, cut, "rank {me} has another cut");
        let record = machine.plan().record(round);
        let downwards = (0..=machine.plan().recorded(record)).rev();
        let cells = &mut self.ranks[me as usize].cells;
        cut.encode().zip(downwards).for_each(|(value, cell)| cells[cell] = value);
        cells[record] = round;
    }

    fn execute(&mut self, me: u32, op: Op) {
        let own = |counter, input| Signal { rank: me, counter, input };
        let ranks = self.ranks.len() as u32;
        match op {
            Op::Program(ProgramOp::Runner(RunnerOp::Arm { round })) => {
                let slot = self.slot(round);
                self.cards.arm(me, slot);
                self.cards.give(me, slot, own(Role::Gate, 0));
            }
            Op::Program(ProgramOp::Runner(RunnerOp::Ready { round })) => {
                for rank in 0..ranks {
                    let slot = self.slot(round);
                    self.cards.give(me, slot, Signal { rank, counter: Role::Start, input: 1 + me });
                }
            }
            Op::Program(ProgramOp::Runner(RunnerOp::SignalArrival { round })) => {
                self.cards.give(me, self.slot(round), own(Role::Start, 0))
            }
            Op::Program(ProgramOp::Runner(RunnerOp::RevokeGateToken { round, token })) => {
                let taken = self.cards.revoke_token(self.slot(round), me);
                if taken {
                    self.cards.write(self.slot(round), me);
                }
                self.ranks[me as usize].machine.complete(token, u64::from(taken), 0);
            }
            Op::Program(ProgramOp::Runner(RunnerOp::Deposit { round, gate, .. })) => {
                let slot = self.slot(round);
                if self.hasty {
                    self.cards.give(me, slot, own(Role::Gate, 0));
                    while self.cards.step() {}
                }
                self.cards.written(slot, me, gate);
                if !self.hasty {
                    self.cards.give(me, slot, own(Role::Gate, 0));
                }
            }
            Op::Wake { .. } | Op::Fence => {}
            other => panic!("not for a provider: {other:?}"),
        }
    }

    /// Takes the next step of a rank's application, if there is one.
    fn act(&mut self, me: u32) {
        let rank = &mut self.ranks[me as usize];
        if rank.gone {
            return;
        }
        if rank.released < rank.taken {
            rank.released = rank.taken;
            rank.machine.release(rank.taken);
        } else if rank.machine.has_left() && !rank.machine.has_arrival() {
            if rank.machine.is_finished() {
                rank.machine.release(FOREVER);
            }
            rank.gone = rank.machine.has_gone();
        } else if !rank.machine.has_arrival() {
            if rank.steps == 0 {
                return rank.machine.leave();
            }
            rank.steps -= 1;
            rank.made.push(rank.taken + 1);
            rank.machine.arrive(0, Particulars::PLAIN);
        } else {
            for round in rank.machine.take(false) {
                rank.taken = round;
                assert_eq!(*rank.machine.cut(round), self.cuts[&round]);
            }
        }
    }

    /// Runs until all ranks have left; returns whether every contribution is in one round.
    fn play(&mut self, rng: &mut Xoshiro256PlusPlus) -> bool {
        let ranks = self.ranks.len() as u32;
        // Some ranks stay away for long.
        let sloth: Vec<u32> = (0..ranks).map(|_| [1, 5, 30][rng.random_range(0..3usize)]).collect();
        let mut idle = 0;
        while !self.ranks.iter().all(|rank| rank.gone) {
            let me = rng.random_range(0..ranks);
            let before = idle;
            idle += 1;
            match rng.random_range(0..3) {
                0 if self.cards.step() => idle = 0,
                1 if rng.random_range(0..sloth[me as usize]) == 0 => {
                    self.act(me);
                    (0..rng.random_range(0..8)).for_each(|_| {
                        if self.step(me) {
                            idle = 0
                        }
                    });
                }
                _ => idle = before + 1,
            }
            if idle >= 100_000 {
                let told: Vec<String> = self.ranks.iter().map(|rank| rank.machine.summary()).collect();
                println!("nothing happens any more:\n{}", told.join("\n"));
                return false;
            }
        }
        for (rank, state) in self.ranks.iter().enumerate() {
            let mut entered: Vec<u64> = Vec::new();
            for (round, cut) in &self.cuts {
                let own = cut.contributions().filter(|entry| entry.rank as usize == rank);
                entered.extend(own.map(|entry| round - entry.age));
            }
            entered.sort_unstable();
            if entered != state.made {
                println!("rank {rank} made {:?}, and these entered: {entered:?}", state.made);
                return false;
            }
        }
        true
    }
}

fn play(seed: u64, hasty: bool) -> (bool, u64, u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let ranks = rng.random_range(1..=7);
    let fire = match rng.random_range(0..4) {
        0 => Fire::ALL,
        1 => Fire::SOLO,
        2 => Fire::quorum(rng.random_range(1..=ranks)),
        _ => Fire::majority(seed),
    };
    let depth = if fire.is_synchronous() { 2 } else { rng.random_range(1..=5) };
    let mut world = World::new(ranks, fire, depth, (seed, hasty), &mut rng);
    let conserved = world.play(&mut rng);
    let late: u64 = world.ranks.iter().map(|rank| rank.machine.stats().late).sum();
    let parts =
        |part| world.cuts.values().flat_map(|cut| cut.entries()).filter(|entry| entry.part == part).count() as u64;
    (conserved && world.cards.torn() == 0, late, parts(Part::Carried))
}

#[test]
fn contributions_are_conserved_on_cards() {
    let (mut late, mut carried) = (0, 0);
    for seed in 0..400 {
        let (conserved, more_late, more_carried) = play(seed, false);
        assert!(conserved, "seed {seed}");
        late += more_late;
        carried += more_carried;
    }
    println!("{late} late, {carried} carried");
    assert!(late > 1000 && carried > 1000, "no rank is late: {late}, {carried}");
}

#[test]
fn a_token_given_too_early_is_found() {
    // The machine may detect the mistake itself, and then panics.
    let found = |seed| std::panic::catch_unwind(|| play(seed, true)).map_or(true, |(conserved, ..)| !conserved);
    assert!((0..100).any(found), "the control found nothing");
}
