//! Every kernel against scalar arithmetic, to the bit.

use super::*;
use proptest::prelude::*;

/// Scalar arithmetic in its plainest form, as the reference.
trait Scalar: Narrow + bytemuck::Pod {
    const DTYPE: Dtype;
    fn random(bits: u64) -> Self;
    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn fold(reduce: Reduce, left: Self::Wide, right: Self::Wide) -> Self::Wide;
    fn scale(wide: Self::Wide, factor: f32) -> Self::Wide;
    fn divide(wide: Self::Wide, divisor: f64) -> Self::Wide;
    fn same(left: Self, right: Self) -> bool;
}

macro_rules! float_scalar {
    ($type:ty, $wide:ty, $dtype:ident, $random:expr, $widen:expr, $narrow:expr) => {
        impl Scalar for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            fn random(bits: u64) -> Self {
                $random(bits)
            }
            fn wide(self) -> $wide {
                $widen(self)
            }
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
            fn fold(reduce: Reduce, left: $wide, right: $wide) -> $wide {
                match reduce {
                    Reduce::Sum | Reduce::Mean => left + right,
                    Reduce::Prod => left * right,
                    _ if left.is_nan() => left,
                    _ if right.is_nan() => right,
                    Reduce::Min if right < left => right,
                    Reduce::Max if right > left => right,
                    Reduce::Min | Reduce::Max => left,
                }
            }
            fn scale(wide: $wide, factor: f32) -> $wide {
                wide * <$wide>::from(factor)
            }
            fn divide(wide: $wide, divisor: f64) -> $wide {
                wide / divisor as $wide
            }
            fn same(left: Self, right: Self) -> bool {
                // Which of two NaNs survives an addition is not defined.
                left.to_bits() == right.to_bits() || (left.is_nan() && right.is_nan())
            }
        }
    };
}

macro_rules! integer_scalar {
    ($($type:ty, $wide:ty => $dtype:ident),*) => {
        $(impl Scalar for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            fn random(bits: u64) -> Self {
                bits as $type
            }
            fn wide(self) -> $wide {
                self.into()
            }
            fn narrow(wide: $wide) -> Self {
                wide as $type
            }
            fn fold(reduce: Reduce, left: $wide, right: $wide) -> $wide {
                match reduce {
                    Reduce::Sum | Reduce::Mean => left.wrapping_add(right),
                    Reduce::Prod => left.wrapping_mul(right),
                    Reduce::Min => if right < left { right } else { left },
                    Reduce::Max => if right > left { right } else { left },
                }
            }
            fn scale(wide: $wide, _: f32) -> $wide {
                wide
            }
            fn divide(wide: $wide, divisor: f64) -> $wide {
                wide / divisor as $wide
            }
            fn same(left: Self, right: Self) -> bool {
                left == right
            }
        })*
    };
}

/// Returns mostly ordinary numbers, sometimes any bits.
fn ordinary(bits: u64) -> Option<f64> {
    (!bits.is_multiple_of(16)).then(|| (bits >> 44) as f64 / 256.0 - 2048.0)
}

float_scalar!(
    f32,
    f32,
    F32,
    |bits: u64| ordinary(bits).map_or(f32::from_bits((bits >> 20) as u32), |x| x as f32),
    |x| x,
    |x| x
);
float_scalar!(f64, f64, F64, |bits: u64| ordinary(bits).unwrap_or(f64::from_bits(bits)), |x| x, |x| x);
float_scalar!(
    f16,
    f32,
    F16,
    |bits: u64| ordinary(bits).map_or(f16::from_bits((bits >> 20) as u16), f16::from_f64),
    f16::to_f32,
    f16::from_f32
);
float_scalar!(
    bf16,
    f32,
    Bf16,
    |bits: u64| ordinary(bits).map_or(bf16::from_bits((bits >> 20) as u16), bf16::from_f64),
    bf16::to_f32,
    bf16::from_f32
);
integer_scalar!(
    i32, i32 => I32, i64, i64 => I64, u32, u32 => U32, u64, u64 => U64, i8, i32 => I8, u8, u32 => U8, i16, i32 => I16
);

