//! A change of a peer's cell as a sequence of operations: the data, the change itself, and the
//! immediate data that announces both. libfabric orders few operations of different kinds, so each
//! starts when the one before it has completed.
#![allow(unsafe_code)]

use std::ffi::c_void;

use earlybird_ffi::ofi::{Atomics, Code, Endpoint, Local, Remote, sys};

use crate::fabric::Atomic;
use crate::fabric::net::CellChange;

const WORD: usize = size_of::<u64>();

/// The words of a change, in registered memory: what the cell is set to or what was there before,
/// with data in front of it, and behind it two words for the operands of an atomic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    /// All of them.
    memory: Local,
    /// Bytes of the first word and of the data in front of it.
    first: usize,
}

impl Words {
    /// Bytes behind the first word.
    pub(super) const OPERANDS: usize = 2 * WORD;

    pub(super) fn new(memory: Local) -> Self {
        Words { memory, first: memory.len - Words::OPERANDS }
    }

    fn part(self, offset: usize, len: usize) -> Local {
        debug_assert!(offset + len <= self.memory.len);
        Local { base: self.memory.base.wrapping_add(offset), len, ..self.memory }
    }

    fn first(self) -> Local {
        self.part(0, self.first)
    }

    fn operand(self, index: usize) -> Local {
        self.part(self.first + index * WORD, WORD)
    }
}

/// The operands of a change, as they lie behind its first word.
pub(super) fn operands(change: CellChange) -> [u64; 2] {
    match change {
        CellChange::Set(_) => [0; 2],
        CellChange::Atomic(Atomic::FetchAdd(add)) => [add, 0],
        CellChange::Atomic(Atomic::CompareSwap { expect, new }) => [expect, new],
    }
}

/// What is left to post of a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changing {
    pub(super) data: Option<(Local, Remote)>,
    pub(super) change: Option<CellChange>,
    pub(super) immediate: Option<u64>,
    pub(super) cell: Remote,
    pub(super) words: Words,
}

impl Changing {
    pub(super) fn is_over(&self) -> bool {
        self.data.is_none() && self.change.is_none() && self.immediate.is_none()
    }

    /// Posts the next operation.
    ///
    /// # Safety
    /// The atomics are the endpoint's. The memory and the words must be registered and live until the
    /// completion of `context`, and nothing else may change what is read, or use what is written. The
    /// operation before has completed.
    ///
    /// # Errors
    /// The provider's error; [`Code::AGAIN`] if it cannot take the operation now.
    pub(super) unsafe fn post(
        &mut self,
        endpoint: &Endpoint,
        atomics: &Atomics,
        context: *mut c_void,
    ) -> Result<(), Code> {
        const LANDED: u64 = sys::FI_DELIVERY_COMPLETE;
        let (cell, words) = (self.cell, self.words);
        if let Some(data) = self.data {
            // SAFETY: as the caller says.
            unsafe { endpoint.write([data], (LANDED, 0), context)? };
            self.data = None;
            return Ok(());
        }
        let Some(change) = self.change else {
            let Some(immediate) = self.immediate else { return Ok(()) };
            let nothing = (words.part(0, 0), cell);
            // SAFETY: as the caller says.
            unsafe { endpoint.write([nothing], (LANDED | sys::FI_REMOTE_CQ_DATA, immediate), context)? };
            self.immediate = None;
            return Ok(());
        };
        // SAFETY: as the caller says; the words are apart from each other, and aligned.
        unsafe {
            match change {
                CellChange::Set(_) => {
                    let flags = self.immediate.map_or(LANDED, |_| LANDED | sys::FI_REMOTE_CQ_DATA);
                    endpoint.write([(words.first(), cell)], (flags, self.immediate.unwrap_or(0)), context)?;
                    self.immediate = None;
                }
                // An atomic that changes nothing might still undo what the home sets meanwhile.
                CellChange::Atomic(Atomic::FetchAdd(0)) => endpoint.read(words.first(), cell, context)?,
                CellChange::Atomic(Atomic::FetchAdd(_)) => {
                    atomics.fetch_add(endpoint, words.operand(0), cell, words.first(), context)?;
                }
                CellChange::Atomic(Atomic::CompareSwap { .. }) => {
                    let operands = (words.operand(0), words.operand(1));
                    atomics.compare_swap(endpoint, operands, cell, words.first(), context)?;
                }
            }
        }
        self.change = None;
        Ok(())
    }
}
