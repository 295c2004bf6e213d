//! What is said at a store, as bytes.

use super::seal::{SEAL, Secret};
use super::{MOST, MOST_RANKS};
use crate::fault::Fault;

const MAGIC: u32 = 0x4542_5354;
const VERSION: u32 = 1;

/// Bytes of a number that is drawn for one conversation.
pub(crate) const NONCE: usize = 16;

/// Bytes of what rank 0 says first.
pub(crate) const GREETING: usize = 8 + NONCE;

/// Bytes of how a guest begins.
const HELLO: usize = 16 + NONCE;

/// Longest introduction of a guest.
pub(crate) const MOST_HELLO: usize = HELLO + MOST + SEAL;

/// Bytes of how rank 0's answer begins.
pub(crate) const HEADING: usize = 12;

type Nonce = [u8; NONCE];

fn words<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let (words, _) = bytes.as_chunks::<4>();
    Some(
        std::array::from_fn(|index| words.get(index).map(|word| u32::from_le_bytes(*word)))
            .map(Option::unwrap_or_default),
    )
    .filter(|_| words.len() >= N)
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Rank 0 to whoever comes.
pub(crate) fn greeting(nonce: &Nonce) -> Vec<u8> {
    [&bytes(&[MAGIC, VERSION])[..], nonce].concat()
}

/// Nothing if another program speaks.
pub(crate) fn greeted(bytes: &[u8; GREETING]) -> Option<Nonce> {
    let greets = words(bytes)? == [MAGIC, VERSION];
    greets.then_some(bytes.last_chunk().copied()).flatten()
}

/// How a guest introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) nonce: Nonce,
    pub(crate) data: Vec<u8>,
}

/// What the beginning of an introduction says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// There is more to come.
    Incomplete,
    /// All of it.
    Hello(Hello),
    /// Somebody who does not know the secret.
    Stranger,
}

impl Hello {
    /// For whoever has greeted with `greeted`.
    pub(crate) fn encode(&self, greeted: &Nonce, secret: &Secret) -> Vec<u8> {
        let Hello { rank, ranks, nonce, data } = self;
        let head = [&bytes(&[MAGIC, *rank, *ranks, data.len() as u32])[..], nonce].concat();
        let seal = secret.seal(&[b"hello", greeted, &head, data]);
        [&head[..], data, &seal].concat()
    }

    /// As far as it has come.
    pub(crate) fn decode(bytes: &[u8], greeted: &Nonce, secret: &Secret) -> Parsed {
        let Some((head, rest)) = bytes.split_first_chunk::<HELLO>() else { return Parsed::Incomplete };
        let Some([MAGIC, rank, ranks, len]) = words(head) else { return Parsed::Stranger };
        let len = len as usize;
        if len > MOST {
            return Parsed::Stranger;
        }
        let (Some(data), Some(seal)) = (rest.get(..len), rest.get(len..len + SEAL)) else { return Parsed::Incomplete };
        if !secret.is_sealed(&[b"hello", greeted, head, data], seal) && !Fault::TrustAnyGuest.is_chosen() {
            return Parsed::Stranger;
        }
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&head[HELLO - NONCE..]);
        Parsed::Hello(Hello { rank, ranks, nonce, data: data.to_vec() })
    }
}

/// What all ranks gave, or why there is no world; for the guest that drew a nonce.
pub(crate) fn verdict(verdict: &Result<Vec<u8>, String>, nonce: &Nonce, secret: &Secret) -> Vec<u8> {
    let (refused, body) = match verdict {
        Ok(world) => (0, &world[..]),
        Err(problem) => (1, problem.as_bytes()),
    };
    let head = bytes(&[MAGIC, refused, body.len() as u32]);
    let seal = secret.seal(&[b"verdict", nonce, &head, body]);
    [&head[..], body, &seal].concat()
}

/// Bytes that follow the heading of a verdict: nothing if it is none.
pub(crate) fn verdict_len(heading: &[u8; HEADING], ranks: u32) -> Option<usize> {
    let [magic, _, len] = words(heading)?;
    let most = ranks.min(MOST_RANKS) as usize * (4 + MOST);
    (magic == MAGIC && len as usize <= most).then_some(len as usize + SEAL)
}

/// The verdict behind a heading; nothing if the seal is wrong.
pub(crate) fn judged(
    heading: &[u8; HEADING],
    rest: &[u8],
    nonce: &Nonce,
    secret: &Secret,
) -> Option<Result<Vec<u8>, String>> {
    let (body, seal) = rest.split_at_checked(rest.len().checked_sub(SEAL)?)?;
    let is_sealed = secret.is_sealed(&[b"verdict", nonce, heading, body], seal);
    (is_sealed || Fault::TrustAnyAnswer.is_chosen()).then_some(())?;
    let [_, refused, _] = words(heading)?;
    Some(match refused {
        0 => Ok(body.to_vec()),
        _ => Err(String::from_utf8_lossy(body).into_owned()),
    })
}

/// What all ranks gave, one after the other.
pub(crate) fn encode_world(given: &[Vec<u8>]) -> Vec<u8> {
    given.iter().flat_map(|data| [&(data.len() as u32).to_le_bytes()[..], data].concat()).collect()
}

/// Nothing if they are not as many as there are ranks.
pub(crate) fn decode_world(bytes: &[u8], ranks: u32) -> Option<Vec<Vec<u8>>> {
    let mut rest = bytes;
    let mut next = || -> Option<Vec<u8>> {
        let (len, after) = rest.split_first_chunk()?;
        let (data, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        rest = after;
        Some(data.to_vec())
    };
    let given: Option<Vec<_>> = (0..ranks).map(|_| next()).collect();
    given.filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation() {
        let (secret, other) = (Secret::new(Some("s"), ""), Secret::new(Some("t"), ""));
        let (theirs, mine) = ([7; NONCE], [8; NONCE]);
        let greeting = greeting(&theirs);
        assert_eq!(greeted(greeting.first_chunk().unwrap()), Some(theirs));
        assert_eq!(greeted(b"HTTP/1.1 400 Bad Request"), None);

        let hello = Hello { rank: 3, ranks: 4, nonce: mine, data: b"address".to_vec() };
        let said = hello.encode(&theirs, &secret);
        (0..said.len()).for_each(|len| assert_eq!(Hello::decode(&said[..len], &theirs, &secret), Parsed::Incomplete));
        assert_eq!(Hello::decode(&said, &theirs, &secret), Parsed::Hello(hello));
        assert_eq!(Hello::decode(&said, &theirs, &other), Parsed::Stranger);
        assert_eq!(Hello::decode(&said, &mine, &secret), Parsed::Stranger, "said in another conversation");

        for decided in [Ok(encode_world(&[vec![1], vec![], vec![2, 3]])), Err("no".to_owned())] {
            let said = verdict(&decided, &mine, &secret);
            let (heading, rest) = said.split_first_chunk::<HEADING>().unwrap();
            assert_eq!(verdict_len(heading, 3), Some(rest.len()));
            assert_eq!(judged(heading, rest, &mine, &secret), Some(decided));
            assert_eq!(judged(heading, rest, &mine, &other), None);
            assert_eq!(judged(heading, rest, &theirs, &secret), None);
        }
        assert_eq!(decode_world(&encode_world(&[vec![1], vec![]]), 2), Some(vec![vec![1], vec![]]));
        assert_eq!(decode_world(&encode_world(&[vec![1], vec![]]), 1), None);
    }
}
