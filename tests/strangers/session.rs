//! What libfabric sends to a peer, as recorded here: an endpoint connects to another one through a relay.

use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use earlybird_ffi::ofi::{Code, Domain, Endpoint, Fabric, NO_COMPLETION, Queue, Sign, Wanted, sys};

/// The bytes of one session, from the process that connects.
pub(crate) fn recorded() -> &'static [u8] {
    static SESSION: OnceLock<Vec<u8>> = OnceLock::new();
    SESSION.get_or_init(record)
}

/// Messages of the session.
const MESSAGES: usize = 20;

fn record() -> Vec<u8> {
    let library = earlybird::fabric::ofi::library().expect("the caller has looked for libfabric");
    let wanted = Wanted {
        caps: sys::FI_MSG | sys::FI_RMA,
        mode: sys::FI_CONTEXT | sys::FI_CONTEXT2,
        endpoint: sys::FI_EP_RDM,
        threading: sys::FI_THREAD_SAFE,
        provider: Some(CString::new("tcp;ofi_rxm").unwrap()),
        ..Wanted::default()
    };
    let list = library.info(&wanted).expect("tcp;ofi_rxm is wherever libfabric is");
    let here = |info: &earlybird_ffi::ofi::Info<'_>| info.source().is_some_and(|source| source.is_loopback());
    let info = list.iter().find(here).expect("a loopback interface");
    let open = || {
        let domain = Domain::open(Fabric::open(&library, info).unwrap(), info).unwrap();
        let queue = Queue::open(domain.clone(), 64, Sign::None).unwrap();
        Endpoint::open(domain, info, queue, 2).unwrap()
    };
    let (from, to) = (open(), open());
    let at = |name: &[u8]| SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([name[2], name[3]])));
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut name = to.name().unwrap();
    let (session, target) = (Arc::new(Mutex::new(Vec::new())), at(&name));
    name[2..4].copy_from_slice(&relay.local_addr().unwrap().port().to_be_bytes());
    let recording = session.clone();
    std::thread::spawn(move || {
        let (one, _) = relay.accept().unwrap();
        let other = TcpStream::connect(target).unwrap();
        let (back_from, back_to) = (other.try_clone().unwrap(), one.try_clone().unwrap());
        std::thread::spawn(move || pass(back_from, back_to, |_| ()));
        pass(one, other, |bytes| recording.lock().unwrap().extend_from_slice(bytes));
    });
    let peer = from.insert(&name).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let look = || {
        for endpoint in [&from, &to] {
            let _ = endpoint.queue().read(&mut [NO_COMPLETION; 4]);
        }
        assert!(Instant::now() < until, "the endpoints never connected");
    };
    for index in 0..MESSAGES {
        let message = [index as u8; 48];
        while let Err(code) = from.inject(&message, peer) {
            assert_eq!(code, Code::AGAIN);
            look();
        }
    }
    let enough = MESSAGES * 48;
    while session.lock().unwrap().len() < enough {
        look();
    }
    session.lock().unwrap().clone()
}

/// Passes on what comes, and shows it.
fn pass(mut from: TcpStream, mut to: TcpStream, show: impl Fn(&[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        show(&buffer[..len]);
        if to.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}
