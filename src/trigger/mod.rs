//! Collectives as programs: tables of operations. An operation runs when a counter reaches its
//! threshold, and then adds to other counters. Any rank can run the operations of all ranks.
//!
//! [`compile`] makes the table of every rank from a [`Request`] and the [`Profile`] of the executor; [`check`] proves
//! the properties that every executor relies on. In shared memory the workers of all ranks run the tables: the first
//! arrival starts a cascade, and the ranks that it serves take no part.
#![cfg_attr(not(loom), forbid(unsafe_code))]

mod check;
mod compile;
mod gate;
mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
mod program;
mod shape;
mod table;
mod worker;

pub use check::{Defect, buffer_bytes, check};
pub use compile::{Profile, Request, Start, compile, hops};
pub(crate) use gate::{Deposit, Gate, LAST_ROUND};
pub(crate) use layout::{Input, Layout, State, Target, TaskWork};
pub use program::{Action, Buffer, Chunk, Counter, Counts, Operation, Program, RankBuffer, Role, Signal};
pub(crate) use shape::{Inboxes, Shape};
pub(crate) use table::{Act, Addends, Area, InputCells, Progress, Table};
pub(crate) use worker::{SlotCells, Task, Want, Worker};

pub use crate::rule::Schedule;
