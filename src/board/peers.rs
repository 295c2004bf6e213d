//! The other ranks: the words that this rank tells them and hears, and the way to their boards.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::error::{Error, Misuse, Result};
use crate::fabric::{Access, At, CACHE_LINE, Change, Endpoint, Interest, Key, Posted, Region, Signal, Window};
use crate::sync;

/// What a rank waits for here.
const INTEREST: Interest = 1;

/// Cells from the word of a rank to that of the next one.
const CELLS: usize = CACHE_LINE / size_of::<u64>();

/// What an operation on a network is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To tell a rank a word.
    Word,
    /// To read a piece that is copied.
    Copied,
    /// To read a piece that is reduced.
    Reduced,
}

/// This rank's own memory.
#[derive(Debug)]
pub(super) struct Memory {
    /// Where other ranks read.
    pub(super) slots: Window,
    /// Where it reads what other hosts have.
    pub(super) places: Option<(Region, Window)>,
}

#[derive(Debug)]
pub(super) struct Peers {
    me: u32,
    endpoint: Box<dyn Endpoint>,
    /// What this rank hears.
    words: Window,
    peers: Vec<Peer>,
    /// Words or marks were stored, and the ranks of this host were not woken since.
    is_loud: bool,
    /// Reads that were posted and have not completed.
    reading: u32,
    /// There are other hosts, so polls make progress.
    has_network: bool,
}

/// Another rank.
#[derive(Debug)]
struct Peer {
    words: Far,
    slots: Far,
    /// The newest word of it that this rank knows: it has read it, or learned as much from what the rank published.
    heard: u64,
    /// Where words are posted: the newest one, the one that was posted last, and whether that is under way.
    word: u64,
    posted: u64,
    is_under_way: bool,
}

/// Memory of another rank, which is imported when it is first needed.
#[derive(Debug)]
struct Far {
    key: Key,
    imported: Option<(Region, Option<Window>)>,
}

impl Far {
    fn get(&mut self, endpoint: &mut dyn Endpoint, rank: u32) -> Result<&(Region, Option<Window>)> {
        match &mut self.imported {
            Some(imported) => Ok(imported),
            none => {
                let region = endpoint.import(rank, self.key)?;
                Ok(none.insert((region, endpoint.window(region))))
            }
        }
    }
}

