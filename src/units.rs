//! Sizes with binary prefixes, as they are printed and read, and numbers as they are printed.
#![forbid(unsafe_code)]

use std::fmt;

/// A size with a binary prefix.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        if value.fract() == 0.0 {
            write!(f, "{value:.0} {}", units[unit])
        } else {
            write!(f, "{value:.1} {}", units[unit])
        }
    }
}

/// A number that is printed with an exponent where it would have many digits or zeros otherwise: `0.25`, `1e308`.
///
/// A precision, as in `{:.4}`, is that of the digits behind the point in both ways.
#[derive(Clone, Copy, Debug)]
pub struct Number<T>(pub T);

/// Sizes that are printed without an exponent.
const PLAIN: std::ops::Range<f64> = 1e-6..1e15;

impl<T: Copy + Into<f64> + fmt::Display + fmt::LowerExp> fmt::Display for Number<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.into().abs();
        // With a precision a small number is short, too.
        let is_short = size < PLAIN.end && (size >= PLAIN.start || f.precision().is_some());
        if is_short || size == 0.0 || !size.is_finite() {
            fmt::Display::fmt(&self.0, f)
        } else {
            fmt::LowerExp::fmt(&self.0, f)
        }
    }
}

/// Reads a size with a binary prefix: `64`, `64K`, `1M`, `2G`, also `64KiB`.
///
/// # Errors
/// Says what is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let shift = match unit.trim().trim_end_matches("iB").trim_end_matches('B').to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("{text:?} is not a size; write for example 64, 64K, 1M or 2G (binary)")),
    };
    let value: u64 =
        number.parse().map_err(|_| format!("{text:?} is not a size; write for example 64, 64K, 1M or 2G"))?;
    value.checked_shl(shift).filter(|bytes| bytes >> shift == value).ok_or_else(|| format!("{text:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let plain =
            [0.0, 1.0, -2.5, 600_000.0, 0.000_001, 86_400e3, f64::INFINITY].map(|number| Number(number).to_string());
        assert_eq!(plain, ["0", "1", "-2.5", "600000", "0.000001", "86400000", "inf"]);
        let long = [1e308, -1e38, 1e15, 5e-324, f64::MAX].map(|number| Number(number).to_string());
        assert_eq!(long, ["1e308", "-1e38", "1e15", "5e-324", "1.7976931348623157e308"]);
        // A float of 32 bits keeps its own digits.
        assert_eq!([0.1f32, 1e38, f32::NAN].map(|number| Number(number).to_string()), ["0.1", "1e38", "NaN"]);
        let fixed = |number: f64| format!("{:.4}", Number(number));
        assert_eq!([0.0, 1e-300, 0.31415926, 1e308].map(fixed), ["0.0000", "0.0000", "0.3142", "1.0000e308"]);
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("64", 64), ("64K", 65536), ("1M", 1 << 20), ("2GiB", 2 << 30), ("8B", 8), ("1KB", 1024)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "1X", "99999999999T", "18446744073709551616"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
