//! Runs a test as every rank of a world of threads, over every fabric.

use std::time::{Duration, Instant};

use earlybird::config::FabricChoice;
use earlybird::{Config, OfiSettings, VerbsSettings, World};

use super::tier::by_tier;
use super::{Way, providers, rdma};

/// More ranks than this have too many endpoints for one process.
const MOST_ENDPOINTS: u32 = 5;

/// Chooses a single way, by its name, where others were tested before: in a guest with an RDMA device.
const ONLY: &str = "TEST_WAY";

/// Shared memory, the providers of libfabric (all in the deep tier, the first one in the quick tier), and RDMA verbs
/// where there is a device.
pub fn ways() -> Vec<Way> {
    match std::env::var(ONLY).as_deref() {
        Err(_) => {}
        Ok("verbs") => return vec![Way::Verbs],
        Ok(other) => panic!("{ONLY}={other}: the only choice is verbs"),
    }
    let providers = providers().iter().copied().take(by_tier(1, usize::MAX));
    [Way::Shm].into_iter().chain(providers.map(Way::Ofi)).chain(rdma().map(|_| Way::Verbs)).collect()
}

/// Runs `body` as every rank of a world; returns the result of each.
pub fn world<R: Send>(way: Way, ranks: u32, deadline: Duration, body: &(impl Fn(World) -> R + Sync)) -> Vec<R> {
    let (fabric, provider) = match way {
        Way::Shm => (FabricChoice::Shm, None),
        Way::Ofi(provider) => (FabricChoice::Ofi, Some(provider.to_owned())),
        Way::Verbs => (FabricChoice::Verbs, None),
    };
    // A run of a test chooses for all its worlds.
    let memory_polling = Config::from_env().expect("variables").verbs.memory_polling;
    let config = Config {
        fabric,
        ofi: OfiSettings { provider, ..OfiSettings::default() },
        verbs: VerbsSettings { memory_polling, ..VerbsSettings::default() },
        deadline,
        ..Config::default()
    };
    let started = Instant::now();
    let worlds = World::in_this_process(ranks, &config).unwrap_or_else(|error| panic!("{way:?}: {error}"));
    let said = std::thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(|| body(world))).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ended.into_iter().map(|end| end.unwrap_or_else(|_| panic!("{way:?}, {ranks} ranks"))).collect()
    });
    println!("{way:?}, {ranks} ranks: {:.2?}", started.elapsed());
    said
}

/// The same over every fabric, one after the other: the results of all ranks of each world.
pub fn everywhere<R: Send>(ranks: u32, deadline: Duration, body: impl Fn(World) -> R + Sync) -> Vec<Vec<R>> {
    let fits = |way: &Way| *way == Way::Shm || ranks <= MOST_ENDPOINTS;
    ways().into_iter().filter(fits).map(|way| world(way, ranks, deadline, &body)).collect()
}
