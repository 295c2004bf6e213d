//! The launcher as a place where ranks on several hosts learn where to meet: rank 0 tells it its addresses, a free port and a
//! secret that it has drawn, and the launcher tells the others. Then the ranks meet at that port.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Instant;

use earlybird_ffi::mpi::{self, Mpi};
use earlybird_ffi::{inherited, interfaces, pmix, rights};
use parking_lot::Mutex;

use super::beside::beside;
use super::pmi::{self, Owner};
use super::store_address::StoreAddress;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::random::draw;

/// The key under which rank 0 tells it.
const KEY: &str = "earlybird";

/// Values of PMI-1 may have 1,024 bytes in older launchers, and a host may have many addresses.
const MOST_ADDRESSES: usize = 16;

/// Finds variables of the environment.
pub(super) type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// A launcher's interface to its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessManager {
    /// PMI-1, by lines over an inherited socket with this number.
    Pmi(i32),
    /// PMIx, by its library.
    Pmix,
}

/// How far this process's conversation with the launcher is. A process has one.
enum Conversation {
    NotBegun,
    /// Begun, and not ended in time: another thread may still read what the launcher says.
    Begun,
    Over(Told),
}

impl ProcessManager {
    /// Returns what a launcher that speaks PMI-1 has left in the environment.
    pub(super) fn pmi(lookup: &Variables<'_>) -> Option<Self> {
        lookup("PMI_FD").and_then(|number| number.trim().parse().ok()).map(ProcessManager::Pmi)
    }

    /// Returns what a launcher that speaks PMIx has left there.
    pub(super) fn pmix(lookup: &Variables<'_>) -> Option<Self> {
        lookup("PMIX_NAMESPACE").map(|_| ProcessManager::Pmix)
    }

    /// Returns where rank 0 listens, for all ranks alike, and the secret of the job: `own`, or the one that rank 0 has drawn. A
    /// process asks the launcher once, however many worlds it joins.
    ///
    /// # Errors
    /// The launcher does not speak the protocol, not all ranks have come by `until`, or some ranks have a secret of their own
    /// and others have none.
    pub(crate) fn learn(self, rank: u32, own: Option<&str>, until: Instant) -> Result<(StoreAddress, String)> {
        static STATE: Mutex<Conversation> = Mutex::new(Conversation::NotBegun);
        let mut state = interrupt::lock(&STATE, rank, "join", until)?;
        match &*state {
            Conversation::NotBegun => {}
            Conversation::Begun => {
                return Err(self.error(rank, "a try before this one has not ended, and a process has one try"));
            }
            Conversation::Over(told) => return told.for_rank(rank, own),
        }
        let drawn = |_| Told::drawn(own.is_some()).map_err(|cause| Error::os(0, "join", cause));
        let own_told = (rank == 0).then_some(()).map(drawn).transpose()?;
        *state = Conversation::Begun;
        let mine = own_told.as_ref().map(Told::encode);
        let late = || "not all ranks have come in time; it does not say which".to_owned();
        let text = beside(move || share(self, mine.as_deref()), until, late).map_err(|cause| {
            interrupt::of(rank, "join", &cause).unwrap_or_else(|| self.error(rank, &cause.to_string()))
        })?;
        let told =
            Told::decode(&text).ok_or_else(|| self.error(rank, "it tells something else under earlybird's key"))?;
        let result = told.for_rank(rank, own);
        *state = Conversation::Over(told);
        result
    }

    fn error(self, rank: u32, cause: &str) -> Error {
        let name = match self {
            ProcessManager::Pmi(_) => "PMI",
            ProcessManager::Pmix => "PMIx",
        };
        Error::join(
            rank,
            format!(
                "ranks could not meet by the launcher ({name}): {cause}. With EARLYBIRD_STORE=tcp:HOST:PORT (a free port on \
                 the host of rank 0) or file:FOLDER (a shared one) on all ranks they meet without it, and learn who is missing"
            ),
        )
    }
}

/// Gives the text of rank 0 to all ranks.
fn share(manager: ProcessManager, mine: Option<&str>) -> io::Result<String> {
    let owner = match mpi::state() {
        Mpi::Absent => Owner::This,
        Mpi::Initialised => Owner::Mpi,
        Mpi::Finalised => {
            return Err(io::Error::other("this program has called MPI_Finalize before it joined a world"));
        }
        // A conversation by PMI has one end, and libraries of PMIx crash in the second of two that follow each other.
        Mpi::Loaded => {
            return Err(io::Error::other("this program has MPI, and must call MPI_Init before it joins a world"));
        }
    };
    match manager {
        ProcessManager::Pmi(number) => pmi::share(inherited::stream(number)?, owner, KEY, mine),
        ProcessManager::Pmix => pmix::share(&folders(), KEY, mine).map_err(io::Error::other),
    }
}

