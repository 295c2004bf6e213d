//! An allreduce in buckets. Gradients become ready one after the other. The gradients of a *bucket* share a message,
//! which moves while the next gradients are computed.
//!
//! A bucket is a collective of its own, with the same choices. All buckets of a step have the same cut: either every
//! active rank takes part, or the other buckets follow the first one ([`following`](super::following)).
//! [`merge`](crate::merge) decides which tensors share a bucket, from when they are ready and what a message costs
//! ([`timing`]). This is MG-WFBP (Shi et al., INFOCOM 2019).
#![forbid(unsafe_code)]

mod bucket;
mod handle;
mod outcomes;
mod timing;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::build::AllreduceBuilder;
use crate::error::Result;
use crate::merge::Merging;
use crate::named::UnknownName;
use crate::reduce::Item;
use crate::units::parse_size;
pub use handle::BucketedAllreduce;
pub use outcomes::{BucketOutcome, BucketOutcomes};

/// Which tensors share a bucket. On the command line it is `measured`, `each`, `one`, or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Buckets {
    /// The buckets for which the last one ends earliest, by what the collective measures: when tensors are ready, and
    /// how long a message of a size takes. It begins with one bucket for all tensors, and plans after 10 steps and then
    /// after every 100.
    #[default]
    Measured,
    /// Each tensor has its own bucket.
    Each,
    /// All tensors share one bucket.
    One,
    /// A bucket is complete with the tensor that brings it to this number of bytes.
    Bytes(u64),
}

impl Buckets {
    fn check(self) -> std::result::Result<(), &'static str> {
        match self {
            Buckets::Bytes(0) => Err("a bucket has a byte or more; use Buckets::Each for one tensor each"),
            _ => Ok(()),
        }
    }

    /// Returns how buckets are planned; `measured` says whether there are measurements, on which the plan may depend.
    fn merging(self, measured: bool) -> Merging {
        match self {
            Buckets::Measured if measured => Merging::Optimal,
            Buckets::Measured | Buckets::One => Merging::One,
            Buckets::Each => Merging::Each,
            Buckets::Bytes(bytes) => Merging::Bytes(bytes),
        }
    }
}

impl fmt::Display for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buckets::Measured => f.pad("measured"),
            Buckets::Each => f.pad("each"),
            Buckets::One => f.pad("one"),
            Buckets::Bytes(bytes) if bytes.is_multiple_of(1 << 20) => f.pad(&format!("{}M", bytes >> 20)),
            Buckets::Bytes(bytes) => f.pad(&bytes.to_string()),
        }
    }
}

impl FromStr for Buckets {
    type Err = UnknownName;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownName> {
        let known = "measured, each, one, or the bytes that complete a bucket, such as 25M";
        match text {
            "measured" => Ok(Buckets::Measured),
            "each" => Ok(Buckets::Each),
            "one" => Ok(Buckets::One),
            _ => match parse_size(text) {
                Ok(bytes) if bytes > 0 => Ok(Buckets::Bytes(bytes)),
                _ => Err(UnknownName { what: "buckets", text: text.to_owned(), known }),
            },
        }
    }
}

impl TryFrom<String> for Buckets {
    type Error = UnknownName;

    fn try_from(text: String) -> std::result::Result<Self, UnknownName> {
        text.parse()
    }
}

impl From<Buckets> for String {
    fn from(buckets: Buckets) -> String {
        buckets.to_string()
    }
}

/// The choices for an allreduce in buckets, from [`AllreduceBuilder::buckets`].
#[derive(Debug)]
#[must_use = "nothing happens before build()"]
pub struct BucketsBuilder<'w, T> {
    of_all: AllreduceBuilder<'w, T>,
    buckets: Buckets,
}

impl<'w, T: Item> AllreduceBuilder<'w, T> {
    /// Hands tensors in as they become ready, one bucket at a time, while the caller computes the next ones. The
    /// builder's lengths must be in the order in which tensors become ready: for gradients from the last layer to the
    /// first.
    ///
    /// Contributions must not be models. Under a partial rule a rank arrives with the first bucket, and all buckets of
    /// a round have the cut of the first. Data then moves by the cut mover. The executor
    /// [`Auto`](crate::Executor::Auto) stands for the helper thread, which moves data while the caller computes, unless
    /// all tensors share one bucket.
    pub fn buckets(self, buckets: Buckets) -> BucketsBuilder<'w, T> {
        BucketsBuilder { of_all: self, buckets }
    }
}

impl<T: Item> BucketsBuilder<'_, T> {
    /// Creates the collective like [`AllreduceBuilder::build`]. All ranks must choose the same buckets.
    ///
    /// # Errors
    /// As [`AllreduceBuilder::build`]. [`Error::Usage`](crate::Error::Usage) for choices that cannot be combined with
    /// buckets.
    pub fn build(self) -> Result<BucketedAllreduce<T>> {
        BucketedAllreduce::new(&self.of_all, self.buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for buckets in [Buckets::Measured, Buckets::Each, Buckets::One, Buckets::Bytes(25 << 20), Buckets::Bytes(7)] {
            assert_eq!(buckets.to_string().parse::<Buckets>(), Ok(buckets));
        }
        for text in ["", "0", "all", "25Q"] {
            assert!(text.parse::<Buckets>().unwrap_err().to_string().contains("such as 25M"), "{text}");
        }
    }
}
