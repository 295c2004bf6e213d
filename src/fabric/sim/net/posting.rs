//! What is posted: when it takes effect, in which pieces, how often, and whether at all.
#![forbid(unsafe_code)]

use rand::RngExt;

use super::{Effect, Fetch, Net, SimPlace};
use crate::fabric::{At, Atomic, Change, Posted, Region, Signal, Traffic};
use crate::time::Time;

/// From which host to which something goes.
#[derive(Clone, Copy)]
pub(super) struct Way {
    from: u32,
    to: u32,
}

impl Way {
    #[inline]
    fn is_here(self) -> bool {
        self.from == self.to
    }
}

impl Net {
    /// Usually short, now and then ten or a hundred times as long.
    fn delay(&mut self, here: bool) -> Time {
        let base = if here { self.rng.random_range(20..200) } else { self.rng.random_range(200..2_000) };
        match self.rng.random_range(0..128) {
            slow if slow >= self.weather.slow => base,
            slow if slow % 8 == 0 => base * 100,
            _ => base * 10,
        }
    }

    /// The way from an endpoint to a region.
    #[inline]
    pub(super) fn way(&self, endpoint: usize, region: Region) -> Way {
        let host = |rank: u32| self.hosts[rank as usize];
        let owner = self.regions[region.0 as usize].owner;
        Way { from: host(self.endpoints[endpoint].rank), to: host(owner) }
    }

    /// Counts what goes from one host to another.
    fn count(&mut self, way: Way, what: Traffic) {
        if !way.is_here() {
            self.traffic = self.traffic + what;
        }
    }

    /// When something that sets out at a time takes effect at the end of its way.
    pub(super) fn arrival(&mut self, way: Way, sets_out: Time) -> Time {
        let mut at = sets_out + self.delay(way.is_here());
        if way.is_here() {
            return at;
        }
        if self.rng.random_range(0..256) < self.weather.not_ready {
            // The sender tries again after a while, up to as often as it may.
            self.met.not_ready += 1;
            at += self.rng.random_range(1..=6) * 10_000;
        }
        let through = self.weather.gets_through(way.from, way.to, at);
        if through > at {
            self.met.stalled += 1;
            let late = through + self.delay(false);
            return self.weather.gets_through(way.from, way.to, late);
        }
        at
    }

    /// Whether the operation that is being posted will complete with an error; if so, whether it
    /// takes effect.
    fn breaks(&mut self) -> Option<bool> {
        match &mut self.weather.breaks {
            Some(0) => {
                self.weather.breaks = None;
                self.met.broken += 1;
                Some(self.rng.random_bool(0.5))
            }
            Some(left) => {
                *left -= 1;
                None
            }
            None => None,
        }
    }

    /// The pieces of some data, each at a time of its own, and perhaps once more; says when all
    /// have landed, and when they have for the last time.
    fn copy(&mut self, way: Way, from: At, to: At, len: usize) -> (Time, Time) {
        let (mut landed, mut settled) = (self.now, self.now);
        // Two pieces, each read from the source at some time until it lands.
        let split = len / 2 / size_of::<u64>() * size_of::<u64>();
        for (skip, len) in [(0, split), (split, len - split)] {
            let (from, to) = (SimPlace::behind(from, skip), SimPlace::behind(to, skip));
            let piece = |lands: Time| Effect::Copy { from, to, len: len as u32, lands };
            let at = self.arrival(way, self.now);
            let read = self.reading(at);
            self.schedule(read, piece(at));
            landed = landed.max(at);
            settled = settled.max(at);
            if len > 0 && self.rng.random_range(0..256) < self.weather.repeats {
                self.met.repeats += 1;
                // Sent again by a sender that missed an acknowledgement, after a while of its own.
                let sent = at + self.rng.random_range(0..self.weather.lag.max(1));
                let again = self.arrival(way, sent);
                self.schedule(again, piece(again));
                settled = settled.max(again);
            }
        }
        (landed, settled)
    }

