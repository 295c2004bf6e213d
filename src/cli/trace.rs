//! `earlybird trace`: the traces of ranks as one picture.

mod clocks;
mod file;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use super::table::Table;
use crate::files;
use clocks::{Clock, align};
use file::TraceFile;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Write the traces of several ranks into one file, with the clocks of their machines aligned
    Merge(Merge),
}

#[derive(Debug, clap::Args)]
struct Merge {
    /// The files of the ranks, such as run.0 run.1 for EARLYBIRD_TRACE=run
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The file that is written
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// A JSON object
    #[arg(long)]
    json: bool,
}

const LEGEND: [&str; 2] = [
    "# clock_ms: what was added to the times of this rank; at_least, at_most: what its rounds allow",
    "# shared: rounds by which the clock of its machine was compared with those of the machines above",
];

pub(super) fn main(args: &Args) -> super::Outcome {
    let Action::Merge(args) = &args.action;
    let named = |path: &Path, what: String| format!("{}: {what}", path.display());
    let mut files = Vec::new();
    for path in &args.files {
        files.push((path, TraceFile::open(path).map_err(|what| named(path, what))?));
    }
    files.sort_by_key(|(_, file)| file.rank);
    for pair in files.windows(2) {
        let [(_, before), (path, file)] = pair else { continue };
        if before.rank == file.rank {
            return Err(named(path, format!("another of the files is the trace of rank {}, too", file.rank)).into());
        }
        if before.ranks != file.ranks {
            let (rank, ranks, other) = (before.rank, before.ranks, file.ranks);
            let what =
                format!("this is the trace of a world of {other} ranks, and that of rank {rank} of one of {ranks}");
            return Err(named(path, what).into());
        }
    }
    files::check_apart(&args.out, &args.files)?;
    let files: Vec<TraceFile> = files.into_iter().map(|(_, file)| file).collect();
    let clocks = align(&files);
    write(&args.out, &files, &clocks).map_err(|cause| named(&args.out, cause.to_string()))?;
    if args.json {
        say!("{}", as_json(&files, &clocks));
        return Ok(ExitCode::SUCCESS);
    }
    let ms = |time: Option<i64>| time.map_or("-".to_owned(), |time| format!("{:.3}", time as f64 / 1e6));
    let mut table = Table::new(&["rank", "events", "clock_ms", "at_least", "at_most", "shared"]);
    for (file, clock) in files.iter().zip(&clocks) {
        let Clock { offset, at_least, at_most, shared } = *clock;
        let (rank, events) = (file.rank.to_string(), file.events.len().to_string());
        table.row(&[rank, events, ms(Some(offset)), ms(at_least), ms(at_most), shared.to_string()]);
    }
    say!("{table}");
    if files.iter().all(|file| file.machine == files[0].machine) {
        say!("# all ranks ran on one machine: they have one clock");
    }
    LEGEND.iter().for_each(|line| say!("{line}"));
    say!("{} has all events; open it in ui.perfetto.dev or chrome://tracing", args.out.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes all events; the first one is at time 0.
fn write(path: &Path, files: &[TraceFile], clocks: &[Clock]) -> std::io::Result<()> {
    let aligned = || {
        files.iter().zip(clocks).flat_map(|(file, clock)| {
            file.events.iter().map(move |event| (event, event.time.map(|time| time.saturating_add(clock.offset))))
        })
    };
    let start = aligned().filter_map(|(_, time)| time).min().unwrap_or(0);
    let mut out = std::io::BufWriter::new(files::create(path)?);
    let mut before = "[\n";
    for (event, time) in aligned() {
        out.write_all(before.as_bytes())?;
        let ts = time.map_or(0, |time| time.saturating_sub(start)) as f64 / 1e3;
        serde_json::to_writer(&mut out, &event.at(ts))?;
        before = ",\n";
    }
    out.write_all(b"\n]\n")?;
    out.flush()
}

fn as_json(files: &[TraceFile], clocks: &[Clock]) -> serde_json::Value {
    let rank = |(file, clock): (&TraceFile, &Clock)| {
        json!({
            "rank": file.rank, "events": file.events.len(), "clock_ns": clock.offset, "at_least_ns": clock.at_least,
            "at_most_ns": clock.at_most, "shared": clock.shared,
        })
    };
    json!({ "ranks": files.iter().zip(clocks).map(rank).collect::<Vec<_>>() })
}
