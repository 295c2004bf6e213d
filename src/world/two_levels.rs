//! Synchronous collectives of a world of several hosts: inside each host, then among agents, then inside each host again.
//!
//! A call becomes calls on two boards: one in the memory of the host, and one among the agents, who each stand for their
//! host. An agent sends and receives each byte of its host once. Long data goes in chunks: while an agent exchanges one with
//! the other agents, the other ranks of its host publish their parts of the next.
//!
//! Reductions combine the ranks of a host in the order of ranks, and then the hosts in the order of their lowest ranks. What
//! goes between hosts is as wide as what a processor reduces: 16-bit floats are rounded once, at the end.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::World;
use super::collectives::{Boards, OpenBoard};
use crate::board::{Blocks, Data, Kind, What};
use crate::error::{Error, Result};
use crate::fabric::CACHE_LINE;
use crate::fabric::levels::Levels;
use crate::reduce::{narrow, partial, widen};
use crate::time::Deadline;
use crate::topology::Topology;

/// The bytes of a chunk of long data, as its elements are between hosts: a multiple of every element's size.
const CHUNK: usize = 1 << 20;

/// Makes a call of all ranks of a world.
///
/// # Errors
/// Those of a call on one board, with the world's numbers of ranks.
pub(super) fn call(
    (world, levels): (&World, &Levels),
    Boards { main, between, scratch, .. }: &mut Boards,
    what: What,
    data: Data<'_>,
    until: Deadline,
) -> Result<()> {
    Call { world, levels, here: main, between: between.as_mut(), what, until }.make(data, scratch)
}

/// A call of all ranks of a world, as this rank makes it on two boards.
struct Call<'c> {
    world: &'c World,
    levels: &'c Levels,
    here: &'c mut OpenBoard,
    between: Option<&'c mut OpenBoard>,
    what: What,
    until: Deadline,
}

impl<'c> Call<'c> {
    fn make(mut self, data: Data<'_>, scratch: &mut Vec<u64>) -> Result<()> {
        match self.what.kind {
            Kind::Broadcast => self.broadcast(data.output),
            Kind::AllReduce | Kind::Reduce => self.reduce(data, scratch),
            Kind::ReduceScatter => self.reduce_scatter(data, scratch),
            Kind::Gather => self.gather(data, scratch),
            Kind::AllGather => self.all_gather(data, scratch),
            Kind::Scatter => self.scatter(data, scratch),
            // It takes as much memory as all that ranks of a host send and receive, which is not kept.
            Kind::AllToAll => self.all_to_all(data, &mut Vec::new()),
            // It is about memory that ranks of one host share.
            Kind::Symmetric => self.here(self.what, data),
        }
    }

