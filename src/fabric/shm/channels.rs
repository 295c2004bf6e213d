//! Which channel an endpoint has: its doorbells, and the count of ranks that closed it.
//!
//! Ranks number the endpoints that they open, alike. The first rank that opens one claims a free channel for its number and
//! says where that is; the others find it there. When the last rank has closed it, the channel is free again. So what
//! is open at the same time is limited, and what a world opens in its life is not. Ranks that are equally fast claim one
//! channel each for a moment, so an endpoint may be refused when fewer channels than ranks are free.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The channels of a world, in its memory. Number 0 is never free: it is for exchanges.
#[repr(C)]
pub(super) struct Channels<const N: usize> {
    /// The number of the endpoint that has a channel; 0: it is free.
    tenants: [AtomicU64; N],
    /// Ranks that closed that endpoint.
    closed: [AtomicU32; N],
    /// Where the endpoint is whose number has this remainder: the number, and below it the channel.
    places: [AtomicU64; N],
    /// The highest channel that was ever claimed.
    highest: AtomicU32,
}

/// Bits of a place that are the channel's.
const CHANNEL: u32 = 16;

impl<const N: usize> Channels<N> {
    /// The channel of an endpoint that this rank opens; none if no channel is free. `number` is from 1, and no rank is `N`
    /// endpoints ahead of another one.
    pub(super) fn open(&self, number: u64) -> Option<u32> {
        let place = &self.places[number as usize % N];
        loop {
            let found = place.load(Ordering::Acquire);
            if found >> CHANNEL == number {
                return Self::channel(found);
            }
            let Some(channel) = self.claim(number) else {
                // A faster rank may have claimed the last one, for this number.
                let found = place.load(Ordering::Acquire);
                return (found >> CHANNEL == number).then(|| Self::channel(found)).flatten();
            };
            let mine = number << CHANNEL | u64::from(channel);
            // Release: the claim is seen before the place. Acquire: so is that of the rank that was faster.
            if place.compare_exchange(found, mine, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.highest.fetch_max(channel, Ordering::Relaxed);
                return Some(channel);
            }
            self.tenants[channel as usize].store(0, Ordering::Release);
        }
    }

    /// The channel of a place. None that there is not, if a rank has written where it must not.
    fn channel(place: u64) -> Option<u32> {
        Some(u32::from(place as u16)).filter(|&channel| (channel as usize) < N)
    }

    fn claim(&self, number: u64) -> Option<u32> {
        (1..N).find_map(|channel| {
            let tenant = &self.tenants[channel];
            let is_free = tenant.load(Ordering::Relaxed) == 0;
            // Acquire: what the last tenant left is seen.
            let claim = || tenant.compare_exchange(0, number, Ordering::Acquire, Ordering::Relaxed).is_ok();
            (is_free && claim()).then_some(channel as u32)
        })
    }

    /// Counts an endpoint as closed by one of `ranks` ranks. If it is the last one, `free` frees what belonged to the
    /// endpoint, and then the channel is free.
    pub(super) fn close(&self, channel: u32, ranks: u32, free: impl FnOnce(bool)) {
        let closed = &self.closed[channel as usize];
        // Acquire and release: the last rank sees what all others did with it.
        // The count may be any number, if a rank has written where it must not.
        let is_last = closed.fetch_add(1, Ordering::AcqRel).wrapping_add(1) == ranks;
        free(is_last);
        if is_last {
            closed.store(0, Ordering::Relaxed);
            self.tenants[channel as usize].store(0, Ordering::Release);
        }
    }

    /// Whether a rank has not closed the endpoint of this number, which had this channel.
    pub(super) fn is_open(&self, channel: u32, number: u64) -> bool {
        // Acquire: what the last rank did before it closed is seen.
        self.tenants[channel as usize].load(Ordering::Acquire) == number
    }

    /// The highest channel that was ever claimed.
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
