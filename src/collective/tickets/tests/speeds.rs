//! Ranks of fixed speeds meet the same ranks again and again, and lenders connect them.

use super::world::{Step, World};
use crate::collective::core::Time;
use crate::collective::tickets::TicketTerms;
use crate::collective::tickets::record::GroupCut;

/// How long the movement of data takes.
const MOVE: Time = 50;

/// Runs `ranks` ranks in groups of 4: half of them need 2,000 for a step, the others 1,000. Also returns when the last
/// rank had finished.
fn run(ranks: u32, lends: bool) -> (World, Time) {
    let terms = TicketTerms { lends, ..TicketTerms::sample(ranks, 4) };
    let is_fast = |rank: u32| rank < ranks / 2;
    let steps: Vec<u64> = (0..ranks).map(|rank| if is_fast(rank) { 400 } else { 200 }).collect();
    let mut world = World::new(&terms, None, &steps);
    let compute = |rank: u32| if is_fast(rank) { 1_000 } else { 2_000 };
    // When a rank has its next turn, and whether it computes until then.
    let mut turns: Vec<(Time, bool)> = (0..ranks).map(|rank| (compute(rank), true)).collect();
    let mut now = 0;
    while !world.all_left() {
        let mut moved = false;
        for me in 0..ranks {
            let (at, computes) = turns[me as usize];
            if world.has_left(me) || at > now {
                continue;
            }
            if computes {
                world.arrive(me, now);
                turns[me as usize] = (now, false);
                moved = true;
                continue;
            }
            let step = world.step(me, now).expect("promises hold");
            moved |= step != Step::Nothing;
            if world.ranks[me as usize].moves.is_some() {
                turns[me as usize] = (now + MOVE, false);
            } else if step == Step::Took {
                turns[me as usize] = (now + compute(me), true);
            }
        }
        if !moved {
            let later = turns.iter().zip(0..).filter(|&(&(at, _), me)| at > now && !world.has_left(me));
            now = later.map(|(&(at, _), _)| at).min().expect("no rank hangs");
        }
    }
    world.check_end_of_all().expect("promises hold");
    (world, now)
}

/// Returns the number of windows of `window` groups that leave ranks apart, and the number of windows. The first ones
/// and those in which ranks leave are not counted.
fn apart(world: &World, ranks: usize, window: usize) -> (usize, usize) {
    let cuts: Vec<&GroupCut> = world.log.iter().flat_map(|log| log.cuts.values()).collect();
    let last = cuts.iter().position(|cut| cut.members.iter().any(|member| member.leaving)).expect("ranks leave");
    let windows: Vec<&[&GroupCut]> = cuts[..last].windows(window).skip(100).collect();
    let is_apart = |window: &&&[&GroupCut]| {
        let mut reached = vec![0];
        let mut before = 0;
        while before < reached.len() {
            before = reached.len();
            for cut in **window {
                let met = || cut.members.iter().map(|member| member.rank).chain(cut.lender);
                if met().any(|rank| reached.contains(&rank)) {
                    reached.extend(met());
                    reached.sort_unstable();
                    reached.dedup();
                }
            }
        }
        reached.len() < ranks
    };
    (windows.iter().filter(is_apart).count(), windows.len())
}

#[test]
fn lenders_connect_fast_ranks_and_slow_ones() {
    for (ranks, window) in [(8, 8), (16, 16)] {
        let ((without, _), (with, end)) = (run(ranks, false), run(ranks, true));
        let (all, of) = apart(&without, ranks as usize, window);
        let (few, of_these) = apart(&with, ranks as usize, window);
        let bridges = with.log.iter().flat_map(|log| log.cuts.values()).filter(|cut| cut.lender.is_some()).count();
        println!("apart without lenders: {all} of {of}; with lenders: {few} of {of_these}, {bridges} bridges");
        assert!(of > 400 && all == of, "{all} of {of}");
        assert!(of_these > 400 && few * 50 <= of_these, "{few} of {of_these}");
        assert!(bridges * 2 < of_these, "{bridges} bridges");
        // No group waited for the slow ranks. A synchronous step takes the time of the slowest rank, plus the movement.
        let updates = u64::from(ranks) * 300;
        let synchronous = updates / u64::from(ranks) * (2_000 + MOVE);
        println!("{ranks} ranks: {updates} updates in {end}, synchronous in {synchronous}");
        assert!(synchronous as f64 / end as f64 >= 1.45, "{synchronous} and {end}");
    }
}