    fn hosts(&self) -> &'c Topology {
        self.levels.hosts()
    }

    fn rank(&self) -> u32 {
        self.world.rank()
    }

    /// The number of this rank's host.
    fn host(&self) -> u32 {
        self.hosts().host_of(self.rank())
    }

    fn is_agent(&self) -> bool {
        self.between.is_some()
    }

    /// The number of ranks on this host.
    fn ranks_here(&self) -> usize {
        self.hosts().ranks_of(self.host()).len()
    }

    /// The root, if it is on this host: its index there.
    fn root_here(&self) -> Option<u32> {
        let root = self.what.root;
        (self.hosts().host_of(root) == self.host()).then(|| self.hosts().index_on_host(root))
    }

    /// Makes a call among the ranks of this host.
    fn here(&mut self, what: What, data: Data<'_>) -> Result<()> {
        let Call { world, levels, until, .. } = *self;
        let named = |error: Error| levels.of_here(error);
        world.call_on(self.here, what, data, until, &named)
    }

    /// Makes a call among the agents. The other ranks have no part in it.
    fn between(&mut self, what: What, data: Data<'_>) -> Result<()> {
        let Call { world, levels, until, .. } = *self;
        let named = |error: Error| levels.of_network(error);
        match &mut self.between {
            Some(between) => world.call_on(between, what, data, until, &named),
            None => Ok(()),
        }
    }

    /// A part of this call.
    fn part(&self, kind: Kind, root: u32, block: usize) -> What {
        What { kind, root, block, ..self.what }
    }

    /// Gives bytes of one rank of this host to another, by their indexes. All ranks of the host take part: the first has
    /// the bytes, and the other memory for them.
    fn hand(&mut self, (from, to): (u32, u32), bytes: usize, given: &[u8], taken: &mut [u8]) -> Result<()> {
        let index = self.hosts().index_on_host(self.rank());
        if from == to {
            if index == to {
                taken.copy_from_slice(given);
            }
            return Ok(());
        }
        let bounds: Vec<usize> =
            (0..=self.ranks_here() as u32).map(|index| if index > from { bytes } else { 0 }).collect();
        let input = if index == from { given } else { &[] };
        let output = if index == to { taken } else { &mut [] };
        let data = Data { input: Some(input), output, from: Blocks::Even, to: Blocks::Bounds(&bounds) };
        self.here(self.part(Kind::Gather, to, bytes), data)
    }

    fn broadcast(&mut self, output: &mut [u8]) -> Result<()> {
        let root_host = self.hosts().host_of(self.what.root);
        for range in chunks(output.len(), CHUNK) {
            let chunk = &mut output[range];
            let of_root = self.root_here();
            if let Some(root) = of_root {
                self.here(self.part(Kind::Broadcast, root, chunk.len()), Data::even(None, chunk))?;
            }
            self.between(self.part(Kind::Broadcast, root_host, chunk.len()), Data::even(None, chunk))?;
            if of_root.is_none() {
                self.here(self.part(Kind::Broadcast, 0, chunk.len()), Data::even(None, chunk))?;
            }
        }
        Ok(())
    }

    /// All-reduce and reduce. The input of an all-reduce lies where its output goes.
    fn reduce(&mut self, Data { input, output, .. }: Data<'_>, scratch: &mut Vec<u64>) -> Result<()> {
        let (dtype, reduce) = self.what.reduction;
        let (wide, folded) = partial((dtype, reduce));
        let is_plain = (wide, folded) == (dtype, reduce);
        let (to_all, root_host) = (self.what.kind == Kind::AllReduce, self.hosts().host_of(self.what.root));
        let bytes = input.map_or(output.len(), <[u8]>::len);
        for range in chunks(bytes, CHUNK / wide.size() * dtype.size()) {
            let wide_bytes = range.len() / dtype.size() * wide.size();
            let [partial, reduced, widened] = parts(scratch, [wide_bytes; 3]);
            let what = |call: &Self, kind, root| {
                let what = call.part(kind, root, wide_bytes);
                What { reduction: (wide, folded), ..what }
            };
            let own = input.map_or(&output[..], |input| input);
            let own = match is_plain {
                true => &own[range.clone()],
                false => {
                    widen((dtype, reduce), &own[range.clone()], widened);
                    &*widened
                }
            };
            let is_agent = self.is_agent();
            let of_host = if is_agent { &mut *partial } else { &mut [] };
            self.here(what(self, Kind::Reduce, 0), Data::even(own, of_host))?;
            let members = self.world.size();
            let finish = |sum: &[u8], target: &mut [u8]| narrow((dtype, reduce), members, sum, target);
            if to_all {
                self.between(what(self, Kind::AllReduce, 0), Data::even(None, partial))?;
                let chunk = &mut output[range];
                if is_agent {
                    finish(partial, chunk);
                }
                self.here(self.part(Kind::Broadcast, 0, chunk.len()), Data::even(None, chunk))?;
                continue;
            }
            let at_root = self.host() == root_host;
            let target = if at_root { &mut *reduced } else { &mut [] };
            self.between(what(self, Kind::Reduce, root_host), Data::even(&*partial, target))?;
            if let Some(root) = self.root_here() {
                let narrow_bytes = range.len();
                let result = &mut partial[..narrow_bytes];
                if is_agent {
                    finish(reduced, result);
                }
                let chunk = if self.rank() == self.what.root { &mut output[range] } else { &mut [] };
                self.hand((0, root), narrow_bytes, result, chunk)?;
            }
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, Data { input, output, .. }: Data<'_>, scratch: &mut Vec<u64>) -> Result<()> {
        let (dtype, reduce) = self.what.reduction;
        let (wide, folded) = partial((dtype, reduce));
        let (hosts, size, block) = (self.hosts(), self.world.size() as usize, self.what.block);
        for range in chunks(block, block_chunk(hosts, wide.size()) / wide.size() * dtype.size()) {
            let (bytes, wide_bytes) = (range.len(), range.len() / dtype.size() * wide.size());
            let at_agent = if self.is_agent() { self.ranks_here() } else { 0 };
            let [own, of_all, of_host, narrowed] =
                parts(scratch, [size * wide_bytes, size * wide_bytes, at_agent * wide_bytes, at_agent * bytes]);
            for (place, rank) in places(hosts) {
                let piece = &input.unwrap_or_default()[rank * block..][range.clone()];
                widen((dtype, reduce), piece, &mut own[place * wide_bytes..][..wide_bytes]);
            }
            let what = |call: &Self, kind, bytes| What { reduction: (wide, folded), ..call.part(kind, 0, bytes) };
            let target = if self.is_agent() { &mut *of_all } else { &mut [] };
            self.here(what(self, Kind::Reduce, size * wide_bytes), Data::even(&*own, target))?;
            let bounds = host_bounds(hosts, wide_bytes);
            let data = Data { input: Some(of_all), output: of_host, from: Blocks::Bounds(&bounds), to: Blocks::Even };
            self.between(what(self, Kind::ReduceScatter, hosts.widest() as usize * wide_bytes), data)?;
            narrow((dtype, reduce), self.world.size(), of_host, narrowed);
            let input = self.is_agent().then_some(&*narrowed);
            self.here(self.part(Kind::Scatter, 0, bytes), Data::even(input, &mut output[range]))?;
        }
        Ok(())
    }

    /// Gathers a piece of each rank of this host at the agent.
    fn gather_here(&mut self, mine: &[u8], of_host: &mut [u8]) -> Result<()> {
        self.here(self.part(Kind::Gather, 0, mine.len()), Data::even(mine, of_host))
    }

    fn gather(&mut self, Data { input, output, .. }: Data<'_>, scratch: &mut Vec<u64>) -> Result<()> {
        let (hosts, block, root_host) = (self.hosts(), self.what.block, self.hosts().host_of(self.what.root));
        let is_root = self.rank() == self.what.root;
        for range in chunks(block, block_chunk(hosts, 1)) {
            let bytes = hosts.ranks() as usize * range.len();
            let of_host = if self.is_agent() { self.ranks_here() * range.len() } else { 0 };
            let is_at_root = self.is_agent() && self.host() == root_host;
            let [of_host, gathered, taken] =
                parts(scratch, [of_host, if is_at_root { bytes } else { 0 }, if is_root { bytes } else { 0 }]);
            self.gather_here(&input.unwrap_or_default()[range.clone()], of_host)?;
            let bounds = host_bounds(hosts, range.len());
            let what = self.part(Kind::Gather, root_host, hosts.widest() as usize * range.len());
            let data = Data { input: Some(of_host), output: gathered, from: Blocks::Even, to: Blocks::Bounds(&bounds) };
            self.between(what, data)?;
            if let Some(root) = self.root_here() {
                self.hand((0, root), bytes, gathered, taken)?;
            }
            if is_root {
                by_rank(hosts, (block, range), taken, output);
            }
        }
        Ok(())
    }

    fn all_gather(&mut self, Data { input, output, .. }: Data<'_>, scratch: &mut Vec<u64>) -> Result<()> {
        let (hosts, block) = (self.hosts(), self.what.block);
        for range in chunks(block, block_chunk(hosts, 1)) {
            let of_host = if self.is_agent() { self.ranks_here() * range.len() } else { 0 };
            let [of_host, gathered] = parts(scratch, [of_host, hosts.ranks() as usize * range.len()]);
            self.gather_here(&input.unwrap_or_default()[range.clone()], of_host)?;
            let bounds = host_bounds(hosts, range.len());
            let what = self.part(Kind::AllGather, 0, hosts.widest() as usize * range.len());
            let (from, to) = (Blocks::Even, Blocks::Bounds(&bounds[..]));
            self.between(what, Data { input: Some(of_host), output: gathered, from, to })?;
            self.here(self.part(Kind::Broadcast, 0, gathered.len()), Data::even(None, gathered))?;
            by_rank(hosts, (block, range), gathered, output);
        }
        Ok(())
    }

    fn scatter(&mut self, Data { input, output, .. }: Data<'_>, scratch: &mut Vec<u64>) -> Result<()> {
        let (hosts, block, root_host) = (self.hosts(), self.what.block, self.hosts().host_of(self.what.root));
        for range in chunks(block, block_chunk(hosts, 1)) {
            let bytes = hosts.ranks() as usize * range.len();
            let of_host = if self.is_agent() { self.ranks_here() * range.len() } else { 0 };
            let is_at_root = self.is_agent() && self.host() == root_host;
            let of_root = if input.is_some() { bytes } else { 0 };
            let [ordered, given, of_host] = parts(scratch, [of_root, if is_at_root { bytes } else { 0 }, of_host]);
            if let Some(input) = input {
                by_host(hosts, (block, range.clone()), input, ordered);
            }
            if let Some(root) = self.root_here() {
                self.hand((root, 0), bytes, ordered, given)?;
            }
            let bounds = host_bounds(hosts, range.len());
            let what = self.part(Kind::Scatter, root_host, hosts.widest() as usize * range.len());
            let input = is_at_root.then_some(&*given);
            let data = Data { input, output: of_host, from: Blocks::Bounds(&bounds), to: Blocks::Even };
            self.between(what, data)?;
            let input = self.is_agent().then_some(&*of_host);
            self.here(self.part(Kind::Scatter, 0, range.len()), Data::even(input, &mut output[range]))?;
        }
        Ok(())
    }

    /// Each agent gets all that its host's ranks send, and gives them all that they receive.
    fn all_to_all(&mut self, Data { input, output, from, to }: Data<'_>, scratch: &mut Vec<u64>) -> Result<()> {
        let hosts = self.hosts();
        let (size, here) = (hosts.ranks() as usize, self.ranks_here());
        let even: Vec<usize> = (0..=size).map(|rank| rank * self.what.block).collect();
        let bounds_of = |blocks: Blocks<'_>| match blocks {
            Blocks::Even => even.clone(),
            Blocks::Bounds(bounds) => bounds.to_vec(),
        };
        let own = [bounds_of(from), bounds_of(to)].concat();
        // What each rank of the host sends to each rank, and receives from each.
        let mut told = vec![0usize; if self.is_agent() { here * own.len() } else { 0 }];
        let (mine, all) = (bytemuck::cast_slice(&own), bytemuck::cast_slice_mut(&mut told));
        self.here(self.part(Kind::Gather, 0, size_of_val(&own[..])), Data::even(mine, all))?;
        let sends = |index: usize| &told[index * own.len()..][..size + 1];
        let receives = |index: usize| &told[index * own.len() + size + 1..][..size + 1];
        let total = |bounds: &[usize]| bounds[size];
        let ends = |of: &dyn Fn(usize) -> usize| -> Vec<usize> {
            let mut end = 0;
            let next = |index| {
                end += of(index);
                end
            };
            std::iter::once(0).chain((0..here).map(next)).collect()
        };
        let is_agent = self.is_agent();
        let (sent, received) = match is_agent {
            true => (ends(&|index| total(sends(index))), ends(&|index| total(receives(index)))),
            false => (vec![0; here + 1], vec![0; here + 1]),
        };
        // The steps follow the largest block of each of the three calls.
        let between_hosts = |host: u32| -> usize {
            let of = |index: usize| hosts.ranks_of(host).iter().map(move |&rank| (index, rank as usize));
            (0..here).flat_map(of).map(|(index, rank)| sends(index)[rank + 1] - sends(index)[rank]).sum()
        };
        let largest = |ends: &[usize]| ends.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
        let mut most = [0, largest(&sent), largest(&received)];
        if is_agent {
            let own = (0..hosts.hosts()).map(between_hosts).max().unwrap_or(0);
            let mut all = vec![0usize; hosts.hosts() as usize];
            let what = self.part(Kind::AllGather, 0, size_of::<usize>());
            let (own, told) = (bytemuck::bytes_of(&own), bytemuck::cast_slice_mut(&mut all));
            self.between(what, Data::even(own, told))?;
            most[0] = all.into_iter().max().unwrap_or(0);
        }
        let told = self.part(Kind::Broadcast, 0, size_of_val(&most));
        self.here(told, Data::even(None, bytemuck::cast_slice_mut(&mut most)))?;
        let [most_between, most_sent, most_received] = most;
        let [gathered, by_target, by_source, scattered] =
            parts(scratch, [sent[here], sent[here], received[here], received[here]]);
        let data = Data { input, output: gathered, from: Blocks::Even, to: Blocks::Bounds(&sent) };
        self.here(self.part(Kind::Gather, 0, most_sent), data)?;
        let (mut to_hosts, mut from_hosts) = (vec![0], vec![0]);
        if is_agent {
            let (mut at, mut end) = (0, 0);
            for host in 0..hosts.hosts() {
                for index in 0..here {
                    for &rank in hosts.ranks_of(host) {
                        let range = sends(index)[rank as usize]..sends(index)[rank as usize + 1];
                        let target = &mut by_target[at..at + range.len()];
                        target.copy_from_slice(&gathered[sent[index] + range.start..sent[index] + range.end]);
                        at += range.len();
                        end += receives(index)[rank as usize + 1] - receives(index)[rank as usize];
                    }
                }
                to_hosts.push(at);
                from_hosts.push(end);
            }
        }
        let what = self.part(Kind::AllToAll, 0, most_between);
        let (from, to) = (Blocks::Bounds(&to_hosts), Blocks::Bounds(&from_hosts));
        self.between(what, Data { input: Some(by_target), output: by_source, from, to })?;
        if is_agent {
            let mut at = 0;
            for host in 0..hosts.hosts() {
                for &rank in hosts.ranks_of(host) {
                    for index in 0..here {
                        let range = receives(index)[rank as usize]..receives(index)[rank as usize + 1];
                        let target = &mut scattered[received[index] + range.start..received[index] + range.end];
                        target.copy_from_slice(&by_source[at..at + range.len()]);
                        at += range.len();
                    }
                }
            }
        }
        let input = is_agent.then_some(&*scattered);
        let data = Data { input, output, from: Blocks::Bounds(&received), to: Blocks::Even };
        self.here(self.part(Kind::Scatter, 0, most_received), data)
    }
}

