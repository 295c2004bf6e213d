//! Rank and world size, from the variables of the launcher.

use super::process_manager::{ProcessManager, Variables};
use super::slurm;
use super::store_address::StoreAddress;
use earlybird_ffi::rights;

use crate::error::{Error, Result};

/// The identity of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// This rank.
    pub rank: u32,
    /// The number of ranks in the world.
    pub ranks: u32,
    /// The name of the job: the same on all of its ranks, and different for other jobs.
    pub job: String,
    /// The address of the store, if the environment names one.
    pub store: Option<StoreAddress>,
    /// An address at which ranks on several machines can meet, if the launcher names a host that all of them know.
    pub common: Option<StoreAddress>,
    /// The launcher's interface by which ranks learn where rank 0 is: only if they are on several machines, no store is named,
    /// and the program has no more rights than its user.
    pub manager: Option<ProcessManager>,
    /// On how many machines the ranks are.
    pub machines: Machines,
    /// The launcher whose variables gave this identity.
    pub source: &'static str,
    /// What the starts of all ranks have in common, for the question of an error: "was rank 1 started, …?"
    pub together: &'static str,
}

/// The number of machines that the ranks of a job are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machines {
    /// All ranks are on this machine.
    One,
    /// Some ranks are on other machines.
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
    /// The variables with the number of machines.
    machines: &'static [&'static str],
    /// The variables that tell its jobs apart.
    job: &'static [&'static str],
    /// Finds its interface by which ranks on several machines learn where to meet, if it has one.
    manager: fn(&Variables<'_>) -> Option<ProcessManager>,
}

