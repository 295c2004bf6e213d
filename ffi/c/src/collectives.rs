//! Synchronous collectives, and messages: memory of the caller in, memory of the caller out.

use std::ffi::{c_char, c_void};

use earlybird::{Dtype, Reduce, World};

use crate::error::call;
use crate::input::{array, array_mut, check_place, choice, give, seconds};
use crate::status::{Failure, eb_status};
use crate::world::{WORLDS, eb_world};

/// What a call reads.
///
/// # Safety
/// The pointer is NULL or points to so many bytes, which no thread changes during the call.
unsafe fn source<'a>(given: *const c_void, bytes: usize, name: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: by the caller's promise.
    unsafe { array(given.cast(), bytes, name) }
}

/// What a call writes.
///
/// # Safety
/// The pointer is NULL or points to so many bytes, which no other thread uses during the call.
unsafe fn result<'a>(given: *mut c_void, bytes: usize, name: &str) -> Result<&'a mut [u8], Failure> {
    // SAFETY: by the caller's promise.
    unsafe { array_mut(given.cast(), bytes, name) }
}

/// What a call reads, and what it writes, each with its name.
///
/// # Safety
/// As [`source`] and [`result`].
unsafe fn both<'a>(
    (from, from_bytes, read): (*const c_void, usize, &str),
    (to, to_bytes, written): (*mut c_void, usize, &str),
) -> Result<(&'a [u8], &'a mut [u8]), Failure> {
    // Lengths and pointers that cannot be are refused below.
    let can_be = from_bytes.max(to_bytes) <= isize::MAX as usize && !from.is_null() && !to.is_null();
    let (from_start, to_start) = (from as usize, to as usize);
    let ends_before = |start: usize, bytes: usize, other: usize| bytes == 0 || start.saturating_add(bytes) <= other;
    if can_be && !ends_before(from_start, from_bytes, to_start) && !ends_before(to_start, to_bytes, from_start) {
        return Err(Failure::argument(format!("{read} and {written} overlap; give a result memory of its own")));
    }
    // SAFETY: by the caller's promise, and they lie apart.
    unsafe { Ok((source(from, from_bytes, read)?, result(to, to_bytes, written)?)) }
}

/// A number of bytes, unless it was too large to be worked out.
fn addressed(bytes: Option<usize>) -> Result<usize, Failure> {
    bytes.ok_or_else(|| Failure::argument("more bytes than can be addressed"))
}

/// Bytes of a block for each rank.
fn blocks(world: &World, bytes: usize) -> Result<usize, Failure> {
    addressed(bytes.checked_mul(world.size() as usize))
}

/// An element type and a reduction, and bytes of so many elements.
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

/// What only the root has: NULL elsewhere.
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
/// This and the other synchronous collectives are called by all ranks in the same order, with the same lengths, by one
/// thread of each at a time. After a failure other than EB_ARGUMENT, EB_USAGE, EB_HANDLE and EB_FORKED the ranks are out of
/// step, and later ones fail: begin a new world. Memory is the caller's, of any length; it may be NULL if it has no bytes. What is
/// read and what is written must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_world_broadcast(
    world: eb_world,
    data: *mut c_void,
    bytes: usize,
    root: u32,
    timeout: f64,
) -> eb_status {
    with(world, timeout, |world, timeout| {
        // SAFETY: the caller gives so many bytes that no other thread uses during the call.
        let data = unsafe { result(data, bytes, "data")? };
        Ok(world.broadcast(data, root, timeout)?)
    })
}

/// Gives `mine` of every rank, of `bytes` bytes, to every rank: `all` has room for those of all ranks, in their order.
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
        // SAFETY: the caller gives so many bytes of each.
        let (mine, all) = unsafe { both((mine, bytes, "mine"), (all, total, "all"))? };
        Ok(world.all_gather(mine, all, timeout)?)
    })
}

/// Gives `mine` of every rank, of `bytes` bytes, to rank `root`, whose `all` has room for those of all ranks. Other ranks pass
/// NULL for `all`.
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
        // SAFETY: the caller gives so many bytes of each.
        let taken = at_root(world, (all, "all"), root, || unsafe { both((mine, bytes, "mine"), (all, total, "all")) })?;
        match taken {
            Some((mine, all)) => Ok(world.gather(mine, Some(all), root, timeout)?),
            // SAFETY: as above.
            None => Ok(world.gather(unsafe { source(mine, bytes, "mine")? }, None, root, timeout)?),
        }
    })
}

/// Cuts `all` of rank `root` into blocks of `bytes` bytes, and gives rank i block i in `mine`. Other ranks pass NULL for `all`.
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
        // SAFETY: the caller gives so many bytes of each.
        let taken = at_root(world, (all, "all"), root, || unsafe { both((all, total, "all"), (mine, bytes, "mine")) })?;
        match taken {
            Some((all, mine)) => Ok(world.scatter(Some(all), mine, root, timeout)?),
            // SAFETY: as above.
            None => Ok(world.scatter(None, unsafe { result(mine, bytes, "mine")? }, root, timeout)?),
        }
    })
}

