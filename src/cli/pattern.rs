//! Contributions that every rank can compute, and outcomes that it can therefore check.

use crate::{Absent, Element, Entry, Outcome, bf16, f16};

/// An element type that can represent every whole number up to `MOST`.
pub(super) trait Exact: Element {
    const MOST: u32;
    fn from_small(value: u32) -> Self;
    fn to_f64(self) -> f64;
}

macro_rules! exact {
    ($($type:ty: $most:expr, $make:expr, $read:expr);*) => {
        $(impl Exact for $type {
            const MOST: u32 = $most;
            fn from_small(value: u32) -> Self {
                $make(value)
            }
            fn to_f64(self) -> f64 {
                $read(self)
            }
        })*
    };
}
exact!(
    f32: 1 << 24, |value| value as f32, f64::from;
    f64: 1 << 24, f64::from, |value| value;
    f16: 1 << 11, |value| f16::from_f32(value as f32), f16::to_f64;
    bf16: 1 << 8, |value| bf16::from_f32(value as f32), bf16::to_f64;
    i32: 1 << 24, |value| value as i32, f64::from;
    i64: 1 << 24, i64::from, |value| value as f64;
    u32: 1 << 24, |value| value, f64::from;
    u64: 1 << 24, u64::from, |value| value as f64;
    i8: 127, |value| value as i8, f64::from;
    u8: 255, |value| value as u8, f64::from;
    i16: 32_767, |value| value as i16, f64::from
);

/// Contributions whose sums are exact in their type, including carried ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    own: u32,
    position: u32,
}

impl Pattern {
    pub(super) fn of<T: Exact>(ranks: u32) -> Self {
        // A rank may be in a cut twice.
        let share = T::MOST / (2 * ranks);
        Pattern { own: (share / 2 + 1).min(61), position: (share / 2 + share % 2).clamp(1, 32) }
    }

    /// Returns the part that depends on the rank, and changes with `tag`.
    fn own_part(self, rank: u32, tag: u64) -> u32 {
        ((u64::from(rank) * 37 + tag * 11) % u64::from(self.own)) as u32
    }

    fn position_part(self, index: usize) -> u32 {
        (index % self.position as usize) as u32
    }

    pub(super) fn fill<T: Exact>(self, data: &mut [T], rank: u32, tag: u64) {
        let own = self.own_part(rank, tag);
        data.iter_mut().enumerate().for_each(|(index, x)| *x = T::from_small(own + self.position_part(index)));
    }

    /// Counts elements that differ from what the cut gives. `tag` returns the tag of the round they were made for.
    pub(super) fn wrong<T: Exact>(
        self,
        outcome: &Outcome<'_, T>,
        absent: Absent,
        tag: impl Fn(u64) -> u64,
        step: usize,
    ) -> u64 {
        let data = outcome.data();
        let looked_at = (outcome.round() as usize % step..data.len()).step_by(step);
        let entries = || outcome.cut().contributions();
        let own = |entry: Entry| self.own_part(entry.rank, tag(outcome.round() - entry.age));
        match absent {
            Absent::Decay(factor) => {
                // Products and sums are rounded to at least 24 bits, and the result to the precision of the type.
                let factor = |entry: Entry| f64::from(factor).powf(entry.age as f64);
                let (mut part, mut weight, mut count) = (0.0, 0.0, 0);
                for entry in entries() {
                    part += factor(entry) * f64::from(own(entry));
                    weight += factor(entry);
                    count += 1;
                }
                let rounding = f64::from(count + 2) / f64::from(1 << 23) + 1.0 / f64::from(T::MOST);
                let bad = |&index: &usize| {
                    let expected = part + weight * f64::from(self.position_part(index));
                    let off = (data[index].to_f64() - expected).abs();
                    // NaN is wrong, too.
                    off.is_nan() || off > expected * rounding + f64::from(f32::MIN_POSITIVE)
                };
                looked_at.filter(bad).count() as u64
            }
            // Held contributions are in models, which are not checked here.
            Absent::Carry | Absent::Drop | Absent::Hold => {
                let (part, count) = entries().fold((0, 0), |(part, count), entry| (part + own(entry), count + 1));
                let bad = |index: &usize| data[*index] != T::from_small(part + count * self.position_part(*index));
                looked_at.filter(bad).count() as u64
            }
        }
    }
}
