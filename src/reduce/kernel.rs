//! The reduction.
#![allow(unsafe_code)]

mod arena;
mod floats;
mod gathered;

use std::any::TypeId;

use half::{bf16, f16};

pub(crate) use arena::{Arena, Goal, Place, Source};
pub(crate) use floats::DefaultFloats;
pub(crate) use gathered::{BoardSource, Gathered};

use super::number::{Narrow, Truth, Wide};
use super::{Dtype, Element, Reduce};

/// The number of elements reduced at a time: the block stays in the first-level cache for all sources.
const BLOCK: usize = 2048;

/// One source of a reduction.
#[derive(Clone, Copy, Debug)]
struct Operand {
    data: *const u8,
    /// Whether it is a partial result, in the width of [`Dtype::wide_size`].
    wide: bool,
    /// The factor of its elements; only sums of floats have one other than 1.
    factor: f32,
}

/// An operation that combines two elements.
trait Fold<W: Wide>: 'static {
    fn fold(left: W, right: W) -> W;
}

struct Sum;
struct Min;
struct Max;
struct Prod;

macro_rules! fold {
    ($($name:ident => $method:ident),*) => {
        $(impl<W: Wide> Fold<W> for $name {
            #[inline(always)]
            fn fold(left: W, right: W) -> W {
                left.$method(right)
            }
        })*
    };
}

fold!(Sum => plus, Min => min, Max => max, Prod => times);

/// The destination of a reduction, and its width.
#[derive(Clone, Copy, Debug)]
struct Target {
    data: *mut u8,
    wide: bool,
}

/// What happens to the result of a reduction.
#[derive(Clone, Copy, Debug)]
enum Ending<'a> {
    /// The result is the outcome.
    Plain,
    /// The result is divided.
    Over(f64),
    /// The result is a sum of updates, which is added to averaged models.
    Model(Model<'a>),
}

/// Models to be averaged, all of them narrow and without a factor. The outcome is `first` + (the sum of updates + the
/// sum over `others` of their differences from `first`) / `members`. If all models are equal and finite and there is no
/// update, the outcome is equal to them, too: to the bit, except for the sign of zeros. Models whose difference is not
/// finite have no mean.
#[derive(Clone, Copy, Debug)]
struct Model<'a> {
    first: Operand,
    others: &'a [Operand],
    members: f64,
}

/// Reduces `operands` element by element, `len` elements each, in the order given, and finishes as `ending` says. A
/// mean is divided by the number of operands. Without operands the result is zeros. A single operand that needs no
/// change is copied. The caller has entered the default floating-point state before it computed factors.
///
/// # Safety
/// Every address must be valid for `len` elements of its width and aligned to them; the target must
/// be valid for writes and overlap no operand; until the call returns, no thread or rank writes an
/// operand or accesses the target.
unsafe fn combine(
    (dtype, reduce): (Dtype, Reduce),
    target: Target,
    operands: &[Operand],
    len: usize,
    ending: Ending<'_>,
    _: &DefaultFloats,
) {
    let vectors = Vectors::best();
    macro_rules! typed {
        ($($dtype:ident => $type:ty),*) => {
            // SAFETY: the caller's promise, per element type; the processor has the instructions.
            unsafe {
                match dtype {
                    $(Dtype::$dtype => match reduce {
                        Reduce::Sum => with::<$type, Sum>(vectors, target, operands, len, ending),
                        Reduce::Min => with::<$type, Min>(vectors, target, operands, len, ending),
                        Reduce::Max => with::<$type, Max>(vectors, target, operands, len, ending),
                        Reduce::Prod => with::<$type, Prod>(vectors, target, operands, len, ending),
                        Reduce::Mean => {
                            with::<$type, Sum>(vectors, target, operands, len, Ending::Over(operands.len() as f64))
                        }
                    },)*
                }
            }
        };
    }
    typed!(
        F32 => f32, F64 => f64, F16 => f16, Bf16 => bf16, I32 => i32, I64 => i64, U32 => u32, U64 => u64, I8 => i8, U8 => u8,
        I16 => i16, Bool => Truth
    );
}

