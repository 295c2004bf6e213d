//! The memory of a collective: the leader of each host makes it, and all ranks refer to it.
#![forbid(unsafe_code)]

use super::choices::digest;
use super::core::Plan;
use super::driver::Regions;
use crate::error::{Error, HostNames, Result, text_of};
use crate::fabric::{Access, Endpoint, HostMemory, Key, Region};
use crate::rule::AgreementBy;
use crate::topology::Topology;

/// The regions that this rank has made, and what others import of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Made {
    /// The memory of its host, which it leads.
    Host { control: Region, data: Region, keys: [Key; 2], elsewhere: Option<[Key; 2]> },
    /// Cells for itself, where a runner moves the data: others do not reach them.
    Cells(Region),
    /// None: another rank leads its host.
    Nothing,
}

impl Made {
    /// Returns what the others import: those of its host, and then those elsewhere if they need other keys.
    fn keys(&self) -> impl Iterator<Item = Key> {
        let keys = match *self {
            Made::Host { keys, elsewhere, .. } => [Some(keys), elsewhere],
            Made::Cells(_) | Made::Nothing => [None; 2],
        };
        keys.into_iter().flatten().flatten()
    }
}

/// Makes the memory of a host, if this rank is its leader. If all ranks begin with the same model, the host's registers
/// then contain it.
pub(super) fn make_regions(endpoint: &mut dyn Endpoint, plan: &Plan, initial: Option<&[u8]>) -> Result<Made> {
    if plan.topology.leader(plan.host()) != plan.me {
        return Ok(Made::Nothing);
    }
    if plan.agreement == AgreementBy::Runner {
        return endpoint.register(plan.control_cells() * size_of::<u64>(), Access::Local).map(Made::Cells);
    }
    let ranks = plan.topology.ranks_of(plan.host());
    let models = ranks.iter().flat_map(|&rank| plan.first_models(rank));
    let sizes = (plan.control_cells(), plan.data_bytes());
    make_memory(endpoint, Regions::CONTROL, sizes, initial.map(|model| (model, models)))
}

/// Makes the control region of a plan, with the access that peers have to it, and its data region. Copies a model to
/// offsets in the data.
pub(super) fn make_memory(
    endpoint: &mut dyn Endpoint,
    control: Access,
    (cells, bytes): (usize, usize),
    initial: Option<(&[u8], impl Iterator<Item = usize>)>,
) -> Result<Made> {
    let control = endpoint.register(cells * size_of::<u64>(), control)?;
    let data = endpoint.register(bytes, Regions::DATA)?;
    if let Some(((model, places), window)) = initial.zip(endpoint.window(data)) {
        write_model(&mut HostMemory::new(window), model, places);
    }
    let elsewhere = endpoint.key_elsewhere(control).zip(endpoint.key_elsewhere(data)).map(<[Key; 2]>::from);
    Ok(Made::Host { control, data, keys: [control, data].map(|region| endpoint.key(region)), elsewhere })
}

/// Copies a model to offsets in the data of this host, which no rank reads yet.
pub(super) fn write_model(memory: &mut HostMemory, model: &[u8], places: impl Iterator<Item = usize>) {
    places.for_each(|at| memory.contribution(at, model.len()).copy_from_slice(model));
}

/// Encodes a rank's message to all others: that it has made its memory, a random number, and its keys if it has some.
pub(super) fn encode_keys(number: [u8; 8], made: &Made) -> Vec<u8> {
    let keys = made.keys().flat_map(Key::encode);
    b"ok".iter().copied().chain(number).chain(keys).collect()
}

/// Returns the number that identifies a collective, which all ranks have drawn together, from the answers of all ranks.
pub(super) fn decode_run(everybody: &[Vec<u8>]) -> u64 {
    let drawn =
        |answer: &Vec<u8>| answer.get(2..10).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    digest(everybody.iter().map(drawn))
}

/// Decodes the keys after "ok" and the number, of the control region and of the data region: those for ranks of the same
/// host, or those for ranks elsewhere.
pub(crate) fn decode_keys(answer: &[u8], elsewhere: bool) -> Option<[Key; 2]> {
    let (_, keys) = answer.strip_prefix(b"ok")?.split_at_checked(8)?;
    let (keys, rest) = keys.as_chunks::<{ Key::BYTES }>();
    let (of_host, others) = keys.split_at_checked(2)?;
    let keys = if elsewhere && !others.is_empty() { others } else { of_host };
    let &[control, data] = keys.first_chunk().filter(|_| rest.is_empty() && keys.len() == 2)?;
    Some([Key::decode(&control)?, Key::decode(&data)?])
}

/// Returns the regions of all hosts: those that this rank has made, and others from the answers of all ranks, which were
/// checked. A rank that does not lead its host reaches no other one.
pub(super) fn import_regions(
    rank: u32,
    operation: &'static str,
    endpoint: &mut dyn Endpoint,
    (topology, made): (&Topology, &Made),
    everybody: &[Vec<u8>],
) -> Result<Regions> {
    if let Made::Cells(own) = made {
        debug_assert!(topology.is_apart(), "a runner's cells are the rank's own");
        return Ok(Regions { control: vec![*own; topology.hosts() as usize].into(), data: [].into() });
    }
    let (mut controls, mut datas) = (Vec::new(), Vec::new());
    for host in 0..topology.hosts() {
        let leader = topology.leader(host);
        if let Made::Host { control, data, .. } = *made
            && leader == rank
        {
            controls.push(control);
            datas.push(data);
            continue;
        }
        let elsewhere = host != topology.host_of(rank);
        if elsewhere && topology.leader(topology.host_of(rank)) != rank {
            controls.push(Region::UNREACHED);
            datas.push(Region::UNREACHED);
            continue;
        }
        let keys = decode_keys(&everybody[leader as usize], elsewhere);
        let none = || Error::transport(rank, leader, operation, format!("rank {leader} sent no keys"));
        let [control, data] = keys.ok_or_else(none)?;
        controls.push(endpoint.import(leader, control)?);
        datas.push(endpoint.import(leader, data)?);
    }
    Ok(Regions { control: controls.into(), data: datas.into() })
}

/// Returns an error on every rank if any rank has failed.
pub(super) fn check_answers(rank: u32, operation: &'static str, everybody: &[Vec<u8>]) -> Result<()> {
    for (peer, answer) in everybody.iter().enumerate() {
        if !answer.starts_with(b"ok") {
            let reason = text_of(answer);
            return Err(Error::Aborted { rank, operation, by: peer as u32, reason, hosts: HostNames::default() });
        }
    }
    Ok(())
}
