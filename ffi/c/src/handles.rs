//! Handles as numbers. Each number is looked up, so a wrong one is an error.
//!
//! A number contains an index in a table, a count of how often that index was used, and the generation of the process.
//! So a closed handle is not mistaken for a later one, and a forked child finds none of its parent's handles. It does
//! not even touch their locks, which may be held for ever there.

use std::sync::{Arc, OnceLock};

use earlybird_ffi::fork;
use parking_lot::RwLock;

use crate::status::{Failure, eb_status};

/// The number of process generations with tables of their own.
const GENERATIONS: usize = 256;

/// The objects of one kind.
pub(crate) struct Handles<T: 'static> {
    /// The name of the kind, in errors.
    name: &'static str,
    /// A number below 8 that tells kinds apart.
    kind: u64,
    tables: [OnceLock<RwLock<Vec<Place<T>>>>; GENERATIONS],
}

struct Place<T> {
    uses: u32,
    object: Option<Arc<T>>,
}

/// The parts of a handle: generation of the process (8 bits), kind (3), uses of the index (21), index (32), from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    generation: usize,
    kind: u64,
    uses: u32,
    place: u32,
}

const USES: u32 = (1 << 21) - 1;

impl Parts {
    fn of(id: u64) -> Self {
        let (generation, kind) = ((id >> 56) as usize, id >> 53 & 7);
        Parts { generation, kind, uses: (id >> 32) as u32 & USES, place: id as u32 }
    }

    fn id(self) -> u64 {
        (self.generation as u64) << 56 | self.kind << 53 | u64::from(self.uses) << 32 | u64::from(self.place)
    }
}

impl<T> Handles<T> {
    pub(crate) const fn new(name: &'static str, kind: u64) -> Self {
        Handles { name, kind, tables: [const { OnceLock::new() }; GENERATIONS] }
    }

    fn here() -> usize {
        fork::generation() as usize % GENERATIONS
    }

    /// Adds an object and returns its handle.
    pub(crate) fn add(&self, object: T) -> u64 {
        let generation = Self::here();
        let mut table = self.tables[generation].get_or_init(RwLock::default).write();
        let object = Some(Arc::new(object));
        let free = table.iter().position(|place| place.object.is_none() && place.uses < USES);
        let place = free.unwrap_or(table.len());
        match free {
            Some(free) => table[free] = Place { uses: table[free].uses + 1, object },
            None => table.push(Place { uses: 1, object }),
        }
        let (uses, place) = (table[place].uses, place as u32 + 1);
        Parts { generation, kind: self.kind, uses, place }.id()
    }

    /// Returns the object of a handle.
    pub(crate) fn get(&self, id: u64) -> Result<Arc<T>, Failure> {
        let parts = self.own(id)?;
        let table = self.tables[parts.generation].get().map(RwLock::read);
        let object = table.and_then(|table| table.get(parts.place as usize - 1).and_then(|place| place.used_as(parts)));
        object.ok_or_else(|| self.unknown())
    }

    /// Removes the object of a handle and returns it; the handle is invalid from now on.
    pub(crate) fn remove(&self, id: u64) -> Result<Arc<T>, Failure> {
        let parts = self.own(id)?;
        let mut table = self.tables[parts.generation].get().map(RwLock::write);
        let place = table.as_mut().and_then(|table| table.get_mut(parts.place as usize - 1));
        let used = place.filter(|place| place.used_as(parts).is_some());
        used.and_then(|place| place.object.take()).ok_or_else(|| self.unknown())
    }

    /// Returns the parts of a handle, if it is of this kind and process.
    fn own(&self, id: u64) -> Result<Parts, Failure> {
        let parts = Parts::of(id);
        if parts.kind != self.kind || parts.place == 0 || parts.uses == 0 {
            return Err(self.unknown());
        }
        if parts.generation != Self::here() {
            let text =
                format!("a forked child must not use the {} of its parent; start children by exec or spawn", self.name);
            return Err(Failure::new(eb_status::EB_FORKED, text));
        }
        Ok(parts)
    }

    fn unknown(&self) -> Failure {
        Failure::new(eb_status::EB_HANDLE, format!("this is no {}, or one that was closed", self.name))
    }
}

impl<T> Place<T> {
    fn used_as(&self, parts: Parts) -> Option<Arc<T>> {
        self.object.clone().filter(|_| self.uses == parts.uses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_is_not_taken_for_a_later_one() {
        static NUMBERS: Handles<u32> = Handles::new("number", 3);
        let first = NUMBERS.add(7);
        assert_eq!(NUMBERS.get(first).map(|number| *number).ok(), Some(7));
        assert_eq!(NUMBERS.remove(first).map(|number| *number).ok(), Some(7));
        assert!(NUMBERS.remove(first).is_err() && NUMBERS.get(first).is_err());
        let second = NUMBERS.add(8);
        assert!(NUMBERS.get(first).is_err() && NUMBERS.get(second).is_ok());
        assert_eq!(Parts::of(first).place, Parts::of(second).place, "places are used again");
        for wrong in [0, 1, u64::MAX, second ^ 1 << 53, second + 1, second | 0xFFFF_FFFF] {
            assert!(NUMBERS.get(wrong).is_err(), "{wrong:x}");
        }
    }

    #[test]
    fn parts_are_put_together_again() {
        for id in [0, 1, u64::MAX, 0x1234_5678_9ABC_DEF0] {
            assert_eq!(Parts::of(id).id(), id);
        }
    }
}
