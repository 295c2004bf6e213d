//! The calls of a handle, for both ways in which ranks come together.
#![forbid(unsafe_code)]

use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;

use super::core::Stats;
use super::engine::Engine;
use super::raw::Raw;
use super::session::Session;
use super::tickets;
use crate::error::Result;
use crate::fabric::HostMemory;
use crate::rank_set::RankSet;
use crate::rule::Executor;
use crate::time::Deadline;

/// The two ways in which ranks come together.
#[derive(Debug)]
pub(super) enum Calls {
    /// In rounds of the whole world.
    Rounds(Raw<Engine>),
    /// In groups by order of arrival.
    Arrivals(Raw<tickets::TicketEngine>),
}

/// Defines methods that call the method of [`Raw`] with the same name.
macro_rules! forward {
    ($($(#[$attribute:meta])* fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $($(#[$attribute])* pub(super) fn $name(&self $(, $argument: $type)*) -> $result {
            match self {
                Calls::Rounds(raw) => raw.$name($($argument),*),
                Calls::Arrivals(raw) => raw.$name($($argument),*),
            }
        })*
    };
    ($($(#[$attribute:meta])* fn $name:ident(&mut self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $($(#[$attribute])* pub(super) fn $name(&mut self $(, $argument: $type)*) -> $result {
            match self {
                Calls::Rounds(raw) => raw.$name($($argument),*),
                Calls::Arrivals(raw) => raw.$name($($argument),*),
            }
        })*
    };
}

impl Calls {
    /// Returns whether all ranks have the same rounds.
    pub(super) fn have_common_rounds(&self) -> bool {
        matches!(self, Calls::Rounds(_))
    }

    forward! {
        #[inline] fn session(&self) -> &Session;
        #[inline] fn memory(&self) -> &HostMemory;
        fn executor(&self) -> Executor;
        fn stats(&self) -> Stats;
        fn members(&self, round: u64) -> RankSet;
        fn carries_nothing(&self, round: u64) -> bool;
        fn has_all_ranks(&self, round: u64) -> bool;
        fn is_complete(&self) -> Result<bool>;
        #[inline] fn check_process(&self, operation: &'static str) -> Result<()>;
        fn completion(&self) -> Result<BorrowedFd<'_>>;
        #[inline] fn hold(&self, rounds: RangeInclusive<u64>) -> ();
        #[inline] fn drop_held(&self, rounds: RangeInclusive<u64>) -> ();
    }

    forward! {
        #[inline] fn session_mut(&mut self) -> &mut Session;
        #[inline] fn memory_mut(&mut self) -> &mut HostMemory;
        #[inline] fn arrive(&mut self) -> Result<()>;
        fn arrive_with(&mut self, copy: impl Fn(&mut HostMemory, usize, Range<usize>)) -> Result<()>;
        #[inline] fn wait(&mut self, deadline: Deadline) -> Result<RangeInclusive<u64>>;
        fn try_wait(&mut self) -> Result<Option<RangeInclusive<u64>>>;
        fn leave(&mut self, deadline: Deadline) -> Result<Option<RangeInclusive<u64>>>;
        fn begin_computation(&mut self) -> ();
        fn tend(&mut self, operation: &'static str) -> Result<()>;
        #[inline] fn settle(&mut self) -> ();
        fn release(&mut self, newest: u64) -> ();
    }
}
