//! Collectives as programs: tables of *when a counter reaches a threshold, do this, then bump
//! those*, which whoever is there can carry out on behalf of everybody.
//!
//! [`compile`] makes the table of every rank from what is wanted and from the [`Profile`] of who
//! will run it; [`check`] proves what every executor relies on. In shared memory the tables are
//! run by workers of all ranks: the first arrival sets off a cascade, and the ranks that it runs for
//! take no part.
#![cfg_attr(not(loom), forbid(unsafe_code))]

mod cards;
mod check;
mod compile;
mod gate;
mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
mod program;
mod worker;

pub use cards::{Cards, Sum};
pub use check::{Defect, buffer_bytes, check};
pub use compile::{Profile, Request, Start, compile, hops};
pub(crate) use gate::{Deposit, Gate, LAST_ROUND};
pub(crate) use layout::{Input, Layout, State, Target, Work};
pub use program::{Action, Buffer, Counter, Counts, Operation, Place, Program, Role, Signal, span};
pub(crate) use worker::{SlotCells, Task, Want, Worker};

pub use crate::rule::Schedule;
