//! The encoding of messages at a store.

use super::{MOST, MOST_RANKS};
use crate::error::text_of;
use crate::fault::Fault;
use crate::seal::{SEAL, Secret};

const MAGIC: u32 = 0x4542_5354;
const VERSION: u32 = 2;

/// The bytes of a nonce, which is drawn for one conversation.
pub(crate) const NONCE: usize = 16;

/// The bytes of rank 0's greeting.
pub(crate) const GREETING: usize = 8 + NONCE;

/// The bytes of the head of a guest's introduction.
const HELLO: usize = 16 + NONCE;

/// The maximum length of a guest's introduction.
pub(crate) const MOST_HELLO: usize = HELLO + MOST + SEAL;

/// The bytes of the heading of rank 0's answer.
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

/// Returns the greeting that rank 0 sends to a process that connects.
pub(crate) fn greeting(nonce: &Nonce) -> Vec<u8> {
    [&bytes(&[MAGIC, VERSION])[..], nonce].concat()
}

/// Returns the nonce of a greeting; `None` if another program sent the bytes.
pub(crate) fn greeted(bytes: &[u8; GREETING]) -> Option<Nonce> {
    let greets = words(bytes)? == [MAGIC, VERSION];
    greets.then_some(bytes.last_chunk().copied()).flatten()
}

/// A guest's introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) nonce: Nonce,
    pub(crate) data: Vec<u8>,
}

/// The result of parsing the bytes of an introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// More bytes are needed.
    Incomplete,
    /// The introduction is complete.
    Hello(Hello),
    /// The sender does not know the secret.
    Stranger,
}

impl Hello {
    /// Encodes the introduction for the rank 0 that has greeted with `greeted`.
    pub(crate) fn encode(&self, greeted: &Nonce, secret: &Secret) -> Vec<u8> {
        let Hello { rank, ranks, nonce, data } = self;
        let head = [&bytes(&[MAGIC, *rank, *ranks, data.len() as u32])[..], nonce].concat();
        let seal = secret.seal(&[b"hello", greeted, &head, data]);
        [&head[..], data, &seal].concat()
    }

    /// Parses what has arrived.
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

/// Encodes what all ranks gave, or why there is no world, for the guest that drew `nonce`.
pub(crate) fn verdict(verdict: &Result<Vec<u8>, String>, nonce: &Nonce, secret: &Secret) -> Vec<u8> {
    let (refused, body) = match verdict {
        Ok(world) => (0, &world[..]),
        Err(problem) => (1, problem.as_bytes()),
    };
    let head = bytes(&[MAGIC, refused, body.len() as u32]);
    let seal = secret.seal(&[b"verdict", nonce, &head, body]);
    [&head[..], body, &seal].concat()
}

/// Returns what a process gets that does not know the secret. It has no seal, because a stranger could test guessed
/// secrets against one.
pub(crate) fn turned_away() -> Vec<u8> {
    [&bytes(&[MAGIC, 1, 0])[..], &[0; SEAL]].concat()
}

/// Returns the number of bytes after the heading of a verdict; `None` if it is not such a heading.
pub(crate) fn verdict_len(heading: &[u8; HEADING], ranks: u32) -> Option<usize> {
    let [magic, _, len] = words(heading)?;
    let most = ranks.min(MOST_RANKS) as usize * (4 + MOST);
    (magic == MAGIC && len as usize <= most).then_some(len as usize + SEAL)
}

/// Returns the verdict after a heading; `None` if the seal is wrong.
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
        _ => Err(text_of(body)),
    })
}

/// Encodes what all ranks gave, in rank order.
pub(crate) fn encode_world(given: &[Vec<u8>]) -> Vec<u8> {
    given.iter().flat_map(|data| [&(data.len() as u32).to_le_bytes()[..], data].concat()).collect()
}

/// Decodes what all ranks gave; `None` if there is not one entry for each rank.
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
        let said = turned_away();
        let (heading, rest) = said.split_first_chunk::<HEADING>().unwrap();
        assert_eq!((verdict_len(heading, 3), judged(heading, rest, &mine, &secret)), (Some(rest.len()), None));
        assert_eq!(decode_world(&encode_world(&[vec![1], vec![]]), 2), Some(vec![vec![1], vec![]]));
        assert_eq!(decode_world(&encode_world(&[vec![1], vec![]]), 1), None);
    }
}
