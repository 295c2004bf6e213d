//! A persistent partial allreduce.

use std::ffi::{c_char, c_int, c_void};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::time::Duration;

use earlybird::{Allreduce, Dtype, Part};
use parking_lot::Mutex;

use crate::error::call;
use crate::handles::Handles;
use crate::input::{Structure, array, check_place, choice, give, give_structure, seconds, take_structure, text};
use crate::status::{Failure, eb_status};
use crate::world::{WORLDS, eb_world};

/// A collective. Its calls come in the order eb_allreduce_contribution, eb_allreduce_arrive, eb_allreduce_wait, round
/// after round, and at the end eb_allreduce_finish and eb_allreduce_destroy.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct eb_allreduce {
    /// An opaque number; 0 is not a handle.
    pub id: u64,
}

struct Sum {
    sum: Allreduce<u8>,
    /// The rounds whose outcomes the caller holds.
    rounds: RangeInclusive<u64>,
}

static SUMS: Handles<Mutex<Sum>> = Handles::new("allreduce", 2);

/// No rounds.
const NONE: RangeInclusive<u64> = RangeInclusive::new(1, 0);

/// The choices of a collective, the same on all ranks. A field that is 0 stands for the default. Texts are those of the
/// `earlybird` command.
#[derive(Debug)]
#[repr(C)]
pub struct eb_allreduce_options {
    /// sizeof(eb_allreduce_options), set by the caller.
    pub size: usize,
    /// The lengths of the tensors, in elements. A contribution holds the tensors one after the other.
    pub lengths: *const usize,
    /// The number of tensors.
    pub tensors: usize,
    /// The type of the elements: "f32" (the default), "f64", "f16", "bf16", "i32", "i64", "u32", "u64", "i8", "u8",
    /// "i16" or "bool". The last are bytes that are 0 or 1: a sum or maximum is 1 if any is 1, a product or minimum if
    /// all are.
    pub dtype: *const c_char,
    /// A method by name, such as "wagma". It sets fire, absent, scale and group; these fields override it if they are
    /// given.
    pub preset: *const c_char,
    /// When a round fires: "all" (the default), "solo", "majority", "quorum=5", with options such as "quorum=5,deadline=2ms".
    pub fire: *const c_char,
    /// How long a round stays open after it has fired: "auto" (the default), "0", or a time such as "50us".
    pub grace: *const c_char,
    /// What happens to late contributions: "carry" (the default), "drop", "hold", "decay=0.5".
    pub absent: *const c_char,
    /// The reduction: "sum" (the default), "min", "max" or "prod".
    pub reduce: *const c_char,
    /// The divisor of the sum: "sum" (the default, none), "world", "contributions", "weights".
    pub scale: *const c_char,
    /// Which ranks average with each other: "world" (the default), "butterfly=8", "arrivals=4". All but "world" need a
    /// model.
    pub group: *const c_char,
    /// How data moves: "auto" (the default), "cut" or "tree".
    pub mover: *const c_char,
    /// The agent that carries out rounds: "auto" (the default), "caller", "thread", "peer" or "provider".
    pub executor: *const c_char,
    /// The maximum number of unreleased rounds of a rank, beyond which the others wait for it; 0 stands for 8.
    pub depth: u32,
    /// The model with which all ranks begin, all tensors one after the other, if contributions are updates of a model.
    pub model: *const c_void,
    /// The length of the model in bytes.
    pub model_bytes: usize,
}

// SAFETY: `repr(C)`, the size first; the other fields are numbers and pointers.
unsafe impl Structure for eb_allreduce_options {}

/// The outcome of a round. It is valid until the next call with the same handle, except for eb_allreduce_outcome,
/// eb_allreduce_entries and eb_allreduce_completion_fd.
#[derive(Debug)]
#[repr(C)]
pub struct eb_outcome {
    /// sizeof(eb_outcome), set by the caller.
    pub size: usize,
    /// The round, counted from 1.
    pub round: u64,
    /// The reduced elements, all tensors one after the other. The caller must not write them.
    pub data: *const c_void,
    /// The length of the data in bytes.
    pub bytes: usize,
    /// The number of contributions that entered the round that they were made for.
    pub fresh: u32,
    /// The number of contributions that entered late.
    pub carried: u32,
    /// The number of entries of the cut; eb_allreduce_entries returns them.
    pub entries: u32,
    /// The rank that closed the round; -1 in a synchronous round.
    pub initiator: i32,
}

