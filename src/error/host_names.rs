//! The names of hosts, for messages to people.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

/// The name of the host of each rank of a world, if the ranks are on hosts of different names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames(Option<Arc<Named>>);

#[derive(Debug, PartialEq, Eq)]
struct Named {
    /// By rank; none if all are the same.
    names: Vec<String>,
    /// The ranks of a world that these are, if they are some of them and count as 0, 1, …
    ranks: Vec<u32>,
}

impl HostNames {
    /// Takes the hosts of all ranks, in rank order.
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self::of_members(names, &[])
    }

    /// Takes the hosts of some ranks of a world, which count as 0, 1, … here and are these there.
    pub(crate) fn of_members(mut names: Vec<String>, ranks: &[u32]) -> Self {
        if names.iter().all(|name| *name == names[0]) {
            names.clear();
        }
        let says_something = !names.is_empty() || !ranks.is_empty();
        HostNames(says_something.then(|| Arc::new(Named { names, ranks: ranks.to_vec() })))
    }

    /// Returns the host of a rank, if messages must name it.
    #[must_use]
    pub fn get(&self, rank: u32) -> Option<&str> {
        Some(self.0.as_deref()?.names.get(rank as usize)?.as_str()).filter(|name| !name.is_empty())
    }

    /// Prints a rank with its host: `rank 3`, or `rank 3 on node07`.
    pub(crate) fn rank(&self, rank: u32) -> impl fmt::Display {
        fmt::from_fn(move |f| write!(f, "rank {}", self.with_host(rank)))
    }

    /// Prints several ranks with their hosts; a long list only in part.
    pub(crate) fn ranks<'a>(&'a self, ranks: &'a [u32]) -> impl fmt::Display + 'a {
        const SHOWN: usize = 8;
        fmt::from_fn(move |f| {
            let named: Vec<String> = ranks.iter().take(SHOWN).map(|&rank| self.with_host(rank)).collect();
            match ranks.len() {
                0 => f.write_str("the outcome, for which all ranks have arrived"),
                1 => write!(f, "rank {}", named[0]),
                n if n > SHOWN => write!(f, "ranks {} and {} more", named.join(", "), n - SHOWN),
                _ => write!(f, "ranks {}", named.join(", ")),
            }
        })
    }

    fn with_host(&self, rank: u32) -> String {
        let number = self.0.as_deref().and_then(|named| named.ranks.get(rank as usize)).unwrap_or(&rank);
        self.get(rank).map_or_else(|| number.to_string(), |host| format!("{number} on {host}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_where_they_differ() {
        let named = |names: &[&str]| HostNames::new(names.iter().map(|&name| name.to_owned()).collect());
        let ranks = [1, 2, 7];
        for one in [HostNames::default(), named(&["a", "a", "a"])] {
            assert_eq!(one.rank(2).to_string(), "rank 2");
            assert_eq!(one.ranks(&ranks).to_string(), "ranks 1, 2, 7");
        }
        let several = named(&["a", "", "b"]);
        assert_eq!(several.rank(0).to_string(), "rank 0 on a");
        assert_eq!(several.rank(1).to_string(), "rank 1");
        assert_eq!(several.ranks(&ranks).to_string(), "ranks 1, 2 on b, 7");
        assert_eq!(several.ranks(&[2]).to_string(), "rank 2 on b");
        let members = HostNames::of_members(["a", "", "b"].map(str::to_owned).to_vec(), &[0, 4, 9]);
        assert_eq!(members.ranks(&[1, 2]).to_string(), "ranks 4, 9 on b");
    }
}
