//! The choice of a device, a port and a GID.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::sync::Arc;

use earlybird_ffi::verbs::sys::{
    IBV_ATOMIC_GLOB, IBV_ATOMIC_NONE, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, IBV_PORT_ARMED, IBV_PORT_DOWN,
    IBV_PORT_INIT, ibv_device_attr, ibv_port_attr,
};
use earlybird_ffi::verbs::{Context, Device, Gid, GidKind, Library, Transport, Waits};

use super::numa;
use super::settings::longest_packet;
use crate::config::VerbsSettings;
use crate::error::{Error, Result};
use crate::fabric::net::Atomicity;

/// The vendor that Soft-RoCE names (the kernel's `rxe_param.h`; 0 before Linux 5.9). A card writes a cache line by one
/// transaction of the bus: no specification promises it, but all are known to. Soft-RoCE copies by the kernel's `memcpy`,
/// which orders nothing, and may begin at the end (`memcpy_orig` on x86-64).
const SOFT_ROCE: [u32; 2] = [0, 0xFF_FFFF];

/// What a port is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet (RoCE).
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

/// A port of a device of this machine, for people.
#[derive(Clone, Debug)]
pub struct DevicePort {
    /// The device, such as `mlx5_0`.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// What it is connected to.
    pub link: LinkLayer,
    /// Whether it has a connection.
    pub active: bool,
    /// Its state in a word, such as *active* or *down*.
    pub state: &'static str,
    /// Its local identifier (InfiniBand).
    pub lid: u16,
    /// The GID that this library chooses, with its index and kind.
    pub gid: Option<String>,
    /// Bytes of the largest packet.
    pub mtu: u32,
    /// Whether the device has atomics.
    pub atomics: bool,
    /// What its work queues can wait for without a processor, which only ConnectX devices tell; or why this one does not.
    pub waits: std::result::Result<Option<Waits>, String>,
    /// The machine's NUMA node that it is close to.
    pub numa_node: Option<u32>,
    /// Why a rank cannot use it.
    pub problem: Option<String>,
}

/// What a rank finds on this machine, for people.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The ports of all devices that this process may open.
    pub ports: Vec<DevicePort>,
    /// Devices that it cannot open, and why.
    pub closed: Vec<(String, String)>,
    /// The device and the port that a rank on this processor uses, and the second ones if there are some; or why there
    /// are none.
    pub chosen: std::result::Result<Vec<(String, u8)>, String>,
}

/// The port that a rank uses.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) context: Arc<Context>,
    pub(super) device: String,
    pub(super) number: u8,
    pub(super) link: LinkLayer,
    pub(super) lid: u16,
    pub(super) gid: Option<Gid>,
    /// The largest packet, as libibverbs encodes it.
    pub(super) mtu: u8,
    /// Bytes of the longest operation.
    pub(super) longest: usize,
    /// Entries that a completion queue can have.
    pub(super) most_entries: u32,
    /// Entries that a shared receive queue can have.
    pub(super) most_receives: usize,
    /// Reads and atomics in flight for each connection.
    pub(super) outstanding_reads: u8,
    /// The agent that changes cells.
    pub(super) atomicity: Atomicity,
    /// Whether the bytes of a write to a cache line become visible together, or in ascending order.
    pub(super) writes_in_order: bool,
    /// How it treats connections.
    pub(super) settings: VerbsSettings,
}

impl Port {
    fn new(context: &Arc<Context>, device: &Device, number: u8, settings: &VerbsSettings) -> io::Result<Self> {
        let (limits, port) = (context.attributes()?, context.port(number)?);
        let gid = gid(context.gids(number)?, settings.gid);
        let reads = limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom).clamp(1, 16);
        Ok(Port {
            context: context.clone(),
            device: device.name(),
            number,
            link: link(&port),
            lid: port.lid,
            gid,
            mtu: longest_packet(port.active_mtu as u8, settings.mtu),
            longest: port.max_msg_sz as usize,
            most_entries: u32::try_from(limits.max_cqe).unwrap_or(0),
            most_receives: usize::try_from(limits.max_srq_wr).unwrap_or(0),
            outstanding_reads: reads as u8,
            atomicity: match limits.atomic_cap {
                _ if settings.device_atomics == Some(false) => Atomicity::Processor,
                IBV_ATOMIC_NONE => Atomicity::Processor,
                IBV_ATOMIC_GLOB => Atomicity::Both,
                _ => Atomicity::Device,
            },
            writes_in_order: settings.ordered_writes.unwrap_or(!SOFT_ROCE.contains(&limits.vendor_id)),
            settings: settings.clone(),
        })
    }

    /// What ranks must have in common to understand each other: the network, and the agent that
    /// changes cells.
    pub(super) fn network(&self) -> String {
        let by = if self.atomicity == Atomicity::Processor { ", atomics by messages" } else { "" };
        format!("{}{by}", self.layers())
    }

    /// The layers of its packets, by a name.
    pub(super) fn layers(&self) -> &'static str {
        match (self.link, self.gid.map(|gid| gid.kind)) {
            (LinkLayer::InfiniBand, _) => "InfiniBand",
            (LinkLayer::Ethernet, Some(GidKind::RoceV1)) => "RoCE v1",
            (LinkLayer::Ethernet, _) => "RoCE v2",
        }
    }

    /// Whether packets to a port with this GID have to carry it: on Ethernet, and from one
    /// InfiniBand subnet to another.
    pub(super) fn needs_gid(&self, own: &Gid, theirs: &[u8; 16]) -> bool {
        self.link == LinkLayer::Ethernet || (own.bytes[..8] != theirs[..8] && *theirs != [0; 16])
    }
}

