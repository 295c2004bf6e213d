//! `earlybird run`: a local launcher.

use std::ffi::OsString;

use super::launch::{Bind, Launch, Output, check_ranks};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ranks to start
    #[arg(short = 'n', long, value_name = "N")]
    ranks: u32,
    /// Where they run
    #[arg(long, value_enum, default_value = "none")]
    bind: Bind,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<OsString>,
}

pub(super) fn main(args: &Args) -> super::Outcome {
    check_ranks(args.ranks)?;
    let (program, rest) = args.program.split_first().ok_or("no program given")?;
    Launch { ranks: args.ranks, bind: args.bind, output: Output::Prefixed, program, args: rest, variables: &[] }.run()
}
