//! What the other ranks must know about a rank before the network can carry anything.

use super::header_slots::HeaderSlots;
use super::secret::KEY;

/// Encodes "no header slots".
const NONE: HeaderSlots = HeaderSlots { key: u64::MAX, base: u64::MAX };

/// What a rank tells the others about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    /// The provider that it uses; all ranks must use the same.
    pub(crate) provider: String,
    /// The host: the same text for processes that can see each other.
    pub(crate) host: String,
    /// The host's name for people.
    pub(crate) host_name: String,
    /// The process id on that host.
    pub(crate) pid: u32,
    /// Where peers write headers, if writes can carry any.
    pub(crate) header_slots: Option<HeaderSlots>,
    /// The bytes of immediate data that a write can bring to its completion queue. The minimum over all ranks counts
    /// for the world.
    pub(crate) cq_data: u32,
    /// Whether its device changes cells by itself. Devices do so only if those of all ranks can.
    pub(crate) by_device: bool,
    /// Whether its device orders the bytes of a write to a cache line. Others rely on that only if the devices of all
    /// ranks do.
    pub(crate) in_order: bool,
    /// Whether it needs no wake for what peers' devices change in its memory.
    pub(crate) polls_memory: bool,
    /// Drawn at random, so that no other meeting has the same job's secret.
    pub(crate) nonce: [u8; KEY],
    /// The address, as the provider encodes it.
    pub(crate) address: Vec<u8>,
}

const MAGIC: u32 = 0x4542_4C4A;

impl PeerInfo {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let device = [self.by_device, self.in_order, self.polls_memory];
        let device = (0..).zip(device).map(|(bit, is)| u32::from(is) << bit).sum();
        for number in [MAGIC, self.pid, self.cq_data, device] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.nonce);
        let HeaderSlots { key, base } = self.header_slots.unwrap_or(NONE);
        for number in [key, base] {
            bytes.extend(number.to_le_bytes());
        }
        for part in [self.provider.as_bytes(), self.host.as_bytes(), self.host_name.as_bytes(), &self.address] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
        bytes
    }

    /// Decodes it; `None` for bytes that are not a peer info, or are of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let number = |rest: &mut &[u8]| -> Option<u32> {
            let (number, after) = rest.split_first_chunk()?;
            *rest = after;
            Some(u32::from_le_bytes(*number))
        };
        let mut next = || number(&mut rest);
        let (magic, pid, cq_data, device) = (next()?, next()?, next()?, next()?);
        let [by_device, in_order, polls_memory] = [0, 1, 2].map(|bit| device >> bit & 1 != 0);
        let (&nonce, after) = rest.split_first_chunk()?;
        rest = after;
        let mut long = || Some(u64::from(number(&mut rest)?) | u64::from(number(&mut rest)?) << 32);
        let header_slots =
            Some(HeaderSlots { key: long()?, base: long()? }).filter(|&header_slots| header_slots != NONE);
        let mut part = || -> Option<Vec<u8>> {
            let len = number(&mut rest)? as usize;
            let (part, after) = rest.split_at_checked(len)?;
            rest = after;
            Some(part.to_vec())
        };
        let text = |bytes| String::from_utf8(bytes).ok();
        let (provider, host, host_name, address) = (text(part()?)?, text(part()?)?, text(part()?)?, part()?);
        let known = magic == MAGIC && device < 8 && rest.is_empty();
        known.then_some(PeerInfo {
            provider,
            host,
            host_name,
            pid,
            header_slots,
            cq_data,
            by_device,
            in_order,
            polls_memory,
            nonce,
            address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::host_identity;

    #[test]
    fn peer_info_survives_encoding() {
        let own_info = PeerInfo {
            provider: "tcp".into(),
            host: host_identity(),
            host_name: "node07".into(),
            pid: 7,
            header_slots: Some(HeaderSlots { key: 1 << 40, base: u64::MAX }),
            cq_data: 8,
            by_device: true,
            in_order: false,
            polls_memory: true,
            nonce: [200; KEY],
            address: vec![0, 255, 3],
        };
        let bytes = own_info.encode();
        assert_eq!(PeerInfo::decode(&bytes), Some(own_info));
        (0..bytes.len()).for_each(|len| assert_eq!(PeerInfo::decode(&bytes[..len]), None));
        assert_eq!(PeerInfo::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
