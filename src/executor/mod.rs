//! Executors that run the rounds of a collective in place of its ranks.

pub mod deferred_work;
