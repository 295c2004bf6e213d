//! Which channel an endpoint has: its doorbells, and the count of ranks that closed it.
//!
//! All ranks number the endpoints that they open alike. The first rank that opens one claims a free channel for its
//! number and records where that is; the others find it there. When the last rank has closed it, the channel is free
//! again. So the number of endpoints open at the same time is limited, and the number that a world opens in its life is
//! not. Ranks that are equally fast each claim a channel for a moment. So an endpoint may be refused when fewer
//! channels than ranks are free.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The channels of a world, in its memory. Channel 0 is never free, because exchanges use it.
#[repr(C)]
pub(super) struct Channels<const N: usize> {
    /// The number of the endpoint that has a channel; 0 if it is free.
    tenants: [AtomicU64; N],
    /// The number of ranks that closed that endpoint.
    closed: [AtomicU32; N],
    /// By the remainder of an endpoint's number: the number, and in its lower bits the channel.
    places: [AtomicU64; N],
    /// The highest channel that was ever claimed.
    highest: AtomicU32,
}

/// The number of bits of a place that hold the channel.
const CHANNEL: u32 = 16;

impl<const N: usize> Channels<N> {
    /// Returns the channel of an endpoint that this rank opens; `None` if no channel is free. `number` counts from 1,
    /// and no rank is `N` endpoints ahead of another.
    pub(super) fn open(&self, number: u64) -> Option<u32> {
        let place = &self.places[number as usize % N];
        loop {
            let found = place.load(Ordering::Acquire);
            if found >> CHANNEL == number {
                return Self::channel(found);
            }
            let Some(channel) = self.claim(number) else {
                // A faster rank may have claimed the last channel for this number.
                let found = place.load(Ordering::Acquire);
                return (found >> CHANNEL == number).then(|| Self::channel(found)).flatten();
            };
            let mine = number << CHANNEL | u64::from(channel);
            // Release: the claim is visible before the place. Acquire: so is that of the rank that was faster.
            if place.compare_exchange(found, mine, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.highest.fetch_max(channel, Ordering::Relaxed);
                return Some(channel);
            }
            self.tenants[channel as usize].store(0, Ordering::Release);
        }
    }

    /// Returns the channel of a place; `None` for an impossible one, which a rank can only have written by mistake.
    fn channel(place: u64) -> Option<u32> {
        Some(u32::from(place as u16)).filter(|&channel| (channel as usize) < N)
    }

    fn claim(&self, number: u64) -> Option<u32> {
        (1..N).find_map(|channel| {
            let tenant = &self.tenants[channel];
            let is_free = tenant.load(Ordering::Relaxed) == 0;
            // Acquire: all that the last tenant left is visible.
            let claim = || tenant.compare_exchange(0, number, Ordering::Acquire, Ordering::Relaxed).is_ok();
            (is_free && claim()).then_some(channel as u32)
        })
    }

    /// Counts an endpoint as closed by one of `ranks` ranks. For the last one, `free` frees what belonged to the
    /// endpoint, and then the channel is free.
    pub(super) fn close(&self, channel: u32, ranks: u32, free: impl FnOnce(bool)) {
        let closed = &self.closed[channel as usize];
        // Acquire and release: the last rank sees what all others did with it. The count may be any number if a rank
        // has written where it must not.
        let is_last = closed.fetch_add(1, Ordering::AcqRel).wrapping_add(1) == ranks;
        free(is_last);
        if is_last {
            closed.store(0, Ordering::Relaxed);
            self.tenants[channel as usize].store(0, Ordering::Release);
        }
    }

    /// Returns whether a rank has not closed the endpoint of this number, which had this channel.
    pub(super) fn is_open(&self, channel: u32, number: u64) -> bool {
        // Acquire: all that the last rank did before it closed is visible.
        self.tenants[channel as usize].load(Ordering::Acquire) == number
    }

    /// Returns the highest channel that was ever claimed.
    pub(super) fn highest(&self) -> u32 {
        self.highest.load(Ordering::Relaxed).min(N as u32 - 1)
    }
}

#[cfg(any(test, loom))]
impl<const N: usize> Default for Channels<N> {
    fn default() -> Self {
        Channels {
            tenants: std::array::from_fn(|_| AtomicU64::new(0)),
            closed: std::array::from_fn(|_| AtomicU32::new(0)),
            places: std::array::from_fn(|_| AtomicU64::new(0)),
            highest: AtomicU32::new(0),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn channels_are_used_again() {
        let channels = Channels::<4>::default();
        let open = |number| (0..2).map(|_| channels.open(number)).collect::<Vec<_>>();
        assert_eq!(open(1), [Some(1); 2]);
        assert_eq!(open(2), [Some(2); 2]);
        for number in 3..100 {
            assert_eq!(open(number), [Some(3); 2], "the first two stay open");
            (0..2).for_each(|_| channels.close(3, 2, |_| {}));
        }
        assert_eq!(channels.highest(), 3);
        assert_eq!(open(100), [Some(3); 2]);
        assert_eq!(open(101), [None; 2], "all are open");
        channels.close(1, 2, |_| {});
        assert_eq!(open(101), [None; 2], "one rank has closed it");
        channels.close(1, 2, |_| {});
        assert_eq!(open(101), [Some(1); 2]);
    }
}
