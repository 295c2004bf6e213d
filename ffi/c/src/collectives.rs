//! Synchronous collectives and messages, from memory of the caller to memory of the caller.

use std::ffi::{c_char, c_void};

use earlybird::{Dtype, Reduce, World};

use crate::error::call;
use crate::input::{array, array_mut, check_place, choice, give, seconds};
use crate::status::{Failure, eb_status};
use crate::world::{WORLDS, eb_world};

/// Returns the bytes that a call reads.
///
/// # Safety
/// The pointer is NULL or points to `bytes` bytes, which no thread changes during the call.
unsafe fn source<'a>(given: *const c_void, bytes: usize, name: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: by the caller's promise.
    unsafe { array(given.cast(), bytes, name) }
}

/// Returns the bytes that a call writes.
///
/// # Safety
/// The pointer is NULL or points to `bytes` bytes, which no other thread uses during the call.
unsafe fn result<'a>(given: *mut c_void, bytes: usize, name: &str) -> Result<&'a mut [u8], Failure> {
    // SAFETY: by the caller's promise.
    unsafe { array_mut(given.cast(), bytes, name) }
}

/// Returns the bytes that a call reads and those that it writes. Each has a name, for errors.
///
/// # Safety
/// As [`source`] and [`result`].
unsafe fn both<'a>(
    (from, from_bytes, read): (*const c_void, usize, &str),
    (to, to_bytes, written): (*mut c_void, usize, &str),
) -> Result<(&'a [u8], &'a mut [u8]), Failure> {
    // Impossible lengths and pointers are refused below.
    let can_be = from_bytes.max(to_bytes) <= isize::MAX as usize && !from.is_null() && !to.is_null();
    let (from_start, to_start) = (from as usize, to as usize);
    let ends_before = |start: usize, bytes: usize, other: usize| bytes == 0 || start.saturating_add(bytes) <= other;
    if can_be && !ends_before(from_start, from_bytes, to_start) && !ends_before(to_start, to_bytes, from_start) {
        return Err(Failure::argument(format!("{read} and {written} overlap; give a result memory of its own")));
    }
    // SAFETY: by the caller's promise, and they lie apart.
    unsafe { Ok((source(from, from_bytes, read)?, result(to, to_bytes, written)?)) }
}

/// Returns a number of bytes, unless computing it overflowed.
fn addressed(bytes: Option<usize>) -> Result<usize, Failure> {
    bytes.ok_or_else(|| Failure::argument("more bytes than can be addressed"))
}

/// Returns the bytes of one block for each rank.
fn blocks(world: &World, bytes: usize) -> Result<usize, Failure> {
    addressed(bytes.checked_mul(world.size() as usize))
}

/// Returns an element type, a reduction, and the bytes of `count` elements.
///
/// # Safety
/// The texts are NULL, or end with a zero.
unsafe fn elements(
    count: usize,
    dtype: *const c_char,
    reduce: *const c_char,
) -> Result<(Dtype, Reduce, usize), Failure> {
    // SAFETY: by the caller's promise.
    let (dtype, reduce) = unsafe { (choice(dtype, "dtype")?, choice(reduce, "reduce")?) };
    let dtype: Dtype = dtype.unwrap_or(Dtype::F32);
    let bytes = addressed(count.checked_mul(dtype.size()))?;
    Ok((dtype, reduce.unwrap_or(Reduce::Sum), bytes))
}

/// Returns what only the root passes; other ranks must pass NULL.
fn at_root<D>(
    world: &World,
    (given, name): (*const c_void, &str),
    root: u32,
    take: impl FnOnce() -> Result<D, Failure>,
) -> Result<Option<D>, Failure> {
    match (world.rank() == root, given.is_null()) {
        (true, _) => take().map(Some),
        (false, true) => Ok(None),
        (false, false) => Err(Failure::argument(format!("only the root has {name}; other ranks pass NULL"))),
    }
}

/// Makes a call of a world with a time limit.
fn with(
    world: eb_world,
    timeout: f64,
    body: impl FnOnce(&World, std::time::Duration) -> Result<(), Failure>,
) -> eb_status {
    call(|| {
        let timeout = seconds(timeout, "timeout")?;
        body(&WORLDS.get(world.id)?.world, timeout)
    })
}

