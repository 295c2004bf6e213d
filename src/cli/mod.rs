//! The command line: its commands, and how errors reach the user.

/// Prints a line.
macro_rules! say {
    ($($what:tt)*) => {
        crate::cli::output::line(format_args!($($what)*))
    };
}

/// Prints a line about a failure.
macro_rules! complain {
    ($($what:tt)*) => {
        crate::cli::output::complain(format_args!($($what)*))
    };
}

mod bench;
mod common;
mod distribution;
mod fuzz;
mod info;
mod keeper;
mod launch;
mod model;
mod output;
mod pattern;
mod plot;
mod program;
mod rank;
mod relay;
mod report;
mod run;
mod selftest;
mod simulate;
mod skew;
mod table;
mod trace;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Partial collectives: the first process to arrive triggers, late ones are carried.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start N ranks of a program on this machine
    Run(run::Args),
    /// Measure collectives, balanced or with stragglers
    Bench(bench::Args),
    /// Train a model, data-parallel, under different firing rules
    Train(train::Args),
    /// Print or draw the table of triggered operations behind a collective
    Program(program::Args),
    /// Run the protocol over random schedules and networks, and shrink what fails
    Fuzz(fuzz::Args),
    /// Simulate worlds without troubles, of up to 4,096 ranks, and print the cost
    Simulate(simulate::Args),
    /// Tell from a recording which ranks were late, since when, and what that cost
    Report(report::Args),
    /// Put the traces of ranks together in one picture
    Trace(trace::Args),
    /// Predict from formulas what a method gains
    Model(model::Args),
    /// Check on these devices what the library promises, and print what holds
    Selftest(selftest::Args),
    /// Show what this build and machine can do
    Info(info::Args),
    /// One rank of a launched program: not for people
    #[command(name = rank::NAME, hide = true)]
    Rank(rank::Args),
    /// The keeper of a launcher's ranks: not for people
    #[command(name = keeper::NAME, hide = true)]
    Keeper,
}

/// The result of a command: its exit status, or an error that is printed in one line.
type Outcome = Result<ExitCode, Box<dyn std::error::Error>>;

/// Runs the `earlybird` command with the arguments of this process, for its binary. Its output and its exit status are
/// for people and shells.
pub fn command() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = crate::log::to_stderr() {
        complain!("{error}");
        return ExitCode::FAILURE;
    }
    let outcome = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Bench(args) => bench::main(args),
        Command::Train(args) => train::main(args),
        Command::Program(args) => program::main(&args),
        Command::Fuzz(args) => fuzz::main(&args),
        Command::Simulate(args) => simulate::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Model(args) => model::main(&args),
        Command::Selftest(args) => selftest::main(&args),
        Command::Info(args) => info::main(&args),
        Command::Rank(args) => rank::main(&args),
        Command::Keeper => keeper::main(),
    };
    let outcome = outcome.and_then(|code| match output::failure() {
        Some(cause) => Err(format!("standard output: {cause}").into()),
        None => Ok(code),
    });
    outcome.unwrap_or_else(|error| {
        complain!("{error}");
        ExitCode::FAILURE
    })
}

/// Parses a size for clap.
fn size(text: &str) -> Result<u64, String> {
    crate::units::parse_size(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn options_of_commands_go_together() {
        Cli::command().debug_assert();
    }
}
