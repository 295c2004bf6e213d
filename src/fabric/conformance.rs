//! The conformance suite: what every fabric must do, tested once for all of them.
//!
//! Each check gets a fresh world of the fabric under test, with all ranks in this process, and
//! panics with what it found. Run [`all`] in a test of the fabric.

mod threads;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Access, At, Atomic, Change, Endpoint, Fabric, Key, Posted, RawAccess, Region, Signal, Window};
use crate::fault::Fault;

/// Makes a world of that many ranks; says on which host each is, too.
pub type MakeWorld<'a> = &'a dyn Fn(u32) -> (Vec<Box<dyn Fabric>>, Vec<u32>);

/// Runs every check.
///
/// # Panics
/// If the fabric does not do what the module says.
pub fn all(make: MakeWorld<'_>) {
    for ranks in [1, 2, 5] {
        names(make, ranks);
        memory_is_zeroed_and_shared(make, ranks);
        put_lands_before_its_signal(make, ranks);
        signals_add_up(make, ranks);
        cells_advance(make, ranks);
        reads_see_what_was_there(make, ranks);
        atomics_are_one_order(make, ranks);
        threads::exchanges_bring_what_each_gave(make, ranks);
    }
    what_has_completed_is_there(make);
    many_are_in_flight_at_once(make);
    memory_stays_until_all_have_closed_it(make);
    threads::a_signal_comes_after_all_of_its_data(make);
    threads::sleepers_are_woken(make);
    threads::a_sleeper_is_woken(make);
    bad_places_are_refused(make);
    bad_keys_are_refused(make);
    only_what_the_owner_allows(make);
    a_signal_ends_a_wait(make);
    a_wake_reaches_the_ranks_that_wait_for_it(make);
    abort_reaches_all_ranks(make);
}

struct World {
    ends: Vec<Box<dyn Endpoint>>,
    /// `regions[i][j]`: rank j's region as rank i names it.
    regions: Vec<Vec<Region>>,
    fabrics: Fabrics,
    /// The host of each rank.
    hosts: Vec<u32>,
}

/// All fabrics leave together, as ranks do; one that leaves alone would wait for the others.
struct Fabrics(Vec<Box<dyn Fabric>>);

impl Drop for Fabrics {
    fn drop(&mut self) {
        std::thread::scope(|scope| self.0.iter().for_each(|fabric| _ = scope.spawn(|| fabric.leave())));
    }
}

