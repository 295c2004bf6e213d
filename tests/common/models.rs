//! Contributions to models, which any rank can compute.

/// An element of a rank's contribution. Its number is that of the round that it is made for, or of the rank's own count.
pub fn update(rank: u32, number: u64, index: usize) -> f32 {
    let seed = (u64::from(rank) << 40) + (number << 20) + index as u64;
    let bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (bits >> 40) as f32 / (1 << 24) as f32 - 0.5
}
