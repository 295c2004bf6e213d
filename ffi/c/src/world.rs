//! The processes of a job.

use std::ffi::{CString, c_char};

use earlybird::{Config, FabricChoice, World};

use crate::error::call;
use crate::handles::Handles;
use crate::input::{Structure, check_place, choice, give, give_structure, seconds, take_structure, text};
use crate::status::{Failure, eb_status};

/// The processes of a job, as one of them sees them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct eb_world {
    /// An opaque number; 0 is not a handle.
    pub id: u64,
}

/// A world, and its names as C strings.
pub(crate) struct Joined {
    pub(crate) world: World,
    fabric: CString,
    provider: CString,
}

pub(crate) static WORLDS: Handles<Joined> = Handles::new("world", 1);

/// How to join a world. A field that is 0 keeps the value from the environment (EARLYBIRD_FABRIC and so on).
#[derive(Debug)]
#[repr(C)]
pub struct eb_config {
    /// sizeof(eb_config), set by the caller.
    pub size: usize,
    /// The transport: "auto", "shm", "ofi" or "verbs".
    pub fabric: *const c_char,
    /// The libfabric provider, such as "tcp;ofi_rxm".
    pub provider: *const c_char,
    /// The secret of this job, at least 16 bytes long.
    pub secret: *const c_char,
    /// The file of measured parameters.
    pub hw_config: *const c_char,
    /// The time limit of joining, and of later calls that all ranks make together and that have no limit of their own.
    pub deadline: f64,
    /// 2: ranks that share the memory of a machine are a host. 1: this rank is a host of its own, and reaches all others
    /// over the network.
    pub levels: u32,
}

// SAFETY: `repr(C)`, the size first; the other fields are pointers and numbers.
unsafe impl Structure for eb_config {}

/// The properties of a world.
#[derive(Debug)]
#[repr(C)]
pub struct eb_world_info {
    /// sizeof(eb_world_info), set by the caller.
    pub size: usize,
    /// This rank, from 0.
    pub rank: u32,
    /// The number of ranks in the world.
    pub ranks: u32,
    /// The transport. Valid until the world is closed.
    pub fabric: *const c_char,
    /// The provider of libfabric, or over verbs the kind of network, such as "RoCE v2"; empty in shared memory. Valid until
    /// the world is closed.
    pub provider: *const c_char,
    /// The number of hosts: ranks that share memory are on one.
    pub hosts: u32,
}

// SAFETY: `repr(C)`, the size first; the other fields are numbers and pointers.
unsafe impl Structure for eb_world_info {}

/// Joins the world that the launcher's environment describes. Without a launcher, it creates a world of one rank.
/// Returns when all ranks have joined. `config` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_from_env(config: *const eb_config, world: *mut eb_world) -> eb_status {
    // SAFETY: as here.
    call(|| unsafe { joined(config, world, World::with) })
}

/// Joins a world of `ranks` ranks as `rank`, whatever the environment says: for the world of a group or a library. All
/// ranks pass the same `store`, and a new one for each world: unix:NAME on one machine, or tcp:HOST:PORT with a free
/// port on the host of rank 0. Returns when all ranks have joined. `config` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_join(
    rank: u32,
    ranks: u32,
    store: *const c_char,
    config: *const eb_config,
    world: *mut eb_world,
) -> eb_status {
    call(|| {
        // SAFETY: the caller passes a text or NULL.
        let store = unsafe { text(store, "store") }?.ok_or_else(|| Failure::argument("store is NULL"))?;
        // SAFETY: as here.
        unsafe { joined(config, world, |config| World::join(rank, ranks, store, config)) }
    })
}

/// Creates a world of the ranks that pass the same `color`, in `group`. Their ranks there ascend with `key`; ranks with
/// the same key keep the order of `world`. All ranks of `world` make this call, and each gets the world of its own
/// color. A rank that needs no new world passes a color that no other rank passes, and closes the result. The ranks
/// meet through `world`, so they need no store. The new world uses shared memory if all its ranks are on one machine,
/// unless another fabric was chosen. It outlives `world`. After EB_TIMEOUT the ranks are out of step: create a new
/// world.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_split(world: eb_world, color: u32, key: i32, group: *mut eb_world) -> eb_status {
    call(|| {
        check_place(group, "group")?;
        let split = WORLDS.get(world.id)?.world.split(color, key)?;
        // SAFETY: the caller passes memory for one.
        unsafe { give(group, add(split), "group") }
    })
}