    /// When something is read that lands at a time: at once, in between, or then.
    fn reading(&mut self, lands: Time) -> Time {
        match self.rng.random_range(0..4) {
            0 => self.now,
            1 => self.rng.random_range(self.now..=lands),
            _ => lands,
        }
    }

    fn complete(&mut self, at: Time, endpoint: usize, token: u64, broken: bool) {
        let (endpoint, value) = (endpoint as u32, 0);
        let effect = if broken { Effect::Break { endpoint } } else { Effect::Complete { endpoint, token, value } };
        self.schedule(at, effect);
    }

    pub(super) fn schedule(&mut self, at: Time, effect: Effect) {
        if !matches!(effect, Effect::Copy { len: 0, .. }) {
            self.timeline.push(at, effect);
        }
    }

    pub(in crate::internals::fabric::sim) fn put(
        &mut self,
        endpoint: usize,
        from: At,
        to: At,
        len: usize,
        signal: Option<Signal>,
        token: u64,
    ) -> Posted {
        let (broken, way) = (self.breaks(), self.way(endpoint, to.region));
        let bytes = len as u64 + if signal.is_some() { size_of::<u64>() as u64 } else { 0 };
        self.count(way, Traffic { messages: 1, bytes, ..Traffic::default() });
        if self.instant {
            let (from, to) = (SimPlace::behind(from, 0), SimPlace::behind(to, 0));
            self.take_effect(Effect::Copy { from, to, len: len as u32, lands: self.now });
            if let Some(signal) = signal {
                let (set, value) = (matches!(signal.change, Change::Set(_)), signal.change.value());
                let (endpoint, cell) = (endpoint as u32, SimPlace::behind(signal.at, 0));
                self.take_effect(Effect::Change { endpoint, cell, set, value });
            }
            return Posted::Done(0);
        }
        let (mut landed, mut settled) = (self.now, self.now);
        if broken != Some(false) {
            (landed, settled) = self.copy(way, from, to, len);
            if let Some(signal) = signal {
                // Whatever it fences has landed; what is repeated may come after it.
                landed = self.arrival(way, landed);
                let (set, value) = (matches!(signal.change, Change::Set(_)), signal.change.value());
                let (endpoint, cell) = (endpoint as u32, SimPlace::behind(signal.at, 0));
                self.schedule(landed, Effect::Change { endpoint, cell, set, value });
            }
        }
        let done = self.arrival(way, landed.max(settled));
        self.complete(done, endpoint, token, broken.is_some());
        Posted::Pending
    }

    pub(in crate::internals::fabric::sim) fn read(
        &mut self,
        endpoint: usize,
        from: At,
        to: At,
        len: usize,
        token: u64,
    ) -> Posted {
        let (broken, way) = (self.breaks(), self.way(endpoint, from.region));
        self.count(way, Traffic { reads: 1, read_bytes: len as u64, ..Traffic::default() });
        let (_, settled) = self.copy(way, from, to, len);
        let done = self.arrival(way, settled);
        self.complete(done, endpoint, token, broken.is_some());
        Posted::Pending
    }

    pub(in crate::internals::fabric::sim) fn atomic(
        &mut self,
        endpoint: usize,
        at: At,
        atomic: Atomic,
        token: u64,
    ) -> Posted {
        let (way, cell) = (self.way(endpoint, at.region), SimPlace::behind(at, 0));
        self.count(way, Traffic { atomics: 1, ..Traffic::default() });
        let (expect, value) = match atomic {
            Atomic::FetchAdd(value) => (None, value),
            Atomic::CompareSwap { expect, new } => (Some(expect), new),
        };
        if way.is_here() && (self.instant || self.rng.random_bool(0.5)) {
            return Posted::Done(self.fetch(cell, expect, value));
        }
        let broken = self.breaks();
        let effect = self.arrival(way, self.now);
        if broken.is_some() {
            // What was there before is lost with the completion.
            if broken == Some(true) {
                self.fetch(cell, expect, value);
            }
            self.complete(effect, endpoint, token, true);
            return Posted::Pending;
        }
        self.schedule(effect, Effect::Fetch(Box::new(Fetch { endpoint, cell, expect, value, token })));
        Posted::Pending
    }
}
