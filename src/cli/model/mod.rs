//! `earlybird model`: predictions from formulas. Nothing is run.

mod disagreement;
mod groups;
mod merge;
mod network;
pub(super) mod trace;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    model: Model,
}

#[derive(Debug, clap::Subcommand)]
enum Model {
    /// Which gradients of a backward pass should share a message, and what that gains
    Merge(merge::Args),
    /// Which ranks average with each other in which round, and how far that leaves them apart
    Groups(groups::Args),
}

pub(super) fn main(args: &Args) -> super::Outcome {
    match &args.model {
        Model::Merge(args) => merge::main(args),
        Model::Groups(args) => groups::main(args),
    }
}
