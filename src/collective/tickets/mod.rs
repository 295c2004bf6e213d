//! Groups by order of arrival: ranks that arrive one after the other average, and no rank waits for a slow one.
//!
//! This is the Partial Reduce of the P-Reduce paper (Miao et al., SIGMOD 2021), without its controller. There a server
//! queues the arrivals, forms groups and answers each member. Here an arrival draws a ticket by one fetch-add, and the
//! ticket determines its group and its seat ([`word`]). [`TicketMachine`] is one rank's part: a state machine without
//! I/O, threads or a clock. A driver carries out its [`TicketOp`]s, reports their results, and polls it with a view of
//! the cells.
//!
//! # The stages of an arrival
//! 1. It draws a ticket. Tickets divide into groups of S seats.
//! 2. It waits until the record of its group is free. That bounds how far groups can overtake a slow one ([`record`]).
//! 3. It writes its entry: rank, buffer, iteration, weight, and whether it leaves.
//! 4. One member is the *closer*. It is the member with the last seat. Where fewer than S ranks are active, it is the
//!    member after which none may come; after a deadline, it is the first member whose time is over. The latter two
//!    close the group by a compare-swap, which leaves its free seats out.
//! 5. The closer waits for the entries and publishes the cut. If its members are apart from other ranks, it adds a
//!    lender ([`isolation`], [`claim`]).
//! 6. The members learn the cut and move the data. Each takes segment after segment until none is left, waits for those
//!    that others move, and releases the group. The last release frees the record.
//!
//! # What is guaranteed
//! - Every arrival is in exactly one cut. A cut has S members, unless fewer than S ranks are active or a deadline has
//!   passed.
//! - All members see the same cut. A member holds a seat in no other group.
//! - A record is reused only when all members have released it.
//! - Every arrival ends, if each rank is polled until it has left. A last arrival counts like the others, so no rank
//!   waits for a rank that left. While S ranks or more are active, an arrival waits for others to arrive, and for no
//!   particular one. A rank that has its ticket and stops before it has written its entry delays its group.
//! - A register takes part in one group at a time. A lender has no ticket in a group that is not over.
//!
//! # What it costs
//! An arrival makes 4 operations: ticket, entry, a search for a segment, and release. A segment makes 2 more. A group
//! makes 3 more, for its cut and its end, and 1 more if it is closed before it is full. Where registers are lent, an
//! arrival also claims its own register and names its group, and a last arrival announces that it leaves. A lender
//! costs one compare-swap.
//!
//! # What a driver must do
//! - It carries out one operation at a time and reports it when it has taken effect. Each operation may let other ranks
//!   continue, so the driver wakes those that sleep.
//! - It polls a machine with a view of the cells that is no older than the machine's last operation. Only the cells
//!   that [`TicketMachine::watches`] returns have to be that new.
//! - It keeps the cells until [`TicketPlan::is_over`], even those of a rank that has left, because others use them.
//!
//! # Several hosts
//! All cells lie at the host of rank 0, the home. Each host has the data of its own ranks. A member reads data from
//! other hosts, and writes the mean there ([`driver`]). Ranks on hosts other than the home see its cells in a copy
//! ([`home`]). After its last group no rank uses the data of a rank that left. So only the home stays until all ranks
//! have left.
#![forbid(unsafe_code)]

mod ages;
mod areas;
mod claim;
mod driver;
mod engine;
mod home;
mod isolation;
mod machine;
mod op;
mod plan;
mod record;
#[cfg(all(test, not(loom)))]
mod tests;
mod word;

pub(crate) use areas::Areas;
pub(crate) use driver::{Mean, Memory, TicketDriver};
pub(crate) use engine::TicketEngine;
pub(crate) use machine::TicketMachine;
pub(crate) use plan::{TicketPlan, TicketTerms};

/// Counts of events at a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Stats {
    pub(crate) arrivals: u64,
    /// Groups that this rank closed.
    pub(crate) closed: u64,
    /// Of these, the groups that could not fill.
    pub(crate) closed_early: u64,
    /// Of these, the groups whose deadline had passed.
    pub(crate) expired: u64,
    /// Of these, the groups that have a lender.
    pub(crate) bridges: u64,
    /// Of these, the groups that were apart from other ranks and found no lender.
    pub(crate) no_lender: u64,
    /// Segments that this rank moved.
    pub(crate) segments: u64,
    /// How often this rank found at an arrival that others had borrowed its register meanwhile.
    pub(crate) lent: u64,
}
