//! What happens in a rank's collectives, written as it happens: a file of trace events, which Perfetto and Chrome draw.
//!
//! The format is the array of Google's *Trace Event Format*, whose closing bracket is optional: the file of a killed rank
//! loads, too. A process of the picture is a rank, and a thread is a collective. Times are those of the monotonic clock,
//! which the ranks of one machine share; `earlybird trace merge` aligns machines.
#![forbid(unsafe_code)]

use std::fmt::{self, Display, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use earlybird_ffi::fork;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};
use crate::files;
use crate::machine::clock_identity;

/// The number of this format.
pub(crate) const VERSION: u32 = 1;

/// The name of the event that describes the file.
pub(crate) const HEADER: &str = "earlybird_trace";

/// Events of more bytes than this are written at the next opportunity.
const MOST_BYTES: usize = 1 << 15;

/// Events are written this long after the last ones, at the next opportunity: a killed rank loses no more.
const INTERVAL: Duration = Duration::from_millis(100);

/// Something that happens in a collective. Rounds have the numbers that the caller sees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The collective is made: the application computes its first contribution.
    Begins,
    /// The rank hands in its contribution for this round.
    Arrives { round: u64 },
    /// This rank fires a round.
    Fires { round: u64 },
    /// This rank learns the cut of a round: the numbers of its contributions.
    Learns { round: u64, fresh: usize, carried: usize },
    /// The outcome of a round is complete on this host.
    Lands { round: u64 },
    /// The caller waits for its outcome.
    Waits,
    /// The wait ends, with an outcome or an error.
    Returns,
    /// The caller has the outcomes of rounds, and its contribution was fresh in one of them.
    Takes { first: u64, last: u64, fresh: Option<u64> },
    /// The caller releases outcomes up to a round.
    Releases { round: u64 },
    /// The rank hands in its last, empty arrival.
    Leaves,
    /// Nothing follows.
    Ends,
}

/// The trace of a rank.
#[derive(Debug)]
pub(crate) struct Trace {
    rank: u32,
    /// The fork generation of the process that made it. A forked child must not write into it.
    generation: u32,
    out: Mutex<Out>,
}

#[derive(Debug)]
struct Out {
    path: PathBuf,
    /// `None` after the first failure, which was logged.
    file: Option<File>,
    /// Whole events that are not written yet.
    unwritten: String,
    /// When events were last written.
    written: Duration,
}

impl Trace {
    /// Creates the file of a rank: the name with the number of the rank. Returns `None` if no name is given.
    ///
    /// # Errors
    /// [`Error::Config`]: the file cannot be created.
    pub(crate) fn create(name: Option<&Path>, rank: u32, ranks: u32) -> Result<Option<Arc<Self>>> {
        let Some(name) = name else { return Ok(None) };
        let mut path = name.as_os_str().to_owned();
        path.push(format!(".{rank}"));
        let path = PathBuf::from(path);
        let file = files::create(&path).map_err(|cause| {
            Error::Config(format!("rank {rank}: {}: a trace cannot be written here: {cause}", path.display()))
        })?;
        let mut out = Out { path, file: Some(file), unwritten: String::new(), written: Duration::ZERO };
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let header = serde_json::json!({
            "version": VERSION, "ranks": ranks, "machine": clock_identity(), "wall_ns": wall.as_nanos() as u64,
            "monotonic_ns": now().as_nanos() as u64,
        });
        out.metadata("[\n", HEADER, (rank, 0), &header);
        out.metadata(",\n", "process_name", (rank, 0), &serde_json::json!({"name": format!("rank {rank}")}));
        out.metadata(",\n", "process_sort_index", (rank, 0), &serde_json::json!({"sort_index": rank}));
        out.write();
        Ok(Some(Arc::new(Trace { rank, generation: fork::generation(), out: Mutex::new(out) })))
    }

    /// Creates the track of a collective with this number.
    pub(crate) fn track(self: &Arc<Self>, collective: u32, title: &str) -> Arc<Track> {
        let title = serde_json::json!({"name": format!("collective {collective}: {title}")});
        self.out.lock().metadata(",\n", "thread_name", (self.rank, collective), &title);
        let track = Track { trace: self.clone(), collective, open: Mutex::new(Open::Nothing) };
        track.tell(Event::Begins);
        Arc::new(track)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if fork::generation() == self.generation {
            let out = self.out.get_mut();
            out.unwritten.push_str("\n]\n");
            out.write();
        }
    }
}

