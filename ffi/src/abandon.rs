//! Calls of a library that may not return, and that another thread can abandon then.
//!
//! A thread that calls such a library leaves word of where it would go on without the call. Another thread that finds it in the
//! same call for too long sends it a signal. The handler lets the thread go on there: the call ends with [`Abandoned`], and
//! the frames of the library on the thread's stack are given up, as longjmp(3) gives them up. They are frames of C, with
//! nothing to drop. Whatever the library held then stays held, its locks too, so nothing enters it any more in this process,
//! and its memory stays.
//!
//! No signal handler is there unless a call is abandoned, and a call costs a few instructions: no clock, no system call, no lock.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The signal that says so. Programs that do not expect urgent data of sockets ignore it.
const SIGNAL: c_int = libc::SIGURG;

/// A call was abandoned, this one or an earlier one of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned;

/// No call enters the library any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether a call of this process was abandoned.
#[must_use]
pub fn is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed)
}

/// Where a thread goes on that gives up a call. Written by [`enter`] on that thread.
#[repr(C)]
#[derive(Debug, Default)]
struct Way {
    /// The top of the stack there; 0 outside of calls.
    stack: AtomicUsize,
    /// The instruction there.
    next: AtomicUsize,
}

/// What others may know of a thread's calls.
#[derive(Debug)]
struct Place {
    way: Way,
    thread: libc::pid_t,
    /// Calls that it has made. The number of the current one, if it is in one.
    calls: AtomicU64,
    /// The call that is to be abandoned.
    wanted: AtomicU64,
    /// The name of the last call's function, as a C string that lives for ever.
    name: AtomicPtr<c_char>,
    /// The time by which it expects something, in nanoseconds from the origin, and one more; 0 for none.
    due: AtomicU64,
}

impl Place {
    fn name(&self) -> &'static str {
        // SAFETY: it is always the address of a C string that lives for ever.
        unsafe { CStr::from_ptr(self.name.load(Ordering::Relaxed)) }.to_str().unwrap_or_default()
    }
}

/// The function of the call that was abandoned first, and after how long.
static FIRST: Mutex<Option<(&str, Duration)>> = Mutex::new(None);

/// The name of the function whose call was abandoned first, and how long it had taken.
#[must_use]
pub fn first_abandoned() -> Option<(&'static str, Duration)> {
    *FIRST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This thread waits until then for what others may do in the library, or for nothing. Returns until when it did before.
pub fn expect_by(due: Option<Instant>) -> Option<Instant> {
    let nanos = due.map_or(0, |due| due.saturating_duration_since(*origin()).as_nanos() as u64 + 1);
    let place = NonNull::new(HERE.get().cast_mut()).or_else(first)?;
    // SAFETY: this thread's own place.
    let due = unsafe { &place.as_ref().due };
    let before = due.load(Ordering::Relaxed);
    due.store(nanos, Ordering::Relaxed);
    time_of(before)
}

/// The time that a place has; `None` for 0.
fn time_of(nanos: u64) -> Option<Instant> {
    origin().checked_add(Duration::from_nanos(nanos.checked_sub(1)?))
}

/// The earliest time by which a thread expects something.
#[must_use]
pub fn earliest_due() -> Option<Instant> {
    let dues = places();
    let nanos = dues.iter().map(|place| place.due.load(Ordering::Relaxed)).filter(|&nanos| nanos > 0).min()?;
    time_of(nanos)
}

/// Times are counted from here.
fn origin() -> &'static Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now)
}

static PLACES: Mutex<Vec<Arc<Place>>> = Mutex::new(Vec::new());

/// Takes a thread's place away when the thread ends.
struct Own(Arc<Place>);

impl Drop for Own {
    fn drop(&mut self) {
        HERE.set(ptr::null());
        self.0.due.store(0, Ordering::Relaxed);
        // A forked child may find the list locked for good. A place of which nothing is to be seen may stay.
        if let Ok(mut places) = PLACES.try_lock() {
            places.retain(|place| !Arc::ptr_eq(place, &self.0));
        }
    }
}

fn places() -> std::sync::MutexGuard<'static, Vec<Arc<Place>>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// This thread's place, for the handler of the signal too, which may not set up anything.
    static HERE: Cell<*const Place> = const { Cell::new(ptr::null()) };
    static OWN: Own = own();
}

