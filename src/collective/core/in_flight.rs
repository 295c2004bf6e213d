//! Operations that a rank has begun and that are not known to be over. Until then what they carry may still be read
//! where it comes from, and written where it goes to, also by one that has landed before.

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

    /// The hosts that owe an answer to something of a kind.
    pub(super) fn owing(&self, what: Counted) -> impl Iterator<Item = u32> {
        let owes = move |&(_, row): &(u32, &[u32; KINDS])| row[what.index()] > 0;
        (0..).zip(&self.towards).filter(owes).map(|(host, _)| host)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_host_owes_what_was_sent_to_it() {
        let mut in_flight = InFlight::new(3);
        let tag = Counted::Tag { buffer: 2 };
        for (what, host) in [(tag, 0), (tag, 2), (Counted::Push, 1), (Counted::Push, 1)] {
            in_flight.begin(what, host);
        }
        assert!(in_flight.has_tags() && in_flight.has(tag) && !in_flight.has(Counted::Tag { buffer: 0 }));
        in_flight.end(tag, 0);
        in_flight.end(Counted::Push, 1);
        assert_eq!(in_flight.owing(tag).collect::<Vec<_>>(), [2]);
        assert_eq!(in_flight.owing(Counted::Push).collect::<Vec<_>>(), [1]);
        in_flight.end(tag, 2);
        in_flight.end(Counted::Push, 1);
        assert!(in_flight.is_empty() && !in_flight.has_tags());
    }
}
