//! Rank and world size, from the variables of the launcher.

use super::store_address::StoreAddress;
use crate::error::{Error, Result};

/// The identity of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// This rank.
    pub rank: u32,
    /// Ranks in the world.
    pub ranks: u32,
    /// The name of the job: the same on all of its ranks, different for other jobs.
    pub job: String,
    /// The address of the store, if the environment names one.
    pub store: Option<StoreAddress>,
    /// An address at which ranks on several machines can meet, if the launcher names a host that
    /// all of them know.
    pub common: Option<StoreAddress>,
    /// On how many machines the ranks are.
    pub machines: Machines,
    /// The launcher whose variables said so.
    pub source: &'static str,
}

/// On how many machines the ranks of a job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machines {
    /// All on this one.
    One,
    /// Some elsewhere.
    Several,
    /// The launcher does not say.
    Unknown,
}

struct Launcher {
    name: &'static str,
    rank: &'static str,
    ranks: &'static [&'static str],
    /// The variable with the number of ranks on this machine, if there is one.
    local: Option<&'static str>,
    /// Variables with the number of machines.
    machines: &'static [&'static str],
    /// Variables that tell its jobs apart.
    job: &'static [&'static str],
}

/// The launchers, in the order in which they are believed. Slurm comes last, because `mpirun`
/// inside a Slurm job inherits its variables.
const LAUNCHERS: [Launcher; 6] = [
    Launcher {
        name: "earlybird",
        rank: "EARLYBIRD_RANK",
        ranks: &["EARLYBIRD_WORLD_SIZE"],
        local: None,
        machines: &[],
        job: &["EARLYBIRD_STORE"],
    },
    Launcher {
        name: TORCHRUN,
        rank: "RANK",
        ranks: &["WORLD_SIZE"],
        local: Some("LOCAL_WORLD_SIZE"),
        machines: &[],
        job: &["MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        local: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        machines: &[],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        ranks: &["PMI_SIZE"],
        local: Some("MPI_LOCALNRANKS"),
        machines: &[],
        job: &["PMI_JOBID", "PMI_KVSNAME"],
    },
    Launcher {
        name: "PMIx",
        rank: "PMIX_RANK",
        ranks: &["PMIX_SIZE", "SLURM_NTASKS"],
        local: None,
        machines: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        job: &["PMIX_NAMESPACE"],
    },
    Launcher {
        name: SLURM,
        rank: "SLURM_PROCID",
        ranks: &["SLURM_NTASKS"],
        local: None,
        machines: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

const TORCHRUN: &str = "torchrun";
const SLURM: &str = "Slurm";

const NO_LAUNCHER: &str = "no launcher";

impl Identity {
    /// Whether a launcher started this process.
    #[must_use]
    pub fn is_launched(&self) -> bool {
        self.source != NO_LAUNCHER
    }

    /// The identity that a program gives itself.
    ///
    /// # Errors
    /// [`Error::Config`] for a rank that is none of so many, and for a store that is none.
    pub fn given(rank: u32, ranks: u32, store: &str) -> Result<Self> {
        if rank >= ranks {
            return Err(Error::Config(format!("rank {rank} is none of a world of {ranks}; ranks count from 0")));
        }
        let address = store.parse().map_err(|problem| Error::Config(format!("store: {problem}")))?;
        let (job, common, machines) = (store.to_owned(), None, Machines::Unknown);
        Ok(Identity { rank, ranks, job, store: Some(address), common, machines, source: "the program" })
    }

    /// Reads the environment; a world of one rank if no launcher set a variable.
    ///
    /// # Errors
    /// [`Error::Config`] that names the variable that is missing or invalid.
    pub fn from_env() -> Result<Self> {
        // The parent is the launcher, or its agent on this machine: the same for all ranks of this
        // machine.
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        Self::from_lookup(|name| std::env::var(name).ok().filter(|value| !value.is_empty()), parent as u32)
    }

    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<String>, parent: u32) -> Result<Self> {
        let Some((launcher, rank)) = LAUNCHERS.iter().find_map(|launcher| Some((launcher, lookup(launcher.rank)?)))
        else {
            if let Some(ranks) = lookup("EARLYBIRD_WORLD_SIZE") {
                return Err(Error::Config(format!(
                    "EARLYBIRD_WORLD_SIZE={ranks} is set and EARLYBIRD_RANK is not; set both, or start with \
                     `earlybird run`"
                )));
            }
            let job = format!("alone-{}", std::process::id());
            let (store, common, machines) = (None, None, Machines::One);
            return Ok(Identity { rank: 0, ranks: 1, job, store, common, machines, source: NO_LAUNCHER });
        };
        let number = |name: &str, value: &str| {
            value.trim().parse::<u32>().map_err(|_| Error::Config(format!("{name}={value} is not a number of ranks")))
        };
        let rank = number(launcher.rank, &rank)?;
        let found = launcher.ranks.iter().find_map(|name| Some((*name, lookup(name)?)));
        let Some((name, value)) = found else {
            let wanted = launcher.ranks.join(" nor ");
            return Err(Error::Config(format!("{}={rank} is set, but not {wanted}", launcher.rank)));
        };
        let ranks = number(name, &value)?;
        if rank >= ranks {
            let problem = format!("{}={rank} with {name}={ranks}: ranks count from 0", launcher.rank);
            return Err(Error::Config(problem));
        }
        let said = |names: &[&'static str]| names.iter().find_map(|name| Some((*name, lookup(name)?)));
        let mut machines = Machines::Unknown;
        if let Some((name, value)) = launcher.local.and_then(|name| said(&[name])) {
            machines = if number(name, &value)? < ranks { Machines::Several } else { Machines::One };
        } else if let Some((name, value)) = said(launcher.machines) {
            machines = if number(name, &value)? > 1 { Machines::Several } else { Machines::One };
        }
        let bad_store = |problem| Error::Config(format!("EARLYBIRD_STORE={problem}"));
        let store = lookup("EARLYBIRD_STORE").map(|text| text.parse()).transpose().map_err(bad_store)?;
        let (job, common) = (job(launcher, &lookup, parent), common(launcher, &lookup));
        Ok(Identity { rank, ranks, job, store, common, machines, source: launcher.name })
    }

    /// The address at which the ranks meet: the one in the environment; else, on one machine, one
    /// by the job's name; else the launcher's.
    ///
    /// # Errors
    /// [`Error::Config`] for ranks on several machines that have no common address.
    pub fn store_address(&self) -> Result<StoreAddress> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        match (self.machines, &self.common) {
            (Machines::One, _) | (Machines::Unknown, None) => Ok(StoreAddress::Unix(self.job.clone())),
            (Machines::Several | Machines::Unknown, Some(common)) => Ok(common.clone()),
            (Machines::Several, None) => Err(Error::Config(format!(
                "the {} ranks are on several machines, and {} tells them no place where they could meet; set \
                 EARLYBIRD_STORE=tcp:HOST:PORT (a free port on the host of rank 0) or file:FOLDER (a shared one) on \
                 all",
                self.ranks, self.source
            ))),
        }
    }
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn job(launcher: &Launcher, lookup: &impl Fn(&str) -> Option<String>, parent: u32) -> String {
    if let Some(StoreAddress::Unix(name)) = lookup("EARLYBIRD_STORE").and_then(|text| text.parse().ok()) {
        return name;
    }
    let job: Vec<String> = launcher.job.iter().filter_map(|name| lookup(name)).collect();
    let store = lookup("EARLYBIRD_STORE");
    // The parent is the same for all ranks of one machine only.
    let job = if job.is_empty() { store.unwrap_or_else(|| format!("parent-{parent}")) } else { job.join("-") };
    // Names of abstract sockets are short, and the hash keeps jobs apart.
    format!("{}-{:016x}", launcher.name.to_lowercase().replace(' ', "-"), hash(&job))
}

/// An address that all hosts of a job can derive from their variables.
fn common(launcher: &Launcher, lookup: &impl Fn(&str) -> Option<String>) -> Option<StoreAddress> {
    match launcher.name {
        // torchrun itself listens on `MASTER_PORT`.
        TORCHRUN => {
            let port: u16 = lookup("MASTER_PORT")?.parse().ok()?;
            Some(StoreAddress::Tcp { host: lookup("MASTER_ADDR")?, port: port.checked_add(1)? })
        }
        SLURM => {
            let nodes = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_NODELIST"))?;
            let job = format!("{:?} {:?}", lookup("SLURM_JOB_ID")?, lookup("SLURM_STEP_ID"));
            // A port between those of services and those that the system hands out.
            let port = 20_000 + (hash(&job) % 10_000) as u16;
            Some(StoreAddress::Tcp { host: first_node(&nodes)?, port })
        }
        _ => None,
    }
}

/// The first host of a list such as `n[01-03,7],m5`: where Slurm puts rank 0.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let Some(ranges) = rest.strip_prefix('[') else { return Some(prefix.to_owned()).filter(|name| !name.is_empty()) };
    let (ranges, after) = ranges.split_once(']')?;
    let first = ranges.split([',', '-']).next()?;
    let suffix = after.split(',').next().unwrap_or_default();
    Some(format!("{prefix}{first}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(vars: &[(&str, &str)]) -> Result<Identity> {
        let lookup = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Identity::from_lookup(lookup, 77)
    }

    #[test]
    fn each_launcher_is_understood_and_the_order_holds() {
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "9")];
        let pmix = [("PMIX_RANK", "2"), ("PMIX_SIZE", "3"), ("PMIX_NAMESPACE", "n")];
        let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
        let mpi = [("OMPI_COMM_WORLD_RANK", "4"), ("OMPI_COMM_WORLD_SIZE", "5")];
        let torch = [("RANK", "5"), ("WORLD_SIZE", "6"), ("MASTER_PORT", "29500")];
        let own = [("EARLYBIRD_RANK", "6"), ("EARLYBIRD_WORLD_SIZE", "7"), ("EARLYBIRD_STORE", "unix:x")];
        let mut vars = Vec::new();
        for (index, group) in [&slurm[..], &pmix, &pmi, &mpi, &torch, &own].into_iter().enumerate() {
            vars.extend_from_slice(group);
            let found = identity(&vars).unwrap();
            assert_eq!((found.rank, found.ranks), (index as u32 + 1, index as u32 + 2), "{}", found.source);
        }
        assert_eq!(identity(&vars).unwrap().store_address().unwrap(), StoreAddress::Unix("x".to_owned()));
    }

    #[test]
    fn without_a_launcher_there_is_one_rank() {
        let found = identity(&[]).unwrap();
        assert_eq!((found.rank, found.ranks, found.source), (0, 1, "no launcher"));
    }

    #[test]
    fn jobs_differ() {
        let job = |id| identity(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", id)]).unwrap().job;
        assert_ne!(job("1"), job("2"));
        assert!(job("1").starts_with("slurm-"));
    }

    #[test]
    fn nonsense_is_named() {
        for (vars, named) in [
            (&[("EARLYBIRD_RANK", "0")][..], "EARLYBIRD_WORLD_SIZE"),
            (&[("EARLYBIRD_WORLD_SIZE", "2")], "EARLYBIRD_RANK"),
            (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK=x"),
            (&[("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK=-1"),
            (&[("PMI_RANK", "2"), ("PMI_SIZE", "2")], "ranks count from 0"),
            (&[("RANK", "0"), ("WORLD_SIZE", "0")], "ranks count from 0"),
            (&[("RANK", "0"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "x")], "LOCAL_WORLD_SIZE=x"),
            (&[("RANK", "0"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")], "EARLYBIRD_STORE=tcp:HOST:PORT"),
            (&[("EARLYBIRD_RANK", "0"), ("EARLYBIRD_WORLD_SIZE", "2"), ("EARLYBIRD_STORE", "tcp://x")], "unix:NAME"),
        ] {
            let error = identity(vars).and_then(|identity| identity.store_address()).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn launchers_tell_where_ranks_on_several_machines_meet() {
        let met_at = |vars: &[(&str, &str)]| identity(vars).unwrap().store_address().unwrap().to_string();
        let torch = [("RANK", "5"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")];
        assert_eq!(met_at(&[&torch[..], &[("LOCAL_WORLD_SIZE", "4")]].concat()), "tcp:head:29501");
        assert!(met_at(&[&torch[..], &[("LOCAL_WORLD_SIZE", "8")]].concat()).starts_with("unix:torchrun-"));
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "9")];
        let nodes = [("SLURM_STEP_NODELIST", "n[07-08,11]"), ("SLURM_STEP_NUM_NODES", "3")];
        assert!(met_at(&[&slurm[..], &nodes].concat()).starts_with("tcp:n07:2"));
        assert!(met_at(&[&slurm[..], &[("SLURM_NNODES", "1")]].concat()).starts_with("unix:slurm-"));
    }

    #[test]
    fn the_first_of_a_list_of_nodes() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("n[1-3]", "n1"),
            ("n[07,9]", "n07"),
            ("n[1-3]-ib,m", "n1-ib"),
            ("r1-n[4]", "r1-n4"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", "n[1-3"] {
            assert_eq!(first_node(list), None, "{list}");
        }
    }
}
