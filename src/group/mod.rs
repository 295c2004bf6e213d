//! Which ranks average with each other. Every round divides the active ranks into groups, and each group takes the mean
//! of its own values. The groups change from round to round, so what one rank learns reaches all.
//!
//! [`Butterfly`] computes the groups from the active ranks, the size and the round. So ranks that know these three agree
//! on the groups without a message. It works for any number of ranks *P* and any size *S* from 2 on:
//! - A round has *G* = ceil(*P* / *S*) groups. Their sizes differ by one at most.
//! - A cycle has *R* = ceil(log *P* / log *S*) rounds. Any *R* consecutive rounds connect all ranks: a chain leads from
//!   each rank to each other one, in which neighbours share a group. Any 2 *R* consecutive rounds carry what a rank
//!   contributes to all. Tests check both for up to 1,024 ranks and groups of up to 16.
//! - If *P* = *S*^*R*, all ranks hold the mean of all after any *R* rounds. This is the classical butterfly.
//!
//! No schedule reaches the mean of all for every *P*. The weights that groups of at most *S* give to the first values
//! are fractions whose denominators have no prime factor above *S*. With 5 ranks and groups of 4, such a fraction
//! cannot be a fifth.
//!
//! Round *i* of a cycle lists the ranks by columns. With *b* = ceil(*P* / *G*), column *c* has the ranks *c*, *c* + *b*^*i*,
//! *c* + 2 *b*^*i* and so on. Consecutive ranks of the list form the groups. If *b*^(*R* - 1) does not divide *P*, the list
//! of round *i* is rotated by *i*. Otherwise pairs of an odd number of ranks would always leave rank 0 alone.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::named::UnknownName;
use crate::rank_set::RankSet;

/// Which ranks average with each other in a round of a collective with a memory. On the command line it is `world`, or
/// for instance `butterfly=4` or `arrivals=4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Group {
    /// All active ranks.
    #[default]
    World,
    /// Groups of at most this number of ranks, 2 or more. The groups of a round hold each active rank once, and their
    /// sizes differ by one at most. They change from round to round, so that what one rank learns reaches all.
    Butterfly(u32),
    /// Groups of this number of ranks, 2 or more, in the order in which ranks arrive. It needs a
    /// [`memory`](crate::AllreduceBuilder::memory), [`Fire::ALL`](crate::Fire::ALL) with or without a deadline, and
    /// [`Absent::Carry`](crate::Absent::Carry) or `Hold`; it is not recorded. A group is a round of its own, so ranks
    /// wait for no other group. [`wait`](crate::Allreduce::wait) returns one outcome for each arrival, and rounds count
    /// groups. If fewer ranks are active, a group has only these.
    ///
    /// This is the Partial Reduce of the P-Reduce paper (Miao et al., SIGMOD 2021) without its controller. Over a
    /// network, rank 0 has the memory in which groups form: [`finish`](crate::Allreduce::finish) there returns when all
    /// ranks have left.
    Arrivals(u32),
}

impl Group {
    /// Returns the schedule of its rounds; `None` if no schedule divides the ranks of a round.
    ///
    /// # Errors
    /// A size that is less than 2.
    pub(crate) fn schedule(self) -> Result<Option<Butterfly>, GroupSizeError> {
        match self {
            Group::World => Ok(None),
            Group::Butterfly(size) => Butterfly::new(size).map(Some),
            Group::Arrivals(size) => Butterfly::new(size).map(|_| None),
        }
    }

    /// Returns the ranks with which `rank` averages in a round, ascending and with `rank` itself. Invalid sizes were
    /// refused before.
    pub(crate) fn members(self, active: &RankSet, round: u64, rank: u32) -> Vec<u32> {
        let Ok(Some(butterfly)) = self.schedule() else { return active.iter().collect() };
        let mut members = Vec::with_capacity(butterfly.size().min(active.len()) as usize);
        butterfly.group(active, round, rank, &mut members);
        members
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Group::World => f.pad("world"),
            Group::Butterfly(size) => f.pad(&format!("butterfly={size}")),
            Group::Arrivals(size) => f.pad(&format!("arrivals={size}")),
        }
    }
}

impl FromStr for Group {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = "world, butterfly=SIZE or arrivals=SIZE with a size of 2 or more";
        let unknown = || UnknownName { what: "groups", text: text.to_owned(), known };
        let group = match text.split_once('=') {
            None if text == "world" => Group::World,
            Some(("butterfly", size)) => Group::Butterfly(size.parse().map_err(|_| unknown())?),
            Some(("arrivals", size)) => Group::Arrivals(size.parse().map_err(|_| unknown())?),
            _ => return Err(unknown()),
        };
        group.schedule().map_err(|_| unknown())?;
        Ok(group)
    }
}

impl TryFrom<String> for Group {
    type Error = UnknownName;