fn own() -> Own {
    let place = Arc::new(Place {
        way: Way::default(),
        // SAFETY: it takes no argument and cannot fail.
        thread: unsafe { libc::gettid() },
        calls: AtomicU64::new(0),
        wanted: AtomicU64::new(0),
        name: AtomicPtr::new(c"none".as_ptr().cast_mut()),
        due: AtomicU64::new(0),
    });
    places().push(place.clone());
    Own(place)
}

/// This thread's place; none while the thread ends.
#[cold]
fn first() -> Option<NonNull<Place>> {
    let place = OWN.try_with(|own| Arc::as_ptr(&own.0)).ok()?;
    HERE.set(place);
    NonNull::new(place.cast_mut())
}

/// Calls `function`, which calls a library: the function `name` of it. What it returns is meant to come from the library. A
/// thread that is ending makes the call without being watched.
///
/// # Errors
/// The call was abandoned, or the library was left for good before.
///
/// # Safety
/// The frames of the library and of `function` are given up if the call is abandoned: there is nothing in them to drop. What
/// `function` lends to the library stays until the process ends, or belongs to frames of callers, which go on.
#[inline]
pub unsafe fn call<R, F: FnOnce() -> R>(name: &'static CStr, function: F) -> Result<R, Abandoned> {
    const { assert!(!std::mem::needs_drop::<F>() && !std::mem::needs_drop::<R>()) }
    if is_over() {
        return Err(Abandoned);
    }
    let Some(place) = NonNull::new(HERE.get().cast_mut()).or_else(first) else { return Ok(function()) };
    // SAFETY: this thread's own place lives as long as the thread.
    let place = unsafe { place.as_ref() };
    if place.way.stack.load(Ordering::Relaxed) != 0 {
        // The library has called back: the outer call is the one that is watched.
        return Ok(function());
    }
    place.name.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
    // Only this thread counts.
    place.calls.store(place.calls.load(Ordering::Relaxed) + 1, Ordering::Release);
    #[cfg(earlybird_faults)]
    let function = || {
        stuck::hang_if_chosen(name);
        function()
    };
    let mut slot = Slot { function: Some(function), result: None };
    // SAFETY: `run` gets the slot of its type, which lives during the call.
    match unsafe { enter(&place.way, run_of(&slot), (&raw mut slot).cast()) } {
        0 => slot.result.ok_or(Abandoned),
        _ => Err(Abandoned),
    }
}

struct Slot<R, F> {
    function: Option<F>,
    result: Option<R>,
}

fn run_of<R, F: FnOnce() -> R>(_: &Slot<R, F>) -> Run {
    run::<R, F>
}

/// # Safety
/// `slot` must be that of these types, and borrowed for the call.
unsafe extern "C" fn run<R, F: FnOnce() -> R>(slot: *mut c_void) {
    // SAFETY: as the caller says.
    let slot = unsafe { &mut *slot.cast::<Slot<R, F>>() };
    slot.result = slot.function.take().map(|function| function());
}

type Run = unsafe extern "C" fn(*mut c_void);

/// Calls `run` with `data` and returns 0. Meanwhile `way` says where this thread goes on without the call: there 1 is returned.
///
/// It saves the registers that a function has to keep (System V ABI for x86-64, 3.2.1), and `way` itself.
///
/// # Safety
/// As for `run`; `way` must live.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn enter(way: &Way, run: Run, data: *mut c_void) -> usize {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdi",
        "lea rax, [rip + 3f]",
        "mov [rdi + 8], rax",
        "mov [rdi], rsp",
        "mov rdi, rdx",
        "call rsi",
        "xor eax, eax",
        "2:",
        "mov rdi, [rsp]",
        "mov qword ptr [rdi], 0",
        "pop rdi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        // Whatever the library was doing: no flag and no register of the x87 is as functions may expect it.
        "3:",
        "cld",
        "emms",
        "mov eax, 1",
        "jmp 2b",
    )
}

