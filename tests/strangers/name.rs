//! A stranger that connects to ranks in the names of others, over `tcp;ofi_rxm`: libfabric believes a port that a peer names.
//! What it hears of a rank it passes on to the right one, so that the ranks notice nothing, and adds messages of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What a forged message says.
pub(crate) const FORGED: &str = "a stranger says so";

/// A connection that a rank may take for one of another rank.
struct Connection {
    stream: TcpStream,
    /// The port that it has named; that of no rank if it is to send only.
    named: u16,
    come: Vec<u8>,
    /// The rank's number of the connection, once it was accepted.
    number: Option<u32>,
}

/// Bytes before what the library sends: `tcp` puts 16 there, and `ofi_rxm` 64 more.
const HEADERS: usize = 80;

impl Connection {
    /// Asks the rank at a port for a connection, as `ofi_rxm` does.
    fn open(port: u16, (named, pid): (u16, u32), index: u32) -> Option<Connection> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(5))).ok()?;
        let mut request = vec![3, 0, 0, 24];
        request.resize(24, 0);
        request.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 3]);
        request.extend(named.to_le_bytes());
        request.extend([2, 0, 0, 64, 0, 0, 32, 0, 0, 0]);
        request.extend(index.to_le_bytes());
        request.extend(pid.to_le_bytes());
        stream.write_all(&request).ok()?;
        Some(Connection { stream, named, come: Vec::new(), number: None })
    }

    /// The next packet with a message, if one has come.
    fn packet(&mut self) -> Option<Vec<u8>> {
        let mut more = [0; 4096];
        if let Ok(len) = self.stream.read(&mut more) {
            self.come.extend_from_slice(&more[..len]);
        }
        if self.number.is_none() {
            let answer = self.come.get(..32)?;
            let len = 32 + usize::from(u16::from_be_bytes([answer[2], answer[3]]));
            let accepted = answer[1] == 1;
            let answer: Vec<u8> = self.come.get(..len)?.to_vec();
            self.come.drain(..len);
            self.number = Some(u32::from_le_bytes(*answer[32..].first_chunk()?)).filter(|_| accepted);
        }
        let len = u64::from_le_bytes(*self.come.get(8..16)?.first_chunk()?) as usize;
        let packet = self.come.get(..len).filter(|_| self.number.is_some())?.to_vec();
        self.come.drain(..len);
        Some(packet)
    }

    /// Sends a message in a packet like another one.
    fn send(&mut self, like: &[u8], message: &[u8]) {
        let Some(number) = self.number else { return };
        let mut packet = [&like[..HEADERS], message].concat();
        let len = packet.len() as u64;
        packet[8..16].copy_from_slice(&len.to_le_bytes());
        packet[24..32].copy_from_slice(&u64::from(number).to_le_bytes());
        packet[56..64].copy_from_slice(&(message.len() as u64).to_le_bytes());
        let _ = self.stream.write_all(&packet);
    }
}

/// A message of this library, with the secret of a message that was heard.
fn message((kind, from, number): (u8, u16, u32), operands: (u32, u64), secret: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(from.to_le_bytes());
    bytes.extend((data.len() as u16).to_le_bytes());
    [number, 0, operands.0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.resize(32, 0);
    bytes.extend(operands.1.to_le_bytes());
    [&bytes, secret, data].concat()
}

const EXCHANGE: u8 = 5;
const ABORT: u8 = 7;

/// A stranger between two ranks.
pub(crate) struct Between {
    ports: [u16; 2],
    in_their_names: Vec<Connection>,
    /// By which messages are passed on, to each of the two.
    others: Vec<Connection>,
    heard: Option<Vec<u8>>,
}

impl Between {
    /// Connects to two ranks, whose ports and processes these are, to each in the name of the other.
    pub(crate) fn new(ranks: [(u16, u32); 2]) -> Self {
        let [one, other] = ranks;
        let none = (9, std::process::id());
        let in_their_names = [(other.0, one, 1), (one.0, other, 0)];
        Between {
            ports: [one.0, other.0],
            others: ranks.iter().filter_map(|&(port, _)| Connection::open(port, none, 7)).collect(),
            in_their_names: in_their_names
                .iter()
                .filter_map(|&(at, named, index)| Connection::open(at, named, index))
                .collect(),
            heard: None,
        }
    }

    /// Passes on what has come, and says in the name of its sender that there are more connections than can be told.
    pub(crate) fn pass_on(&mut self) {
        self.others.iter_mut().for_each(|other| _ = other.packet());
        let Between { ports, in_their_names, others, heard } = self;
        in_their_names.retain_mut(|connection| {
            let Some(packet) = connection.packet() else { return true };
            let Some(index) = ports.iter().position(|&port| port == connection.named) else { return false };
            let own = &packet[HEADERS..];
            let (from, secret) = (u16::from_le_bytes([own[4], own[5]]), &own[40..48]);
            if let Some(other) = others.get_mut(index) {
                other.send(&packet, own);
                other.send(&packet, &message((EXCHANGE, from, 2), (0, 2), secret, &[0]));
            }
            *heard = Some(packet);
            // The rank goes on as if it had lost a connection that it does not need.
            false
        });
    }

    /// Whether it has heard a message.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Aborts the job in the name of a rank.
    pub(crate) fn forge(&mut self) {
        let Some(heard) = self.heard.clone() else { return };
        let forged = message((ABORT, 2, 0), (2, 0), &heard[HEADERS + 40..HEADERS + 48], FORGED.as_bytes());
        self.others.iter_mut().for_each(|other| other.send(&heard, &forged));
    }
}
