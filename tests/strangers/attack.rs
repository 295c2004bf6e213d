//! What strangers do at a port.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::session::recorded;

/// One kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// 32 bytes that let libfabric's `tcp` wait for more, and nothing more.
    Stop,
    /// Any bytes.
    Noise,
    /// A session as libfabric has it with a peer.
    Replay,
    /// The same, cut somewhere.
    Cut,
    /// The same, of which some bytes are changed.
    Damage,
    /// The same, of which a part comes twice.
    Repeat,
    /// Connections without a byte.
    Flood,
}

impl Attack {
    pub(crate) const ALL: [Attack; 7] =
        [Attack::Stop, Attack::Noise, Attack::Replay, Attack::Cut, Attack::Damage, Attack::Repeat, Attack::Flood];

    pub(crate) const STOP: [u8; 32] = {
        let mut bytes = [0; 32];
        (bytes[0], bytes[3]) = (3, 0x18);
        bytes
    };

    /// What one connection sends.
    fn bytes(self, random: &mut StdRng) -> Vec<u8> {
        let session = recorded();
        let place = |random: &mut StdRng| random.random_range(0..session.len());
        let mut bytes = session.to_vec();
        match self {
            Attack::Stop => bytes = Attack::STOP.to_vec(),
            Attack::Noise => {
                bytes = vec![0; random.random_range(1..4096)];
                random.fill(&mut bytes[..]);
            }
            Attack::Replay => {}
            Attack::Cut => bytes.truncate(place(random)),
            Attack::Damage => {
                for _ in 0..random.random_range(1..8) {
                    bytes[place(random)] = random.random();
                }
            }
            Attack::Repeat => {
                let (from, len) = (place(random), random.random_range(1..256));
                let part = bytes[from..bytes.len().min(from + len)].to_vec();
                bytes.splice(from..from, part);
            }
            Attack::Flood => bytes.clear(),
        }
        bytes
    }
}

/// Connections that a stranger keeps at a time.
const KEPT: usize = 24;

/// Attacks the ports that `targets` lists, one connection after the other, while `goes_on`. Returns how many it got.
pub(crate) fn attack(
    attacks: &[Attack],
    targets: &(dyn Fn() -> Vec<u16> + Sync),
    seed: u64,
    goes_on: &AtomicBool,
) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut kept, mut connections) = (VecDeque::new(), 0);
    let (mut ports, mut checked) = (targets(), Instant::now());
    while goes_on.load(Ordering::Relaxed) {
        // This machine has few cores.
        std::thread::sleep(Duration::from_micros(500));
        if ports.is_empty() || checked.elapsed() > Duration::from_millis(20) {
            (ports, checked) = (targets(), Instant::now());
        }
        // Where libfabric is to be stopped, it must stay so.
        if ports.is_empty() || (attacks == [Attack::Stop] && kept.len() == KEPT) {
            continue;
        }
        let address = SocketAddr::from(([127, 0, 0, 1], ports[random.random_range(0..ports.len())]));
        let kind = attacks[random.random_range(0..attacks.len())];
        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(50)) else { continue };
        connections += 1;
        let _ = stream.set_write_timeout(Some(Duration::from_millis(50)));
        let _ = stream.set_read_timeout(Some(Duration::from_millis(2)));
        let bytes = kind.bytes(&mut random);
        // libfabric goes on only after it has answered.
        let (hello, rest) = bytes.split_at(bytes.len().min(if random.random() { bytes.len() } else { 300 }));
        let _ = stream.write_all(hello);
        let _ = stream.read(&mut [0; 512]);
        let _ = stream.write_all(rest);
        if kind == Attack::Stop || random.random() {
            kept.push_back(stream);
        }
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
    connections
}

/// The addresses at which a process listens, as the kernel prints them (proc(5)).
fn listening(pid: u32) -> Vec<String> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |entry: std::fs::DirEntry| {
        let to = std::fs::read_link(entry.path()).ok()?;
        Some(to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let own: BTreeSet<String> = descriptors.filter_map(inode).collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let address = |line: &str| {
        const LISTENS: &str = "0A";
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_own = fields.get(3) == Some(&LISTENS) && own.contains(*fields.get(9)?);
        is_own.then(|| fields[1].to_owned())
    };
    table.lines().filter_map(address).collect()
}

/// The ports at which a process listens.
pub(crate) fn ports(pid: u32) -> Vec<u16> {
    let port = |address: &String| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    listening(pid).iter().filter_map(port).collect()
}

/// Whether no other machine reaches a process where it listens.
pub(crate) fn listens_inside(pid: u32) -> bool {
    listening(pid).iter().all(|address| address.starts_with("0100007F:"))
}
