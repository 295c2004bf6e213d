//! Which choices go together: one table, with what to do instead.
#![forbid(unsafe_code)]

use std::ops::Deref;

use crate::collective::options::Options;
use crate::group::Group;
use crate::reduce::Reduce;
use crate::rule::{Absent, Executor, Grace, Mover, Scale, When};
use crate::topology::Topology;

/// What is being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A collective of rounds, which ranks carry out.
    Rounds,
    /// One that a runner carries out.
    Offloaded,
    /// Several that share their cuts.
    Buckets,
    /// Groups by order of arrival.
    Arrivals,
}

/// What was chosen and where, as far as it decides what goes together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Combination {
    pub(super) kind: Kind,
    pub(super) chosen: Options,
    /// Ranks have models.
    pub(super) model: bool,
    /// A checkpoint is restored.
    pub(super) restored: bool,
    /// The preset is for buckets.
    pub(super) buckets: bool,
    /// The world replays.
    pub(super) world_replays: bool,
    /// Its cuts are those of one run only, and recorded or replayed.
    pub(super) taped: bool,
    /// Its cuts are given.
    pub(super) given: bool,
    /// All ranks share memory.
    pub(super) one_host: bool,
}

impl Deref for Combination {
    type Target = Options;

    fn deref(&self) -> &Options {
        &self.chosen
    }
}

impl Combination {
    /// Returns what a collective of rounds has that neither resumes, nor records, nor replays.
    pub(super) fn of_rounds(chosen: Options, model: bool, topology: &Topology) -> Self {
        Combination {
            kind: Kind::Rounds,
            chosen,
            model,
            restored: false,
            buckets: false,
            world_replays: false,
            taped: false,
            given: false,
            one_host: topology.is_one_host(),
        }
    }

    /// Without the provider that was chosen, ranks do what they can.
    fn asks_for_tree(&self) -> bool {
        self.kind == Kind::Rounds && self.mover == Mover::Tree && self.executor != Executor::Provider
    }

    fn is_rounds(&self) -> bool {
        matches!(self.kind, Kind::Rounds | Kind::Offloaded)
    }
}

/// Choices that do not go together.
pub(super) struct Conflict {
    /// The choices, in words.
    choices: &'static str,
    meets: fn(&Combination) -> bool,
    /// Why they do not go together, and what to choose instead.
    problem: &'static str,
}

const fn conflict(choices: &'static str, meets: fn(&Combination) -> bool, problem: &'static str) -> Conflict {
    Conflict { choices, meets, problem }
}

