//! Queue pairs of a device that are connected with each other, as Soft-RoCE has them, and what the
//! library says where there is none.
#![allow(unsafe_code, clippy::unwrap_used, reason = "a test of bindings")]

mod ends;
mod skipped;

use std::ffi::OsStr;
use std::time::Duration;

use earlybird_ffi::verbs::{
    AddressHandle, Datagrams, Domain, GRH_LEN, Library, LoadError, Local, Peer, PostError, Queue, QueuePair, Remote,
    Request, Settings, Verb, immediate, sys,
};
use ends::{CAPACITY, CELLS, Cells, End, LIMIT, Site, is_ready, next, try_next};
use skipped::{Need, skipped};
use sys::{IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED};

#[test]
fn what_cannot_be_loaded_says_what_to_install() {
    let missing = Library::load(Some(OsStr::new("/nowhere/libibverbs.so.1"))).unwrap_err();
    assert!(matches!(missing, LoadError::Missing { .. }));
    let text = missing.to_string();
    assert!(text.starts_with("/nowhere/libibverbs.so.1 cannot be loaded ("), "{text}");
    assert!(text.ends_with("(Debian and Ubuntu: apt install libibverbs1 ibverbs-providers)"), "{text}");
    let other = Library::load(Some(OsStr::new("libc.so.6"))).unwrap_err();
    assert!(matches!(other, LoadError::TooOld { symbol: "ibv_fork_init", .. }), "{other}");
}

