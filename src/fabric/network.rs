//! Fabrics between hosts, and how ranks choose one.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use super::failure::Failure;
use super::{Access, Endpoint, Fabric, Region, Scope, Window};
use crate::error::Result;
use crate::seal::Secret;

/// Called at intervals and after a failure, on a thread of the network, with why the network has failed. Returns why it
/// must fail.
pub(crate) type Attendant = Box<dyn Fn(Option<Failure>) -> Option<Failure> + Send + Sync>;

/// A fabric between hosts.
pub(crate) trait NetworkFabric: Fabric {
    /// Calls `attendant` from now on; there is one.
    fn attend(&self, attendant: Attendant);

    /// Opens an endpoint, as [`Fabric::open`] does, for memory that ranks of this host share.
    ///
    /// # Errors
    /// As [`Fabric::open`].
    fn open_for_host(&self) -> Result<Box<dyn NetworkEndpoint>>;

    /// Ends all waits for endpoints of this rank from now on when another process of its host rings this bell.
    fn hear(&self, bell: OwnedFd);

    /// Returns why the network has failed, if it has.
    fn failure(&self) -> Option<Failure>;

    /// Fails the network, and tells the other ranks. A rank in the failure that is none of this network has a number
    /// beyond those that are.
    fn fail(&self, failure: Failure);
}

/// An endpoint of a network that reaches memory which ranks of this host share.
pub(crate) trait NetworkEndpoint: Endpoint {
    /// Lets peers use memory that is there already, as [`Endpoint::register`] does for new memory.
    ///
    /// # Errors
    /// The provider or the limit of locked memory refuses it.
    fn register_window(&mut self, window: Window, access: Access) -> Result<Region>;

    /// Closes the endpoint. When all peers have closed theirs, none of them can reach the memory of this one any more, and
    /// the owner of that memory is dropped.
    fn close_before(self: Box<Self>, owner: Box<dyn Endpoint>);
}

/// A network by which a rank could join a world. A drop leaves nothing behind.
pub(crate) trait Candidate: Debug {
    /// Returns what ranks must have in common to understand each other: the provider of libfabric, or the network of a
    /// device.
    fn network(&self) -> &str;

    /// Returns what the other ranks must know about this one.
    fn introduction(&self) -> Vec<u8>;

    /// Returns the name of the device.
    fn device(&self) -> &str;

    /// Returns which hosts can reach it.
    fn scope(&self) -> Scope;

    /// Returns what this rank would have preferred, and why it cannot use that.
    fn passed_over(&self) -> Option<&str>;

    /// Joins the world of the ranks with these introductions, in rank order, from a meeting with this secret. `named` are
    /// the ranks for texts, where others than 0, 1, …
    ///
    /// # Errors
    /// Ranks use different providers, or a rank cannot be reached by the deadline.
    fn join(
        self: Box<Self>,
        introductions: &[Vec<u8>],
        named: Option<&[u32]>,
        secret: &Secret,
        deadline: Instant,
    ) -> Result<Arc<dyn NetworkFabric>>;
}