/// A generated test case.
#[derive(Clone, Debug)]
struct Case {
    len: usize,
    /// The bits, the width and the factor of each source.
    sources: Vec<(u64, bool, f32)>,
    divisor: Option<f64>,
    wide_target: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let factor = prop_oneof![3 => Just(1.0f32), 1 => 0.01f32..40.0];
    let sources = proptest::collection::vec((any::<u64>(), any::<bool>(), factor), 0..9);
    let divisor = proptest::option::of(prop_oneof![(1u32..40).prop_map(f64::from), 0.1f64..9.0]);
    (0usize..5000, sources, divisor, any::<bool>()).prop_map(|(len, sources, divisor, wide_target)| Case {
        len,
        sources,
        divisor,
        wide_target,
    })
}

fn every_set() -> Vec<Vectors> {
    let mut sets = vec![Vectors::Baseline];
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            sets.push(Vectors::Avx2);
        }
        if Vectors::best() == Vectors::Avx512 {
            sets.push(Vectors::Avx512);
        }
    }
    sets
}

fn draw_bits<N: Scalar>(seed: u64, i: usize) -> N {
    N::random((seed ^ i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17))
}

fn check<N: Scalar, F: Fold<N::Wide>>(case: &Case, reduce: Reduce) -> Result<(), TestCaseError>
where
    N::Wide: bytemuck::Pod,
{
    let &Case { len, ref sources, divisor, wide_target } = case;
    let integer = !N::DTYPE.is_float();
    let adds = reduce == Reduce::Sum;
    let narrow: Vec<Vec<N>> =
        sources.iter().map(|&(seed, ..)| (0..len).map(|i| draw_bits(seed, i)).collect()).collect();
    let wide: Vec<Vec<N::Wide>> = narrow.iter().map(|of| of.iter().map(|x| x.wide()).collect()).collect();
    let operands: Vec<Operand> = sources
        .iter()
        .enumerate()
        .map(|(index, &(_, is_wide, factor))| Operand {
            data: if is_wide { wide[index].as_ptr().cast() } else { narrow[index].as_ptr().cast() },
            wide: is_wide,
            factor: if adds && !integer { factor } else { 1.0 },
        })
        .collect();
    let divisor = divisor.filter(|_| adds).map(|divisor| if integer { divisor.ceil() } else { divisor });
    let expected = |i: usize| {
        let scaled = |k: usize| match operands[k].factor {
            1.0 => wide[k][i],
            factor => N::scale(wide[k][i], factor),
        };
        let sum = (1..operands.len())
            .fold((!operands.is_empty()).then(|| scaled(0)), |sum, k| sum.map(|sum| N::fold(reduce, sum, scaled(k))));
        let sum = sum.unwrap_or(<N::Wide as Wide>::ZERO);
        divisor.map_or(sum, |divisor| N::divide(sum, divisor))
    };
    for vectors in every_set() {
        let mut out_wide = vec![<N::Wide as Wide>::ZERO; len];
        let mut out = vec![N::narrow(<N::Wide as Wide>::ZERO); len];
        let data = if wide_target { out_wide.as_mut_ptr().cast() } else { out.as_mut_ptr().cast() };
        // SAFETY: vectors of `len` elements of the widths named, borrowed for the call.
        unsafe { with::<N, F>(vectors, Target { data, wide: wide_target }, &operands, len, ending(divisor)) };
        for i in 0..len {
            let got = if wide_target { N::narrow(out_wide[i]) } else { out[i] };
            prop_assert!(N::same(got, N::narrow(expected(i))), "{vectors:?} {} {reduce:?} at {i}", N::DTYPE);
        }
    }
    Ok(())
}

