//! The reduction itself.
#![allow(unsafe_code)]

use std::ops::Div;

use super::Dtype;

/// Elements reduced at a time when there are many sources: the block stays in the first-level
/// cache while they pass by.
const BLOCK: usize = 2048;

trait Number: Copy + 'static {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
    fn over(self, divisor: f64) -> Self;
}

macro_rules! float {
    ($type:ty) => {
        impl Number for $type {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn over(self, divisor: f64) -> Self {
                self.div(divisor as $type)
            }
        }
    };
}

macro_rules! integer {
    ($type:ty) => {
        impl Number for $type {
            const ZERO: Self = 0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn over(self, _: f64) -> Self {
                self
            }
        }
    };
}

float!(f32);
float!(f64);
integer!(i64);
integer!(u64);

/// Sums `sources` element by element into `target`, `bytes` long each, and divides by `divisor` if
/// there is one (a whole number; ignored for integers). No source gives zeros, one gives a copy.
///
/// # Safety
/// Every pointer must be valid for `bytes` and aligned to the element; `target` must be valid for
/// writes and overlap no source; nobody writes a source or touches the target meanwhile.
pub(crate) unsafe fn combine(dtype: Dtype, target: *mut u8, sources: &[*const u8], bytes: usize, divisor: Option<u32>) {
    let divisor = divisor.map(f64::from);
    debug_assert_eq!(bytes % dtype.size(), 0);
    // SAFETY: the caller's promise, per element type.
    unsafe {
        match dtype {
            Dtype::F32 => typed::<f32>(target, sources, bytes / 4, divisor),
            Dtype::F64 => typed::<f64>(target, sources, bytes / 8, divisor),
            Dtype::I64 => typed::<i64>(target, sources, bytes / 8, None),
            Dtype::U64 => typed::<u64>(target, sources, bytes / 8, None),
        }
    }
}

/// # Safety
/// As [`combine`], with `len` elements.
unsafe fn typed<T: Number>(target: *mut u8, sources: &[*const u8], len: usize, divisor: Option<f64>) {
    debug_assert!(sources.iter().chain([&target.cast_const()]).all(|p| p.align_offset(align_of::<T>()) == 0));
    // SAFETY: the caller's promise; the target overlaps no source, so the references do not alias.
    let target = unsafe { std::slice::from_raw_parts_mut(target.cast::<T>(), len) };
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the instructions exist; the rest as for `portable`.
        return unsafe { with_avx2(target, sources, divisor) };
    }
    // SAFETY: the caller's promise.
    unsafe { portable(target, sources, divisor) }
}

/// # Safety
/// Each source must be valid for `target.len()` elements, as in [`combine`]; the processor must
/// have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn with_avx2<T: Number>(target: &mut [T], sources: &[*const u8], divisor: Option<f64>) {
    // SAFETY: the caller's promise.
    unsafe { portable(target, sources, divisor) }
}

/// # Safety
/// Each source must be valid for `target.len()` elements, as in [`combine`].
#[inline(always)]
unsafe fn portable<T: Number>(target: &mut [T], sources: &[*const u8], divisor: Option<f64>) {
    let len = target.len();
    // SAFETY: the caller's promise: valid, aligned, and nobody writes them meanwhile.
    let source = |index: usize| unsafe { std::slice::from_raw_parts(sources[index].cast::<T>(), len) };
    match (sources.len(), divisor) {
        (0, _) => target.fill(T::ZERO),
        (1, None) => target.copy_from_slice(source(0)),
        (2, None) => {
            let (a, b) = (source(0), source(1));
            for i in 0..len {
                target[i] = a[i].plus(b[i]);
            }
        }
        (count, divisor) => {
            let mut from = 0;
            while from < len {
                let to = len.min(from + BLOCK);
                let block = &mut target[from..to];
                block.copy_from_slice(&source(0)[from..to]);
                let mut next = 1;
                while next + 1 < count {
                    let (a, b) = (&source(next)[from..to], &source(next + 1)[from..to]);
                    for i in 0..block.len() {
                        block[i] = block[i].plus(a[i]).plus(b[i]);
                    }
                    next += 2;
                }
                if next < count {
                    let a = &source(next)[from..to];
                    for i in 0..block.len() {
                        block[i] = block[i].plus(a[i]);
                    }
                }
                if let Some(divisor) = divisor {
                    block.iter_mut().for_each(|value| *value = value.over(divisor));
                }
                from = to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum<T: Number>(dtype: Dtype, sources: &[Vec<T>], divisor: Option<u32>) -> Vec<T> {
        let len = sources.first().map_or(3, Vec::len);
        let mut target = vec![T::ZERO; len];
        let pointers: Vec<*const u8> = sources.iter().map(|source| source.as_ptr().cast()).collect();
        let bytes = len * size_of::<T>();
        // SAFETY: vectors of `len` elements, borrowed for the call.
        unsafe { combine(dtype, target.as_mut_ptr().cast(), &pointers, bytes, divisor) };
        target
    }

    proptest! {
        #[test]
        fn equals_the_scalar_sum_to_the_bit(
            count in 1usize..9, len in 0usize..5000, divisor in proptest::option::of(1u32..40), seed: u64
        ) {
            let value = |source: usize, i: usize| {
                let bits = (seed ^ (source * 7919 + i) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                (bits >> 40) as f32 / 1000.0 - 8000.0
            };
            let sources: Vec<Vec<f32>> = (0..count).map(|s| (0..len).map(|i| value(s, i)).collect()).collect();
            let expected = |i: usize| {
                let sum = sources[1..].iter().fold(sources[0][i], |sum, source| sum + source[i]);
                divisor.map_or(sum, |divisor| sum / divisor as f32)
            };
            let got = sum(Dtype::F32, &sources, divisor);
            prop_assert!((0..len).all(|i| got[i].to_bits() == expected(i).to_bits()));
        }
    }

    #[test]
    fn edge_cases() {
        assert_eq!(sum::<u64>(Dtype::U64, &[], None), [0, 0, 0]);
        assert_eq!(sum(Dtype::U64, &[vec![u64::MAX], vec![2]], None), [1]);
        assert_eq!(sum(Dtype::I64, &[vec![i64::MAX], vec![1]], Some(3)), [i64::MIN]);
        assert!(sum(Dtype::F32, &[vec![-0.0f32]], None)[0].is_sign_negative());
        assert_eq!(sum(Dtype::F64, &[vec![1.0], vec![2.0], vec![4.0]], Some(7)), [1.0]);
    }
}
