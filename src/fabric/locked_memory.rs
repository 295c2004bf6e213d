//! The limit of locked memory: registered memory stays where it is, and the kernel counts it.
#![forbid(unsafe_code)]

use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Result};

/// What this process has locked, and what it may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// Bytes that devices use already.
    pub locked: u64,
    /// The limit (`ulimit -l`) in bytes; `None` for no limit.
    pub limit: Option<u64>,
    /// The limit does not bind this process: it has the capability `CAP_IPC_LOCK`.
    pub is_exempt: bool,
}

/// A limit below this is too low for collectives of some large tensors.
pub const ENOUGH_LOCKED_MEMORY: u64 = 1 << 30;

/// The number of `CAP_IPC_LOCK` (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;

impl LockedMemory {
    /// As the kernel says now.
    #[must_use]
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        LockedMemory::of(&status, getrlimit(Resource::Memlock).current)
    }

    fn of(status: &str, limit: Option<u64>) -> Self {
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let kilobytes = value("VmPin:").and_then(|text| text.strip_suffix("kB")?.trim_end().parse::<u64>().ok());
        let capabilities = value("CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
        LockedMemory {
            locked: kilobytes.unwrap_or(0) << 10,
            limit,
            is_exempt: capabilities.is_some_and(|all| all >> CAP_IPC_LOCK & 1 == 1),
        }
    }

    /// The limit, if it binds this process.
    #[must_use]
    pub fn binding_limit(&self) -> Option<u64> {
        self.limit.filter(|_| !self.is_exempt)
    }

    /// Checks whether the limit allows so much more, before any is taken. A process with the
    /// capability goes on: in a user namespace the kernel may refuse it nevertheless, and says so.
    pub(in crate::internals::fabric) fn check(&self, rank: u32, operation: &'static str, need: u64) -> Result<()> {
        if self.is_exempt { Ok(()) } else { self.explain(rank, operation, need).map_or(Ok(()), Err) }
    }

    /// The error of a registration that the kernel has refused, if the limit explains it.
    pub(in crate::internals::fabric) fn explain(&self, rank: u32, operation: &'static str, need: u64) -> Option<Error> {
        let LockedMemory { locked, limit, .. } = *self;
        let limit = limit.filter(|&limit| locked.saturating_add(need) > limit)?;
        Some(Error::LockedMemory { rank, operation, need, locked, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_process_is_read() {
        let status = "Name:\tx\nVmLck:\t       8 kB\nVmPin:\t    1536 kB\nCapEff:\t0000000000004000\n";
        let memory = LockedMemory::of(status, Some(8 << 20));
        assert_eq!(memory, LockedMemory { locked: 1536 << 10, limit: Some(8 << 20), is_exempt: true });
        assert_eq!(memory.binding_limit(), None);
        // All capabilities but this one.
        let memory = LockedMemory::of("CapEff:\tffffffffffffbfff\n", Some(8 << 20));
        assert_eq!(memory, LockedMemory { locked: 0, limit: Some(8 << 20), is_exempt: false });
        assert_eq!(memory.binding_limit(), Some(8 << 20));
        assert_eq!(LockedMemory::of("", None).binding_limit(), None);
    }

    #[test]
    fn a_limit_that_is_too_low_is_named_with_the_need() {
        let tight = LockedMemory { locked: 6 << 20, limit: Some(8 << 20), is_exempt: false };
        assert!(tight.check(3, "register", 2 << 20).is_ok());
        let error = tight.check(3, "register", (2 << 20) + 1).unwrap_err();
        assert!(matches!(error, Error::LockedMemory { rank: 3, limit: 0x80_0000, .. }), "{error}");
        let text = tight.check(3, "register", 11 << 20).unwrap_err().to_string();
        let said = "rank 3: register: needs 11 MiB of locked memory, and 6 MiB of the limit of 8 MiB are in use; ";
        assert!(text.starts_with(said) && text.contains("ulimit -l unlimited"), "{text}");
        // The kernel decides about a process that has the capability, and one without a limit.
        let exempt = LockedMemory { is_exempt: true, ..tight };
        assert!(exempt.check(3, "register", 11 << 20).is_ok());
        assert!(exempt.explain(3, "register", 11 << 20).is_some());
        let unlimited = LockedMemory { limit: None, ..tight };
        assert!(unlimited.check(3, "register", u64::MAX).is_ok());
        assert!(unlimited.explain(3, "register", u64::MAX).is_none());
        assert!(tight.explain(3, "register", 1 << 20).is_none(), "the limit is not the cause");
    }

    #[test]
    fn the_kernel_says_what_this_process_may_lock() {
        let memory = LockedMemory::now();
        assert_eq!(memory.limit, getrlimit(Resource::Memlock).current);
    }
}
