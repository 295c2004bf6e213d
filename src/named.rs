//! Enumerations that are read and printed as words.

/// A word that is none of those known.
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
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $($type::$variant => $name),* })
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
