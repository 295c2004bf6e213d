//! Which ranks share memory: those of a host.

use std::sync::Arc;

/// The ranks of each host. Every look takes the same short time in a world of any size, and clones share the tables.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    hosts: u32,
    widest: u32,
    host_of: Arc<[u32]>,
    index_on_host: Arc<[u32]>,
    /// The ranks of the first host, ascending, then those of the next.
    by_host: Arc<[u32]>,
    /// Where each host begins in `by_host`, and where the last one ends.
    begins: Arc<[u32]>,
}

impl Topology {
    /// From the host number of each rank; the numbers must be dense from 0.
    pub(crate) fn new(host_of: Vec<u32>) -> Self {
        let hosts = host_of.iter().max().map_or(0, |max| max + 1);
        let mut population = vec![0; hosts as usize];
        let index_on_host = host_of
            .iter()
            .map(|&host| {
                population[host as usize] += 1;
                population[host as usize] - 1
            })
            .collect();
        let widest = population.iter().copied().max().unwrap_or(0);
        let mut by_host: Vec<u32> = (0..host_of.len() as u32).collect();
        // Stable: the ranks of a host stay in order.
        by_host.sort_by_key(|&rank| host_of[rank as usize]);
        let ends = population.iter().scan(0, |end, &ranks| {
            *end += ranks;
            Some(*end)
        });
        let begins = std::iter::once(0).chain(ends).collect();
        Topology { hosts, widest, host_of: host_of.into(), index_on_host, by_host: by_host.into(), begins }
    }

    /// From the lowest rank of each rank's host. Hosts come in the order of these.
    pub(crate) fn by_lowest(lowest: &[u32]) -> Self {
        let leaders: Vec<u32> =
            (0..).zip(lowest).filter(|&(rank, &lowest)| rank == lowest).map(|(rank, _)| rank).collect();
        Topology::new(lowest.iter().map(|rank| leaders.partition_point(|leader| leader < rank) as u32).collect())
    }

    /// All ranks share memory.
    pub(crate) fn one_host(ranks: u32) -> Self {
        Topology::new(vec![0; ranks as usize])
    }

    /// Each rank is a host of its own.
    pub(crate) fn apart(ranks: u32) -> Self {
        Topology::new((0..ranks).collect())
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.host_of.len() as u32
    }

    /// How many hosts there are.
    #[inline]
    pub(crate) fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Whether all ranks share memory.
    #[inline]
    pub(crate) fn is_one_host(&self) -> bool {
        self.hosts == 1
    }

    /// Whether each rank has others elsewhere, that is on other hosts: ranks are on several hosts.
    #[inline]
    pub(crate) fn has_elsewhere(&self) -> bool {
        self.hosts > 1
    }

    /// Whether no rank shares memory with another one.
    pub(crate) fn is_apart(&self) -> bool {
        self.widest == 1
    }

    /// Whether there are several hosts, and several ranks on one of them.
    pub(crate) fn has_two_levels(&self) -> bool {
        self.has_elsewhere() && !self.is_apart()
    }

    /// Ranks on the host that has the most.
    pub(crate) fn widest(&self) -> u32 {
        self.widest
    }

    #[inline]
    pub(crate) fn host_of(&self, rank: u32) -> u32 {
        self.host_of[rank as usize]
    }

    /// How many ranks of its host are lower.
    pub(crate) fn index_on_host(&self, rank: u32) -> u32 {
        self.index_on_host[rank as usize]
    }

    /// The ranks of a host, ascending.
    #[inline]
    pub(crate) fn ranks_of(&self, host: u32) -> &[u32] {
        &self.by_host[self.begins[host as usize] as usize..self.begins[host as usize + 1] as usize]
    }

    /// Whether several ranks are on a host.
    pub(crate) fn is_shared(&self, host: u32) -> bool {
        self.ranks_of(host).len() > 1
    }

    pub(crate) fn hosts_but(&self, own: u32) -> impl Iterator<Item = u32> + use<> {
        (0..self.hosts).filter(move |&host| host != own)
    }

    /// The lowest rank of each host.
    pub(crate) fn leaders(&self) -> Vec<u32> {
        (0..self.hosts).map(|host| self.leader(host)).collect()
    }

    /// The rank that provides the memory of a host: its lowest.
    pub(crate) fn leader(&self, host: u32) -> u32 {
        self.ranks_of(host)[0]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_need_not_be_in_a_row() {
        let hosts = vec![1, 0, 2, 1, 0, 1];
        let topology = Topology::new(hosts.clone());
        assert_eq!((topology.hosts(), topology.widest()), (3, 3));
        for host in 0..3 {
            let here: Vec<u32> = (0..6).filter(|&rank| hosts[rank as usize] == host).collect();
            assert_eq!(topology.ranks_of(host), here);
            assert_eq!((topology.leader(host), topology.is_shared(host)), (here[0], here.len() > 1));
            for (index, &rank) in (0..).zip(&here) {
                assert_eq!((topology.host_of(rank), topology.index_on_host(rank)), (host, index));
            }
        }
        let lowest: Vec<u32> = hosts.iter().map(|&host| topology.leader(host)).collect();
        let by_lowest = Topology::by_lowest(&lowest);
        assert_eq!((0..6).map(|rank| by_lowest.host_of(rank)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 0]);
        assert_eq!(topology.hosts_but(1).collect::<Vec<_>>(), [0, 2]);
        let of = |topology: Topology| (topology.is_one_host(), topology.has_elsewhere(), topology.is_apart());
        assert_eq!(of(topology), (false, true, false));
        assert_eq!(of(Topology::one_host(3)), (true, false, false));
        assert_eq!(of(Topology::apart(3)), (false, true, true));
        assert_eq!(of(Topology::apart(1)), (true, false, true));
    }
}