/// The launchers, in order of precedence. Slurm comes last, because `mpirun` inside a Slurm job inherits its variables.
/// Where `srun` itself speaks PMI or PMIx to its tasks, Slurm takes precedence, because it knows the nodes.
const LAUNCHERS: [Launcher; 6] = [
    Launcher {
        name: BY_HAND,
        rank: "EARLYBIRD_RANK",
        ranks: &["EARLYBIRD_WORLD_SIZE"],
        local: None,
        machines: &[],
        job: &["EARLYBIRD_STORE"],
        manager: |_| None,
    },
    Launcher {
        name: TORCHRUN,
        rank: "RANK",
        ranks: &["WORLD_SIZE"],
        local: Some("LOCAL_WORLD_SIZE"),
        machines: &[],
        job: &["MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
        manager: |_| None,
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        local: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        machines: &[],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        manager: ProcessManager::pmix,
    },
    Launcher {
        name: PMI,
        rank: "PMI_RANK",
        ranks: &["PMI_SIZE"],
        local: Some("MPI_LOCALNRANKS"),
        machines: &[],
        job: &["PMI_JOBID", "PMI_KVSNAME"],
        manager: ProcessManager::pmi,
    },
    Launcher {
        name: PMIX,
        rank: "PMIX_RANK",
        ranks: &["PMIX_SIZE"],
        local: None,
        machines: &[],
        job: &["PMIX_NAMESPACE"],
        manager: |_| None,
    },
    SLURM,
];

const SLURM: Launcher = Launcher {
    name: "Slurm",
    rank: slurm::RANK,
    ranks: slurm::RANKS,
    local: None,
    machines: slurm::MACHINES,
    job: &[],
    manager: |_| None,
};

const BY_HAND: &str = "earlybird";
const TORCHRUN: &str = "torchrun";
const PMI: &str = "PMI";
const PMIX: &str = "PMIx";

const NO_LAUNCHER: &str = "no launcher";

const SAME_STORE: &str = "with the same EARLYBIRD_STORE";
/// Ranks that are started by hand meet by their parent's process id.
const SAME_PARENT: &str =
    "by the same shell as this one (in several shells all ranks need one EARLYBIRD_STORE, such as unix:NAME)";

impl Identity {
    /// Returns whether a launcher started this process.
    #[must_use]
    pub fn is_launched(&self) -> bool {
        self.source != NO_LAUNCHER
    }

    /// Creates the identity that a program gives itself.
    ///
    /// # Errors
    /// [`Error::Config`] for a rank that is not below `ranks`, and for a store in an invalid form.
    pub fn given(rank: u32, ranks: u32, store: &str) -> Result<Self> {
        if rank >= ranks {
            return Err(Error::Config(format!("rank {rank} is none of a world of {ranks}; ranks count from 0")));
        }
        let address = store.parse().map_err(|problem| Error::Config(format!("store: {problem}")))?;
        Ok(Identity {
            rank,
            ranks,
            job: store.to_owned(),
            store: Some(address),
            common: None,
            manager: None,
            machines: Machines::Unknown,
            source: "the program",
            together: SAME_STORE,
        })
    }

    /// Reads the environment. Without a launcher's variables the result is a world of one rank.
    ///
    /// # Errors
    /// [`Error::Config`], which names the missing or invalid variable.
    pub fn from_env() -> Result<Self> {
        // The parent is the launcher, or its agent on this machine: the same for all ranks of this machine.
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        Self::from_lookup(|name| std::env::var(name).ok().filter(|value| !value.is_empty()), parent as u32)
    }

    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<String>, parent: u32) -> Result<Self> {
        let Some((launcher, rank)) = launcher(&lookup) else {
            if let Some(ranks) = lookup("EARLYBIRD_WORLD_SIZE") {
                return Err(Error::Config(format!(
                    "EARLYBIRD_WORLD_SIZE={ranks} is set and EARLYBIRD_RANK is not; set both, or start with \
                     `earlybird run`"
                )));
            }
            let job = format!("alone-{}", std::process::id());
            return Ok(Identity {
                rank: 0,
                ranks: 1,
                job,
                store: None,
                common: None,
                manager: None,
                machines: Machines::One,
                source: NO_LAUNCHER,
                together: SAME_STORE,
            });
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
        if matches!(store, Some(StoreAddress::File(_))) && rights::are_raised() {
            return Err(Error::Config(
                "EARLYBIRD_STORE names a folder, and this program has more rights than the user who started it (setuid, \
                 setgid or file capabilities); meet at tcp:HOST:PORT or unix:NAME"
                    .to_owned(),
            ));
        }
        let (job, common) = (job(launcher, &lookup, parent), common(launcher, &lookup));
        // Libraries of PMIx load what variables and files of the user name.
        let asks = machines == Machines::Several && store.is_none() && !rights::are_raised();
        let manager = if asks { (launcher.manager)(&lookup) } else { None };
        let together = match store {
            None if launcher.name == SLURM.name => slurm::together(&lookup),
            None if launcher.name == BY_HAND => SAME_PARENT,
            _ => SAME_STORE,
        };
        Ok(Identity { rank, ranks, job, store, common, manager, machines, source: launcher.name, together })
    }

    /// Returns the name of the launcher's command, for messages.
    #[must_use]
    pub fn started_by(&self) -> &'static str {
        if self.source == SLURM.name { "srun" } else { "the launcher" }
    }

    /// Returns the address at which the ranks meet: the one in the environment; else, on one machine, one derived from
    /// the job's name; else the launcher's.
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

/// Returns the launcher that started this process, and the rank that it gave.
fn launcher(lookup: &impl Fn(&str) -> Option<String>) -> Option<(&'static Launcher, String)> {
    LAUNCHERS.iter().find_map(|launcher| {
        let rank = lookup(launcher.rank)?;
        match launcher.name {
            PMI | PMIX if slurm::speaks_pmi(lookup, launcher.rank, launcher.ranks, launcher.local) => {
                Some((&SLURM, rank))
            }
            // These variables come from the shell of `salloc`, which is one process.
            PMIX if slurm::has_pmix_namespace(lookup) => None,
            name if name == SLURM.name && !slurm::is_step(lookup) => None,
            _ => Some((launcher, rank)),
        }
    })
}

fn job(launcher: &Launcher, lookup: &impl Fn(&str) -> Option<String>, parent: u32) -> String {
    if let Some(StoreAddress::Unix(name)) = lookup("EARLYBIRD_STORE").and_then(|text| text.parse().ok()) {
        return name;
    }
    let said: Vec<String> = launcher.job.iter().filter_map(|name| lookup(name)).collect();
    let job = if launcher.name == SLURM.name {
        slurm::job(lookup)
    } else {
        Some(said.join("-")).filter(|job| !job.is_empty())
    };
    // Only the ranks of one machine have the same parent.
    let job = job.or_else(|| lookup("EARLYBIRD_STORE")).unwrap_or_else(|| format!("parent-{parent}"));
    // Names of abstract sockets are short, and the hash keeps jobs apart.
    format!("{}-{:016x}", launcher.name.to_lowercase().replace(' ', "-"), hash(&job))
}

/// Returns an address that all hosts of a job can derive from their variables.
fn common(launcher: &Launcher, lookup: &impl Fn(&str) -> Option<String>) -> Option<StoreAddress> {
    if launcher.name == SLURM.name {
        return slurm::meeting(lookup, hash(&slurm::job(lookup)?));
    }
    if launcher.name == TORCHRUN {
        // torchrun itself listens on `MASTER_PORT`.
        let port: u16 = lookup("MASTER_PORT")?.parse().ok()?;
        return Some(StoreAddress::Tcp { host: lookup("MASTER_ADDR")?, port: port.checked_add(1)? });
    }
    None
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
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "9"), ("SLURM_STEP_ID", "0")];
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

    /// The variables that every task of a step has.
    fn step<'a>(rank: &'a str, ranks: &'a str) -> [(&'a str, &'a str); 5] {
        [
            ("SLURM_PROCID", rank),
            ("SLURM_NTASKS", ranks),
            ("SLURM_STEP_NUM_TASKS", ranks),
            ("SLURM_JOB_ID", "9"),
            ("SLURM_STEP_ID", "0"),
        ]
    }

    const NODES: [(&str, &str); 2] = [("SLURM_STEP_NODELIST", "n[1-3]"), ("SLURM_STEP_NUM_NODES", "3")];

    fn met_at(groups: &[&[(&str, &str)]]) -> String {
        identity(&groups.concat()).unwrap().store_address().unwrap().to_string()
    }

    /// As `srun --mpi=pmi2` and `--mpi=pmix` of Slurm 22.05 set the variables.
    #[test]
    fn slurm_is_believed_where_srun_speaks_pmi() {
        let pmi2 = [("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("PMI_JOBID", "9.0"), ("SLURM_MPI_TYPE", "pmi2")];
        let pmix = [("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "slurm.pmix.9.0")];
        let plain = met_at(&[&step("1", "3"), &NODES]);
        assert!(plain.starts_with("tcp:n1:2"), "{plain}");
        for pmi in [&pmi2[..], &pmix, &[("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("PMIX_RANK", "1")]] {
            let found = identity(&[pmi, &step("1", "3"), &NODES].concat()).unwrap();
            assert_eq!((found.rank, found.ranks, found.source), (1, 3, "Slurm"), "{pmi:?}");
            assert_eq!(found.machines, Machines::Several);
            assert_eq!(met_at(&[pmi, &step("1", "3"), &NODES]), plain);
            // On one node, too: the ranks of different steps have different names.
            let here = [("SLURM_STEP_NODELIST", "n1"), ("SLURM_STEP_NUM_NODES", "1")];
            assert!(met_at(&[pmi, &step("1", "3"), &here]).starts_with("unix:slurm-"));
        }
    }

    /// mpirun starts its daemons by srun, and ranks inherit the variables of a daemon.
    #[test]
    fn mpirun_is_believed_inside_a_step() {
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")];
        let other_size = [("PMI_RANK", "1"), ("PMI_SIZE", "8")];
        let other_rank = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        let prte = [("PMIX_RANK", "1"), ("PMIX_SIZE", "2"), ("PMIX_NAMESPACE", "prterun-n1-18@1")];
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_RANK", "1")];
        for (mpi, source) in [
            (&hydra[..], "PMI"),
            (&other_size, "PMI"),
            (&other_rank, "PMI"),
            (&prte, "PMIx"),
            (&open_mpi, "Open MPI"),
            (&[("RANK", "1"), ("WORLD_SIZE", "2")], "torchrun"),
        ] {
            let found = identity(&[mpi, &step("1", "2"), &NODES].concat()).unwrap();
            assert_eq!(found.source, source, "{mpi:?}");
        }
    }

    /// A batch script has the variables of rank 0, and is one process; so is the shell of salloc.
    #[test]
    fn only_steps_of_srun_are_launched() {
        let task = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "9"), ("SLURM_NNODES", "2")];
        for steps in [
            &[][..],
            &[("SLURM_STEP_ID", "batch")],
            &[("SLURM_STEP_ID", "4294967291")],
            &[("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NUM_TASKS", "1")],
            &[("SLURM_STEPID", "4294967290"), ("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "slurm.pmix.9.4294967290")],
        ] {
            let found = identity(&[&task[..], steps].concat()).unwrap();
            assert_eq!((found.rank, found.ranks, found.is_launched()), (0, 1, false), "{steps:?}");
        }
        for name in ["SLURM_STEP_ID", "SLURM_STEPID"] {
            let found = identity(&[&task[..], &[(name, "0")]].concat()).unwrap();
            assert_eq!((found.ranks, found.is_launched()), (4, true), "{name}");
        }
        // The job has four tasks, and this step two.
        let found = identity(&[&task[..], &[("SLURM_STEP_ID", "1"), ("SLURM_STEP_NUM_TASKS", "2")]].concat()).unwrap();
        assert_eq!(found.ranks, 2);
    }

    #[test]
    fn ranks_look_for_rank_0_where_slurms_list_does_not_tell_its_node() {
        let arbitrary = [("SLURM_DISTRIBUTION", "arbitrary")];
        let parts = [("SLURM_HET_SIZE", "2"), ("SLURM_JOB_ID_HET_GROUP_0", "9")];
        for why in [&arbitrary[..], &parts] {
            let place = met_at(&[&step("1", "3"), &NODES, why]);
            assert!(place.starts_with("tcp:n1|n2|n3:2"), "{place}");
        }
        // Ranks of another part have the number of its own job.
        let other = [("SLURM_JOB_ID", "10")];
        assert_eq!(met_at(&[&other, &step("2", "3"), &NODES, &parts]), met_at(&[&step("1", "3"), &NODES, &parts]));
        let cyclic = [("SLURM_DISTRIBUTION", "cyclic:block")];
        assert!(met_at(&[&step("1", "3"), &NODES, &cyclic]).starts_with("tcp:n1:2"));
    }

    #[test]
    fn a_question_says_how_ranks_are_started() {
        let asked = |groups: &[&[(&str, &str)]]| identity(&groups.concat()).unwrap().together;
        assert_eq!(asked(&[&step("1", "3")]), "by the same srun");
        assert!(asked(&[&step("1", "3"), &[("SLURM_HET_SIZE", "2")]]).contains("`srun --het-group=0,1`"));
        assert_eq!(asked(&[&step("1", "3"), &[("EARLYBIRD_STORE", "unix:x")]]), SAME_STORE);
        assert_eq!(asked(&[&[("RANK", "1"), ("WORLD_SIZE", "3")]]), SAME_STORE);
        let by_hand = [("EARLYBIRD_RANK", "1"), ("EARLYBIRD_WORLD_SIZE", "3")];
        assert_eq!(asked(&[&by_hand]), SAME_PARENT);
        assert_eq!(asked(&[&by_hand, &[("EARLYBIRD_STORE", "unix:x")]]), SAME_STORE);
    }

    #[test]
    fn without_a_launcher_there_is_one_rank() {
        let found = identity(&[]).unwrap();
        assert_eq!((found.rank, found.ranks, found.source), (0, 1, "no launcher"));
    }

    #[test]
    fn jobs_differ() {
        let job = |id, step| {
            let task = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", id), ("SLURM_STEP_ID", step)];
            identity(&task).unwrap().job
        };
        assert_ne!(job("1", "0"), job("2", "0"));
        assert_ne!(job("1", "0"), job("1", "1"));
        assert!(job("1", "0").starts_with("slurm-"));
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
        let torch = [("RANK", "5"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")];
        assert_eq!(met_at(&[&torch, &[("LOCAL_WORLD_SIZE", "4")]]), "tcp:head:29501");
        assert!(met_at(&[&torch, &[("LOCAL_WORLD_SIZE", "8")]]).starts_with("unix:torchrun-"));
        let slurm = step("1", "4");
        let nodes = [("SLURM_STEP_NODELIST", "n[07-08,11]"), ("SLURM_STEP_NUM_NODES", "3")];
        assert!(met_at(&[&slurm, &nodes]).starts_with("tcp:n07:2"));
        assert!(met_at(&[&slurm, &[("SLURM_NNODES", "1")]]).starts_with("unix:slurm-"));
    }
}
