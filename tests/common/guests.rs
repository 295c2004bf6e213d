//! Two guests of `tests/soft-roce/run`: hosts of their own, whose RDMA devices are joined by a cable. The same test runs
//! in both, and starts some ranks of each job in each.

use std::process::Command;

use super::marks::Marks;
use super::{Job, LEVELS_1, Need, skipped, start};

/// Ranks of a job on each host.
pub const RANKS_PER_HOST: u32 = 2;

/// Both guests, as one of them sees them.
pub struct Guests {
    /// The number of this guest.
    pub host: usize,
    addresses: Vec<String>,
    /// What both guests see, also while the cable is unplugged.
    folder: String,
    marks: Marks,
    /// The port at which the next job meets.
    port: u16,
    /// The devices of ranks, if it is not for them to choose.
    devices: Option<&'static str>,
    /// Whether each rank is a host of its own.
    is_apart: bool,
}

/// The ranks of a host.
pub fn ranks_of(host: usize) -> std::ops::Range<u32> {
    let first = host as u32 * RANKS_PER_HOST;
    first..first + RANKS_PER_HOST
}

impl Guests {
    /// Waits for the other guest; prints a message outside of two guests. The jobs of a test meet at ports from this one
    /// on.
    pub fn find(port: u16) -> Option<Guests> {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let [host, addresses, folder] = ["SOFT_ROCE_HOST", "SOFT_ROCE_HOSTS", "SOFT_ROCE_FOLDER"].map(variable);
        let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
        if addresses.len() < 2 {
            skipped(Need::Verbs, "this is none of two guests; tests/soft-roce/suite starts them");
            return None;
        }
        let mut guests = Guests {
            host: host.parse().unwrap(),
            addresses,
            marks: Marks::at(&folder),
            folder,
            port,
            devices: None,
            is_apart: true,
        };
        guests.meet(&format!("begin-{port}"));
        guests.port += 1;
        Some(guests)
    }

    /// Ranks of a job on all hosts.
    pub fn ranks(&self) -> u32 {
        self.addresses.len() as u32 * RANKS_PER_HOST
    }

    /// The port of the next job, which no other job has.
    pub fn next_port(&self) -> u16 {
        self.port
    }

    /// From now on ranks use these devices.
    pub fn use_devices(&mut self, devices: &'static str) {
        self.devices = Some(devices);
    }

    /// Whether ranks of a guest share memory from now on.
    pub fn share_memory(&mut self, shares: bool) {
        self.is_apart = !shares;
    }

    /// Unplugs the cable (`off`), or plugs it in (`on`); or the second one (`off1`, `on1`).
    pub fn cable(&self, state: &str) {
        if self.host == 0 {
            std::fs::write("/dev/cable", format!("{state}\n")).unwrap();
        }
    }

    /// A folder that both guests see.
    pub fn make_folder(&self, name: &str) -> String {
        let folder = format!("{}/{name}", self.folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Starts the ranks of this host, in the same role as those of the other one.
    pub fn start(&mut self, role: &str) -> Job {
        let store = format!("tcp:{}:{}", self.addresses[0], self.port);
        self.port += 1;
        let begin = |rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .env("EARLYBIRD_FABRIC", "verbs")
                .envs(self.is_apart.then_some(LEVELS_1))
                .env("EARLYBIRD_STORE", &store);
            command.envs(self.devices.map(|devices| ("EARLYBIRD_DEVICE", devices)));
            command.env("EARLYBIRD_SECRET", "of all these guests").env("EARLYBIRD_SILENCE", "5s");
            start(&mut command, (rank, self.ranks()), "rank", role)
        };
        Job { ranks: ranks_of(self.host).map(begin).collect() }
    }

    /// Waits until both guests are here.
    pub fn meet(&self, what: &str) {
        self.marks.set(&format!("{what}-{}", self.host));
        (0..self.addresses.len()).for_each(|host| self.marks.wait(&format!("{what}-{host}")));
    }

    /// What each guest tells, by its number. Both must tell something, by the same name.
    pub fn exchange(&self, name: &str, mine: &str) -> Vec<String> {
        let path = |host: usize| format!("{}/{name}-text-{host}", self.folder);
        std::fs::write(path(self.host), mine).unwrap();
        self.meet(name);
        (0..self.addresses.len()).map(|host| std::fs::read_to_string(path(host)).unwrap()).collect()
    }
}