/// Copies `bytes` bytes of rank `root` to all ranks. Returns when this rank has them.
///
/// All ranks call this and the other synchronous collectives in the same order, with the same lengths, from one thread
/// of each at a time. After a failure other than EB_ARGUMENT, EB_USAGE, EB_HANDLE and EB_FORKED the ranks are out of
/// step, and later collectives fail: create a new world. Memory belongs to the caller and has any length; it may be
/// NULL if it has no bytes. The memory that is read must not overlap the memory that is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_broadcast(
    world: eb_world,
    data: *mut c_void,
    bytes: usize,
    root: u32,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        // SAFETY: the caller passes memory of this length that no other thread uses during the call.
        let data = unsafe { result(data, bytes, "data")? };
        Ok(world.broadcast(data, root, timeout)?)
    })
}

/// Gives `mine` of every rank, of `bytes` bytes, to every rank. `all` holds the blocks of all ranks, in the order of
/// ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_all_gather(
    world: eb_world,
    mine: *const c_void,
    bytes: usize,
    all: *mut c_void,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        let total = blocks(world, bytes)?;
        // SAFETY: the caller passes memory of these lengths.
        let (mine, all) = unsafe { both((mine, bytes, "mine"), (all, total, "all"))? };
        Ok(world.all_gather(mine, all, timeout)?)
    })
}

/// Gives `mine` of every rank, of `bytes` bytes, to rank `root`, whose `all` holds the blocks of all ranks, in their
/// order. Other ranks pass NULL for `all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_gather(
    world: eb_world,
    mine: *const c_void,
    bytes: usize,
    all: *mut c_void,
    root: u32,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        let total = blocks(world, bytes)?;
        // SAFETY: the caller passes memory of these lengths.
        let taken = at_root(world, (all, "all"), root, || unsafe { both((mine, bytes, "mine"), (all, total, "all")) })?;
        match taken {
            Some((mine, all)) => Ok(world.gather(mine, Some(all), root, timeout)?),
            // SAFETY: as above.
            None => Ok(world.gather(unsafe { source(mine, bytes, "mine")? }, None, root, timeout)?),
        }
    })
}

/// Cuts `all` of rank `root` into blocks of `bytes` bytes, and copies block i into `mine` of rank i. Other ranks pass
/// NULL for `all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_scatter(
    world: eb_world,
    all: *const c_void,
    mine: *mut c_void,
    bytes: usize,
    root: u32,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        let total = blocks(world, bytes)?;
        // SAFETY: the caller passes memory of these lengths.
        let taken = at_root(world, (all, "all"), root, || unsafe { both((all, total, "all"), (mine, bytes, "mine")) })?;
        match taken {
            Some((all, mine)) => Ok(world.scatter(Some(all), mine, root, timeout)?),
            // SAFETY: as above.
            None => Ok(world.scatter(None, unsafe { result(mine, bytes, "mine")? }, root, timeout)?),
        }
    })
}

/// Gives block i of each rank's `sent` to rank i, whose `received` holds the blocks in the order of the ranks that sent
/// them. Blocks have `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_all_to_all(
    world: eb_world,
    sent: *const c_void,
    received: *mut c_void,
    bytes: usize,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        let total = blocks(world, bytes)?;
        // SAFETY: the caller passes memory of these lengths.
        let (sent, received) = unsafe { both((sent, total, "sent"), (received, total, "received"))? };
        Ok(world.all_to_all(sent, received, timeout)?)
    })
}

/// As eb_world_all_to_all, with blocks of any lengths. This rank sends `sent_bytes[i]` bytes to rank i, and receives
/// `received_bytes[i]` bytes from it. Each rank must pass the lengths that the others send to it. Both arrays have an
/// element for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_all_to_all_of(
    world: eb_world,
    sent: *const c_void,
    sent_bytes: *const usize,
    received: *mut c_void,
    received_bytes: *const usize,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        let ranks = world.size() as usize;
        // These are copies, because the caller's arrays may lie in the memory that is written.
        // SAFETY: the caller passes arrays of this number of elements.
        let to = unsafe { array(sent_bytes, ranks, "sent_bytes")? }.to_vec();
        // SAFETY: as above.
        let from = unsafe { array(received_bytes, ranks, "received_bytes")? }.to_vec();
        let total =
            |lengths: &[usize]| addressed(lengths.iter().try_fold(0usize, |total, bytes| total.checked_add(*bytes)));
        // SAFETY: the caller passes memory of these lengths.
        let (sent, received) = unsafe { both((sent, total(&to)?, "sent"), (received, total(&from)?, "received"))? };
        Ok(world.all_to_all_of((sent, &to), (received, &from), timeout)?)
    })
}

