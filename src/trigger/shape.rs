//! The shape in which members exchange data: a core of radices, and members that hang on it.
//!
//! The core has as many places as the product of its radices. At level l, the places that differ in their l-th digit
//! alone give each other what they have: recursive multiplying, which is recursive doubling for radices of 2 (Thakur,
//! Rabenseifner, Gropp, IJHPCA 19(1), 2005; Wilkins et al., IEEE CLUSTER 2023). Where there are more members than
//! places, neighbours form groups: the first member of a group has the place, and the others hang on it.

use std::ops::Range;

use super::program::{Buffer, Chunk};

/// How a number of members exchange data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    members: u32,
    /// The radix of each level, from level 1 on.
    radices: Vec<u32>,
    /// The number of places in the core.
    core: u32,
}

impl Shape {
    /// Returns the shape of a radix: 1 makes a star, 2 pairs, and the number of members makes all of them exchange their
    /// data directly.
    pub(crate) fn of(members: u32, radix: u32) -> Self {
        let (mut radices, mut core) = (Vec::new(), 1);
        while radix > 1 && core * 2 <= members {
            let radix = radix.min(members / core);
            radices.push(radix);
            core *= radix;
        }
        Shape { members, radices, core }
    }

    pub(crate) fn levels(&self) -> u32 {
        self.radices.len() as u32
    }

    /// Returns the radix of a level, from 1 on.
    pub(crate) fn radix(&self, level: u32) -> u32 {
        self.radices[level as usize - 1]
    }

    /// Returns the number of places that differ in digits below a level alone.
    pub(crate) fn block(&self, level: u32) -> u32 {
        self.radices[..level as usize - 1].iter().product()
    }

    /// Returns a whole contribution in as many pieces as there are places.
    pub(crate) fn pieces(&self) -> Chunk {
        Chunk { from: 0, to: self.core, of: self.core }
    }

    /// Returns the members of a place's group; the first one has the place.
    pub(crate) fn group(&self, place: u32) -> Range<u32> {
        let (each, more) = (self.members / self.core, self.members % self.core);
        let first = |place: u32| place * each + place.min(more);
        first(place)..first(place + 1)
    }

    /// Returns the most members that hang on a place.
    pub(crate) fn most_hung(&self) -> u32 {
        self.members.div_ceil(self.core) - 1
    }

    /// Returns the place of a member's group.
    pub(crate) fn place(&self, member: u32) -> u32 {
        let (each, more) = (self.members / self.core, self.members % self.core);
        let in_larger = more * (each + 1);
        if member < in_larger { member / (each + 1) } else { more + (member - in_larger) / each }
    }

    /// Returns the first member of a place's group.
    pub(crate) fn leader(&self, place: u32) -> u32 {
        self.group(place).start
    }

    /// Returns a place's digit at a level.
    pub(crate) fn digit(&self, place: u32, level: u32) -> u32 {
        place / self.block(level) % self.radix(level)
    }

    /// Returns the place that has another digit at a level.
    pub(crate) fn partner(&self, place: u32, level: u32, digit: u32) -> u32 {
        place - self.digit(place, level) * self.block(level) + digit * self.block(level)
    }
}

/// The numbers of the inboxes of a world: as many at each level as the widest level needs, also among fewer members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inboxes {
    levels: u32,
    width: u32,
}

impl Inboxes {
    pub(crate) fn of(members: u32, radix: u32) -> Self {
        let shape = Shape::of(members, radix);
        let width = if radix > 1 { radix.min(members) - 1 } else { shape.most_hung() };
        Inboxes { levels: shape.levels(), width: width.max(1) }
    }

    /// Returns the most levels of an exchange, level 0 not included.
    pub(crate) fn levels(self) -> u32 {
        self.levels
    }

    /// Returns the most inboxes of a level.
    pub(crate) fn width(self) -> u32 {
        self.width
    }

    /// Returns the number of all inboxes.
    pub(crate) fn count(self) -> u32 {
        (self.levels + 1) * self.width
    }

    /// Returns the buffer for an input of a level.
    pub(crate) fn buffer(self, level: u32, input: u32) -> Buffer {
        Buffer::Inbox(level * self.width + input)
    }

    /// Returns the level and the input of an inbox.
    pub(crate) fn place(self, number: u32) -> (u32, u32) {
        (number / self.width, number % self.width)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_member_has_one_place() {
        for (members, radix) in (1..=70).flat_map(|members| [1, 2, 3, 4, 8, members].map(|radix| (members, radix))) {
            let shape = Shape::of(members, radix);
            let groups: Vec<u32> = (0..shape.core).flat_map(|place| shape.group(place)).collect();
            assert_eq!(groups, (0..members).collect::<Vec<_>>(), "{shape:?}");
            for place in 0..shape.core {
                assert!(shape.group(place).all(|member| shape.place(member) == place), "{shape:?}");
                assert!(shape.group(place).len() as u32 <= shape.most_hung() + 1);
            }
            assert!(radix == 1 || shape.most_hung() <= 1, "{shape:?}");
        }
    }

    /// Data of all places comes together, in their order, whatever a level's radix is.
    #[test]
    fn levels_join_neighbouring_blocks() {
        for (members, radix) in (1..=70).flat_map(|members| [1, 2, 3, 5, 8, members].map(|radix| (members, radix))) {
            let shape = Shape::of(members, radix);
            let mut has: Vec<Vec<u32>> = (0..shape.core).map(|place| vec![place]).collect();
            for level in 1..=shape.levels() {
                let joined = |place: u32| {
                    let partners = (0..shape.radix(level)).map(|digit| shape.partner(place, level, digit));
                    partners.flat_map(|partner| has[partner as usize].clone()).collect()
                };
                has = (0..shape.core).map(joined).collect();
            }
            assert!(has.iter().all(|all| *all == (0..shape.core).collect::<Vec<_>>()), "{shape:?}");
        }
    }

    #[test]
    fn the_settings_are_a_star_pairs_and_direct_exchange() {
        let seen = |members, radix| {
            let shape = Shape::of(members, radix);
            (shape.radices.clone(), shape.core, shape.most_hung())
        };
        assert_eq!(seen(6, 1), (vec![], 1, 5));
        assert_eq!(seen(6, 2), (vec![2, 2], 4, 1));
        assert_eq!(seen(6, 6), (vec![6], 6, 0));
        assert_eq!(seen(23, 4), (vec![4, 4], 16, 1));
        assert_eq!(seen(64, 8), (vec![8, 8], 64, 0));
    }
}
