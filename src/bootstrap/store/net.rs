//! A store at a socket: rank 0 listens, on a port or an abstract name, until all ranks have come.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::Meeting;
use super::frame::{self, GREETING, HEADING, Hello, MOST_HELLO, NONCE, Parsed};
use super::socket::{GREETING_TIMEOUT, PAUSE, Stream, abstract_name, connect, listen};
use crate::bootstrap::attendance::Attendance;
use crate::bootstrap::peer;
use crate::bootstrap::store_address::StoreAddress;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::random::draw;
use crate::strangers::Visitors;

/// How much later than the deadline rank 0 may answer.
const LINGER: Duration = Duration::from_secs(2);

/// The maximum number of connections that have not introduced themselves, or twice the number of ranks if that is more.
/// Beyond that the oldest is closed. They take no more than a quarter of this process's descriptors, of which its
/// program needs some, too.
const MAX_UNIDENTIFIED: usize = 256;

fn max_unidentified(ranks: u32) -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    MAX_UNIDENTIFIED.min(usize::try_from(descriptors / 4).unwrap_or(usize::MAX)).max(2 * ranks as usize)
}

/// Returns what rank 0 asks besides the question whether the others were started, and what they ask about rank 0.
fn also_asked(store: &StoreAddress) -> (&'static str, &'static str) {
    match store {
        StoreAddress::Unix(_) => (peer::ONE_NETWORK, peer::ONE_NETWORK),
        _ => ("", ", and is its host reachable from here"),
    }
}

/// A connection that has not introduced itself.
struct Guest {
    stream: Stream,
    greeted: [u8; NONCE],
    said: Vec<u8>,
    since: Instant,
}

impl Guest {
    fn greet(mut stream: Stream, greeted: [u8; NONCE]) -> io::Result<Self> {
        stream.do_not_block()?;
        stream.write_all(&frame::greeting(&greeted))?;
        Ok(Guest { stream, greeted, said: Vec::new(), since: Instant::now() })
    }

    /// Reads what has arrived; `None` if the connection is closed or too slow.
    fn listen(&mut self, meeting: &Meeting<'_>) -> Option<Parsed> {
        let mut more = [0; 4096];
        while self.said.len() < MOST_HELLO {
            match self.stream.read(&mut more) {
                Ok(0) => return None,
                Ok(read) => self.said.extend_from_slice(&more[..read]),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        let parsed = Hello::decode(&self.said, &self.greeted, meeting.secret);
        (parsed != Parsed::Incomplete || self.since.elapsed() < GREETING_TIMEOUT).then_some(parsed)
    }

    fn tell(&mut self, verdict: &[u8]) {
        // The other ranks find out by themselves that a guest has ended by now.
        let told = self.stream.wait_at_most(GREETING_TIMEOUT);
        let _ = told.and_then(|()| self.stream.write_all(verdict));
    }
}

pub(super) fn host(meeting: &Meeting<'_>) -> Result<Vec<Vec<u8>>> {
    let listener = listen(meeting.store).map_err(|cause| match cause.kind() {
        io::ErrorKind::AddrInUse => {
            let name = if let StoreAddress::Unix(name) = meeting.store { abstract_name(name).ok() } else { None };
            meeting.error(name.map_or_else(
                || {
                    "another process listens there already: another job, another program, or a second process that was told \
                     to be rank 0; choose another EARLYBIRD_STORE"
                        .to_owned()
                },
                |name| peer::holder_of(&name),
            ))
        }
        io::ErrorKind::PermissionDenied => {
            meeting.error(format!("rank 0 may not listen there ({cause}); take a port above 1023"))
        }
        _ => meeting.error(format!("rank 0 cannot listen there ({cause}); it must be an address of its own host")),
    })?;
    listener.do_not_block().map_err(|cause| Error::os(0, "open the meeting", cause))?;
    let mut attendance = Attendance::new(meeting.ranks, meeting.until, meeting.terms, also_asked(meeting.store).0);
    let mut given: Vec<Vec<u8>> = vec![Vec::new(); meeting.ranks as usize];
    given[0] = meeting.mine.to_vec();
    let max_unidentified = max_unidentified(meeting.ranks);
    let (mut unidentified, mut admitted, mut strangers) = (Vec::<Guest>::new(), Vec::new(), Visitors::default());
    let verdict = loop {
        let mut quiet = true;
        // Bounded, so that many connections do not delay those that are accepted already.
        for _ in 0..max_unidentified {
            let stream = match listener.accept() {
                Ok(stream) => stream,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionAborted => continue,
                // The oldest one that has sent nothing is the least likely to be a rank.
                Err(cause) if are_used_up(&cause) && !unidentified.is_empty() => {
                    strangers.came(&unidentified.remove(0).stream.origin());
                    continue;
                }
                Err(cause) => {
                    return Err(
                        meeting.error(format!("rank 0 cannot accept connections: {cause} (is ulimit -n too low?)"))
                    );
                }
            };
            quiet = false;
            if let Err(why) = stream.check_user() {
                attendance.refuse(why);
                continue;
            }
            unidentified.extend(Guest::greet(stream, draw(0)?));
            if unidentified.len() > max_unidentified {
                strangers.came(&unidentified.remove(0).stream.origin());
            }
        }
        for mut guest in std::mem::take(&mut unidentified) {
            match guest.listen(meeting) {
                Some(Parsed::Incomplete) => unidentified.push(guest),
                Some(Parsed::Hello(Hello { rank, ranks, nonce, data })) => {
                    if attendance.enter(rank, ranks) {
                        given[rank as usize] = data;
                    }
                    admitted.push((guest, nonce));
                }
                Some(Parsed::Stranger) => {
                    strangers.came(&guest.stream.origin());
                    guest.tell(&frame::turned_away());
                }
                None => strangers.came(&guest.stream.origin()),
            }
        }
        if let Some(verdict) = attendance.verdict(quiet) {
            break verdict;
        }
        let mut polled = vec![PollFd::new(&listener, PollFlags::IN)];
        polled.extend(unidentified.iter().map(|guest| PollFd::new(&guest.stream, PollFlags::IN)));
        // An interrupted poll needs no handling.
        let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: i64::from(PAUSE.subsec_nanos()) }));
    };
    // A guest that has its answer may come to the next meeting at this place at once. It must not find a listener that
    // is about to close.
    drop(listener);
    let verdict = verdict.map(|()| frame::encode_world(&given)).map_err(|problem| format!("{problem}{strangers}"));
    for (guest, nonce) in &mut admitted {
        guest.tell(&frame::verdict(&verdict, nonce, meeting.secret));
    }
    verdict.map(|_| given).map_err(|problem| attendance.error(|| meeting.error(problem)))
}