// SAFETY: `repr(C)`, the size first; the other fields are numbers and a pointer.
unsafe impl Structure for eb_outcome {}

/// A rank's part in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum eb_part {
    /// A contribution that was made for an earlier round.
    EB_CARRIED = 0,
    /// A contribution that was made for this round.
    EB_FRESH = 1,
    /// No contribution: it is the rank's last round.
    EB_LEAVING = 2,
}

/// An entry of a cut.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct eb_entry {
    /// The rank.
    pub rank: u32,
    /// The rank's part in the round.
    pub part: eb_part,
    /// The number of rounds that the contribution is late.
    pub age: u64,
    /// The weight of the contribution.
    pub weight: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// How long the rank computed the contribution, in seconds by its own clock; -1 where that is not known.
    pub computed: f64,
    /// How long the rank waited for its round before this one, in seconds; -1 where that is not known.
    pub waited: f64,
}

/// Makes a call with a collective; fails if another thread uses it.
fn with(handle: eb_allreduce, body: impl FnOnce(&mut Sum) -> Result<(), Failure>) -> eb_status {
    call(|| {
        let sum = SUMS.get(handle.id)?;
        let busy = || {
            Failure::new(
                eb_status::EB_BUSY,
                "another thread is in a call with this allreduce; use it from one at a time",
            )
        };
        let mut sum = sum.try_lock().ok_or_else(busy)?;
        body(&mut sum)
    })
}

/// Creates a collective. All ranks call it, in the same order as their other collective calls, within the world's
/// deadline. Returns when all ranks have called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_allreduce_create(
    world: eb_world,
    options: *const eb_allreduce_options,
    allreduce: *mut eb_allreduce,
) -> eb_status {
    call(|| {
        check_place(allreduce, "allreduce")?;
        let joined = WORLDS.get(world.id)?;
        // SAFETY: the caller passes a structure of the size that it states, with texts or NULL, and arrays of the
        // lengths that it states.
        let (options, lengths, model) = unsafe {
            let options = take_structure(options, "options")?;
            let lengths = array(options.lengths, options.tensors, "options.lengths")?;
            let model: &[u8] = array(options.model.cast(), options.model_bytes, "options.model")?;
            (options, lengths, model)
        };
        // SAFETY: as above.
        let sum = unsafe {
            let dtype = choice::<Dtype>(options.dtype, "options.dtype")?.unwrap_or(Dtype::F32);
            let mut builder = joined.world.allreduce_bytes(dtype, lengths);
            // The preset comes first, because the later choices change it.
            for (name, given) in [
                ("preset", options.preset),
                ("fire", options.fire),
                ("grace", options.grace),
                ("absent", options.absent),
                ("reduce", options.reduce),
                ("scale", options.scale),
                ("group", options.group),
                ("mover", options.mover),
                ("executor", options.executor),
            ] {
                if let Some(value) = text(given, name)? {
                    builder = builder.choose(name, value)?;
                }
            }
            if options.depth > 0 {
                builder = builder.depth(options.depth);
            }
            if !options.model.is_null() {
                builder = builder.memory(model);
            }
            builder.build()?
        };
        let id = SUMS.add(Mutex::new(Sum { sum, rounds: NONE }));
        // SAFETY: the caller passes memory for one.
        unsafe { give(allreduce, eb_allreduce { id }, "allreduce") }
    })
}

/// Returns the memory of the next contribution: registered, and with the content of an earlier contribution. The caller
/// may write it until eb_allreduce_arrive, and not afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_allreduce_contribution(
    allreduce: eb_allreduce,
    data: *mut *mut c_void,
    bytes: *mut usize,
) -> eb_status {
    with(allreduce, |Sum { sum, rounds }| {
        check_place(data, "data")?;
        *rounds = NONE;
        let contribution = sum.contribution()?;
        // SAFETY: the caller passes memory for both; the second pointer may be NULL.
        unsafe {
            if !bytes.is_null() {
                give(bytes, contribution.len(), "bytes")?;
            }
            give(data, contribution.as_mut_ptr().cast(), "data")
        }
    })
}

