//! The promise behind raw memory.
#![allow(unsafe_code)]

#[cfg(earlybird_faults)]
use parking_lot::Mutex;

#[cfg(earlybird_faults)]
use crate::fault::Fault;

/// The promise that opens memory which Rust's rules do not protect: endpoints
/// ([`Fabric::open`](super::Fabric::open)) and deferred programs
/// ([`DeferredProgram::open`](crate::offload::deferred_work::DeferredProgram::open)).
///
/// A collective lends registered memory as slices, and other ranks change that memory by one-sided
/// operations. The protocol of the collective keeps the two apart. An endpoint knows nothing of
/// that protocol, so all use of it rests on this promise. Making the promise is the only `unsafe`
/// call of this API.
#[derive(Clone, Copy, Debug)]
pub struct RawAccess(());

impl RawAccess {
    /// The promise of this crate itself, whose protocol keeps it: the simulator checks that in
    /// every schedule.
    pub(crate) const CRATE: RawAccess = RawAccess(());

    /// Makes the promise.
    ///
    /// # Safety
    /// On every rank, as long as a value lives that was opened with the promise:
    ///
    /// - All ranks open their endpoints, and make their collectives and broadcasts, in the same
    ///   order.
    /// - [`import`](super::Endpoint::import) gets only keys that [`key`](super::Endpoint::key)
    ///   returned for a region of that peer's endpoint of the same number, which was opened with a
    ///   `RawAccess` too. A key of a collective is none of these.
    /// - From the posting of an operation to its completion, the bytes that it reads are not
    ///   written, and the bytes that it writes are neither read nor written. Words of 8 bytes that
    ///   several sides use concurrently are cells: only signals, atomics and
    ///   [`Window::cell`](super::Window::cell) reach them.
    /// - The address that [`Window::bytes`](super::Window::bytes) returns is not used, and no
    ///   reference is made from it, while a peer or an operation may write there.
    /// - [`DeferredProgram`]`::connect` gets the introductions of all ranks' programs, in rank order, as
    ///   `open` returned them for the same request.
    /// - `DeferredProgram::write` is called before the slot is armed, or while its token is revoked.
    /// - `DeferredProgram::wind` is called before anything is armed, and `set_off` when no peer reads
    ///   what the rest of the program writes.
    /// - `DeferredProgram::contribution_of` another rank is called only between `has_outcome` and
    ///   `ready` for the next use.
    /// - An endpoint lives until its operations have completed.
    /// - Slices that a collective with a deliberate fault lends are looked at only to find them
    ///   wrong: they may change meanwhile.
    ///
    /// [`DeferredProgram`]: crate::offload::deferred_work::DeferredProgram
    #[must_use]
    pub const unsafe fn promise() -> Self {
        RawAccess(())
    }
}

#[cfg(earlybird_faults)]
impl Fault {
    /// Chooses this mistake while `work` runs. The mistake may break any rule about memory.
    pub fn during<R>(self, _: RawAccess, work: impl FnOnce() -> R) -> R {
        Fault::passed_on(Some(self), work)
    }

    /// The mistakes among `faults` that a test does not find. Without any mistake the test must
    /// pass. Tests wait most of their time, so some run side by side.
    pub fn unseen<F>(faults: F, access: RawAccess, test: impl Fn() + Sync) -> Vec<Fault>
    where
        F: IntoIterator<Item = Fault, IntoIter: Send>,
    {
        const SIDE_BY_SIDE: usize = 4;
        test();
        let (queue, unseen) = (Mutex::new(faults.into_iter()), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let Some(fault) = queue.lock().next() else { break };
                let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fault.during(access, &test)));
                println!("{fault:?}, in {}: {}", fault.place(), if passed.is_ok() { "unseen" } else { "found" });
                unseen.lock().extend(passed.is_ok().then_some(fault));
            }
        };
        std::thread::scope(|scope| (0..SIDE_BY_SIDE).for_each(|_| _ = scope.spawn(work)));
        unseen.into_inner()
    }
}
