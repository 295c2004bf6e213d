//! The network itself: what is under way, and when it takes effect.
#![allow(unsafe_code)]

mod posting;

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;
use std::sync::Arc;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::timeline::Timeline;
use super::weather::{Met, Weather};
use crate::error::{Error, Result};
use crate::fabric::{Access, At, Completion, Interest, Region, Traffic, Window};
use crate::sync::{AtomicU64, Ordering};
use crate::time::Time;

#[derive(Debug)]
pub(crate) struct Net {
    now: Time,
    rng: Xoshiro256PlusPlus,
    hosts: Vec<u32>,
    regions: Vec<Memory>,
    endpoints: Vec<State>,
    /// Endpoints opened by each rank.
    opened: Vec<u32>,
    /// Those that wait, ascending, by channel and host.
    waiters: Vec<Vec<Vec<usize>>>,
    timeline: Timeline<Effect>,
    woken: Vec<usize>,
    drives_itself: bool,
    /// Operations on the own host take effect in the call.
    instant: bool,
    weather: Weather,
    met: Met,
    /// What went from one host to another.
    traffic: Traffic,
    aborted: Option<(u32, String)>,
}

/// The memory of an instant network, and who waits for what.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Of all regions, one after the other.
    cells: Vec<u64>,
    waiting_for: Vec<Interest>,
}

#[derive(Debug)]
struct Memory {
    owner: u32,
    access: Access,
    window: Window,
}

#[derive(Debug)]
struct State {
    rank: u32,
    /// How many endpoints its rank had opened before: equals belong together.
    channel: u32,
    completions: VecDeque<Completion>,
    /// An operation of it completed with an error.
    broken: bool,
    waiting_for: Interest,
}

#[derive(Debug)]
enum Effect {
    /// Reads what will land then.
    Copy {
        from: SimPlace,
        to: SimPlace,
        len: u32,
        lands: Time,
    },
    Land {
        to: SimPlace,
        bytes: Box<[u8]>,
    },
    Change {
        endpoint: u32,
        cell: SimPlace,
        set: bool,
        value: u64,
    },
    /// Few, and larger than the others.
    Fetch(Box<Fetch>),
    Complete {
        endpoint: u32,
        token: u64,
        value: u64,
    },
    Break {
        endpoint: u32,
    },
}

#[derive(Debug)]
struct Fetch {
    endpoint: usize,
    cell: SimPlace,
    expect: Option<u64>,
    value: u64,
    token: u64,
}

/// Where something lies: a region, and bytes from its start.
#[derive(Clone, Copy, Debug)]
struct SimPlace {
    region: u32,
    offset: u32,
}

impl SimPlace {
    /// The place `bytes` bytes after another one in a region, all of which can be addressed.
    fn behind(at: At, bytes: usize) -> Self {
        SimPlace { region: at.region.0, offset: (at.offset + bytes) as u32 }
    }
}

/// Most bytes of a region: a place in it is 32 bits.
pub(super) const MOST_BYTES: usize = u32::MAX as usize / size_of::<u64>() * size_of::<u64>();

impl Net {
    pub(super) fn new(hosts: Vec<u32>, seed: u64) -> Self {
        Net {
            now: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            opened: vec![0; hosts.len()],
            waiters: Vec::new(),
            hosts,
            regions: Vec::new(),
            endpoints: Vec::new(),
            timeline: Timeline::new(),
            woken: Vec::new(),
            drives_itself: true,
            instant: false,
            weather: Weather::default(),
            met: Met::default(),
            aborted: None,
            traffic: Traffic::default(),
        }
    }

    /// From now on the owner of the network calls [`Net::advance`], and no endpoint does.
    pub(crate) fn take_over(&mut self) {
        self.drives_itself = false;
    }

