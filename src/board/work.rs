//! A call as work of an executor.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::{Board, Call};
use crate::error::{Ranks, Result};
use crate::executor::work::{Outlived, Polled, Polls, Rest, Work};
use crate::time::Time;

/// Polls before the clock is read again.
const POLLS: u32 = 64;

/// Polls before ranks of this host are listened to: until then their marks are enough.
const PATIENCE: u32 = 48;

/// A call, and the board that it is made with.
#[derive(Debug)]
pub(crate) struct CallWork<'a, 'b> {
    call: &'a mut Call<'b>,
    board: &'a mut Board,
    polls: u32,
}

impl<'a, 'b> CallWork<'a, 'b> {
    pub(crate) fn new(call: &'a mut Call<'b>, board: &'a mut Board) -> Self {
        CallWork { call, board, polls: 0 }
    }
}

impl Work for CallWork<'_, '_> {
    fn needs_time(&self) -> bool {
        false
    }

    fn polls(&self, yields: bool) -> Polls {
        // Polls of a network are long, and where ranks outnumber cores another one needs this core.
        let is_short = self.board.memory.places.is_none();
        Polls { times: if yields || !is_short { 1 } else { POLLS }, pauses: is_short && !yields }
    }

    fn poll(&mut self, _now: Time) -> Result<Polled> {
        self.polls += 1;
        if self.polls.is_multiple_of(PATIENCE) {
            self.call.listen();
        }
        self.call.poll(self.board)
    }

    fn begin(&mut self) {}

    fn wants_time(&mut self, _polled: Time) -> bool {
        false
    }

    fn time(&mut self, _now: Time) {}

    fn next_timer(&self) -> Option<Time> {
        None
    }

    fn search(&mut self) {}

    fn rest(&mut self, now: Time) -> Result<Rest> {
        self.board.peers.prepare_sleep();
        self.call.listen();
        match self.poll(now)? {
            Polled::Idle => Ok(Rest::Asleep { until: None }),
            _ => {
                self.rouse();
                Ok(Rest::Awake)
            }
        }
    }

    fn sleep(&mut self, at_most: Duration) {
        self.board.peers.sleep(at_most);
    }

    fn rouse(&mut self) {
        self.board.peers.cancel_sleep();
    }

    fn delegate(&mut self) -> bool {
        false
    }

    fn missing(&self) -> Ranks {
        self.call.missing(self.board)
    }

    fn needs_missing(&self) -> bool {
        true
    }

    fn hear_of(&mut self, _dead: u32) {}

    fn outlive(&mut self, _now: Time) -> Result<Outlived> {
        Ok(Outlived::Lost)
    }
}
