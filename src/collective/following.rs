//! Collectives that share their cuts. The rule of the one that *leads* makes them. The others *follow*: each is given the
//! cuts that its rank learns of, and runs the rounds with these (`core/agreement/given.rs`).
//!
//! A rank's leader and its followers are in one process, and each may be in the hands of the caller or of the helper thread.
//! So what a follower is told lies in an inbox, which is emptied by the thread that works for the follower next.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::core::{Cut, Machine};

/// What a follower was told and does not know yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Set after something was put in, and reset before all of it is taken out: never false while something is in.
    has_news: AtomicBool,
    news: Mutex<News>,
}

#[derive(Debug, Default)]
struct News {
    /// Cuts, round after round.
    cuts: Vec<Cut>,
    /// The last round that is to be returned for each arrival.
    ends: Vec<u64>,
}

impl Inbox {
    pub(crate) fn tell_cut(&self, cut: Cut) {
        self.news.lock().cuts.push(cut);
        self.has_news.store(true, Ordering::Release);
    }

    /// The last round that is to be returned for the next arrival for which this was not told yet.
    pub(crate) fn tell_end(&self, round: u64) {
        self.news.lock().ends.push(round);
        self.has_news.store(true, Ordering::Release);
    }

    fn hand_to(&self, machine: &mut Machine) {
        if self.has_news.swap(false, Ordering::Acquire) {
            let News { cuts, ends } = &mut *self.news.lock();
            cuts.drain(..).for_each(|cut| machine.give(cut));
            ends.drain(..).for_each(|end| machine.give_end(end));
        }
    }
}

/// What a collective has to do with the cuts of others.
#[derive(Debug)]
pub(crate) enum Following {
    Leads {
        followers: Vec<Arc<Inbox>>,
        /// The cuts that a recording has not got, if there is one.
        recorded: Option<Vec<Cut>>,
    },
    Follows(Arc<Inbox>),
}

impl Following {
    /// Leads these.
    pub(crate) fn leading(followers: Vec<Arc<Inbox>>) -> Self {
        Following::Leads { followers, recorded: None }
    }

    pub(crate) fn is_led(&self) -> bool {
        matches!(self, Following::Follows(_))
    }

    /// Tells the machine that has not begun. `records`: a recording asks for its cuts.
    pub(crate) fn instruct(&mut self, machine: &mut Machine, records: bool) {
        if let Following::Leads { recorded, .. } = self {
            *recorded = records.then(Vec::new);
            machine.record();
        }
    }

    /// Passes cuts on: a leader's to its followers, a follower's from its inbox to its machine.
    pub(crate) fn pass(&mut self, machine: &mut Machine) {
        match self {
            Following::Leads { followers, recorded } => {
                for cut in machine.recorded() {
                    followers.iter().for_each(|follower| follower.tell_cut(cut.clone()));
                    recorded.iter_mut().for_each(|recorded| recorded.push(cut.clone()));
                }
            }
            Following::Follows(inbox) => inbox.hand_to(machine),
        }
    }

    /// The cuts for a recording, since this was asked last.
    pub(crate) fn recorded(&mut self) -> Vec<Cut> {
        match self {
            Following::Leads { recorded: Some(recorded), .. } => std::mem::take(recorded),
            _ => Vec::new(),
        }
    }

    /// Whether a follower was told something that its machine does not know.
    pub(crate) fn has_news(&self) -> bool {
        matches!(self, Following::Follows(inbox) if inbox.has_news.load(Ordering::Acquire))
    }
}
