//! `earlybird model groups`: which ranks average with each other, and how far that leaves them apart.

use std::process::ExitCode;

use crate::group::{Butterfly, Partition};
use serde_json::json;

use super::super::table::Table;
use super::disagreement::{lower_bound, of_random_groups, stationary};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ranks in the world, 4096 at most
    #[arg(short = 'n', long, value_name = "P")]
    ranks: u32,
    /// Ranks of a group, at most
    #[arg(long, value_name = "S")]
    size: u32,
    /// Rounds to print [default: until they repeat]
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// JSON Lines: an object for each round, with its groups
    #[arg(long)]
    json: bool,
}

const MOST_RANKS: u32 = 4096;
const MOST_ROUNDS: u32 = 65_536;

/// The number of groups of a round that a row of the table shows.
const SHOWN: usize = 32;

pub(super) fn main(args: &Args) -> super::super::Outcome {
    let ranks = args.ranks;
    if !(1..=MOST_RANKS).contains(&ranks) {
        let why = "the time to compute the disagreement grows with the square of the ranks";
        return Err(format!("{ranks} ranks: use 1 to {MOST_RANKS}; {why}").into());
    }
    let schedule = Butterfly::new(args.size)?;
    let cycle = cycle(schedule, ranks);
    let rounds = args.rounds.unwrap_or(cycle.len() as u32);
    if !(1..=MOST_ROUNDS).contains(&rounds) {
        return Err(format!("--rounds {rounds}: use 1 to {MOST_ROUNDS}").into());
    }
    let connected_after = connected_after(&cycle, ranks);
    let (disagreement, least) = (stationary(&cycle, ranks), lower_bound(args.size, ranks));
    let random = of_random_groups(cycle[0].len() as u32, ranks);
    let rounds = (1..=rounds).map(|round| (round, &cycle[round as usize % cycle.len()]));
    if args.json {
        for (round, groups) in rounds {
            say!(
                "{}",
                json!({
                    "ranks": ranks, "size": args.size, "cycle": cycle.len(), "connected_after": connected_after,
                    "disagreement": disagreement, "lower_bound": least, "random_groups": random, "round": round,
                    "groups": groups,
                })
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    say!("ranks {ranks}, groups {} of at most {}, cycle {}", cycle[0].len(), args.size, plural(cycle.len()));
    match connected_after {
        Some(after) => say!("any {} in a row connect all ranks", plural(after)),
        None => say!("some ranks are never connected"),
    }
    say!(
        "disagreement with unit noise in every round: {disagreement:.3}, lower bound {least:.3}, random groups {random:.3}"
    );
    let mut table = Table::new(&["round", "groups"]);
    for (round, groups) in rounds {
        table.row(&[round.to_string(), line(groups)]);
    }
    say!("{table}");
    Ok(ExitCode::SUCCESS)
}

/// Returns the groups of a round, with their members ascending.
pub(super) fn groups(partition: Partition) -> Vec<Vec<u32>> {
    let members = |group| {
        let mut members: Vec<u32> = partition.members(group).collect();
        members.sort_unstable();
        members
    };
    (0..partition.groups()).map(members).collect()
}

/// Returns the groups of each round until they repeat, from round 0 on.
pub(super) fn cycle(schedule: Butterfly, ranks: u32) -> Vec<Vec<Vec<u32>>> {
    (0..schedule.cycle(ranks)).map(|round| groups(schedule.partition(ranks, round.into()))).collect()
}

/// Returns the least number of consecutive rounds that always connects all ranks; `None` if a cycle does not.
fn connected_after(cycle: &[Vec<Vec<u32>>], ranks: u32) -> Option<usize> {
    let from = |first| {
        let mut components = Components::new(ranks);
        let rounds = cycle.iter().cycle().skip(first).take(cycle.len());
        rounds.zip(1..).find_map(|(groups, count)| {
            groups.iter().for_each(|members| components.join(members));
            (components.count == 1).then_some(count)
        })
    };
    (0..cycle.len()).map(from).try_fold(0, |most, count| Some(most.max(count?)))
}

/// The ranks that chains of shared groups connect.
struct Components {
    /// A rank of the same component; a rank that names itself represents the component.
    parents: Vec<u32>,
    count: u32,
}

impl Components {
    fn new(ranks: u32) -> Self {
        Components { parents: (0..ranks).collect(), count: ranks }
    }

    fn find(&mut self, mut rank: u32) -> u32 {
        while self.parents[rank as usize] != rank {
            let parent = self.parents[rank as usize];
            self.parents[rank as usize] = self.parents[parent as usize];
            rank = parent;
        }
        rank
    }

    fn join(&mut self, members: &[u32]) {
        for pair in members.windows(2) {
            let (one, other) = (self.find(pair[0]), self.find(pair[1]));
            self.count -= u32::from(one != other);
            self.parents[one as usize] = other;
        }
    }
}

fn plural(rounds: usize) -> String {
    format!("{rounds} round{}", if rounds == 1 { "" } else { "s" })
}

/// Prints the groups of a round.
fn line(groups: &[Vec<u32>]) -> String {
    let shown = groups.iter().take(SHOWN).map(|group| members(group)).collect::<Vec<_>>().join(" ");
    match groups.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

/// Prints the members of a group; three or more consecutive ones as a range.
fn members(group: &[u32]) -> String {
    let runs = group.chunk_by(|rank, next| rank + 1 == *next).map(|run| match run {
        [first, .., last] if run.len() > 2 => format!("{first}-{last}"),
        _ => run.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
    });
    format!("{{{}}}", runs.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_connected_by_chains() {
        let round = |groups: &[&[u32]]| groups.iter().map(|members| members.to_vec()).collect::<Vec<_>>();
        let pairs = round(&[&[0, 1], &[2, 3]]);
        let (others, crossed) = (round(&[&[0], &[1], &[2, 3]]), round(&[&[0, 3], &[1, 2]]));
        assert_eq!(connected_after(std::slice::from_ref(&pairs), 4), None);
        assert_eq!(connected_after(&[pairs.clone(), others.clone()], 4), None);
        assert_eq!(connected_after(&[pairs.clone(), crossed.clone()], 4), Some(2));
        // From the second round on, the pairs come last.
        assert_eq!(connected_after(&[pairs, crossed, others.clone(), others], 4), Some(4));
        assert_eq!(connected_after(&[round(&[&[0, 1, 2]])], 3), Some(1));
        assert_eq!(connected_after(&[round(&[&[0]])], 1), Some(1));
    }

    #[test]
    fn members_in_a_row_are_a_range() {
        for (group, text) in [
            (&[0][..], "{0}"),
            (&[3, 4], "{3 4}"),
            (&[0, 1, 2], "{0-2}"),
            (&[0, 1, 4, 5, 6, 7, 9], "{0 1 4-7 9}"),
            (&[2, 4, 6], "{2 4 6}"),
        ] {
            assert_eq!(members(group), text);
        }
        let groups: Vec<Vec<u32>> = (0..=SHOWN as u32).map(|rank| vec![rank]).collect();
        assert!(line(&groups).ends_with(" {31} and 1 more") && line(&groups[1..]).ends_with(" {32}"));
    }
}
