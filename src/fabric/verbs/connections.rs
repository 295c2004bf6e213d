//! The connections of a rank, and the handshakes that make them.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::time::Instant;

use earlybird_ffi::verbs::{self, AddressHandle, Capacity, Domain, Queue, QueuePair, ReceiveQueue, Route};

use super::address::Address;
use super::code::Code;
use super::connection::{Connection, Refusal};
use super::device::Port;
use super::handshake::{End, Hello, Reaction};
use super::hellos::Hellos;
use super::registration::{Failed, Registrar};
use super::settings;
use crate::fabric::net::{JobSecret, Posted};
use crate::random::draw;
use crate::time::Time;

/// A rank of the world, as this one knows it.
#[derive(Debug)]
struct Peer {
    address: Address,
    connection: Option<Connection>,
    /// Why there can be no connection.
    refused: Option<Code>,
    handle: Option<AddressHandle>,
}

/// One connection to each peer, made when it is first needed. The peer may be this rank.
#[derive(Debug)]
pub(super) struct Connections {
    rank: u32,
    rail: u32,
    port: Port,
    own: Address,
    /// What seals hellos; `None` while the job has none.
    secret: Option<JobSecret>,
    // Before the handles that it may be using.
    hellos: Hellos,
    peers: Vec<Peer>,
    /// Peers whose handshake is not over.
    connecting: Vec<u32>,
    domain: Arc<Domain>,
    queue: Arc<Queue>,
    receive_queue: Arc<ReceiveQueue>,
    /// What the send queue of each peer holds.
    capacity: Capacity,
    /// What peers may do, as far as each registration allows it.
    access: u32,
    /// What the time of handshakes counts from.
    origin: Instant,
}

impl Connections {
    /// Opens what handshakes of a rank by a rail need.
    pub(super) fn open(
        (rank, rail): (u32, u32),
        port: Port,
        registrar: &Registrar,
        (queue, receive_queue): (Arc<Queue>, Arc<ReceiveQueue>),
        (capacity, access): (Capacity, u32),
    ) -> Result<Self, Failed> {
        // The highest bit of a queue key is for privileged programs.
        let queue_key = u32::from_le_bytes(draw(rank).map_err(Failed::System)?) >> 1;
        let hellos = Hellos::open(registrar, &queue, (port.number, queue_key))?;
        let own = Address {
            lid: port.lid,
            gid: port.gid.map_or([0; 16], |gid| gid.bytes),
            mtu: port.mtu,
            outstanding_reads: port.outstanding_reads,
            datagrams: hellos.number(),
            queue_key,
        };
        Ok(Connections {
            rank,
            rail,
            port,
            own,
            secret: None,
            hellos,
            peers: Vec::new(),
            connecting: Vec::new(),
            domain: registrar.domain().clone(),
            queue,
            receive_queue,
            capacity,
            access,
            origin: Instant::now(),
        })
    }

    /// This rank's end of the connection to a peer.
    #[cfg(test)]
    pub(super) fn end_for(&self, peer: u32) -> Option<End> {
        self.peers[peer as usize].connection.as_ref().map(Connection::own_end)
    }

    /// Moves all queue pairs into the error state.
    #[cfg(test)]
    pub(super) fn break_all(&self) {
        let connections = self.peers.iter().filter_map(|peer| peer.connection.as_ref());
        connections.for_each(|connection| connection.pair().fail().unwrap_or_default());
    }

    /// What the other ranks must know of this one.
    pub(super) fn address(&self) -> &Address {
        &self.own
    }

    /// From now on, hellos are sealed with this secret: without one none is sent or heard.
    pub(super) fn keep_secret(&mut self, secret: JobSecret) {
        self.secret = Some(secret);
    }

    /// Adds the next rank.
    pub(super) fn insert(&mut self, address: Address) {
        self.peers.push(Peer { address, connection: None, refused: None, handle: None });
    }

    /// Returns the number of connections to peers that this rank has begun.
    pub(super) fn made(&self) -> u32 {
        let is_made = |(peer, of): &(u32, &Peer)| *peer != self.rank && of.connection.is_some();
        (0..).zip(&self.peers).filter(is_made).count() as u32
    }

    /// Whether a peer is connected; begins the handshake if there is none yet.
    ///
    /// # Errors
    /// There can be no connection.
    pub(super) fn reach(&mut self, peer: u32) -> Posted<Code> {
        let Peer { connection, refused, .. } = &self.peers[peer as usize];
        match (connection, *refused) {
            // A handshake may be over when this end of it cannot connect.
            (_, Some(code)) => Err(code),
            (Some(connection), None) => Ok(!connection.is_connecting()),
            (None, None) => self.begin(peer).map(|()| false),
        }
    }

