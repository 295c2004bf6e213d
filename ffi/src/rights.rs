//! The rights of this process.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// How variables begin that libfabric, libibverbs and what these load follow. Some name files to load or to write.
const FOLLOWED: [&str; 29] = [
    "CUDA_",
    "CXGB4_",
    "FI_",
    "HABANA_",
    "HFI_",
    "HSA_",
    "IBV_",
    "IPATH_",
    "MLX",
    "NEO",
    "NEURON_",
    "NLCB",
    "NLDBG",
    "PROC_NET_PSCHED",
    "PROC_ROOT",
    "PSM",
    "QELR_",
    "RDMAV_",
    "ROCP",
    "ROCR_",
    "SYSFS_PATH",
    "T5_ENABLE_WC",
    "TICKS_PER_USEC",
    "UCX_",
    "VERBS_",
    "ZEL_",
    "ZES_",
    "ZET_",
    "ZE_",
];

/// Those that this library sets itself (`fabric/ofi/environment.rs`), and which name no file.
const HARMLESS: [&str; 3] = ["FI_OFI_RXM_MSG_RX_SIZE", "FI_OFI_RXM_USE_SRX", "FI_SOCKETS_MAX_BUF_SZ"];

/// A variable is set that those libraries would follow, and this process has more rights than the user who set it.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{0} is set, and this program has more rights than the user who started it (setuid, setgid or file capabilities): the \
     library might load or write files that such variables name; unset it"
)]
pub struct FollowsVariable(String);

/// Checks that those libraries may be loaded.
///
/// # Errors
/// A variable that they would follow.
pub fn check_variables() -> Result<(), FollowsVariable> {
    let is_followed = |name: &OsString| {
        let begins = |beginning: &&str| name.as_bytes().starts_with(beginning.as_bytes());
        FOLLOWED.iter().any(begins) && !HARMLESS.iter().any(|harmless| name == harmless)
    };
    let mut names = std::env::vars_os().map(|(name, _)| name).filter(|_| are_raised());
    let followed = names.find(is_followed);
    followed.map_or(Ok(()), |name| Err(FollowsVariable(name.to_string_lossy().into_owned())))
}

/// Whether this process has more rights than the user who started it: it is a setuid or setgid program, or its file has
/// capabilities (`AT_SECURE`, see getauxval(3)).
#[must_use]
pub fn are_raised() -> bool {
    // SAFETY: it reads a value that the kernel gave this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