/// All conflicts. Of several, the first one is reported.
pub(super) const CONFLICTS: [Conflict; 30] = [
    conflict(
        "scale=ages; a group other than arrivals",
        |it| matches!(it.scale, Scale::Ages(_)) && !matches!(it.group, Group::Arrivals(_)),
        "ages are those of models in groups by order of arrival; use group=arrivals, or another scale",
    ),
    conflict(
        "reduce=mean",
        |it| it.reduce == Reduce::Mean,
        "the mean of a round is a sum that is divided; use reduce=sum and a scale, such as contributions",
    ),
    conflict(
        "a scale; no sum of floats",
        |it| it.scale != Scale::Sum && !it.adds_floats(),
        "only sums of floating-point numbers can be divided; use scale=sum",
    ),
    conflict(
        "absent=decay; no sum of floats",
        |it| matches!(it.absent, Absent::Decay(_)) && !it.adds_floats(),
        "only sums of floating-point numbers can decay; use absent=carry or absent=drop",
    ),
    conflict("groups of one rank", |it| it.group.schedule().is_err(), "groups need a size of 2 ranks or more"),
    conflict(
        "preset mg-wfbp; no buckets",
        |it| it.is_rounds() && it.buckets,
        "mg-wfbp hands tensors in one by one; call buckets(Buckets::Measured), or choose Preset::Synchronous",
    ),
    conflict(
        "groups or absent=hold; no model",
        |it| it.is_rounds() && !it.model && (it.group != Group::World || it.absent == Absent::Hold),
        "groups, and to hold what is absent, are for models; give each rank a model, or choose others",
    ),
    conflict(
        "arrivals; a firing rule other than all, or full rounds",
        |it| it.kind == Kind::Arrivals && (it.fire.when() != When::All || it.fire.has_full_rounds()),
        "groups by order of arrival fire when they are full; use fire=all, or that within a time",
    ),
    conflict(
        "fire=auto; scale=weights",
        |it| matches!(it.fire.when(), When::Auto(_)) && it.scale == Scale::Weights,
        "contributions with weights do not tell how long they took, which fire=auto needs; use another scale, or a quorum",
    ),
    conflict(
        "arrivals; absent=drop or decay",
        |it| it.kind == Kind::Arrivals && !matches!(it.absent, Absent::Carry | Absent::Hold),
        "no contribution to a group by order of arrival is late; use absent=carry, or absent=hold for models",
    ),
    conflict(
        "arrivals; replayed",
        |it| it.kind == Kind::Arrivals && it.world_replays,
        "groups by order of arrival have no rounds in common that a replay could repeat; unset EARLYBIRD_REPLAY",
    ),
    conflict(
        "arrivals; a checkpoint",
        |it| it.kind == Kind::Arrivals && it.restored,
        "groups by order of arrival have no rounds in common to go on from; give each rank the model of its checkpoint",
    ),
    conflict(
        "arrivals; no model",
        |it| it.kind == Kind::Arrivals && !it.model,
        "groups are for models; give each rank a model, or choose group=world",
    ),
    conflict(
        "a model; no sum of floats",
        |it| it.kind != Kind::Buckets && it.model && !it.adds_floats(),
        "only floating-point models are averaged; use a memory with a sum of floats",
    ),
    conflict(
        "a model; scale=world, contributions or weights",
        |it| it.kind != Kind::Buckets && it.model && !matches!(it.scale, Scale::Sum | Scale::Ages(_)),
        "updates of a model are divided by the members of a group; use scale=sum, or a preset that averages models",
    ),
    conflict(
        "a model; mover=tree",
        |it| it.kind != Kind::Buckets && it.model && it.mover == Mover::Tree,
        "the tree mover moves no models; use mover=auto or mover=cut",
    ),
    conflict(
        "a model; executor=provider",
        |it| it.kind != Kind::Buckets && it.model && it.executor == Executor::Provider,
        "no provider moves models; use executor=auto, caller, thread or peer",
    ),
    conflict(
        "scale=ages; absent other than hold",
        |it| it.kind == Kind::Arrivals && matches!(it.scale, Scale::Ages(_)) && it.absent != Absent::Hold,
        "updates enter whole, whatever the age of their models; use scale=sum, or absent=hold",
    ),
    conflict(
        "buckets; models, groups or absent=hold",
        |it| it.kind == Kind::Buckets && (it.model || it.group != Group::World || it.absent == Absent::Hold),
        "models are not averaged in buckets; omit the model, the group and absent=hold, or the buckets",
    ),
    conflict(
        "buckets; scale=weights",
        |it| it.kind == Kind::Buckets && it.scale == Scale::Weights,
        "contributions in buckets have no weights; use another scale",
    ),
    conflict(
        "buckets; executor=provider",
        |it| it.kind == Kind::Buckets && it.executor == Executor::Provider,
        "no provider moves buckets; use executor=auto, caller, thread or peer",
    ),
    conflict(
        "buckets; mover=tree; a partial rule",
        |it| it.kind == Kind::Buckets && it.mover == Mover::Tree && !it.fire.is_synchronous(),
        "the tree mover decides cuts of its own for each bucket; use mover=auto or mover=cut",
    ),
    conflict(
        "executor=provider; mover=cut",
        |it| it.kind == Kind::Offloaded && it.mover == Mover::Cut,
        "a provider runs programs; use the tree mover, or auto",
    ),
    conflict(
        "executor=provider; recorded or replayed",
        |it| it.kind == Kind::Offloaded && it.taped,
        "rounds that a provider runs cannot be replayed; record and replay under another executor",
    ),
    conflict(
        "executor=provider; a fixed grace",
        |it| it.kind == Kind::Offloaded && !matches!(it.grace, Grace::Auto | Grace::NONE),
        "a provider has no clock; use no grace under its executor",
    ),
    conflict(
        "fire=auto; absent=drop",
        |it| matches!(it.fire.when(), When::Auto(_)) && it.absent == Absent::Drop,
        "contributions that are dropped do not tell how late they were, which fire=auto needs; use absent=carry or absent=decay",
    ),
    conflict(
        "executor=provider; fire=auto",
        |it| it.kind == Kind::Offloaded && matches!(it.fire.when(), When::Auto(_)),
        "the quorum of fire=auto changes from round to round, which a provider cannot follow; use all, solo, majority or quorum, or another executor",
    ),
    conflict(
        "executor=provider; a deadline or full rounds",
        |it| it.kind == Kind::Offloaded && (it.fire.limit().is_some() || it.fire.has_full_rounds()),
        "a provider runs rounds that all look alike, without a deadline; use all, solo, majority or quorum",
    ),
    conflict(
        "absent=hold; replayed; several hosts",
        |it| it.kind == Kind::Rounds && it.given && it.absent == Absent::Hold && !it.one_host,
        "held models are replayed on one host only; start all ranks on one machine, over shared memory (EARLYBIRD_FABRIC=shm)",
    ),
    conflict(
        "mover=tree; replayed",
        |it| it.asks_for_tree() && it.given,
        "the tree mover adds in another order, so its rounds cannot be replayed; use the cut mover (--mover cut), or unset EARLYBIRD_REPLAY",
    ),
];

