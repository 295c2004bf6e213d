//! Messages of the library on their way to Python's `logging`. They come on any thread, also on ones that hold the library's
//! locks, where the interpreter's lock must not be waited for: so they go into a queue, and a thread of Python takes them out.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use earlybird::log::{Level, LevelFilter};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::errors::raised;

/// Messages that wait to be taken, at most. Further ones are dropped.
const MOST: usize = 1024;

/// A message, or the end.
type Record = Option<(u8, String)>;

struct Queue {
    sender: SyncSender<Record>,
    receiver: Mutex<Receiver<Record>>,
}

fn queue() -> &'static Queue {
    static QUEUE: OnceLock<Queue> = OnceLock::new();
    QUEUE.get_or_init(|| {
        let (sender, receiver) = sync_channel(MOST);
        Queue { sender, receiver: Mutex::new(receiver) }
    })
}

/// Begins to collect messages: those that a logger of this level takes, if the environment says nothing else.
#[pyfunction]
pub(crate) fn start_log(py: Python<'_>, level: u8) -> PyResult<()> {
    let usual = match level {
        ..10 => LevelFilter::TRACE,
        10..20 => LevelFilter::DEBUG,
        20..30 => LevelFilter::INFO,
        30..40 => LevelFilter::WARN,
        40.. => LevelFilter::ERROR,
    };
    let sender = queue().sender.clone();
    let collected = earlybird::log::to(usual, move |level, text| {
        let level = match level {
            Level::TRACE => 5,
            Level::DEBUG => 10,
            Level::INFO => 20,
            Level::WARN => 30,
            Level::ERROR => 40,
        };
        // A full queue, or no thread that takes: a forked child has none.
        let _ = sender.try_send(Some((level, text)));
    });
    collected.map_err(|error| raised(py, &error))
}

/// Waits for the next message, and returns its level and text; None at the end.
#[pyfunction]
pub(crate) fn next_message(py: Python<'_>) -> Option<(u8, String)> {
    py.detach(|| queue().receiver.lock().recv().ok().flatten())
}

/// Ends [`next_message`] after the messages that wait; if there are too many, it does not.
#[pyfunction]
pub(crate) fn end_log() {
    let _ = queue().sender.try_send(None);
}
