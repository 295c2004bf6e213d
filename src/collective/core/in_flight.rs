//! How many operations a rank has begun that have not completed. Until one completes, its data may still be read where it
//! comes from and be written once more where it goes to.

use super::op::Counted;

const KINDS: usize = Counted::ALL.len();

/// How many, by kind and by host.
#[derive(Clone, Debug, Hash)]
pub(super) struct InFlight {
    totals: [u32; KINDS],
    /// A row of kinds for each host.
    towards: Vec<[u32; KINDS]>,
}

impl InFlight {
    pub(super) fn new(hosts: u32) -> Self {
        InFlight { totals: [0; KINDS], towards: vec![[0; KINDS]; hosts as usize] }
    }

    pub(super) fn begin(&mut self, what: Counted, host: u32) {
        self.totals[what.index()] += 1;
        self.towards[host as usize][what.index()] += 1;
    }

    pub(super) fn end(&mut self, what: Counted, host: u32) {
        self.totals[what.index()] -= 1;
        self.towards[host as usize][what.index()] -= 1;
    }

    /// Whether there is anything of a kind.
    pub(super) fn has(&self, what: Counted) -> bool {
        self.totals[what.index()] > 0
    }

    /// Whether the tag of any buffer is in flight.
    pub(super) fn has_tags(&self) -> bool {
        Counted::TAGS.into_iter().any(|tag| self.has(tag))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.totals == [0; KINDS]
    }

    /// Whether anything of a kind is in flight towards a host.
    pub(super) fn has_towards(&self, what: Counted, host: u32) -> bool {
        self.towards[host as usize][what.index()] > 0
    }

    /// The hosts towards which anything of a kind is in flight.
    pub(super) fn hosts(&self, what: Counted) -> impl Iterator<Item = u32> {
        (0..self.towards.len() as u32).filter(move |&host| self.has_towards(what, host))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_is_counted_by_host() {
        let mut in_flight = InFlight::new(3);
        let tag = Counted::Tag { buffer: 2 };
        for (what, host) in [(tag, 0), (tag, 2), (Counted::Push, 1), (Counted::Push, 1)] {
            in_flight.begin(what, host);
        }
        assert!(in_flight.has_tags() && in_flight.has(tag) && !in_flight.has(Counted::Tag { buffer: 0 }));
        in_flight.end(tag, 0);
        in_flight.end(Counted::Push, 1);
        assert_eq!(in_flight.hosts(tag).collect::<Vec<_>>(), [2]);
        assert_eq!(in_flight.hosts(Counted::Push).collect::<Vec<_>>(), [1]);
        in_flight.end(tag, 2);
        in_flight.end(Counted::Push, 1);
        assert!(in_flight.is_empty() && !in_flight.has_tags());
    }
}
