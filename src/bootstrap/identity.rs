//! Rank and world, from whatever launched this process.

use crate::error::{Error, Result};

/// Who this process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// This rank.
    pub rank: u32,
    /// Ranks in the world.
    pub ranks: u32,
    /// Where the ranks of this job meet: the same on all of them, different for other jobs.
    pub meeting: String,
    /// Which launcher's variables said so.
    pub source: &'static str,
}

struct Launcher {
    name: &'static str,
    rank: &'static str,
    ranks: &'static [&'static str],
    /// Ranks on this machine, when it says.
    local: Option<&'static str>,
    /// What tells its jobs apart.
    job: &'static [&'static str],
}

/// In the order in which they are believed. Slurm comes last, because `mpirun` inside a Slurm job
/// inherits its variables.
const LAUNCHERS: [Launcher; 6] = [
    Launcher {
        name: "earlybird",
        rank: "EARLYBIRD_RANK",
        ranks: &["EARLYBIRD_WORLD_SIZE"],
        local: None,
        job: &["EARLYBIRD_STORE"],
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        ranks: &["WORLD_SIZE"],
        local: Some("LOCAL_WORLD_SIZE"),
        job: &["MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        local: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        ranks: &["PMI_SIZE"],
        local: Some("MPI_LOCALNRANKS"),
        job: &["PMI_JOBID", "PMI_KVSNAME"],
    },
    Launcher {
        name: "PMIx",
        rank: "PMIX_RANK",
        ranks: &["PMIX_SIZE", "SLURM_NTASKS"],
        local: None,
        job: &["PMIX_NAMESPACE"],
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        ranks: &["SLURM_NTASKS"],
        local: None,
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

const NO_LAUNCHER: &str = "no launcher";

impl Identity {
    /// Whether a launcher started this process, rather than a person or a program by itself.
    #[must_use]
    pub fn is_launched(&self) -> bool {
        self.source != NO_LAUNCHER
    }

    /// From the environment; alone in a world of one where nothing says otherwise.
    ///
    /// # Errors
    /// [`Error::Config`] naming the variable that is missing or makes no sense.
    pub fn from_env() -> Result<Self> {
        // The parent is the launcher, or its agent on this machine: the same for all ranks here.
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        Self::from_lookup(|name| std::env::var(name).ok().filter(|value| !value.is_empty()), parent as u32)
    }

    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<String>, parent: u32) -> Result<Self> {
        let Some((launcher, rank)) = LAUNCHERS.iter().find_map(|launcher| Some((launcher, lookup(launcher.rank)?)))
        else {
            if let Some(ranks) = lookup("EARLYBIRD_WORLD_SIZE") {
                return Err(Error::Config(format!(
                    "EARLYBIRD_WORLD_SIZE={ranks} is set and EARLYBIRD_RANK is not; set both, or start with `earlybird run`"
                )));
            }
            let meeting = format!("alone-{}", std::process::id());
            return Ok(Identity { rank: 0, ranks: 1, meeting, source: NO_LAUNCHER });
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
        if let Some((name, value)) = launcher.local.and_then(|name| Some((name, lookup(name)?))) {
            let local = number(name, &value)?;
            if local < ranks {
                return Err(Error::Config(format!(
                    "{name}={local} of {ranks} ranks are on this machine; ranks on several machines need a network \
                     fabric, and this build has only shm"
                )));
            }
        }
        Ok(Identity { rank, ranks, meeting: meeting(launcher, &lookup, parent)?, source: launcher.name })
    }
}

fn meeting(launcher: &Launcher, lookup: &impl Fn(&str) -> Option<String>, parent: u32) -> Result<String> {
    if let Some(store) = lookup("EARLYBIRD_STORE") {
        return match store.strip_prefix("unix:").filter(|name| !name.is_empty() && name.len() <= 80) {
            Some(name) => Ok(name.to_owned()),
            None => Err(Error::Config(format!("EARLYBIRD_STORE={store}: use unix:NAME, with a name of 1 to 80 bytes"))),
        };
    }
    let job: Vec<String> = launcher.job.iter().filter_map(|name| lookup(name)).collect();
    let job = if job.is_empty() { format!("parent-{parent}") } else { job.join("-") };
    // Names of abstract sockets are short; what matters is that jobs differ.
    let hash = job
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    Ok(format!("{}-{hash:016x}", launcher.name.to_lowercase().replace(' ', "-")))
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
        assert_eq!(identity(&vars).unwrap().meeting, "x");
    }

    #[test]
    fn without_a_launcher_there_is_one_rank() {
        let found = identity(&[]).unwrap();
        assert_eq!((found.rank, found.ranks, found.source), (0, 1, "no launcher"));
    }

    #[test]
    fn jobs_differ() {
        let job = |id| identity(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", id)]).unwrap().meeting;
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
            (&[("RANK", "0"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")], "LOCAL_WORLD_SIZE=4 of 8"),
            (&[("EARLYBIRD_RANK", "0"), ("EARLYBIRD_WORLD_SIZE", "2"), ("EARLYBIRD_STORE", "tcp://x")], "unix:NAME"),
        ] {
            let error = identity(vars).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
