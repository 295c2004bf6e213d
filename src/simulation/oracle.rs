//! Records every contribution and judges every outcome.

use std::collections::{BTreeMap, HashMap};

use super::registers::Registers;
use super::scenario::Scenario;
use crate::collective::core::{AutoQuorum, Cut, Entry, Part, Particulars, Time};
use crate::collective::driver::Reduction;
use crate::rank_set::RankSet;
use crate::reduce::{Dtype, Reduce, f16};
use crate::rule::{Condition, Fire, Scale, Schedule};
use crate::topology::Topology;

/// The result of a judgement. An error is the guarantee that was violated, and what was seen instead.
pub(super) type Verdict = Result<(), String>;

#[derive(Clone, Debug)]
struct Contribution {
    number: u32,
    time: Time,
    /// What it says about itself.
    told: Particulars,
    entered: Option<u64>,
    dropped: bool,
}

#[derive(Clone, Debug)]
struct Round {
    cut: Cut,
    outcome: Outcome,
}

/// What ranks see of a round.
#[derive(Clone, Debug)]
enum Outcome {
    /// All ranks see the same.
    Shared(Vec<u8>),
    /// Each rank sees its register.
    Registers(Registers),
}

impl Outcome {
    fn of(&self, rank: u32) -> &[u8] {
        match self {
            Outcome::Shared(data) => data,
            Outcome::Registers(registers) => registers.of(rank),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Oracle {
    ranks: u32,
    fire: Fire,
    /// The number of rounds before the first one; rules, groups and callers count them.
    base: u64,
    /// Whether each rank begins with a model of its own.
    own_models: bool,
    /// The newest round after which nothing may be carried, because ranks can save it.
    carried_past: u64,
    depth: u64,
    /// Whether cuts come from a recording, whose oracle has judged when they fired.
    given: bool,
    /// The quorum, where it follows from the cuts.
    auto: Option<AutoQuorum>,
    elements: usize,
    reduction: Reduction,
    /// The registers after the newest round, if ranks have any.
    registers: Option<Registers>,
    /// The order in which a program sums.
    schedule: Option<Schedule>,
    radix: u32,
    /// Where agents relay: the hosts. The tree of sums spans those with active ranks.
    relayed: Option<Topology>,
    /// The contributions, by rank and target round.
    made: HashMap<(u32, u64), Contribution>,
    rounds: BTreeMap<u64, Round>,
    /// The ranks that take part in the round after the newest known one.
    active: RankSet,
    released: Vec<u64>,
    received: Vec<u64>,
    /// When each rank handed in its last arrival.
    left: Vec<Time>,
    pub(super) carried_with_fresh: u64,
    pub(super) contributions: u64,
    /// The number of rounds after which a quorum that the collective chooses is less than all.
    pub(super) lowered: u64,
    /// The number of entered contributions that say how long they took.
    pub(super) measured: u64,
    /// The number of full rounds with a carried contribution.
    pub(super) full_with_carried: u64,
    /// The number of rounds that closed before their condition held.
    pub(super) early: u64,
}

impl Oracle {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let Scenario { fire, depth, base, own_models, elements, reduction, schedule, radix, .. } = *scenario;
        let ranks = scenario.hosts.len() as u32;
        let mut oracle = Oracle {
            ranks,
            fire,
            base,
            own_models,
            carried_past: 0,
            depth,
            given: scenario.script.gives(),
            auto: scenario.plan().auto_quorum(),
            elements,
            reduction,
            registers: None,
            schedule,
            radix,
            relayed: scenario.relays().then(|| scenario.plan().topology.clone()),
            made: HashMap::new(),
            rounds: BTreeMap::new(),
            active: RankSet::full(ranks),
            released: vec![0; ranks as usize],
            received: vec![0; ranks as usize],
            left: vec![Time::MAX; ranks as usize],
            carried_with_fresh: 0,
            contributions: 0,
            lowered: 0,
            measured: 0,
            full_with_carried: 0,
            early: 0,
        };
        let first = || (0..ranks).map(|rank| oracle.first_model(rank).into()).collect();
        oracle.registers = scenario.memory.map(|group| Registers::new(group, reduction.absent, first()));
        oracle
    }

    /// Returns the model with which a rank begins.
    pub(super) fn first_model(&self, rank: u32) -> Vec<u8> {
        let mut model = vec![0; self.elements * self.reduction.dtype.size()];
        self.fill(0xFF_FFFF - if self.own_models { rank } else { 0 }, 0, &mut model);
        model
    }

    /// Writes the elements of a rank's contribution as bytes. No two contributions are alike.
    pub(super) fn fill(&self, rank: u32, number: u32, into: &mut [u8]) {
        let size = self.reduction.dtype.size();
        for (index, element) in into.chunks_exact_mut(size).enumerate() {
            let bits = mix(u64::from(rank) << 40 | u64::from(number) << 20 | index as u64);
            let value = (bits >> 44) as f32 / 512.0 - 900.0;
            match self.reduction.dtype {
                Dtype::F32 => element.copy_from_slice(&value.to_ne_bytes()),
                Dtype::F16 => element.copy_from_slice(&f16::from_f32(value / 64.0).to_ne_bytes()),
                _ => element.copy_from_slice(&bits.to_ne_bytes()),
            }
        }
    }

    /// Returns the weight of a rank's contribution.
    pub(super) fn weight(&self, rank: u32, number: u32) -> u16 {
        match self.reduction.scale {
            Scale::Weights => (mix(u64::from(rank) << 32 | u64::from(number)) % 4) as u16,
            _ => 1,
        }
    }

    pub(super) fn arrives(&mut self, rank: u32, number: u32, target: u64, time: Time) -> Verdict {
        self.contributions += 1;
        match self.made.insert(
            (rank, target),
            Contribution { number, time, told: Particulars::PLAIN, entered: None, dropped: false },
        ) {
            None => Ok(()),
            Some(_) => Err(format!("steps: rank {rank} arrived twice for round {target}")),
        }
    }

    /// Notes what a rank's contribution for a round says about itself.
    pub(super) fn tells(&mut self, rank: u32, target: u64, told: Particulars) {
        if let Some(contribution) = self.made.get_mut(&(rank, target)) {
            contribution.told = told;
        }
    }

    pub(super) fn leaves(&mut self, rank: u32, time: Time) {
        self.left[rank as usize] = time;
    }

    /// Judges that a rank dropped its contribution for a round, and counted that.
    pub(super) fn drops(&mut self, rank: u32, target: u64) -> Verdict {
        match self.made.get_mut(&(rank, target)) {
            Some(contribution) if contribution.entered.is_none() && !contribution.dropped => {
                contribution.dropped = true;
                Ok(())
            }
            other => Err(format!("G1: rank {rank} counts a drop of its contribution for round {target}: {other:?}")),
        }
    }

    /// Returns each round's cut, and what each rank sees of it.
    pub(super) fn seen(&self) -> impl Iterator<Item = (Cut, Vec<Vec<u8>>)> {
        let of_all = |round: &Round| (0..self.ranks).map(|rank| round.outcome.of(rank).to_vec()).collect();
        self.rounds.values().map(move |round| (round.cut.clone(), of_all(round)))
    }

    pub(super) fn rounds(&self) -> u64 {
        self.rounds.len() as u64
    }

    pub(super) fn releases(&mut self, rank: u32, round: u64) {
        let released = &mut self.released[rank as usize];
        *released = round.max(*released);
    }

    /// Records that a rank received a round.
    pub(super) fn receives(&mut self, rank: u32, round: u64) -> Verdict {
        let last = std::mem::replace(&mut self.received[rank as usize], round);
        if round == last + 1 { Ok(()) } else { Err(format!("order: rank {rank} received round {round} after {last}")) }
    }

    /// Judges that a rank has left: it must have received all rounds up to the one with its last arrival.
    pub(super) fn has_left(&self, rank: u32) -> Verdict {
        let last = self.rounds.iter().find(|(_, round)| round.cut.holds(rank, Part::Leaving)).map(|(&round, _)| round);
        let received = self.received[rank as usize];
        match last == Some(received) {
            true => Ok(()),
            false => Err(format!("order: rank {rank} left with round {last:?} and received up to {received}")),
        }
    }

    /// Judges a complete outcome of a round where a rank can see it: it must be right, and the same for all ranks.
    pub(super) fn lands(&mut self, rank: u32, cut: &Cut, data: &[u8], now: Time) -> Verdict {
        let round = cut.round();
        if let Some(known) = self.rounds.get(&round) {
            if known.cut != *cut {
                return Err(format!("G2: rank {rank} sees {cut:?} where others saw {:?}", known.cut));
            }
            return self.still(rank, round, data);
        }
        self.judge(cut)?;
        if !self.given {
            self.judge_firing(cut, now)?;
        }
        let outcome = match &self.registers {
            None => Outcome::Shared(self.expected(cut)),
            Some(registers) => Outcome::Registers(registers.after(
                (cut, self.base),
                &self.active,
                &self.sources(cut),
                self.reduction,
            )?),
        };
        let expected = outcome.of(rank);
        if data != expected {
            return Err(format!("data: round {round} has {data:?}; its cut {cut:?} gives {expected:?}"));
        }
        if let Outcome::Registers(registers) = &outcome {
            self.registers = Some(registers.clone());
        }
        for entry in cut.entries().filter(|entry| entry.part == Part::Leaving) {
            self.active.remove(entry.rank);
            // The following rounds need not wait for it. What it holds is checked nevertheless.
            self.released[entry.rank as usize] = u64::MAX;
        }
        if let Some(auto) = &mut self.auto {
            auto.learn(self.base + round, cut, &self.active);
            self.lowered += u64::from(auto.quorum(self.active.len()) < self.active.len());
        }
        self.rounds.insert(round, Round { cut: cut.clone(), outcome });
        Ok(())
    }

    /// Checks that the round was allowed to fire.
    fn judge_firing(&mut self, cut: &Cut, now: Time) -> Verdict {
        let round = cut.round();
        let arrived = cut.entries().filter(|entry| entry.part != Part::Carried);
        let quorum = self.auto.as_ref().map(|auto| auto.quorum(self.active.len()));
        let condition = self.fire.condition(self.base + round, &self.active, self.ranks).with_quorum(quorum);
        let holds = match condition {
            Condition::Count(least) => arrived.clone().count() as u32 >= least,
            Condition::Rank(drawn) => arrived.clone().any(|entry| entry.rank == drawn),
            Condition::Full => {
                let here = |rank: u32| cut.of(rank).next().is_some();
                self.full_with_carried += u64::from(cut.carried().iter().any(|rank| !cut.holds(rank, Part::Fresh)));
                self.active.iter().all(here)
            }
        };
        if !holds {
            self.early += 1;
            // A deadline has passed, counted at the earliest from the first arrival.
            let came = |entry: Entry| match entry.part {
                Part::Leaving => self.left[entry.rank as usize],
                _ => self.made.get(&(entry.rank, round)).map_or(Time::MAX, |contribution| contribution.time),
            };
            let first = arrived.clone().map(came).min();
            let limit = self.fire.limit().filter(|_| condition != Condition::Full).zip(first);
            let over = limit.is_some_and(|(limit, first)| now >= first.saturating_add(limit.as_nanos() as Time));
            if !over {
                let count = arrived.count();
                return Err(format!("G5: round {round} fired with {count} arrivals where {condition:?} was wanted"));
            }
        }
        let initiator = cut.initiator();
        let in_it = |rank| cut.of(rank).next().is_some();
        if !self.fire.is_synchronous() && !initiator.is_some_and(in_it) {
            return Err(format!("G9: round {round} names initiator {initiator:?}"));
        }
        Ok(())
    }

    fn judge(&mut self, cut: &Cut) -> Verdict {
        let round = cut.round();
        if self.rounds.last_key_value().map_or(0, |(&newest, _)| newest) + 1 != round {
            return Err(format!("order: round {round} appears out of turn"));
        }
        if let Some(slow) =
            (0..self.ranks).find(|&rank| self.released[rank as usize].saturating_add(self.depth) < round)
        {
            return Err(format!("G4: round {round} fired before rank {slow} released round {}", round - self.depth));
        }
        let key = |entry: &Entry| (entry.rank, entry.part != Part::Carried);
        if !cut.entries().is_sorted_by(|a, b| key(a) < key(b)) {
            return Err(format!("order: round {round} is not in canonical order: {cut:?}"));
        }
        for entry in cut.entries() {
            if !self.active.contains(entry.rank) {
                return Err(format!("G1: rank {} is in round {round} after it left", entry.rank));
            }
            let fits = match entry.part {
                Part::Fresh | Part::Leaving => entry.age == 0,
                Part::Carried => entry.age > 0 && entry.age < round,
            };
            if !fits {
                return Err(format!("G9: {entry:?} in round {round}"));
            }
            if entry.part == Part::Leaving {
                continue;
            }
            if round - entry.age <= self.carried_past {
                return Err(format!(
                    "G1: {entry:?} enters round {round}, although round {} could be saved",
                    self.carried_past
                ));
            }
            match self.made.get_mut(&(entry.rank, round - entry.age)) {
                None => return Err(format!("G1: round {round} has {entry:?}, which no rank made")),
                Some(Contribution { entered: Some(before), .. }) => {
                    return Err(format!("G1: {entry:?} entered rounds {before} and {round}"));
                }
                Some(Contribution { dropped: true, .. }) => {
                    return Err(format!("G1: {entry:?} entered round {round} after it was dropped"));
                }
                Some(contribution) => {
                    contribution.entered = Some(round);
                    let (number, told) = (contribution.number, contribution.told);
                    if entry.weight != self.weight(entry.rank, number) {
                        return Err(format!("G9: {entry:?} in round {round} has another weight"));
                    }
                    // A replay has the durations of the recorded run.
                    if !self.given && entry.particulars() != told {
                        return Err(format!(
                            "G9: {entry:?} in round {round} says something else than its rank: {told:?}"
                        ));
                    }
                    self.measured += u64::from(told.is_measured());
                }
            }
        }
        if self.fire.is_full(self.base + round) || self.active.iter().all(|rank| cut.holds(rank, Part::Fresh)) {
            self.carried_past = round;
        }
        let carried = cut.entries().filter(|entry| entry.part == Part::Carried);
        self.carried_with_fresh += u64::from(carried.clone().any(|entry| cut.holds(entry.rank, Part::Fresh)));
        Ok(())
    }

    /// Returns the contributions of a cut that count, in the order of reduction.
    fn sources(&self, cut: &Cut) -> Vec<(Entry, Vec<u8>)> {
        let counts = |entry: &Entry| self.reduction.factor(*entry) != 0.0;
        let source = |entry: Entry| {
            let contribution = self.made.get(&(entry.rank, cut.round() - entry.age))?;
            let mut source = vec![0; self.elements * self.reduction.dtype.size()];
            self.fill(entry.rank, contribution.number, &mut source);
            Some((entry, source))
        };
        cut.contributions().filter(counts).filter_map(source).collect()
    }

    fn expected(&self, cut: &Cut) -> Vec<u8> {
        let size = self.reduction.dtype.size();
        let sources = self.sources(cut);
        let divisor = self.reduction.divisor(self.ranks, cut.contributions()).unwrap_or(1.0);
        let float = |at: usize, read: fn(&[u8]) -> f32| {
            let scaled = |entry: &Entry, source: &[u8]| match self.reduction.factor(*entry) {
                1.0 => read(&source[at..at + size]),
                factor => read(&source[at..at + size]) * factor,
            };
            let values: Vec<(u32, f32)> =
                sources.iter().map(|(entry, source)| (entry.rank, scaled(entry, source))).collect();
            let result = match self.schedule {
                _ if self.relayed.is_some() => self.fold_by_shape(&values, &self.relaying(), self.radix),
                Some(Schedule::Doubling) => {
                    let alone = (0..self.ranks).map(|rank| vec![rank]);
                    self.fold_by_shape(&values, &alone.collect::<Vec<_>>(), 2)
                }
                _ => self.left_to_right(values.iter().map(|&(_, value)| value)),
            };
            result.map_or(0.0, |result| result / divisor as f32)
        };
        let places = (0..self.elements).map(|index| index * size);
        match self.reduction.dtype {
            Dtype::F32 => {
                places.flat_map(|at| float(at, |bytes| f32::from_ne_bytes(array(bytes))).to_ne_bytes()).collect()
            }
            Dtype::F16 => places
                .flat_map(|at| {
                    let value = float(at, |bytes| f16::from_ne_bytes(array(bytes)).to_f32());
                    f16::from_f32(value).to_ne_bytes()
                })
                .collect(),
            _ => places
                .flat_map(|at| {
                    let values = sources.iter().map(|(_, source)| u64::from_ne_bytes(array(&source[at..at + 8])));
                    let fold = |left: u64, right: u64| match self.reduction.reduce {
                        Reduce::Sum => left.wrapping_add(right),
                        Reduce::Prod => left.wrapping_mul(right),
                        Reduce::Min => left.min(right),
                        Reduce::Max => left.max(right),
                        Reduce::Mean => unreachable!("no scenario has it"),
                    };
                    values.reduce(fold).unwrap_or(0).to_ne_bytes()
                })
                .collect(),
        }
    }

    fn left_to_right(&self, values: impl IntoIterator<Item = f32>) -> Option<f32> {
        values.into_iter().reduce(|left, right| match self.reduction.reduce {
            Reduce::Sum => left + right,
            Reduce::Prod => left * right,
            Reduce::Min => left.min(right),
            Reduce::Max => left.max(right),
            Reduce::Mean => unreachable!("no scenario has it"),
        })
    }

    /// Returns the ranks of each host with active ranks, where agents relay.
    fn relaying(&self) -> Vec<Vec<u32>> {
        let hosts =
            self.relayed.iter().flat_map(|topology| (0..topology.hosts()).map(|host| topology.ranks_of(host).to_vec()));
        hosts.filter(|ranks| ranks.iter().any(|&rank| self.active.contains(rank))).collect()
    }

    /// Folds in the order of a shape: the ranks of each member first, then groups of neighbours, as many as the product of
    /// the radices, and then as many neighbours as the radix of each level says. Every operation folds its sources from
    /// left to right. A contribution that meets no other one is passed on as it is.
    fn fold_by_shape(&self, values: &[(u32, f32)], members: &[Vec<u32>], radix: u32) -> Option<f32> {
        let all = members.len();
        let (mut radices, mut core) = (Vec::new(), 1);
        while radix > 1 && core * 2 <= all {
            radices.push((radix as usize).min(all / core));
            core *= radices[radices.len() - 1];
        }
        let mut read: Vec<Vec<f32>> = Vec::new();
        let mut first = 0;
        for group in 0..core {
            let end = first + all / core + usize::from(group < all % core);
            let of_group = members[first..end].iter().flat_map(|ranks| {
                let own = values.iter().filter(|(rank, _)| ranks.contains(rank)).map(|&(_, value)| value);
                // A rank that is alone on its host, and in its group, sends what it has, which may be two contributions.
                if ranks.len() > 1 { self.left_to_right(own).into_iter().collect() } else { own.collect::<Vec<_>>() }
            });
            read.push(if end - first > 1 {
                self.left_to_right(of_group).into_iter().collect()
            } else {
                of_group.collect()
            });
            first = end;
        }
        for radix in radices {
            read = read.chunks(radix).map(|block| self.left_to_right(block.concat()).into_iter().collect()).collect();
        }
        self.left_to_right(read.concat())
    }

    /// Checks that a rank holds the agreed round, and that its data has not changed.
    pub(super) fn holds(&self, rank: u32, cut: &Cut, data: &[u8]) -> Verdict {
        // The number that its caller counts.
        let round = cut.round().wrapping_sub(self.base);
        match self.rounds.get(&round) {
            Some(known) if known.cut.entries().eq(cut.entries()) && known.cut.initiator() == cut.initiator() => {
                self.still(rank, round, data)
            }
            known => Err(format!("G2: rank {rank} holds {cut:?} where others saw {:?}", known.map(|known| &known.cut))),
        }
    }

    /// Checks that an outcome is the same as when any rank first saw it.
    pub(super) fn still(&self, rank: u32, round: u64, data: &[u8]) -> Verdict {
        match self.rounds.get(&round) {
            Some(known) if known.outcome.of(rank) != data => {
                Err(format!("G2: rank {rank} sees other bits in round {round}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks after the end that no contribution was lost.
    pub(super) fn closes(&self) -> Verdict {
        let lost = self.made.iter().find(|(_, contribution)| contribution.entered.is_none() && !contribution.dropped);
        match lost {
            Some(((rank, target), _)) => {
                Err(format!("G1: the contribution of rank {rank} for round {target} entered no round"))
            }
            None => Ok(()),
        }
    }
}

pub(super) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

/// The finalizer of SplitMix64: neighbouring values become unrelated.
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
