//! Enumerations that are read and printed as words.

/// A word that is not among the known ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {text:?}; use one of {known}")]
pub struct UnknownName {
    pub(crate) what: &'static str,
    pub(crate) text: String,
    pub(crate) known: &'static str,
}

/// Prints each variant as its word, and reads it back.
macro_rules! named {
    ($type:ident, $what:literal, $known:literal, $($name:literal => $variant:ident),*) => {
        impl $type {
            /// Returns its word.
            #[allow(dead_code, reason = "some are only printed")]
            pub(crate) fn word(self) -> &'static str {
                match self { $($type::$variant => $name),* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::named::UnknownName;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                match text {
                    $($name => Ok($type::$variant),)*
                    _ => Err($crate::named::UnknownName { what: $what, text: text.to_owned(), known: $known }),
                }
            }
        }
    };
}

pub(crate) use named;

/// Returns "unknown X" with the nearest known name, or with all names if none is near.
pub(crate) fn unknown(what: &str, given: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|&name| (strsim::damerau_levenshtein(given, name), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len().max(3) / 3);
    match nearest {
        Some((_, name)) => format!("unknown {what} {given}; did you mean {name}?"),
        None => format!("unknown {what} {given}; use one of {}", known.join(", ")),
    }
}