/// As for x86-64 (Procedure Call Standard for the Arm 64-bit Architecture, 6.1).
///
/// # Safety
/// As for `run`; `way` must live.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn enter(way: &Way, run: Run, data: *mut c_void) -> usize {
    naked_asm!(
        "sub sp, sp, #176",
        "stp x19, x20, [sp]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "str x0, [sp, #160]",
        "adr x9, 3f",
        "str x9, [x0, #8]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov x0, x2",
        "blr x1",
        "mov x0, #0",
        "2:",
        "ldr x9, [sp, #160]",
        "str xzr, [x9]",
        "ldp x19, x20, [sp]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #176",
        "ret",
        "3:",
        "mov x0, #1",
        "b 2b",
    )
}

/// As for x86-64 (RISC-V calling convention, 1.1 and 1.2).
///
/// # Safety
/// As for `run`; `way` must live.
#[cfg(target_arch = "riscv64")]
#[unsafe(naked)]
unsafe extern "C" fn enter(way: &Way, run: Run, data: *mut c_void) -> usize {
    naked_asm!(
        "addi sp, sp, -208",
        "sd ra, 0(sp)",
        "sd s0, 8(sp)",
        "sd s1, 16(sp)",
        "sd s2, 24(sp)",
        "sd s3, 32(sp)",
        "sd s4, 40(sp)",
        "sd s5, 48(sp)",
        "sd s6, 56(sp)",
        "sd s7, 64(sp)",
        "sd s8, 72(sp)",
        "sd s9, 80(sp)",
        "sd s10, 88(sp)",
        "sd s11, 96(sp)",
        "fsd fs0, 104(sp)",
        "fsd fs1, 112(sp)",
        "fsd fs2, 120(sp)",
        "fsd fs3, 128(sp)",
        "fsd fs4, 136(sp)",
        "fsd fs5, 144(sp)",
        "fsd fs6, 152(sp)",
        "fsd fs7, 160(sp)",
        "fsd fs8, 168(sp)",
        "fsd fs9, 176(sp)",
        "fsd fs10, 184(sp)",
        "fsd fs11, 192(sp)",
        "sd a0, 200(sp)",
        "lla t0, 3f",
        "sd t0, 8(a0)",
        "sd sp, 0(a0)",
        "mv a0, a2",
        "jalr a1",
        "li a0, 0",
        "2:",
        "ld t0, 200(sp)",
        "sd zero, 0(t0)",
        "ld ra, 0(sp)",
        "ld s0, 8(sp)",
        "ld s1, 16(sp)",
        "ld s2, 24(sp)",
        "ld s3, 32(sp)",
        "ld s4, 40(sp)",
        "ld s5, 48(sp)",
        "ld s6, 56(sp)",
        "ld s7, 64(sp)",
        "ld s8, 72(sp)",
        "ld s9, 80(sp)",
        "ld s10, 88(sp)",
        "ld s11, 96(sp)",
        "fld fs0, 104(sp)",
        "fld fs1, 112(sp)",
        "fld fs2, 120(sp)",
        "fld fs3, 128(sp)",
        "fld fs4, 136(sp)",
        "fld fs5, 144(sp)",
        "fld fs6, 152(sp)",
        "fld fs7, 160(sp)",
        "fld fs8, 168(sp)",
        "fld fs9, 176(sp)",
        "fld fs10, 184(sp)",
        "fld fs11, 192(sp)",
        "addi sp, sp, 208",
        "ret",
        "3:",
        "li a0, 1",
        "j 2b",
    )
}

/// Lets an interrupted thread go on elsewhere.
///
/// # Safety
/// `context` must be what the kernel gave a handler of signals, and `stack` and `next` what [`enter`] has written on this
/// thread, which is still in the call.
unsafe fn go_on(context: *mut c_void, stack: usize, next: usize) {
    // SAFETY: the caller's promise.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        machine.gregs[libc::REG_RSP as usize] = stack as i64;
        machine.gregs[libc::REG_RIP as usize] = next as i64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        machine.sp = stack as u64;
        machine.pc = next as u64;
    }
    #[cfg(target_arch = "riscv64")]
    {
        machine.__gregs[libc::REG_SP] = stack as u64;
        machine.__gregs[libc::REG_PC] = next as u64;
    }
}