/// Adds slices of the target's length.
///
/// # Panics
/// If a slice has another length.
pub(crate) fn sum<T: Element>(sources: &[&[T]], target: &mut [T]) {
    scaled_sum(sources.iter().map(|&source| (source, 1.0)), target);
}

/// Adds slices of the target's length, each multiplied by its factor. Only sums of floats may have factors other than
/// 1.
///
/// # Panics
/// If a slice has another length.
pub(crate) fn scaled_sum<'a, T: Element>(sources: impl Iterator<Item = (&'a [T], f32)>, target: &mut [T]) {
    let operand = |(source, factor): (&[T], f32)| {
        assert_eq!(source.len(), target.len());
        Operand { data: source.as_ptr().cast(), wide: false, factor }
    };
    let floats = DefaultFloats::enter();
    let operands: Vec<Operand> = sources.map(operand).collect();
    let data = target.as_mut_ptr().cast();
    // SAFETY: the slices have one length and the alignment of their type; the exclusive borrow of
    // the target rules out that it overlaps a source or that another thread accesses it.
    unsafe {
        combine((T::DTYPE, Reduce::Sum), Target { data, wide: false }, &operands, target.len(), Ending::Plain, &floats);
    }
}

/// Returns the element type and the reduction of partial results, which are combined again before the result is narrowed.
/// Both are the caller's where no partial result needs more.
pub(crate) fn partial((dtype, reduce): (Dtype, Reduce)) -> (Dtype, Reduce) {
    let wide = match (dtype, reduce) {
        (_, Reduce::Min | Reduce::Max) => dtype,
        (Dtype::F16 | Dtype::Bf16, _) => Dtype::F32,
        (Dtype::I8 | Dtype::I16, Reduce::Mean) => Dtype::I32,
        (Dtype::U8, Reduce::Mean) => Dtype::U32,
        _ => dtype,
    };
    (wide, if reduce == Reduce::Mean { Reduce::Sum } else { reduce })
}

/// Turns elements into [`partial`] results.
///
/// # Panics
/// If the lengths do not fit together, or an address is not aligned.
pub(crate) fn widen((dtype, reduce): (Dtype, Reduce), source: &[u8], target: &mut [u8]) {
    let (wide, _) = partial((dtype, reduce));
    if wide == dtype {
        return target.copy_from_slice(source);
    }
    convert(dtype, (source, false), (target, true), Ending::Plain);
}

/// Turns [`partial`] results of `ranks` ranks together into the result.
///
/// # Panics
/// As [`widen`].
pub(crate) fn narrow((dtype, reduce): (Dtype, Reduce), ranks: u32, source: &[u8], target: &mut [u8]) {
    match (partial((dtype, reduce)).0 != dtype, reduce) {
        (is_wide, Reduce::Mean) => convert(dtype, (source, is_wide), (target, false), Ending::Over(f64::from(ranks))),
        (true, _) => convert(dtype, (source, true), (target, false), Ending::Plain),
        (false, _) => target.copy_from_slice(source),
    }
}

/// Converts elements between their width and that of partial results.
fn convert(dtype: Dtype, (source, from_wide): (&[u8], bool), (target, to_wide): (&mut [u8], bool), ending: Ending<'_>) {
    let width = |wide: bool| if wide { dtype.wide_size() } else { dtype.size() };
    let len = target.len() / width(to_wide);
    assert_eq!((source.len(), target.len()), (len * width(from_wide), len * width(to_wide)));
    if len == 0 {
        return;
    }
    let is_aligned = |address: *const u8, wide| (address as usize).is_multiple_of(width(wide));
    assert!(is_aligned(source.as_ptr(), from_wide) && is_aligned(target.as_ptr(), to_wide));
    let operands = [Operand { data: source.as_ptr(), wide: from_wide, factor: 1.0 }];
    let target = Target { data: target.as_mut_ptr(), wide: to_wide };
    // SAFETY: both have `len` elements of their widths and are aligned to them; the exclusive borrow of the target rules out
    // that it overlaps the source or that another thread accesses it.
    unsafe { combine((dtype, Reduce::Sum), target, &operands, len, ending, &DefaultFloats::enter()) };
}

