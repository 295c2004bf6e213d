//! Arithmetic on rows of numbers that are contiguous in memory, in loops that the compiler turns into vector
//! instructions.

/// Returns the rows of a matrix, each of `width` numbers.
#[inline]
pub(super) fn row(matrix: &[f32], width: usize, index: usize) -> &[f32] {
    &matrix[index * width..(index + 1) * width]
}

#[inline]
pub(super) fn row_mut(matrix: &mut [f32], width: usize, index: usize) -> &mut [f32] {
    &mut matrix[index * width..(index + 1) * width]
}

/// Returns the sum of products. Several sums side by side keep the processor's pipeline full.
#[inline]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 32;
    let mut sums = [0.0f32; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    rest + sums.iter().sum::<f32>()
}

/// Adds `count` rows to a sum, each multiplied by its factor. It adds several rows at a time, so that the sum is loaded
/// and stored less often.
pub(super) fn add_scaled<'a>(sum: &mut [f32], count: usize, scaled: impl Fn(usize) -> (f32, &'a [f32])) {
    let mut next = 0;
    while next + 8 <= count {
        add::<8>(sum, std::array::from_fn(|index| scaled(next + index)));
        next += 8;
    }
    while next + 4 <= count {
        add::<4>(sum, std::array::from_fn(|index| scaled(next + index)));
        next += 4;
    }
    for last in next..count {
        add::<1>(sum, [scaled(last)]);
    }
}

#[inline]
fn add<const ROWS: usize>(sum: &mut [f32], scaled: [(f32, &[f32]); ROWS]) {
    let factors = scaled.map(|(factor, _)| factor);
    let rows = scaled.map(|(_, row)| &row[..sum.len()]);
    for (index, slot) in sum.iter_mut().enumerate() {
        let mut total = *slot;
        for (factor, row) in factors.iter().zip(&rows) {
            total += factor * row[index];
        }
        *slot = total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_any_length() {
        let numbers = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|index| ((index * step) % 7) as f32 - 3.0).collect()
        };
        for width in [0, 1, 5, 32, 33, 64, 75] {
            // Small whole numbers: every order of summation gives the same.
            let (a, b) = (numbers(width, 3), numbers(width, 5));
            let plain: f32 = (0..width).map(|index| a[index] * b[index]).sum();
            assert_eq!(dot(&a, &b), plain, "{width}");
            for count in 0..20 {
                let (matrix, factors) = (numbers(width * count, 3), numbers(count, 5));
                let mut sum = b.clone();
                add_scaled(&mut sum, count, |index| (factors[index], row(&matrix, width, index)));
                for column in 0..width {
                    let more: f32 = (0..count).map(|index| factors[index] * matrix[index * width + column]).sum();
                    assert_eq!(sum[column], b[column] + more, "{width} {count}");
                }
            }
        }
    }
}
