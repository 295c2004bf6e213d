//! Elements as they lie in memory, and in the width in which they are reduced.
//!
//! The arithmetic has no branches, so the compiler turns loops over it into vector instructions of
//! the set for which the surrounding function is compiled.

use half::{bf16, f16};

/// A number in the width in which it is reduced.
pub(super) trait Wide: Copy + 'static {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// Multiplies by a factor; integers ignore it, because only floats are ever scaled.
    fn scaled(self, factor: f32) -> Self;
    /// Divides by a number. Integers are divided only by whole numbers from 1 on.
    fn over(self, divisor: f64) -> Self;
}

/// A number as it lies in memory.
pub(super) trait Narrow: Copy + 'static {
    type Wide: Wide;
    fn widen(self) -> Self::Wide;
    fn round(wide: Self::Wide) -> Self;
}

macro_rules! float {
    ($type:ty) => {
        impl Wide for $type {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if (other < self) | other.is_nan() { other } else { self }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if (other > self) | other.is_nan() { other } else { self }
            }
            #[inline(always)]
            fn scaled(self, factor: f32) -> Self {
                self * <$type>::from(factor)
            }
            #[inline(always)]
            fn over(self, divisor: f64) -> Self {
                self / divisor as $type
            }
        }
    };
}

macro_rules! integer {
    ($type:ty) => {
        impl Wide for $type {
            const ZERO: Self = 0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn scaled(self, _: f32) -> Self {
                self
            }
            #[inline(always)]
            fn over(self, divisor: f64) -> Self {
                self / divisor as $type
            }
        }
    };
}

macro_rules! as_it_is {
    ($($type:ty),*) => {
        $(impl Narrow for $type {
            type Wide = $type;
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn round(wide: $type) -> $type {
                wide
            }
        })*
    };
}

float!(f32);
float!(f64);
integer!(i32);
integer!(i64);
integer!(u32);
integer!(u64);
as_it_is!(f32, f64, i32, i64, u32, u64);

macro_rules! short {
    ($($type:ty => $wide:ty),*) => {
        $(impl Narrow for $type {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                self.into()
            }
            #[inline(always)]
            fn round(wide: $wide) -> $type {
                wide as $type
            }
        })*
    };
}

short!(i8 => i32, u8 => u32, i16 => i32);

/// A byte that is true or false. As numbers these are 1 and 0: the sum is not 0 if any is true, the product if all are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(super) struct Truth(u8);

impl Narrow for Truth {
    type Wide = u32;
    #[inline(always)]
    fn widen(self) -> u32 {
        u32::from(self.0 != 0)
    }
    #[inline(always)]
    fn round(wide: u32) -> Truth {
        Truth(u8::from(wide != 0))
    }
}

const SIGN: u32 = 0x8000_0000;
const INFINITE: u32 = 0x7f80_0000;
/// 2^-14, the least normal number of 16 bits, as a 32-bit float.
const LEAST_NORMAL: u32 = 0x3880_0000;
const QUIET: u32 = 0x0040_0000;

impl Narrow for bf16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits()) << 16;
        let is_nan = bits & !SIGN > INFINITE;
        f32::from_bits(if is_nan { bits | QUIET } else { bits })
    }

    #[inline(always)]
    fn round(wide: f32) -> Self {
        let bits = wide.to_bits();
        // Round to nearest, ties to even; a carry goes into the exponent, where it belongs.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let is_nan = bits & !SIGN > INFINITE;
        bf16::from_bits(if is_nan { (bits | QUIET) >> 16 } else { rounded } as u16)
    }
}

impl Narrow for f16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let sign = (bits & 0x8000) << 16;
        // Exponent and fraction move to their bits in a 32-bit float, whose exponents are 112 higher. A subnormal
        // number is instead computed as the fraction above 2^-14. None of them is subnormal as a 32-bit float, so a
        // processor that flushes subnormals to zero does no harm.
        let shifted = (bits & 0x7fff) << 13;
        let above = f32::from_bits(shifted | LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL);
        let value = if shifted < 1 << 23 { above.to_bits() } else { shifted + (112 << 23) };
        let special = if shifted > 0x0f80_0000 { INFINITE | QUIET } else { INFINITE };
        f32::from_bits(sign | if shifted >= 0x0f80_0000 { value | shifted | special } else { value })
    }

    #[inline(always)]
    fn round(wide: f32) -> Self {
        let bits = wide.to_bits();
        let sign = bits >> 16 & 0x8000;
        let size = bits & !SIGN;
        // Round to nearest, ties to even; beyond the largest number this gives infinity.
        let normal = size.wrapping_add(0xc800_0fff + (size >> 13 & 1)) >> 13;
        // Below 2^-14 an addition rounds at the right place: half a unit of 0.5 is 2^-24 / 2.
        let subnormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let is_nan = size > INFINITE;
        let rounded = if size < 0x3880_0000 {
            subnormal
        } else if size >= 0x4780_0000 {
            if is_nan { 0x7e00 | (size >> 13 & 0x3ff) } else { 0x7c00 }
        } else {
            normal
        };
        f16::from_bits((sign | rounded) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_float_widens_as_it_should() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert_eq!(half.widen().to_bits(), half.to_f32().to_bits(), "f16 {bits:#06x}");
            assert_eq!(brain.widen().to_bits(), brain.to_f32().to_bits() | quiet(brain.to_f32()), "bf16 {bits:#06x}");
            assert_eq!(f16::round(half.widen()).to_f32().to_bits(), half.to_f32().to_bits());
            assert_eq!(bf16::round(brain.widen()).to_bits(), bf16::from_f32(brain.to_f32()).to_bits());
        }
    }

    fn quiet(value: f32) -> u32 {
        if value.is_nan() { QUIET } else { 0 }
    }

    /// Rounding depends on bits 12 to 16 and on the ends of the range, so every exponent is tested
    /// with every pattern there, and its neighbours.
    #[test]
    fn rounding_is_to_nearest_ties_to_even() {
        for top in 0..=u32::from(u16::MAX) {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(top << 16 | low);
                assert_eq!(f16::round(value).to_bits(), f16::from_f32(value).to_bits(), "f16 of {value:e}");
                assert_eq!(bf16::round(value).to_bits(), bf16::from_f32(value).to_bits(), "bf16 of {value:e}");
            }
        }
    }
}
