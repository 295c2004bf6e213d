//! One rank of a simulated world.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::oracle::Oracle;
use super::scenario::Habits;
use crate::collective::core::{Stats, Time};
use crate::collective::driver::Driver;
use crate::fabric::Reader;

/// When a rank wants its next turn.
#[derive(Debug)]
pub(super) enum Next {
    After(Time),
    /// When woken, or at a time.
    Parked(Option<Time>),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Computing,
    /// In `arrive`.
    Arriving,
    /// In `wait`, or in `finish` when nothing is left to contribute.
    Waiting,
    /// As waiting, announced as asleep.
    Parked,
    /// Reads outcomes up to this round.
    Holding {
        round: u64,
    },
    Gone,
}

#[derive(Debug)]
pub(super) struct Actor {
    driver: Driver,
    memory: Reader,
    habits: Habits,
    doing: Doing,
    made: u32,
    /// Newest round that the oracle has judged through this rank's eyes.
    judged: u64,
    finishing: bool,
    pub(super) scheduled: u64,
}

impl Actor {
    pub(super) fn new(driver: Driver, habits: Habits) -> Self {
        Actor {
            memory: driver.reader(),
            driver,
            habits,
            doing: Doing::Computing,
            made: 0,
            judged: 0,
            finishing: false,
            scheduled: 0,
        }
    }

    pub(super) fn is_parked(&self) -> bool {
        self.doing == Doing::Parked
    }

    pub(super) fn is_gone(&self) -> bool {
        self.doing == Doing::Gone
    }

    pub(super) fn summary(&self) -> String {
        format!("{:?}, {}", self.doing, self.driver.machine().summary())
    }

    pub(super) fn stats(&self) -> Stats {
        self.driver.machine().stats()
    }

    pub(super) fn turn(
        &mut self,
        now: Time,
        rng: &mut Xoshiro256PlusPlus,
        oracle: &mut Oracle,
    ) -> Result<Next, String> {
        match self.doing {
            Doing::Computing => self.arrive(now, oracle)?,
            Doing::Arriving => {
                if self.step(now, false, oracle)? {
                    return Ok(self.pause(rng));
                }
                self.doing = Doing::Waiting;
                if rng.random_range(0..256) < self.habits.overlaps {
                    return Ok(Next::After(rng.random_range(1..=self.habits.compute)));
                }
            }
            Doing::Waiting => return self.wait(now, rng, oracle),
            Doing::Parked => {
                self.driver.endpoint().cancel_wait();
                self.doing = Doing::Waiting;
            }
            Doing::Holding { round } => {
                self.release(round, oracle)?;
                self.doing = Doing::Computing;
                return Ok(Next::After(rng.random_range(1..=self.habits.compute)));
            }
            Doing::Gone => return Ok(Next::Gone),
        }
        Ok(self.pause(rng))
    }

    fn pause(&self, rng: &mut Xoshiro256PlusPlus) -> Next {
        let descheduled = rng.random_range(0..4096) < self.habits.preempted;
        Next::After(if descheduled { rng.random_range(1_000..100_000) } else { rng.random_range(1..60) })
    }

    fn outcome(&self, round: u64) -> &[u8] {
        let plan = self.driver.machine().plan();
        self.memory.outcome(plan.outcome(round), plan.bytes)
    }

    fn rank(&self) -> u32 {
        self.driver.machine().plan().me
    }

    fn arrive(&mut self, now: Time, oracle: &mut Oracle) -> Result<(), String> {
        let rank = self.rank();
        if self.made < self.habits.steps {
            oracle.fill(rank, self.made, self.driver.contribution::<u8>());
            oracle.arrives(rank, self.made, self.driver.machine().taken() + 1)?;
            self.made += 1;
            self.driver.machine_mut().arrive(now);
        } else {
            self.finishing = true;
            self.driver.machine_mut().leave();
        }
        self.doing = Doing::Arriving;
        Ok(())
    }

    /// One operation of the driver; what landed by it is judged.
    fn step(&mut self, now: Time, moving: bool, oracle: &mut Oracle) -> Result<bool, String> {
        let progress = self.driver.step(now, moving).map_err(|error| error.to_string())?;
        if self.finishing {
            // What a leaver misses it lets go by itself.
            oracle.releases(self.rank(), oracle.released(self.rank()).max(self.driver.machine().taken()));
        }
        while self.judged < self.driver.machine().landed() {
            self.judged += 1;
            let cut = self.driver.machine().cut(self.judged);
            oracle.lands(self.rank(), cut, self.outcome(self.judged))?;
        }
        Ok(progress)
    }

    fn wait(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus, oracle: &mut Oracle) -> Result<Next, String> {
        if self.step(now, true, oracle)? {
            return Ok(self.pause(rng));
        }
        if self.finishing {
            if self.driver.machine().is_finished() {
                self.driver.machine_mut().release(u64::MAX);
                while self.driver.step(now, false).map_err(|error| error.to_string())? {}
                self.doing = Doing::Gone;
                return Ok(Next::Gone);
            }
        } else {
            let rounds = self.driver.machine_mut().take();
            if !rounds.is_empty() {
                let newest = *rounds.end();
                let rank = self.rank();
                rounds.into_iter().try_for_each(|round| oracle.receives(rank, round))?;
                self.doing = Doing::Holding { round: newest };
                return Ok(Next::After(rng.random_range(1..=self.habits.holds)));
            }
        }
        let interest = self.driver.machine().interest() as u32;
        self.driver.endpoint().prepare_wait(interest);
        if self.step(now, true, oracle)? {
            self.driver.endpoint().cancel_wait();
            return Ok(self.pause(rng));
        }
        self.doing = Doing::Parked;
        Ok(Next::Parked(self.driver.machine().next_timer()))
    }

    fn release(&mut self, newest: u64, oracle: &mut Oracle) -> Result<(), String> {
        let rank = self.rank();
        // It may hold several; all of them must read as they did.
        for round in oracle.released(rank) + 1..=newest {
            oracle.still(rank, round, self.outcome(round))?;
        }
        oracle.releases(rank, newest);
        self.driver.machine_mut().release(newest);
        Ok(())
    }
}
