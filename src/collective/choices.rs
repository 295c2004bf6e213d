//! The choices of a collective, which all ranks send to each other and compare.

use crate::error::{Error, HostNames, Misuse, Result, text_of};
use crate::fabric::MOST_EXCHANGED;

/// Choices, each with its name.
pub(super) type Choices = Vec<(&'static str, String)>;

/// Returns a number that distinguishes values that ranks may have given by mistake.
pub(super) fn digest(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, |hash: u64, word| (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Encodes the choices that a rank sends to the others.
///
/// # Errors
/// The choices do not fit into one exchange. Those of other ranks would be compared with only a part of them.
pub(super) fn encode(rank: u32, operation: &'static str, choices: &[(&'static str, String)]) -> Result<Vec<u8>> {
    let lines: Vec<String> = choices.iter().map(|(name, value)| format!("{name}\t{value}")).collect();
    let text = lines.join("\n").into_bytes();
    if text.len() > MOST_EXCHANGED {
        let problem = Misuse::Choice(
            "its choices are too long to be compared with those of other ranks; use fewer or shorter ones",
        );
        return Err(Error::Usage { rank, operation, problem });
    }
    Ok(text)
}

/// Encodes the message that a failed rank sends instead: the reason, as far as it fits.
pub(super) fn encode_error(error: &Error) -> Vec<u8> {
    format!("{FAILED}{error}").into_bytes().into_iter().take(MOST_EXCHANGED).collect()
}

const FAILED: &str = "error\t";

/// Returns an error that names the first rank that chose differently, and its choice.
pub(crate) fn compare(
    rank: u32,
    operation: &'static str,
    mine: &[(&'static str, String)],
    everybody: &[Vec<u8>],
) -> Result<()> {
    for (peer, theirs) in everybody.iter().enumerate() {
        let peer = peer as u32;
        let theirs = String::from_utf8_lossy(theirs);
        if let Some(reason) = theirs.strip_prefix(FAILED) {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn choices_are_compared_as_a_whole_or_refused() {
        let long = |bytes: usize| vec![("fire", "all".to_owned()), ("the model", "x".repeat(bytes))];
        let told = |choices: &Choices| encode(0, "build", choices);
        let most = MOST_EXCHANGED - "fire\tall\nthe model\t".len();
        let own = long(most);
        let all = vec![told(&own).unwrap(), told(&own).unwrap()];
        compare(0, "build", &own, &all).unwrap();
        assert!(told(&long(most + 1)).unwrap_err().to_string().contains("too long to be compared"));
        let other = long(most - 1);
        let differs = compare(0, "build", &own, &[all[0].clone(), told(&other).unwrap()]).unwrap_err();
        assert!(matches!(differs, Error::Mismatch { .. }), "{differs}");
        // The failure of another rank is not reported as a choice of another version.
        let failed = encode_error(&Error::Config("y".repeat(2 * MOST_EXCHANGED)));
        assert_eq!(failed.len(), MOST_EXCHANGED);
        let told = compare(0, "build", &own, &[all[0].clone(), failed]).unwrap_err();
        assert!(matches!(&told, Error::Aborted { by: 1, .. }), "{told}");
    }
}
