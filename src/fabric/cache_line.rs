//! Small data and the cell that announces it, in one cache line: a network writes both at once.

/// Bytes of a cache line. Regions begin with one.
pub(crate) const CACHE_LINE: usize = 64;

/// Bytes from the start of data to the cell right behind it, if the cache line in which the data begins holds both.
#[inline]
pub(crate) fn cell_behind(offset: usize, len: usize) -> Option<usize> {
    let before = len.checked_next_multiple_of(size_of::<u64>())?;
    let most = (CACHE_LINE - offset % CACHE_LINE).checked_sub(size_of::<u64>())?;
    (before <= most).then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_and_its_data_share_a_line() {
        for (offset, len, before) in [
            (0, 0, Some(0)),
            (0, 1, Some(8)),
            (0, 8, Some(8)),
            (0, 56, Some(56)),
            (0, 57, None),
            (128, 56, Some(56)),
            (8, 48, Some(48)),
            (8, 49, None),
            (56, 0, Some(0)),
            (56, 1, None),
            (63, 0, None),
            (0, usize::MAX, None),
        ] {
            assert_eq!(cell_behind(offset, len), before, "{len} bytes at {offset}");
        }
    }
}