/// Sets the weight of the next contribution, under the scale "weights".
#[unsafe(no_mangle)]
pub extern "C" fn eb_allreduce_weigh(allreduce: eb_allreduce, weight: u16) -> eb_status {
    with(allreduce, |Sum { sum, .. }| Ok(sum.weigh(weight)?))
}

/// Hands in the contribution and returns at once.
#[unsafe(no_mangle)]
pub extern "C" fn eb_allreduce_arrive(allreduce: eb_allreduce) -> eb_status {
    with(allreduce, |Sum { sum, rounds }| {
        *rounds = NONE;
        Ok(sum.arrive()?)
    })
}

/// Waits for the outcome of the last arrival, and returns the number of outcomes: 1, or more if rounds were missed.
/// After EB_TIMEOUT nothing is lost: call again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_allreduce_wait(allreduce: eb_allreduce, timeout: f64, outcomes: *mut usize) -> eb_status {
    with(allreduce, |Sum { sum, rounds }| {
        check_place(outcomes, "outcomes")?;
        let timeout = seconds(timeout, "timeout")?;
        let taken = sum.wait(timeout).map(|taken| (taken.len(), taken.keep()));
        let (count, taken) = taken.inspect_err(|_| forget_released(sum, rounds))?;
        *rounds = taken;
        // SAFETY: the caller passes memory for it.
        unsafe { give(outcomes, count, "outcomes") }
    })
}

/// As eb_allreduce_wait, without blocking: returns 0 outcomes if the outcome is not available yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_allreduce_try_wait(allreduce: eb_allreduce, outcomes: *mut usize) -> eb_status {
    with(allreduce, |Sum { sum, rounds }| {
        check_place(outcomes, "outcomes")?;
        let taken = sum.try_wait().map(|taken| taken.map_or((0, NONE), |taken| (taken.len(), taken.keep())));
        let (count, taken) = taken.inspect_err(|_| forget_released(sum, rounds))?;
        *rounds = taken;
        // SAFETY: the caller passes memory for it.
        unsafe { give(outcomes, count, "outcomes") }
    })
}

/// Returns one of the outcomes of the last eb_allreduce_wait, eb_allreduce_try_wait or eb_allreduce_leave, counted from 0,
/// oldest first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_allreduce_outcome(
    allreduce: eb_allreduce,
    index: usize,
    outcome: *mut eb_outcome,
) -> eb_status {
    with(allreduce, |kept| {
        let found = kept.outcome(index)?;
        let (data, cut) = (found.data(), found.cut());
        let count = |part| cut.entries().filter(|entry| entry.part == part).count() as u32;
        let filled = eb_outcome {
            size: 0,
            round: found.round(),
            data: data.as_ptr().cast(),
            bytes: data.len(),
            fresh: count(Part::Fresh),
            carried: count(Part::Carried),
            entries: cut.entries().len() as u32,
            initiator: cut.initiator().and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1),
        };
        // SAFETY: the caller passes NULL or a structure of the size that it states.
        unsafe { give_structure(outcome, filled, "outcome") }
    })
}

/// Writes the entries of an outcome's cut, in the order of reduction, but at most `capacity` of them. `count` gets the
/// number of all entries, and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_allreduce_entries(
    allreduce: eb_allreduce,
    index: usize,
    entries: *mut eb_entry,
    capacity: usize,
    count: *mut usize,
) -> eb_status {
    with(allreduce, |kept| {
        let found = kept.outcome(index)?;
        if capacity > 0 {
            check_place(entries, "entries")?;
        }
        for (place, entry) in found.cut().entries().take(capacity).enumerate() {
            let part = match entry.part {
                Part::Carried => eb_part::EB_CARRIED,
                Part::Fresh => eb_part::EB_FRESH,
                Part::Leaving => eb_part::EB_LEAVING,
            };
            let seconds = |time: Option<Duration>| time.map_or(-1.0, |time| time.as_secs_f64());
            let given = eb_entry {
                rank: entry.rank,
                part,
                age: entry.age,
                weight: entry.weight.into(),
                reserved: 0,
                computed: seconds(entry.computed()),
                waited: seconds(entry.waited()),
            };
            // SAFETY: the caller passes memory for `capacity` entries, and this is one of them.
            unsafe { entries.add(place).write(given) };
        }
        if count.is_null() {
            return Ok(());
        }
        // SAFETY: the caller passes memory for it.
        unsafe { give(count, found.cut().entries().len(), "count") }
    })
}