fn check_all<N: Scalar>(case: &Case) -> Result<(), TestCaseError>
where
    N::Wide: bytemuck::Pod,
{
    check::<N, Sum>(case, Reduce::Sum)?;
    check::<N, Min>(case, Reduce::Min)?;
    check::<N, Max>(case, Reduce::Max)?;
    check::<N, Prod>(case, Reduce::Prod)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_kernel_equals_scalar_arithmetic_to_the_bit(case in cases()) {
        check_all::<f32>(&case)?;
        check_all::<f64>(&case)?;
        check_all::<f16>(&case)?;
        check_all::<bf16>(&case)?;
        check_all::<i32>(&case)?;
        check_all::<i64>(&case)?;
        check_all::<u32>(&case)?;
        check_all::<u64>(&case)?;
        check_all::<i8>(&case)?;
        check_all::<u8>(&case)?;
        check_all::<i16>(&case)?;
    }
}

fn ending(divisor: Option<f64>) -> Ending<'static> {
    divisor.map_or(Ending::Plain, Ending::Over)
}

/// Averages the first `models` sources, and adds the others as updates.
fn average<T: Scalar>(vectors: Vectors, models: usize, sources: &[Vec<T>], members: u32) -> Vec<T> {
    let len = sources[0].len();
    let mut out = vec![T::zeroed(); len];
    let operand = |source: &Vec<T>| Operand { data: source.as_ptr().cast(), wide: false, factor: 1.0 };
    let operands: Vec<Operand> = sources.iter().map(operand).collect();
    let target = Target { data: out.as_mut_ptr().cast(), wide: false };
    let (models, updates) = operands.split_at(models);
    let ending = Ending::Model(Model { first: models[0], others: &models[1..], members: f64::from(members) });
    // SAFETY: vectors of `len` elements, borrowed for the call.
    unsafe { with::<T, Sum>(vectors, target, updates, len, ending) };
    out
}

