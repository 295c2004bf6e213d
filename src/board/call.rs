//! One collective call, step by step.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::layout::{HEADER, Header, MARK, StepSlot};
use super::peers::Purpose;
use super::plan::{CallPlan, Readers};
use super::{Blocks, Board, Kind};
use crate::error::{Error, Ranks, Result};
use crate::executor::work::Polled;
use crate::fabric::{At, Region, Window};
use crate::fault::Fault;
use crate::reduce::{BoardSource as Source, Dtype, Reduce};
use crate::sync;

/// What a call does, as all ranks must say it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct What {
    pub(crate) operation: &'static str,
    pub(crate) kind: Kind,
    pub(crate) root: u32,
    /// For reductions.
    pub(crate) reduction: (Dtype, Reduce),
    /// Bytes of what a rank contributes, or of what goes to each rank: of the largest block.
    pub(crate) block: usize,
    /// Where the data of an all-reduce lies in symmetric memory, as [`place`] says it; 0 for other data.
    pub(crate) place: u32,
    /// What the caller asked for, where this call is a part of that: ranks compare it.
    pub(crate) made: Made,
}

/// What a caller asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) kind: Kind,
    pub(crate) root: u32,
    pub(crate) reduction: (Dtype, Reduce),
    pub(crate) block: usize,
}

impl What {
    /// A call as a caller makes it.
    pub(crate) fn new(
        operation: &'static str,
        (kind, root, reduction): (Kind, u32, (Dtype, Reduce)),
        block: usize,
        place: u32,
    ) -> Self {
        What { operation, kind, root, reduction, block, place, made: Made { kind, root, reduction, block } }
    }
}

/// A place in symmetric memory, which all ranks must say alike: in few bytes, so two of 2³¹ are said as one.
pub(crate) fn place(memory: u64, first: usize) -> u32 {
    (mixed(mixed(0, memory + 1), first as u64) >> u32::BITS) as u32 | 1
}

fn mixed(history: u64, word: u64) -> u64 {
    (history.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The memory of a caller.
#[derive(Debug)]
pub(crate) struct Data<'a> {
    /// What this rank contributes; none if it lies where the output goes.
    pub(crate) input: Option<&'a [u8]>,
    pub(crate) output: &'a mut [u8],
    /// Where blocks lie in the input and in the output.
    pub(crate) from: Blocks<'a>,
    pub(crate) to: Blocks<'a>,
}

impl<'a> Data<'a> {
    /// Blocks of one length.
    pub(crate) fn even(input: impl Into<Option<&'a [u8]>>, output: &'a mut [u8]) -> Self {
        Data { input: input.into(), output, from: Blocks::Even, to: Blocks::Even }
    }

    fn input(&self) -> &[u8] {
        self.input.unwrap_or(self.output)
    }
}

/// A call that goes on.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    what: What,
    plan: CallPlan,
    data: Data<'a>,
    /// That of each piece, but for the mark.
    header: Header,
    step: usize,
    /// This rank has published its part of the step.
    is_published: bool,
    /// Ranks of which it has not taken, nor begun to read, what they publish in the step.
    left: u32,
    /// The next poll also looks whether ranks have published something else.
    listens: bool,
}

impl<'a> Call<'a> {
    /// Begins a call.
    pub(crate) fn new(board: &mut Board, what: What, data: Data<'a>) -> Self {
        let plan = CallPlan::new(board.sizes, what.kind, what.root, board.me, what.block);
        let Made { kind, root, reduction: (dtype, reduce), block } = what.made;
        let whose = if kind == Kind::AllReduce { what.place } else { kind.of_root(root) };
        let kinds = kind as u64 | (dtype as u64) << 8 | (reduce as u64) << 16 | (what.kind as u64) << 24;
        let header = [board.history, kinds | u64::from(whose) << u32::BITS, block as u64, 0];
        for word in &header[1..] {
            board.history = mixed(board.history, *word);
        }
        let mut call = Call { what, plan, data, header, step: 0, is_published: false, left: 0, listens: false };
        call.keep_own();
        call
    }

    /// Copies what stays on this rank.
    fn keep_own(&mut self) {
        let Data { input, output, from, to } = &mut self.data;
        let (Some(input), me) = (*input, self.plan.me() as usize) else { return };
        let all = 0..self.what.block;
        let (from, to) = match self.what.kind {
            Kind::Gather | Kind::AllGather | Kind::Symmetric => (all, self.plan.whole(*to, me)),
            Kind::Scatter => (self.plan.whole(*from, me), all),
            Kind::AllToAll => (self.plan.whole(*from, me), self.plan.whole(*to, me)),
            _ => return,
        };
        let (from, to) = (within(from, input), within(to, output));
        // Only the root of a scatter has an input, and only that of a gather an output.
        if from.len() == to.len() {
            output[to].copy_from_slice(&input[from]);
        }
    }