    /// Posts something by the connection to a peer, if there is one, or begins a handshake.
    #[inline]
    pub(super) fn at(&mut self, peer: u32, post: impl FnOnce(&mut Connection) -> Result<(), Refusal>) -> Posted<Code> {
        if self.peers[peer as usize].connection.is_none() {
            self.begin(peer)?;
        }
        let Some(connection) = &mut self.peers[peer as usize].connection else { return Ok(false) };
        match post(connection) {
            Ok(()) => Ok(true),
            Err(Refusal::NotNow) => self.peers[peer as usize].refused.map_or(Ok(false), Err),
            Err(Refusal::Failed) => Err(Code::ConnectionFailed),
            Err(Refusal::Device(error)) => Err(Code::System(error.code)),
        }
    }

    /// Begins a handshake.
    fn begin(&mut self, peer: u32) -> Result<(), Code> {
        let begun = self.make_pair(peer).and_then(|()| match peer == self.rank {
            true => self.connect_to_itself(),
            false => self.say_hello(peer),
        });
        begun.inspect_err(|&code| self.refuse(peer, code))
    }

    fn refuse(&mut self, peer: u32, code: Code) {
        tracing::debug!(rank = self.rank, peer, %code, "cannot connect");
        self.peers[peer as usize].refused = Some(code);
    }

    /// Makes the queue pair for a peer if there is none.
    fn make_pair(&mut self, peer: u32) -> Result<(), Code> {
        let code = |cause: io::Error| Code::of(&cause);
        let Peer { connection, refused, .. } = &mut self.peers[peer as usize];
        match (&connection, *refused) {
            (_, Some(code)) => return Err(code),
            (Some(_), None) => return Ok(()),
            (None, None) => {}
        }
        let queues = (self.domain.clone(), self.queue.clone());
        let pair = QueuePair::open_reliable(queues.0, queues.1, &self.receive_queue, self.capacity).map_err(code)?;
        pair.initialize(self.port.number, self.access).map_err(code)?;
        // Packets are numbered by 24 bits.
        let sequence = draw(self.rank).map(|bytes| u32::from_le_bytes(bytes) >> 8).map_err(|_| Code::System(0))?;
        *connection = Some(Connection::new(peer, pair, sequence, self.capacity.sends));
        self.connecting.push(peer);
        Ok(())
    }

    /// The way to a peer.
    fn route(&self, to: &Address) -> Route {
        let gid = self.port.gid.filter(|own| self.port.needs_gid(own, &to.gid));
        Route {
            port: self.port.number,
            lid: to.lid,
            gid: gid.map(|own| (to.gid, own.index)),
            service_level: self.port.settings.service_level.unwrap_or(0),
            traffic_class: self.port.settings.traffic_class.unwrap_or(0),
            hop_limit: 64,
        }
    }

    /// Tells a peer how far the handshake is.
    fn say_hello(&mut self, peer: u32) -> Result<(), Code> {
        let Peer { address, connection, handle, .. } = &self.peers[peer as usize];
        let Some(connection) = connection else { return Ok(()) };
        let Some(secret) = &self.secret else { return Ok(()) };
        let (address, hello) = (*address, connection.hello((self.rank, self.rail)));
        if handle.is_none() {
            let handle = AddressHandle::open(self.domain.clone(), &self.route(&address));
            self.peers[peer as usize].handle = Some(handle.map_err(|cause| Code::of(&cause))?);
        }
        match &self.peers[peer as usize].handle {
            Some(handle) => self.hellos.send((handle, &address), peer, &hello, secret),
            None => Ok(()),
        }
    }

    /// Sends the hellos that are due.
    #[inline]
    pub(super) fn say_hellos(&mut self) {
        if self.connecting.is_empty() {
            return;
        }
        let now = Time::try_from(self.origin.elapsed().as_nanos()).unwrap_or(Time::MAX);
        for index in (0..self.connecting.len()).rev() {
            let peer = self.connecting[index];
            let Peer { connection, refused, .. } = &mut self.peers[peer as usize];
            match connection {
                Some(connection) if connection.is_connecting() && refused.is_none() => {
                    if connection.hello_is_due(now)
                        && let Err(code) = self.say_hello(peer)
                    {
                        self.refuse(peer, code);
                    }
                }
                _ => _ = self.connecting.swap_remove(index),
            }
        }
    }

