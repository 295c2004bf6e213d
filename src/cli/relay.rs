//! Forwards the output of ranks, line by line, each prefixed with its rank.
//!
//! Lines of two ranks never mix. An unfinished line of a rank, such as a prompt or a progress bar, is forwarded after a
//! moment, too; if another rank writes then, a new line begins.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long an unfinished line may remain before it is forwarded.
const MOMENT: Duration = Duration::from_millis(20);

/// A longer part of a line is forwarded at once.
const MOST: usize = 64 << 10;

/// The destination of the output of several ranks.
#[derive(Debug)]
pub(super) struct Outlet<W> {
    to: Mutex<Line<W>>,
    /// Whether it has no reader any more.
    closed: AtomicBool,
    /// Why output was lost for another reason.
    failure: OnceLock<String>,
}

#[derive(Debug)]
struct Line<W> {
    to: W,
    /// The rank whose line is unfinished, and whether it begins the line anew.
    open: Option<(u32, bool)>,
}

impl<W: Write + Send> Outlet<W> {
    pub(super) fn to(to: W) -> Self {
        Outlet { to: Mutex::new(Line { to, open: None }), closed: AtomicBool::new(false), failure: OnceLock::new() }
    }

    /// Returns why output was lost, unless there is no reader; `None` if nothing was lost.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Returns whether there is no reader any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Forwards all that a rank writes.
    pub(super) fn relay(&self, rank: u32, mut from: impl Read + AsFd) {
        let (mut chunk, mut said) = (vec![0; MOST], Vec::new());
        loop {
            let timeout = Timespec { tv_sec: 0, tv_nsec: MOMENT.subsec_nanos().into() };
            let patience = (!said.is_empty()).then_some(&timeout);
            if poll(&mut [PollFd::new(&from, PollFlags::IN)], patience).is_ok_and(|ready| ready == 0) {
                self.pass(rank, &said);
                said.clear();
                continue;
            }
            match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => said.extend_from_slice(&chunk[..read]),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            }
            let ended = if said.len() > MOST {
                said.len()
            } else {
                said.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)
            };
            self.pass(rank, &said[..ended]);
            said.drain(..ended);
        }
        self.pass(rank, &said);
        self.end_line(rank);
    }

    fn pass(&self, rank: u32, said: &[u8]) {
        if said.is_empty() {
            return;
        }
        let mut line = self.to.lock();
        let mut out = Vec::with_capacity(said.len() + 64);
        for piece in said.split_inclusive(|&byte| byte == b'\n') {
            if line.open.is_some_and(|(other, _)| other != rank) {
                out.push(b'\n');
                line.open = None;
            }
            // A line that is rewritten keeps its rank in front.
            for part in piece.split_inclusive(|&byte| byte == b'\r') {
                let goes_on = matches!(line.open, Some((_, false)));
                let ends = part == b"\n" && line.open.is_some();
                if !goes_on && !ends {
                    out.extend_from_slice(format!("[{rank}] ").as_bytes());
                }
                out.extend_from_slice(part);
                line.open = (part.last() != Some(&b'\n')).then_some((rank, part.last() == Some(&b'\r')));
            }
        }
        self.write(&mut line, &out);
    }

    /// Ends the last line of a rank that has ended.
    fn end_line(&self, rank: u32) {
        let mut line = self.to.lock();
        if line.open.is_some_and(|(open, _)| open == rank) {
            line.open = None;
            self.write(&mut line, b"\n");
        }
    }

    fn write(&self, line: &mut Line<W>, out: &[u8]) {
        match line.to.write_all(out).and_then(|()| line.to.flush()) {
            Err(cause) if cause.kind() == ErrorKind::BrokenPipe => self.closed.store(true, Ordering::Relaxed),
            Err(cause) => _ = self.failure.get_or_init(|| cause.to_string()),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(said: &[(u32, &str)]) -> String {
        let outlet = Outlet::to(Vec::new());
        said.iter().for_each(|(rank, text)| outlet.pass(*rank, text.as_bytes()));
        String::from_utf8(outlet.to.into_inner().to).unwrap()
    }

    #[test]
    fn lines_of_two_ranks_never_mix() {
        assert_eq!(passed(&[(0, "a\nb\n"), (1, "c\n")]), "[0] a\n[0] b\n[1] c\n");
        assert_eq!(passed(&[(0, "name? "), (0, "x\n")]), "[0] name? x\n");
        assert_eq!(passed(&[(0, "name? "), (1, "c\n"), (0, "x\n")]), "[0] name? \n[1] c\n[0] x\n");
        assert_eq!(passed(&[(0, "\n"), (1, "\n")]), "[0] \n[1] \n");
    }

    #[test]
    fn a_progress_bar_keeps_its_rank_in_front() {
        assert_eq!(passed(&[(2, "\r10 %"), (2, "\r20 %"), (2, "\n")]), "[2] \r[2] 10 %\r[2] 20 %\n");
        assert_eq!(passed(&[(2, "10 %\r"), (2, "20 %\r"), (2, "\n")]), "[2] 10 %\r[2] 20 %\r\n");
        assert_eq!(passed(&[(0, "a\r\nb\r\n")]), "[0] a\r\n[0] b\r\n");
    }
}