    /// Lets the next poll also look whether ranks of this host have published something else: those that make another call.
    pub(crate) fn listen(&mut self) {
        self.listens = true;
    }

    /// Does what there is to do now.
    ///
    /// # Errors
    /// Ranks that make different calls; an operation that failed. The ranks are out of step then.
    pub(crate) fn poll(&mut self, board: &mut Board) -> Result<Polled> {
        let mut polled = Polled::Idle;
        loop {
            while let Some((purpose, rank)) = board.peers.completed()? {
                self.has_read(board, purpose, rank)?;
                polled = Polled::Progress;
            }
            if !self.is_published {
                if self.step == self.plan.steps() {
                    return Ok(if board.peers.is_told() { Polled::Ready } else { polled });
                }
                board.acknowledge()?;
                if board.unfinished(self.plan.layout().has_data()).is_some() {
                    return Ok(polled);
                }
                self.publish(board)?;
                polled = Polled::Progress;
            }
            if self.left > 0 && self.take(board)? {
                polled = Polled::Progress;
            }
            if self.left > 0 || board.peers.is_reading() {
                return Ok(polled);
            }
            self.end_step(board);
        }
    }

    /// The ranks without which it does not go on.
    pub(crate) fn missing(&self, board: &Board) -> Ranks {
        if !self.is_published {
            let has_told = |rank, word| board.peers.knows(rank, word) || board.peers.heard(rank) >= word;
            return Ranks(board.pace.unfinished(self.plan.layout().has_data(), has_told).into_iter().collect());
        }
        let lacks = |&rank: &u32| self.plan.takes_from(rank, self.step) && !board.met[rank as usize];
        Ranks((0..board.peers.ranks()).filter(lacks).collect())
    }

    /// Writes this rank's part of the step into its board, and tells the readers.
    fn publish(&mut self, board: &mut Board) -> Result<()> {
        let header = self.header_of(board);
        let (mut copied, next) = (0, board.pace.next_slot());
        let (slots, slot, layout) = (&board.memory.slots, board.pace.slot(), self.plan.layout());
        let mut write = |piece: usize, data: &[u8]| {
            copied += data.len();
            let at = layout.header(slot, piece);
            slots.write(at, bytemuck::cast_slice(&header[..MARK]));
            slots.write(layout.data(slot, piece), data);
            sync::announce(slots.cell(self.mark(slot, piece)), header[MARK]);
            slots.prefetch_to_write(self.mark(next, piece));
        };
        // Each rank looks for its own piece and for piece 0. One of them is there, and comes after all else for that rank.
        if let Some(piece) = self.plan.result(board.me, self.step) {
            let range = self.plan.output(self.data.to, board.me, self.step - 1);
            let result = match self.what.kind {
                Kind::AllReduce => &self.data.output[range],
                _ => &bytemuck::cast_slice(&board.results)[..range.len()],
            };
            write(piece, result);
        }
        let mut last = None;
        for piece in self.plan.published(self.step).rev() {
            let range = self.plan.input(self.data.from, piece, self.step);
            let input = self.data.input();
            write(piece, &input[within(range, input)]);
            last = Some(piece);
        }
        let readers = self.plan.readers(board.me, self.step);
        // From another host a rank reads the header that its own call has.
        let each_finds_its_own = board.sizes.shared && self.plan.has_piece_for_each(self.step);
        if readers != Readers::None && last != Some(0) && !each_finds_its_own {
            write(0, &[]);
        }
        board.copies.into_boards += self.counted(copied);
        board.announce(readers, self.plan.layout().has_data())?;
        board.met.clear();
        board.met.resize(board.peers.ranks() as usize, false);
        self.left = (0..board.peers.ranks()).filter(|&rank| self.plan.takes_from(rank, self.step)).count() as u32;
        self.is_published = true;
        Ok(())
    }

