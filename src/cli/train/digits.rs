//! The handwritten digits, read from the bundled file. See `data/README.md`.

const FILE: &[u8] = include_bytes!("../../../data/digits.bin");
pub(super) const PIXELS: usize = 64;
const RECORD: usize = PIXELS + 1;

/// An image with values between 0 and 1, and the digit that it shows.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) pixels: [f32; PIXELS],
    pub(super) digit: usize,
}

/// Every fifth image is kept for testing.
#[derive(Debug)]
pub(super) struct Digits {
    pub(super) training: Vec<Sample>,
    pub(super) test: Vec<Sample>,
}

impl Digits {
    pub(super) fn load() -> Self {
        let sample = |record: &[u8]| Sample {
            pixels: std::array::from_fn(|pixel| f32::from(record[pixel]) / 16.0),
            digit: usize::from(record[PIXELS]),
        };
        let (mut training, mut test) = (Vec::new(), Vec::new());
        for (index, record) in FILE.chunks_exact(RECORD).enumerate() {
            if index % 5 == 4 { test.push(sample(record)) } else { training.push(sample(record)) }
        }
        Digits { training, test }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_what_it_says() {
        let digits = Digits::load();
        assert_eq!((digits.training.len(), digits.test.len()), (1438, 359));
        assert_eq!(FILE.len() % RECORD, 0);
        assert!(digits.training.iter().chain(&digits.test).all(|sample| sample.digit < 10));
        assert!(digits.training.iter().all(|sample| sample.pixels.iter().all(|pixel| (0.0..=1.0).contains(pixel))));
    }
}