impl Peers {
    /// Makes the memory for words and for slots, and what [`Peers::meet`] of the other ranks is to be told. `places` are
    /// bytes for what is read from other hosts.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new(
        mut endpoint: Box<dyn Endpoint>,
        me: u32,
        ranks: u32,
        slots: usize,
        places: Option<usize>,
    ) -> Result<(Self, Memory, Vec<u8>)> {
        let mut make = |bytes, access| -> Result<(Region, Window)> {
            let region = endpoint.register(bytes, access)?;
            let problem = Misuse::Unavailable("the transport gives no access to own memory");
            let window = endpoint.window(region).ok_or(Error::Usage { rank: me, operation: "open", problem })?;
            Ok((region, window))
        };
        let words = make(ranks as usize * CACHE_LINE, Access::Write)?;
        let slots = make(slots, Access::Read)?;
        let places = places.map(|bytes| make(bytes, Access::Local)).transpose()?;
        let told = [words.0, slots.0].map(|region| endpoint.key(region).encode()).concat();
        let peers = Peers {
            me,
            endpoint,
            words: words.1,
            peers: Vec::new(),
            is_loud: false,
            reading: 0,
            has_network: places.is_some(),
        };
        Ok((peers, Memory { slots: slots.1, places }, told))
    }

    /// Gets to know what all ranks have told, in rank order.
    ///
    /// # Errors
    /// A rank told something else.
    pub(super) fn meet(&mut self, told: &[Vec<u8>]) -> Result<()> {
        for (rank, told) in (0..).zip(told) {
            let keys = (told.len() == 2 * Key::BYTES).then(|| told.split_at(Key::BYTES));
            let keys = keys.and_then(|(words, slots)| Some([Key::decode(words)?, Key::decode(slots)?]));
            let cause = "it told no keys of its memory";
            let [words, slots] = keys.ok_or_else(|| Error::transport(self.me, rank, "open", cause))?;
            let far = |key| Far { key, imported: None };
            let peer = Peer { words: far(words), slots: far(slots), heard: 0, word: 0, posted: 0, is_under_way: false };
            self.peers.push(peer);
        }
        Ok(())
    }

    pub(super) fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    /// The newest word of a rank.
    pub(super) fn heard(&self, rank: u32) -> u64 {
        sync::look(self.words.cell(rank as usize * CELLS))
    }

    /// Whether a rank is known to have told a word, or one after it, or to have done what that would say.
    #[inline]
    pub(super) fn knows(&self, rank: u32, word: u64) -> bool {
        self.peers[rank as usize].heard >= word
    }

    /// What a rank did says as much as a word.
    pub(super) fn learn(&mut self, rank: u32, word: u64) {
        let heard = &mut self.peers[rank as usize].heard;
        *heard = word.max(*heard);
    }

    /// Whether a rank has told a word, or one after it. Looks only if that is not known: a rank that is ahead writes there.
    #[inline]
    pub(super) fn has_told(&mut self, rank: u32, word: u64) -> bool {
        if !self.knows(rank, word) {
            self.learn(rank, self.heard(rank));
        }
        self.knows(rank, word)
    }

    /// Tells a rank a word, which says all that those before it did.
    pub(super) fn tell(&mut self, rank: u32, word: u64) -> Result<()> {
        let cell = self.me as usize * CELLS;
        let peer = &mut self.peers[rank as usize];
        let (_, window) = peer.words.get(&mut *self.endpoint, rank)?;
        if let Some(window) = window {
            sync::announce(window.cell(cell), word);
            self.is_loud = true;
            return Ok(());
        }
        peer.word = word;
        self.post(rank)
    }

    /// What was published for ranks of this host is marked, which says as much as a word.
    pub(super) fn have_marked(&mut self) {
        self.is_loud = true;
    }

    /// Posts the newest word for a rank, unless the one before is under way: two signals could overtake each other. The
    /// newest word says all that those before it do.
    fn post(&mut self, rank: u32) -> Result<()> {
        let peer = &mut self.peers[rank as usize];
        let &(region, _) = peer.words.get(&mut *self.endpoint, rank)?;
        let at = At { region, offset: self.me as usize * CACHE_LINE };
        while peer.posted != peer.word && !peer.is_under_way {
            let signal = Signal { at, change: Change::Set(peer.word), awaited: false };
            peer.posted = peer.word;
            peer.is_under_way = self.endpoint.signal(signal, token(Purpose::Word, rank))? == Posted::Pending;
        }
        Ok(())
    }

    /// Whether all words were posted.
    pub(super) fn is_told(&self) -> bool {
        self.peers.iter().all(|peer| peer.posted == peer.word)
    }

    /// The slots of a rank of this host.
    pub(super) fn slots(&mut self, rank: u32) -> Result<Option<&Window>> {
        let (_, window) = self.peers[rank as usize].slots.get(&mut *self.endpoint, rank)?;
        Ok(window.as_ref())
    }

    /// The slots of a rank of this host, if [`Peers::slots`] has imported them.
    pub(super) fn known_slots(&self, rank: u32) -> Option<&Window> {
        self.peers[rank as usize].slots.imported.as_ref()?.1.as_ref()
    }

    /// Reads from the slots of a rank on another host. Whether it is there already; else [`Peers::completed`] says when.
    pub(super) fn read(&mut self, rank: u32, from: usize, to: At, len: usize, purpose: Purpose) -> Result<bool> {
        let &(region, _) = self.peers[rank as usize].slots.get(&mut *self.endpoint, rank)?;
        let posted = self.endpoint.read(At { region, offset: from }, to, len, token(purpose, rank))?;
        self.reading += u32::from(posted == Posted::Pending);
        Ok(posted != Posted::Pending)
    }

    /// Whether reads are under way.
    pub(super) fn is_reading(&self) -> bool {
        self.reading > 0
    }

    /// The next read that has completed: what for, and of which rank.
    pub(super) fn completed(&mut self) -> Result<Option<(Purpose, u32)>> {
        while self.has_network
            && let Some(completion) = self.endpoint.poll()?
        {
            let (purpose, rank) = meaning(completion.token);
            if purpose != Purpose::Word {
                self.reading -= 1;
                return Ok(Some((purpose, rank)));
            }
            self.peers[rank as usize].is_under_way = false;
            self.post(rank)?;
        }
        Ok(None)
    }

    /// Ends the sleep of the ranks of this host for which something was stored.
    pub(super) fn wake(&mut self) {
        if std::mem::take(&mut self.is_loud) {
            self.endpoint.wake(u32::MAX, INTEREST);
        }
    }

    /// Announces a sleep. What is heard from now on ends it.
    pub(super) fn prepare_sleep(&mut self) {
        self.endpoint.prepare_wait(INTEREST);
    }

    pub(super) fn cancel_sleep(&mut self) {
        self.endpoint.cancel_wait();
    }

    pub(super) fn sleep(&mut self, at_most: Duration) {
        self.endpoint.wait(at_most);
    }
}

fn token(purpose: Purpose, rank: u32) -> u64 {
    (purpose as u64) << u32::BITS | u64::from(rank)
}

fn meaning(token: u64) -> (Purpose, u32) {
    let purposes = [Purpose::Word, Purpose::Copied, Purpose::Reduced];
    (purposes[(token >> u32::BITS) as usize % purposes.len()], token as u32)
}
