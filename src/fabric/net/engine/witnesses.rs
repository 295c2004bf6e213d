//! Finds whether a silent peer still runs, according to ranks on its host. If so, it has not died, but the way to it is
//! lost.

use super::{Content, Data, NetEngine, Outgoing, Wire};

/// The number of ranks that are asked about one peer. A second one answers if the first one is silent, too.
const ASKED: usize = 2;

/// The ranks that see each other's processes, and the questions to them.
#[derive(Debug)]
pub(in crate::internals::fabric::net) struct Witnesses {
    /// The host of each rank, and its process there.
    places: Vec<(u32, u32)>,
    /// Which rank asks about which other one. The next check of processes answers.
    questions: Vec<(u32, u32)>,
}

impl Witnesses {
    pub(in crate::internals::fabric::net) fn new(places: Vec<(u32, u32)>) -> Self {
        Witnesses { places, questions: Vec::new() }
    }

    /// Returns the ranks that see the process of this one: those of its host in other processes.
    pub(in crate::internals::fabric::net) fn of(&self, rank: u32) -> impl Iterator<Item = u32> {
        let (host, process) = self.places[rank as usize];
        let sees = move |&(_, &(at, own)): &(u32, &(u32, u32))| at == host && own != process;
        (0..).zip(&self.places).filter(sees).map(|(rank, _)| rank)
    }
}

impl<W: Wire> NetEngine<W> {
    /// Asks ranks on the host of a peer about it. Returns whether there are any. This rank may be one of them.
    pub(super) fn ask_witnesses(&mut self, peer: u32) -> bool {
        // Another rail may reach a rank that one rail does not reach.
        let is_heard = |rank| self.link.wire.rails() > 1 || !self.life.is_suspected(rank);
        let can_answer = |rank: &u32| is_heard(*rank) && !self.life.has_ended(*rank);
        let witnesses: Vec<u32> = self.witnesses.of(peer).filter(can_answer).take(ASKED).collect();
        for &witness in &witnesses {
            if witness == self.rank {
                self.witnesses.questions.push((self.rank, peer));
            } else {
                let content = Content::Ask { rank: peer };
                self.post(witness, Outgoing { channel: 0, content, data: Data::None, token: None });
            }
        }
        !witnesses.is_empty()
    }

    /// Records that a peer asks about the process of a rank; `None` if there is no such rank.
    pub(super) fn is_asked(&mut self, from: u32, rank: u32) -> Option<()> {
        if rank >= self.ranks() {
            return None;
        }
        if !self.witnesses.questions.contains(&(from, rank)) {
            self.witnesses.questions.push((from, rank));
        }
        Some(())
    }

    /// Answers the questions. This rank has just checked which processes have ended; it sees those that `watches`
    /// names.
    pub(in crate::internals::fabric::net) fn answer_questions(&mut self, watches: impl Fn(u32) -> bool) {
        for (asker, rank) in std::mem::take(&mut self.witnesses.questions) {
            // A rank that has left announces that itself.
            if !watches(rank) || self.life.has_left(rank) {
                continue;
            }
            let runs = !self.knows_end_of(rank);
            if asker == self.rank {
                self.take_answer(asker, rank, runs);
            } else {
                let content = Content::Seen { rank, runs };
                self.post(asker, Outgoing { channel: 0, content, data: Data::None, token: None });
            }
        }
    }

    /// Takes the answer of a rank on a peer's host: whether that peer's process runs.
    pub(super) fn take_answer(&mut self, from: u32, rank: u32, runs: bool) {
        let why = format!("{}{}", self.device_fault(), self.strangers);
        if let Some(failure) = self.life.answered(from, rank, runs, &why) {
            self.fail(failure);
        }
    }
}