/// Reduces `data` of all ranks, element by element, and writes the result to `data` on every rank. `dtype` and `reduce`
/// are the texts of eb_allreduce_options, and `reduce` may also be "mean"; NULL stands for "f32" and "sum". Elements
/// are reduced in the order of ranks, so all ranks get the same bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_all_reduce(
    world: eb_world,
    data: *mut c_void,
    count: usize,
    dtype: *const c_char,
    reduce: *const c_char,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        // SAFETY: the caller passes texts or NULL.
        let (dtype, reduce, bytes) = unsafe { elements(count, dtype, reduce)? };
        // SAFETY: the caller passes memory of this length that no other thread uses during the call.
        let data = unsafe { result(data, bytes, "data")? };
        Ok(world.all_reduce_bytes(dtype, data, reduce, timeout)?)
    })
}

/// Reduces `mine` of all ranks, of `count` elements, and writes the result to `result` of rank `root`. Other ranks pass
/// NULL for `result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_reduce(
    world: eb_world,
    mine: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype: *const c_char,
    reduce: *const c_char,
    root: u32,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        // SAFETY: the caller passes texts or NULL.
        let (dtype, reduce, bytes) = unsafe { elements(count, dtype, reduce)? };
        // SAFETY: the caller passes memory of these lengths.
        let both = || unsafe { both((mine, bytes, "mine"), (result, bytes, "result")) };
        match at_root(world, (result, "result"), root, both)? {
            Some((mine, result)) => Ok(world.reduce_bytes(dtype, mine, Some(result), reduce, root, timeout)?),
            None => {
                // SAFETY: as above.
                let mine = unsafe { source(mine, bytes, "mine")? };
                Ok(world.reduce_bytes(dtype, mine, None, reduce, root, timeout)?)
            }
        }
    })
}

/// Reduces `all` of all ranks, element by element, and writes block i of the result to `mine` of rank i. Blocks have
/// `count` elements, and `all` has a block for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_reduce_scatter(
    world: eb_world,
    all: *const c_void,
    mine: *mut c_void,
    count: usize,
    dtype: *const c_char,
    reduce: *const c_char,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        // SAFETY: the caller passes texts or NULL.
        let (dtype, reduce, bytes) = unsafe { elements(count, dtype, reduce)? };
        let total = blocks(world, bytes)?;
        // SAFETY: the caller passes memory of these lengths.
        let (all, mine) = unsafe { both((all, total, "all"), (mine, bytes, "mine"))? };
        Ok(world.reduce_scatter_bytes(dtype, all, mine, reduce, timeout)?)
    })
}

/// Prepares messages at a time that the program chooses. All ranks must call it, or make their first message, at the
/// same point in the order of their collective calls.
#[unsafe(no_mangle)]
pub extern "C" fn eb_world_open_messages(world: eb_world, timeout: f64) -> eb_status {
    with(world, timeout, |world, timeout| Ok(world.open_messages(timeout)?))
}

/// Sends `bytes` bytes to rank `to`. Returns when `data` may change. Messages with one tag from one rank to another
/// arrive in the order in which they were sent. Any threads may send and receive at the same time. If two ranks send
/// each other more than two slots hold (64 KiB at most each) before they receive, they wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_send(
    world: eb_world,
    data: *const c_void,
    bytes: usize,
    to: u32,
    tag: u64,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        // SAFETY: the caller passes memory of this length that no thread changes during the call.
        let data = unsafe { source(data, bytes, "data")? };
        Ok(world.send(data, to, tag, timeout)?)
    })
}

/// Receives a message of `bytes` bytes from rank `from`. If no part of the message has moved at EB_TIMEOUT, nothing is
/// lost: call again to continue waiting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_receive(
    world: eb_world,
    data: *mut c_void,
    bytes: usize,
    from: u32,
    tag: u64,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        // SAFETY: the caller passes memory of this length that no other thread uses during the call.
        let data = unsafe { result(data, bytes, "data")? };
        Ok(world.receive(data, from, tag, timeout)?)
    })
}

/// As eb_world_receive, but from any rank that has a message with this tag. `from` returns the rank, and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_receive_any(
    world: eb_world,
    data: *mut c_void,
    bytes: usize,
    tag: u64,
    from: *mut u32,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        if !from.is_null() {
            check_place(from, "from")?;
        }
        // SAFETY: the caller passes memory of this length that no other thread uses during the call.
        let data = unsafe { result(data, bytes, "data")? };
        let sender = world.receive_any(data, tag, timeout)?;
        match from.is_null() {
            true => Ok(()),
            // SAFETY: it points to memory for one.
            false => unsafe { give(from, sender, "from") },
        }
    })
}