    fn try_from(text: String) -> Result<Self, UnknownName> {
        text.parse()
    }
}

impl From<Group> for String {
    fn from(group: Group) -> String {
        group.to_string()
    }
}

/// A group size that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("groups of {size} average nothing; use 2 ranks or more")]
pub struct GroupSizeError {
    size: u32,
}

/// Returns the number of rounds of a cycle, for `ranks` ranks in groups of `size`, which is 2 or more: ceil(log `ranks`
/// / log `size`), and at least 1.
pub(crate) fn cycle(ranks: u32, size: u32) -> u32 {
    let (mut rounds, mut reached) = (1, u64::from(size));
    while reached < u64::from(ranks) {
        reached *= u64::from(size);
        rounds += 1;
    }
    rounds
}

/// A schedule of groups for any number of ranks. All ranks compute the same one, and it differs in each round of a
/// cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Butterfly {
    size: u32,
}

impl Butterfly {
    /// Creates the schedule of groups of at most `size` ranks.
    ///
    /// # Errors
    /// If `size` is less than 2.
    pub fn new(size: u32) -> Result<Self, GroupSizeError> {
        if size < 2 { Err(GroupSizeError { size }) } else { Ok(Butterfly { size }) }
    }

    /// Returns the maximum number of ranks in a group.
    #[must_use]
    pub fn size(self) -> u32 {
        self.size
    }

    /// Returns the number of rounds after which the groups repeat, while the same ranks are active. That number of
    /// consecutive rounds connects all ranks.
    #[must_use]
    pub fn cycle(self, ranks: u32) -> u32 {
        cycle(ranks, self.size)
    }

    /// Returns the groups of a round among `ranks` active ranks.
    #[must_use]
    pub fn partition(self, ranks: u32, round: u64) -> Partition {
        let groups = ranks.div_ceil(self.size);
        let base = ranks.div_ceil(groups.max(1));
        let cycle = self.cycle(ranks);
        let step = (round % u64::from(cycle)) as u32;
        // The product is less than `ranks`, because `base` is at most the size.
        let longest = base.pow(cycle - 1);
        Partition {
            ranks: ranks.into(),
            groups: groups.into(),
            stride: base.pow(step).into(),
            rotation: if ranks.is_multiple_of(longest) { 0 } else { step.into() },
        }
    }

    /// Fills `members` with the group of `rank`, ascending and with `rank` itself. A rank that is not active is in no
    /// group. `members` needs memory for `size` ranks. The time grows with the number of members and, by a few
    /// instructions each, with the number of ranks.
    pub fn group(self, active: &RankSet, round: u64, rank: u32, members: &mut Vec<u32>) {
        members.clear();
        if active.contains(rank) {
            let partition = self.partition(active.len(), round);
            members.extend(partition.members(partition.group_of(active.below(rank))));
            members.sort_unstable();
            active.replace_positions(members);
        }
    }
}

/// The groups of a round. A rank is named by its position among the active ranks, which are numbered from 0 in
/// ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    ranks: u64,
    groups: u64,
    /// The distance between neighbours in a column, which equals the number of columns.
    stride: u64,
    /// The number of ranks at the front of the list that move to its end.
    rotation: u64,
}

impl Partition {
    /// Returns the number of groups.
    #[must_use]
    pub fn groups(self) -> u32 {
        self.groups as u32
    }

    /// Returns the group of the rank at `position`.
    ///
    /// # Panics
    /// If no rank is active.
    #[must_use]
    pub fn group_of(self, position: u32) -> u32 {
        let (column, row) = (u64::from(position) % self.stride, u64::from(position) / self.stride);
        let (rows, longer) = (self.ranks / self.stride, self.ranks % self.stride);
        let index = column * rows + column.min(longer) + row;
        let listed = (index + self.ranks - self.rotation) % self.ranks;
        // The last group that begins here or before.
        (((listed + 1) * self.groups - 1) / self.ranks) as u32
    }

    /// Returns the ranks of a group, in the order of the list.
    pub fn members(self, group: u32) -> impl Iterator<Item = u32> {
        let begin = |group: u64| self.ranks * group / self.groups;
        (begin(group.into())..begin(u64::from(group) + 1)).map(move |listed| self.position(listed))
    }

    /// Returns the rank at a position of the list.
    fn position(self, listed: u64) -> u32 {
        let index = (listed + self.rotation) % self.ranks;
        // The first columns have one rank more than the others.
        let (rows, longer) = (self.ranks / self.stride, self.ranks % self.stride);
        let of_longer = longer * (rows + 1);
        let (column, row) = match index.checked_sub(of_longer) {
            None => (index / (rows + 1), index % (rows + 1)),
            Some(rest) => (longer + rest / rows, rest % rows),
        };
        (row * self.stride + column) as u32
    }
}