impl std::ops::Deref for Fabrics {
    type Target = Vec<Box<dyn Fabric>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

const SIZE: usize = 1 << 16;

/// Lengths of data: a cell, lengths that fit a message, one operation, and several.
const LENGTHS: [usize; 8] = [8, 16, 48, 1000, 8 << 10, 64 << 10, 256 << 10, (2 << 20) + 8];

/// Offset of a cell behind the longest of them.
const BEHIND: usize = LENGTHS[LENGTHS.len() - 1];

const CELL: usize = size_of::<u64>();

/// A word of test data: each of its bytes changes with the round.
fn word(round: u64, cell: usize) -> u64 {
    round.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (cell as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn patience() -> Duration {
    Fault::patience(Duration::from_secs(20))
}

fn world(make: MakeWorld<'_>, ranks: u32) -> World {
    sized(make, ranks, SIZE)
}

/// A world in which every rank has a region of `size` bytes.
fn sized(make: MakeWorld<'_>, ranks: u32, size: usize) -> World {
    let (fabrics, hosts) = make(ranks);
    let fabrics = Fabrics(fabrics);
    let (ends, regions) = open(&fabrics, size);
    World { ends, regions, fabrics, hosts }
}

/// An endpoint of every rank with a region of `size` bytes, and `regions[i][j]`: rank j's region as rank i names it.
fn open(fabrics: &Fabrics, size: usize) -> (Vec<Box<dyn Endpoint>>, Vec<Vec<Region>>) {
    let mut ends: Vec<_> = fabrics.iter().map(|fabric| fabric.open(RawAccess::CRATE).expect("open")).collect();
    let own: Vec<_> = ends.iter_mut().map(|end| end.register(size, Access::ReadWrite).expect("register")).collect();
    let keys: Vec<_> = ends.iter().zip(&own).map(|(end, &region)| end.key(region)).collect();
    let regions = ends
        .iter_mut()
        .enumerate()
        .map(|(me, end)| {
            let name = |(peer, &key): (usize, &Key)| match peer == me {
                true => own[me],
                false => end.import(peer as u32, key).expect("import"),
            };
            keys.iter().enumerate().map(name).collect()
        })
        .collect();
    (ends, regions)
}

fn at(region: Region, offset: usize) -> At {
    At { region, offset }
}

impl World {
    fn own(&self, rank: usize) -> Window {
        self.ends[rank].window(self.regions[rank][rank]).expect("the own region is mapped")
    }

    /// Waits until the operation with this token completes on `rank`, and returns its value.
    fn finish(&mut self, rank: usize, posted: Posted, token: u64) -> u64 {
        let start = Instant::now();
        match posted {
            Posted::Done(value) => value,
            Posted::Pending => loop {
                if let Some(completion) = self.ends[rank].poll().expect("poll") {
                    assert_eq!(completion.token, token, "a completion for another operation");
                    return completion.value;
                }
                assert!(start.elapsed() < patience(), "operation {token} never completed");
            },
        }
    }

    fn load(&self, rank: usize, offset: usize) -> u64 {
        self.own(rank).cell(offset / 8).load(Ordering::Acquire)
    }
}

fn names(make: MakeWorld<'_>, ranks: u32) {
    let fabrics = Fabrics(make(ranks).0);
    for (rank, fabric) in fabrics.iter().enumerate() {
        assert_eq!((fabric.rank(), fabric.ranks()), (rank as u32, ranks));
        fabric.health("conformance").expect("a new world is healthy");
        fabric.check_peers("conformance").expect("no rank died");
    }
}

fn memory_is_zeroed_and_shared(make: MakeWorld<'_>, ranks: u32) {
    let world = world(make, ranks);
    let hosts = &world.hosts;
    for me in 0..ranks as usize {
        assert!(world.own(me).len() >= SIZE);
        assert!((0..SIZE / 8).all(|cell| world.own(me).cell(cell).load(Ordering::Relaxed) == 0));
        world.own(me).cell(7).store(me as u64 + 1, Ordering::Release);
        for peer in (0..ranks as usize).filter(|&peer| hosts[peer] == hosts[me]) {
            let window = world.ends[peer].window(world.regions[peer][me]).expect("same host, so mapped");
            assert_eq!(window.cell(7).load(Ordering::Acquire), me as u64 + 1);
        }
    }
}

fn put_lands_before_its_signal(make: MakeWorld<'_>, ranks: u32) {
    let mut world = world(make, ranks);
    let (from, to, len) = (0, ranks as usize - 1, 24 * 1024 + 3);
    for round in 1..20u64 {
        let fill = round.wrapping_mul(0x0101_0101_0101_0101);
        (0..=len / 8).for_each(|cell| world.own(from).cell(cell).store(fill, Ordering::Relaxed));
        let signal =
            Signal { at: at(world.regions[from][to], SIZE - 8), change: Change::Set(round), awaited: round % 2 == 0 };
        let (source, target) = (at(world.regions[from][from], 0), at(world.regions[from][to], 32 * 1024));
        let posted = world.ends[from].put(source, target, len, Some(signal), round).expect("put");
        let start = Instant::now();
        let mut completed = matches!(posted, Posted::Done(_));
        while world.load(to, SIZE - 8) != round {
            completed |= world.ends[from].poll().expect("poll").is_some();
            assert!(start.elapsed() < patience(), "the signal never came");
        }
        let seen: Vec<u64> = (0..len / 8).map(|cell| world.own(to).cell(4096 + cell).load(Ordering::Relaxed)).collect();
        assert!(seen.iter().all(|&cell| cell == fill), "the signal came before its data");
        assert_eq!(world.load(to, 32 * 1024 + len / 8 * 8) & 0xFF_FFFF, fill & 0xFF_FFFF, "the last bytes");
        if !completed {
            world.finish(from, Posted::Pending, round);
        }
    }
    let beyond = world.load(to, 32 * 1024 + (len / 8 + 1) * 8);
    assert_eq!(beyond, 0, "a put wrote beyond its end");
}

fn signals_add_up(make: MakeWorld<'_>, ranks: u32) {
    let mut world = world(make, ranks);
    for round in 0..10 {
        for from in 0..ranks as usize {
            let signal =
                Signal { at: at(world.regions[from][0], 64), change: Change::Add(from as u64 + 1), awaited: false };
            let posted = world.ends[from].signal(signal, round).expect("signal");
            world.finish(from, posted, round);
        }
    }
    assert_eq!(world.load(0, 64), 10 * (1..=u64::from(ranks)).sum::<u64>());
}

/// Several advances in flight: the cell never shows less than before, and in the end what the last one reached.
fn cells_advance(make: MakeWorld<'_>, ranks: u32) {
    let mut world = world(make, ranks);
    let (from, to, far) = (0, ranks as usize - 1, u64::MAX);
    let values: Vec<u64> = (1..=40).map(|step| step * step).chain([1 << 40, far]).collect();
    let (mut before, mut seen, mut in_flight) = (0, 0, 0);
    for (number, &value) in values.iter().enumerate() {
        let signal = Signal {
            at: at(world.regions[from][to], 192),
            change: Change::advance(before, value),
            awaited: number % 2 == 0,
        };
        before = value;
        in_flight += usize::from(world.ends[from].signal(signal, 1).expect("signal") == Posted::Pending);
        in_flight -= usize::from(world.ends[from].poll().expect("poll").is_some());
        let now = world.load(to, 192);
        assert!(seen <= now, "a cell went back from {seen} to {now}");
        seen = now;
    }
    let start = Instant::now();
    while in_flight > 0 {
        in_flight -= usize::from(world.ends[from].poll().expect("poll").is_some());
        assert!(start.elapsed() < patience(), "an advance never completed");
    }
    assert_eq!(world.load(to, 192), far);
}

fn reads_see_what_was_there(make: MakeWorld<'_>, ranks: u32) {
    let mut world = world(make, ranks);
    let (me, peer, len) = (0, ranks as usize - 1, 8 * 1000);
    (0..1000).for_each(|cell| world.own(peer).cell(cell).store(cell as u64 * 3 + 1, Ordering::Release));
    let (from, to) = (at(world.regions[me][peer], 0), at(world.regions[me][me], 40_000));
    let posted = world.ends[me].read(from, to, len, 5).expect("read");
    world.finish(me, posted, 5);
    assert!((0..1000).all(|cell| world.load(me, 40_000 + 8 * cell) == cell as u64 * 3 + 1));
    let posted = world.ends[me].read(from, to, 0, 6).expect("an empty read");
    world.finish(me, posted, 6);
}

fn atomics_are_one_order(make: MakeWorld<'_>, ranks: u32) {
    let mut world = world(make, ranks);
    let rounds = 50;
    let mut tickets: Vec<u64> = Vec::new();
    for round in 0..rounds {
        let post = |world: &mut World, from: usize| {
            let place = at(world.regions[from][0], 128);
            world.ends[from].atomic(place, Atomic::FetchAdd(1), round).expect("fetch-add")
        };
        let posted: Vec<_> = (0..ranks as usize).map(|from| post(&mut world, from)).collect();
        let values = posted.into_iter().enumerate().map(|(from, posted)| world.finish(from, posted, round));
        tickets.extend(values.collect::<Vec<_>>());
    }
    tickets.sort_unstable();
    assert!(tickets.iter().copied().eq(0..rounds * u64::from(ranks)), "tickets lost or doubled");

    let mut winners = 0;
    for from in 0..ranks as usize {
        let swap = Atomic::CompareSwap { expect: 0, new: from as u64 + 1 };
        let place = at(world.regions[from][0], 136);
        let posted = world.ends[from].atomic(place, swap, 1).expect("compare-swap");
        winners += u32::from(world.finish(from, posted, 1) == 0);
    }
    assert_eq!((winners, world.load(0, 136)), (1, 1), "one compare-swap wins, and the value is its");
}

/// Data of a completed operation is there, without another look by the target.
fn what_has_completed_is_there(make: MakeWorld<'_>) {
    let mut world = sized(make, 2, BEHIND + CELL);
    let (source, target) = (world.own(0), world.own(1));
    let (near, far) = (at(world.regions[0][0], 0), at(world.regions[0][1], 0));
    for (round, len) in (1u64..).zip(LENGTHS) {
        let cells = len / CELL;
        (0..cells).for_each(|cell| source.cell(cell).store(word(round, cell), Ordering::Relaxed));
        let signal = Signal {
            at: at(world.regions[0][1], BEHIND),
            change: Change::Set(round),
            awaited: round.is_multiple_of(2),
        };
        let posted = world.ends[0].put(near, far, len, Some(signal), round).expect("put");
        world.finish(0, posted, round);
        let is_there = |window: &Window, cell: usize| window.cell(cell).load(Ordering::Relaxed) == word(round, cell);
        assert_eq!(target.cell(BEHIND / CELL).load(Ordering::Acquire), round, "a put of {len} bytes has not signalled");
        assert!((0..cells).rev().all(|cell| is_there(&target, cell)), "a put of {len} bytes is not there");

        // Read it back over the source.
        (0..cells).for_each(|cell| source.cell(cell).store(0, Ordering::Relaxed));
        let posted = world.ends[0].read(far, near, len, round).expect("read");
        world.finish(0, posted, round);
        assert!((0..cells).rev().all(|cell| is_there(&source, cell)), "a read of {len} bytes is not there");
    }
}

/// More operations than any fabric has in flight: each completes once.
fn many_are_in_flight_at_once(make: MakeWorld<'_>) {
    const COUNT: usize = 200;
    /// Cells of one operation: that of its signal, and its data.
    const EACH: usize = 8;
    let mut world = world(make, 2);
    let (source, target) = (world.own(0), world.own(1));
    let (near, far) = (world.regions[0][0], world.regions[0][1]);
    (0..COUNT * EACH).for_each(|cell| source.cell(cell).store(word(1, cell), Ordering::Relaxed));
    let data = |number: usize| number % EACH;
    let mut done = [false; COUNT];
    for (number, done) in done.iter_mut().enumerate() {
        let place = number * EACH * CELL;
        let (change, awaited) = (Change::Set(number as u64 + 1), number % 2 == 0);
        let signal = Signal { at: at(far, place), change, awaited };
        let (from, to) = (at(near, place + CELL), at(far, place + CELL));
        let posted = world.ends[0].put(from, to, data(number) * CELL, Some(signal), number as u64).expect("put");
        *done = posted != Posted::Pending;
    }
    let start = Instant::now();
    while done.contains(&false) {
        if let Some(completion) = world.ends[0].poll().expect("poll") {
            let before = std::mem::replace(&mut done[completion.token as usize], true);
            assert!(!before, "operation {} completed twice", completion.token);
        }
        assert!(start.elapsed() < patience(), "some never completed: {done:?}");
    }
    for number in 0..COUNT {
        let load = |cell: usize| target.cell(number * EACH + cell).load(Ordering::Acquire);
        assert_eq!(load(0), number as u64 + 1, "the signal of operation {number}");
        for cell in 1..EACH {
            let expected = if cell <= data(number) { word(1, number * EACH + cell) } else { 0 };
            assert_eq!(load(cell), expected, "cell {cell} of operation {number}");
        }
    }
}

fn memory_stays_until_all_have_closed_it(make: MakeWorld<'_>) {
    let mut world = world(make, 2);
    world.own(1).cell(5).store(77, Ordering::Release);
    drop(world.ends.pop());
    let (from, to) = (at(world.regions[0][1], 5 * CELL), at(world.regions[0][0], 0));
    let posted = world.ends[0].read(from, to, CELL, 1).expect("read");
    world.finish(0, posted, 1);
    assert_eq!(world.load(0, 0), 77, "it went with the endpoint of its owner");
}

fn bad_places_are_refused(make: MakeWorld<'_>) {
    let mut world = world(make, 2);
    let (own, peer) = (world.regions[0][0], world.regions[0][1]);
    let size = world.own(0).len();
    let end = &mut world.ends[0];
    assert!(end.put(at(own, 0), at(peer, size), 1, None, 0).is_err());
    assert!(end.put(at(own, size - 8), at(peer, 0), 9, None, 0).is_err());
    assert!(end.put(at(own, 0), at(peer, usize::MAX), 2, None, 0).is_err());
    assert!(end.read(at(peer, size - 1), at(own, 0), 2, 0).is_err());
    assert!(end.atomic(at(peer, size - 4), Atomic::FetchAdd(1), 0).is_err());
    assert!(end.atomic(at(peer, 4), Atomic::FetchAdd(1), 0).is_err());
    assert!(end.signal(Signal { at: at(peer, size), change: Change::Set(1), awaited: true }, 0).is_err());
}

fn bad_keys_are_refused(make: MakeWorld<'_>) {
    let mut world = world(make, 2);
    let mut key = world.ends[1].key(world.regions[1][1]);
    assert!(world.ends[0].import(0, key).is_err() || world.regions[0][0] == world.regions[0][1]);
    key.0[0] = u64::MAX - 4095;
    assert!(world.ends[0].import(1, key).is_err());
    assert!(world.ends[0].import(7, key).is_err());
}

fn only_what_the_owner_allows(make: MakeWorld<'_>) {
    let mut world = world(make, 2);
    let near = world.ends[0].register(SIZE, Access::Local).expect("register");
    let share = |access| {
        let region = world.ends[1].register(SIZE, access).expect("register");
        (region, world.ends[1].key(region))
    };
    let accesses = [Access::Local, Access::Read, Access::Write];
    let [(_, local), (read_own, read), (write_own, write)] = accesses.map(share);
    assert!(world.ends[0].import(1, local).is_err(), "a local region has a key that a peer can use");
    let [read, write] = [read, write].map(|key| world.ends[0].import(1, key).expect("import"));
    let set = |region| Signal { at: at(region, 0), change: Change::Set(1), awaited: true };

    let end = &mut world.ends[0];
    assert!(end.put(at(near, 0), at(read, 0), 8, None, 0).is_err(), "a put to what may be read");
    assert!(end.put(at(near, 0), at(write, 0), 8, Some(set(read)), 0).is_err(), "its signal there");
    assert!(end.signal(set(read), 0).is_err(), "a signal there");
    assert!(end.atomic(at(read, 0), Atomic::FetchAdd(1), 0).is_err(), "an atomic there");
    assert!(end.read(at(write, 0), at(near, 0), 8, 0).is_err(), "a read of what may be written");

    // Allowed operations work, with local memory on the near side.
    let own = |world: &World, region| world.ends[1].window(region).expect("the own region is mapped");
    own(&world, read_own).cell(3).store(7, Ordering::Release);
    let posted = world.ends[0].read(at(read, 24), at(near, 8), 8, 1).expect("read");
    world.finish(0, posted, 1);
    let posted = world.ends[0].put(at(near, 8), at(write, 16), 8, Some(set(write)), 2).expect("put");
    world.finish(0, posted, 2);
    let seen = |cell| own(&world, write_own).cell(cell).load(Ordering::Acquire);
    assert_eq!((seen(0), seen(2)), (1, 7));
    assert_eq!(own(&world, read_own).cell(0).load(Ordering::Acquire), 0, "a peer wrote what it may read");
    // The owner may do everything.
    let posted = world.ends[1].signal(set(read_own), 3).expect("signal");
    world.finish(1, posted, 3);
    assert_eq!(own(&world, read_own).cell(0).load(Ordering::Acquire), 1);
}

fn a_signal_ends_a_wait(make: MakeWorld<'_>) {
    let World { ends, regions, .. } = &mut world(make, 2);
    let [one, two] = &mut ends[..] else { panic!("two ends") };
    let window = two.window(regions[1][1]).expect("own");
    two.prepare_wait(1);
    let signal = Signal { at: at(regions[0][1], 8), change: Change::Set(9), awaited: true };
    // The signal is posted after the wait was announced and before it begins: it must not be
    // missed.
    let posted = one.signal(signal, 1).expect("signal");
    let start = Instant::now();
    loop {
        two.wait(patience());
        assert!(start.elapsed() < patience() / 2, "the signal did not end the wait");
        two.prepare_wait(1);
        if window.cell(1).load(Ordering::Acquire) == 9 {
            break;
        }
    }
    two.cancel_wait();
    if posted == Posted::Pending {
        while one.poll().expect("poll").is_none() {
            assert!(start.elapsed() < patience(), "the signal never completed");
        }
    }
}

fn a_wake_reaches_the_ranks_that_wait_for_it(make: MakeWorld<'_>) {
    let mut world = world(make, 3);
    let hosts = &world.hosts;
    if hosts.iter().any(|&host| host != hosts[0]) {
        return; // waking is for ranks of one host
    }
    world.ends[1].prepare_wait(1);
    world.ends[2].prepare_wait(2);
    assert_eq!(world.ends[0].wake(u32::MAX, 2), 1);
    assert_eq!(world.ends[0].wake(u32::MAX, 1), 1);
    world.ends[1].wait(patience());
    world.ends[2].wait(patience());
    assert_eq!(world.ends[0].wake(u32::MAX, 1), 0, "no rank waits");
    world.ends[1].prepare_wait(1);
    world.ends[2].prepare_wait(1);
    assert_eq!(world.ends[0].wake(u32::MAX, 1), 2, "both wait");
    world.ends[1].prepare_wait(1);
    world.ends[2].prepare_wait(1);
    assert_eq!(world.ends[0].wake(1, 1), 1, "one is enough");
    world.ends[1].cancel_wait();
    world.ends[2].cancel_wait();
    assert_eq!(world.ends[0].wake(u32::MAX, 1), 0, "taken back");
    world.ends[1].prepare_wait(1);
    world.ends[1].wait(Duration::from_millis(1)); // ends by time
}

fn abort_reaches_all_ranks(make: MakeWorld<'_>) {
    let world = world(make, 3);
    world.fabrics[1].abort("a reason to stop");
    let start = Instant::now();
    while world.fabrics.iter().any(|fabric| fabric.health("conformance").is_ok()) {
        assert!(start.elapsed() < patience(), "some never heard of it");
    }
    world.fabrics[2].abort("too late");
    for fabric in world.fabrics.iter() {
        let error = fabric.health("conformance").expect_err("aborted").to_string();
        assert!(error.contains("rank 1") && error.contains("a reason to stop"), "{error}");
        assert!(error.contains(&format!("rank {}:", fabric.rank())), "{error}");
    }
}
