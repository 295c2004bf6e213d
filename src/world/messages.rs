//! Messages from one rank to another.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::World;
use crate::board::{Pairs, Transfer};
use crate::error::{Error, Misuse, Ranks, Result};
use crate::executor::spin::Spin;
use crate::fabric::watch::HEARTBEAT;
use crate::interrupt;
use crate::reduce::Item;
use crate::time::{Deadline, Time};

/// What the messages of this rank need.
#[derive(Debug)]
pub(super) struct Mail {
    pairs: Pairs,
    spin: Spin,
}

/// The longest sleep of a waiting thread: other threads may have a message to move meanwhile.
const PAUSE: Duration = Duration::from_micros(200);

/// # Messages
///
/// Any thread may send to and receive from any rank, at the same time as others. Messages with the same tag from one
/// rank to another arrive in the order in which they were sent.
///
/// `send` returns when `data` may change: when the receiver has taken all of it except at most two slots, which have at
/// most 64 KiB each. So two ranks that send each other more than that before they receive wait for ever; two threads do
/// not.
///
/// The first call of [`World::send`], [`World::receive`] or [`World::receive_any`] on any rank waits for the first call
/// of all others. [`World::open_messages`] makes this wait at a time that the program chooses.
///
/// # Errors
/// [`Error::Usage`] for a peer that is not another rank of the world. After [`Error::Timeout`] or
/// [`Error::Interrupted`] nothing is lost if no part of the message has moved: repeat the call. The first call of a
/// world is the exception. [`Error::Mismatch`] for a message of another length; it also aborts the world. Also a dead
/// peer or an aborted job.
impl World {
    /// Prepares messages. All ranks must call it, or make their first message, at the same point in the order of their
    /// collective calls. Returns when all ranks have done so.
    ///
    /// # Errors
    /// As [`World::barrier`]; too little memory.
    pub fn open_messages(&self, deadline: impl Into<Deadline>) -> Result<()> {
        self.with_mail("open_messages", deadline.into().instant(), |_| Ok(()))
    }

    /// Sends `data` to rank `to`.
    ///
    /// # Errors
    /// As for all [messages](World#messages).
    pub fn send<T: Item>(&self, data: &[T], to: u32, tag: u64, deadline: impl Into<Deadline>) -> Result<()> {
        const OPERATION: &str = "send";
        self.check_peer(OPERATION, to)?;
        let (data, until) = (bytemuck::cast_slice(data), deadline.into().instant());
        let transfer = self.with_mail(OPERATION, until, |pairs| pairs.send(OPERATION, to, tag))?;
        self.move_message(OPERATION, transfer, until, |pairs, transfer| pairs.poll_send(transfer, data))
    }

    /// Receives a message from rank `from`. The message must have the length of `data`.
    ///
    /// # Errors
    /// As for all [messages](World#messages).
    pub fn receive<T: Item>(&self, data: &mut [T], from: u32, tag: u64, deadline: impl Into<Deadline>) -> Result<()> {
        const OPERATION: &str = "receive";
        self.check_peer(OPERATION, from)?;
        let (data, until) = (bytemuck::cast_slice_mut(data), deadline.into().instant());
        let transfer = self.with_mail(OPERATION, until, |pairs| pairs.receive(OPERATION, from, tag))?;
        self.move_message(OPERATION, transfer, until, |pairs, transfer| pairs.poll_receive(transfer, data))
    }

    /// Receives a message with this tag from any rank, and returns that rank.
    ///
    /// # Errors
    /// As for all [messages](World#messages).
    pub fn receive_any<T: Item>(&self, data: &mut [T], tag: u64, deadline: impl Into<Deadline>) -> Result<u32> {
        const OPERATION: &str = "receive_any";
        if self.size() == 1 {
            return Err(self.misuse(OPERATION, Misuse::Unavailable("there is no other rank")));
        }
        let until = deadline.into().instant();
        let (me, ranks, data) = (self.rank(), self.size(), bytemuck::cast_slice_mut(data));
        let mut found = None;
        self.wait_for_mail(OPERATION, until, None, |pairs| {
            for rank in (1..ranks).map(|next| (me + next) % ranks) {
                if pairs.has_message(OPERATION, rank, tag)? {
                    let mut transfer = pairs.receive(OPERATION, rank, tag)?;
                    // Poll at once, before another thread can take the message.
                    let polled = pairs.poll_receive(&mut transfer, data);
                    found = Some((transfer, polled.err()));
                    return Ok(true);
                }
            }
            Ok(false)
        })?;
        let Some((transfer, mut failure)) = found else {
            return Err(self.misuse(OPERATION, Misuse::Order("no message was found")));
        };
        let rank = transfer.peer();
        self.move_message(OPERATION, transfer, until, |pairs, transfer| match failure.take() {
            Some(error) => Err(error),
            None => pairs.poll_receive(transfer, data),
        })?;
        Ok(rank)
    }

