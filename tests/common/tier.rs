//! How much a test does: little enough for everyday use, or everything.
#![allow(dead_code, unreachable_pub, reason = "a test has it as a module, others as a part of one")]

use std::sync::OnceLock;

/// Chooses the deep tier if it is 1.
const DEEP: &str = "TEST_DEEP";

/// Whether the deep tier runs. It is what CI runs after the quick one.
///
/// # Panics
/// At a value that is neither 0 nor 1: it might choose the wrong tier silently.
pub fn is_deep() -> bool {
    static IS_DEEP: OnceLock<bool> = OnceLock::new();
    *IS_DEEP.get_or_init(|| match std::env::var(DEEP).as_deref() {
        Err(_) | Ok("" | "0") => false,
        Ok("1") => true,
        Ok(other) => panic!("{DEEP}={other}: 1 is the deep tier, 0 the quick one"),
    })
}

/// The work of a test in the quick tier, or in the deep one. Both test the same guarantee; the deep tier takes longer.
pub fn by_tier<T>(quick: T, deep: T) -> T {
    if is_deep() { deep } else { quick }
}
