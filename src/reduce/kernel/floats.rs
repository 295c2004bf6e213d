//! The floating-point state in which reductions are computed.
//!
//! A thread has a rounding mode and may flush tiny numbers to zero. `fesetround`, `torch.set_flush_denormal` or a
//! library built with fast mathematics sets that. The bits of a reduction must not depend on which thread of which rank
//! computes it.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::marker::PhantomData;

/// A guard: while it lives, this thread rounds to nearest, keeps denormal numbers and raises no signal. Its drop
/// restores the thread's own state.
#[derive(Debug)]
pub(crate) struct DefaultFloats {
    own: Control,
    /// Ties the guard to its thread.
    thread: PhantomData<*const ()>,
}

impl DefaultFloats {
    #[inline]
    pub(crate) fn enter() -> Self {
        let own = control::read();
        if !control::is_default(own) {
            control::write(control::DEFAULT);
        }
        DefaultFloats { own, thread: PhantomData }
    }

    /// Runs `work` in this state. All inputs of `work` are passed as `given`, so that the compiler computes nothing
    /// earlier.
    #[inline]
    pub(crate) fn compute<G, R>(given: G, work: impl FnOnce(G) -> R) -> R {
        let _state = Self::enter();
        black_box(work(black_box(given)))
    }
}

impl Drop for DefaultFloats {
    #[inline]
    fn drop(&mut self) {
        if !control::is_default(self.own) {
            control::write(self.own);
        }
    }
}

type Control = control::Control;

/// The control and status register of SSE and AVX, MXCSR (Intel's manual, volume 1, 10.2.3).
#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub(super) type Control = u32;

    /// Round to nearest, keep denormal numbers, mask all exceptions.
    pub(super) const DEFAULT: Control = 0x1f80;

    /// All bits except the flags of exceptions that have occurred.
    const CONTROLS: Control = 0xffc0;

    pub(super) fn is_default(control: Control) -> bool {
        control & CONTROLS == DEFAULT
    }

    #[inline]
    pub(super) fn read() -> Control {
        let mut control: Control = 0;
        // SAFETY: it stores the register into `control`, and changes nothing else.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) };
        control
    }

    #[inline]
    pub(super) fn write(control: Control) {
        // SAFETY: the value is the default or was read from the register, so it has no reserved bits. Rust's arithmetic
        // is defined in the default state; a thread that has another one got it from its program, and gets it back.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack)) };
    }
}

/// The control register FPCR (Arm's architecture manual, C5.2): rounding mode, flushing, traps.
#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub(super) type Control = u64;

    pub(super) const DEFAULT: Control = 0;

    pub(super) fn is_default(control: Control) -> bool {
        control == DEFAULT
    }

    #[inline]
    pub(super) fn read() -> Control {
        let control: Control;
        // SAFETY: it reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) control, options(nostack, preserves_flags)) };
        control
    }

    #[inline]
    pub(super) fn write(control: Control) {
        // SAFETY: as for MXCSR.
        unsafe { asm!("msr fpcr, {}", in(reg) control, options(nostack)) };
    }
}

/// The rounding mode (RISC-V's manual, 11.2); denormal numbers are always kept, and nothing traps.
#[cfg(target_arch = "riscv64")]
mod control {
    use std::arch::asm;

    pub(super) type Control = u64;

    pub(super) const DEFAULT: Control = 0;

    pub(super) fn is_default(control: Control) -> bool {
        control == DEFAULT
    }

    #[inline]
    pub(super) fn read() -> Control {
        let control: Control;
        // SAFETY: it reads a register.
        unsafe { asm!("frrm {}", out(reg) control, options(nostack, preserves_flags)) };
        control
    }

    #[inline]
    pub(super) fn write(control: Control) {
        // SAFETY: as for MXCSR.
        unsafe { asm!("fsrm {}", in(reg) control, options(nostack)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
compile_error!("say in src/reduce/kernel/floats.rs how this architecture sets its floating-point state");

/// States that a program may have set, for tests: the four rounding modes, and flushing.
#[cfg(test)]
pub(crate) mod states {
    use super::control;

    #[cfg(target_arch = "x86_64")]
    const OTHERS: [control::Control; 6] = [0x3f80, 0x5f80, 0x7f80, 0x9f80, 0x1fc0, 0xffc0];
    #[cfg(target_arch = "aarch64")]
    const OTHERS: [control::Control; 5] = [1 << 22, 2 << 22, 3 << 22, 1 << 24, 3 << 22 | 1 << 24];
    #[cfg(target_arch = "riscv64")]
    const OTHERS: [control::Control; 3] = [1, 2, 3];

    /// Runs `work` in each state, on a thread of its own, whose state must not change.
    pub(crate) fn in_each<R: Send>(work: impl Fn() -> R + Sync) -> Vec<R> {
        let in_state = |state| {
            control::write(state);
            let said = work();
            let after = control::read();
            control::write(control::DEFAULT);
            #[cfg(target_arch = "x86_64")]
            let after = after & 0xffc0;
            assert_eq!(after, state, "the thread's own state is gone");
            said
        };
        let one = |state| std::thread::scope(|scope| scope.spawn(|| in_state(state)).join().unwrap());
        OTHERS.into_iter().map(one).collect()
    }
}
