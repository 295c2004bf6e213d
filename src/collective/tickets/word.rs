//! The cell that forms groups: the number of tickets drawn, and the number of ranks that left.
//!
//! An arrival adds one ticket, and a last arrival also one leaver. The value before determines the group and the seat,
//! and whether this rank closes the group. So one fetch-add forms a group, for any number of ranks.
//!
//! A group that is closed before it is full leaves tickets out: a compare-swap raises the tickets to the next multiple
//! of the size. It succeeds only if no arrival came in between. If it fails, a later arrival has a seat in the group,
//! or has closed it. The later arrival sees at least the same number of leavers, so it closes in its turn. So each
//! group has exactly one closer.

use crate::fabric::Atomic;

/// One rank that left. The tickets lie below it: 2^40 tickets last for 12 days at a million arrivals a second.
const LEAVER: u64 = 1 << 40;

fn tickets(word: u64) -> u64 {
    word & (LEAVER - 1)
}

/// Returns the number of ranks whose last arrival has drawn a ticket.
pub(super) fn leavers(word: u64) -> u32 {
    (word / LEAVER) as u32
}

/// Returns the number of groups that have begun, if each is full or closed.
pub(super) fn groups(word: u64, size: u32) -> u64 {
    tickets(word).div_ceil(size.into())
}

/// Returns the number that an arrival adds.
pub(super) fn addend(leaving: bool) -> u64 {
    if leaving { LEAVER + 1 } else { 1 }
}

/// A seat of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct GroupSeat {
    pub(crate) group: u64,
    pub(crate) index: u32,
}

/// The duty of a rank with a seat towards its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) enum Duty {
    /// It waits for a later arrival.
    #[default]
    Wait,
    /// It has the last seat, so the group is closed.
    Close,
    /// Too few ranks are active to fill the group, so it closes the group unless another rank has arrived since.
    CloseEarly,
}

/// The ticket of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Ticket {
    pub(super) seat: GroupSeat,
    pub(super) duty: Duty,
    /// The cell's value after this rank's addition.
    pub(super) word: u64,
}

impl Ticket {
    /// Returns the ticket of an arrival that found `before`, among `ranks` ranks and in groups of `size` seats. The
    /// cell may hold any number if a rank has written where it must not.
    pub(super) fn of(before: u64, leaving: bool, ranks: u32, size: u32) -> Self {
        let word = before.wrapping_add(addend(leaving));
        let seat =
            GroupSeat { group: tickets(before) / u64::from(size), index: (tickets(before) % u64::from(size)) as u32 };
        let (taken, active) = (seat.index + 1, ranks.saturating_sub(leavers(word)));
        let duty = match taken {
            _ if taken == size => Duty::Close,
            // A member that leaves is no longer active, so this may close before every active rank has come. It never
            // waits for a rank that cannot come.
            _ if active < size && taken >= active => Duty::CloseEarly,
            _ => Duty::Wait,
        };
        Ticket { seat, duty, word }
    }
}

/// Returns the atomic that closes a group that is not full, and the number of seats that it then has. Returns `None` if
/// the group is closed.
pub(super) fn closing(word: u64, group: u64, size: u32) -> Option<(Atomic, u32)> {
    let size = u64::from(size);
    let taken = tickets(word) % size;
    let is_open = tickets(word) / size == group;
    is_open.then_some((Atomic::CompareSwap { expect: word, new: (word - taken).wrapping_add(size) }, taken as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(ranks: u64) -> u64 {
        ranks * LEAVER
    }

    #[test]
    fn tickets_fill_groups_in_order() {
        for size in 2..=5 {
            let mut word = 0;
            for number in 0..20 {
                let ticket = Ticket::of(word, false, 8, size);
                let seat = GroupSeat { group: number / u64::from(size), index: (number % u64::from(size)) as u32 };
                let duty = if seat.index + 1 == size { Duty::Close } else { Duty::Wait };
                assert_eq!((ticket.seat, ticket.duty, ticket.word), (seat, duty, word + 1));
                word = ticket.word;
            }
        }
    }

    #[test]
    fn the_rank_behind_which_no_active_rank_may_come_closes_early() {
        // In a world of 5 ranks, 3 left, so 2 are active, and groups have 4 seats.
        assert_eq!(Ticket::of(left(3), false, 5, 4).duty, Duty::Wait);
        assert_eq!(Ticket::of(left(3) + 1, false, 5, 4).duty, Duty::CloseEarly);
        // The rank that leaves counts itself.
        assert_eq!(Ticket::of(left(3), true, 5, 4).duty, Duty::CloseEarly);
        assert_eq!(Ticket::of(left(1), true, 5, 4).duty, Duty::Wait);
        // If the active ranks are as many as the seats, the group can fill.
        assert_eq!(Ticket::of(left(1) + 2, false, 5, 4).duty, Duty::Wait);
        assert_eq!(Ticket::of(left(3) + 3, false, 5, 4).duty, Duty::Close);
        // A world that is smaller than a group closes early from the beginning.
        assert_eq!(Ticket::of(0, false, 1, 2).duty, Duty::CloseEarly);
    }

    #[test]
    fn closing_leaves_out_the_free_seats_and_keeps_the_leavers() {
        let word = left(2) + 9;
        let Some((Atomic::CompareSwap { expect, new }, seats)) = closing(word, 2, 4) else { panic!("it is open") };
        assert_eq!((expect, new, seats), (word, left(2) + 12, 1));
        assert_eq!((leavers(new), groups(new, 4)), (2, 3));
        assert_eq!(closing(new, 2, 4), None);
        assert_eq!(closing(left(2) + 13, 2, 4), None);
    }
}