/// Returns the folders in which launchers may have their library, besides the system's.
fn folders() -> Vec<OsString> {
    if rights::are_raised() {
        return Vec::new();
    }
    let named = |name, under: &[&str]| {
        let folder = std::env::var_os(name).filter(|folder| !folder.is_empty());
        let below = |folder: OsString| under.iter().map(|sub| Path::new(&folder).join(sub).into_os_string()).collect();
        folder.map_or_else(Vec::new, below)
    };
    let open_mpi = named("OMPI_LIBDIR_LOC", &["", "openmpi"]);
    [open_mpi, named("PMIX_PREFIX", &["lib", "lib64", "lib/openmpi"])].concat()
}

/// What rank 0 tells the others.
#[derive(Clone, PartialEq, Eq)]
struct Told {
    /// The addresses of its host.
    hosts: Vec<String>,
    /// The port at which it listens.
    port: u16,
    /// A secret of this job; `None` if rank 0 has one that the user gave.
    secret: Option<String>,
}

/// Instead of a secret.
const OF_THE_USER: &str = "-";

impl Told {
    /// Draws what rank 0 tells.
    fn drawn(has_own: bool) -> io::Result<Self> {
        let mut addresses = interfaces::addresses()?;
        addresses.truncate(MOST_ADDRESSES);
        if addresses.is_empty() {
            addresses.push(Ipv4Addr::LOCALHOST.into());
        }
        let hosts = addresses.iter().map(IpAddr::to_string).collect();
        let secret = draw::<16>(0).map_err(io::Error::other)?.map(|byte| format!("{byte:02x}")).concat();
        Ok(Told { hosts, port: free_port()?, secret: (!has_own).then_some(secret) })
    }

    /// Returns the place where rank 0 listens, and the secret of the job.
    fn for_rank(&self, rank: u32, own: Option<&str>) -> Result<(StoreAddress, String)> {
        let place = StoreAddress::Among { hosts: self.hosts.clone(), port: self.port };
        match (own, &self.secret) {
            (Some(own), None) => Ok((place, own.to_owned())),
            (None, Some(drawn)) => Ok((place, drawn.clone())),
            (Some(_), Some(_)) => Err(Error::join(
                rank,
                "this rank has EARLYBIRD_SECRET, and rank 0 has none; set it on all ranks, or on none",
            )),
            (None, None) => Err(Error::join(
                rank,
                "rank 0 has EARLYBIRD_SECRET, and this rank has none; pass it to all ranks (mpirun -x EARLYBIRD_SECRET), or unset it",
            )),
        }
    }

    fn encode(&self) -> String {
        let secret = self.secret.as_deref().unwrap_or(OF_THE_USER);
        format!("{}/{secret}/{}", self.port, self.hosts.join("/"))
    }

    fn decode(text: &str) -> Option<Self> {
        let mut parts = text.split('/').map(str::to_owned);
        let (port, secret) = (parts.next()?.parse().ok()?, parts.next()?);
        let hosts: Vec<String> = parts.collect();
        let are_addresses = !hosts.is_empty() && hosts.iter().all(|host| host.parse::<IpAddr>().is_ok());
        let is_secret = secret == OF_THE_USER || secret.len() == 32;
        let secret = Some(secret).filter(|secret| secret != OF_THE_USER);
        (port > 0 && are_addresses && is_secret).then_some(Told { hosts, port, secret })
    }
}

/// Finds a port at which no program of this host listens now, beside those that the system assigns.
fn free_port() -> io::Result<u16> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..100 {
        let port = StoreAddress::port_of(u64::from_le_bytes(draw(0).map_err(io::Error::other)?));
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
            Ok(_) => return Ok(port),
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rank_0_tells_is_one_word_that_others_read() {
        for has_own in [false, true] {
            let told = Told::drawn(has_own).unwrap();
            let text = told.encode();
            assert!(text.len() < 1024 && !text.contains([' ', '=', '\n']), "{text}");
            assert!(Told::decode(&text) == Some(told.clone()));
            // All ranks have a secret of the user's, or none has.
            assert_eq!(told.for_rank(1, Some("of the user")).is_ok(), has_own);
            assert_eq!(told.for_rank(1, None).is_ok(), !has_own);
        }
        let secret = "0123456789abcdef0123456789abcdef";
        assert!(Told::decode(&format!("5/{secret}/10.0.0.1/fd00::1")).is_some());
        for strange in ["", "5", "x/y/z", &format!("0/{secret}/10.0.0.1"), &format!("5/{secret}"), "5/short/10.0.0.1"] {
            assert!(Told::decode(strange).is_none(), "{strange}");
        }
    }

    #[test]
    fn a_launcher_that_is_not_there_is_an_error() {
        let until = Instant::now() + std::time::Duration::from_secs(5);
        for named in ["Bad file descriptor", "one try"] {
            let error = ProcessManager::Pmi(-1).learn(1, None, until).unwrap_err().to_string();
            assert!(error.contains("EARLYBIRD_STORE=tcp:HOST:PORT") && error.contains(named), "{error}");
        }
    }
}
