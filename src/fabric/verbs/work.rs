//! What a completion says of the work that it completes: the identifier of a work request.
#![forbid(unsafe_code)]

/// The purpose of a work request, with what its completion must tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkRequest {
    /// A receive, by its number.
    Receive { number: usize },
    /// An operation to a peer, by its number, and the requests posted to that peer until then.
    Operation { number: usize, peer: u32, posted: u16 },
    /// An injected message to a peer, or a part of an operation but the last one, and the requests
    /// posted to that peer until then.
    Unsignaled { peer: u32, posted: u16 },
    /// A hello that was sent, by its buffer.
    HelloSent { buffer: usize },
    /// A hello that came, by its buffer.
    Hello { buffer: usize },
}

const KIND: u32 = 56;
const PEER: u32 = 40;
const POSTED: u32 = 24;

impl WorkRequest {
    pub(super) fn encode(self) -> u64 {
        let word = |kind: u64, peer: u32, posted: u16, number: usize| {
            debug_assert!(number < 1 << POSTED && peer < 1 << (KIND - PEER));
            kind << KIND | u64::from(peer) << PEER | u64::from(posted) << POSTED | number as u64
        };
        match self {
            WorkRequest::Receive { number } => word(1, 0, 0, number),
            WorkRequest::Operation { number, peer, posted } => word(2, peer, posted, number),
            WorkRequest::Unsignaled { peer, posted } => word(3, peer, posted, 0),
            WorkRequest::HelloSent { buffer } => word(4, 0, 0, buffer),
            WorkRequest::Hello { buffer } => word(5, 0, 0, buffer),
        }
    }

    /// `None` for an identifier that this rank has not made.
    pub(super) fn decode(word: u64) -> Option<Self> {
        let (peer, posted) = ((word >> PEER) as u32 & 0xFFFF, (word >> POSTED) as u16);
        let number = (word & ((1 << POSTED) - 1)) as usize;
        Some(match word >> KIND {
            1 => WorkRequest::Receive { number },
            2 => WorkRequest::Operation { number, peer, posted },
            3 => WorkRequest::Unsignaled { peer, posted },
            4 => WorkRequest::HelloSent { buffer: number },
            5 => WorkRequest::Hello { buffer: number },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_survives_encoding() {
        for (number, peer, posted) in [(0, 0, 0), (0xFF_FFFF, 0xFFFF, u16::MAX), (5, 1, 2)] {
            for work in [
                WorkRequest::Receive { number },
                WorkRequest::Operation { number, peer, posted },
                WorkRequest::Unsignaled { peer, posted },
                WorkRequest::HelloSent { buffer: number },
                WorkRequest::Hello { buffer: number },
            ] {
                assert_eq!(WorkRequest::decode(work.encode()), Some(work));
            }
        }
        assert_eq!([0, 6 << KIND, u64::MAX].map(WorkRequest::decode), [None; 3]);
    }
}
