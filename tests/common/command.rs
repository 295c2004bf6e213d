//! The command, in an environment that says nothing of it.

use std::process::{Command, Output};

/// The command with these arguments.
pub fn earlybird(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_earlybird"));
    command.args(args);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("EARLYBIRD_")) {
        command.env_remove(name);
    }
    command
}

/// What it has printed.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Of libfabric's own, and what this library wants.
pub const PROVIDER_VARIABLES: [(&str, &str); 3] =
    [("FI_SOCKETS_MAX_BUF_SZ", "4194304"), ("FI_OFI_RXM_MSG_RX_SIZE", "32"), ("FI_OFI_RXM_USE_SRX", "1")];

/// The command, without variables of libfabric that are set outside.
pub fn without_provider_variables(args: &[&str]) -> Command {
    let mut command = earlybird(args);
    for (name, _) in PROVIDER_VARIABLES {
        command.env_remove(name);
    }
    command
}