/// Creates the handle of a world.
fn add(world: World) -> eb_world {
    let name = |name: &str| CString::new(name).unwrap_or_default();
    let (fabric, provider) = (name(world.fabric_name()), name(world.provider().unwrap_or_default()));
    eb_world { id: WORLDS.add(Joined { world, fabric, provider }) }
}

/// # Safety
/// `config` is null or a structure of the size that it states, with texts or null pointers. `world` is null or points
/// to memory for one.
unsafe fn joined(
    config: *const eb_config,
    world: *mut eb_world,
    join: impl FnOnce(&Config) -> earlybird::Result<World>,
) -> Result<(), Failure> {
    check_place(world, "world")?;
    earlybird::log::to_stderr()?;
    let mut chosen = Config::from_env()?;
    if !config.is_null() {
        // SAFETY: the caller passes a structure of the size that it states, with texts or NULL.
        unsafe {
            let config = take_structure(config, "config")?;
            if let Some(fabric) = choice::<FabricChoice>(config.fabric, "config.fabric")? {
                chosen.fabric = fabric;
            }
            let own = |given, name| text(given, name).map(|text| text.map(str::to_owned));
            chosen.ofi.provider = own(config.provider, "config.provider")?.or(chosen.ofi.provider);
            chosen.secret = own(config.secret, "config.secret")?.or(chosen.secret);
            chosen.hw_config = own(config.hw_config, "config.hw_config")?.map(Into::into).or(chosen.hw_config);
            if config.deadline != 0.0 {
                chosen.deadline = seconds(config.deadline, "config.deadline")?;
            }
            if config.levels != 0 {
                chosen.set_levels(config.levels)?;
            }
        }
    }
    let joined = join(&chosen)?;
    // SAFETY: the caller passes memory for one.
    unsafe { give(world, add(joined), "world") }
}

/// Fills `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_get_info(world: eb_world, info: *mut eb_world_info) -> eb_status {
    call(|| {
        let joined = WORLDS.get(world.id)?;
        let (rank, ranks) = (joined.world.rank(), joined.world.size());
        let (fabric, provider) = (joined.fabric.as_ptr(), joined.provider.as_ptr());
        let hosts = joined.world.hosts().len() as u32;
        let filled = eb_world_info { size: 0, rank, ranks, fabric, provider, hosts };
        // SAFETY: the caller passes NULL or a structure of the size that it states.
        unsafe { give_structure(info, filled, "info") }
    })
}

/// Blocks until all ranks have called it. After EB_TIMEOUT the ranks are out of step: create a new world.
#[unsafe(no_mangle)]
pub extern "C" fn eb_world_barrier(world: eb_world, timeout: f64) -> eb_status {
    call(|| {
        let timeout = seconds(timeout, "timeout")?;
        Ok(WORLDS.get(world.id)?.world.barrier(timeout)?)
    })
}

/// Makes every later call of every rank fail, with this rank and `reason` in the error. Any thread may call it; later
/// reasons do not replace the first one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_abort(world: eb_world, reason: *const c_char) -> eb_status {
    call(|| {
        // SAFETY: the caller passes a text or NULL.
        let reason = unsafe { text(reason, "reason")? }.unwrap_or("no reason given");
        WORLDS.get(world.id)?.world.abort(reason);
        Ok(())
    })
}

/// Closes a handle. The rank leaves the world when its last collective is destroyed, too. Over a network the call may
/// wait until other ranks have received what this rank has sent.
#[unsafe(no_mangle)]
pub extern "C" fn eb_world_close(world: eb_world) -> eb_status {
    call(|| WORLDS.remove(world.id).map(drop))
}