/// Gives block i of `sent` of each rank to rank i, which has it in `received`, in the order of ranks. Blocks have `bytes` bytes.
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
        // SAFETY: the caller gives so many bytes of each.
        let (sent, received) = unsafe { both((sent, total, "sent"), (received, total, "received"))? };
        Ok(world.all_to_all(sent, received, timeout)?)
    })
}

/// As eb_world_all_to_all, with blocks of any lengths: `sent_bytes[i]` bytes go to rank i, and `received_bytes[i]` come from it, as
/// that rank has said. Both arrays have an element for each rank.
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
        // Copies: the caller's may lie in what is written.
        // SAFETY: the caller gives arrays of so many elements.
        let to = unsafe { array(sent_bytes, ranks, "sent_bytes")? }.to_vec();
        // SAFETY: as above.
        let from = unsafe { array(received_bytes, ranks, "received_bytes")? }.to_vec();
        let total =
            |lengths: &[usize]| addressed(lengths.iter().try_fold(0usize, |total, bytes| total.checked_add(*bytes)));
        // SAFETY: the caller gives so many bytes of each.
        let (sent, received) = unsafe { both((sent, total(&to)?, "sent"), (received, total(&from)?, "received"))? };
        Ok(world.all_to_all_of((sent, &to), (received, &from), timeout)?)
    })
}

/// Reduces `data` of all ranks, element by element, and leaves the result in it on every rank. `dtype` and `reduce` are the
/// texts of eb_allreduce_options, and `reduce` may be "mean", too; NULL stands for "f32" and "sum". Elements are reduced in
/// the order of ranks: all ranks have the same bits.
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
        // SAFETY: the caller gives texts or NULL.
        let (dtype, reduce, bytes) = unsafe { elements(count, dtype, reduce)? };
        // SAFETY: the caller gives so many bytes that no other thread uses during the call.
        let data = unsafe { result(data, bytes, "data")? };
        Ok(world.all_reduce_bytes(dtype, data, reduce, timeout)?)
    })
}

/// Reduces `mine` of all ranks, of `count` elements. Rank `root` has the result in `result`; other ranks pass NULL for it.
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
        // SAFETY: the caller gives texts or NULL.
        let (dtype, reduce, bytes) = unsafe { elements(count, dtype, reduce)? };
        // SAFETY: the caller gives so many bytes of each.
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

/// Reduces `all` of all ranks, and gives rank i block i of the result in `mine`. Blocks have `count` elements, and `all` has a
/// block for each rank.
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
        // SAFETY: the caller gives texts or NULL.
        let (dtype, reduce, bytes) = unsafe { elements(count, dtype, reduce)? };
        let total = blocks(world, bytes)?;
        // SAFETY: the caller gives so many bytes of each.
        let (all, mine) = unsafe { both((all, total, "all"), (mine, bytes, "mine"))? };
        Ok(world.reduce_scatter_bytes(dtype, all, mine, reduce, timeout)?)
    })
}

/// Prepares messages, at a time that the program chooses: all ranks must call this, or make their first message, at the same
/// place in the order of their collective calls.
#[unsafe(no_mangle)]
pub extern "C" fn eb_world_open_messages(world: eb_world, timeout: f64) -> eb_status {
    with(world, timeout, |world, timeout| Ok(world.open_messages(timeout)?))
}

/// Sends `bytes` bytes to rank `to`. Returns when `data` may change. Messages with one tag from one rank to another arrive in
/// the order in which they were sent. Any threads may send and receive at the same time. Two ranks that send each other more
/// than two slots hold, of 64 KiB at most, before they receive wait for each other.
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
        // SAFETY: the caller gives so many bytes that no thread changes during the call.
        let data = unsafe { source(data, bytes, "data")? };
        Ok(world.send(data, to, tag, timeout)?)
    })
}

/// Receives a message of rank `from`, which must have `bytes` bytes. After EB_TIMEOUT with no part of the message moved
/// nothing is lost: call again to go on waiting.
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
        // SAFETY: the caller gives so many bytes that no other thread uses during the call.
        let data = unsafe { result(data, bytes, "data")? };
        Ok(world.receive(data, from, tag, timeout)?)
    })
}

/// As eb_world_receive, of whichever rank has a message with this tag; `from` says which. `from` may be NULL.
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
        // SAFETY: the caller gives so many bytes that no other thread uses during the call.
        let data = unsafe { result(data, bytes, "data")? };
        let sender = world.receive_any(data, tag, timeout)?;
        match from.is_null() {
            true => Ok(()),
            // SAFETY: it is a place for one.
            false => unsafe { give(from, sender, "from") },
        }
    })
}
