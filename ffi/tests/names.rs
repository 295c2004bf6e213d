//! The names that endpoints of libfabric's `shm` give to their files.
#![allow(clippy::unwrap_used, reason = "a test of bindings")]

mod skipped;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use earlybird_ffi::ofi::{Domain, Endpoint, Fabric, Library, Queue, Sign, Wanted, sys};
use skipped::{Need, skipped};

/// A process that was killed leaves its file, and a later process may have the same number.
#[test]
fn a_file_of_an_earlier_process_with_this_number_is_in_no_endpoints_way() {
    let Ok(library) = Library::load(None).inspect_err(|problem| skipped(Need::Libfabric, problem)) else { return };
    let wanted = Wanted {
        caps: sys::FI_MSG | sys::FI_RMA,
        endpoint: sys::FI_EP_RDM,
        threading: sys::FI_THREAD_SAFE,
        provider: Some(c"shm".to_owned()),
        ..Wanted::default()
    };
    let list = library.info(&wanted).unwrap();
    let info = list.iter().next().unwrap();
    let open = || {
        let domain = Domain::open(Fabric::open(&library, info).unwrap(), info).unwrap();
        let queue = Queue::open(domain.clone(), 64, Sign::None).unwrap();
        Endpoint::open(domain, info, queue, 2)
    };
    let earlier = open().unwrap();
    let file = file_of(&earlier);
    let left_behind = std::fs::read(&file).unwrap();
    drop(earlier);
    assert!(!file.exists(), "{}", file.display());

    // What the provider itself calls the files of this process, as far as it gets today.
    let (pid, user) = (std::process::id(), own_user());
    let names = (0..4).map(|count| Path::new("/dev/shm").join(format!("{pid}:{user}:{count}")));
    let in_the_way = Left(names.chain([file]).collect());
    for file in &in_the_way.0 {
        std::fs::write(file, &left_behind).unwrap();
    }
    let now = open().unwrap();
    assert!(!in_the_way.0.contains(&file_of(&now)), "{}", file_of(&now).display());
}

fn file_of(endpoint: &Arc<Endpoint>) -> PathBuf {
    let name = String::from_utf8(endpoint.name().unwrap()).unwrap();
    let name = name.trim_end_matches('\0');
    Path::new("/dev/shm").join(name.strip_prefix("fi_shm://").unwrap_or(name))
}

#[allow(unsafe_code)]
fn own_user() -> u32 {
    // SAFETY: it cannot fail and has no arguments.
    unsafe { libc::getuid() }
}

/// Files that go when the test ends.
struct Left(Vec<PathBuf>);

impl Drop for Left {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
}