    /// Takes what other ranks have published by now, or begins to read it. Whether there was something.
    fn take(&mut self, board: &mut Board) -> Result<bool> {
        let (me, ranks, before) = (board.me, board.peers.ranks(), self.left);
        // Ranks that only send run ahead. Where all send, fetching a line early would take it from the rank that writes it.
        let only_takes = self.plan.readers(me, self.step) == Readers::None;
        // Each rank begins with another one.
        for rank in (me + 1..ranks).chain(0..me) {
            let takes = !board.met[rank as usize] && self.plan.takes_from(rank, self.step);
            if !takes || !self.has_published(board, rank)? {
                continue;
            }
            board.met[rank as usize] = true;
            self.left -= 1;
            for purpose in [Purpose::Copied, Purpose::Reduced] {
                let Some((piece, range)) = self.wanted(rank, purpose) else { continue };
                if purpose == Purpose::Copied {
                    board.copies.out_of_boards += self.counted(range.len());
                }
                let (slot, layout) = (board.pace.slot(), self.plan.layout());
                let header = layout.header(slot, piece);
                board.peers.slots(rank)?;
                match board.peers.known_slots(rank) {
                    Some(window) => {
                        let at = [header, layout.data(slot, piece)];
                        if only_takes {
                            window.prefetch(self.mark(board.pace.next_slot(), piece));
                        }
                        self.found(board, rank, purpose, window, at)?;
                    }
                    None => {
                        let Some((region, offset)) = self.place_for(board, rank, purpose) else { continue };
                        let to = At { region, offset };
                        if board.peers.read(rank, header, to, HEADER + range.len(), purpose)? {
                            self.has_read(board, purpose, rank)?;
                        }
                    }
                }
            }
        }
        self.listens = false;
        Ok(self.left < before)
    }

    /// Whether `rank` has published its part of the step.
    ///
    /// # Errors
    /// It has published something else: it makes another call.
    #[inline]
    fn has_published(&self, board: &mut Board, rank: u32) -> Result<bool> {
        let (word, step) = (board.pace.published(), board.pace.step());
        if board.peers.knows(rank, word) {
            return Ok(true);
        }
        let slot = board.pace.slot();
        let mark = |(piece, _)| self.mark(slot, piece);
        let marks = [Purpose::Copied, Purpose::Reduced].map(|purpose| self.wanted(rank, purpose).map(mark));
        let window = if board.sizes.shared { board.peers.slots(rank)? } else { None };
        let Some(window) = window else { return Ok(board.peers.has_told(rank, word)) };
        let is_marked = || marks.iter().flatten().all(|&mark| sync::look(window.cell(mark)) == step);
        if !is_marked() {
            let lines = if self.listens { 0..board.sizes.lines } else { 0..0u32 };
            let places =
                lines.flat_map(|line| [0, self.plan.me() as usize].map(|piece| (StepSlot { line, ..slot }, piece)));
            let marked = places.map(|(slot, piece)| (sync::look(window.cell(self.mark(slot, piece))), (slot, piece)));
            let beyond = marked.filter(|&(mark, _)| mark >= step).min_by_key(|&(mark, _)| mark);
            let Some((_, (slot, piece))) = beyond else { return Ok(false) };
            // What it published for this rank was there before that mark.
            if !is_marked() {
                let theirs = Self::read_header(window, self.plan.layout().header(slot, piece));
                return self.compare(board, rank, theirs).map(|()| false);
            }
        }
        // It has also taken what was published before.
        board.peers.learn(rank, word);
        Ok(true)
    }

    /// The cell of a mark.
    fn mark(&self, slot: StepSlot, piece: usize) -> usize {
        self.plan.layout().header(slot, piece) / size_of::<u64>() + MARK
    }

    fn read_header(window: &Window, at: usize) -> Header {
        let mut header = Header::default();
        window.read(at, bytemuck::bytes_of_mut(&mut header));
        header
    }

    /// The piece of `rank` in this step that this rank copies or reduces, and where the result belongs in the output.
    fn wanted(&self, rank: u32, purpose: Purpose) -> Option<(usize, Range<usize>)> {
        match purpose {
            Purpose::Copied => {
                let (piece, chunk) = self.plan.copied(rank, self.step)?;
                Some((piece, within(self.plan.output(self.data.to, rank, chunk), self.data.output)))
            }
            _ => self.plan.reduces(self.step).then(|| (self.plan.own_piece(), self.reduced())),
        }
    }

    /// Where the result of this rank's reduction belongs in the output.
    fn reduced(&self) -> Range<usize> {
        let range = self.plan.output(self.data.to, self.plan.me(), self.step);
        // Blocks of a reduction that is scattered may have several lengths, and this one is the caller's.
        if self.what.kind == Kind::ReduceScatter { within(range, self.data.output) } else { range }
    }

    /// Where a piece from another host is read to.
    fn place_for(&self, board: &Board, rank: u32, purpose: Purpose) -> Option<(Region, usize)> {
        let half = if purpose == Purpose::Copied { 0 } else { board.sizes.slot() };
        board.memory.places.as_ref().map(|(region, _)| (*region, half + self.plan.layout().place(rank)))
    }

    /// A piece from another host is there.
    fn has_read(&mut self, board: &mut Board, purpose: Purpose, rank: u32) -> Result<()> {
        let (Some((_, offset)), Some((_, window))) = (self.place_for(board, rank, purpose), &board.memory.places)
        else {
            return Ok(());
        };
        self.found(board, rank, purpose, window, [offset, offset + HEADER])
    }

