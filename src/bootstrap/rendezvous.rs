//! The meeting of the ranks of one machine. Rank 0 listens on an abstract socket, waits for all ranks, and passes them
//! the descriptors of what they share, which the caller has made. Abstract sockets have no file, so nothing is left after
//! the meeting.

use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::attendance::{Attendance, MeetingTerms};
use super::peer;
use super::store::read_until;
use super::wire::{HELLO, Heading, Hello, MOST_RANKS, NONCE, VERDICT, decode_pids, encode_pids};
use crate::error::{Error, Result, text_of};
use crate::fault::Fault;
use crate::interrupt;
use crate::random::draw;
use crate::seal::{SEAL, Secret};

const PAUSE: Duration = Duration::from_millis(2);
/// How long rank 0 waits for a greeting, because a stranger may connect and send nothing.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// How much later than the deadline rank 0 may answer.
const LINGER: Duration = Duration::from_secs(1);

/// The number of descriptors that rank 0 hands to the others.
const DESCRIPTORS: usize = 2;

/// The result of the meeting for a rank.
#[derive(Debug)]
pub(crate) struct Joined {
    /// What rank 0 has made.
    pub(crate) shared: [OwnedFd; DESCRIPTORS],
    /// The process of each rank, by rank; `None` in a world of one.
    pub(crate) processes: Vec<Option<u32>>,
}

/// Meets the other ranks. `make` makes the memory of the world, on rank 0 alone. While a rank waits it calls `goes_on`,
/// whose error ends the wait.
///
/// # Errors
/// On every rank that came: the ranks that did not come, came twice, or have another world size. Also the errors of
/// `make` and `goes_on`.
pub(crate) fn meet(
    name: &str,
    (rank, ranks): (u32, u32),
    secret: &Secret,
    (terms, until): (MeetingTerms, Instant),
    goes_on: &dyn Fn() -> Result<()>,
    make: impl FnOnce() -> Result<[OwnedFd; DESCRIPTORS]>,
) -> Result<Joined> {
    if ranks > MOST_RANKS {
        return Err(Error::join(rank, format!("{ranks} ranks on one machine; the most is {MOST_RANKS}")));
    }
    if ranks == 1 {
        return Ok(Joined { shared: make()?, processes: vec![None] });
    }
    let address = SocketAddr::from_abstract_name(format!("earlybird-{name}"))
        .map_err(|cause| Error::os(rank, "name the meeting", cause))?;
    match rank {
        0 => host(&address, ranks, secret, (terms, until), goes_on, make),
        _ => visit(&address, (rank, ranks), secret, (terms, until), goes_on),
    }
}

fn host(
    address: &SocketAddr,
    ranks: u32,
    secret: &Secret,
    (terms, until): (MeetingTerms, Instant),
    goes_on: &dyn Fn() -> Result<()>,
    make: impl FnOnce() -> Result<[OwnedFd; DESCRIPTORS]>,
) -> Result<Joined> {
    let os = |cause| Error::os(0, "open the meeting", cause);
    let listener = UnixListener::bind_addr(address).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::AddrInUse => Error::join(0, peer::holder_of(address)),
        _ => os(cause),
    })?;
    listener.set_nonblocking(true).map_err(os)?;
    let made = make();
    let mut guests: Vec<Guest> = Vec::new();
    let mut attendance = Attendance::new(ranks, until, terms, peer::ONE_NETWORK);
    if let Err(error) = &made {
        // The others learn of it.
        attendance.fail(error.to_string());
    }
    let verdict = loop {
        goes_on()?;
        let guest = listener.accept();
        if let Some(verdict) = attendance.verdict(guest.is_err()) {
            break verdict;
        }
        let stream = match guest {
            Ok((stream, _)) => stream,
            Err(cause)
                if matches!(cause.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::MFILE | Errno::NFILE)) =>
            {
                return Err(Error::join(
                    0,
                    format!(
                        "a meeting of {ranks} ranks takes {} descriptors on rank 0, and fewer are left ({cause}); \
                     raise ulimit -n",
                        2 * ranks
                    ),
                ));
            }
            Err(_) => {
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let peer = match peer::of_this_user(&stream) {
            Ok(peer) => peer,
            Err(why) => {
                attendance.refuse(why);
                continue;
            }
        };
        let drawn = draw(0)?;
        let greeted = greet(&stream, &drawn);
        if let Some(interrupted) = greeted.as_ref().err().and_then(|cause| interrupt::of(0, "join", cause)) {
            attendance.interrupt(interrupted);
            continue;
        }
        let Ok(Some((hello, seal))) = greeted else {
            // If two processes do not see each other, the guest has found that out first, and sends nothing.
            let unseen = peer::process(peer).err().map(|problem| format!("a process {problem}"));
            unseen.into_iter().for_each(|why| attendance.refuse(why));
            continue;
        };
        let Hello { rank, ranks: told, .. } = hello;
        let said = hello.encode();
        if !secret.is_sealed(&[b"greeting", &drawn, &said], &seal) && !Fault::GreetStrangers.is_chosen() {
            attendance.refuse("a process came that does not know this job's secret, EARLYBIRD_SECRET".to_owned());
            let _ = refuse(&stream, OTHER_SECRET);
            continue;
        }
        let pid = peer::process(peer).unwrap_or_else(|problem| {
            attendance.fail(format!("rank {rank} {problem}"));
            0
        });
        if pid != 0 && pid != hello.process && !Fault::GreetStrangers.is_chosen() {
            attendance.refuse(format!("process {pid} came with the greeting of process {}", hello.process));
            continue;
        }
        attendance.enter(rank, told);
        guests.push(Guest { rank, process: pid, drawn, stream });
    };
    // A guest that has its answer may come to the next meeting of the job at once. It must not find a listener that is
    // about to close.
    drop(listener);
    let mut pids = vec![0; ranks as usize];
    pids[0] = std::process::id();
    let known = guests.iter().filter(|guest| guest.rank < ranks);
    known.for_each(|guest| pids[guest.rank as usize] = guest.process);
    for guest in &mut guests {
        // The other ranks find out by themselves that a guest has ended by now.
        let _ = match (&verdict, &made) {
            (Ok(()), Ok(shared)) => guest.hand_over(&pids, shared, secret),
            (Err(problem), _) => refuse(&guest.stream, problem),
            (Ok(()), Err(error)) => refuse(&guest.stream, &error.to_string()),
        };
    }
    let shared = made?;
    verdict.map_err(|problem| attendance.error(|| Error::join(0, problem)))?;
    Ok(Joined { shared, processes: pids.into_iter().map(Some).collect() })
}