fn link(port: &ibv_port_attr) -> LinkLayer {
    match u32::from(port.link_layer) {
        IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
        // Old drivers say that they do not know.
        _ => LinkLayer::InfiniBand,
    }
}

/// The GID to use: the one with this index, or else the best. RoCE v2 passes routers, which v1 does
/// not; an address that is made of an IPv4 address is one that an administrator gave.
fn gid(gids: Vec<Gid>, index: Option<u8>) -> Option<Gid> {
    let value = |gid: &Gid| {
        let kind = match gid.kind {
            GidKind::RoceV2 => 2,
            GidKind::RoceV1 => 1,
            GidKind::InfiniBand => 0,
        };
        let is_mapped = gid.bytes[..10] == [0; 10] && gid.bytes[10..12] == [0xFF; 2];
        let is_local = gid.bytes[..2] == [0xFE, 0x80];
        (kind, is_mapped, !is_local)
    };
    match index {
        Some(index) => gids.into_iter().find(|gid| gid.index == index),
        // The first one of the best.
        None => gids.into_iter().rev().max_by_key(value),
    }
}

fn is_active(port: &ibv_port_attr) -> bool {
    port.state == IBV_PORT_ACTIVE
}

/// The state of a port. One that is initialised waits for the subnet manager.
fn state(port: &ibv_port_attr) -> &'static str {
    match port.state {
        IBV_PORT_ACTIVE => "active",
        IBV_PORT_DOWN => "down",
        IBV_PORT_INIT => "initialised",
        IBV_PORT_ARMED => "armed",
        _ => "unknown",
    }
}

fn ports(limits: &ibv_device_attr) -> std::ops::RangeInclusive<u8> {
    1..=limits.phys_port_cnt
}

/// The ports of this machine's devices that could carry a world.
///
/// # Errors
/// The system's error, if the devices cannot be listed.
pub fn devices(library: &Library) -> io::Result<Vec<DevicePort>> {
    // A device that this process may not open is of no use to it.
    Ok(survey(library, &VerbsSettings::default())?.ports)
}

/// The ports of this machine's devices, and the one that a rank with these settings uses.
///
/// # Errors
/// The system's error, if the devices cannot be listed.
pub fn survey(library: &Library, settings: &VerbsSettings) -> io::Result<Survey> {
    let (mut found, mut closed) = (Vec::new(), Vec::new());
    for device in library.devices()? {
        match ports_of(&device, settings) {
            Ok(ports) => found.extend(ports),
            Err(cause) => closed.push((device.name(), cause.to_string())),
        }
    }
    let chosen = match choose_all(library, settings, 0) {
        Ok((first, second)) => Ok([first].into_iter().chain(second).map(|port| (port.device, port.number)).collect()),
        Err(Error::Join { cause, .. }) => Err(cause),
        Err(error) => Err(error.to_string()),
    };
    Ok(Survey { ports: found, closed, chosen })
}

fn ports_of(device: &Device, settings: &VerbsSettings) -> io::Result<Vec<DevicePort>> {
    let context = device.open()?;
    let limits = context.attributes()?;
    let waits = context.waits().map_err(|cause| cause.to_string());
    let mut found = Vec::new();
    for number in ports(&limits) {
        let attributes = context.port(number)?;
        let port = Port::new(&context, device, number, settings)?;
        let only = VerbsSettings { port: Some(number), ..settings.clone() };
        found.push(DevicePort {
            device: port.device,
            port: number,
            link: port.link,
            active: is_active(&attributes),
            state: state(&attributes),
            lid: port.lid,
            gid: port.gid.map(|gid| text(&gid)),
            mtu: 128 << port.mtu,
            atomics: limits.atomic_cap != IBV_ATOMIC_NONE,
            waits: waits.clone(),
            numa_node: device.numa_node(),
            problem: open(device, &only).err(),
        });
    }
    Ok(found)
}

/// A GID as an IPv6 address, with its index and kind.
fn text(gid: &Gid) -> String {
    let kind = match gid.kind {
        GidKind::InfiniBand => "InfiniBand",
        GidKind::RoceV1 => "RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
    };
    format!("{} ({}, {kind})", std::net::Ipv6Addr::from(gid.bytes), gid.index)
}

