//! How a caller writes its contributions, and hands them in.

use std::rc::Rc;

use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Actor, Doing, Step};
use crate::collective::core::Time;
use crate::collective::protocol::Protocol;
use crate::simulation::oracle::Oracle;

impl Actor {
    /// Hands in its next contribution, or its last arrival.
    pub(super) fn arrive(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus, oracle: &mut Rc<Oracle>) -> Step<()> {
        self.take_lease(now);
        self.doing = Doing::Arriving;
        let rank = self.rank();
        if self.made == self.habits.steps {
            if !self.is_leaving() {
                self.left_off = Some(self.turns);
                Rc::make_mut(oracle).leaves(rank, now);
            }
            if self.session.is_to_leave() {
                self.session.leave(&mut self.engine, now);
            }
            return Ok(());
        }
        let buffer = self.session.buffer();
        let fills = self.habits.fills && self.session.facts().pieces > 1;
        if fills {
            let (at, bytes) = self.session.contribution();
            self.memory.contribution::<u8>(at, bytes).fill(0xA5);
            self.doing = Doing::Filling { buffer, piece: 0 };
        } else {
            let from = if self.session.has_begun() { self.session.facts().bytes / 2 } else { 0 };
            self.write(from, oracle);
        }
        Rc::make_mut(oracle).arrives(rank, self.made, self.engine.machine().taken() + 1, now)?;
        self.session.weigh(oracle.weight(rank, self.made));
        let target = self.engine.machine().taken() + 1;
        let told = self.session.arrive(&mut self.engine, now, fills);
        Rc::make_mut(oracle).tells(rank, target, told);
        self.made += 1;
        if fills {
            self.leave_work(now, rng);
        }
        Ok(())
    }

    /// Writes the next contribution, from a byte on.
    fn write(&mut self, from: usize, oracle: &Oracle) {
        let (at, bytes) = self.session.begin();
        if from == 0 {
            return oracle.fill(self.rank(), self.made, self.memory.contribution::<u8>(at, bytes));
        }
        let mut whole = vec![0; bytes];
        oracle.fill(self.rank(), self.made, &mut whole);
        self.memory.contribution::<u8>(at, bytes)[from..].copy_from_slice(&whole[from..]);
    }

    /// Begins to write the next contribution, as if it came from a long computation. The second half is not yet what it
    /// hands in, and no rank must ever read it.
    pub(super) fn begin(&mut self, oracle: &Oracle) {
        self.write(0, oracle);
        let (at, bytes) = self.session.contribution();
        self.memory.contribution::<u8>(at, bytes)[bytes / 2..].fill(0x5A);
    }

    /// Fills a piece of the last contribution that was handed in.
    pub(super) fn fill(&mut self, buffer: u32, piece: u64, oracle: &Oracle) {
        let plan = self.engine.machine().plan();
        let missing = plan.pieces() - piece - 1;
        let (from, len) = plan.piece_span(piece);
        let mut whole = vec![0; plan.bytes];
        oracle.fill(plan.me, self.made - 1, &mut whole);
        let at = plan.contribution(plan.me, buffer) + from;
        self.memory.contribution::<u8>(at, len).copy_from_slice(&whole[from..from + len]);
        self.engine.fill(buffer, missing);
        self.doing = Doing::Filling { buffer, piece: piece + 1 };
        if missing == 0 {
            self.engine.filled();
            self.doing = Doing::Arriving;
        }
    }
}
