//! The choices of a collective, which all ranks tell each other and compare.

use crate::error::{Error, HostNames, Result, text_of};

/// What was chosen, by what it is.
pub(super) type Choices = Vec<(&'static str, String)>;

/// Tells values apart that ranks may have given by mistake.
pub(super) fn digest(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, |hash: u64, word| (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// As a rank tells them to the others.
pub(super) fn encode(choices: &[(&'static str, String)]) -> Vec<u8> {
    let lines: Vec<String> = choices.iter().map(|(name, value)| format!("{name}\t{value}")).collect();
    let text = lines.join("\n");
    text.bytes().take(900).collect()
}

/// The first rank that chose differently, and its choice.
pub(crate) fn compare(
    rank: u32,
    operation: &'static str,
    mine: &[(&'static str, String)],
    everybody: &[Vec<u8>],
) -> Result<()> {
    for (peer, theirs) in everybody.iter().enumerate() {
        let peer = peer as u32;
        let theirs = String::from_utf8_lossy(theirs);
        if let Some(reason) = theirs.strip_prefix("error\t") {
            return Err(Error::Aborted {
                rank,
                operation,
                by: peer,
                reason: text_of(reason.as_bytes()),
                hosts: HostNames::default(),
            });
        }
        let lines = theirs.lines().map(Some).chain(std::iter::repeat(None));
        for ((what, mine), line) in mine.iter().zip(lines) {
            let told = line.and_then(|line| line.split_once('\t')).filter(|(name, _)| *name == *what);
            let theirs = told.map_or("another version", |(_, value)| value);
            if theirs != mine {
                return Err(Error::mismatch(rank, operation, what, mine, (peer, theirs)));
            }
        }
    }
    Ok(())
}