/// Returns why choices do not go together, if they do not.
pub(super) fn check(chosen: &Combination) -> Result<(), &'static str> {
    match CONFLICTS.iter().find(|conflict| (conflict.meets)(chosen)) {
        Some(conflict) => {
            tracing::debug!(choices = conflict.choices, "refused");
            Err(conflict.problem)
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::Dtype;
    use crate::rule::Fire;

    const SUM: Combination = Combination {
        kind: Kind::Rounds,
        chosen: Options { fire: Fire::SOLO, ..Options::usual(Dtype::F32) },
        model: false,
        restored: false,
        buckets: false,
        world_replays: false,
        taped: false,
        given: false,
        one_host: true,
    };

    /// Prints the table. Each row refuses something that no row before it refuses, and says what to use instead.
    #[test]
    fn the_table_of_choices() {
        let kinds = [Kind::Rounds, Kind::Offloaded, Kind::Buckets, Kind::Arrivals];
        let mut first = vec![false; CONFLICTS.len()];
        let mut all = vec![SUM];
        let each = |all: &mut Vec<Combination>, change: &dyn Fn(&mut Combination)| {
            let changed: Vec<Combination> = all
                .iter()
                .map(|&chosen| {
                    let mut chosen = chosen;
                    change(&mut chosen);
                    chosen
                })
                .collect();
            all.extend(changed);
        };
        all = kinds.iter().flat_map(|&kind| all.iter().map(move |&it| Combination { kind, ..it })).collect();
        each(&mut all, &|it| it.chosen.fire = Fire::ALL);
        each(&mut all, &|it| it.chosen.fire = Fire::AUTO);
        each(&mut all, &|it| it.chosen.absent = Absent::Hold);
        each(&mut all, &|it| it.chosen.absent = Absent::Drop);
        each(&mut all, &|it| it.chosen.absent = Absent::Decay(0.5));
        each(&mut all, &|it| it.chosen.scale = Scale::Weights);
        each(&mut all, &|it| it.chosen.scale = Scale::Ages(0.5));
        each(&mut all, &|it| it.chosen.group = Group::Arrivals(2));
        each(&mut all, &|it| it.chosen.group = Group::Butterfly(1));
        each(&mut all, &|it| it.chosen.mover = Mover::Tree);
        each(&mut all, &|it| it.chosen.mover = Mover::Cut);
        each(&mut all, &|it| it.chosen.executor = Executor::Provider);
        each(&mut all, &|it| it.model = !it.model);
        each(&mut all, &|it| it.taped = true);
        for change in [
            (|it| it.chosen.reduce = Reduce::Mean) as fn(&mut Combination),
            |it| it.chosen.dtype = Dtype::U64,
            |it| it.restored = true,
            |it| it.buckets = true,
            |it| it.world_replays = true,
            |it| (it.given, it.one_host) = (true, false),
            |it| it.one_host = false,
            |it| it.chosen.fire = Fire::SOLO.within(std::time::Duration::from_secs(1)),
            |it| it.chosen.grace = Grace::Fixed(std::time::Duration::from_secs(1)),
        ] {
            for mut chosen in all.iter().copied() {
                for _ in 0..2 {
                    let found = CONFLICTS.iter().position(|conflict| (conflict.meets)(&chosen));
                    if let Some(found) = found {
                        first[found] = true;
                    }
                    change(&mut chosen);
                }
            }
        }
        println!("| choices | why not, and what instead |\n|---|---|");
        for (conflict, is_first) in CONFLICTS.iter().zip(first) {
            println!("| {} | {} |", conflict.choices, conflict.problem);
            assert!(is_first, "no choices meet {:?} first", conflict.choices);
        }
        assert!(kinds[..3].iter().all(|&kind| check(&Combination { kind, ..SUM }).is_ok()));
        let arrivals = Combination {
            kind: Kind::Arrivals,
            chosen: Options { group: Group::Arrivals(2), ..Options::usual(Dtype::F32) },
            model: true,
            ..SUM
        };
        assert!(check(&arrivals).is_ok());
    }
}
