//! Collectives that share their cuts. The rule of the collective that *leads* makes the cuts. The others *follow*: each
//! is given the cuts that its rank learns, and runs the rounds with these (`core/agreement/given.rs`).
//!
//! A rank's leader and its followers are in one process, and the caller or the helper thread may be using each of them.
//! So news for a follower goes into an inbox, and the next thread that works for the follower empties it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::core::{Cut, Machine};

/// Cuts and ends that were sent to a follower and that its machine does not know yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Set after something was put in, and reset before all of it is taken out. It is never false while the inbox holds
    /// something.
    has_news: AtomicBool,
    news: Mutex<News>,
}

#[derive(Debug, Default)]
struct News {
    /// Cuts of consecutive rounds.
    cuts: Vec<Cut>,
    /// The last round to be returned for each arrival.
    ends: Vec<u64>,
}

impl Inbox {
    pub(crate) fn tell_cut(&self, cut: Cut) {
        self.news.lock().cuts.push(cut);
        self.has_news.store(true, Ordering::Release);
    }

    /// Adds the last round to be returned for an arrival: the next one for which none was added yet.
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

/// How a collective shares its cuts with others.
#[derive(Debug)]
pub(crate) enum Following {
    Leads {
        followers: Vec<Arc<Inbox>>,
        /// The cuts that a recording has not taken yet, if there is one.
        recorded: Option<Vec<Cut>>,
    },
    Follows(Arc<Inbox>),
}

impl Following {
    /// Returns the role of a leader of these followers.
    pub(crate) fn leading(followers: Vec<Arc<Inbox>>) -> Self {
        Following::Leads { followers, recorded: None }
    }

    pub(crate) fn is_led(&self) -> bool {
        matches!(self, Following::Follows(_))
    }

    /// Prepares a machine that has not begun. `records`: a recording asks for its cuts.
    pub(crate) fn instruct(&mut self, machine: &mut Machine, records: bool) {
        match self {
            Following::Leads { recorded, .. } => {
                *recorded = records.then(Vec::new);
                machine.record();
            }
            Following::Follows(_) => machine.choose_no_quorum(),
        }
    }

    /// Passes cuts on: from a leader to its followers, or from a follower's inbox to its machine.
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

    /// Returns the cuts for a recording since the last call.
    pub(crate) fn recorded(&mut self) -> Vec<Cut> {
        match self {
            Following::Leads { recorded: Some(recorded), .. } => std::mem::take(recorded),
            _ => Vec::new(),
        }
    }

    /// Returns whether a follower's inbox holds something that its machine does not know.
    pub(crate) fn has_news(&self) -> bool {
        matches!(self, Following::Follows(inbox) if inbox.has_news.load(Ordering::Acquire))
    }
}
