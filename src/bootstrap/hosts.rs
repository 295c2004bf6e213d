//! Which ranks share the memory of a host: those that prove it.
//!
//! The names of namespaces only say where to try: copies of a running machine have equal ones. A rank listens at an
//! abstract socket whose name it has drawn, and visits the lowest rank of its names that it reaches. The kernel then
//! says that both are of one user and see each other's process, and ranks that reach each other so can pass memory
//! (unix(7), `SCM_RIGHTS`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::peer;
use super::store::frame::{decode_world, encode_world};
use crate::error::{Error, Result};
use crate::random::draw;

/// The hosts of a world.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// The lowest rank of each rank's host, by rank.
    pub(crate) lowest: Vec<u32>,
    /// The name at which the ranks of this rank's host can meet.
    pub(crate) place: String,
}

/// What a rank tells about where it may find others.
#[derive(Debug)]
struct Introduction {
    /// The same for ranks that may share memory; `None` for a rank that shares none.
    machine: Option<String>,
    /// Where it listens.
    place: String,
}

impl Introduction {
    fn encode(&self) -> Vec<u8> {
        let machine = self.machine.as_deref().unwrap_or_default();
        encode_world(&[machine.as_bytes().to_vec(), self.place.as_bytes().to_vec()])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut texts = decode_world(bytes, 2)?.into_iter().map(|text| String::from_utf8(text).ok());
        let (machine, place) = (texts.next()??, texts.next()??);
        Some(Introduction { machine: Some(machine).filter(|machine| !machine.is_empty()), place })
    }
}

/// Finds out with all ranks of a world which of them share memory. `machine` is the same for ranks that may share some;
/// `None` if this rank is to share none. `gather` gives every rank's bytes to every rank, in rank order; all ranks call it
/// equally often.
///
/// # Errors
/// Those of `gather`; a rank that another version has started.
pub(crate) fn prove(
    rank: u32,
    machine: Option<String>,
    gather: impl Fn(&[u8]) -> Result<Vec<Vec<u8>>>,
) -> Result<Hosts> {
    let place = format!("host-{:032x}", u128::from_le_bytes(draw(rank)?));
    // It listens before any other rank knows its name, so a rank that reaches nothing there need not try again.
    let listening = machine.as_ref().map(|_| listen(&place)).transpose();
    let listening = listening.inspect_err(|why| tracing::warn!("rank {rank} counts as a host of its own: {why}"));
    let listening = listening.ok().flatten();
    let machine = machine.filter(|_| listening.is_some());
    let told = gather(&Introduction { machine, place }.encode())?;
    let strange = |peer: u32| {
        Error::join(rank, format!("rank {peer} introduced itself in a way that this version does not understand"))
    };
    let decoded = (0..).zip(&told).map(|(peer, bytes)| Introduction::decode(bytes).ok_or_else(|| strange(peer)));
    let all = decoded.collect::<Result<Vec<_>>>()?;
    let own = &all[rank as usize];
    let alone: Vec<u32> = (0..all.len() as u32).collect();
    if !has_equals(&all) {
        return Ok(Hosts { lowest: alone, place: own.place.clone() });
    }
    let lower = (0..rank)
        .map(|peer| (peer, &all[peer as usize]))
        .filter(|(_, other)| own.machine.is_some() && other.machine == own.machine);
    let chosen = visit_lowest(rank, lower);
    let told = gather(&chosen.to_le_bytes())?;
    drop(listening);
    let chosen = (0..).zip(&told).map(|(peer, bytes)| match bytes.as_slice().try_into() {
        Ok(bytes) if u32::from_le_bytes(bytes) <= peer => Ok(u32::from_le_bytes(bytes)),
        _ => Err(strange(peer)),
    });
    let lowest = agreed(&chosen.collect::<Result<Vec<_>>>()?);
    let place = all[lowest[rank as usize] as usize].place.clone();
    Ok(Hosts { lowest, place })
}

/// Returns whether two ranks may share memory.
fn has_equals(all: &[Introduction]) -> bool {
    let mut machines: Vec<_> = all.iter().filter_map(|introduction| introduction.machine.as_ref()).collect();
    machines.sort_unstable();
    !machines.is_sorted_by(|one, next| one < next)
}

