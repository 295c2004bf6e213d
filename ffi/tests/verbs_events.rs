//! What a device reports by itself.
#![allow(unsafe_code, clippy::unwrap_used, reason = "a test of bindings")]

mod ends;
mod skipped;

use earlybird_ffi::verbs::{Request, Verb, sys};
use ends::{End, LIMIT, Site, is_ready, try_next};
use sys::IBV_SEND_SIGNALED;

/// More completions than the queue has entries: some are lost, and the device says so.
#[test]
fn an_overrun_of_a_completion_queue_is_an_event() {
    const WRITES: u64 = 12;
    let Some(site) = Site::find() else { return };
    let context = site.domain.context();
    let (a, b) = (End::with_completions(&site, 1), End::new(&site));
    a.connect(&site, b.pair.number(), (7, 9));
    b.connect(&site, a.pair.number(), (9, 7));
    while let Some(event) = context.next_event().unwrap() {
        println!("before: {event:?}");
    }
    let write =
        |id| Request { id, verb: Verb::Write(b.cells.remote(0)), local: a.cells.local(0, 1), flags: IBV_SEND_SIGNALED };
    (0..WRITES).for_each(|id| a.post(&[write(id)]).unwrap());
    assert!(is_ready(context.event_descriptor(), LIMIT), "no event came");
    let event = context.next_event().unwrap().unwrap();
    println!("{event:?}");
    assert_eq!((event.kind, event.queue_pair, event.port), (sys::IBV_EVENT_CQ_ERR, None, None));
    let found = std::iter::from_fn(|| try_next(&a.queue)).count() as u64;
    assert!(found < WRITES, "the queue had an entry for each of them");
}