impl Out {
    fn metadata(&mut self, before: &str, name: &str, (rank, track): (u32, u32), what: &serde_json::Value) {
        // Writing to a text cannot fail.
        let _ = write!(
            self.unwritten,
            r#"{before}{{"ph":"M","name":"{name}","pid":{rank},"tid":{track},"ts":0,"args":{what}}}"#
        );
    }

    fn write(&mut self) {
        self.written = now();
        if let Some(Err(cause)) = self.file.as_mut().map(|file| file.write_all(self.unwritten.as_bytes())) {
            tracing::warn!(file = %self.path.display(), %cause, "the trace ends here");
            self.file = None;
        }
        self.unwritten.clear();
    }
}

/// What a track has open, besides a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Nothing,
    Compute,
    Round,
    Leave,
}

/// The events of one collective.
#[derive(Debug)]
pub(crate) struct Track {
    trace: Arc<Trace>,
    collective: u32,
    open: Mutex<Open>,
}

impl Track {
    /// Writes an event, with the time of now. Events of one track may come from several threads.
    #[cold]
    pub(crate) fn tell(&self, event: Event) {
        if fork::generation() != self.trace.generation {
            return;
        }
        // Held until the event is written: the times of a track ascend.
        let open = &mut *self.open.lock();
        let out = &mut *self.trace.out.lock();
        let time = now();
        let mut line = Lines { out: &mut out.unwritten, rank: self.trace.rank, track: self.collective, time };
        match event {
            Event::Begins => line.change(open, Open::Compute, format_args!("compute"), None),
            Event::Arrives { round } => line.change(open, Open::Round, format_args!("round {round}"), Some(round)),
            Event::Leaves => line.change(open, Open::Leave, format_args!("leave"), None),
            Event::Fires { round } => line.instant("fire", format_args!(r#""round":{round}"#)),
            Event::Learns { round, fresh, carried } => {
                line.instant("cut", format_args!(r#""round":{round},"fresh":{fresh},"carried":{carried}"#));
            }
            Event::Lands { round } => line.instant("land", format_args!(r#""round":{round}"#)),
            Event::Waits => line.begin(format_args!("wait"), None),
            Event::Returns => line.end(),
            Event::Takes { first, last, fresh } => {
                let fresh = fresh.map_or("null".to_owned(), |round| round.to_string());
                line.instant("take", format_args!(r#""first":{first},"last":{last},"fresh":{fresh}"#));
                if *open == Open::Round {
                    line.change(open, Open::Compute, format_args!("compute"), None);
                }
            }
            Event::Releases { round } => line.instant("release", format_args!(r#""round":{round}"#)),
            Event::Ends => line.close(open),
        }
        let is_due = time.saturating_sub(out.written) >= INTERVAL || out.unwritten.len() >= MOST_BYTES;
        if is_due || matches!(event, Event::Ends) {
            out.write();
        }
    }
}

/// Appends events of one time.
struct Lines<'a> {
    out: &'a mut String,
    rank: u32,
    track: u32,
    time: Duration,
}

impl Lines<'_> {
    fn event(&mut self, phase: char, rest: fmt::Arguments<'_>) {
        let Lines { rank, track, time, .. } = *self;
        let (micros, nanos) = (time.as_micros(), time.subsec_nanos() % 1000);
        // Writing to a text cannot fail.
        let _ = write!(
            self.out,
            ",\n{{\"ph\":\"{phase}\",\"pid\":{rank},\"tid\":{track},\"ts\":{micros}.{nanos:03}{rest}}}"
        );
    }

    fn instant(&mut self, name: &str, details: impl Display) {
        self.event('i', format_args!(r#","s":"t","name":"{name}","args":{{{details}}}"#));
    }

    fn begin(&mut self, name: impl Display, round: Option<u64>) {
        match round {
            Some(round) => self.event('B', format_args!(r#","name":"{name}","args":{{"round":{round}}}"#)),
            None => self.event('B', format_args!(r#","name":"{name}""#)),
        }
    }

    fn end(&mut self) {
        self.event('E', format_args!(""));
    }

    fn close(&mut self, open: &mut Open) {
        if *open != Open::Nothing {
            self.end();
        }
        *open = Open::Nothing;
    }

    /// Ends what is open, and begins another one.
    fn change(&mut self, open: &mut Open, next: Open, name: impl Display, round: Option<u64>) {
        self.close(open);
        self.begin(name, round);
        *open = next;
    }
}

/// The time of the monotonic clock.
fn now() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default()
}
