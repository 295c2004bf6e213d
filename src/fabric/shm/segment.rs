//! The memory file of a world, and its head.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::retry_on_intr;
use rustix::process::{Resource, getrlimit};

use super::super::{Window, failure::Failure, memory::check_memory};
use super::channels::Channels;
use super::doorbell::{Doorbell, RankSleeper, Rings};
use super::failure::FailureCell;
use super::mailbox::Mailbox;
use super::ranges::{Ranges, User};
use crate::error::{Error, Misuse, Result};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::Bytes;

/// The number of endpoints of a world that can be open at once; number 0 is used for exchanges.
pub(super) const CHANNELS: u32 = 4096;

const MAGIC: u64 = 0x6561_726C_7962_0004;

/// The file size that rank 0 tries to create. The file is sparse: only allocated ranges take memory.
const FILE: u64 = 1 << 44;

const PAGE: usize = 4096;

/// Numbers of ranks on other hosts follow those of the ranks of this memory.
const MOST_FOREIGN: u32 = 1 << 16;

/// The beginning of the file.
#[repr(C, align(4096))]
struct Head {
    magic: AtomicU64,
    ranks: AtomicU64,
    /// The offset of the first byte of the file that belongs to no region.
    free: AtomicU64,
    channels: Channels<{ CHANNELS as usize }>,
    failure: FailureCell,
    /// Whether rank 0 hears the bell.
    hears_bell: AtomicU32,
}

/// The part of the head that belongs to one rank.
#[repr(C, align(128))]
struct RankHead {
    left: AtomicU32,
    /// Whether a memory barrier of another process reaches this rank's process.
    fenced: AtomicU32,
    /// The rings for the thread that sleeps for several channels.
    sleeper: Rings,
    mailboxes: [Mailbox; 2],
}

/// The mapped head of a world's memory file, and the file.
#[derive(Debug)]
pub(super) struct Segment {
    file: OwnedFd,
    bell: OwnedFd,
    map: MmapRaw,
    /// The size of the file in bytes.
    size: u64,
    rank: u32,
    ranks: u32,
    /// The ranges of the file that this rank has taken.
    ranges: Mutex<Ranges>,
}

/// Returns the number of bytes at the beginning of the file of a world of `ranks`.
pub(in crate::internals::fabric) fn head_bytes(ranks: u32) -> usize {
    size_of::<Head>() + ranks as usize * (size_of::<RankHead>() + CHANNELS as usize * size_of::<Doorbell>())
}

/// Returns the size of the file of a world of `ranks`, where files may have up to `limit` bytes (`ulimit -f`).
///
/// # Errors
/// The beginning of the file alone is larger than the limit.
fn file_size(limit: Option<u64>, ranks: u32) -> Result<u64> {
    let size = limit.map_or(FILE, |limit| limit.min(FILE)) / PAGE as u64 * PAGE as u64;
    let least = head_bytes(ranks) as u64;
    if size >= least {
        return Ok(size);
    }
    let (least, limit) = (Bytes(least), Bytes(limit.unwrap_or(FILE)));
    Err(Error::join(
        0,
        format!(
            "files may have {limit} here (ulimit -f), and the memory file of {ranks} ranks begins with {least}; raise \
             the limit where rank 0 starts: ulimit -f unlimited"
        ),
    ))
}

/// Returns the size of a file in bytes.
fn size_of_file(file: &OwnedFd) -> u64 {
    fstat(file).map_or(0, |stat| stat.st_size as u64)
}

/// Maps the beginning of the file of a world of `ranks`.
fn map_head(file: &OwnedFd, rank: u32, ranks: u32) -> Result<MmapRaw> {
    if !(head_bytes(ranks) as u64..=FILE).contains(&size_of_file(file)) {
        return Err(Error::join(rank, "the memory that was handed over has the wrong size"));
    }
    let map = MmapOptions::new().len(head_bytes(ranks)).map_raw(file);
    map.map_err(|cause| Error::os(rank, "map shared memory", cause))
}

fn head_of(map: &MmapRaw) -> &Head {
    // SAFETY: the map begins with a `Head`: page-aligned, and any bits are valid for atomics.
    unsafe { &*map.as_ptr().cast() }
}

impl Segment {
    pub(super) fn create(ranks: u32) -> Result<OwnedFd> {
        // Beyond the limit the kernel would not refuse but kill the process (SIGXFSZ). It checks the limit where a file
        // grows, so the limits of the other ranks do not matter.
        Self::of_size(file_size(getrlimit(Resource::Fsize).current, ranks)?, ranks)
    }

