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
    /// What the ranks of this machine say about themselves, this one among them, on whatever host they are.
    pub(crate) on_machine: Vec<Vec<u8>>,
}

/// This rank, for the others.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// The same for ranks that may share memory; `None` if this rank is to share none.
    pub(crate) host: Option<String>,
    /// The same for ranks of one machine.
    pub(crate) machine: String,
    /// What it says about itself to the ranks of its machine.
    pub(crate) about: Vec<u8>,
}

/// What a rank tells the others.
#[derive(Debug)]
struct Introduction {
    own: Own,
    /// Where it listens.
    place: String,
}

impl Introduction {
    fn encode(&self) -> Vec<u8> {
        let Own { host, machine, about } = self.own.clone();
        encode_world(&[host.unwrap_or_default().into(), machine.into(), about, self.place.clone().into()])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [host, machine, about, place] = decode_world(bytes, 4)?.try_into().ok()?;
        let text = |bytes| String::from_utf8(bytes).ok();
        let host = Some(text(host)?).filter(|host| !host.is_empty());
        Some(Introduction { own: Own { host, machine: text(machine)?, about }, place: text(place)? })
    }
}

/// Finds out with all ranks of a world which of them share memory. `gather` gives every rank's bytes to every rank, in rank
/// order; all ranks call it equally often.
///
/// # Errors
/// Those of `gather`; a rank that another version has started.
pub(crate) fn prove(rank: u32, mut own: Own, gather: impl Fn(&[u8]) -> Result<Vec<Vec<u8>>>) -> Result<Hosts> {
    let place = format!("host-{:032x}", u128::from_le_bytes(draw(rank)?));
    // It listens before any other rank knows its name, so a rank that reaches nothing there need not try again.
    let listening = own.host.as_ref().map(|_| listen(&place)).transpose();
    let listening = listening.inspect_err(|why| tracing::warn!("rank {rank} counts as a host of its own: {why}"));
    let listening = listening.ok().flatten();
    own.host = own.host.filter(|_| listening.is_some());
    let told = gather(&Introduction { own, place }.encode())?;
    let strange = |peer: u32| {
        Error::join(rank, format!("rank {peer} introduced itself in a way that this version does not understand"))
    };
    let decoded = (0..).zip(&told).map(|(peer, bytes)| Introduction::decode(bytes).ok_or_else(|| strange(peer)));
    let all = decoded.collect::<Result<Vec<_>>>()?;
    let Introduction { own, place } = &all[rank as usize];
    let neighbours = all.iter().filter(|other| other.own.machine == own.machine);
    let on_machine = neighbours.map(|other| other.own.about.clone()).collect();
    if !has_equals(&all) {
        return Ok(Hosts { lowest: (0..all.len() as u32).collect(), place: place.clone(), on_machine });
    }
    let may_share = |other: &Introduction| own.host.is_some() && other.own.host == own.host;
    let lower = (0..rank).map(|peer| (peer, &all[peer as usize])).filter(|(_, other)| may_share(other));
    let chosen = visit_lowest(rank, lower);
    let told = gather(&chosen.to_le_bytes())?;
    drop(listening);
    let chosen = (0..).zip(&told).map(|(peer, bytes)| match bytes.as_slice().try_into() {
        Ok(bytes) if u32::from_le_bytes(bytes) <= peer => Ok(u32::from_le_bytes(bytes)),
        _ => Err(strange(peer)),
    });
    let lowest = agreed(&chosen.collect::<Result<Vec<_>>>()?);
    let place = all[lowest[rank as usize] as usize].place.clone();
    Ok(Hosts { lowest, place, on_machine })
}

/// Returns whether two ranks may share memory.
fn has_equals(all: &[Introduction]) -> bool {
    let mut hosts: Vec<_> = all.iter().filter_map(|introduction| introduction.own.host.as_ref()).collect();
    hosts.sort_unstable();
    !hosts.is_sorted_by(|one, next| one < next)
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

    fn own(shares: bool, about: u8) -> Own {
        Own { host: shares.then(|| "host".to_owned()), machine: "machine".to_owned(), about: vec![about] }
    }

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
            prove(rank, own(!is_apart, rank as u8), gather).unwrap()
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
                assert_eq!(hosts.on_machine.concat(), (0..apart.len() as u8).collect::<Vec<_>>());
            }
        }
    }

    /// Copies of a machine name one boot and one namespace each. A rank reaches none of another copy.
    #[test]
    fn equal_names_prove_nothing() {
        let introduction = |place: &str| Introduction { own: own(true, 0), place: place.to_owned() };
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
        for shares in [false, true] {
            let bytes = Introduction { own: own(shares, 7), place: "host-1".to_owned() }.encode();
            let Introduction { own, place } = Introduction::decode(&bytes).unwrap();
            assert_eq!(
                (own.host.is_some(), &own.machine[..], &own.about[..], &place[..]),
                (shares, "machine", &[7][..], "host-1")
            );
            (0..bytes.len()).for_each(|len| assert!(Introduction::decode(&bytes[..len]).is_none()));
        }
    }
}