/// The chunks of `bytes` bytes. There is one where there are no bytes, since all ranks meet in every call.
fn chunks(bytes: usize, chunk: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes.div_ceil(chunk).max(1)).map(move |index| index * chunk..bytes.min((index + 1) * chunk))
}

/// Parts of memory that is kept from call to call, each aligned to every element.
fn parts<const N: usize>(words: &mut Vec<u64>, bytes: [usize; N]) -> [&mut [u8]; N] {
    let words_of = |bytes: usize| bytes.div_ceil(size_of::<u64>());
    let needed = bytes.iter().map(|&bytes| words_of(bytes)).sum();
    if words.len() < needed {
        words.resize(needed, 0);
    }
    let mut rest = &mut words[..];
    bytes.map(|bytes| {
        let (part, after) = std::mem::take(&mut rest).split_at_mut(words_of(bytes));
        rest = after;
        &mut bytemuck::cast_slice_mut(part)[..bytes]
    })
}

/// Where the blocks of the ranks of each host begin, host after host, and where the last ones end.
fn host_bounds(hosts: &Topology, block: usize) -> Vec<usize> {
    let ends = (0..hosts.hosts()).scan(0, |end, host| {
        *end += hosts.ranks_of(host).len() * block;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// The places of the ranks' blocks, host after host.
fn places(hosts: &Topology) -> impl Iterator<Item = (usize, usize)> {
    let ranks = (0..hosts.hosts()).flat_map(|host| hosts.ranks_of(host)).copied();
    (0..).zip(ranks.map(|rank| rank as usize))
}

/// Orders a part of blocks that lie in the order of ranks host after host.
fn by_host(hosts: &Topology, (block, part): (usize, Range<usize>), from: &[u8], to: &mut [u8]) {
    places(hosts).for_each(|(place, rank)| {
        to[place * part.len()..][..part.len()].copy_from_slice(&from[rank * block..][part.clone()]);
    });
}

/// Puts a part of blocks that lie host after host where it belongs in blocks in the order of ranks.
fn by_rank(hosts: &Topology, (block, part): (usize, Range<usize>), from: &[u8], to: &mut [u8]) {
    places(hosts).for_each(|(place, rank)| {
        to[rank * block..][part.clone()].copy_from_slice(&from[place * part.len()..][..part.len()]);
    });
}

/// The bytes of a block that go at a time, where a block of each rank does: whole cache lines, as elements of this size.
fn block_chunk(hosts: &Topology, size: usize) -> usize {
    (CHUNK / hosts.ranks() as usize).next_multiple_of(CACHE_LINE * size)
}