    /// From now on the network has troubles.
    pub(crate) fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }

    /// Which troubles were met.
    pub(crate) fn met(&self) -> Met {
        self.met
    }

    /// Returns what all ranks have sent to other hosts.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// From now on nothing is under way: writes and atomics take effect at once.
    pub(crate) fn make_instant(&mut self) {
        self.instant = true;
    }

    /// Hashes cells and who waits for what, but for some cells of the first region, given in ascending order. Most is zero.
    pub(crate) fn hash_but(&self, but: &[usize], state: &mut impl Hasher) {
        let mut but = but.iter().peekable();
        let mut base = 0;
        for memory in &self.regions {
            let cells = memory.window.len() / size_of::<u64>();
            for index in 0..cells {
                let value = memory.window.cell(index).load(Ordering::Relaxed);
                if but.next_if(|&&cell| cell == base + index).is_none() && value != 0 {
                    state.write_usize(base + index);
                    state.write_u64(value);
                }
            }
            base += cells;
        }
        self.endpoints.iter().for_each(|endpoint| endpoint.waiting_for.hash(state));
    }

    /// A cell of the region that was made first.
    pub(crate) fn first_region(&self, cell: usize) -> u64 {
        self.regions[0].window.cell(cell).load(Ordering::Relaxed)
    }

    pub(crate) fn save(&self) -> Snapshot {
        debug_assert!(self.timeline.is_empty());
        let bytes: usize = self.regions.iter().map(|memory| memory.window.len()).sum();
        let mut cells = vec![0; bytes / size_of::<u64>()];
        let mut rest = bytemuck::cast_slice_mut(&mut cells);
        for memory in &self.regions {
            let (part, others) = rest.split_at_mut(memory.window.len());
            memory.window.read(0, part);
            rest = others;
        }
        Snapshot { cells, waiting_for: self.endpoints.iter().map(|state| state.waiting_for).collect() }
    }

    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        let mut rest = bytemuck::cast_slice(&snapshot.cells);
        for memory in &self.regions {
            let (part, others) = rest.split_at(memory.window.len());
            memory.window.write(0, part);
            rest = others;
        }
        self.woken.clear();
        for (endpoint, &interest) in snapshot.waiting_for.iter().enumerate() {
            self.prepare_wait(endpoint, interest);
        }
    }

    #[inline]
    pub(super) fn drives_itself(&self) -> bool {
        self.drives_itself
    }

    pub(super) fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    pub(super) fn aborted(&self) -> Option<&(u32, String)> {
        self.aborted.as_ref()
    }

    pub(super) fn abort(&mut self, by: u32, reason: &str) {
        self.aborted.get_or_insert_with(|| (by, reason.to_owned()));
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Lets virtual time pass without a network event.
    #[inline]
    pub(crate) fn pass_time(&mut self, to: Time) {
        debug_assert!(self.now <= to && self.next_time().is_none_or(|next| next >= to));
        self.now = to;
    }

    pub(super) fn open(&mut self, rank: u32) -> usize {
        let channel = self.opened[rank as usize];
        self.opened[rank as usize] += 1;
        if channel as usize == self.waiters.len() {
            let hosts = self.hosts.iter().max().map_or(0, |most| *most as usize + 1);
            self.waiters.push(vec![Vec::new(); hosts]);
        }
        self.endpoints.push(State { rank, channel, completions: VecDeque::new(), broken: false, waiting_for: 0 });
        self.endpoints.len() - 1
    }

    pub(super) fn register(&mut self, owner: u32, bytes: usize, access: Access) -> Region {
        let cells = bytes.div_ceil(size_of::<u64>()).max(1);
        let memory: Arc<[AtomicU64]> = (0..cells).map(|_| AtomicU64::new(0)).collect();
        let base = NonNull::from(&*memory).cast::<u8>();
        // SAFETY: the slice is that long, zeroed, aligned, of atomics (so it may change behind
        // shared references), and lives as long as the `Arc` that the window keeps.
        let window = unsafe { Window::new(base, cells * size_of::<u64>(), Arc::new(memory)) };
        self.regions.push(Memory { owner, access, window });
        Region(self.regions.len() as u32 - 1)
    }

    /// Whose a region is, and what others may do with it.
    #[inline]
    pub(super) fn owner(&self, region: Region) -> Option<(u32, Access)> {
        self.regions.get(region.0 as usize).map(|memory| (memory.owner, memory.access))
    }

    /// Whether a rank may do something with a region.
    #[inline]
    pub(super) fn may(&self, rank: u32, region: Region, allows: fn(Access) -> bool) -> bool {
        self.owner(region).is_some_and(|(owner, access)| owner == rank || allows(access))
    }

    #[inline]
    pub(super) fn holds(&self, at: At, len: usize) -> bool {
        self.regions.get(at.region.0 as usize).is_some_and(|memory| {
            let size = memory.window.len();
            at.offset <= size && len <= size - at.offset
        })
    }

    pub(super) fn window(&self, region: Region, rank: u32) -> Option<Window> {
        let memory = self.regions.get(region.0 as usize)?;
        let here = self.hosts[memory.owner as usize] == self.hosts[rank as usize];
        (here && self.may(rank, region, Access::is_shared)).then(|| memory.window.clone())
    }

    fn cell(&self, place: SimPlace) -> &AtomicU64 {
        self.regions[place.region as usize].window.cell(place.offset as usize / size_of::<u64>())
    }

    fn fetch(&self, cell: SimPlace, expect: Option<u64>, value: u64) -> u64 {
        let cell = self.cell(cell);
        match expect {
            None => cell.fetch_add(value, Ordering::SeqCst),
            Some(expect) => {
                cell.compare_exchange(expect, value, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found)
            }
        }
    }

    fn bytes(&self, place: SimPlace) -> (&Window, usize) {
        (&self.regions[place.region as usize].window, place.offset as usize)
    }

    pub(crate) fn next_time(&self) -> Option<Time> {
        self.timeline.next_time()
    }

    /// Lets the next thing happen.
    pub(crate) fn advance(&mut self) {
        self.advance_within(Time::MAX);
    }

    /// Lets the next thing happen that is due up to a time; whether there was one.
    fn advance_within(&mut self, time: Time) -> bool {
        let Some((at, effect)) = self.timeline.pop_within(time) else { return false };
        self.now = self.now.max(at);
        self.take_effect(effect);
        true
    }

    fn take_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Copy { from, to, len, lands } => {
                if lands <= self.now {
                    Window::copy(self.bytes(from), self.bytes(to), len as usize);
                } else {
                    let mut bytes = vec![0; len as usize].into_boxed_slice();
                    let (window, offset) = self.bytes(from);
                    window.read(offset, &mut bytes);
                    self.schedule(lands, Effect::Land { to, bytes });
                }
            }
            Effect::Land { to, bytes } => {
                let (window, offset) = self.bytes(to);
                window.write(offset, &bytes);
            }
            Effect::Change { endpoint, cell: place, set, value } => {
                let cell = self.cell(place);
                if set {
                    cell.store(value, Ordering::Release);
                } else {
                    cell.fetch_add(value, Ordering::AcqRel);
                }
                let host = self.hosts[self.regions[place.region as usize].owner as usize];
                let channel = self.endpoints[endpoint as usize].channel;
                self.wake(host, channel, u32::MAX, None);
            }
            Effect::Fetch(fetch) => {
                let Fetch { endpoint, cell, expect, value, token } = *fetch;
                let before = self.fetch(cell, expect, value);
                let done = self.arrival(self.way(endpoint, Region(cell.region)), self.now);
                self.schedule(done, Effect::Complete { endpoint: endpoint as u32, token, value: before });
            }
            Effect::Complete { endpoint, token, value } => {
                self.endpoints[endpoint as usize].completions.push_back(Completion { token, value });
                self.end_wait(endpoint as usize);
            }
            Effect::Break { endpoint } => {
                self.endpoints[endpoint as usize].broken = true;
                self.end_wait(endpoint as usize);
            }
        }
    }

    #[inline]
    pub(super) fn completion(&mut self, endpoint: usize) -> Result<Option<Completion>> {
        let state = &mut self.endpoints[endpoint];
        if state.broken {
            let cause = std::io::Error::other("an operation completed with an error");
            return Err(Error::os(state.rank, "poll", cause));
        }
        Ok(state.completions.pop_front())
    }

    #[inline]
    pub(super) fn has_completion(&self, endpoint: usize) -> bool {
        !self.endpoints[endpoint].completions.is_empty()
    }

    pub(super) fn prepare_wait(&mut self, endpoint: usize, interest: Interest) {
        let before = std::mem::replace(&mut self.endpoints[endpoint].waiting_for, interest);
        if (before == 0) != (interest == 0) {
            let waiters = self.waiters_beside(endpoint);
            match waiters.binary_search(&endpoint) {
                Ok(place) => _ = waiters.remove(place),
                Err(place) => waiters.insert(place, endpoint),
            }
        }
    }

    /// Those that wait on the host and the channel of an endpoint.
    fn waiters_beside(&mut self, endpoint: usize) -> &mut Vec<usize> {
        let State { rank, channel, .. } = self.endpoints[endpoint];
        &mut self.waiters[channel as usize][self.hosts[rank as usize] as usize]
    }

    /// Whether any endpoint waits for this.
    pub(crate) fn is_awaited(&self, interest: Interest) -> bool {
        self.endpoints.iter().any(|state| state.waiting_for == interest)
    }

    pub(crate) fn is_waiting(&self, endpoint: usize) -> bool {
        self.endpoints[endpoint].waiting_for != 0
    }

    fn end_wait(&mut self, endpoint: usize) {
        if self.is_waiting(endpoint) {
            self.prepare_wait(endpoint, 0);
            self.woken.push(endpoint);
        }
    }

    /// An endpoint's process ended: what it had posted and what has not happened never will.
    pub(crate) fn kill(&mut self, endpoint: usize) {
        self.timeline.retain(|effect| match effect {
            Effect::Copy { .. } | Effect::Land { .. } => true,
            Effect::Fetch(fetch) => fetch.endpoint != endpoint,
            Effect::Change { endpoint: by, .. }
            | Effect::Complete { endpoint: by, .. }
            | Effect::Break { endpoint: by } => *by as usize != endpoint,
        });
    }

    pub(super) fn wake_host(&mut self, endpoint: usize, most: u32, interest: Interest) -> u32 {
        let State { rank, channel, .. } = self.endpoints[endpoint];
        self.wake(self.hosts[rank as usize], channel, most, Some(interest))
    }

    fn wake(&mut self, host: u32, channel: u32, most: u32, interest: Option<Interest>) -> u32 {
        let Net { waiters, endpoints, woken, .. } = self;
        let mut count = 0;
        waiters[channel as usize][host as usize].retain(|&endpoint| {
            let waiting_for = &mut endpoints[endpoint].waiting_for;
            let ends = count < most && interest.is_none_or(|interest| *waiting_for == interest);
            if ends {
                *waiting_for = 0;
                woken.push(endpoint);
                count += 1;
            }
            !ends
        });
        count
    }

    /// Lets things happen until one of them ends a wait, none is left up to a time, or `most` have; says how many.
    pub(crate) fn advance_to(&mut self, time: Option<Time>, most: u64) -> u64 {
        let time = time.unwrap_or(Time::MAX);
        let mut happened = 0;
        while happened < most && self.woken.is_empty() && self.advance_within(time) {
            happened += 1;
        }
        happened
    }

    /// Endpoints whose wait ended since the last call, in place of nothing; whether there are any.
    #[inline]
    pub(crate) fn take_woken(&mut self, into: &mut Vec<usize>) -> bool {
        debug_assert!(into.is_empty());
        let any = !self.woken.is_empty();
        if any {
            std::mem::swap(into, &mut self.woken);
        }
        any
    }
}
