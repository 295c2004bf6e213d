//! Which operation has a use for which option. An option that an operation would ignore is refused.

use super::{Args, BenchOp, Buffers};
use crate::reduce::Dtype;
use crate::{Absent, Executor, Grace, Mover};

/// An option, and the operations that honour it.
struct BenchOption {
    name: &'static str,
    /// Whether it differs from what it is if it is not given.
    is_given: fn(&Args) -> bool,
    is_honoured: fn(BenchOp) -> bool,
}

const fn option(name: &'static str, is_given: fn(&Args) -> bool, is_honoured: fn(BenchOp) -> bool) -> BenchOption {
    BenchOption { name, is_given, is_honoured }
}

/// Returns whether rounds of all ranks fire by a rule.
fn has_rounds(op: BenchOp) -> bool {
    matches!(op, BenchOp::Allreduce | BenchOp::GroupAllreduce)
}

fn is_built(op: BenchOp) -> bool {
    op.is_collective() || matches!(op, BenchOp::Buckets | BenchOp::SoloLat)
}

fn has_sizes(op: BenchOp) -> bool {
    !matches!(op, BenchOp::Buckets | BenchOp::Arm)
}

/// All options that some operation has no use for.
const OPTIONS: [BenchOption; 19] = [
    option("--fire", |args| !args.fire.is_empty(), BenchOp::is_collective),
    option("--skew", |args| !args.skew.is_none(), BenchOp::is_collective),
    option("--dtype", |args| args.dtype != Dtype::F32, BenchOp::is_collective),
    option("--buffers", |args| args.buffers != Buffers::Registered, BenchOp::is_collective),
    option("--absent", |args| args.common.absent != Absent::Carry, BenchOp::is_collective),
    option("--seed", |args| args.common.seed != 1, BenchOp::is_collective),
    option("--plot", |args| args.plot.is_some(), BenchOp::is_collective),
    option("--overlay", |args| !args.overlay.is_empty(), BenchOp::is_collective),
    option("--grace", |args| args.common.grace != Grace::Auto, has_rounds),
    option("--group", |args| args.group.is_some(), |op| matches!(op, BenchOp::GroupAllreduce | BenchOp::PReduce)),
    option("--depth", |args| args.common.depth != 8, |op| has_rounds(op) || op == BenchOp::SoloLat),
    option("--mover", |args| args.common.mover != Mover::Auto, is_built),
    option("--executor", |args| args.common.executor != Executor::Auto, is_built),
    option("--stopped", |args| args.stopped, |op| op == BenchOp::SoloLat),
    option("--trace or --buckets", |args| !args.choices.is_empty(), |op| op == BenchOp::Buckets),
    option("--begin", |args| args.begin != 8, |op| op != BenchOp::Buckets),
    option("--end", |args| args.end.is_some(), has_sizes),
    option("--factor", |args| args.factor != 2, has_sizes),
    option("--seconds", |args| args.seconds != 1.0, |op| op.is_collective() || op.is_synchronous()),
];

/// Checks that the operation has a use for every option that was given.
pub(super) fn check(args: &Args) -> Result<(), String> {
    let op = args.op;
    let ignored = |option: &&BenchOption| (option.is_given)(args) && !(option.is_honoured)(op);
    match OPTIONS.iter().find(ignored) {
        Some(BenchOption { name, .. }) => Err(format!("--op {op} has no use for {name}; omit {name}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// Each operation with each option: it is honoured, or refused with its name.
    #[test]
    fn options_are_honoured_or_refused() {
        let options: [(&str, &[&str]); 20] = [
            ("--fire", &["--fire", "all,deadline=1s"]),
            ("--skew", &["--skew", "linear:1ms"]),
            ("--dtype", &["--dtype", "f64"]),
            ("--buffers", &["--buffers", "private"]),
            ("--absent", &["--absent", "hold"]),
            ("--seed", &["--seed", "7"]),
            ("--plot", &["--plot", "/tmp/x.svg"]),
            ("--grace", &["--grace", "1ms"]),
            ("--group", &[]),
            ("--depth", &["--depth", "3"]),
            ("--mover", &["--mover", "cut"]),
            ("--executor", &["--executor", "caller"]),
            ("--stopped", &["--stopped"]),
            ("--trace or --buckets", &["--buckets", "each"]),
            ("--begin", &["--begin", "64"]),
            ("--end", &["--end", "64"]),
            ("--factor", &["--factor", "8"]),
            ("--seconds", &["--seconds", "2"]),
            // All operations have these.
            ("--iters", &["--iters", "20"]),
            ("--warmup", &["--warmup", "3"]),
        ];
        println!("{:>16} {}", "", options.map(|(name, _)| name).join(" "));
        for &op in BenchOp::value_variants() {
            let name = op.to_string();
            let mut marks = String::new();
            for (option, values) in options {
                let group = if op == BenchOp::PReduce { "arrivals=2" } else { "butterfly=2" };
                let values = if option == "--group" { &["--group", group] } else { values };
                let line = [&["bench", "--op", name.as_str()], values].concat();
                let args = Command::try_parse_from(&line).unwrap_or_else(|error| panic!("{line:?}: {error}")).args;
                let row = OPTIONS.iter().find(|row| row.name == option);
                let honoured = row.is_none_or(|row| (row.is_honoured)(op));
                assert!(row.is_none_or(|row| (row.is_given)(&args)), "{line:?} gives {option}");
                let checked = args.check(2);
                assert_eq!(checked.is_ok(), honoured, "{line:?}: {checked:?}");
                let what = checked.err().unwrap_or_default();
                assert!(honoured || what.contains(option.split(' ').next().unwrap_or_default()), "{line:?}: {what}");
                marks += if honoured { "  x" } else { "  -" };
            }
            println!("{name:>16} {marks}");
        }
    }
}