/// Returns the lowest rank of each rank's host, from the ranks that they have chosen. A rank that has chosen one that
/// follows another is a host of its own.
fn agreed(chosen: &[u32]) -> Vec<u32> {
    let leads = |rank: u32| chosen[rank as usize] == rank;
    (0..).zip(chosen).map(|(rank, &chosen)| if leads(chosen) { chosen } else { rank }).collect()
}

fn address(place: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("earlybird-{place}"))
}

fn listen(place: &str) -> std::result::Result<UnixListener, String> {
    let listening = address(place).and_then(|address| UnixListener::bind_addr(&address));
    listening.map_err(|cause| format!("it cannot listen for other ranks of its machine ({cause})"))
}

/// Returns the first of these ranks with which this one can share memory, or this rank itself.
fn visit_lowest<'a>(rank: u32, lower: impl Iterator<Item = (u32, &'a Introduction)>) -> u32 {
    let mut failed: Option<(u32, String)> = None;
    for (peer, Introduction { place, .. }) in lower {
        match visit(place) {
            Ok(()) => return peer,
            Err(why) => _ = failed.get_or_insert((peer, why)),
        }
    }
    if let Some((peer, why)) = failed {
        tracing::warn!(
            "rank {rank} shares no memory with rank {peer}, though both name one machine and its namespaces, and counts \
             as another host: {why}"
        );
    }
    rank
}

fn visit(place: &str) -> std::result::Result<(), String> {
    let stream = match address(place).and_then(|address| peer::connect_to(&address)) {
        Ok(stream) => stream,
        // Too many have visited it, and it answers none. No other process knows the name.
        Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
        Err(cause) => return Err(format!("its socket cannot be reached ({cause})")),
    };
    let credentials = peer::of_this_user(&stream)?;
    peer::process(credentials).map(drop).map_err(|why| format!("it {why}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;

    /// Runs `prove` for ranks that are threads of this process.
    fn proven(apart: &[bool]) -> Vec<Hosts> {
        let (barrier, told) = (Barrier::new(apart.len()), Mutex::new(vec![Vec::new(); apart.len()]));
        let prove = &|(rank, &is_apart): (u32, &bool)| {
            let gather = |mine: &[u8]| {
                told.lock().unwrap()[rank as usize] = mine.to_vec();
                barrier.wait();
                let all = told.lock().unwrap().clone();
                barrier.wait();
                Ok(all)
            };
            prove(rank, (!is_apart).then(|| "machine".to_owned()), gather).unwrap()
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..).zip(apart).map(|rank| scope.spawn(move || prove(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_of_one_machine_are_one_host_but_for_those_apart() {
        for (apart, lowest) in [
            (&[false, false, false][..], vec![0, 0, 0]),
            (&[true, false, true, false], vec![0, 1, 2, 1]),
            (&[true, true], vec![0, 1]),
            (&[false], vec![0]),
        ] {
            let all = proven(apart);
            for (rank, hosts) in all.iter().enumerate() {
                assert_eq!(hosts.lowest, lowest, "{apart:?}");
                assert_eq!(hosts.place, all[lowest[rank] as usize].place, "{apart:?}");
            }
        }
    }

    /// Copies of a machine name one boot and one namespace each. A rank reaches none of another copy.
    #[test]
    fn equal_names_prove_nothing() {
        let introduction = |place: &str| Introduction { machine: Some("copied".to_owned()), place: place.to_owned() };
        let there = format!("test-there-{}", std::process::id());
        let others = [introduction("test-of-another-copy"), introduction(&there)];
        let lower = || (0..).zip(&others);
        assert_eq!(visit_lowest(5, lower()), 5);
        let listening = listen(&there).unwrap();
        assert_eq!(visit_lowest(5, lower()), 1);
        drop(listening);
        assert!(has_equals(&others) && !has_equals(&others[1..]));
        assert_eq!(agreed(&[0, 0, 1, 3, 3]), [0, 0, 2, 3, 3]);
    }

    #[test]
    fn introductions_survive_the_way() {
        for machine in [None, Some("boot pid net".to_owned())] {
            let bytes = Introduction { machine: machine.clone(), place: "host-1".to_owned() }.encode();
            let back = Introduction::decode(&bytes).unwrap();
            assert_eq!((back.machine, back.place.as_str()), (machine, "host-1"));
            (0..bytes.len()).for_each(|len| assert!(Introduction::decode(&bytes[..len]).is_none()));
        }
    }
}
