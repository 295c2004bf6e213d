//! Seals, which tell a job's own messages from those of strangers.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a seal.
pub(crate) const SEAL: usize = 32;

/// The secret that only the ranks of one job know.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

impl Secret {
    /// The secret that the user gave; without one it follows from the job's name, which tells jobs
    /// apart but keeps out no process that knows the name.
    pub(crate) fn new(given: Option<&str>, job: &str) -> Self {
        let (kind, text) = given.map_or(("job", job), |secret| ("secret", secret));
        Self::of(format!("earlybird {kind} {text}").as_bytes())
    }

    /// The secret that is this key.
    pub(crate) fn of(key: &[u8]) -> Self {
        // HMAC takes keys of any length, so this cannot fail; and if it could, a different key
        // would only keep this process out.
        let keyed = |key: &[u8]| <Hmac<Sha256> as KeyInit>::new_from_slice(key);
        let mac = keyed(key).or_else(|_| keyed(b"no key"));
        match mac {
            Ok(mac) => Secret(mac),
            Err(_) => unreachable!("HMAC takes keys of any length"),
        }
    }

    fn over(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in parts {
            // The length goes first, so that bytes cannot move from one part to the next.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// The seal of some parts.
    pub(crate) fn seal(&self, parts: &[&[u8]]) -> [u8; SEAL] {
        self.over(parts).finalize().into_bytes().into()
    }

    /// The first bytes of the seal of some parts: what follows from the secret for a use, and tells nothing of it.
    pub(crate) fn derive<const N: usize>(&self, parts: &[&[u8]]) -> [u8; N] {
        const { assert!(N <= SEAL) };
        let seal = self.seal(parts);
        std::array::from_fn(|index| seal[index])
    }

    /// Whether a seal is that of these parts, in constant time.
    pub(crate) fn is_sealed(&self, parts: &[&[u8]], seal: &[u8]) -> bool {
        self.over(parts).verify_slice(seal).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_depend_on_everything() {
        let secret = Secret::new(Some("a"), "job");
        let seal = secret.seal(&[b"one", b"two"]);
        assert!(secret.is_sealed(&[b"one", b"two"], &seal));
        for parts in [&[&b"one"[..], b"twO"][..], &[b"onet", b"wo"], &[b"one"], &[b"two", b"one"]] {
            assert!(!secret.is_sealed(parts, &seal), "{parts:?}");
        }
        for other in [Secret::new(Some("b"), "job"), Secret::new(None, "a"), Secret::new(None, "job")] {
            assert!(!other.is_sealed(&[b"one", b"two"], &seal));
        }
        assert!(Secret::new(None, "job").is_sealed(&[], &Secret::new(None, "job").seal(&[])));
        assert!(!secret.is_sealed(&[b"one", b"two"], &seal[..31]), "a part of a seal is none");
    }
}
