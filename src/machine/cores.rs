//! The cores that the ranks of one machine share.
//!
//! A rank that is confined (by an affinity, a cpuset, or the quota of a container) knows only its own cores. So ranks
//! exchange their cores, and each determines whether another one may need the core that it runs on.

use rustix::thread::{CpuSet, sched_getaffinity};

use super::groups::{Group, Version};

const WORDS: usize = CpuSet::MAX_CPU / 64;

/// The cores that a process may use, and its quota of their time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    /// A bit for each core; none where the kernel does not report them.
    mask: [u64; WORDS],
    /// Quotas, in thousandths of a core, and their groups: those of this process's group and of the enclosing ones.
    quotas: Vec<(u64, u64)>,
}

/// Returns the number of threads of this process that can run at the same time: at least 1.
pub(crate) fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The most quotas that a rank sends: the tightest ones.
const MOST_QUOTAS: usize = 8;

impl Cores {
    /// Returns the cores of the calling thread.
    pub(crate) fn own() -> Self {
        let mut mask = [0; WORDS];
        if let Ok(set) = sched_getaffinity(None) {
            (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).for_each(|core| mask[core / 64] |= 1 << (core % 64));
        } else {
            // Where there are more cores than a set holds, only their number is known.
            let count = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
            (0..count.min(CpuSet::MAX_CPU)).for_each(|core| mask[core / 64] |= 1 << (core % 64));
        }
        let groups = Group::of_this_process("cpu");
        let mut quotas: Vec<_> = groups.iter().filter_map(|group| Some((quota_of(group)?, group.identity()))).collect();
        quotas.sort_unstable();
        quotas.truncate(MOST_QUOTAS);
        Cores { mask, quotas }
    }

    /// Encodes the value for the other ranks.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let quotas = self.quotas.iter().flat_map(|&(time, group)| [time, group]);
        self.mask.iter().copied().chain(quotas).flat_map(u64::to_le_bytes).collect()
    }

    /// Returns `None` for bytes that do not encode a value.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let (mask, quotas) = words.split_at_checked(WORDS)?;
        let (quotas, odd) = quotas.as_chunks::<2>();
        let quotas = quotas.iter().map(|&[time, group]| (time, group)).collect();
        (rest.is_empty() && odd.is_empty()).then_some(Cores { mask: mask.try_into().ok()?, quotas })
    }

    fn count(&self) -> u32 {
        self.mask.iter().map(|word| word.count_ones()).sum()
    }

    fn holds(&self, other: &Cores) -> bool {
        self.mask.iter().zip(&other.mask).all(|(mine, theirs)| theirs & !mine == 0)
    }
}