/// Releases the outcomes, so that their memory may be used again. The next eb_allreduce_contribution or
/// eb_allreduce_arrive does so, too.
#[unsafe(no_mangle)]
pub extern "C" fn eb_allreduce_release(allreduce: eb_allreduce) -> eb_status {
    with(allreduce, |Sum { sum, rounds }| {
        *rounds = NONE;
        sum.release();
        Ok(())
    })
}

/// Returns a descriptor that is readable when eb_allreduce_try_wait would return outcomes or fail: for poll(2) and event
/// loops. It needs the executor "thread". The descriptor belongs to the collective: do not read, write or close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_allreduce_completion_fd(allreduce: eb_allreduce, fd: *mut c_int) -> eb_status {
    with(allreduce, |Sum { sum, .. }| {
        check_place(fd, "fd")?;
        let descriptor = sum.completion()?.as_raw_fd();
        // SAFETY: the caller passes memory for it.
        unsafe { give(fd, descriptor, "fd") }
    })
}

/// Leaves like eb_allreduce_finish, step by step: returns the number of outcomes that were not taken, and 0 once this
/// rank has left. Call it until then, and read the outcomes in between: together they hold all that this rank
/// contributed. After EB_TIMEOUT, call again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_allreduce_leave(allreduce: eb_allreduce, timeout: f64, outcomes: *mut usize) -> eb_status {
    with(allreduce, |Sum { sum, rounds }| {
        check_place(outcomes, "outcomes")?;
        let timeout = seconds(timeout, "timeout")?;
        let taken = sum.leave(timeout).map(|taken| taken.map_or((0, NONE), |taken| (taken.len(), taken.keep())));
        let (count, taken) = taken.inspect_err(|_| forget_released(sum, rounds))?;
        *rounds = taken;
        // SAFETY: the caller passes memory for it.
        unsafe { give(outcomes, count, "outcomes") }
    })
}

/// Leaves in good order: what is carried enters a round, and the other ranks no longer depend on this one. Drops
/// outcomes that were not taken; eb_allreduce_leave returns them. After EB_TIMEOUT, call again.
#[unsafe(no_mangle)]
pub extern "C" fn eb_allreduce_finish(allreduce: eb_allreduce, timeout: f64) -> eb_status {
    with(allreduce, |Sum { sum, rounds }| {
        let timeout = seconds(timeout, "timeout")?;
        let finished = sum.finish(timeout);
        forget_released(sum, rounds);
        Ok(finished?)
    })
}

/// Destroys a collective. If it was not finished, this aborts the job, because the others would wait for this rank.
#[unsafe(no_mangle)]
pub extern "C" fn eb_allreduce_destroy(allreduce: eb_allreduce) -> eb_status {
    call(|| {
        let sum = SUMS.get(allreduce.id)?;
        let busy =
            || Failure::new(eb_status::EB_BUSY, "another thread is in a call with this allreduce; destroy it then");
        let _unused = sum.try_lock().ok_or_else(busy)?;
        SUMS.remove(allreduce.id).map(drop)
    })
}

/// Forgets the outcomes if a call released them: a refused call has released nothing; a call that failed later has.
fn forget_released(sum: &Allreduce<u8>, rounds: &mut RangeInclusive<u64>) {
    if sum.kept(*rounds.start()).is_none() {
        *rounds = NONE;
    }
}

impl Sum {
    fn outcome(&self, index: usize) -> Result<earlybird::Outcome<'_, u8>, Failure> {
        let round = self.rounds.clone().nth(index);
        let outcome = round.and_then(|round| self.sum.kept(round));
        outcome.ok_or_else(|| Failure::argument(format!("there is no outcome of number {index}, or it was released")))
    }
}
