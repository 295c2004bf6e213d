//! The conditions of a row: the binary, the choices asked for, and what resulted from them. Every
//! row of `--json` has all of them, so that it can be read alone, months later.

use crate::{Config, Reduce, World};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{Args, BenchOp};

/// The commit of this binary, and whether the sources differed from that commit: from `build.rs`,
/// if it knows.
const COMMIT: Option<&str> = option_env!("BUILT_FROM_COMMIT");
const CHANGED: Option<&str> = option_env!("BUILT_FROM_CHANGED");

/// Returns the devices that were asked for, in the form of `EARLYBIRD_DEVICE`.
fn devices(config: &Config) -> Option<String> {
    let Some((second, its_port)) = &config.verbs.second else { return config.ofi.device.clone() };
    let name = |device: &str, port: Option<u8>| port.map_or(device.to_owned(), |port| format!("{device}:{port}"));
    let first = config.verbs.device.as_deref().unwrap_or_default();
    Some(format!("{},{}", name(first, config.verbs.port), name(second, *its_port)))
}

/// The conditions that all rows of a run share.
#[derive(Debug)]
pub(super) struct Conditions(Value);

impl Conditions {
    pub(super) fn new(world: &World, config: &Config, args: &Args) -> Self {
        let common = &args.common;
        let mut all = json!({
            "version": env!("CARGO_PKG_VERSION"), "git": COMMIT, "dirty": CHANGED.map(|changed| changed == "true"),
            "op": args.op.to_string(), "ranks": world.size(), "fabric": world.fabric_name(),
            "provider": world.provider(), "warmup": args.warmup,
            "hw_config": config.hw_config.as_ref().map(|file| file.display().to_string()),
        });
        let mut asked = json!({
            "fabric": config.fabric.to_string(), "provider": config.ofi.provider, "device": devices(config),
            "bind": word(&common.start.bind), "ordered_writes": config.verbs.ordered_writes,
            "memory_polling": config.verbs.memory_polling,
        });
        let choices = json!({
            "mover": common.mover.to_string(), "executor": common.executor.to_string(), "depth": common.depth,
        });
        if args.op == BenchOp::SoloLat {
            asked = joined(asked, choices.clone());
            all = joined(all, json!({ "stopped": args.stopped }));
        }
        if args.op.is_collective() {
            let collective = json!({
                "dtype": args.dtype.to_string(), "reduction": Reduce::Sum.to_string(),
                "group": args.group(world.size()).map(|group| group.to_string()),
                "absent": common.absent.to_string(), "seed": common.seed, "buffers": word(&args.buffers),
            });
            let choices = joined(choices, json!({ "grace": common.grace.to_string() }));
            (all, asked) = (joined(all, collective), joined(asked, choices));
        }
        Conditions(joined(all, json!({ "asked": asked })))
    }

    /// Returns a row: these conditions, and what was measured. Keys of the measurement take precedence.
    pub(super) fn row(&self, measured: Value) -> Value {
        joined(self.0.clone(), measured)
    }
}

/// Merges two objects.
fn joined(mut first: Value, second: Value) -> Value {
    if let (Value::Object(all), Value::Object(more)) = (&mut first, second) {
        all.extend(more);
    }
    first
}

/// Returns a choice as it is written on the command line.
fn word(choice: &impl ValueEnum) -> Option<String> {
    choice.to_possible_value().map(|value| value.get_name().to_owned())
}