/// Returns the thousandths of a core that a group may use, if it has a quota.
fn quota_of(group: &Group) -> Option<u64> {
    let (quota, period) = match group.version {
        Version::One => (group.number("cpu.cfs_quota_us")?, group.number("cpu.cfs_period_us")?),
        Version::Two => {
            let text = group.text("cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
    };
    quota.saturating_mul(1000).checked_div(period)
}

/// Returns whether a rank may have to share its core with another one of the `ranks` of its machine, which include it.
/// That is so if there are more ranks than cores among all that run on the cores of one rank, or in total, or if its
/// group's quota is less than a core for each.
pub(crate) fn is_oversubscribed(own: &Cores, ranks: &[Cores]) -> bool {
    let mut union = Cores { mask: [0; WORDS], quotas: Vec::new() };
    for cores in ranks {
        union.mask.iter_mut().zip(&cores.mask).for_each(|(all, mask)| *all |= mask);
    }
    let is_full = |place: &Cores| ranks.iter().filter(|cores| place.holds(cores)).count() as u32 > place.count();
    let by_cores = union.count() > 0
        && (is_full(&union) || ranks.iter().any(|place| place.count() > 0 && place.holds(own) && is_full(place)));
    let by_quota = own.quotas.iter().any(|&(time, group)| {
        let is_in = |cores: &&Cores| cores.quotas.iter().any(|&(_, theirs)| theirs == group);
        ranks.iter().filter(is_in).count() as u64 * 1000 > time
    });
    by_cores || by_quota
}

#[cfg(test)]
mod tests {
    use super::super::groups::tests::Files;
    use super::*;

    fn on(cores: impl IntoIterator<Item = usize>) -> Cores {
        let mut mask = [0; WORDS];
        cores.into_iter().for_each(|core| mask[core / 64] |= 1 << (core % 64));
        Cores { mask, quotas: Vec::new() }
    }

    fn with_quota(cores: Cores, time: u64, group: u64) -> Cores {
        Cores { quotas: vec![(time, group)], ..cores }
    }

    #[test]
    fn values_survive_the_way() {
        for cores in [on([0, 63, 64, 1023]), with_quota(on([5]), 1500, 77), on([])] {
            let bytes = cores.encode();
            assert_eq!(Cores::decode(&bytes), Some(cores));
            assert_eq!(Cores::decode(&bytes[8..]), None);
        }
        assert!(Cores::own().count() > 0);
    }

    #[test]
    fn ranks_are_oversubscribed_where_one_may_need_the_core_of_another() {
        let oversubscribed =
            |ranks: &[Cores]| ranks.iter().map(|own| is_oversubscribed(own, ranks)).collect::<Vec<_>>();
        let all = || on(0..4);
        assert_eq!(oversubscribed(&[all(), all(), all(), all()]), [false; 4]);
        assert_eq!(oversubscribed(&[all(), all(), all(), all(), all()]), [true; 5]);
        assert_eq!(oversubscribed(&[on([0]), on([0])]), [true; 2], "two ranks on a core of many");
        assert_eq!(oversubscribed(&[on([0]), on([1])]), [false; 2]);
        assert_eq!(oversubscribed(&[on([0]), on([0]), on([1, 2, 3])]), [true, true, false]);
        assert_eq!(oversubscribed(&[on([0]), on([0]), on([0, 1, 2])]), [true, true, false]);
        assert_eq!(oversubscribed(&[on([70, 71]), on([70, 71]), on([71])]), [true; 3]);
        assert_eq!(oversubscribed(&[on([]), on([])]), [false; 2], "the kernel does not say");
    }

    #[test]
    fn a_quota_belongs_to_a_group() {
        let rank = |time, group| with_quota(on(0..8), time, group);
        let pair = [rank(2000, 1), rank(2000, 1)];
        assert!(!is_oversubscribed(&pair[0], &pair));
        let pair = [rank(1500, 1), rank(1500, 1)];
        assert!(is_oversubscribed(&pair[0], &pair));
        let apart = [rank(1000, 1), rank(1000, 2), on(0..8)];
        assert!(apart.iter().all(|own| !is_oversubscribed(own, &apart)));
        assert!(is_oversubscribed(&rank(400, 1), &[rank(400, 1)]), "also alone");
        let around = |own| Cores { quotas: vec![(1500, own), (2000, 9)], ..on(0..8) };
        let three = [around(1), around(2), around(3)];
        assert!(is_oversubscribed(&three[0], &three), "the quota of the group around theirs");
    }

    #[test]
    fn quotas_are_read_in_both_versions() {
        let mounts = "25 20 0:22 / %/v1 rw - cgroup cgroup rw,cpu,cpuacct\n27 20 0:24 / %/v2 rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("v1/job/cpu.cfs_quota_us", "-1\n"),
            ("v1/job/cpu.cfs_period_us", "100000\n"),
            ("v1/cpu.cfs_quota_us", "150000\n"),
            ("v1/cpu.cfs_period_us", "100000\n"),
            ("v2/a/cpu.max", "50000 100000\n"),
            ("v2/cpu.max", "max 100000\n"),
        ];
        let machine = Files::new("quota", mounts, "3:cpu,cpuacct:/job\n0::/a\n", &files);
        let quotas: Vec<_> = machine.groups("cpu").iter().map(quota_of).collect();
        assert_eq!(quotas, [None, Some(1500), Some(500), None]);
    }
}
