//! Which processes came to a meeting that are no ranks, for error texts.
#![forbid(unsafe_code)]

use std::fmt;

/// Most places that are told apart.
const MOST: usize = 64;

/// Most places that a text names.
const NAMED: usize = 3;

/// By where they came from: how many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Strangers {
    places: Vec<(String, u64)>,
    /// From other places.
    elsewhere: u64,
}

impl Strangers {
    pub(super) fn came(&mut self, from: &str) {
        let has_room = self.places.len() < MOST;
        match self.places.iter_mut().find(|(place, _)| place == from) {
            Some((_, count)) => *count += 1,
            None if has_room => self.places.push((from.to_owned(), 1)),
            None => self.elsewhere += 1,
        }
    }
}

/// Nothing if there were none; else it continues a sentence.
impl fmt::Display for Strangers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut places: Vec<_> = self.places.iter().collect();
        places.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let all = self.elsewhere + places.iter().map(|(_, count)| count).sum::<u64>();
        let text = match all {
            0 => return Ok(()),
            1 => "a process came that did not know the job's secret, EARLYBIRD_SECRET, or was no rank at all",
            _ => "processes came that did not know the job's secret, EARLYBIRD_SECRET, or were no ranks at all",
        };
        let number = if all == 1 { String::new() } else { format!("{all} ") };
        write!(f, " ({number}{text}: ")?;
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
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_where_most_came_from() {
        let mut strangers = Strangers::default();
        assert_eq!(strangers.to_string(), "");
        strangers.came("10.0.0.7");
        let one = " (a process came that did not know the job's secret, EARLYBIRD_SECRET, or was no rank at all: from 10.0.0.7)";
        assert_eq!(strangers.to_string(), one);
        for place in 0..100 {
            (0..=place % 3).for_each(|_| strangers.came(&format!("10.0.1.{place}")));
        }
        strangers.came("10.0.1.2");
        let text = strangers.to_string();
        assert!(text.starts_with(" (201 processes came"), "{text}");
        assert!(text.contains(": 4 from 10.0.1.2, 3 from 10.0.1.5, 3 from 10.0.1.8, 191 from elsewhere)"), "{text}");
    }
}