/// Returns whether this process or the machine has no descriptor left.
fn are_used_up(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::MFILE | Errno::NFILE))
}

/// Returns the sockets at which rank 0 may listen.
fn places(store: &StoreAddress) -> Vec<StoreAddress> {
    match store {
        StoreAddress::Among { hosts, port } => {
            hosts.iter().map(|host| StoreAddress::Tcp { host: host.clone(), port: *port }).collect()
        }
        one => vec![one.clone()],
    }
}

/// Why a conversation has not led to a world.
enum Refusal {
    /// Another program answered, or rank 0 of another job: this job's rank 0 may be elsewhere.
    Stranger(Error),
    Final(Error),
}

pub(super) fn visit(meeting: &Meeting<'_>) -> Result<Vec<Vec<u8>>> {
    let places = places(meeting.store);
    let mut tried = places.iter().cycle().zip(1..);
    loop {
        let (place, number) = tried.next().ok_or_else(|| meeting.error("no host is named there"))?;
        let late = Instant::now() >= meeting.until;
        match connect(place, meeting.until).map(|stream| converse(meeting, stream, places.len() > 1)) {
            Ok(Ok(world)) => return Ok(world),
            Ok(Err(Refusal::Final(error))) => return Err(error),
            Ok(Err(Refusal::Stranger(error))) if late || places.len() == 1 => return Err(error),
            Err(cause) => {
                if let Some(interrupted) = interrupt::of(meeting.rank, "join", &cause) {
                    return Err(interrupted);
                }
                if late {
                    let (_, also) = also_asked(meeting.store);
                    return Err(meeting.error(meeting.terms.rank_0_missing(Some(&cause), also)));
                }
            }
            Ok(Err(Refusal::Stranger(_))) => {}
        }
        interrupt::check(meeting.rank, "join")?;
        // Wait before the first one is tried again.
        if number % places.len() == 0 {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Introduces this rank to the rank 0 at the other end, and gets the world. If rank 0 may be `elsewhere`, this rank
/// does not wait long for a greeting.
fn converse(meeting: &Meeting<'_>, mut stream: Stream, elsewhere: bool) -> std::result::Result<Vec<Vec<u8>>, Refusal> {
    let Meeting { rank, ranks, mine, secret, until, .. } = *meeting;
    let failed = |why: &str| Refusal::Final(meeting.error(why));
    let stranger = |why: &str| Refusal::Stranger(meeting.error(why));
    stream.check_user().map_err(|why| failed(&why))?;
    let other =
        "what answers there is no rank 0 of an earlybird job of this version; is the port used by another program?";
    let mut greeting = [0; GREETING];
    let soon = Instant::now() + GREETING_TIMEOUT;
    let latest = if elsewhere { soon.min(until + LINGER) } else { until + LINGER };
    let ended =
        |cause: &io::Error, otherwise: Refusal| interrupt::of(rank, "join", cause).map_or(otherwise, Refusal::Final);
    stream.read_until(&mut greeting, latest).map_err(|cause| ended(&cause, stranger(other)))?;
    let greeted = frame::greeted(&greeting).ok_or_else(|| stranger(other))?;
    let nonce = draw(rank).map_err(Refusal::Final)?;
    let hello = Hello { rank, ranks, nonce, data: mine.to_vec() }.encode(&greeted, secret);
    let lost = |cause: io::Error| {
        let why = "rank 0 left the meeting before it was over; its own error says why";
        // That of another job leaves when its own ranks have come.
        ended(&cause, if elsewhere { stranger(why) } else { failed(why) })
    };
    stream.write_all(&hello).map_err(lost)?;
    let mut heading = [0; HEADING];
    stream.read_until(&mut heading, until + LINGER).map_err(lost)?;
    let len = frame::verdict_len(&heading, ranks).ok_or_else(|| stranger(other))?;
    let mut rest = vec![0; len];
    stream.read_until(&mut rest, until + LINGER).map_err(lost)?;
    let unknown = "rank 0 there does not know this job's secret: EARLYBIRD_SECRET differs, or it is another job";
    let verdict = frame::judged(&heading, &rest, &nonce, secret).ok_or_else(|| stranger(unknown))?;
    let world = verdict.map_err(|problem| failed(&problem))?;
    frame::decode_world(&world, ranks).ok_or_else(|| failed("rank 0 told of another world"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::process::{Uid, geteuid};
    use rustix::thread::set_thread_res_uid;

    use super::super::socket::abstract_name;
    use super::*;
    use crate::interrupt::asking::interrupted;
    use crate::seal::Secret;
    use crate::skipped::{Need, skipped};

    /// Makes the calling thread, and no other, act as another user.
    fn become_user(user: Uid) -> rustix::io::Result<()> {
        set_thread_res_uid(user, user, user)
    }

    /// This user, and one that a thread can become; reports a skipped test where none can.
    fn users() -> Option<(u32, Uid)> {
        let other = Uid::from_raw(65534);
        let became = std::thread::spawn(move || become_user(other)).join().unwrap();
        let why = |cause: &rustix::io::Errno| format!("no thread can act as another user here: {cause}");
        became.inspect_err(|cause| skipped(Need::Root, why(cause))).ok()?;
        Some((geteuid().as_raw(), other))
    }

    /// A process that knows the name from /proc/net/unix, and with it the seal, and sends what rank
    /// 1 would. Returns the answer.
    fn intrude(address: &UnixAddr, secret: &Secret, until: Instant) -> io::Result<[u8; HEADING]> {
        let mut stream = loop {
            match UnixStream::connect_addr(address) {
                Ok(stream) => break stream,
                Err(cause) if Instant::now() > until => return Err(cause),
                Err(_) => std::thread::sleep(PAUSE),
            }
        };
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        let mut greeting = [0; GREETING];
        stream.read_exact(&mut greeting)?;
        let greeted = frame::greeted(&greeting).ok_or(io::ErrorKind::InvalidData)?;
        let hello = Hello { rank: 1, ranks: 2, nonce: [1; NONCE], data: b"an intruder".to_vec() };
        stream.write_all(&hello.encode(&greeted, secret))?;
        let mut heading = [0; HEADING];
        stream.read_exact(&mut heading)?;
        Ok(heading)
    }

    #[test]
    fn another_user_stays_outside_whatever_it_knows() {
        let Some((own, other)) = users() else { return };
        let name = format!("test-intruder-{}", std::process::id());
        let (store, address) = (StoreAddress::Unix(name.clone()), abstract_name(&name).unwrap());
        let secret = Secret::new(None, &name);
        let meeting = |rank| Meeting::sample(&store, &secret, rank);
        std::thread::scope(|scope| {
            let hosting = scope.spawn(|| host(&meeting(0)));
            let intruding = scope.spawn(|| {
                become_user(other).unwrap();
                let visitor = Meeting { mine: b"a visitor", ..meeting(1) };
                (intrude(&address, &secret, visitor.until), visit(&visitor))
            });
            let (answered, visited) = intruding.join().unwrap();
            assert!(answered.is_err(), "the intruder was answered: {answered:?}");
            let refused = visited.unwrap_err().to_string();
            let named = format!("belongs to user {own}, where user {} was expected", other.as_raw());
            assert!(refused.contains(&named), "{refused}");

            assert_eq!(visit(&meeting(1)).unwrap(), [b"zero".to_vec(), b"one".to_vec()]);
            assert_eq!(hosting.join().unwrap().unwrap(), [b"zero".to_vec(), b"one".to_vec()]);
        });
    }

    #[test]
    fn waits_of_both_ends_end_when_they_are_to() {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (store, secret) = (StoreAddress::Tcp { host: "127.0.0.1".to_owned(), port }, Secret::new(None, "job"));
        // What listens there accepts no connection, and then greets, and says no more.
        interrupted(|| true, || visit(&Meeting::sample(&store, &secret, 1)));
        std::thread::scope(|scope| {
            let greeting = scope.spawn(|| {
                let _before = listener.accept().unwrap();
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&frame::greeting(&[3; NONCE])).unwrap();
                let mut hello = [0; 1];
                stream.read_exact(&mut hello).unwrap();
                ANSWERED.store(true, Ordering::Relaxed);
                stream
            });
            interrupted(|| ANSWERED.load(Ordering::Relaxed), || visit(&Meeting::sample(&store, &secret, 1)));
            drop(greeting.join().unwrap());
        });
        drop(listener);
        interrupted(|| true, || host(&Meeting::sample(&store, &secret, 0)));
        static ANSWERED: AtomicBool = AtomicBool::new(false);
    }

    /// Another user was first to listen at the name.
    #[test]
    fn another_user_that_holds_the_meeting_is_not_believed() {
        let Some((own, other)) = users() else { return };
        let name = format!("test-squatter-{}", std::process::id());
        let (store, address) = (StoreAddress::Unix(name.clone()), abstract_name(&name).unwrap());
        let listening = std::thread::spawn(move || {
            become_user(other).unwrap();
            UnixListener::bind_addr(&address).unwrap()
        });
        let _listener = listening.join().unwrap();
        let secret = Secret::new(None, &name);
        for refused in [visit(&Meeting::sample(&store, &secret, 1)), host(&Meeting::sample(&store, &secret, 0))] {
            let refused = refused.unwrap_err().to_string();
            let named = format!("belongs to user {}, where user {own} was expected", other.as_raw());
            assert!(refused.contains(&named), "{refused}");
        }
    }

    /// Rank 0 is on the last of four hosts: the first one refuses connections, another program runs
    /// on the second, and rank 0 of another job on the third.
    #[test]
    fn ranks_find_rank_0_among_several_hosts() {
        let hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"];
        let program = TcpListener::bind((hosts[1], 0)).unwrap();
        let port = program.local_addr().unwrap().port();
        let at = |host: &str| StoreAddress::Tcp { host: host.to_owned(), port };
        let (among, third, own) = (hosts.map(str::to_owned).to_vec(), at(hosts[2]), at(hosts[3]));
        let among = StoreAddress::Among { hosts: among, port };
        let (secret, other) = (Secret::new(None, "job"), Secret::new(None, "another job"));
        std::thread::scope(|scope| {
            // It answers once, in a way of its own, and ends.
            let answering = scope.spawn(move || {
                let (mut stream, _) = program.accept().unwrap();
                stream.write_all(&[b'!'; GREETING]).unwrap();
            });
            let elsewhere = scope.spawn(|| {
                let until = Instant::now() + Duration::from_secs(2);
                host(&Meeting { until, ..Meeting::sample(&third, &other, 0) })
            });
            let visiting = scope.spawn(|| visit(&Meeting::sample(&among, &secret, 1)));
            answering.join().unwrap();
            let strangers = elsewhere.join().unwrap().unwrap_err().to_string();
            assert!(strangers.contains("did not know the job's secret"), "{strangers}");
            let hosting = host(&Meeting::sample(&own, &secret, 0)).unwrap();
            assert_eq!(visiting.join().unwrap().unwrap(), hosting);
        });
    }
}
