//! What the other ranks must know of a rank to connect to it.
#![forbid(unsafe_code)]

/// Tells this format from later ones.
const VERSION: u8 = 3;

/// Where a rank's device is on its network, and how to begin a handshake with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The local identifier of the port: InfiniBand only.
    pub(super) lid: u16,
    /// The global identifier of the port; zeros if it has none.
    pub(super) gid: [u8; 16],
    /// The largest packet that the port takes, as libibverbs encodes it.
    pub(super) mtu: u8,
    /// Reads and atomics that the device answers and has in flight for a connection.
    pub(super) outstanding_reads: u8,
    /// The number of the rank's datagram queue pair.
    pub(super) datagrams: u32,
    /// Its key: the device drops datagrams with another one.
    pub(super) queue_key: u32,
}

impl Address {
    const BYTES: usize = 29;

    pub(super) fn encode(&self) -> Vec<u8> {
        let Address { lid, gid, mtu, outstanding_reads, datagrams, queue_key } = self;
        let mut bytes = vec![VERSION, *mtu, *outstanding_reads];
        bytes.extend(lid.to_le_bytes());
        bytes.extend(gid);
        bytes.extend(datagrams.to_le_bytes());
        bytes.extend(queue_key.to_le_bytes());
        bytes
    }

    /// Those of all rails of a rank.
    pub(super) fn decode_all(bytes: &[u8]) -> Option<Vec<Self>> {
        bytes.chunks(Self::BYTES).map(Self::decode).collect()
    }

    /// `None` for bytes that are no address, or of another version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let (&[version, mtu, outstanding_reads], rest) = bytes.split_first_chunk()?;
        let (lid, rest) = rest.split_first_chunk()?;
        let (gid, rest) = rest.split_first_chunk()?;
        let (datagrams, rest) = rest.split_first_chunk()?;
        let address = Address {
            lid: u16::from_le_bytes(*lid),
            gid: *gid,
            mtu,
            outstanding_reads,
            datagrams: u32::from_le_bytes(*datagrams),
            queue_key: u32::from_le_bytes(rest.try_into().ok()?),
        };
        // The encodings of 256 to 4096 bytes.
        (version == VERSION && (1..=5).contains(&mtu) && outstanding_reads > 0).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_encoding() {
        let (datagrams, queue_key) = (0xFF_FFFF, 1 << 30);
        let address = Address { lid: 7, gid: [9; 16], mtu: 3, outstanding_reads: 16, datagrams, queue_key };
        let bytes = address.encode();
        assert_eq!(Address::decode(&bytes), Some(address));
        let other = Address { lid: 8, ..address };
        let both = [bytes.clone(), other.encode()].concat();
        assert_eq!(Address::decode_all(&both), Some(vec![address, other]));
        assert_eq!(Address::decode_all(&both[..both.len() - 1]), None);
        (0..bytes.len()).for_each(|len| assert_eq!(Address::decode(&bytes[..len]), None));
        for (index, value) in [(0, VERSION + 1), (1, 0), (1, 6), (2, 0)] {
            let mut other = bytes.clone();
            other[index] = value;
            assert_eq!(Address::decode(&other), None);
        }
    }
}
