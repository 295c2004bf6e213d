//! For any agreed terms, no two ranges overlap, and every range lies within its region.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{ANY_HOME, MapRegion, OUTCOME, Plan, RELAYED_ROUNDS, Terms, program};
use crate::collective::core::label::Form;
use crate::fabric::CACHE_LINE;
use crate::group::Group;
use crate::rank_set::RankSet;
use crate::rule::{AgreementBy, Fire, Grace, MOST_RADIX, MovementBy, Schedule};
use crate::trigger::{Act, Area, Buffer, Chunk, Request, Start, Table};

/// Numbers hosts from 0 without a gap.
fn dense(hosts: Vec<u32>) -> Vec<u32> {
    let mut numbers = BTreeMap::new();
    hosts
        .into_iter()
        .map(|host| {
            let next = numbers.len() as u32;
            *numbers.entry(host).or_insert(next)
        })
        .collect()
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let by = |agreement| Just((MovementBy::Program, Some(agreement)));
    let paths = prop_oneof![
        Just((MovementBy::Everyone, None)),
        Just((MovementBy::Reducer, None)),
        Just((MovementBy::Reducers, None)),
        Just((MovementBy::Initiator, None)),
        Just((MovementBy::Segments, None)),
        by(AgreementBy::Gates),
        by(AgreementBy::Relays),
        by(AgreementBy::Runner),
    ];
    // Elements, bytes of one and of one in a partial sum, elements of a segment.
    let sizes = (prop_oneof![0..2_000usize, 0..40_000usize], prop_oneof![Just((2, 4)), Just((4, 4)), Just((8, 8))]);
    let sizes = (sizes, 1..6_000usize);
    let few = prop::collection::vec(0..4u32, 1..12);
    // More ranks than one word holds, and more than the greatest number of shares.
    let many = prop::collection::vec(0..8u32, 30..70);
    let world = prop_oneof![9 => few, 1 => many].prop_map(dense);
    let rules = (0..4u32, any::<bool>(), 1..6u64);
    (world, paths, rules, sizes, any::<bool>()).prop_map(
        |(mut hosts, (movement, chosen), (rule, timed, depth), ((elements, (size, wide)), segment), scatter)| {
            let ranks = hosts.len() as u32;
            match chosen {
                Some(AgreementBy::Gates) => hosts.fill(0),
                Some(_) => hosts = (0..ranks).collect(),
                None => {}
            }
            let rules = [Fire::ALL, Fire::SOLO, Fire::quorum(ranks.div_ceil(2)), Fire::majority(7)];
            let fire = match movement {
                MovementBy::Everyone | MovementBy::Reducer | MovementBy::Reducers => Fire::ALL,
                MovementBy::Initiator if rule == 0 => Fire::SOLO,
                _ => rules[rule as usize],
            };
            let grace = if timed { Grace::Auto } else { Grace::NONE };
            let depth = match movement {
                MovementBy::Program if fire.is_synchronous() => 2,
                _ if fire.is_synchronous() => 1,
                _ => depth,
            };
            let (bytes, segment) = (elements * size, segment * 8);
            let groups = [None, Some(Group::World), Some(Group::Butterfly(2)), Some(Group::Butterfly(3 + rule))];
            let memory = if movement == MovementBy::Segments { groups[elements % 4] } else { None };
            let schedule = match scatter {
                true if chosen == Some(AgreementBy::Relays) => Schedule::Halving,
                true => Schedule::Scatter,
                false => Schedule::Doubling,
            };
            let program = (chosen == Some(AgreementBy::Gates))
                .then(|| program(ranks, (fire, grace), schedule, (bytes, segment), depth));
            let sample = Terms::sample(0, hosts, fire, movement);
            let (wide_bytes, agreement) = (elements * wide, chosen.unwrap_or(sample.agreement));
            let sizes = Terms { bytes, wide_bytes, segment, ..sample };
            let radix = [1, 2, 2, 3, 8][elements % 5];
            let radix = if ranks > 32 { radix.max(2) } else { radix };
            Plan::new(Terms { agreement, grace, depth, memory, schedule, radix, program, ..sizes })
        },
    )
}