#[test]
fn a_device_is_what_it_says() {
    let Ok(library) = Library::load(None).inspect_err(|problem| skipped(Need::Verbs, problem)) else { return };
    let devices = library.devices().unwrap();
    if devices.is_empty() {
        return skipped(Need::Verbs, "no device here");
    }
    for device in &devices {
        let context = device.open().unwrap();
        let attributes = context.attributes().unwrap();
        let no_port = attributes.phys_port_cnt + 1;
        println!("{device:?}: {:#x}, NUMA node {:?}", device.guid(), device.numa_node());
        assert_eq!(device.guid(), u64::from_be(attributes.node_guid));
        assert!(!device.name().is_empty() && attributes.max_qp > 0);
        // Soft-RoCE's vendor; other devices may be those of mlx5.
        let waits = context.waits();
        assert!(matches!(waits, Ok(None)) || attributes.vendor_id != 0xFF_FFFF, "{waits:?}");
        for port in 1..=attributes.phys_port_cnt {
            let gids = context.gids(port).unwrap();
            println!("port {port}: state {}, {gids:x?}", context.port(port).unwrap().state);
            assert!(gids.windows(2).all(|two| two[0].index < two[1].index));
        }
        assert_eq!(context.port(no_port).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(context.gids(no_port).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        while let Some(event) = context.next_event().unwrap() {
            println!("{event:?}");
        }
        assert!(!is_ready(context.event_descriptor(), Duration::ZERO));
    }
    // The list is there as long as a device of it.
    let name = devices[0].name();
    let kept = devices[0].clone();
    drop(devices);
    assert_eq!(kept.open().unwrap().device().name(), name);
}

#[test]
fn writes_and_reads_move_memory() {
    let Some(site) = Site::find() else { return };
    let (a, b) = End::two(&site);
    (0..4).for_each(|cell| a.cells.set(cell, 100 + cell as u64));
    a.carry_out(Verb::Write(b.cells.remote(8)), a.cells.local(0, 4), 0);
    assert_eq!([8, 9, 10, 11].map(|cell| b.cells.get(cell)), [100, 101, 102, 103]);

    // Inline data is no longer needed when the call returns, and needs no key.
    let mut data = [1u64, 2, 3, 4];
    let local = Local { base: data.as_mut_ptr().cast(), len: 32, key: 0 };
    let verb = Verb::Write(b.cells.remote(12));
    a.post(&[Request { id: 1, verb, local: Some(local), flags: IBV_SEND_INLINE | IBV_SEND_SIGNALED }]).unwrap();
    data.fill(0);
    assert_eq!(next(&a.queue).status, sys::IBV_WC_SUCCESS);
    assert_eq!([12, 13, 14, 15].map(|cell| b.cells.get(cell)), [1, 2, 3, 4]);

    b.cells.set(20, 77);
    a.carry_out(Verb::Read(b.cells.remote(20)), a.cells.local(5, 1), 0);
    assert_eq!(a.cells.get(5), 77);
    // In both directions.
    b.carry_out(Verb::Read(a.cells.remote(3)), b.cells.local(21, 1), 0);
    assert_eq!(b.cells.get(21), 103);
    assert!(try_next(&a.queue).is_none() && try_next(&b.queue).is_none());
}

#[test]
fn atomics_give_the_value_before() {
    let Some(site) = Site::find() else { return };
    let (a, b) = End::two(&site);
    b.cells.set(0, u64::MAX);
    let at = b.cells.remote(0);
    for (verb, before, after) in [
        (Verb::FetchAdd { at, add: 6 }, u64::MAX, 5),
        (Verb::CompareSwap { at, expected: 5, new: 9 }, 5, 9),
        (Verb::CompareSwap { at, expected: 5, new: 1 }, 9, 9),
    ] {
        a.carry_out(verb, a.cells.local(1, 1), 0);
        assert_eq!((a.cells.get(1), b.cells.get(0)), (before, after), "{verb:?}");
    }
}

#[test]
fn one_call_posts_a_chain_and_immediate_data_arrives_with_it() {
    let Some(site) = Site::find() else { return };
    let (a, b) = End::two(&site);
    for round in 1..=50u32 {
        b.receive(60, 1, u64::from(round));
        a.cells.set(0, u64::from(round));
        a.cells.set(1, u64::from(round) << 32);
        let (first, second) = (Verb::Write(b.cells.remote(8)), b.cells.remote(9));
        a.post(&[
            Request { id: 1, verb: first, local: a.cells.local(0, 1), flags: 0 },
            Request {
                id: 2,
                verb: Verb::WriteWithImmediate(second, 0x0102_0300 + round),
                local: a.cells.local(1, 1),
                flags: IBV_SEND_SIGNALED,
            },
            Request { id: 3, verb: Verb::WriteWithImmediate(second, 5), local: None, flags: IBV_SEND_SIGNALED },
        ])
        .unwrap();
        let came = next(&b.queue);
        let expected = (u64::from(round), sys::IBV_WC_RECV_RDMA_WITH_IMM, 8, b.pair.number());
        assert_eq!((came.wr_id, came.opcode, came.byte_len, came.qp_num), expected);
        assert_eq!(immediate(&came), Some(0x0102_0300 + round));
        assert_eq!([8, 9].map(|cell| b.cells.get(cell)), [u64::from(round), u64::from(round) << 32]);
        // The third waits until there is a buffer for it.
        b.receive(60, 1, 0);
        let came = next(&b.queue);
        assert_eq!((immediate(&came), came.byte_len), (Some(5), 0));
        assert_eq!([(); 2].map(|()| next(&a.queue).wr_id), [2, 3]);
    }
}

#[test]
fn messages_use_buffers_in_order() {
    let Some(site) = Site::find() else { return };
    let (a, b) = End::two(&site);
    b.receive(8, 2, 1);
    b.receive(10, 2, 2);
    a.cells.set(0, 42);
    a.carry_out(Verb::Send, a.cells.local(0, 1), 0);
    a.cells.set(0, 43);
    a.carry_out(Verb::Send, a.cells.local(0, 1), IBV_SEND_INLINE);
    for (id, cell, value) in [(1, 8, 42), (2, 10, 43)] {
        let came = next(&b.queue);
        assert_eq!((came.wr_id, came.opcode, came.byte_len), (id, sys::IBV_WC_RECV, 8));
        assert_eq!((immediate(&came), b.cells.get(cell)), (None, value));
    }
}

#[test]
fn a_sleep_ends_with_a_completion() {
    let Some(site) = Site::find() else { return };
    let (a, b) = End::two(&site);
    let send = |flags| a.carry_out(Verb::Send, a.cells.local(0, 1), flags);
    (1..=4).for_each(|id| b.receive(8, 1, id));
    let sleeps = |limit| is_ready(b.channel.descriptor(), limit);
    // Not armed.
    send(0);
    assert_eq!(next(&b.queue).wr_id, 1);
    assert!(!sleeps(Duration::ZERO));
    assert_eq!(b.channel.drain().unwrap(), 0);
    for (solicited_only, flags) in [(false, 0), (true, IBV_SEND_SOLICITED)] {
        b.queue.arm(solicited_only).unwrap();
        assert!(try_next(&b.queue).is_none());
        if solicited_only {
            send(0);
            next(&b.queue);
        }
        assert!(!sleeps(Duration::from_millis(20)));
        send(flags);
        assert!(sleeps(LIMIT));
        assert_eq!(b.channel.drain().unwrap(), 1);
        assert!(!sleeps(Duration::ZERO));
        next(&b.queue);
    }
}

#[test]
fn a_wrong_key_fails_and_flushes_what_follows() {
    let Some(site) = Site::find() else { return };
    let (a, b) = End::two(&site);
    let at = b.cells.remote(0);
    let wrong = Remote { key: at.key ^ 0x5a00, ..at };
    let request = |id, to| Request { id, verb: Verb::Write(to), local: a.cells.local(0, 1), flags: IBV_SEND_SIGNALED };
    a.post(&[request(1, wrong), request(2, at)]).unwrap();
    let failed = next(&a.queue);
    assert_eq!(
        (failed.wr_id, failed.status),
        (1, sys::IBV_WC_REM_ACCESS_ERR),
        "{}",
        a.queue.status_text(failed.status)
    );
    assert_eq!(a.queue.status_text(failed.status), "remote access error");
    let flushed = next(&a.queue);
    assert_eq!((flushed.wr_id, flushed.status), (2, sys::IBV_WC_WR_FLUSH_ERR));
    a.post(&[request(3, at)]).unwrap();
    assert_eq!(next(&a.queue).status, sys::IBV_WC_WR_FLUSH_ERR);
    assert!(!a.queue.status_text(9999).is_empty());
}

#[test]
fn an_ended_connection_flushes() {
    let Some(site) = Site::find() else { return };
    let (a, b) = End::two(&site);
    // No buffer is there, so it is in flight for a while.
    let request = Request { id: 1, verb: Verb::Send, local: a.cells.local(0, 1), flags: 0 };
    a.post(&[request]).unwrap();
    a.pair.fail().unwrap();
    let flushed = next(&a.queue);
    assert_eq!((flushed.wr_id, flushed.status), (1, sys::IBV_WC_WR_FLUSH_ERR));
    drop(b);
}

#[test]
fn forks_are_allowed_unless_it_is_too_late() {
    let Ok(library) = Library::load(None).inspect_err(|problem| skipped(Need::Verbs, problem)) else { return };
    // Another test may have registered memory.
    let too_late = |error: &std::io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let allowed = library.fork_init();
    assert!(allowed.as_ref().map_or_else(too_late, |()| true), "{allowed:?}");
}

/// Everything that was accepted has a completion, and nothing else has.
#[test]
fn a_full_queue_says_how_many_were_posted() {
    let Some(site) = Site::find() else { return };
    let a = End::new(&site);
    // Of no queue pair: there is no acknowledgement.
    a.connect(&site, 0xff_fffe, (0, 0));
    let to = a.cells.remote(1);
    let request = |id| Request { id, verb: Verb::Write(to), local: a.cells.local(0, 1), flags: IBV_SEND_SIGNALED };
    let mut posted = 0;
    let full = loop {
        let chain = [0, 1, 2].map(|index| request(posted + index));
        match a.post(&chain) {
            Ok(()) => posted += 3,
            Err(full) => break full,
        }
        assert!(posted < 200, "it is never full");
    };
    assert!(full.is_full() && full.posted < 3, "{full}");
    posted += full.posted as u64;
    assert!(posted >= u64::from(CAPACITY.sends));
    for id in 0..posted {
        let failed = next(&a.queue);
        let expected = if id == 0 { sys::IBV_WC_RETRY_EXC_ERR } else { sys::IBV_WC_WR_FLUSH_ERR };
        assert_eq!((failed.wr_id, failed.status), (id, expected));
    }
    assert!(try_next(&a.queue).is_none());
}

#[test]
fn what_makes_no_sense_is_not_posted() {
    let Some(site) = Site::find() else { return };
    let (a, b) = End::two(&site);
    let (at, cell, two) = (b.cells.remote(0), a.cells.local(0, 1), a.cells.local(0, 2));
    let long = a.cells.local(0, CELLS as u32).map(|local| Local { len: a.pair.most_inline() + 1, ..local });
    let request = |verb, local, flags| Request { id: 0, verb, local, flags };
    let add = Verb::FetchAdd { at, add: 1 };
    let fine = request(Verb::Write(at), cell, 0);
    for wrong in [
        vec![fine; 5],
        vec![fine, request(Verb::Write(at), long, IBV_SEND_INLINE)],
        vec![request(Verb::Read(at), cell, IBV_SEND_INLINE)],
        vec![request(add, cell, IBV_SEND_INLINE)],
        vec![request(add, two, 0)],
        vec![request(Verb::CompareSwap { at, expected: 0, new: 0 }, None, 0)],
    ] {
        assert_eq!(a.post(&wrong), Err(PostError { posted: 0, code: libc::EINVAL }), "{wrong:?}");
    }
    assert_eq!(a.post(&[]), Ok(()));

    let no = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    let (route, settings) = (&site.route, site.settings());
    let peer = Peer { number: b.pair.number(), packet_sequence: 0 };
    no(a.pair.connect(route, Peer { packet_sequence: 1 << 24, ..peer }, &settings));
    no(a.pair.connect(route, Peer { number: 1 << 24, ..peer }, &settings));
    no(a.pair.connect(route, peer, &Settings { mtu: 0, ..settings }));
    no(a.pair.ready_to_send(0, &Settings { retry_count: 8, ..settings }));

    // Objects of another context.
    let other = site.domain.context().device().open().unwrap();
    let queue = Queue::open(other.clone(), 1, None).unwrap();
    let domain = Domain::open(other).unwrap();
    no(QueuePair::open_reliable(site.domain.clone(), queue.clone(), &a.receives, CAPACITY).map(drop));
    no(QueuePair::open_reliable(domain.clone(), queue, &a.receives, CAPACITY).map(drop));
    no(Queue::open(domain.context().clone(), 1, Some(a.channel.clone())).map(drop));
}

#[test]
fn datagrams_find_their_way() {
    const KEY: u32 = 0x1234_5678;
    let Some(site) = Site::find() else { return };
    let context = site.domain.context();
    let cells = Cells::new(&site.domain);
    let end = || {
        let [send, receive] = [(); 2].map(|()| Queue::open(context.clone(), 16, None).unwrap());
        let datagrams = Datagrams::open(site.domain.clone(), (send.clone(), 4), (receive.clone(), 4)).unwrap();
        datagrams.ready(site.route.port, KEY, 3).unwrap();
        (datagrams, send, receive)
    };
    let ((a, sent, _), (b, _, came)) = (end(), end());
    let handle = AddressHandle::open(site.domain.clone(), &site.route).unwrap();
    let header = GRH_LEN / 8;
    // SAFETY: leaked and registered cells, each used by one request until it is complete.
    unsafe { b.post_receive(cells.local(10, header as u32 + 2).unwrap(), 5).unwrap() };
    // SAFETY: as above.
    let send = |key, value| unsafe {
        cells.set(0, value);
        a.send(&handle, (b.number(), key), cells.local(0, 1).unwrap(), 6, IBV_SEND_SIGNALED).unwrap();
        let done = next(&sent);
        assert_eq!((done.wr_id, done.status), (6, sys::IBV_WC_SUCCESS));
    };
    send(KEY + 1, 1);
    send(KEY, 2);
    let arrived = next(&came);
    assert_eq!((arrived.wr_id, arrived.status, arrived.opcode), (5, sys::IBV_WC_SUCCESS, sys::IBV_WC_RECV));
    assert_eq!((arrived.byte_len as usize, arrived.src_qp), (GRH_LEN + 8, a.number()));
    assert_eq!(cells.get(10 + header), 2, "that with another key is lost");
    assert!(try_next(&came).is_none());
}
