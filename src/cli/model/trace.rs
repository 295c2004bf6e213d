//! Traces: how long each gradient of a model takes to compute, and how large it is.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use crate::merge::Gradient;

/// GoogLeNet on a K80; `data/README.md` names its source.
const GOOGLENET: &str = include_str!("../../../data/googlenet_k80.csv");

/// The first line of a trace that is not a comment.
const HEADER: &str = "elements,backward_seconds";

/// The maximum number of gradients: the time of a plan grows with its square.
const MOST_GRADIENTS: usize = 4096;

const MOST_ELEMENTS: u64 = 1 << 40;
const MOST_SECONDS: f64 = 86_400.0;

/// The gradients of a model in backward order.
#[derive(Debug)]
pub(in crate::cli) struct Trace {
    pub(in crate::cli) gradients: Vec<Gradient>,
    /// The duration of the backward pass.
    pub(in crate::cli) backward: Duration,
}

/// What is wrong with a trace.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum TraceError {
    #[error("line {line}: expected {expected}, found {found:?}")]
    Line { line: usize, expected: &'static str, found: String },
    #[error("no gradients; expected the header {HEADER} and then a line for each gradient, in backward order")]
    Empty,
    #[error("the times of all gradients are 0; at least one must take time")]
    NoTime,
    #[error("more than {MOST_GRADIENTS} gradients")]
    TooMany,
}

impl Trace {
    /// Reads the trace in a file, or GoogLeNet's.
    pub(in crate::cli) fn load(path: Option<&Path>, bytes_per_element: u64) -> Result<Self, String> {
        let Some(path) = path else {
            return Self::read(GOOGLENET, bytes_per_element).map_err(|error| error.to_string());
        };
        let named = |error: &dyn Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
        Self::read(&text, bytes_per_element).map_err(|error| named(&error))
    }

    /// Reads a trace: `elements,backward_seconds`, one line for each gradient, and comments after `#`.
    pub(in crate::cli) fn read(text: &str, bytes_per_element: u64) -> Result<Self, TraceError> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        match lines.next() {
            None => return Err(TraceError::Empty),
            Some((_, HEADER)) => {}
            Some((line, other)) => return Err(bad(line, "the header elements,backward_seconds", other)),
        }
        let (mut gradients, mut backward) = (Vec::new(), Duration::ZERO);
        for (number, line) in lines {
            let (elements, seconds) = row(number, line)?;
            if gradients.len() == MOST_GRADIENTS {
                return Err(TraceError::TooMany);
            }
            backward += seconds;
            gradients.push(Gradient { ready: backward, bytes: elements * bytes_per_element });
        }
        match backward {
            _ if gradients.is_empty() => Err(TraceError::Empty),
            Duration::ZERO => Err(TraceError::NoTime),
            _ => Ok(Trace { gradients, backward }),
        }
    }

    pub(in crate::cli) fn bytes(&self) -> u64 {
        self.gradients.iter().map(|gradient| gradient.bytes).sum()
    }
}

fn row(number: usize, line: &str) -> Result<(u64, Duration), TraceError> {
    let (elements, seconds) =
        line.split_once(',').ok_or_else(|| bad(number, "two numbers, elements,backward_seconds", line))?;
    let (elements, seconds) = (elements.trim(), seconds.trim());
    let count = elements.parse().ok().filter(|count| (1..=MOST_ELEMENTS).contains(count));
    let count = count.ok_or_else(|| bad(number, "a whole number of elements from 1 to 2^40", elements))?;
    let time = seconds.parse().ok().filter(|time| (0.0..=MOST_SECONDS).contains(time));
    let time = time.and_then(|time| Duration::try_from_secs_f64(time).ok());
    Ok((count, time.ok_or_else(|| bad(number, "backward seconds from 0 to 86400", seconds))?))
}

/// Creates an error. It contains no more of the found text than a message can hold.
fn bad(line: usize, expected: &'static str, found: &str) -> TraceError {
    TraceError::Line { line, expected, found: found.chars().take(40).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> Result<Trace, TraceError> {
        Trace::read(&format!("# comment\n\n{HEADER}\n{lines}"), 4)
    }

    #[test]
    fn gradients_are_ready_one_after_the_other() {
        let trace = read("10, 0.5\r\n# another\n 3,0\n1,25e-2").unwrap();
        let read: Vec<_> = trace.gradients.iter().map(|at| (at.ready.as_millis(), at.bytes)).collect();
        assert_eq!(read, [(500, 40), (500, 12), (750, 4)]);
        assert_eq!((trace.backward, trace.bytes()), (Duration::from_millis(750), 56));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (line, expected) in [
            ("0,0.1", "line 5: expected a whole number of elements from 1 to 2^40, found \"0\""),
            ("-1,0.1", "found \"-1\""),
            ("1.5,0.1", "found \"1.5\""),
            ("2000000000000,0.1", "found \"2000000000000\""),
            (",0.1", "elements from 1 to 2^40, found \"\""),
            ("1,-0.1", "line 5: expected backward seconds from 0 to 86400, found \"-0.1\""),
            ("1,NaN", "found \"NaN\""),
            ("1,inf", "found \"inf\""),
            ("1,1e9", "found \"1e9\""),
            ("1,", "backward seconds from 0 to 86400, found \"\""),
            ("1,2,3", "found \"2,3\""),
            ("1;2", "line 5: expected two numbers, elements,backward_seconds, found \"1;2\""),
        ] {
            let error = read(&format!("8,1\n{line}")).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        for text in ["", "# only a comment\n", "elements,backward_seconds\n"] {
            assert_eq!(Trace::read(text, 4).unwrap_err(), TraceError::Empty, "{text:?}");
        }
        let error = Trace::read(&format!("# one\n8,1\n{}", "9".repeat(99)), 4).unwrap_err().to_string();
        assert_eq!(error, "line 2: expected the header elements,backward_seconds, found \"8,1\"");
        assert_eq!(read("8,0\n8,0").unwrap_err(), TraceError::NoTime);
        assert_eq!(read(&"1,1\n".repeat(MOST_GRADIENTS + 1)).unwrap_err(), TraceError::TooMany);
        assert_eq!(read(&"1,1\n".repeat(MOST_GRADIENTS)).unwrap().gradients.len(), MOST_GRADIENTS);
        let TraceError::Line { found, .. } = read(&"9".repeat(99)).unwrap_err() else { panic!("of another kind") };
        assert_eq!(found.len(), 40);
    }

    #[test]
    fn the_bundled_trace_has_what_its_source_says() {
        let trace = Trace::read(GOOGLENET, 4).unwrap();
        assert_eq!((trace.gradients.len(), trace.bytes() / 4), (64, 13_379_136));
        assert!((trace.backward.as_secs_f64() - 0.2015).abs() < 1e-4, "{:?}", trace.backward);
    }
}
