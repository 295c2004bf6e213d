//! The keys of registered memory: random, so that a stranger has to guess all bits of a key.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::Arc;

use earlybird_ffi::ofi::Code;
use parking_lot::Mutex;

use super::registration::Failed;

/// Keys that are tried for one registration. A provider may use some keys itself, as `ofi_rxm`
/// does.
const TRIES: u32 = 8;

/// The keys of a domain whose provider lets the application choose them.
#[derive(Debug)]
pub(super) struct Keys {
    /// The bits that a key has.
    mask: u64,
    taken: Mutex<BTreeSet<u64>>,
}

/// A key that is in use while this value lives.
#[derive(Debug)]
pub(super) struct DrawnKey {
    key: u64,
    keys: Arc<Keys>,
}

impl Keys {
    /// Keys of `bytes` bytes (`mr_key_size`). libfabric passes keys as 8 bytes, also where a
    /// provider does not give the size.
    pub(super) fn of_size(bytes: usize) -> Arc<Self> {
        let mask = match bytes {
            1..8 => (1u64 << (8 * bytes)) - 1,
            _ => u64::MAX,
        };
        Arc::new(Keys { mask, taken: Mutex::default() })
    }

    fn draw(self: &Arc<Self>, random: &mut impl FnMut() -> Result<u64, Failed>) -> Result<DrawnKey, Failed> {
        loop {
            let key = random()? & self.mask;
            let mut taken = self.taken.lock();
            if taken.len() as u64 > self.mask {
                return Err(Failed::Code(Code::NO_KEY));
            }
            if taken.insert(key) {
                return Ok(DrawnKey { key, keys: self.clone() });
            }
        }
    }

    /// Calls `make` with a random key, and with another one if the provider uses that key itself.
    pub(super) fn with_key<T>(
        self: &Arc<Self>,
        mut random: impl FnMut() -> Result<u64, Failed>,
        make: impl Fn(u64) -> Result<T, Code>,
    ) -> Result<(T, DrawnKey), Failed> {
        let mut tries = 0;
        loop {
            let drawn = self.draw(&mut random)?;
            tries += 1;
            match make(drawn.key) {
                Err(Code::NO_KEY) if tries < TRIES => {}
                made => return made.map(|made| (made, drawn)).map_err(Failed::Code),
            }
        }
    }
}

impl Drop for DrawnKey {
    fn drop(&mut self) {
        self.keys.taken.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> Result<u64, Failed> {
        crate::random::draw(0).map(u64::from_le_bytes).map_err(Failed::System)
    }

    #[test]
    fn keys_have_all_bits_of_the_domain_and_no_others() {
        for (bytes, mask) in [(1, 0xFF), (2, 0xFFFF), (4, 0xFFFF_FFFF), (8, u64::MAX), (0, u64::MAX), (16, u64::MAX)] {
            let keys = Keys::of_size(bytes);
            let drawn: Vec<DrawnKey> = (0..200).map(|_| keys.draw(&mut random).unwrap()).collect();
            let ever = drawn.iter().fold(0, |bits, drawn| bits | drawn.key);
            let always = drawn.iter().fold(u64::MAX, |bits, drawn| bits & drawn.key);
            assert_eq!((ever, always), (mask, 0), "{bytes} bytes");
            let different: BTreeSet<u64> = drawn.iter().map(|drawn| drawn.key).collect();
            assert_eq!(different.len(), drawn.len(), "{bytes} bytes");
        }
    }

    #[test]
    fn no_key_is_given_twice_at_a_time() {
        let keys = Keys::of_size(8);
        let mut bits = [5, 5, 5, 7, 5].into_iter();
        let mut next = || -> Result<u64, Failed> { Ok(bits.next().unwrap()) };
        let first = keys.draw(&mut next).unwrap();
        let second = keys.draw(&mut next).unwrap();
        assert_eq!((first.key, second.key), (5, 7));
        drop(first);
        assert_eq!(keys.draw(&mut next).unwrap().key, 5, "it is free again");
    }

    #[test]
    fn a_domain_may_run_out_of_keys() {
        let keys = Keys::of_size(1);
        let mut all: Vec<DrawnKey> = (0..256).map(|_| keys.draw(&mut random).unwrap()).collect();
        assert!(matches!(keys.draw(&mut random), Err(Failed::Code(Code::NO_KEY))));
        let last = all.pop().unwrap().key;
        assert_eq!(keys.draw(&mut random).unwrap().key, last, "the only one that is free");
    }

    #[test]
    fn another_key_is_tried_where_the_provider_uses_that_one() {
        let keys = Keys::of_size(8);
        let mut numbers = 0..;
        let mut next = || -> Result<u64, Failed> { Ok(numbers.next().unwrap()) };
        let (made, drawn) = keys.with_key(&mut next, |key| if key < 3 { Err(Code::NO_KEY) } else { Ok(key) }).unwrap();
        assert_eq!((made, drawn.key), (3, 3));
        let refused = |code: Code| keys.with_key(random, |_| Err::<(), _>(code)).unwrap_err();
        assert!(matches!(refused(Code::NO_KEY), Failed::Code(Code::NO_KEY)), "not for ever");
        assert!(matches!(refused(Code::NO_MEMORY), Failed::Code(Code::NO_MEMORY)));
        assert_eq!(keys.taken.lock().len(), 1, "what was not used is free again");
    }
}
