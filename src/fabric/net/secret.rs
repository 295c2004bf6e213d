//! The secret that the ranks of a job share.
//!
//! It is derived from the secret of the meeting, which no rank sends, and from what the ranks tell there, which
//! contains 128 random bits of each. So a process that forwards the words of a meeting does not learn it. What is
//! derived from it crosses the network in the clear, in every message: it stops strangers that guess, not those that
//! listen. The key itself never crosses the network, so it also seals what ranks tell each other while a stranger may
//! stand where a rank should.
#![forbid(unsafe_code)]

use crate::seal::{SEAL, Secret};

/// The bytes of a key.
pub(crate) const KEY: usize = 16;

/// The secret of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobSecret {
    key: [u8; KEY],
    /// The word in the header of messages until all ranks have joined. A stranger may learn it, which tells it nothing
    /// about the other words.
    pub(in crate::internals::fabric) joining: u64,
}

/// What one rank shows to another one, and to no third rank. A process that has taken the place of a dead rank hears
/// what is meant for that rank, and cannot send anything with it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::internals::fabric) struct Words {
    /// The word in the header of each message once all ranks have joined. No process but the ranks has heard it before.
    pub(in crate::internals::fabric) word: u64,
    /// The tag in immediate data, where that has bytes for it. A stranger that finds these few bits by trying learns
    /// nothing about the word.
    pub(in crate::internals::fabric) tag: u32,
}

impl JobSecret {
    /// Returns the secret of ranks that share the secret of a meeting and have told each other these introductions
    /// there.
    pub(in crate::internals::fabric) fn agreed(meeting: &Secret, introductions: &[Vec<u8>]) -> Self {
        let told: Vec<&[u8]> = introductions.iter().map(Vec::as_slice).collect();
        JobSecret::of(meeting.derive(&[&[&b"job"[..]], &told[..]].concat()))
    }

    /// Creates the secret with this key.
    fn of(key: [u8; KEY]) -> Self {
        let secret = Secret::of(&key);
        JobSecret { key, joining: u64::from_le_bytes(secret.derive(&[b"joining"])) }
    }

    /// Returns what one rank shows to another one.
    pub(in crate::internals::fabric) fn words(&self, from: u32, to: u32) -> Words {
        let (secret, from, to) = (self.secret(), from.to_le_bytes(), to.to_le_bytes());
        Words {
            word: u64::from_le_bytes(secret.derive(&[b"word", &from, &to])),
            tag: u32::from_le_bytes(secret.derive(&[b"tag", &from, &to])),
        }
    }

    /// Returns a secret of some of the ranks, derived from what they have told each other.
    pub(super) fn secret_of(&self, told: &[u8]) -> Vec<u8> {
        self.secret().seal(&[b"of some ranks", told]).to_vec()
    }

    /// Returns the secret that seals with the key.
    pub(super) fn secret(&self) -> Secret {
        Secret::of(&self.key)
    }

    /// Returns bytes that a rank tells another one, with a seal for this use.
    pub(in crate::internals::fabric) fn sealed(&self, what: &str, (from, to): (u32, u32), bytes: &[u8]) -> Vec<u8> {
        let ends = [from.to_le_bytes(), to.to_le_bytes()].concat();
        [bytes, &self.secret().seal(&[what.as_bytes(), &ends, bytes])].concat()
    }

    /// Returns the bytes without the seal; `None` if the seal is wrong.
    pub(in crate::internals::fabric) fn opened<'a>(
        &self,
        what: &str,
        (from, to): (u32, u32),
        sealed: &'a [u8],
    ) -> Option<&'a [u8]> {
        let (bytes, seal) = sealed.split_last_chunk::<SEAL>()?;
        let ends = [from.to_le_bytes(), to.to_le_bytes()].concat();
        self.secret().is_sealed(&[what.as_bytes(), &ends, bytes], seal).then_some(bytes)
    }
}

// Secrets are not printed.
impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Words")
    }
}

impl std::fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_rank_has_sealed_for_this_one_is_opened() {
        let secret = JobSecret::of([7; KEY]);
        let sealed = secret.sealed("use", (1, 2), b"told");
        assert_eq!(secret.opened("use", (1, 2), &sealed), Some(&b"told"[..]));
        for (what, ends) in [("other", (1, 2)), ("use", (2, 1)), ("use", (1, 3)), ("use", (0, 2))] {
            assert_eq!(secret.opened(what, ends, &sealed), None);
        }
        assert_eq!(JobSecret::of([8; KEY]).opened("use", (1, 2), &sealed), None);
        assert_eq!(secret.opened("use", (1, 2), &sealed[1..]), None);
        assert_eq!(secret.opened("use", (1, 2), b"told"), None);
    }

    /// All that crosses the network at a meeting are introductions.
    #[test]
    fn who_has_heard_a_meeting_and_not_its_secret_does_not_know_the_key() {
        let agreed = |secret: &[u8], told: &[&[u8]]| {
            JobSecret::agreed(&Secret::of(secret), &told.iter().map(|told| told.to_vec()).collect::<Vec<_>>())
        };
        let ours = agreed(b"secret", &[b"zero", b"one"]);
        assert_eq!(ours, agreed(b"secret", &[b"zero", b"one"]));
        for other in [
            agreed(b"", &[b"zero", b"one"]),
            agreed(b"secret", &[b"zero", b"two"]),
            agreed(b"secret", &[b"zer", b"oone"]),
            agreed(b"secret", &[b"zero"]),
            JobSecret::of(*b"zerozerozerozero"),
        ] {
            assert_ne!(ours, other);
            assert_ne!(ours.words(1, 0).word, other.words(1, 0).word);
        }
    }

    #[test]
    fn each_rank_shows_other_words_to_each() {
        let secret = JobSecret::of([7; KEY]);
        let words = secret.words(1, 2);
        let others = [secret.words(2, 1), secret.words(1, 3), secret.words(3, 2), JobSecret::of([8; KEY]).words(1, 2)];
        assert!(others.iter().all(|other| other.word != words.word && other.tag != words.tag));
        assert_ne!(words.word, secret.joining);
    }
}
