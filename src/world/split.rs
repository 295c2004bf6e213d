//! Worlds that consist of some of a world's ranks.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use super::joining::{Members, join_by_memory, uses_memory};
use super::{World, network};
use crate::bootstrap::MeetingTerms;
use crate::bootstrap::store::frame::{decode_world, encode_world};
use crate::config::Config;
use crate::error::{Error, Ranks, Result};
use crate::model::HwConfig;
use crate::random::draw;
use crate::seal::Secret;
use crate::time::Deadline;
use crate::topology::Topology;
use crate::trace::Trace;

const OPERATION: &str = "split";

impl World {
    /// Creates a world of the ranks that pass the same `color`, like `MPI_Comm_split`. Their ranks there ascend with
    /// `key`; ranks with the same key keep their order here. Collective: all ranks call it, and each gets the world of
    /// its own color. A rank that needs no new world passes a color that no other rank passes, and drops the result.
    /// The ranks meet through this world, so they need no store and no name.
    ///
    /// The new world uses shared memory if all its ranks are on one [host](World::hosts). Otherwise it uses the network that
    /// its ranks have in common. It is independent: it outlives this world, and an
    /// abort or a death in one is not a failure of the other. Its recordings and traces have the number of the split and the
    /// color in their names.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the ranks that did not come by [`Config::deadline`]; [`Error::Join`] as for
    /// [`World::from_env`]. The ranks of this world stay in step if a group cannot join.
    pub fn split(&self, color: u32, key: i32) -> Result<World> {
        self.check_process(OPERATION)?;
        self.fabric().health(OPERATION)?;
        let number = self.next_collective();
        let config = Config {
            record: of_group(self.inner.config.record.as_ref(), number, color),
            replay: of_group(self.inner.config.replay.as_ref(), number, color),
            trace: of_group(self.inner.config.trace.as_ref(), number, color),
            ..self.inner.config.clone()
        };
        let until = Deadline::from(config.deadline).instant();
        let all = self.exchange_wishes(&Wish::new(self.rank(), (color, key))?, until)?;
        let group = Group::of(&all, &self.inner.hosts, self.rank());
        let measured = HwConfig::load(config.hw_config.as_deref())?;
        let joined = self.join_group(&group, (&config, &measured), until);
        let joined = joined.and_then(|members| {
            let trace = Trace::create(config.trace.as_deref(), group.rank, group.members.len() as u32)?;
            World::joined(members, &config, &measured, (until, OPERATION), trace)
        });
        joined.map_err(|error| match error {
            Error::Join { cause, .. } => {
                let (members, last) = (Ranks(group.members.clone()), group.members.len() - 1);
                Error::join(self.rank(), format!("a group of {members}, which are 0 to {last} there: {cause}"))
            }
            other => other,
        })
    }

    /// Tells all ranks of this world what this rank wants, and returns what each rank wants.
    fn exchange_wishes(&self, own: &Wish, until: Instant) -> Result<Vec<Wish>> {
        let told = self.fabric().exchange(OPERATION, &own.encode(), until)?;
        let wishes =
            told.iter().zip(0..).map(|(told, peer)| Wish::decode(told).ok_or_else(|| self.other_call(OPERATION, peer)));
        wishes.collect()
    }

    /// Joins the ranks of a group. Over a network, all ranks of this world take part in one exchange, whatever their
    /// groups do.
    fn join_group(&self, group: &Group, (config, measured): (&Config, &HwConfig), until: Instant) -> Result<Members> {
        let gather = |mine: &[u8]| self.fabric().exchange_long(OPERATION, mine, until);
        let ranks = (group.rank, group.members.len() as u32);
        let terms = MeetingTerms { deadline: config.deadline, together: "and did it call split, too" };
        let is_near = self.topology().is_one_host();
        let secret = Secret::of(&self.fabric().secret_of(&group.secret));
        if uses_memory(&group.hosts, config) {
            if !is_near {
                gather(&[])?;
            }
            // If a rank dies now, the others may be waiting for it.
            let goes_on = || self.fabric().check_peers(OPERATION);
            return join_by_memory(&group.place, ranks, &secret, (terms, until), &goes_on);
        }
        let joined = network::join_among((group.rank, &group.members), (config, measured), &secret, gather);
        joined.map(|fabric| Members::over_network(fabric, group.hosts.clone()))
    }
}

/// Returns the name of a group's recording or trace.
fn of_group(name: Option<&PathBuf>, number: u32, color: u32) -> Option<PathBuf> {
    let mut name = OsString::from(name?);
    name.push(format!(".{number}-{color}"));
    Some(name.into())
}

