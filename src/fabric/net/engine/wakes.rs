//! Wakes: immediate data after a change that a device has made.
//!
//! Each wake takes a message buffer of the peer until the peer's processor polls. So only a few are in flight to a peer
//! that has not confirmed earlier ones, and a rank that is stopped for many rounds delays nothing that goes to it. A
//! change whose wake is not sent comes without one. If the peer sleeps, the earlier wakes end that sleep. The last wake
//! is sent later, when the peer has taken some.
//!
//! A peer may choose to be sent none: it polls its memory at short intervals while it waits.

use super::{Act, CellChange, Content, Data, ImmediateData, NetEngine, OnComplete, Outgoing, Peer, Transfer, Wire};
use crate::fabric::net::shares::peers;
use crate::fabric::{At, Atomic};

/// The minimum number of wakes in flight to a peer. In very large worlds those of all peers may exceed the message
/// buffers; a wake that finds no buffer waits.
const LEAST: u32 = 1;

/// The token of an operation that no caller waits for.
const NO_TOKEN: u64 = 0;

/// The wakes between this rank and a peer.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    /// The wakes that were sent and that the peer may not have taken.
    sent: u32,
    /// For each channel, a changed cell whose last wake was not sent.
    owed: Vec<(u16, At)>,
    /// The wakes that were taken without the peer knowing it.
    taken: u32,
}

impl Wakes {
    /// Returns whether a wake may be sent, and counts it as sent if so.
    fn take(&mut self, most: u32) -> bool {
        let may = self.sent < most;
        self.sent += u32::from(may);
        may
    }

    /// Records that the wake for a change in a channel is not sent.
    fn owe(&mut self, channel: u16, at: At) {
        if !self.owed.iter().any(|&(owed, _)| owed == channel) {
            self.owed.push((channel, at));
        }
    }

    /// Records that the peer has taken `count` wakes; `None` if fewer were sent.
    fn were_taken(&mut self, count: u32) -> Option<()> {
        self.sent = self.sent.checked_sub(count)?;
        Some(())
    }

    /// Records that a wake has come. Returns the number of taken wakes to tell the peer about now, if any.
    fn came(&mut self, most: u32) -> Option<u32> {
        self.taken += 1;
        (self.taken >= most / 2).then(|| std::mem::take(&mut self.taken))
    }
}

/// Returns the maximum number of wakes in flight to one peer: those of all peers take half of the message buffers.
pub(super) fn most(receives: usize, ranks: u32) -> u32 {
    ((receives / 2 / peers(ranks)) as u32).max(LEAST)
}

impl<W: Wire> NetEngine<W> {
    /// Returns the wake to send after a change of a peer's cell, if one may be sent.
    pub(super) fn wake_behind(&mut self, channel: u16, peer: u32, at: At) -> Option<u64> {
        let Peer { wakes, polls_memory, shows, .. } = &mut self.peers[peer as usize];
        if *polls_memory {
            return None;
        }
        if !wakes.take(self.most_wakes) {
            wakes.owe(channel, at);
            return None;
        }
        Some(ImmediateData { from: self.rank, which: channel }.encode(shows.tag))
    }

    /// Wakes the channel in which a peer has changed a cell.
    pub(super) fn wake_channel(&mut self, ImmediateData { from, which: channel }: ImmediateData) {
        self.life.hear(from);
        let peer = &mut self.peers[from as usize];
        if let Some(count) = peer.wakes.came(self.most_wakes) {
            let content = Content::Woken { count };
            self.post(from, Outgoing { channel: 0, content, data: Data::None, token: None });
        }
        self.channel(channel).wake();
    }

    /// Records that a peer has taken `count` wakes of this rank, and sends those that were held back. `None` if fewer
    /// were sent.
    pub(super) fn wakes_were_taken(&mut self, from: u32, count: u32) -> Option<()> {
        let wakes = &mut self.peers[from as usize].wakes;
        wakes.were_taken(count)?;
        for (channel, at) in std::mem::take(&mut wakes.owed) {
            // A peer frees the memory of a channel that this rank has closed.
            if self.channels.get(usize::from(channel)).is_some_and(|own| own.is_open) {
                let wake = self.wake_behind(channel, from, at);
                let change = CellChange::Atomic(Atomic::FetchAdd(0));
                let transfer = Transfer::new((channel, NO_TOKEN, from), "wake", OnComplete::AwaitAck);
                if wake.is_some() {
                    self.transfer(transfer, (at, at, 0), Act::Change { at, change, wake });
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fabric::Region;

    const AT: At = At { region: Region(0), offset: 0 };

    proptest! {
        /// However sender and receiver take turns: no more wakes are on their way than may be, and when
        /// the receiver has taken all that came, it was woken after the last change in each channel.
        #[test]
        fn no_change_stays_without_a_wake(
            steps in proptest::collection::vec(0..6u16, 1..300),
            (receives, ranks) in (8..1000usize, 2..200u32),
        ) {
            let most = most(receives, ranks);
            let (mut sender, mut receiver) = (Wakes::default(), Wakes::default());
            // Wakes and answers on the way; for each channel its changes, and how many of them its last wake announces.
            let (mut wakes, mut answers) = (std::collections::VecDeque::new(), std::collections::VecDeque::new());
            let (mut changed, mut announced) = ([0u64; 3], [0u64; 3]);
            let rest = std::iter::repeat_n([3, 4], 500).flatten();
            for step in steps.into_iter().chain(rest) {
                match step {
                    channel @ 0..3 => {
                        changed[usize::from(channel)] += 1;
                        match sender.take(most) {
                            true => wakes.push_back((channel, changed[usize::from(channel)])),
                            false => sender.owe(channel, AT),
                        }
                    }
                    3 => if let Some((channel, count)) = wakes.pop_front() {
                        announced[usize::from(channel)] = count;
                        answers.extend(receiver.came(most));
                    },
                    _ => if let Some(count) = answers.pop_front() {
                        prop_assert!(sender.were_taken(count).is_some());
                        for (channel, at) in std::mem::take(&mut sender.owed) {
                            match sender.take(most) {
                                true => wakes.push_back((channel, changed[usize::from(channel)])),
                                false => sender.owe(channel, at),
                            }
                        }
                    },
                }
                prop_assert!(wakes.len() <= most as usize);
            }
            prop_assert!(wakes.is_empty() && answers.is_empty() && sender.owed.is_empty());
            prop_assert_eq!(changed, announced);
            prop_assert!(sender.were_taken(most + 1).is_none());
        }
    }
}