/// A set of vector instructions that has a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vectors {
    /// The instructions that the compilation target always has: SSE2 or NEON on the usual ones.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Vectors {
    /// Returns the widest set that this processor has.
    #[inline]
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                return Vectors::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Vectors::Avx2;
            }
        }
        Vectors::Baseline
    }
}

/// # Safety
/// As [`combine`]; the processor must have the instructions.
unsafe fn with<N: Narrow, F: Fold<N::Wide>>(
    vectors: Vectors,
    target: Target,
    operands: &[Operand],
    len: usize,
    ending: Ending<'_>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            Vectors::Baseline => portable::<N, F>(target, operands, len, ending),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => with_avx2::<N, F>(target, operands, len, ending),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => with_avx512::<N, F>(target, operands, len, ending),
        }
    }
}

/// # Safety
/// As [`combine`]; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn with_avx2<N: Narrow, F: Fold<N::Wide>>(target: Target, operands: &[Operand], len: usize, ending: Ending<'_>) {
    // SAFETY: the caller's promise.
    unsafe { portable::<N, F>(target, operands, len, ending) }
}

/// # Safety
/// As [`combine`]; the processor must have AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn with_avx512<N: Narrow, F: Fold<N::Wide>>(
    target: Target,
    operands: &[Operand],
    len: usize,
    ending: Ending<'_>,
) {
    // SAFETY: the caller's promise.
    unsafe { portable::<N, F>(target, operands, len, ending) }
}

/// # Safety
/// As [`combine`].
#[inline(always)]
unsafe fn portable<N: Narrow, F: Fold<N::Wide>>(target: Target, operands: &[Operand], len: usize, ending: Ending<'_>) {
    let same_width = TypeId::of::<N>() == TypeId::of::<N::Wide>();
    let aligned = |address: *const u8, wide: bool| {
        address.align_offset(if wide { align_of::<N::Wide>() } else { align_of::<N>() }) == 0
    };
    debug_assert!(
        aligned(target.data, target.wide) && operands.iter().all(|operand| aligned(operand.data, operand.wide))
    );
    if let ([only], Ending::Plain) = (operands, ending)
        && only.factor == 1.0
        && (only.wide == target.wide || same_width)
    {
        let bytes = len * if only.wide { size_of::<N::Wide>() } else { size_of::<N>() };
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(only.data, target.data, bytes) };
    }
    let mut scratch = [N::Wide::ZERO; BLOCK];
    let mut from = 0;
    while from < len {
        let count = BLOCK.min(len - from);
        let in_place = target.wide || same_width;
        let sum = if in_place {
            // SAFETY: the target has as many elements of the wide type, and nothing overlaps it.
            unsafe { std::slice::from_raw_parts_mut(target.data.cast::<N::Wide>().add(from), count) }
        } else {
            &mut scratch[..count]
        };
        // SAFETY: the caller's promise, for the elements of this block.
        unsafe { reduce_block::<N, F>(sum, operands, from, same_width) };
        match ending {
            Ending::Plain => {}
            Ending::Over(divisor) => sum.iter_mut().for_each(|value| *value = value.over(divisor)),
            // SAFETY: the caller's promise, for the elements of this block.
            Ending::Model(model) => unsafe { add_to_model::<N>(sum, model, from) },
        }
        if !in_place {
            // SAFETY: as above, with elements of the narrow type.
            let out = unsafe { std::slice::from_raw_parts_mut(target.data.cast::<N>().add(from), count) };
            out.iter_mut().zip(&scratch[..count]).for_each(|(out, &value)| *out = N::round(value));
        }
        from += count;
    }
}

