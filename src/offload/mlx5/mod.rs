//! Programs that a ConnectX NIC (mlx5) runs by itself, from its work queues.
//!
//! A queue pair of such a NIC stops at a *WAIT* element until a completion queue has a given number of
//! entries, or until a word of memory has a value. What follows in the queue then runs without a
//! processor: a write, a write that adds an entry to the target's completion queue, an addition to
//! a word. So a table of triggered operations ([`crate::trigger`]) becomes queues of elements, and
//! a late rank's NIC forwards the activation and sends its rank's contribution. A NIC adds
//! integers only, so a rank sums by itself.
//!
//! **None of this has run on a NIC.** The module has an encoder of elements ([`Element`]), a queue of elements
//! ([`SendRing`]), a compiler of programs into queues ([`Lanes`]), and a mock NIC that runs queues from their bytes
//! ([`Mock`]). No executor uses them. `earlybird info` asks devices whether their queues can wait for completions and
//! for memory ([`crate::fabric::verbs::Waits`]).
//!
//! The layouts are public. Each fact names its source; the code is this project's own.
//!
//! | source | facts |
//! |---|---|
//! | rdma-core, `providers/mlx5/mlx5dv.h` and `qp.c` | control, remote address, atomic, data and inline segments; opcodes; fences; the wrap at the end of a queue; syndromes |
//! | DPDK, `drivers/common/mlx5/mlx5_prm.h` and `drivers/net/mlx5/mlx5_txpp.c` | opcode, modifiers, conditions and segments of WAIT; completion modes; widths of indices |
//! | UCC, `src/components/tl/mlx5/tl_mlx5_wqe.c` | a wait for a word of memory that fetch-and-add changes, in the order of the host; actions on failure |
//! | NVIDIA FlexIO SDK, `flexio_dev_queue_types.h` | where that segment has condition, inversion and action |
//! | MLNX_OFED, `qp.c` of libmlx5 | a WAIT counts entries since the completion queue was made |
#![forbid(unsafe_code)]

mod compile;
#[cfg(test)]
mod compile_tests;
mod host;
mod mock;
#[cfg(test)]
mod mock_tests;
mod ring;
mod wqe;
#[cfg(test)]
mod wqe_tests;

pub use compile::{Lane, Lanes, Unsupported, Wiring};
pub use host::{CompletionEntry, Number, Syndrome, What};
pub use mock::Mock;
pub use ring::{Full, SendRing};
pub use wqe::{BLOCK, Condition, Element, ElementError, Fence, Location, Miss, Operation, Payload, Report, WaitWord};