/// The error of a rank that meets a process with another secret.
const OTHER_SECRET: &str =
    "rank 0 there does not know this job's secret: EARLYBIRD_SECRET differs, or it is another job";

/// Tells a guest its nonce, and reads its greeting and the seal. `None` from a stranger.
///
/// # Errors
/// As [`read_until`].
fn greet(mut stream: &UnixStream, drawn: &[u8; NONCE]) -> std::io::Result<Option<(Hello, [u8; SEAL])>> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(GREETING_TIMEOUT))?;
    stream.write_all(drawn)?;
    let (mut hello, mut seal) = ([0; HELLO], [0; SEAL]);
    let soon = Instant::now() + GREETING_TIMEOUT;
    read_until(stream, &mut hello, soon)?;
    read_until(stream, &mut seal, soon)?;
    Ok(Hello::decode(&hello).map(|hello| (hello, seal)))
}

fn refuse(mut stream: &UnixStream, problem: &str) -> std::io::Result<()> {
    let text = &problem.as_bytes()[..problem.len().min(VERDICT)];
    stream.write_all(&Heading { refused: true, len: text.len() }.encode())?;
    stream.write_all(text)?;
    // There is no seal, because a stranger could test guessed secrets against one.
    stream.write_all(&[0; SEAL])
}

/// A process that has greeted rank 0.
struct Guest {
    rank: u32,
    process: u32,
    /// The nonce that was drawn for it.
    drawn: [u8; NONCE],
    stream: UnixStream,
}

impl Guest {
    fn hand_over(&mut self, pids: &[u32], shared: &[OwnedFd; DESCRIPTORS], secret: &Secret) -> std::io::Result<()> {
        let body = encode_pids(pids);
        let heading = Heading { refused: false, len: body.len() }.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = shared.each_ref().map(AsFd::as_fd);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.stream, &[IoSlice::new(&heading)], &mut ancillary, SendFlags::NOSIGNAL)?;
        self.stream.write_all(&body)?;
        let seal = secret.seal(&[b"memory", &self.process.to_le_bytes(), &self.drawn, &heading, &body]);
        self.stream.write_all(&seal)
    }
}

