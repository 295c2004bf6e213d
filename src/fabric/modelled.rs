//! The memory of one host as loom models it, and endpoints of its ranks.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Word;
use std::time::Duration;

use super::shm::doorbell::{self, Doorbell, Rings};
use super::{Access, At, Atomic, Completion, Endpoint, Interest, Key, Posted, Region, Signal, Window};
use crate::error::Result;
use crate::sync::AtomicU64;
use crate::sync::modelled::{Operation, is_planted};

const _: () = assert!(size_of::<AtomicU64>() >= size_of::<u64>());

/// A control region of loom's atomics and a data region that loom watches; for each rank an
/// endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    control: Window,
    data: Window,
    /// The doorbells of the ranks, and the rings of their sleepers; empty if no rank sleeps.
    bells: Arc<[(Doorbell, Rings)]>,
    /// The rank of this endpoint.
    rank: u32,
}

impl Host {
    pub(crate) const CONTROL: Region = Region(0);
    pub(crate) const DATA: Region = Region(1);

    pub(crate) fn new(cells: usize, bytes: usize) -> Self {
        let control: Arc<[AtomicU64]> = (0..cells).map(|_| AtomicU64::new(0)).collect();
        let base = NonNull::from(&*control).cast();
        // SAFETY: the slice is at least that long, consists of atomics that are used as such, and
        // lives as long as the `Arc` that the window keeps.
        let control = unsafe { Window::new(base, cells * size_of::<u64>(), Arc::new(control)) };
        let words = bytes.div_ceil(size_of::<u64>());
        let data: Arc<[Word]> = (0..words).map(|_| Word::new(0)).collect();
        let base = NonNull::from(&*data).cast();
        // SAFETY: the slice is that long, zeroed, aligned, may change behind shared references, and
        // lives as long as the `Arc` that the window keeps.
        let data = unsafe { Window::new(base, words * size_of::<u64>(), Arc::new(data)) };
        Host { control, data: data.watched(), bells: Arc::default(), rank: 0 }
    }

    /// The same host, on which `ranks` ranks may sleep. Each fences for itself: loom has no model
    /// of membarrier(2).
    pub(crate) fn with_sleepers(self, ranks: u32) -> Self {
        Host { bells: (0..ranks).map(|_| Default::default()).collect(), ..self }
    }

    /// The endpoint of a rank.
    pub(crate) fn endpoint(&self, rank: u32) -> Self {
        Host { rank, ..self.clone() }
    }

    fn bell(&self) -> &Doorbell {
        &self.bells[self.rank as usize].0
    }

    pub(crate) fn cell(&self, index: usize) -> &AtomicU64 {
        self.control.cell(index)
    }
}

/// There are no other hosts.
const ELSEWHERE: &str = "a rank that shares memory with all others addresses another host";

impl Endpoint for Host {
    fn register(&mut self, _: usize, _: Access) -> Result<Region> {
        unreachable!("{ELSEWHERE}")
    }

    fn key(&self, _: Region) -> Key {
        unreachable!("{ELSEWHERE}")
    }

    fn import(&mut self, _: u32, _: Key) -> Result<Region> {
        unreachable!("{ELSEWHERE}")
    }

    fn window(&self, region: Region) -> Option<Window> {
        match region {
            Host::CONTROL => Some(self.control.clone()),
            Host::DATA => Some(self.data.clone()),
            Region(_) => None,
        }
    }

    fn put(&mut self, _: At, _: At, _: usize, _: Option<Signal>, _: u64) -> Result<Posted> {
        unreachable!("{ELSEWHERE}")
    }

    fn signal(&mut self, _: Signal, _: u64) -> Result<Posted> {
        unreachable!("{ELSEWHERE}")
    }

    fn read(&mut self, _: At, _: At, _: usize, _: u64) -> Result<Posted> {
        unreachable!("{ELSEWHERE}")
    }

    fn atomic(&mut self, at: At, atomic: Atomic, _: u64) -> Result<Posted> {
        assert_eq!(at.region, Host::CONTROL);
        Ok(Posted::Done(atomic.apply(self.cell(at.offset / size_of::<u64>()))))
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

    fn waits_fence_peer(&self) -> bool {
        self.bells.is_empty() || is_planted(Operation::FencePeer, None)
    }

    fn cancel_wait(&mut self) {
        self.bell().withdraw();
    }

    fn wait(&mut self, at_most: Duration) {
        self.bell().sleep(at_most);
    }

    fn wake(&mut self, most: u32, interest: Interest) -> u32 {
        if self.bells.is_empty() {
            return 0;
        }
        let others =
            (0..).zip(&*self.bells).filter(|(rank, _)| *rank != self.rank).map(|(_, (bell, sleeper))| (bell, sleeper));
        doorbell::ring_all(others, most, interest)
    }
}
