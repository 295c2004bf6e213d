//! Ranks of fixed speeds meet the same ranks again and again, and lenders connect them.

use super::world::{Step, World};
use crate::collective::core::Time;
use crate::collective::tickets::{Cut, Terms};

/// How long data moves.
const MOVE: Time = 50;

/// Of 16 ranks in groups of 4, half need 2,000 for a step, the others 1,000.
fn run(lends: bool) -> World {
    let terms = Terms { me: 0, ranks: 16, size: 4, home: 0, deadline: None, lends, fault: None };
    let steps: Vec<u64> = (0..16).map(|rank| if rank < 8 { 400 } else { 200 }).collect();
    let mut world = World::new(&terms, None, &steps);
    // When a rank has its next turn, and whether it computes until then.
    let mut turns: Vec<(Time, bool)> = (0..16).map(|rank| (if rank < 8 { 1_000 } else { 2_000 }, true)).collect();
    let mut now = 0;
    while !world.all_left() {
        let mut moved = false;
        for me in 0..16 {
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
            if world.ranks[me as usize].moves {
                turns[me as usize] = (now + MOVE, false);
            } else if step == Step::Took {
                turns[me as usize] = (now + if me < 8 { 1_000 } else { 2_000 }, true);
            }
        }
        if !moved {
            let later = turns.iter().zip(0..).filter(|&(&(at, _), me)| at > now && !world.has_left(me));
            now = later.map(|(&(at, _), _)| at).min().expect("no rank hangs");
        }
    }
    world.check_end_of_all().expect("promises hold");
    world
}

/// How many windows of 16 groups leave ranks apart, of how many. The first ones and those in which ranks leave are not
/// counted.
fn apart(world: &World) -> (usize, usize) {
    let cuts: Vec<&Cut> = world.log.iter().flat_map(|log| log.cuts.values()).collect();
    let last = cuts.iter().position(|cut| cut.members.iter().any(|member| member.leaving)).expect("ranks leave");
    let windows: Vec<&[&Cut]> = cuts[..last].windows(16).skip(100).collect();
    let is_apart = |window: &&&[&Cut]| {
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
        reached.len() < 16
    };
    (windows.iter().filter(is_apart).count(), windows.len())
}

#[test]
fn lenders_connect_fast_ranks_and_slow_ones() {
    let (without, with) = (run(false), run(true));
    let (all, of) = apart(&without);
    let (few, of_these) = apart(&with);
    let bridges = with.log.iter().flat_map(|log| log.cuts.values()).filter(|cut| cut.lender.is_some()).count();
    println!("apart without lenders: {all} of {of}; with lenders: {few} of {of_these}, {bridges} bridges");
    assert!(of > 500 && all == of, "{all} of {of}");
    assert!(of_these > 500 && few * 25 < of_these, "{few} of {of_these}");
    // No group waited for them: the tickets are those of the same arrivals.
    assert!(bridges * 2 < of_these, "{bridges} bridges");
}