proptest! {
    #[test]
    fn everything_lies_apart(plan in any_plan()) {
        let hosts = plan.topology.hosts();
        for (host, reducers) in (0..hosts).flat_map(|host| (1..=hosts as usize).map(move |reducers| (host, reducers))) {
            let map = plan.map(host, reducers);
            for pair in map.windows(2).filter(|pair| pair[0].region == pair[1].region) {
                let [one, other] = [&pair[0], &pair[1]].map(|it| (&it.name, &it.bytes));
                prop_assert!(one.1.end <= other.1.start, "{:?} and {:?}", one, other);
            }
            for mapped in &map {
                let end = match mapped.region {
                    MapRegion::Control => plan.control_cells() * size_of::<u64>(),
                    MapRegion::Data => plan.data_bytes(),
                };
                prop_assert!(mapped.bytes.end <= end, "{:?} of {}", mapped, end);
            }
        }
    }

    #[test]
    fn spans_cover_a_contribution_once(plan in any_plan()) {
        let hosts = plan.topology.hosts() as usize;
        let by_homes = (1..=hosts).map(|homes| (0..homes).map(|home| plan.share_span(home, homes)).collect());
        let ways = [
            (0..plan.segments()).map(|index| plan.segment_span(index)).collect::<Vec<_>>(),
            (0..plan.parts()).map(|index| plan.part_span(index)).collect(),
            (0..3).map(|chunk| plan.chunk_span(Chunk::piece(chunk, 3))).collect(),
        ];
        let ways = ways.into_iter().chain(by_homes);
        for spans in ways {
            let mut next = 0;
            for (from, len) in spans {
                prop_assert_eq!(from, next);
                next += len;
            }
            prop_assert_eq!(next, plan.bytes);
        }
        let shares: Vec<_> = (0..plan.shares()).map(|index| plan.share(index, plan.segments())).collect();
        prop_assert!(shares.windows(2).all(|pair| pair[0].1 == pair[1].0));
        prop_assert_eq!((shares[0].0, shares[shares.len() - 1].1), (0, plan.segments()));
    }
}

/// Small data, its cut and the round that announces both fill one cache line, or end at its end.
#[test]
fn a_small_outcome_and_its_record_share_a_cache_line() {
    for (ranks, bytes, entries) in [(4, 8, 5), (4, 40, 1), (31, 8, 5), (4, 0, 6)] {
        let sample = Terms::sample(0, (0..ranks).collect(), Fire::SOLO, MovementBy::Initiator);
        let plan = Plan::new(Terms { bytes, depth: 3, ..sample });
        for round in 1..=4 {
            let (record, line) = (plan.record(round), CACHE_LINE / size_of::<u64>());
            assert_eq!((record - plan.control_cells()) % line, line - 1);
            assert_eq!((plan.recorded(record) - entries) / line, record / line, "{ranks} ranks, {bytes} bytes");
            assert_eq!(plan.outcome(round) + bytes, (record - plan.control_cells()) * size_of::<u64>());
        }
    }
}

/// Sizes as multiples of a contribution, apart from labels, which take less than one.
#[test]
fn relayed_data_takes_so_much_memory() {
    for ranks in [2u32, 5, 64, 1000] {
        for (schedule, most) in [(Schedule::Doubling, 6 + 2 * ranks.ilog2() as usize), (Schedule::Halving, 9)] {
            let bytes = 4 << 20;
            let sample = Terms::sample(0, (0..ranks).collect(), Fire::SOLO, MovementBy::Program);
            let plan = Plan::new(Terms { bytes, wide_bytes: bytes, schedule, ..sample });
            let total = plan.data.areas.as_ref().unwrap().end() - plan.data.contributions.end();
            assert!(total < (RELAYED_ROUNDS as usize * most + 1) * bytes, "{ranks} ranks, {schedule:?}: {total} bytes");
        }
    }
}

/// Returns the areas that a table writes, each with the bytes of data from its beginning.
fn writes(table: &Table, plan: &Plan) -> Vec<(Area, usize)> {
    let mut all = Vec::new();
    let parts = |buffer, chunk: Chunk, count: u8| {
        let count = u32::from(count);
        (0..count).map(move |index| Area { buffer, index, chunk: chunk.part(index, count) })
    };
    let part_bytes = |chunk, forms: &[Form]| forms.iter().map(|&form| plan.part_bytes(chunk, form)).max().unwrap_or(0);
    let outcome = |chunk| {
        let (from, len) = plan.chunk_span(chunk);
        (OUTCOME, from + len)
    };
    for row in table.rows() {
        match row.act {
            Act::Signal => {}
            Act::Seal { parts: count } => {
                let areas = parts(Buffer::Contribution, table.whole(), count);
                all.extend(areas.map(|area| (area, part_bytes(area.chunk, &[Form::Rows(2)]))));
            }
            Act::Sum { from, to: Buffer::Outcome, .. } => all.push(outcome(from.chunk)),
            Act::Sum { from, to, parts: count } => {
                let forms = [Form::Sum, Form::Rows(0), Form::Rows(1)];
                all.extend(parts(to, from.chunk, count).map(|area| (area, part_bytes(area.chunk, &forms))));
            }
            Act::Put { from, .. } if from.buffer == Buffer::Outcome => all.push(outcome(from.chunk)),
            Act::Put { from, to } => {
                let form = if from.buffer == Buffer::Contribution { Form::Rows(2) } else { Form::Sum };
                all.push((to, part_bytes(to.chunk, &[form])));
            }
        }
    }
    all
}

