//! The gate: one word that decides to which round a deposit belongs.
//!
//! A rank deposits by changing its gate of a round while that is open; the activation closes it. Both are compare-swaps
//! on one word. So the contents of the gate when it closes are final, and all readers see the same. A deposit names
//! buffers: it fits the word for data of any size, and no rank can be interrupted in the middle of a copy.

/// A rank's deposit for a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Deposit {
    /// Buffer of the fresh contribution.
    pub(crate) fresh: Option<u32>,
    /// Buffer and age of the carried contribution.
    pub(crate) carried: Option<(u32, u64)>,
    /// Whether this is the rank's last, empty arrival.
    pub(crate) leaving: bool,
    /// Whether this arrival fired the round, alone or with others.
    pub(crate) initiator: bool,
}

/// A gate's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate(pub(crate) u64);

const ROUND_SHIFT: u32 = 24;
const CLOSED: u64 = 1 << 23;
const INITIATOR: u64 = 1 << 22;
const LEAVING: u64 = 1 << 21;
const FRESH_SHIFT: u32 = 19;
const CARRIED_SHIFT: u32 = 17;
const AGE_BITS: u32 = 17;

/// The last round that a gate can represent.
pub(crate) const LAST_ROUND: u64 = (1 << (64 - ROUND_SHIFT)) - 1;

/// The largest age that fits the word: more than the largest depth.
pub(crate) const MOST_AGE: u64 = (1 << AGE_BITS) - 1;

impl Gate {
    pub(crate) fn new(round: u64, deposit: Deposit) -> Self {
        let buffer = |buffer: Option<u32>| buffer.map_or(0, |buffer| u64::from(buffer) + 1);
        let (carried, age) = deposit.carried.unzip();
        debug_assert!(age.unwrap_or(0) <= MOST_AGE && buffer(deposit.fresh) < 4 && buffer(carried) < 4);
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        Gate(
            round << ROUND_SHIFT
                | flag(deposit.initiator, INITIATOR)
                | flag(deposit.leaving, LEAVING)
                | buffer(deposit.fresh) << FRESH_SHIFT
                | buffer(carried) << CARRIED_SHIFT
                | age.unwrap_or(0),
        )
    }

    /// Returns the round of its last use.
    pub(crate) fn round(self) -> u64 {
        self.0 >> ROUND_SHIFT
    }

    /// Returns the gate for `round`: empty and open if its last use was for an earlier round.
    pub(crate) fn at(self, round: u64) -> Self {
        if self.round() == round { self } else { Gate::new(round, Deposit::default()) }
    }

    pub(crate) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    pub(crate) fn closed(self) -> Self {
        Gate(self.0 | CLOSED)
    }

    pub(crate) fn deposit(self) -> Deposit {
        let buffer = |shift: u32| (self.0 >> shift & 3).checked_sub(1).map(|buffer| buffer as u32);
        Deposit {
            fresh: buffer(FRESH_SHIFT),
            carried: buffer(CARRIED_SHIFT).map(|carried| (carried, self.0 & MOST_AGE)),
            leaving: self.0 & LEAVING != 0,
            initiator: self.0 & INITIATOR != 0,
        }
    }

    /// Returns the same gate with a changed deposit.
    pub(crate) fn with(self, change: impl FnOnce(&mut Deposit)) -> Self {
        let mut deposit = self.deposit();
        change(&mut deposit);
        Gate::new(self.round(), deposit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deposit_survives_the_word() {
        for fresh in [None, Some(0), Some(2)] {
            for carried in [None, Some((1, 1)), Some((2, MOST_AGE))] {
                for flags in 0..4 {
                    let deposit = Deposit { fresh, carried, leaving: flags & 1 == 1, initiator: flags & 2 == 2 };
                    let gate = Gate::new(LAST_ROUND, deposit);
                    assert_eq!((gate.deposit(), gate.round(), gate.is_closed()), (deposit, LAST_ROUND, false));
                    assert_eq!(gate.closed().deposit(), deposit);
                    assert!(gate.closed().is_closed());
                }
            }
        }
    }

    #[test]
    fn an_old_gate_is_open_and_empty() {
        let old = Gate::new(3, Deposit { leaving: true, ..Deposit::default() }).closed();
        assert_eq!(old.at(3), old);
        assert_eq!(old.at(4), Gate::new(4, Deposit::default()));
        assert!(!old.at(4).is_closed());
    }
}
