//! What came from processes that are no ranks of a world, for the texts of errors.
#![forbid(unsafe_code)]

use std::fmt;

/// Most places that are told apart.
const MOST: usize = 64;

/// Most places that a text names.
const NAMED: usize = 3;

/// How many came, by where they came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    places: Vec<(String, u64)>,
    /// From other places.
    elsewhere: u64,
}

impl Places {
    pub(crate) fn came(&mut self, from: &str) {
        let has_room = self.places.len() < MOST;
        match self.places.iter_mut().find(|(place, _)| place == from) {
            Some((_, count)) => *count += 1,
            None if has_room => self.places.push((from.to_owned(), 1)),
            None => self.elsewhere += 1,
        }
    }

    pub(crate) fn all(&self) -> u64 {
        self.elsewhere + self.places.iter().map(|(_, count)| count).sum::<u64>()
    }
}

/// The places that most came from, with their counts, such as `3 from 10.0.0.7, 1 from elsewhere`.
impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut places: Vec<_> = self.places.iter().collect();
        places.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let all = self.all();
        for (index, (place, count)) in places.iter().take(NAMED).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match all {
                1 => write!(f, "from {place}")?,
                _ => write!(f, "{separator}{count} from {place}")?,
            }
        }
        let named: u64 = places.iter().take(NAMED).map(|(_, count)| count).sum();
        if all > named {
            write!(f, ", {} from elsewhere", all - named)?;
        }
        Ok(())
    }
}

/// Processes that came to a meeting and are no ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visitors(Places);

impl Visitors {
    pub(crate) fn came(&mut self, from: &str) {
        self.0.came(from);
    }
}

/// Nothing if there were none; else it continues a sentence.
impl fmt::Display for Visitors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Visitors(places) = self;
        match places.all() {
            0 => Ok(()),
            1 => write!(
                f,
                " (a process came that did not know the job's secret, EARLYBIRD_SECRET, or was no rank at all: {places})"
            ),
            all => write!(
                f,
                " ({all} processes came that did not know the job's secret, EARLYBIRD_SECRET, or were no ranks at all: \
                 {places})"
            ),
        }
    }
}

/// What came to a rank from processes that are no ranks of its world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strangers {
    /// Messages and writes without the secret.
    pub(crate) messages: u64,
    /// Connections that were cut.
    pub(crate) connections: Places,
}

/// Nothing if there was nothing; else it continues a sentence.
impl fmt::Display for Strangers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Strangers { messages, connections } = self;
        match messages {
            0 => {}
            1 => f.write_str("; 1 message was dropped here that was not of this job")?,
            _ => write!(f, "; {messages} messages were dropped here that were not of this job")?,
        }
        match connections.all() {
            0 => Ok(()),
            1 => write!(f, "; 1 connection was cut here that no rank of this job had made: {connections}"),
            all => write!(f, "; {all} connections were cut here that no rank of this job had made: {connections}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_where_most_came_from() {
        let mut visitors = Visitors::default();
        assert_eq!(visitors.to_string(), "");
        visitors.came("10.0.0.7");
        let one = " (a process came that did not know the job's secret, EARLYBIRD_SECRET, or was no rank at all: from 10.0.0.7)";
        assert_eq!(visitors.to_string(), one);
        for place in 0..100 {
            (0..=place % 3).for_each(|_| visitors.came(&format!("10.0.1.{place}")));
        }
        visitors.came("10.0.1.2");
        let text = visitors.to_string();
        assert!(text.starts_with(" (201 processes came"), "{text}");
        assert!(text.contains(": 4 from 10.0.1.2, 3 from 10.0.1.5, 3 from 10.0.1.8, 191 from elsewhere)"), "{text}");
    }

    #[test]
    fn messages_and_connections_are_told() {
        let mut strangers = Strangers::default();
        assert_eq!(strangers.to_string(), "");
        strangers.messages = 3;
        strangers.connections.came("10.0.0.7");
        let told = "; 3 messages were dropped here that were not of this job; 1 connection was cut here that no rank of this \
                    job had made: from 10.0.0.7";
        assert_eq!(strangers.to_string(), told);
    }
}