fn visit(
    address: &SocketAddr,
    (rank, ranks): (u32, u32),
    secret: &Secret,
    (terms, until): (MeetingTerms, Instant),
    goes_on: &dyn Fn() -> Result<()>,
) -> Result<Joined> {
    let os = |cause| Error::os(rank, "visit the meeting", cause);
    let stream = loop {
        match peer::connect_to(address) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < until => {
                goes_on()?;
                interrupt::check(rank, "join")?;
                std::thread::sleep(PAUSE);
            }
            Err(_) => {
                return Err(Error::join(rank, terms.rank_0_missing(None, peer::ONE_NETWORK)));
            }
        }
    };
    let host = peer::of_this_user(&stream).map_err(|why| Error::join(rank, why))?;
    // Rank 0 checks the same about this process, so all process ids that it sends are of one namespace.
    peer::process(host).map_err(|problem| Error::join(rank, format!("rank 0 {problem}")))?;
    let process = std::process::id();
    let hello = Hello { rank, ranks, process }.encode();
    let lost = || Error::join(rank, "rank 0 left the meeting before it was over; its own error says why");
    // Rank 0 answers when the meeting is over, at most a little after the deadline.
    let latest = until.max(Instant::now()) + LINGER + GREETING_TIMEOUT;
    let wait_for_word = || {
        while !comes(&stream) {
            if Instant::now() >= latest {
                let slow = "rank 0 is there, and did not answer in time: it is stopped, or very busy";
                return Err(Error::join(rank, slow));
            }
            goes_on()?;
            interrupt::check(rank, "join")?;
        }
        Ok(())
    };
    wait_for_word()?;
    let mut drawn = [0; NONCE];
    let ended = |cause: std::io::Error| interrupt::of(rank, "join", &cause).unwrap_or_else(lost);
    read_until(&stream, &mut drawn, Instant::now() + GREETING_TIMEOUT).map_err(ended)?;
    let hello = [&hello[..], &secret.seal(&[b"greeting", &drawn, &hello])].concat();
    (&stream).write_all(&hello).map_err(|_| lost())?;
    wait_for_word()?;
    stream.set_read_timeout(Some(GREETING_TIMEOUT)).map_err(os)?;
    let (heading, shared) = receive_heading(&stream).ok_or_else(lost)?;
    let Heading { refused, len } = Heading::decode(heading).ok_or_else(lost)?;
    let (mut body, mut seal) = (vec![0; len], [0; SEAL]);
    let soon = Instant::now() + GREETING_TIMEOUT;
    read_until(&stream, &mut body, soon).map_err(ended)?;
    read_until(&stream, &mut seal, soon).map_err(ended)?;
    if refused {
        return Err(Error::join(rank, text_of(&body)));
    }
    if !secret.is_sealed(&[b"memory", &process.to_le_bytes(), &drawn, &heading, &body], &seal) {
        return Err(Error::join(rank, OTHER_SECRET));
    }
    let processes = decode_pids(&body, ranks).ok_or_else(lost)?;
    let without = "the memory of the world came without a descriptor: this process has none left; raise ulimit -n";
    Ok(Joined { shared: shared.ok_or_else(|| Error::join(rank, without))?, processes })
}

/// Returns whether data or the end arrives within a moment.
fn comes(stream: &UnixStream) -> bool {
    let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&moment)).is_ok_and(|ready| ready > 0)
}

fn receive_heading(stream: &UnixStream) -> Option<([u8; 8], Option<[OwnedFd; DESCRIPTORS]>)> {
    let mut heading = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut heading)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = retry_on_intr(|| recvmsg(stream, &mut parts, &mut ancillary, flags)).ok()?;
    let shared = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => Some([descriptors.next()?, descriptors.next()?]),
        _ => None,
    });
    (received.bytes == heading.len()).then_some((heading, shared))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::interrupt::asking::interrupted;

    /// Rank 0 reads the greeting of a guest that says nothing, and is asked once.
    #[test]
    fn rank_0_is_interrupted_while_a_guest_is_silent() {
        static IS_THERE: AtomicBool = AtomicBool::new(false);
        let name = format!("earlybird-test-silent-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let deadline = Duration::from_secs(60);
        let (terms, until) = (MeetingTerms { deadline, together: "" }, Instant::now() + deadline);
        let nothing = || std::fs::File::open("/dev/null").unwrap().into();
        let make = || Ok([nothing(), nothing()]);
        std::thread::scope(|scope| {
            let guest = scope.spawn(|| {
                let mut stream = loop {
                    match UnixStream::connect_addr(&address) {
                        Ok(stream) => break stream,
                        Err(_) => std::thread::sleep(PAUSE),
                    }
                };
                stream.read_exact(&mut [0; NONCE]).unwrap();
                IS_THERE.store(true, Ordering::Relaxed);
                stream
            });
            let secret = Secret::new(None, "job");
            let host = || host(&address, 2, &secret, (terms, until), &|| Ok(()), make);
            interrupted(|| IS_THERE.swap(false, Ordering::Relaxed), host);
            guest.join().unwrap();
        });
    }
}
