//! One collective's operations in shared memory.

use std::sync::Arc;
use std::time::Duration;

use super::doorbell::Doorbell;
use super::segment::Segment;
use crate::error::{Error, Result};
use crate::fabric::{At, Atomic, Change, Completion, Endpoint, Interest, Key, Posted, Region, Signal, Waker, Window};
use crate::sync::{self, full_fence};

/// A key is an offset in the world's file, and a length with the owner above it.
const OWNER: u32 = 48;

#[derive(Debug)]
pub(super) struct ShmEndpoint {
    segment: Arc<Segment>,
    rank: u32,
    channel: u32,
    regions: Vec<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    owner: u32,
    offset: u64,
    bytes: usize,
    window: Window,
}

impl ShmEndpoint {
    pub(super) fn new(segment: Arc<Segment>, rank: u32, channel: u32) -> Self {
        ShmEndpoint { segment, rank, channel, regions: Vec::new() }
    }

    fn bell(&self) -> &Doorbell {
        self.segment.doorbell(self.channel, self.rank)
    }

    fn usage(&self, operation: &'static str, problem: &'static str) -> Error {
        Error::Usage { rank: self.rank, operation, problem }
    }

    fn mapped(&self, operation: &'static str, at: At, len: usize) -> Result<&Mapped> {
        let mapped = self.regions.get(at.region.0 as usize);
        let inside = |mapped: &&Mapped| at.offset <= mapped.bytes && len <= mapped.bytes - at.offset;
        mapped.filter(inside).ok_or_else(|| self.usage(operation, "a place outside its region"))
    }

    fn add(&mut self, owner: u32, offset: u64, bytes: usize) -> Result<Region> {
        let window = self.segment.window(offset, bytes)?;
        self.regions.push(Mapped { owner, offset, bytes: window.len(), window });
        Ok(Region(self.regions.len() as u32 - 1))
    }

    fn change(&self, signal: Signal) -> Result<()> {
        let mapped = self.mapped("signal", signal.at, size_of::<u64>())?;
        if !signal.at.offset.is_multiple_of(size_of::<u64>()) {
            return Err(self.usage("signal", "a cell that is not aligned to 8 bytes"));
        }
        let cell = mapped.window.cell(signal.at.offset / size_of::<u64>());
        // Release: whoever sees the signal sees the data that was copied before.
        match signal.change {
            Change::Set(value) => sync::announce(cell, value),
            Change::Add(value) => _ = sync::add(cell, value),
        }
        full_fence();
        self.segment.doorbell(self.channel, mapped.owner).ring_always();
        Ok(())
    }
}

impl Endpoint for ShmEndpoint {
    fn register(&mut self, bytes: usize) -> Result<Region> {
        let offset = self.segment.allocate(bytes)?;
        self.add(self.rank, offset, bytes)
    }

    fn key(&self, region: Region) -> Key {
        let key = |mapped: &Mapped| Key([mapped.offset, mapped.bytes as u64 | u64::from(mapped.owner) << OWNER, 0, 0]);
        self.regions.get(region.0 as usize).map_or(Key::NONE, key)
    }

    fn import(&mut self, peer: u32, key: Key) -> Result<Region> {
        let bad = || self.usage("import", "not a key of that peer");
        let Key([offset, what, ..]) = key;
        let bytes = usize::try_from(what & ((1 << OWNER) - 1)).map_err(|_| bad())?;
        if offset == 0 || what >> OWNER != u64::from(peer) {
            return Err(bad());
        }
        self.add(peer, offset, bytes)
    }

    fn window(&self, region: Region) -> Option<Window> {
        self.regions.get(region.0 as usize).map(|mapped| mapped.window.clone())
    }

    fn put(&mut self, from: At, to: At, len: usize, signal: Option<Signal>, _token: u64) -> Result<Posted> {
        if let Some(signal) = signal {
            self.mapped("put", signal.at, size_of::<u64>())?;
        }
        let (source, target) = (self.mapped("put", from, len)?, self.mapped("put", to, len)?);
        Window::copy((&source.window, from.offset), (&target.window, to.offset), len);
        match signal {
            Some(signal) => self.change(signal)?,
            None => sync::fence(sync::Ordering::Release),
        }
        Ok(Posted::Done(0))
    }

    fn signal(&mut self, signal: Signal, _token: u64) -> Result<Posted> {
        self.change(signal)?;
        Ok(Posted::Done(0))
    }

    fn read(&mut self, from: At, to: At, len: usize, _token: u64) -> Result<Posted> {
        let (source, target) = (self.mapped("read", from, len)?, self.mapped("read", to, len)?);
        Window::copy((&source.window, from.offset), (&target.window, to.offset), len);
        Ok(Posted::Done(0))
    }

    fn atomic(&mut self, at: At, atomic: Atomic, _token: u64) -> Result<Posted> {
        let mapped = self.mapped("atomic", at, size_of::<u64>())?;
        if !at.offset.is_multiple_of(size_of::<u64>()) {
            return Err(self.usage("atomic", "a cell that is not aligned to 8 bytes"));
        }
        let cell = mapped.window.cell(at.offset / size_of::<u64>());
        let before = match atomic {
            Atomic::FetchAdd(value) => sync::add(cell, value),
            Atomic::CompareSwap { expect, new } => sync::swap(cell, expect, new),
        };
        Ok(Posted::Done(before))
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        Ok(None)
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        Ok(None)
    }

    fn prepare_wait(&mut self, interest: Interest) {
        self.bell().announce(interest);
    }

    fn cancel_wait(&mut self) {
        self.bell().withdraw();
    }

    fn wait(&mut self, at_most: Duration) {
        self.bell().sleep(at_most);
    }

    fn waker(&self) -> Waker {
        let (segment, channel, rank) = (self.segment.clone(), self.channel, self.rank);
        Waker::new(move || {
            full_fence();
            segment.doorbell(channel, rank).ring_always();
        })
    }

    fn wake(&mut self, most: u32, interest: Interest) -> u32 {
        // With the fence in `announce`: a sleeper whose announcement is not seen here sees what
        // was stored before this.
        full_fence();
        let ranks = self.segment.ranks();
        let mut woken = 0;
        for next in 1..=ranks {
            let rank = (self.rank + next) % ranks;
            if woken == most {
                break;
            }
            if rank != self.rank && self.segment.doorbell(self.channel, rank).ring(interest) {
                woken += 1;
            }
        }
        woken
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        // The last rank to close gives the memory back; those before may still be read from.
        if self.segment.close(self.channel) {
            self.regions.iter().for_each(|region| self.segment.free(region.offset, region.bytes));
        }
    }
}
