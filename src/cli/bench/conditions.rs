//! The conditions of a row: the binary, the machine, the choices asked for, and what resulted from them. Every row of
//! `--json` has all of them, so that it can be read alone, months later. `--csv` prints them once, in lines that begin with
//! `#`.

use std::cell::Cell;

use crate::machine::{host_name, kernel};
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

/// The form of rows for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// An object a line.
    Json,
    /// Values separated by commas, after a line with their names.
    Csv,
}

/// The conditions that all rows of a run share, and the form of these rows.
#[derive(Debug)]
pub(super) struct Conditions {
    all: Value,
    form: Form,
    has_head: Cell<bool>,
}

/// The columns of `--csv` that come first; the others follow by name.
const FIRST: [&str; 4] = ["fire", "skew", "bytes", "iterations"];

impl Conditions {
    pub(super) fn new(world: &World, config: &Config, args: &Args, form: Form) -> Self {
        let common = &args.common;
        let mut all = json!({
            "version": env!("CARGO_PKG_VERSION"), "git": COMMIT, "dirty": CHANGED.map(|changed| changed == "true"),
            "op": args.op.to_string(), "ranks": world.size(), "hosts": world.hosts().len(), "fabric": world.fabric_name(),
            "provider": world.provider(), "warmup": args.warmup,
            "hw_config": config.hw_config.as_ref().map(|file| file.display().to_string()),
            "host": host_name(), "kernel": kernel(),
            "cores": crate::machine::parallelism(),
        });
        let mut asked = json!({
            "fabric": config.fabric.to_string(), "levels": config.levels, "provider": config.ofi.provider,
            "device": devices(config),
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
        Conditions { all: joined(all, json!({ "asked": asked })), form, has_head: Cell::new(false) }
    }

    /// Prints a row with what was measured. Its keys take precedence over those of the conditions.
    pub(super) fn say(&self, measured: Value) {
        match self.form {
            Form::Json => say!("{}", joined(self.all.clone(), measured)),
            Form::Csv => self.say_csv(&measured),
        }
    }

    fn say_csv(&self, measured: &Value) {
        let Value::Object(measured) = measured else { return };
        let is_first = |name: &&String| FIRST.contains(&name.as_str());
        let first = FIRST.iter().filter_map(|&name| measured.get_key_value(name).map(|(name, _)| name));
        let names: Vec<&String> = first.chain(measured.keys().filter(|name| !is_first(name))).collect();
        if !self.has_head.replace(true) {
            comments(&self.all, "");
            say!("{}", names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(","));
        }
        say!("{}", names.iter().map(|&name| cell(&measured[name])).collect::<Vec<_>>().join(","));
    }
}

/// Prints the values of an object as comments, those of objects in it after their names.
fn comments(value: &Value, before: &str) {
    let Value::Object(values) = value else { return };
    for (name, value) in values {
        match value {
            Value::Object(_) => comments(value, &format!("{before}{name}.")),
            _ => say!("# {before}{name}: {}", cell(value)),
        }
    }
}

/// Returns a value as CSV has it (RFC 4180); nothing for null.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a line of CSV back.
    fn cells(line: &str) -> Vec<String> {
        let (mut all, mut quoted, mut chars) = (vec![String::new()], false, line.chars().peekable());
        while let Some(char) = chars.next() {
            match char {
                '"' if quoted && chars.next_if_eq(&'"').is_some() => all.iter_mut().next_back().unwrap().push('"'),
                '"' => quoted = !quoted,
                ',' if !quoted => all.push(String::new()),
                other => all.iter_mut().next_back().unwrap().push(other),
            }
        }
        all
    }

    #[test]
    fn values_read_back_as_json_has_them() {
        let values = [
            json!("all"),
            json!("quorum=2,full=4"),
            json!("a \"b\""),
            json!(1.0625),
            json!(-3),
            json!(true),
            json!(null),
        ];
        let line = values.iter().map(cell).collect::<Vec<_>>().join(",");
        let read: Vec<Value> = cells(&line)
            .into_iter()
            .map(|text| match text.as_str() {
                "" => Value::Null,
                text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
            })
            .collect();
        assert_eq!(read, values);
    }
}
