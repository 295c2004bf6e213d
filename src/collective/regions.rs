//! The memory of a collective: made by the leader of each host, and named by all ranks.
#![forbid(unsafe_code)]

use super::core::{Path, Plan};
use super::driver::Regions;
use crate::error::{Error, Result};
use crate::fabric::{Access, Endpoint, Key, Lender, Region};
use crate::reduce::Element;

/// The leader of a host makes its memory and returns the keys of its control and data regions; others return none. If ranks
/// have registers, those of the host begin with this model.
pub(super) fn make_regions<T: Element>(
    endpoint: &mut dyn Endpoint,
    plan: &Plan,
    initial: Option<&[T]>,
) -> Result<Vec<Key>> {
    if plan.topology.leader(plan.host()) != plan.me {
        return Ok(Vec::new());
    }
    let cells = plan.control_cells() * size_of::<u64>();
    if plan.path == Path::Offloaded {
        endpoint.register(cells, Access::Local)?;
        return Ok(Vec::new());
    }
    let control = endpoint.register(cells, Regions::CONTROL)?;
    let data = endpoint.register(plan.data_bytes(), Regions::DATA)?;
    if let Some((model, window)) = initial.zip(endpoint.window(data)) {
        let mut memory = Lender::new(window);
        for at in plan.initial_models(plan.host()) {
            memory.contribution::<T>(at, plan.bytes).copy_from_slice(model);
        }
    }
    Ok(vec![endpoint.key(control), endpoint.key(data)])
}

/// The keys after "ok": of the control region, then of the data region.
pub(crate) fn decode_keys(answer: &[u8]) -> Option<[Key; 2]> {
    let (control, data) = answer.strip_prefix(b"ok")?.split_at_checked(Key::BYTES)?;
    Some([Key::decode(control)?, Key::decode(data)?])
}

/// Names the regions of all hosts, by what all ranks have answered: "ok" and keys, or why they have none.
pub(super) fn import_regions(
    rank: u32,
    operation: &'static str,
    endpoint: &mut dyn Endpoint,
    plan: &Plan,
    everybody: &[Vec<u8>],
) -> Result<Regions> {
    // An error of any rank is an error of all.
    for (peer, answer) in everybody.iter().enumerate() {
        if !answer.starts_with(b"ok") {
            let reason = String::from_utf8_lossy(answer).into_owned();
            return Err(Error::Aborted { rank, operation, by: peer as u32, reason });
        }
    }
    if plan.path == Path::Offloaded {
        // Only the own cells, no region of others.
        return Ok(Regions { control: vec![Region(0); plan.ranks as usize].into(), data: [].into() });
    }
    let (mut controls, mut datas) = (Vec::new(), Vec::new());
    for host in 0..plan.topology.hosts() {
        let leader = plan.topology.leader(host);
        let keys = decode_keys(&everybody[leader as usize]);
        let none = || Error::transport(rank, leader, operation, format!("rank {leader} sent no keys"));
        let [control, data] = keys.ok_or_else(none)?;
        let mut name = |own: u32, key: Key| -> Result<Region> {
            if leader == plan.me { Ok(Region(own)) } else { endpoint.import(leader, key) }
        };
        // The leader's own regions are the first two it made.
        controls.push(name(0, control)?);
        datas.push(name(1, data)?);
    }
    Ok(Regions { control: controls.into(), data: datas.into() })
}
