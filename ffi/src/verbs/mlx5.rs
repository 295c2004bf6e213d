//! ConnectX devices (mlx5): what their work queues can wait for without a processor. Their provider, libmlx5, asks them.
//!
//! The command and its answer are lists of bits that count from the highest bit of the first byte. They are not in a
//! header that is installed: rdma-core, `providers/mlx5/mlx5_ifc.h` (`query_hca_cap_in`, `query_hca_cap_out`,
//! `cmd_hca_cap`), and DPDK, `drivers/common/mlx5/mlx5_prm.h` (`wait_on_data`).

use std::ffi::{OsStr, c_int, c_void};
use std::io;
use std::sync::OnceLock;

use super::device::Context;
use super::library::check;
use super::sys::{ibv_context, ibv_device};
use crate::loader::Shared;

/// Operation 0x100 (QUERY_HCA_CAP), then its modifier: the general capabilities (0, shifted by one bit) as they are now
/// (1), and not as they could be made.
const COMMAND: [u8; 16] = [0x01, 0x00, 0, 0, 0, 0, 0x00, 0x01, 0, 0, 0, 0, 0, 0, 0, 0];

/// Bytes of an answer before the capabilities, and of these.
const HEADER_LEN: usize = 16;
const CAPABILITIES_LEN: usize = 4096;

/// Bits of the capabilities: `cd` (*cross channel*) and `wait_on_data`.
const CROSS_CHANNEL: usize = 0x22c;
const WAIT_ON_DATA: usize = 0x68b;

type Answer = [u8; HEADER_LEN + CAPABILITIES_LEN];

/// What work queues of a device can wait for. What follows in the queue runs after that, without a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// A completion queue has had so many entries.
    pub completions: bool,
    /// A word of memory has a value.
    pub memory: bool,
}

impl Waits {
    /// Reads an answer.
    ///
    /// # Errors
    /// The device has refused the command.
    fn read(answer: &Answer) -> io::Result<Self> {
        let [status, _, _, _, a, b, c, d, ..] = *answer;
        if status != 0 {
            let syndrome = u32::from_be_bytes([a, b, c, d]);
            return Err(io::Error::other(format!(
                "the device answers with status {status:#x}, syndrome {syndrome:#x}"
            )));
        }
        let has = |bit: usize| answer[HEADER_LEN + bit / 8] & (0x80 >> (bit % 8)) != 0;
        Ok(Waits { completions: has(CROSS_CHANNEL), memory: has(WAIT_ON_DATA) })
    }
}

/// Functions of libmlx5.
struct Provider {
    is_supported: unsafe extern "C" fn(*mut ibv_device) -> bool,
    general_command: unsafe extern "C" fn(*mut ibv_context, *const c_void, usize, *mut c_void, usize) -> c_int,
}

/// libmlx5, where it is installed and new enough. libibverbs loads it before it lists a ConnectX device, so that a
/// machine with such a device has it.
fn provider() -> Option<&'static Provider> {
    static PROVIDER: OnceLock<Option<Provider>> = OnceLock::new();
    let load = || {
        let shared = Shared::open(OsStr::new("libmlx5.so.1")).ok()?;
        // SAFETY: the C prototypes of these versions (mlx5dv.h of 44).
        unsafe {
            Some(Provider {
                is_supported: shared.function(c"mlx5dv_is_supported", c"MLX5_1.8").ok()?,
                general_command: shared.function(c"mlx5dv_devx_general_cmd", c"MLX5_1.7").ok()?,
            })
        }
    };
    PROVIDER.get_or_init(load).as_ref()
}

impl Context {
    /// What the device's work queues can wait for; `None` if it is no ConnectX device. See
    /// mlx5dv_devx_general_cmd(3).
    ///
    /// # Errors
    /// The device or the kernel refuses to tell.
    pub fn waits(&self) -> io::Result<Option<Waits>> {
        let Some(provider) = provider() else { return Ok(None) };
        // SAFETY: live; the function compares an address.
        if !unsafe { (provider.is_supported)(self.device().as_ptr()) } {
            return Ok(None);
        }
        let mut answer: Answer = [0; HEADER_LEN + CAPABILITIES_LEN];
        // SAFETY: live; so many bytes are read and written.
        let code = unsafe {
            let (command, answer) = (COMMAND.as_ptr().cast(), answer.as_mut_ptr().cast());
            (provider.general_command)(self.as_ptr(), command, COMMAND.len(), answer, size_of::<Answer>())
        };
        // What the device refuses is an error of the call, too, and the answer says more of it.
        let waits = Waits::read(&answer)?;
        check(code).map(|()| Some(waits))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// An answer with these 32-bit words of capabilities, as the device's manual counts them.
    fn answer(words: &[(usize, u32)]) -> Answer {
        let mut answer = [0; HEADER_LEN + CAPABILITIES_LEN];
        for &(word, value) in words {
            answer[HEADER_LEN + 4 * word..][..4].copy_from_slice(&value.to_be_bytes());
        }
        answer
    }

    /// `cd` is bit 12 of word 17 from the left, `wait_on_data` bit 11 of word 52; their neighbours say nothing.
    #[test]
    fn capabilities_are_where_the_layout_has_them() {
        let (cross_channel, on_data) = ((17, 0x8000_0000 >> 12), (52, 0x8000_0000 >> 11));
        for (words, completions, on_memory) in [
            (vec![], false, false),
            (vec![cross_channel], true, false),
            (vec![on_data], false, true),
            (vec![cross_channel, on_data], true, true),
            (vec![(17, !cross_channel.1), (52, !on_data.1)], false, false),
        ] {
            let waits = Waits::read(&answer(&words)).unwrap();
            assert_eq!((waits.completions, waits.memory), (completions, on_memory), "{words:x?}");
        }
    }

    #[test]
    fn a_refusal_is_an_error() {
        let mut refusal = answer(&[(17, u32::MAX), (52, u32::MAX)]);
        refusal[0] = 0x03;
        refusal[4..8].copy_from_slice(&0x0012_3456_u32.to_be_bytes());
        let text = Waits::read(&refusal).unwrap_err().to_string();
        assert_eq!(text, "the device answers with status 0x3, syndrome 0x123456");
    }

    /// Debian's ibverbs-providers has libmlx5; its functions say so themselves if a device is none of theirs.
    #[test]
    fn the_provider_has_both_functions_where_it_is_installed() {
        if let Err(cause) = Shared::open(OsStr::new("libmlx5.so.1")) {
            eprintln!("SKIPPED: libmlx5 is not here: {cause}");
            return;
        }
        assert!(provider().is_some());
    }
}
