//! The secret that the ranks of a job share.
//!
//! It follows from the secret of the meeting, which no rank sends, and from what the ranks tell there, which has 128 random bits
//! of each: so a process that passes the words of a meeting on does not learn it. What follows from it crosses the network
//! in the clear, in every message: it stops strangers that guess, not those that listen. The key does not, so it also
//! seals what ranks tell each other while a stranger may stand where a rank should.
#![forbid(unsafe_code)]

use crate::seal::{SEAL, Secret};

/// Bytes of a key.
pub(crate) const KEY: usize = 16;

/// The secret of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobSecret {
    key: [u8; KEY],
    /// Travels in the header of messages until all ranks have joined. A stranger may learn it, and nothing of the words.
    pub(in crate::internals::fabric) joining: u64,
}

/// What one rank shows to another one, and to no third: a process that has taken the place of a rank that died hears what is
/// meant for that rank, and can say nothing with it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::internals::fabric) struct Words {
    /// Travels in the header of each message once all ranks have joined. No process but the ranks has heard it before.
    pub(in crate::internals::fabric) word: u64,
    /// Travels in immediate data, where that has bytes for it. A stranger that finds these few bits by trying learns nothing
    /// of the word.
    pub(in crate::internals::fabric) tag: u32,
}

impl JobSecret {
    /// That of ranks which share the secret of a meeting and have told each other this there.
    pub(in crate::internals::fabric) fn agreed(meeting: &Secret, introductions: &[Vec<u8>]) -> Self {
        let told: Vec<&[u8]> = introductions.iter().map(Vec::as_slice).collect();
        JobSecret::of(meeting.derive(&[&[&b"job"[..]], &told[..]].concat()))
    }

    /// The secret that is a key.
    fn of(key: [u8; KEY]) -> Self {
        let secret = Secret::of(&key);
        JobSecret { key, joining: u64::from_le_bytes(secret.derive(&[b"joining"])) }
    }

    /// What one rank shows to another one.
    pub(in crate::internals::fabric) fn words(&self, from: u32, to: u32) -> Words {
        let (secret, from, to) = (self.secret(), from.to_le_bytes(), to.to_le_bytes());
        Words {
            word: u64::from_le_bytes(secret.derive(&[b"word", &from, &to])),
            tag: u32::from_le_bytes(secret.derive(&[b"tag", &from, &to])),
        }
    }

    /// The secret of some of the ranks, which they have told each other so much of.
    pub(super) fn secret_of(&self, told: &[u8]) -> Vec<u8> {
        self.secret().seal(&[b"of some ranks", told]).to_vec()
    }

    /// What seals with the key.
    pub(super) fn secret(&self) -> Secret {
        Secret::of(&self.key)
    }

    /// Bytes that a rank tells another one, with a seal for this use.
    pub(in crate::internals::fabric) fn sealed(&self, what: &str, (from, to): (u32, u32), bytes: &[u8]) -> Vec<u8> {
        let ends = [from.to_le_bytes(), to.to_le_bytes()].concat();
        [bytes, &self.secret().seal(&[what.as_bytes(), &ends, bytes])].concat()
    }

    /// The bytes without the seal; `None` if it is another one.
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

// What is secret is not printed.
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