/// The port that the settings name, or else the active one that is closest to this processor.
pub(super) fn choose(library: &Library, settings: &VerbsSettings, rank: u32) -> Result<Port> {
    let failed = |what: &str, cause: io::Error| Error::join(rank, format!("{what}: {cause}"));
    let mut devices = library.devices().map_err(|cause| failed("the RDMA devices cannot be listed", cause))?;
    if devices.is_empty() {
        return Err(Error::join(rank, "this machine has no RDMA device; `earlybird info` lists what there is"));
    }
    let all = devices.iter().map(Device::name).collect::<Vec<_>>().join(", ");
    if let Some(name) = &settings.device {
        devices.retain(|device| device.name() == *name);
        if devices.is_empty() {
            return Err(Error::join(rank, format!("there is no RDMA device {name}; this machine has {all}")));
        }
    }
    devices.sort_by_key(|device| device.numa_node().map_or(u32::MAX, numa::distance));
    let mut refusals = Vec::new();
    for device in &devices {
        match open(device, settings) {
            Ok(port) => return Ok(port),
            Err(refusal) => refusals.push(format!("{}: {refusal}", device.name())),
        }
    }
    Err(Error::join(rank, format!("no RDMA device can be used: {}", refusals.join("; "))))
}

/// The port that a rank uses, and the second one if the settings name it.
pub(super) fn choose_all(library: &Library, settings: &VerbsSettings, rank: u32) -> Result<(Port, Option<Port>)> {
    let first = choose(library, settings, rank)?;
    let Some((device, port)) = &settings.second else { return Ok((first, None)) };
    // It changes no cells.
    let only = VerbsSettings { device: Some(device.clone()), port: *port, device_atomics: None, ..settings.clone() };
    let second = choose(library, &only, rank)?;
    if (&second.device, second.number) == (&first.device, first.number) {
        let twice = format!("port {} of {} is named twice (EARLYBIRD_DEVICE)", first.number, first.device);
        return Err(Error::join(rank, twice));
    }
    Ok((first, Some(second)))
}

/// The first active port of a device, or the one that the settings name; or why there is none.
fn open(device: &Device, settings: &VerbsSettings) -> std::result::Result<Port, String> {
    let system = |cause: io::Error| cause.to_string();
    if device.transport() != Transport::InfiniBand {
        return Err("it has no reliable connections without the connection manager".to_owned());
    }
    let context = device.open().map_err(system)?;
    let limits = context.attributes().map_err(system)?;
    let mut numbers = ports(&limits).filter(|&number| settings.port.is_none_or(|wanted| number == wanted));
    let is_usable = |number: &u8| context.port(*number).is_ok_and(|port| is_active(&port));
    let Some(number) = numbers.find(is_usable) else {
        return Err(match settings.port {
            Some(number) => format!("it has no active port {number}"),
            None => "it has no active port".to_owned(),
        });
    };
    let port = Port::new(&context, device, number, settings).map_err(system)?;
    match (port.gid, settings.gid) {
        (None, Some(index)) => Err(format!("port {number} has no GID with index {index}")),
        _ if settings.device_atomics == Some(true) && port.atomicity == Atomicity::Processor => {
            Err("it has no atomics (EARLYBIRD_DEVICE_ATOMICS=on)".to_owned())
        }
        (None, None) if port.link == LinkLayer::Ethernet => {
            Err(format!("port {number} has no GID: its network interface has no address"))
        }
        _ => Ok(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(index: u8, kind: GidKind, bytes: [u8; 16]) -> Gid {
        Gid { index, bytes, kind }
    }

    #[test]
    fn the_best_gid_is_chosen() {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 1];
        let mut local = [0; 16];
        (local[0], local[1], local[15]) = (0xFE, 0x80, 9);
        let global = {
            let mut bytes = local;
            bytes[0] = 0x20;
            bytes
        };
        let all = [
            given(0, GidKind::RoceV1, local),
            given(1, GidKind::RoceV2, local),
            given(2, GidKind::RoceV1, mapped),
            given(3, GidKind::RoceV2, mapped),
            given(4, GidKind::RoceV2, global),
            given(5, GidKind::RoceV2, mapped),
        ];
        let chosen = |gids: &[Gid], index| gid(gids.to_vec(), index).map(|gid| gid.index);
        assert_eq!(chosen(&all, None), Some(3));
        assert_eq!(chosen(&all[..3], None), Some(1));
        assert_eq!(chosen(&[all[1], all[4]], None), Some(4));
        assert_eq!(chosen(&all[..1], None), Some(0));
        assert_eq!(chosen(&all, Some(2)), Some(2));
        assert_eq!(chosen(&all, Some(9)), None);
        assert_eq!(chosen(&[], None), None);
    }
}