    fn of_size(size: u64, ranks: u32) -> Result<OwnedFd> {
        let os = |operation| move |cause: rustix::io::Errno| Error::os(0, operation, cause);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("earlybird", flags).map_err(os("create shared memory"))?;
        ftruncate(&file, size).map_err(os("size shared memory"))?;
        // A rank that made the file shorter would kill all others by SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(os("seal shared memory"))?;
        let map = map_head(&file, 0, ranks)?;
        let head = head_of(&map);
        head.free.store(head_bytes(ranks).next_multiple_of(PAGE) as u64, Ordering::Relaxed);
        head.ranks.store(u64::from(ranks), Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(file)
    }

    pub(super) fn open([file, bell]: [OwnedFd; 2], rank: u32, ranks: u32) -> Result<Self> {
        let map = map_head(&file, rank, ranks)?;
        let size = size_of_file(&file);
        let head = head_of(&map);
        let found = (head.magic.load(Ordering::Acquire), head.ranks.load(Ordering::Relaxed));
        if found == (MAGIC, u64::from(ranks)) {
            Ok(Segment { file, bell, map, size, rank, ranks, ranges: Mutex::default() })
        } else {
            Err(Error::join(rank, "the memory that was handed over is not this world's"))
        }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    fn head(&self) -> &Head {
        head_of(&self.map)
    }

    fn rank_head(&self, rank: u32) -> &RankHead {
        assert!(rank < self.ranks);
        // SAFETY: within `head_bytes`, after the head and the heads of lower ranks; sizes are multiples of the
        // alignments; only atomics.
        unsafe { &*self.map.as_ptr().add(size_of::<Head>()).cast::<RankHead>().add(rank as usize) }
    }

    pub(super) fn mailbox(&self, rank: u32, turn: u64) -> &Mailbox {
        &self.rank_head(rank).mailboxes[(turn % 2) as usize]
    }

    /// Returns what wakes a rank's sleeper.
    pub(super) fn sleeper(&self, rank: u32) -> RankSleeper<'_> {
        let bell = (rank == 0).then(|| (&self.head().hears_bell, &self.bell));
        RankSleeper { rings: &self.rank_head(rank).sleeper, bell }
    }

    /// Returns the bell. From now on it rings when the sleep of rank 0, which this is, ends.
    pub(super) fn hear_bell(&self) -> std::io::Result<OwnedFd> {
        let bell = self.bell.try_clone()?;
        self.head().hears_bell.store(1, Ordering::Release);
        Ok(bell)
    }

    pub(super) fn doorbell(&self, channel: u32, rank: u32) -> &Doorbell {
        assert!(rank < self.ranks && channel < CHANNELS);
        let offset = size_of::<Head>() + self.ranks as usize * size_of::<RankHead>();
        let index = (channel * self.ranks + rank) as usize;
        // SAFETY: within `head_bytes`, after all rank heads; aligned as above; only atomics.
        unsafe { &*self.map.as_ptr().add(offset).cast::<Doorbell>().add(index) }
    }

    /// Ends the announced wait of a rank in a channel, whatever it waits for. The caller has fenced after its changes.
    pub(super) fn ring_always(&self, channel: u32, rank: u32) {
        self.doorbell(channel, rank).ring_always(self.sleeper(rank));
    }

    /// Records that memory barriers of other processes reach this rank from now on.
    pub(super) fn reach(&self, rank: u32) {
        self.rank_head(rank).fenced.store(1, Ordering::Release);
    }

    /// Returns whether there are two ranks, and memory barriers reach both.
    pub(super) fn is_fenced_pair(&self) -> bool {
        self.ranks == 2 && (0..2).all(|rank| self.rank_head(rank).fenced.load(Ordering::Acquire) != 0)
    }

    pub(super) fn leave(&self, rank: u32) {
        self.rank_head(rank).left.store(1, Ordering::SeqCst);
    }

    pub(super) fn has_left(&self, rank: u32) -> bool {
        self.rank_head(rank).left.load(Ordering::SeqCst) != 0
    }

    /// Records the failure unless there is one already.
    pub(super) fn fail(&self, failure: &Failure) {
        self.head().failure.set(failure);
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        let failure = self.head().failure.get()?;
        let (Failure::Aborted { by: rank, .. }
        | Failure::Died { peer: rank, .. }
        | Failure::Transport { by: rank, .. }) = failure;
        if rank < self.ranks + MOST_FOREIGN {
            return Some(failure);
        }
        let cause =
            format!("it failed because of rank {rank}, which there is not: a rank has written where it must not");
        Some(Failure::Transport { by: self.rank, peer: None, cause })
    }

    /// Allocates zeroed memory for a region; returns its offset in the file.
    pub(super) fn allocate(&self, bytes: usize) -> Result<u64> {
        // A size beyond any possible one is refused like one beyond the available memory.
        let need = bytes.max(1).checked_next_multiple_of(PAGE).map_or(u64::MAX, |need| need as u64);
        let available = check_memory(self.rank, "register", need)?;
        let short = |available, limit: &str| Error::Memory {
            rank: self.rank,
            operation: "register",
            need,
            available,
            limit: limit.to_owned(),
        };
        let is_open = |(number, channel)| self.channels().is_open(channel, number);
        let again = self.ranges.lock().take(need, is_open);
        let offset = match again {
            Some(offset) => {
                // Makes zeros, whatever the last region left there.
                self.free(offset, need as usize);
                offset
            }
            None => {
                let end = |free: u64| free.checked_add(need).filter(|&end| end <= self.size);
                let taken = self.head().free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end);
                taken.map_err(|free| short(self.size.saturating_sub(free), self.limit_of_file()))?
            }
        };
        // Allocate the pages now, so that a shortage is an error here and not a signal during a collective.
        retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), offset, need)).map_err(
            |cause| match cause {
                rustix::io::Errno::NOSPC | rustix::io::Errno::NOMEM => short(available, "the kernel's own accounting"),
                cause => Error::os(self.rank, "allocate shared memory", cause),
            },
        )?;
        Ok(offset)
    }

    /// Returns what limits the size of the file.
    fn limit_of_file(&self) -> &'static str {
        match self.size {
            FILE => "the size of the world's memory file",
            _ => "the world's memory file, whose size ulimit -f limits where rank 0 starts",
        }
    }

    /// Frees the pages of a region. Mappings of it read zeros from then on.
    pub(super) fn free(&self, offset: u64, bytes: usize) {
        let len = bytes.max(1).next_multiple_of(PAGE) as u64;
        let _ = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len);
    }

    /// Records that this rank has closed the endpoint that used a range which this rank had allocated.
    pub(super) fn give_back(&self, user: User, offset: u64, bytes: usize) {
        let len = bytes.max(1).next_multiple_of(PAGE) as u64;
        self.ranges.lock().give_back(user, offset, len);
    }

    /// Returns where the part of the file ends that was ever allocated.
    #[cfg(test)]
    pub(super) fn end(&self) -> u64 {
        self.head().free.load(Ordering::Relaxed)
    }

    pub(super) fn channels(&self) -> &Channels<{ CHANNELS as usize }> {
        &self.head().channels
    }

    /// Maps a region.
    pub(super) fn window(&self, offset: u64, bytes: usize) -> Result<Window> {
        let len = bytes.max(1).next_multiple_of(PAGE);
        // No memory exists beyond the end of the file, whatever a rank has written there.
        let taken = self.head().free.load(Ordering::Acquire).min(self.size);
        let inside = offset >= head_bytes(self.ranks) as u64
            && offset.is_multiple_of(PAGE as u64)
            && offset.checked_add(len as u64).is_some_and(|end| end <= taken);
        if !inside {
            let problem = Misuse::Argument("not a key of that peer");
            return Err(Error::Usage { rank: self.rank, operation: "import", problem });
        }
        let map = MmapOptions::new().offset(offset).len(len).map_raw(&self.file);
        let map = Arc::new(map.map_err(|cause| Error::os(self.rank, "map shared memory", cause))?);
        let base = std::ptr::NonNull::new(map.as_mut_ptr());
        let nowhere = || std::io::Error::other("the system mapped it at address 0");
        let base = base.ok_or_else(|| Error::os(self.rank, "map shared memory", nowhere()))?;
        // SAFETY: a mapping of that length, page-aligned, of file pages that are zero until
        // written; the window keeps it alive.
        Ok(unsafe { Window::new(base, len, map) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fabric::bell;

    #[test]
    fn the_file_keeps_within_the_limit_of_files() {
        let size = |limit: Option<u64>, ranks| file_size(limit, ranks).map_err(|error| error.to_string());
        assert_eq!(size(None, 4), Ok(FILE));
        assert_eq!(size(Some(u64::MAX - 1), 4), Ok(FILE));
        assert_eq!(size(Some(1 << 40), 4), Ok(1 << 40));
        assert_eq!(size(Some((1 << 30) + 512), 4), Ok(1 << 30), "whole pages");
        let least = head_bytes(4).next_multiple_of(PAGE) as u64;
        assert_eq!(size(Some(least), 4), Ok(least));
        let told = size(Some(64 << 10), 4).unwrap_err();
        assert!(
            told.contains("files may have 64 KiB here (ulimit -f)") && told.ends_with("ulimit -f unlimited"),
            "{told}"
        );
    }

    /// A rank that did it would end the others by SIGBUS.
    #[test]
    fn the_file_cannot_be_made_shorter_or_longer() {
        let file = Segment::create(2).unwrap();
        for size in [0, FILE / 2, FILE * 2] {
            assert_eq!(ftruncate(&file, size), Err(rustix::io::Errno::PERM), "{size}");
        }
    }

    /// A request that is too large takes nothing from those that follow.
    #[test]
    fn a_small_file_is_used_to_its_end() {
        let size = head_bytes(1).next_multiple_of(PAGE) as u64 + (1 << 20);
        let file = Segment::of_size(size, 1).unwrap();
        let segment = Segment::open([file, bell::make(0).unwrap()], 0, 1).unwrap();
        for _ in 0..2 {
            let told = segment.allocate((1 << 20) + 1).unwrap_err().to_string();
            let expected =
                "needs 1.0 MiB of memory, 1 MiB are available (the world's memory file, whose size ulimit -f";
            assert!(told.contains(expected), "{told}");
        }
        segment.allocate(1 << 20).unwrap();
        assert!(segment.allocate(1).is_err());
    }
}
