//! placeholder
#[derive(Debug, clap::Args)]
pub(super) struct Args {}
pub(super) fn main(_: Args) -> super::Outcome { Err("later".into()) }
