//! GIDs: the addresses that a port has.

use std::io;

use super::device::Context;
use super::library::{errno, invalid};
use super::sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_INFINIBAND, ibv_gid, ibv_gid_entry,
    ibv_port_attr,
};

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the port's table, which a [`Route`](super::Route) from there names.
    pub index: u8,
    /// The address, in network byte order. For [`GidKind::RoceV2`] it is an IPv6 address, or an IPv4
    /// address that is mapped to one.
    pub bytes: [u8; 16],
    /// The packets that it is for.
    pub kind: GidKind,
}

/// The packets that an address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, and what has neither version of RoCE.
    InfiniBand,
    /// RoCE version 1: Ethernet frames, which routers do not forward.
    RoceV1,
    /// RoCE version 2: UDP datagrams.
    RoceV2,
}

/// Entries of a port's table that a route can name.
const MOST: usize = 1 << u8::BITS;

impl Context {
    /// The addresses of a port, which may change at any time. Entries from 256 on are left out: a
    /// route cannot name them. See ibv_query_gid_table(3).
    ///
    /// # Errors
    /// There is no such port (`EINVAL`), or the kernel's error.
    pub fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        // The table of a port that does not exist would be empty.
        let attributes = self.port(port)?;
        match self.gid_table() {
            Ok(entries) => {
                let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port));
                Ok(of_port.filter_map(gid).collect())
            }
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => self.gid_files(port, &attributes),
            Err(error) => Err(error),
        }
    }

    /// The tables of all ports.
    fn gid_table(&self) -> io::Result<Vec<ibv_gid_entry>> {
        let query = self.library().functions.query_gid_table.ok_or_else(|| errno(libc::EOPNOTSUPP))?;
        let mut len = 0;
        for port in 1..=self.attributes()?.phys_port_cnt {
            len += usize::try_from(self.port(port)?.gid_tbl_len).unwrap_or_default();
        }
        let none =
            ibv_gid_entry { gid: ibv_gid { raw: [0; 16] }, gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let mut entries = vec![none; len.max(1)];
        // SAFETY: live; at most the stated number of entries of the stated size is written.
        let found = unsafe { query(self.as_ptr(), entries.as_mut_ptr(), entries.len(), 0, size_of::<ibv_gid_entry>()) };
        let found = usize::try_from(found).map_err(|_| errno(i32::try_from(found).unwrap_or(-libc::EIO)))?;
        entries.truncate(found);
        Ok(entries)
    }

    /// The table of a port by its files: the function came in rdma-core 30.
    fn gid_files(&self, port: u8, attributes: &ibv_port_attr) -> io::Result<Vec<Gid>> {
        let infiniband = u32::from(attributes.link_layer) == IBV_LINK_LAYER_INFINIBAND;
        let len = usize::try_from(attributes.gid_tbl_len).map_err(|_| invalid())?.min(MOST);
        let folder = self.folder().join("ports").join(port.to_string());
        let read = |file: &str, index: u8| std::fs::read_to_string(folder.join(file).join(index.to_string()));
        let gid = |index: u8| {
            let bytes = address(&read("gids", index).ok()?)?;
            // The kernel fails for an entry that is not used, and old ones do not have the file.
            let kind = kind(&read("gid_attrs/types", index).unwrap_or_default(), infiniband)?;
            Some(Gid { index, bytes, kind })
        };
        if !folder.is_dir() {
            return Err(errno(libc::ENOENT));
        }
        Ok((0..=u8::MAX).take(len).filter_map(gid).collect())
    }
}

fn gid(entry: &ibv_gid_entry) -> Option<Gid> {
    let kind = match entry.gid_type {
        IBV_GID_TYPE_IB => GidKind::InfiniBand,
        IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => return None,
    };
    // SAFETY: any bytes are integers.
    let bytes = unsafe { entry.gid.raw };
    Some(Gid { index: u8::try_from(entry.gid_index).ok()?, bytes, kind })
}

/// An address as sysfs writes it, in eight groups of four digits; `None` for an unused entry.
fn address(text: &str) -> Option<[u8; 16]> {
    let address: std::net::Ipv6Addr = text.trim().parse().ok()?;
    (!address.is_unspecified()).then(|| address.octets())
}

/// The kind of an address, as sysfs says.
fn kind(text: &str, infiniband: bool) -> Option<GidKind> {
    match text.trim() {
        "RoCE v2" => Some(GidKind::RoceV2),
        "IB/RoCE v1" if !infiniband => Some(GidKind::RoceV1),
        _ if infiniband => Some(GidKind::InfiniBand),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skipped::{Need, skipped};
    use crate::verbs::Library;

    #[test]
    fn files_say_what_the_library_says() {
        let Ok(library) = Library::load(None).inspect_err(|problem| skipped(Need::Verbs, problem)) else { return };
        let devices = library.devices().unwrap();
        if devices.is_empty() {
            return skipped(Need::Verbs, "no device here");
        }
        for device in devices {
            let context = device.open().unwrap();
            let files = context.gid_files(1, &context.port(1).unwrap());
            assert_eq!(files.unwrap(), context.gids(1).unwrap(), "{device:?}");
        }
    }

    #[test]
    fn files_of_addresses_are_read() {
        let mapped = address("0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        assert_eq!(mapped, Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]));
        assert_eq!(address("0000:0000:0000:0000:0000:0000:0000:0000\n"), None);
        assert_eq!(address(""), None);
    }

    #[test]
    fn kinds_are_told_by_the_link() {
        for (text, infiniband, expected) in [
            ("RoCE v2\n", false, Some(GidKind::RoceV2)),
            ("IB/RoCE v1\n", false, Some(GidKind::RoceV1)),
            ("IB/RoCE v1\n", true, Some(GidKind::InfiniBand)),
            ("", true, Some(GidKind::InfiniBand)),
            ("", false, None),
        ] {
            assert_eq!(kind(text, infiniband), expected, "{text:?}");
        }
    }
}
