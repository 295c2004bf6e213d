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

/// A launcher's interface to its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessManager {
    /// PMI-1, by lines over an inherited socket with this number.
    Pmi(i32),
    /// PMIx, by its library.
    Pmix,
}

impl ProcessManager {
    /// Returns what this process finds in its environment.
    pub(super) fn of(lookup: &impl Fn(&str) -> Option<String>) -> Option<Self> {
        let pmi = lookup("PMI_FD").and_then(|number| number.trim().parse().ok()).map(ProcessManager::Pmi);
        pmi.or_else(|| lookup("PMIX_NAMESPACE").map(|_| ProcessManager::Pmix))
    }

    /// Returns where rank 0 listens, for all ranks alike. A process asks the launcher once, however many worlds it joins.
    ///
    /// # Errors
    /// The launcher does not speak the protocol, or not all ranks have come by `until`.
    pub(crate) fn learn(self, rank: u32, until: Instant) -> Result<Told> {
        static LEARNED: Mutex<Option<Told>> = Mutex::new(None);
        let mut learned = interrupt::lock(&LEARNED, rank, "join", until)?;
        if let Some(told) = &*learned {
            return Ok(told.clone());
        }
        let own = if rank == 0 { Some(Told::drawn().map_err(|cause| Error::os(0, "join", cause))?) } else { None };
        let mine = own.as_ref().map(Told::encode);
        let late = || "not all ranks have come, or it is stopped".to_owned();
        let text = beside(move || share(self, mine.as_deref()), until, late).map_err(|cause| {
            interrupt::of(rank, "join", &cause).unwrap_or_else(|| self.error(rank, &cause.to_string()))
        })?;
        let told =
            Told::decode(&text).ok_or_else(|| self.error(rank, "it tells something else under earlybird's key"))?;
        Ok(learned.insert(told).clone())
    }

    fn error(self, rank: u32, cause: &str) -> Error {
        let name = match self {
            ProcessManager::Pmi(_) => "PMI",
            ProcessManager::Pmix => "PMIx",
        };
        Error::join(
            rank,
            format!(
                "the launcher does not tell where rank 0 is (by {name}): {cause}. EARLYBIRD_STORE=tcp:HOST:PORT on all ranks (a \
                 free port on the host of rank 0) or file:FOLDER (a shared one) does without it"
            ),
        )
    }
}

/// Gives the text of rank 0 to all ranks.
fn share(manager: ProcessManager, mine: Option<&str>) -> io::Result<String> {
    let owner = match mpi::state() {
        Mpi::Absent => Owner::This,
        Mpi::Initialised => Owner::Mpi,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The addresses of its host.
    hosts: Vec<String>,
    /// The port at which it listens.
    port: u16,
    /// A secret of this job.
    secret: String,
}

impl Told {
    /// Draws what rank 0 tells.
    fn drawn() -> io::Result<Self> {
        let mut addresses = interfaces::addresses()?;
        addresses.truncate(MOST_ADDRESSES);
        if addresses.is_empty() {
            addresses.push(Ipv4Addr::LOCALHOST.into());
        }
        let hosts = addresses.iter().map(IpAddr::to_string).collect();
        let secret = draw::<16>(0).map_err(io::Error::other)?.map(|byte| format!("{byte:02x}")).concat();
        Ok(Told { hosts, port: free_port()?, secret })
    }

    /// Returns the place where rank 0 listens.
    pub(crate) fn place(&self) -> StoreAddress {
        StoreAddress::Among { hosts: self.hosts.clone(), port: self.port }
    }

    /// Returns the secret of the job.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    fn encode(&self) -> String {
        format!("{}/{}/{}", self.port, self.secret, self.hosts.join("/"))
    }

    fn decode(text: &str) -> Option<Self> {
        let mut parts = text.split('/').map(str::to_owned);
        let (port, secret) = (parts.next()?.parse().ok()?, parts.next()?);
        let hosts: Vec<String> = parts.collect();
        let are_addresses = !hosts.is_empty() && hosts.iter().all(|host| host.parse::<IpAddr>().is_ok());
        (port > 0 && are_addresses && secret.len() == 32).then_some(Told { hosts, port, secret })
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
        let told = Told::drawn().unwrap();
        let text = told.encode();
        assert!(text.len() < 1024 && !text.contains([' ', '=', '\n']), "{text}");
        assert_eq!(Told::decode(&text), Some(told));
        let secret = "0123456789abcdef0123456789abcdef";
        assert!(Told::decode(&format!("5/{secret}/10.0.0.1/fd00::1")).is_some());
        for strange in ["", "5", "x/y/z", &format!("0/{secret}/10.0.0.1"), &format!("5/{secret}"), "5/short/10.0.0.1"] {
            assert_eq!(Told::decode(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_launcher_that_is_not_there_is_an_error() {
        let error = ProcessManager::Pmi(-1).learn(1, Instant::now() + std::time::Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("EARLYBIRD_STORE=tcp:HOST:PORT"), "{error}");
    }
}
