//! What a network may do to operations besides taking its time.

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Troubles of a network, drawn by the maker of the network. None by default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Weather {
    /// Of 256 pieces of data, how many land once more before their operation completes.
    pub(crate) repeats: u32,
    /// How long after it landed a piece sets out once more, at most.
    pub(crate) lag: Time,
    /// Of 128 operations, how many take ten times as long as usual, and an eighth of those a hundred times.
    pub(crate) slow: u32,
    /// Of 256 operations between hosts, how many find the receiver not ready, and are tried again.
    pub(crate) not_ready: u32,
    /// When what does not move.
    pub(crate) stalls: Vec<Stall>,
    /// The operation (by the order in which they are posted) that completes with an error, whether
    /// it took effect or not.
    pub(crate) breaks: Option<u64>,
}

impl Default for Weather {
    fn default() -> Self {
        Weather { repeats: 0, lag: 50_000, slow: 8, not_ready: 0, stalls: Vec::new(), breaks: None }
    }
}

/// A time in which nothing moves between some hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stall {
    pub(crate) kind: Kind,
    pub(crate) begin: Time,
    pub(crate) end: Time,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// From one host to another.
    Clog { from: u32, to: u32 },
    /// Between hosts below a number and the others, both ways.
    Partition { below: u32 },
}

impl Stall {
    fn holds_up(&self, from: u32, to: u32) -> bool {
        match self.kind {
            Kind::Clog { from: a, to: b } => (a, b) == (from, to),
            Kind::Partition { below } => (from < below) != (to < below),
        }
    }
}

impl Weather {
    /// Whether there are no troubles.
    pub(crate) fn is_calm(&self) -> bool {
        self.repeats == 0 && self.not_ready == 0 && self.stalls.is_empty() && self.breaks.is_none()
    }

    /// When something gets through that would arrive at a time if nothing held it up.
    #[inline]
    pub(super) fn gets_through(&self, from: u32, to: u32, at: Time) -> Time {
        // Stalls are few, and may follow one another in any order.
        let mut through = at;
        while let Some(stall) =
            self.stalls.iter().find(|stall| stall.holds_up(from, to) && (stall.begin..stall.end).contains(&through))
        {
            through = stall.end;
        }
        through
    }
}

/// How often each trouble was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) repeats: u64,
    pub(crate) not_ready: u64,
    pub(crate) stalled: u64,
    pub(crate) broken: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_hold_up_what_they_lie_in_the_way_of() {
        let stall = |kind, begin, end| Stall { kind, begin, end };
        let stalls = vec![stall(Kind::Partition { below: 2 }, 10, 20), stall(Kind::Clog { from: 0, to: 3 }, 15, 30)];
        let weather = Weather { stalls, ..Weather::default() };
        assert_eq!(weather.gets_through(0, 3, 12), 30);
        assert_eq!(weather.gets_through(3, 0, 12), 20);
        assert_eq!(weather.gets_through(0, 1, 12), 12);
        assert_eq!(weather.gets_through(2, 3, 12), 12);
        assert_eq!(weather.gets_through(0, 3, 9), 9);
    }
}