fn check_models<N: Scalar>(len: usize, (models, updates): (usize, usize), seed: u64) -> Result<(), TestCaseError> {
    let draw = |source: usize| (0..len).map(move |i| draw_bits::<N>(seed ^ (source as u64) << 32, i));
    let sources: Vec<Vec<N>> = (0..models + updates).map(|source| draw(source).collect()).collect();
    let add = |left: N::Wide, right: N::Wide| N::fold(Reduce::Sum, left, right);
    let expected = |i: usize| {
        let first = sources[0][i].wide();
        let updates = sources[models..].iter().map(|source| source[i].wide());
        let sum = updates.reduce(add).unwrap_or(N::Wide::ZERO);
        let differences = sources[1..models].iter().map(|source| source[i].wide().minus(first));
        N::narrow(add(first, N::divide(differences.fold(sum, add), models as f64)))
    };
    for vectors in every_set() {
        let got = average(vectors, models, &sources, models as u32);
        for (i, &got) in got.iter().enumerate() {
            prop_assert!(N::same(got, expected(i)), "{vectors:?} {} at {i}", N::DTYPE);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn averaged_models_equal_scalar_arithmetic_to_the_bit(
        len in 0usize..5000, models in 1usize..7, updates in 0usize..7, seed: u64,
    ) {
        check_models::<f32>(len, (models, updates), seed)?;
        check_models::<f64>(len, (models, updates), seed)?;
        check_models::<f16>(len, (models, updates), seed)?;
        check_models::<bf16>(len, (models, updates), seed)?;
    }
}

/// Without updates, models of 16 bits do not drift either.
#[test]
fn equal_models_stay_as_they_are() {
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|model| model.is_finite()).collect();
    let averaged = average(Vectors::best(), 3, &[all.clone(), all.clone(), all.clone()], 3);
    assert_eq!(averaged, all);
}

fn reduce<T: Scalar>(reduce: Reduce, sources: &[Vec<T>], divisor: Option<f64>) -> Vec<T> {
    let len = sources.first().map_or(3, Vec::len);
    let mut out = vec![T::zeroed(); len];
    let operand = |source: &Vec<T>| Operand { data: source.as_ptr().cast(), wide: false, factor: 1.0 };
    let operands: Vec<Operand> = sources.iter().map(operand).collect();
    let target = Target { data: out.as_mut_ptr().cast(), wide: false };
    // SAFETY: vectors of `len` elements, borrowed for the call.
    unsafe { combine((T::DTYPE, reduce), target, &operands, len, ending(divisor), &DefaultFloats::enter()) };
    out
}

#[test]
fn edge_cases() {
    assert_eq!(reduce::<u64>(Reduce::Sum, &[], None), [0, 0, 0]);
    assert_eq!(reduce(Reduce::Sum, &[vec![u64::MAX], vec![2]], None), [1]);
    assert_eq!(reduce(Reduce::Mean, &[vec![i64::MAX], vec![1]], None), [i64::MIN / 2]);
    assert_eq!(reduce(Reduce::Mean, &[vec![-7i8, 127], vec![0, 126]], None), [-3, 126]);
    assert_eq!(reduce(Reduce::Mean, &[vec![255u8], vec![255], vec![254]], None), [254]);
    assert_eq!(reduce(Reduce::Mean, &[vec![1.0f32], vec![2.0], vec![4.0]], None), [7.0 / 3.0]);
    assert_eq!(reduce(Reduce::Mean, &vec![vec![f16::from_f32(60_000.0)]; 8], None), [f16::from_f32(60_000.0)]);
    assert_eq!(reduce(Reduce::Prod, &[vec![1u32 << 31], vec![2]], None), [0]);
    assert_eq!(reduce(Reduce::Sum, &[vec![100i8], vec![100]], None), [-56]);
    assert_eq!(reduce(Reduce::Prod, &[vec![16u8, 15], vec![16, 17]], None), [0, 255]);
    assert_eq!(reduce(Reduce::Min, &[vec![-300i16], vec![300]], None), [-300]);
    assert!(reduce(Reduce::Sum, &[vec![-0.0f32]], None)[0].is_sign_negative());
    assert_eq!(reduce(Reduce::Sum, &[vec![1.0], vec![2.0], vec![4.0]], Some(7.0)), [1.0]);
    assert!(reduce(Reduce::Max, &[vec![1.0f32], vec![f32::NAN], vec![9.0]], None)[0].is_nan());
    assert!(reduce(Reduce::Min, &[vec![-0.0f64], vec![0.0]], None)[0].is_sign_negative());
    // 2049 has no 16-bit form and occurs as an intermediate sum: rounding at every step would give 2048.
    let [half] = reduce(Reduce::Sum, &[vec![f16::from_f32(2048.0)], vec![f16::ONE], vec![f16::ONE]], None)[..] else {
        panic!()
    };
    assert_eq!(half.to_f32(), 2050.0);
}

/// Tiny numbers, which some threads flush to zero, and sums that must be rounded.
#[test]
fn bits_do_not_depend_on_the_state_of_the_thread() {
    fn sources<T>(values: [f64; 4], narrow: impl Fn(f64) -> T) -> Vec<Vec<T>> {
        (1..4).map(|rank| values.iter().map(|value| narrow(value / f64::from(rank))).collect()).collect()
    }
    fn bits<T: Scalar>(sources: &[Vec<T>]) -> Vec<u8> {
        let reduced = Reduce::EVERY.map(|kind| reduce(kind, sources, (kind == Reduce::Sum).then_some(7.0)));
        reduced.iter().flat_map(|values| bytemuck::cast_slice(values).to_vec()).collect()
    }
    let f32s = sources([1e-38, 1.4e-45, 1.0, -0.1], |x| x as f32);
    let f64s = sources([1e-308, 5e-324, 1.0, -0.1], |x| x);
    let f16s = sources([6e-8, 1e-5, 1.0, -0.1], f16::from_f64);
    let bf16s = sources([1e-38, 1e-40, 1.0, -0.1], bf16::from_f64);
    let all = || [bits(&f32s), bits(&f64s), bits(&f16s), bits(&bf16s)];
    let expected = all();
    for found in floats::states::in_each(all) {
        assert_eq!(found, expected);
    }
}