proptest! {
    /// Also holds for the ranks that remain after others have left.
    #[test]
    fn what_a_table_writes_fits_its_area(
        ranks in 2..70u32, gone in 0..69u32, rank in 0..70u32, halves: bool, radix in 0..6usize,
        elements in prop_oneof![0..300usize, 0..40_000usize], size in prop_oneof![Just((2, 4)), Just((4, 4)), Just((8, 8))],
    ) {
        let schedule = if halves { Schedule::Halving } else { Schedule::Doubling };
        let radix = [1, 2, 3, 4, 8, 32][radix];
        let ranks = if radix == 1 { ranks.min(MOST_RADIX) } else { ranks };
        let (bytes, wide_bytes) = (elements * size.0, elements * size.1);
        let sample = Terms::sample(0, (0..ranks).collect(), Fire::SOLO, MovementBy::Program);
        let plan = Plan::new(Terms { bytes, wide_bytes, schedule, radix, ..sample });
        let left = ranks - gone % (ranks - 1);
        let request =
            Request { ranks: left, start: Start::First, schedule, radix, bytes: bytes as u64, chunk: 0, slots: 4 };
        let table = Table::new(&request, rank % left, plan.inputs());
        for (area, end) in writes(&table, &plan) {
            let (_, shape) = plan.shape_of(area).unwrap();
            let cell = plan.cell_behind(area, 1);
            let room = shape - if cell.is_some() { size_of::<u64>() } else { 0 };
            prop_assert!(end <= room, "{} bytes in {:?}, which has {}: {} of {} ranks", end, area, room, left, ranks);
            // A write ends where the cell that announces it lies, if the data, the cell and the label fit one line; it
            // never passes that cell.
            let Some(cell) = cell.map(|cell| (cell - plan.control_cells()) * size_of::<u64>()) else { continue };
            for label in (2..=10).map(|cells| cells * size_of::<u64>()) {
                let from = plan.area(area, 1) - label;
                let behind = from + plan.written_bytes(area.buffer, label, end);
                let fits = from / CACHE_LINE == cell / CACHE_LINE;
                prop_assert!(behind <= cell && (behind == cell || !fits), "{} behind {}, {:?}", cell, behind, area);
            }
        }
        // The table's areas lie apart, within the memory of the round.
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for (area, count) in plan.areas_among(left) {
            let (label, data) = plan.shape_of(area).unwrap();
            spans.extend((0..count).map(|index| plan.area(Area { index, ..area }, 1) - label).map(|at| (at, at + label + data)));
        }
        spans.sort_unstable();
        prop_assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", spans);
        let next = plan.area(Area { buffer: Buffer::Contribution, index: 0, chunk: Chunk::WHOLE }, 2);
        let (label, _) = plan.shape_of(Area { buffer: Buffer::Contribution, index: 0, chunk: Chunk::WHOLE }).unwrap();
        prop_assert!(spans.iter().all(|span| span.1 <= next - label), "{:?} beyond {}", spans, next - label);
    }
}

/// A rank that closes all rounds is the home of most of them, and each other rank soon becomes the home of some.
#[test]
fn every_rank_is_a_home_now_and_then() {
    for ranks in [2, 3, 4, 8, 31, 64] {
        let plan = Plan::new(Terms::sample(0, (0..ranks).collect(), Fire::SOLO, MovementBy::Initiator));
        let rounds = 4 * ANY_HOME * u64::from(ranks);
        let home = |round| plan.home(round, &RankSet::full(ranks), Some(1));
        let others: BTreeSet<u32> = (1..=rounds).map(home).collect();
        assert_eq!(others.len(), ranks as usize, "{ranks} ranks");
        let own = (1..=rounds).filter(|&round| home(round) == 1).count() as u64;
        assert!(own >= rounds - rounds / ANY_HOME);
    }
}
