//! The way to a peer's port.

use super::sys::{ibv_ah_attr, ibv_gid, ibv_global_route};

/// The way from a port of this device to a peer's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The own port, from 1.
    pub port: u8,
    /// The peer's local identifier: its address within an InfiniBand subnet. 0 for RoCE.
    pub lid: u16,
    /// The peer's global address, and the index of the own one in the own port's table; both are of
    /// the same [`GidKind`](super::GidKind). RoCE and other subnets need it.
    pub gid: Option<([u8; 16], u8)>,
    /// InfiniBand's service level; with RoCE, the priority of Ethernet frames. 0 to 15.
    pub service_level: u8,
    /// The traffic class of packets with a global address (the type of service of IP).
    pub traffic_class: u8,
    /// How many routers may forward packets with a global address. 1 does for the same subnet.
    pub hop_limit: u8,
}

impl Route {
    pub(super) fn attributes(&self) -> ibv_ah_attr {
        let (peer, own) = self.gid.unwrap_or_default();
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: peer },
                flow_label: 0,
                sgid_index: own,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: self.lid,
            sl: self.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(self.gid.is_some()),
            port_num: self.port,
        }
    }
}