/// On the thread that is to abandon its call, unless it has ended meanwhile.
extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(place) = NonNull::new(HERE.get().cast_mut()) else { return };
    // SAFETY: this thread's own place.
    let place = unsafe { place.as_ref() };
    let stack = place.way.stack.load(Ordering::Relaxed);
    if stack == 0 || place.wanted.load(Ordering::Acquire) != place.calls.load(Ordering::Relaxed) {
        return;
    }
    IS_OVER.store(true, Ordering::Release);
    // SAFETY: a handler's context; the thread is in the call, so that the way is the one that it has written.
    unsafe { go_on(context, stack, place.way.next.load(Ordering::Relaxed)) };
}

/// A call in which a thread was found.
#[derive(Clone, Debug)]
pub struct Found {
    place: Arc<Place>,
    number: u64,
}

impl PartialEq for Found {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.place, &other.place) && self.number == other.number
    }
}

/// The calls in which threads are now.
#[must_use]
pub fn find() -> Vec<Found> {
    let found = |place: &Arc<Place>| {
        let number = place.calls.load(Ordering::Acquire);
        (place.way.stack.load(Ordering::Relaxed) != 0).then(|| Found { place: place.clone(), number })
    };
    places().iter().filter_map(found).collect()
}

impl Found {
    /// The name of the function, while the thread is in this call.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.place.name()
    }

    /// Whether the thread is in this call still.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let Place { way, calls, .. } = &*self.place;
        calls.load(Ordering::Acquire) == self.number && way.stack.load(Ordering::Relaxed) != 0
    }

    /// Lets the thread abandon the call, which has taken `after`, and waits until it has left it, for a second at most; returns whether it has.
    ///
    /// A thread that the kernel does not interrupt, or that keeps this signal from itself, stays in it.
    #[must_use]
    pub fn abandon(&self, after: Duration) -> bool {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((self.name(), after));
        self.place.wanted.store(self.number, Ordering::Release);
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: plain data, valid when zeroed; the handler has the type that SA_SIGINFO wants.
        let installed = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigaction(SIGNAL, &raw const action, before.as_mut_ptr()) == 0
        };
        let latest = Instant::now() + Duration::from_secs(1);
        while installed && self.is_there() && Instant::now() < latest {
            // SAFETY: a signal for a thread of this process; if the thread has ended, there is an error, or another one of this
            // process has its number, which finds that it is in no such call.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.place.thread, SIGNAL) };
            std::thread::sleep(Duration::from_millis(2));
        }
        if installed {
            // SAFETY: what was there before.
            unsafe { libc::sigaction(SIGNAL, before.as_ptr(), ptr::null_mut()) };
        }
        self.place.wanted.store(0, Ordering::Release);
        !self.is_there()
    }
}

/// Libraries that do not return, for tests.
#[cfg(earlybird_faults)]
mod stuck {
    use std::ffi::CStr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// Chooses a call, such as `fi_cq_read:200:never`: the 200th of that function never returns. `spin` uses the processor
    /// meanwhile, and `late` is 3 seconds late.
    const NAME: &str = "TEST_STUCK";

    struct Chosen {
        function: String,
        left: AtomicU64,
        how: String,
    }

    fn chosen() -> Option<&'static Chosen> {
        static CHOSEN: OnceLock<Option<Chosen>> = OnceLock::new();
        let read = || {
            let text = std::env::var(NAME).ok().filter(|text| !text.is_empty())?;
            let parts: Vec<&str> = text.split(':').collect();
            let &[function, count, how] = &parts[..] else { panic!("{NAME}={text}: use FUNCTION:COUNT:HOW") };
            let left = count.parse().unwrap_or_else(|_| panic!("{NAME}={text}: {count} is no number"));
            assert!(["never", "spin", "late"].contains(&how), "{NAME}={text}: {how} is none of never, spin and late");
            Some(Chosen { function: function.to_owned(), left: AtomicU64::new(left), how: how.to_owned() })
        };
        CHOSEN.get_or_init(read).as_ref()
    }

    pub(super) fn hang_if_chosen(name: &CStr) {
        let Some(Chosen { function, left, how }) = chosen() else { return };
        if name.to_bytes() != function.as_bytes() || left.fetch_sub(1, Ordering::Relaxed) != 1 {
            return;
        }
        match how.as_str() {
            "late" => std::thread::sleep(Duration::from_secs(3)),
            "spin" => loop {
                std::hint::spin_loop();
            },
            _ => loop {
                std::thread::sleep(Duration::from_secs(1000));
            },
        }
    }
}
