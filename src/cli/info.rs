//! `earlybird info`: what this build and machine can do.

use std::process::ExitCode;

use earlybird::config::VARIABLES;
use serde_json::json;

use super::table::Table;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// List the environment variables: name, value now, default, meaning
    #[arg(long)]
    env: bool,
    /// JSON Lines, an object a row
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: &Args) -> super::Outcome {
    if args.env {
        let value = |name| std::env::var(name).unwrap_or_default();
        if args.json {
            for variable in VARIABLES {
                say!(
                    "{}",
                    json!({"name": variable.name, "value": value(variable.name), "default": variable.default, "meaning": variable.meaning})
                );
            }
        } else {
            let mut table = Table::new(&["variable", "now", "default", "meaning"]);
            for variable in VARIABLES {
                table.row(&[
                    variable.name.to_owned(),
                    value(variable.name),
                    variable.default.to_owned(),
                    variable.meaning.to_owned(),
                ]);
            }
            say!("{table}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if args.json {
        say!(
            "{}",
            json!({"fabric": "shm", "available": true, "version": env!("CARGO_PKG_VERSION"), "cores": cores, "progress": "target side not needed", "atomics": "processor"})
        );
    } else {
        say!("earlybird {}, {cores} core(s) allowed", env!("CARGO_PKG_VERSION"));
        let mut table = Table::new(&["fabric", "available", "what it is"]);
        table.row(&[
            "shm".into(),
            "yes".into(),
            "all ranks on this machine; an anonymous memory file, no /dev/shm needed".into(),
        ]);
        table.row(&["sim".into(), "in tests".into(), "simulated network, for the protocol's own tests".into()]);
        say!("{table}");
        say!("Environment: earlybird info --env");
    }
    Ok(ExitCode::SUCCESS)
}
