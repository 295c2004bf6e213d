//! What a contribution says about itself: its weight, or how long its rank computed and waited.

use std::fmt;
use std::time::Duration;

use super::input::Time;

/// The unit of durations: a shorter time is a fraction of what handing a contribution over costs.
const UNIT_SHIFT: u32 = 7;
const MANTISSA_BITS: u32 = 5;
const SCALE_BITS: u32 = 10;
const MOST_CODE: u64 = (1 << SCALE_BITS) - 1;

/// A duration that a rank measured with its own clock, on a logarithmic scale of 10 bits: steps of 128 ns up to 8 us,
/// then of 3 %, up to 2 hours. So it is wrong by 1.6 %, or by 64 ns.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scaled(u16);

impl Scaled {
    /// Returns the nearest value of the scale.
    fn new(time: Time) -> Self {
        let units = (time >> UNIT_SHIFT) + (time >> (UNIT_SHIFT - 1) & 1);
        let octave = u64::from((units >> MANTISSA_BITS).checked_ilog2().map_or(0, |log| log + 1));
        let code = if octave <= 1 {
            units
        } else {
            let shift = octave - 1;
            let rounded = (units >> shift) + (units >> (shift - 1) & 1);
            // A mantissa that rounds up to the next octave carries into the exponent.
            (shift << MANTISSA_BITS) + rounded
        };
        // Zero says that nothing was measured.
        Scaled((code + 1).min(MOST_CODE) as u16)
    }

    fn time(self) -> Option<Time> {
        let code = u64::from(self.0).checked_sub(1)?;
        let (exponent, mantissa) = (code >> MANTISSA_BITS, code & ((1 << MANTISSA_BITS) - 1));
        let units = match exponent {
            0 => mantissa,
            exponent => ((1 << MANTISSA_BITS) + mantissa) << (exponent - 1),
        };
        Some(units << UNIT_SHIFT)
    }
}

/// How long a rank computed its contribution, and how long it waited for the round before. Either may be unknown. Held
/// as a cell has it: most are only passed on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Durations(u32);

impl Durations {
    /// Nothing was measured.
    pub(crate) const NONE: Durations = Durations(0);

    /// The step of the scale for short times.
    pub(crate) const UNIT: Time = 1 << UNIT_SHIFT;

    /// The longest time of the scale: some 2 hours and 22 minutes.
    pub(super) const LONGEST: Time = 62 << 37;

    #[inline]
    pub(crate) fn new(computed: Option<Time>, waited: Option<Time>) -> Self {
        let scaled = |time: Option<Time>| time.map_or(0, |time| u32::from(Scaled::new(time).0));
        Durations(scaled(computed) << SCALE_BITS | scaled(waited))
    }

    #[inline]
    pub(crate) fn computed(self) -> Option<Time> {
        Scaled((self.0 >> SCALE_BITS) as u16).time()
    }

    #[inline]
    pub(crate) fn waited(self) -> Option<Time> {
        Scaled((self.0 & MOST_CODE as u32) as u16).time()
    }
}

impl fmt::Debug for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (computed, waited) = (duration(self.computed()), duration(self.waited()));
        f.debug_struct("Durations").field("computed", &computed).field("waited", &waited).finish()
    }
}

/// What a contribution says about itself, as a cell has it. Contributions with weights tell no durations: both take the
/// same bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Particulars(u32);

/// Tells durations from a weight.
const HAS_DURATIONS: u32 = 1 << (2 * SCALE_BITS);

impl Particulars {
    /// The number of bits in a cell.
    pub(super) const BITS: u32 = 2 * SCALE_BITS + 1;

    /// A contribution without a weight of its own, of which nothing was measured.
    pub(crate) const PLAIN: Particulars = Particulars::weighing(1);

    pub(crate) const fn weighing(weight: u16) -> Self {
        Particulars(weight as u32)
    }

    /// The weight is 1 where durations are known.
    #[inline]
    pub(crate) fn new(weight: u16, durations: Durations) -> Self {
        match durations {
            Durations::NONE => Particulars::weighing(weight),
            Durations(codes) => Particulars(HAS_DURATIONS | codes),
        }
    }

    #[inline]
    pub(crate) fn weight(self) -> u16 {
        if self.is_measured() { 1 } else { self.0 as u16 }
    }

    #[inline]
    pub(crate) fn durations(self) -> Durations {
        if self.is_measured() { Durations(self.0 & (HAS_DURATIONS - 1)) } else { Durations::NONE }
    }

    /// Returns whether it says a duration.
    #[inline]
    pub(crate) fn is_measured(self) -> bool {
        self.0 & HAS_DURATIONS != 0
    }

    #[inline]
    pub(super) fn encode(self) -> u64 {
        u64::from(self.0)
    }

    #[inline]
    pub(super) fn decode(bits: u64) -> Self {
        Particulars(bits as u32)
    }
}

impl fmt::Debug for Particulars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (weight, durations) = (self.weight(), self.durations());
        f.debug_struct("Particulars").field("weight", &weight).field("durations", &durations).finish()
    }
}

/// Returns a time of the scale as callers know it.
pub(super) fn duration(time: Option<Time>) -> Option<Duration> {
    time.map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_for_a_time_of_its_own() {
        let times: Vec<Time> = (1..=MOST_CODE as u16).map(|code| Scaled(code).time().unwrap()).collect();
        assert!(times.is_sorted_by(|a, b| a < b));
        assert!((1..=MOST_CODE as u16).zip(&times).all(|(code, &time)| Scaled::new(time) == Scaled(code)));
        assert_eq!((times[0], Scaled(0).time()), (0, None));
        assert!(times.last().is_some_and(|&most| most > 2 * 3600 * 1_000_000_000));
        assert_eq!(Scaled::new(Time::MAX), Scaled(MOST_CODE as u16));
        assert_eq!(times.last(), Some(&Durations::LONGEST));
    }

    #[test]
    fn the_scale_is_wrong_by_little() {
        let mut time: Time = 1;
        while time < 7_000_000_000_000 {
            let told = Scaled::new(time).time().unwrap();
            assert!(told.abs_diff(time) <= 64 + time / 60, "{time} became {told}");
            time += time / 97 + 1;
        }
    }

    #[test]
    fn particulars_survive_a_cell() {
        let durations = Durations::new(Some(3_000_000), Some(0));
        let only_waited = Durations::new(None, Some(70));
        for particulars in [
            Particulars::PLAIN,
            Particulars::weighing(0),
            Particulars::weighing(u16::MAX),
            Particulars::new(1, durations),
            Particulars::new(1, only_waited),
        ] {
            assert!(particulars.encode() < 1 << Particulars::BITS);
            assert_eq!(Particulars::decode(particulars.encode()), particulars);
        }
        assert_eq!((only_waited.computed(), only_waited.waited()), (None, Some(128)));
    }
}
