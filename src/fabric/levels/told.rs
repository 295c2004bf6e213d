//! What agents tell each other and their hosts about an exchange.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};

/// What an agent tells about an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// What ranks gave.
    All(Vec<Vec<u8>>),
    /// Ranks that did not come.
    Missing(Vec<u32>),
    /// A rank that has left.
    Left(u32),
}

impl Told {
    /// What to tell others of a result; `None` for a failure of the world, which they learn by themselves.
    pub(super) fn of(given: &Result<Vec<Vec<u8>>>) -> Option<Self> {
        match given {
            Ok(given) => Some(Told::All(given.clone())),
            Err(Error::Timeout { missing, .. }) => Some(Told::Missing(missing.0.clone())),
            Err(Error::PeerLeft { peer, .. }) => Some(Told::Left(*peer)),
            Err(_) => None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let words = |ranks: &[u32]| ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect::<Vec<u8>>();
        let (kind, rest) = match self {
            // Each gave at most [`MOST_EXCHANGED`] bytes.
            Told::All(given) => {
                (0, given.iter().flat_map(|own| [&(own.len() as u16).to_le_bytes()[..], own].concat()).collect())
            }
            Told::Missing(ranks) => (1, words(ranks)),
            Told::Left(peer) => (2, words(&[*peer])),
        };
        [vec![kind], rest].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        if *kind == 0 {
            let mut given = Vec::new();
            while let Some((length, after)) = rest.split_first_chunk() {
                let (own, after) = after.split_at_checked(u16::from_le_bytes(*length) as usize)?;
                given.push(own.to_vec());
                rest = after;
            }
            return rest.is_empty().then_some(Told::All(given));
        }
        let (words, rest) = rest.as_chunks();
        let ranks: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
        match (*kind, &ranks[..], rest) {
            (1, _, []) => Some(Told::Missing(ranks)),
            (2, &[peer], []) => Some(Told::Left(peer)),
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_agents_tell_survives_the_way() {
        for told in [
            Told::All(vec![vec![1, 2], vec![], vec![3]]),
            Told::All(Vec::new()),
            Told::Missing(vec![3, u32::MAX]),
            Told::Left(7),
        ] {
            let bytes = told.encode();
            assert_eq!(Told::decode(&bytes), Some(told));
            assert_eq!(Told::decode(&[&bytes[..], &[9]].concat()), None);
        }
        assert_eq!(Told::decode(&[]), None);
    }
}
