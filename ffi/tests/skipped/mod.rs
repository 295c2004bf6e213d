//! What a test says that cannot run here.
#![allow(unreachable_pub, reason = "a test has it as a module, others as a part of one")]

use std::fmt::Display;
use std::io::Write;

/// What some tests need, and not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// cargo, to compile programs that depend on this project.
    Cargo,
    /// The C compiler `clang`.
    Clang,
    /// The C compilers `cc` and `c++`.
    Compiler,
    /// The command `nft`, and a kernel with nftables.
    Firewall,
    /// Control groups that this user can make.
    Groups,
    /// A C compiler, and the headers of libfabric and libibverbs.
    Headers,
    /// The command `ip`, of iproute2.
    Ip,
    /// libfabric, with the provider `sockets`.
    Libfabric,
    /// A kernel with membarrier(2).
    Membarrier,
    /// Open MPI and MPICH, as wheels.
    Mpi,
    /// A kernel that makes network and process namespaces for this user.
    Namespaces,
    /// Python 3.11 with venv, and a package index.
    Python,
    /// To be root, and to act as another user.
    Root,
    /// Slurm and munge.
    Slurm,
    /// The command `valgrind`.
    Valgrind,
    /// A device for InfiniBand or RoCE.
    Verbs,
}

/// Lists what a test must not be skipped for, by names with commas between them; `all` is all there is.
const NO_SKIPS: &str = "TEST_NO_SKIPS";

impl Need {
    const EVERY: [Need; 16] = [
        Need::Cargo,
        Need::Clang,
        Need::Compiler,
        Need::Firewall,
        Need::Groups,
        Need::Headers,
        Need::Ip,
        Need::Libfabric,
        Need::Membarrier,
        Need::Mpi,
        Need::Namespaces,
        Need::Python,
        Need::Root,
        Need::Slurm,
        Need::Valgrind,
        Need::Verbs,
    ];

    fn name(self) -> &'static str {
        match self {
            Need::Cargo => "cargo",
            Need::Clang => "clang",
            Need::Compiler => "compiler",
            Need::Firewall => "firewall",
            Need::Groups => "groups",
            Need::Headers => "headers",
            Need::Ip => "ip",
            Need::Libfabric => "libfabric",
            Need::Membarrier => "membarrier",
            Need::Mpi => "mpi",
            Need::Namespaces => "namespaces",
            Need::Python => "python",
            Need::Root => "root",
            Need::Slurm => "slurm",
            Need::Valgrind => "valgrind",
            Need::Verbs => "verbs",
        }
    }

    /// Whether a list says that tests must not be skipped for want of this.
    ///
    /// # Panics
    /// At a name that there is not: it would demand nothing.
    pub fn is_demanded(self, list: &str) -> bool {
        let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let known = Need::EVERY.map(Need::name);
        let strange = names.iter().find(|name| **name != "all" && !known.contains(name));
        assert!(strange.is_none(), "{NO_SKIPS}={list}: use all, or some of {}", known.join(","));
        names.contains(&"all") || names.contains(&self.name())
    }
}

/// Says why a test does nothing: by the process's own stderr, because what a test that passes prints is not shown.
///
/// # Panics
/// If `TEST_NO_SKIPS` demands what is missing.
pub fn skipped(need: Need, why: impl Display) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {}: {why}", need.name());
    let list = std::env::var(NO_SKIPS).unwrap_or_default();
    assert!(!need.is_demanded(&list), "{NO_SKIPS}={list}, and {} is missing: {why}", need.name());
}
