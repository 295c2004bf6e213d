//! Writes a recording during the run.
//!
//! A line is written with each wait that returns outcomes, through a buffer. The outcomes already belong to the caller
//! then, so a failure ends the recording and not the run: it is logged at once, and `finish` returns it when the rank
//! has left.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::format::{CutLine, Header, Line};
use crate::collective::core::Cut;
use crate::files;

/// A recording in progress.
#[derive(Debug)]
pub(super) struct Recorder {
    file: PathBuf,
    /// The output; nothing is written after the first failure.
    out: io::Result<BufWriter<File>>,
}

impl Recorder {
    pub(super) fn new(file: &Path, header: &Header) -> Result<Self, String> {
        let made = files::create(file).and_then(|made| {
            let mut out = BufWriter::new(made);
            write(&mut out, header)?;
            // A rank that is killed soon leaves a file that identifies itself.
            out.flush()?;
            Ok(out)
        });
        let out = made.map_err(|cause| format!("a recording cannot be written here: {cause}"))?;
        Ok(Recorder { file: file.to_owned(), out: Ok(out) })
    }

    pub(super) fn took(&mut self, rounds: &RangeInclusive<u64>, cuts: &[Cut]) {
        let took = Some((*rounds.start(), *rounds.end()));
        self.write(&Line { took, left: false, cuts: cuts.iter().map(CutLine::of).collect() });
    }

    pub(super) fn left(mut self, cuts: &[Cut]) -> io::Result<()> {
        self.write(&Line { took: None, left: true, cuts: cuts.iter().map(CutLine::of).collect() });
        self.out.and_then(|mut out| out.flush())
    }

    fn write(&mut self, line: &Line) {
        let Ok(out) = &mut self.out else { return };
        if let Err(cause) = write(out, line) {
            tracing::warn!(file = %self.file.display(), %cause, "the recording ends here; finish will say so");
            self.out = Err(cause);
        }
    }
}

fn write(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The outcomes belong to the caller in spite of that.
    #[test]
    fn a_full_disk_ends_the_recording_and_is_reported_at_the_end() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut recorder = Recorder { file: "/dev/full".into(), out: Ok(BufWriter::new(full)) };
        recorder.took(&(1..=1), &[]);
        assert!(recorder.out.is_ok(), "one line fits into the buffer");
        (2..2000).for_each(|round| recorder.took(&(round..=round), &[]));
        assert!(recorder.out.is_err());
        assert_eq!(recorder.left(&[]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
