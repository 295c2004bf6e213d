//! In the repository of this project, in the profiles of development and tests, calls of libraries can hang on request. See
//! the package `earlybird` for `BUILT_IN_REPOSITORY`.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BUILT_IN_REPOSITORY");
    println!("cargo::rustc-check-cfg=cfg(earlybird_faults)");
    let in_repository = env::var_os("BUILT_IN_REPOSITORY").is_some_and(|value| !value.is_empty());
    if in_repository && env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        println!("cargo::rustc-cfg=earlybird_faults");
    }
}
