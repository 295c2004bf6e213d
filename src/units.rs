//! Sizes with binary prefixes, as they are printed and read.
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
