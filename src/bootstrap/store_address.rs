//! The address of the store at which the ranks of a job meet.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// `unix:NAME`: an abstract socket, for ranks on one machine.
    Unix(String),
    /// `tcp:HOST:PORT`: a port on the host of rank 0.
    Tcp {
        /// A name or an address by which the other hosts know it.
        host: String,
        /// A free port there.
        port: u16,
    },
    /// As [`StoreAddress::Tcp`], where the host of rank 0 is one of several. Rank 0 listens, and the others ask at each
    /// host until one answers. Launchers set it, users do not.
    Among {
        /// The hosts, in the order in which they are asked.
        hosts: Vec<String>,
        /// A free port on the host of rank 0.
        port: u16,
    },
    /// `file:FOLDER`: a folder that all hosts share, used only by this job.
    File(PathBuf),
}

impl StoreAddress {
    /// Returns a port for a number, between those of services and those that the system assigns.
    pub(super) fn port_of(number: u64) -> u16 {
        20_000 + (number % 10_000) as u16
    }

    /// Returns the address of a port if it is numeric, or this machine's own: at another address of `localhost` another
    /// process may listen.
    pub(super) fn given_ip(&self) -> Option<IpAddr> {
        let StoreAddress::Tcp { host, .. } = self else { return None };
        host.parse().ok().or_else(|| self.is_on_one_machine().then_some(Ipv4Addr::LOCALHOST.into()))
    }

    /// Returns whether no other machine reaches it.
    #[must_use]
    pub fn is_on_one_machine(&self) -> bool {
        match self {
            StoreAddress::Unix(_) => true,
            StoreAddress::Tcp { host, .. } => {
                host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
            }
            StoreAddress::Among { .. } | StoreAddress::File(_) => false,
        }
    }
}

impl FromStr for StoreAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| Err(format!("{text:?}: {why}; use unix:NAME, tcp:HOST:PORT or file:FOLDER"));
        match text.split_once(':') {
            Some(("unix", name)) if (1..=80).contains(&name.len()) => Ok(StoreAddress::Unix(name.to_owned())),
            Some(("unix", _)) => bad("a name has 1 to 80 bytes"),
            Some(("tcp", address)) => {
                let address = address.strip_prefix("//").unwrap_or(address);
                let (host, port) = address.rsplit_once(':').unwrap_or(("", ""));
                let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                match port.parse() {
                    Ok(port @ 1..) if !host.is_empty() => Ok(StoreAddress::Tcp { host: host.to_owned(), port }),
                    _ => bad("a host and a port from 1 to 65535 are needed"),
                }
            }
            Some(("file", folder)) => match folder.strip_prefix("//").unwrap_or(folder) {
                "" => bad("the folder has no name"),
                folder => Ok(StoreAddress::File(folder.into())),
            },
            _ => bad("not a place to meet"),
        }
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreAddress::Unix(name) => write!(f, "unix:{name}"),
            StoreAddress::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            StoreAddress::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            StoreAddress::Among { hosts, port } => {
                const SHOWN: usize = 4;
                let more = if hosts.len() > SHOWN { "|..." } else { "" };
                write!(f, "tcp:{}{more}:{port}", hosts[..hosts.len().min(SHOWN)].join("|"))
            }
            StoreAddress::File(folder) => write!(f, "file:{}", folder.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_they_are_read() {
        for text in ["unix:x", "tcp:node01:29400", "tcp:[fe80::1]:5", "tcp:10.0.0.1:65535", "file:/scratch/job 1"] {
            assert_eq!(text.parse::<StoreAddress>().unwrap().to_string(), text);
        }
        let among = |hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            StoreAddress::Among { hosts, port: 7 }.to_string()
        };
        assert_eq!(among(&["a", "b"]), "tcp:a|b:7");
        assert_eq!(among(&["a", "b", "c", "d", "e"]), "tcp:a|b|c|d|...:7");
        assert_eq!("tcp://a:1".parse(), "tcp:a:1".parse::<StoreAddress>());
        assert_eq!("file:///a".parse(), "file:/a".parse::<StoreAddress>());
    }

    #[test]
    fn names_and_loopback_addresses_lead_to_one_machine() {
        for (text, is) in [
            ("unix:x", true),
            ("tcp:127.0.0.1:5", true),
            ("tcp:127.9.0.1:5", true),
            ("tcp:[::1]:5", true),
            ("tcp:localhost:5", true),
            ("tcp:10.0.0.1:5", false),
            ("tcp:node01:5", false),
            ("file:/scratch", false),
        ] {
            assert_eq!(text.parse::<StoreAddress>().unwrap().is_on_one_machine(), is, "{text}");
        }
    }

    #[test]
    fn localhost_is_where_rank_0_listens_and_no_other_address() {
        let given = |text: &str| text.parse::<StoreAddress>().unwrap().given_ip();
        assert_eq!(given("tcp:localhost:5"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(given("tcp:10.0.0.1:5"), Some(Ipv4Addr::new(10, 0, 0, 1).into()));
        assert_eq!(given("tcp:node01:5"), None);
        assert_eq!(given("unix:name"), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "x", "unix:", "tcp:", "tcp:a", "tcp:a:", "tcp::1", "tcp:a:0", "tcp:a:65536", "file:", "ftp:a:1"]
        {
            let problem = text.parse::<StoreAddress>().unwrap_err();
            assert!(problem.contains("tcp:HOST:PORT"), "{problem}");
        }
    }
}
