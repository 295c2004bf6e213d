//! Deadlines and durations.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// Nanoseconds since an origin that depends on the clock.
pub(crate) type Time = u64;

/// The time by which a call must be done.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Until);

#[derive(Clone, Copy, Debug)]
enum Until {
    Instant(Instant),
    /// A duration that starts to count when it is needed: a call whose result is ready reads no clock.
    After(Duration),
}

impl Deadline {
    /// Returns the instant of the deadline; a duration starts to count now.
    pub(crate) fn instant(self) -> Instant {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
        match self.0 {
            Until::Instant(at) => at,
            Until::After(time) => {
                let now = Instant::now();
                now.checked_add(time.min(CENTURY)).unwrap_or(now)
            }
        }
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Deadline(Until::Instant(at))
    }
}

impl From<Duration> for Deadline {
    /// Counts from the call that receives the deadline; an overflow becomes a century.
    fn from(after: Duration) -> Self {
        Deadline(Until::After(after))
    }
}

/// A text that is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a time{sign}; write for example 0, 300us, 1.5ms or 2s", sign = sign(.0))]
pub struct NotATime(pub String);

fn sign(text: &str) -> &'static str {
    if text.starts_with('-') { ", which is never negative" } else { "" }
}

/// Parses a duration: `0`, `250ns`, `300us`, `1.5ms`, `2s` or `1min`.
///
/// # Errors
/// [`NotATime`] for anything else, including negative and overflowing values.
pub fn parse_duration(text: &str) -> Result<Duration, NotATime> {
    let bad = || NotATime(text.to_owned());
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let value: f64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit {
        "" if value == 0.0 => 0.0,
        "ns" => value * 1e-9,
        "us" | "µs" => value * 1e-6,
        "ms" => value * 1e-3,
        "s" => value,
        "min" => value * 60.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_invalid_ones_are_errors() {
        for (text, time) in [
            ("0", Duration::ZERO),
            ("250ns", Duration::from_nanos(250)),
            ("300us", Duration::from_micros(300)),
            ("300µs", Duration::from_micros(300)),
            ("1.5ms", Duration::from_micros(1500)),
            ("2s", Duration::from_secs(2)),
            ("1min", Duration::from_secs(60)),
        ] {
            assert_eq!(parse_duration(text), Ok(time), "{text}");
        }
        for text in ["", "5", "-1ms", "1h", "ms", "1e400s", "1..2s", "inf", "soon"] {
            assert_eq!(parse_duration(text), Err(NotATime(text.to_owned())));
        }
        let error = parse_duration("soon").unwrap_err().to_string();
        assert_eq!(error, "\"soon\" is not a time; write for example 0, 300us, 1.5ms or 2s");
        let error = parse_duration("-1ms").unwrap_err().to_string();
        assert!(error.starts_with("\"-1ms\" is not a time, which is never negative; write"), "{error}");
    }
}
