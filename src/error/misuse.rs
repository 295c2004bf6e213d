//! What is wrong with a call that is not allowed.

use std::fmt;

/// What is wrong with a call ([`Error::Usage`](crate::Error::Usage)). The variant tells programs, its text people, and
/// says what to do. The texts may change.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Misuse {
    /// A choice that a collective cannot have, or not together with the others.
    Choice(&'static str),
    /// An argument: a number, a length, a place or an access that does not fit.
    Argument(&'static str),
    /// The call comes too early, too late, or while another one is in progress.
    Order(&'static str),
    /// This rank has finished the collective, or closed the world.
    Finished(&'static str),
    /// What the call needs is not part of this collective, this world or this fabric.
    Unavailable(&'static str),
    /// All numbers of a kind are in use: of rounds, collectives or regions.
    Exhausted(&'static str),
    /// An earlier call that several ranks make together failed on this rank. Only a new world helps.
    OutOfStep(&'static str),
    /// A child that was forked uses what its parent has joined.
    Forked(&'static str),
}

impl Misuse {
    /// Returns the variant as a word, for other languages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Misuse::Choice(_) => "choice",
            Misuse::Argument(_) => "argument",
            Misuse::Order(_) => "order",
            Misuse::Finished(_) => "finished",
            Misuse::Unavailable(_) => "unavailable",
            Misuse::Exhausted(_) => "exhausted",
            Misuse::OutOfStep(_) => "out of step",
            Misuse::Forked(_) => "forked",
        }
    }

    /// Returns the text: what is wrong, and what to do.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Misuse::Choice(text)
            | Misuse::Argument(text)
            | Misuse::Order(text)
            | Misuse::Finished(text)
            | Misuse::Unavailable(text)
            | Misuse::Exhausted(text)
            | Misuse::OutOfStep(text)
            | Misuse::Forked(text) => text,
        }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