    /// A hello was sent, or lost.
    pub(super) fn hello_is_sent(&mut self, buffer: usize) {
        self.hellos.sent(buffer);
    }

    /// A hello of `bytes` bytes has come; none if it has failed.
    ///
    /// # Errors
    /// The device does not take the buffer back.
    pub(super) fn hear(&mut self, buffer: usize, len: usize) -> Result<(), Code> {
        if len == 0 {
            return Ok(());
        }
        let received = self.secret.as_ref().and_then(|secret| self.hellos.received((buffer, len), self.rank, secret));
        let is_peer = |from: u32| from != self.rank && (from as usize) < self.peers.len();
        match received.filter(|hello| hello.rail == self.rail && is_peer(hello.from)) {
            Some(hello) => self.answer(&hello).unwrap_or_else(|code| self.refuse(hello.from, code)),
            None => tracing::debug!(rank = self.rank, "a stranger's hello"),
        }
        self.hellos.post_receive(buffer)
    }

    /// Does what a peer's hello asks for.
    fn answer(&mut self, hello: &Hello) -> Result<(), Code> {
        self.make_pair(hello.from)?;
        let Some(connection) = &mut self.peers[hello.from as usize].connection else { return Ok(()) };
        let Some(Reaction { connect, answer }) = connection.hear(hello) else { return Ok(()) };
        if let Some(end) = connect {
            self.connect(hello.from, end)?;
        }
        if answer { self.say_hello(hello.from) } else { Ok(()) }
    }

    /// Connects the queue pair for a peer to the peer's.
    fn connect(&self, peer: u32, end: End) -> Result<(), Code> {
        let Peer { address, connection, .. } = &self.peers[peer as usize];
        let Some(connection) = connection else { return Ok(()) };
        let settings = {
            let Port { mtu, outstanding_reads, settings, .. } = &self.port;
            let outstanding_reads = address.outstanding_reads.min(*outstanding_reads);
            settings::of_connection(address.mtu.min(*mtu), outstanding_reads, settings)
        };
        let other = verbs::Peer { number: end.pair, packet_sequence: end.sequence };
        let pair = connection.pair();
        let connected = pair.connect(&self.route(address), other, &settings);
        let ready = connected.and_then(|()| pair.ready_to_send(connection.own_end().sequence, &settings));
        tracing::debug!(rank = self.rank, peer, "connects");
        ready.map_err(|cause| Code::of(&cause))
    }

    /// Connects the queue pair for this rank to itself.
    fn connect_to_itself(&mut self) -> Result<(), Code> {
        let Some(connection) = &mut self.peers[self.rank as usize].connection else { return Ok(()) };
        let own = connection.own_end();
        connection.hear(&Hello { from: self.rank, rail: self.rail, end: own, connected: true, ready: true });
        self.connect(self.rank, own)
    }

    /// Requests to a peer are over, or have failed for a reason. Returns why the first one of them has
    /// failed: what follows says only that the connection is gone.
    #[inline]
    pub(super) fn complete(&mut self, peer: u32, posted: u16, failed: Option<impl FnOnce() -> String>) -> Option<&str> {
        let connection = self.peers.get_mut(peer as usize)?.connection.as_mut()?;
        connection.complete(posted);
        failed.map(|reason| connection.fail(reason))
    }

    /// The queue pair of this number has failed. Returns its peer; `None` if it is that of the
    /// datagrams, or connects this rank to itself: no peer can do without it.
    pub(super) fn fail(&mut self, pair: u32, reason: &str) -> Option<u32> {
        let connections = self.peers.iter_mut().map(|peer| peer.connection.as_mut()).zip(0..);
        let mut found = connections.filter_map(|(connection, peer)| Some((connection?, peer)));
        let (connection, peer) = found.find(|(connection, _)| connection.pair().number() == pair)?;
        connection.fail(|| reason.to_owned());
        (peer != self.rank).then_some(peer)
    }

    /// Makes the end of the last messages known.
    pub(super) fn flush(&mut self) {
        self.peers.iter_mut().filter_map(|peer| peer.connection.as_mut()).for_each(Connection::flush);
    }

    /// Whether every request that was posted is over.
    pub(super) fn are_idle(&self) -> bool {
        self.peers.iter().filter_map(|peer| peer.connection.as_ref()).all(Connection::is_idle)
    }
}