/// What a rank tells the others in a split.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    color: u32,
    key: i32,
    /// Where the ranks of this rank's group meet if this rank is the first of them. The kernel shows such names to all
    /// users.
    place: String,
    /// The secret by which the ranks would know each other there.
    secret: [u8; SECRET],
}

const SECRET: usize = 16;

impl Wish {
    fn new(rank: u32, (color, key): (u32, i32)) -> Result<Self> {
        let place = format!("split-{:032x}", u128::from_le_bytes(draw(rank)?));
        Ok(Wish { color, key, place, secret: draw(rank)? })
    }

    fn encode(&self) -> Vec<u8> {
        encode_world(&[
            self.color.to_le_bytes().to_vec(),
            self.key.to_le_bytes().to_vec(),
            self.place.clone().into(),
            self.secret.to_vec(),
        ])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [color, key, place, secret] = decode_world(bytes, 4)?.try_into().ok()?;
        Some(Wish {
            color: u32::from_le_bytes(color.try_into().ok()?),
            key: i32::from_le_bytes(key.try_into().ok()?),
            place: String::from_utf8(place).ok()?,
            secret: secret.try_into().ok()?,
        })
    }
}

/// The ranks of one color.
#[derive(Debug)]
struct Group {
    /// The members' ranks in the old world, in the order of their ranks in the new one.
    members: Vec<u32>,
    /// This rank in the new world.
    rank: u32,
    /// The hosts of the members, by their ranks in the new world.
    hosts: Topology,
    /// Where the members meet if they share memory.
    place: String,
    /// The secret by which the members know each other there.
    secret: [u8; SECRET],
}

impl Group {
    /// Returns the group of a rank. All its members compute the same one.
    fn of(all: &[Wish], hosts: &Topology, rank: u32) -> Self {
        let own = &all[rank as usize];
        let mut members: Vec<u32> =
            (0..).zip(all).filter(|(_, wish)| wish.color == own.color).map(|(rank, _)| rank).collect();
        members.sort_by_key(|&rank| all[rank as usize].key);
        let position = members.iter().position(|&member| member == rank).unwrap_or_default();
        let Wish { place, secret, .. } = members.first().map_or(own, |&rank| &all[rank as usize]).clone();
        let host_of = |&rank: &u32| hosts.host_of(rank);
        let is_lowest_of = |rank: &u32| members.iter().position(|other| host_of(other) == host_of(rank));
        let lowest: Vec<u32> = members.iter().filter_map(is_lowest_of).map(|lowest| lowest as u32).collect();
        Group { rank: position as u32, hosts: Topology::by_lowest(&lowest), place, secret, members }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(color: u32, key: i32) -> Wish {
        Wish { color, key, place: format!("{color} {key}"), secret: [key as u8; SECRET] }
    }

    #[test]
    fn wishes_survive_the_way() {
        let wish = wish(u32::MAX, i32::MIN);
        let bytes = wish.encode();
        assert_eq!(Wish::decode(&bytes), Some(wish));
        (0..bytes.len()).for_each(|len| assert_eq!(Wish::decode(&bytes[..len]), None));
    }

    #[test]
    fn members_find_one_group_in_the_order_of_their_keys() {
        let all = vec![wish(7, 1), wish(9, 0), wish(7, -1), wish(9, 0), wish(7, 1)];
        let hosts = Topology::new(vec![0, 0, 0, 1, 0]);
        let members = [2, 0, 4];
        for (rank, &member) in (0..).zip(&members) {
            let group = Group::of(&all, &hosts, member);
            assert_eq!((group.rank, &group.members[..], &group.place[..]), (rank, &members[..], "7 -1"));
            assert_eq!(group.secret, [u8::MAX; SECRET]);
            assert!(group.hosts.is_one_host());
        }
        let other = Group::of(&all, &hosts, 3);
        assert_eq!((other.members, other.rank, other.hosts.hosts()), (vec![1, 3], 1, 2));
        let hosts = Topology::new(vec![1, 0, 0, 1, 1]);
        let group = Group::of(&all, &hosts, 0);
        assert_eq!((group.hosts.ranks_of(0), group.hosts.ranks_of(1)), (&[0][..], &[1, 2][..]));
    }

    #[test]
    fn recordings_of_groups_have_names_of_their_own() {
        let name = PathBuf::from("run/rounds");
        assert_eq!(of_group(Some(&name), 3, 1), Some(PathBuf::from("run/rounds.3-1")));
        assert_eq!(of_group(None, 3, 1), None);
    }
}