    /// A piece can be read in this process: compares its header, and copies it if it is to be copied.
    fn found(
        &mut self,
        board: &Board,
        rank: u32,
        purpose: Purpose,
        window: &Window,
        [header, data]: [usize; 2],
    ) -> Result<()> {
        self.compare(board, rank, Self::read_header(window, header))?;
        if let Some((_, range)) = self.wanted(rank, purpose).filter(|_| purpose == Purpose::Copied)
            && let Some(output) = self.data.output.get_mut(range)
        {
            window.read(data, output);
        }
        Ok(())
    }

    /// Bytes as [`Copies`](super::Copies) counts them: those of the caller's data.
    fn counted(&self, bytes: usize) -> u64 {
        if self.what.kind == Kind::Symmetric { 0 } else { bytes as u64 }
    }

    fn header_of(&self, board: &Board) -> Header {
        let [history, kinds, block, _] = self.header;
        [history, kinds, block, board.pace.step()]
    }

    fn compare(&self, board: &Board, rank: u32, theirs: Header) -> Result<()> {
        let mine = self.header_of(board);
        if mine == theirs || Fault::CompareNothing.is(board.pace.fault()) {
            return Ok(());
        }
        let kinds = |header: Header| said(header[1]);
        let root = |header: Header| (header[1] >> u32::BITS).to_string();
        let place = |header: Header| match header[1] >> u32::BITS {
            0 => "none (other memory)".to_owned(),
            place => format!("number {place:x}"),
        };
        let (what, text): (_, &dyn Fn(Header) -> String) = match () {
            () if mine[1] as u32 != theirs[1] as u32 => ("the call", &kinds),
            () if mine[1] != theirs[1] && self.what.made.kind == Kind::AllReduce => {
                ("the place in symmetric memory", &place)
            }
            () if mine[1] != theirs[1] => ("the root", &root),
            () if mine[2] != theirs[2] => ("the length in bytes", &|header| header[2].to_string()),
            () => ("the history of calls", &|header| format!("{:016x}", header[0])),
        };
        Err(Error::mismatch(board.me, self.what.operation, what, text(mine), (rank, text(theirs))))
    }

    /// All that was published is here.
    fn end_step(&mut self, board: &mut Board) {
        if self.plan.reduces(self.step) {
            self.reduce(board);
        }
        for rank in 0..board.peers.ranks() {
            if board.met[rank as usize] {
                board.pace.take(rank);
            }
        }
        board.pace.end();
        self.step += 1;
        self.is_published = false;
    }

    fn reduce(&mut self, board: &mut Board) {
        let (range, at) = (self.reduced(), self.plan.layout().data(board.pace.slot(), self.plan.own_piece()));
        let Board { me, sizes, peers, memory, sources, results, .. } = board;
        let own = self.data.input.filter(|_| !self.plan.reduces_boards(self.step));
        let own = own.map(|input| &input[self.plan.input(self.data.from, self.plan.own_piece(), self.step)]);
        let place = |rank: u32| sizes.slot() + self.plan.layout().place(rank) + HEADER;
        let source = |rank: u32| match (peers.known_slots(rank), &memory.places) {
            _ if rank == *me => own.map_or(Source::Board(&memory.slots, at), Source::Own),
            (Some(window), _) => Source::Board(window, at),
            (None, Some((_, window))) => Source::Board(window, place(rank)),
            (None, None) => unreachable!("rank {rank} is on another host, and there is no place for what it published"),
        };
        let target = match self.what.kind != Kind::Reduce || *me == self.plan.root() {
            true => &mut self.data.output[range],
            false => {
                let words = range.len().div_ceil(size_of::<u64>());
                if results.len() < words {
                    results.resize(words, 0);
                }
                &mut bytemuck::cast_slice_mut(results)[..range.len()]
            }
        };
        sources.combine(self.what.reduction, (0..peers.ranks()).map(source), target);
    }
}

/// The part of a range that memory has: of blocks of several lengths, the largest one makes the steps.
fn within(range: Range<usize>, memory: &[u8]) -> Range<usize> {
    range.start.min(memory.len())..range.end.min(memory.len())
}

/// What a header says of a call.
fn said(word: u64) -> String {
    let [kind, dtype, reduce, ..] = word.to_le_bytes();
    let Some((kind, name)) = Kind::numbered(u64::from(kind)) else { return "unknown".to_owned() };
    let dtype = Dtype::EVERY.into_iter().find(|&known| known as u8 == dtype);
    let reduce = Reduce::EVERY.into_iter().find(|&known| known as u8 == reduce);
    match (kind.is_reduction(), dtype, reduce) {
        (true, Some(dtype), Some(reduce)) => format!("{name} ({reduce} of {dtype})"),
        _ => name.to_owned(),
    }
}