/// Turns a sum of updates into a new model, for its elements from `from` on.
///
/// # Safety
/// As [`combine`].
#[inline(always)]
unsafe fn add_to_model<N: Narrow>(sum: &mut [N::Wide], Model { first, others, members }: Model<'_>, from: usize) {
    let count = sum.len();
    // SAFETY: the caller's promise: valid, aligned, and not written meanwhile.
    let narrow = |operand: &Operand| unsafe { std::slice::from_raw_parts(operand.data.cast::<N>().add(from), count) };
    let first = narrow(&first);
    for other in others {
        let other = narrow(other);
        for i in 0..count {
            sum[i] = sum[i].plus(other[i].widen().minus(first[i].widen()));
        }
    }
    for i in 0..count {
        sum[i] = first[i].widen().plus(sum[i].over(members));
    }
}

/// Folds the operands' elements from `from` on into `sum`.
///
/// # Safety
/// As [`combine`].
#[inline(always)]
unsafe fn reduce_block<N: Narrow, F: Fold<N::Wide>>(
    sum: &mut [N::Wide],
    operands: &[Operand],
    from: usize,
    same_width: bool,
) {
    let count = sum.len();
    // SAFETY: the caller's promise: valid, aligned, and not written meanwhile.
    let wide =
        |operand: &Operand| unsafe { std::slice::from_raw_parts(operand.data.cast::<N::Wide>().add(from), count) };
    // SAFETY: as above.
    let narrow = |operand: &Operand| unsafe { std::slice::from_raw_parts(operand.data.cast::<N>().add(from), count) };
    let is_wide = |operand: &Operand| operand.wide || same_width;
    let plain = |operand: &Operand| is_wide(operand) && operand.factor == 1.0;
    let mut rest = operands;
    match rest {
        [] => return sum.fill(N::Wide::ZERO),
        [a, b, others @ ..] if plain(a) && plain(b) => {
            let (a, b) = (wide(a), wide(b));
            for i in 0..count {
                sum[i] = F::fold(a[i], b[i]);
            }
            rest = others;
        }
        [a, others @ ..] => {
            match is_wide(a) {
                true => sum.copy_from_slice(wide(a)),
                false => sum.iter_mut().zip(narrow(a)).for_each(|(sum, &x)| *sum = x.widen()),
            }
            if a.factor != 1.0 {
                sum.iter_mut().for_each(|sum| *sum = sum.scaled(a.factor));
            }
            rest = others;
        }
    }
    while let [a, others @ ..] = rest {
        rest = others;
        match (is_wide(a), a.factor == 1.0) {
            (true, true) => {
                // Two operands at a time: the sum is read and written half as often.
                let a = wide(a);
                if let [b, others @ ..] = rest
                    && plain(b)
                {
                    rest = others;
                    let b = wide(b);
                    for i in 0..count {
                        sum[i] = F::fold(F::fold(sum[i], a[i]), b[i]);
                    }
                } else {
                    sum.iter_mut().zip(a).for_each(|(sum, &x)| *sum = F::fold(*sum, x));
                }
            }
            (true, false) => {
                sum.iter_mut().zip(wide(a)).for_each(|(sum, &x)| *sum = F::fold(*sum, x.scaled(a.factor)));
            }
            (false, true) => sum.iter_mut().zip(narrow(a)).for_each(|(sum, &x)| *sum = F::fold(*sum, x.widen())),
            (false, false) => {
                let scaled = |x: N| x.widen().scaled(a.factor);
                sum.iter_mut().zip(narrow(a)).for_each(|(sum, &x)| *sum = F::fold(*sum, scaled(x)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