    /// Calls a function with the mail; the first call opens the mail.
    fn with_mail<R>(
        &self,
        operation: &'static str,
        until: Instant,
        act: impl FnOnce(&mut Pairs) -> Result<R>,
    ) -> Result<R> {
        self.check_process(operation)?;
        self.fabric().health(operation)?;
        let mut mail = interrupt::lock(&self.inner.mail, self.rank(), operation, until)?;
        let Mail { pairs, .. } = match &mut *mail {
            Some(mail) => mail,
            none => none.insert(self.open_mail(operation, until)?),
        };
        act(pairs)
    }

    fn open_mail(&self, operation: &'static str, until: Instant) -> Result<Mail> {
        let made = self.meet(operation, until, b'm', Pairs::new)?;
        let (mut pairs, told) = made;
        pairs.meet(&told)?;
        Ok(Mail { pairs, spin: self.spin() })
    }

    /// Moves a message until it is complete.
    fn move_message(
        &self,
        operation: &'static str,
        mut transfer: Transfer,
        until: Instant,
        mut poll: impl FnMut(&mut Pairs, &mut Transfer) -> Result<bool>,
    ) -> Result<()> {
        let peer = transfer.peer();
        let moved = self.wait_for_mail(operation, until, Some(peer), |pairs| poll(pairs, &mut transfer));
        moved.map_err(|error| {
            let failed = !matches!(error, Error::Timeout { .. } | Error::Interrupted { .. });
            let is_cut_off = self.with_mail(operation, until, |pairs| Ok(pairs.give_up(&transfer, failed)));
            match error {
                Error::Timeout { rank, operation, waited, missing, .. } => {
                    let together = is_cut_off.unwrap_or(true);
                    self.with_hosts(Error::timeout(rank, operation, waited, missing, together))
                }
                error @ Error::Interrupted { .. } if matches!(is_cut_off, Ok(false)) => error,
                error @ Error::Usage { .. } => error,
                error => self.out_of_step(error.in_call(operation)),
            }
        })
    }

    /// Polls until `poll` returns true. Other threads of this rank poll by turns.
    fn wait_for_mail(
        &self,
        operation: &'static str,
        until: Instant,
        peer: Option<u32>,
        mut poll: impl FnMut(&mut Pairs) -> Result<bool>,
    ) -> Result<()> {
        if self.with_mail(operation, until, &mut poll)? {
            return Ok(());
        }
        let outer = self.fabric().expect_by(Some(until.into()));
        let waited = self.keep_polling(operation, until, peer, poll);
        self.fabric().expect_by(outer);
        waited
    }

    fn keep_polling(
        &self,
        operation: &'static str,
        until: Instant,
        peer: Option<u32>,
        mut poll: impl FnMut(&mut Pairs) -> Result<bool>,
    ) -> Result<()> {
        let started = Instant::now();
        let now = || started.elapsed().as_nanos() as Time;
        let (mut checked, mut spins, mut gone) = (started, true, None);
        let lock = || interrupt::lock(&self.inner.mail, self.rank(), operation, until);
        let mut guard = lock()?;
        if let Some(mail) = &mut *guard {
            mail.spin.begin(0);
        }
        drop(guard);
        loop {
            let mut guard = lock()?;
            let Some(Mail { pairs, spin }) = &mut *guard else { return self.check_process(operation) };
            if poll(pairs)? {
                spin.paid(now());
                return Ok(());
            }
            if !spins {
                pairs.prepare_sleep();
                let is_there = poll(pairs);
                if matches!(is_there, Ok(false)) {
                    pairs.sleep(PAUSE);
                } else {
                    pairs.cancel_sleep();
                }
                if is_there? {
                    return Ok(());
                }
            }
            spins = spins && spin.goes_on(now(), None);
            let yields = spin.yields();
            drop(guard);
            if yields {
                rustix::thread::sched_yield();
            }
            self.fabric().health(operation)?;
            if checked.elapsed() >= HEARTBEAT {
                checked = Instant::now();
                self.fabric().check_peers(operation)?;
                interrupt::check(self.rank(), operation)?;
                let before = gone;
                let others = || (0..self.size()).filter(|&peer| peer != self.rank());
                gone = match peer {
                    Some(peer) => Some(peer).filter(|&peer| self.fabric().has_left(peer)),
                    None => others().next().filter(|_| others().all(|peer| self.fabric().has_left(peer))),
                };
                // The polls since then saw everything that it sent before it left.
                if let Some(peer) = gone.filter(|_| gone == before) {
                    return Err(Error::left(self.rank(), operation, peer));
                }
            }
            if Instant::now() >= until {
                let (rank, waited) = (self.rank(), started.elapsed());
                let missing = Ranks(
                    peer.map_or_else(|| (0..self.size()).filter(|&peer| peer != rank).collect(), |peer| vec![peer]),
                );
                return Err(Error::timeout(rank, operation, waited, missing, false));
            }
        }
    }

    fn check_peer(&self, operation: &'static str, peer: u32) -> Result<()> {
        match peer < self.size() && peer != self.rank() {
            true => Ok(()),
            false => Err(self.misuse(operation, Misuse::Argument("the peer is not another rank of this world"))),
        }
    }
}
