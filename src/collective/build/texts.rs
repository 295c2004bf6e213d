//! Choices as texts, for callers that get them from users or from other languages.

use std::str::FromStr;

use super::AllreduceBuilder;
use crate::error::{Error, Result};
use crate::reduce::Item;

/// The names of the choices that are texts.
const NAMES: &str = "preset, fire, grace, absent, reduce, scale, group, mover, executor, depth";

/// Parses the value of a choice.
fn parse<C: FromStr<Err: ToString>>(name: &str, text: &str) -> Result<C> {
    text.parse().map_err(|problem: C::Err| Error::Config(format!("{name}: {}", problem.to_string())))
}

impl<T: Item> AllreduceBuilder<'_, T> {
    /// Sets a choice by the name of its method here and a value as on the command line, such as `fire` and `quorum=5`.
    /// A preset replaces earlier choices.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown name or an invalid value.
    pub fn choose(self, name: &str, value: &str) -> Result<Self> {
        Ok(match name {
            "preset" => self.preset(parse(name, value)?),
            "fire" => self.fire(parse(name, value)?),
            "grace" => self.grace(parse(name, value)?),
            "absent" => self.absent(parse(name, value)?),
            "reduce" => self.reduce(parse(name, value)?),
            "scale" => self.scale(parse(name, value)?),
            "group" => self.group(parse(name, value)?),
            "mover" => self.mover(parse(name, value)?),
            "executor" => self.executor(parse(name, value)?),
            "depth" => self.depth(parse(name, value)?),
            _ => return Err(Error::Config(format!("there is no choice {name:?}; use {NAMES}"))),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::config::Config;
    use crate::rule::Fire;
    use crate::world::World;

    #[test]
    fn texts_choose_what_methods_do() {
        let world = World::in_this_process(1, &Config::default()).unwrap().remove(0);
        let build = || world.allreduce::<f32>(&[1]);
        let built = build().choose("preset", "wagma").unwrap().choose("fire", "quorum=1,full=7").unwrap();
        assert_eq!(
            (built.chosen.fire, built.chosen.group.to_string()),
            (Fire::quorum(1).full_every(7), "butterfly=2".to_owned())
        );
        for (name, value, words) in [
            ("fire", "most", "fire: "),
            ("group", "square", "group: "),
            ("depth", "-1", "depth: "),
            ("colour", "red", "there is no choice \"colour\"; use preset, fire"),
        ] {
            let error = build().choose(name, value).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
