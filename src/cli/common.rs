//! What `bench`, `train` and `selftest` share: options, how they start ranks, and sums over ranks.

use std::time::Duration;

use crate::bootstrap::identity::Identity;
use crate::config::FabricChoice;
use crate::model::HwConfig;
use crate::{Absent, Config, Executor, Fire, Grace, Mover, Scale, World};

use super::launch::{Bind, check_ranks};

/// The world, and how its results are printed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Start {
    /// Ranks, when this command starts them itself
    #[arg(short = 'n', long, value_name = "N")]
    ranks: Option<u32>,
    /// Transport: shm, ofi (libfabric), verbs (RDMA) or auto [default: $EARLYBIRD_FABRIC, else auto]
    #[arg(long)]
    fabric: Option<FabricChoice>,
    /// The libfabric provider, such as tcp;ofi_rxm; implies --fabric ofi
    #[arg(long)]
    provider: Option<String>,
    /// Where ranks run
    #[arg(long, value_enum, default_value = "none")]
    pub(super) bind: Bind,
    /// JSON Lines, an object a row
    #[arg(long)]
    pub(super) json: bool,
}

/// A collective in a world.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Common {
    #[command(flatten)]
    pub(super) start: Start,
    /// How long a round stays open after it fired: auto, 0 or a time
    #[arg(long, default_value = "auto", allow_hyphen_values = true)]
    pub(super) grace: Grace,
    /// What happens to late contributions: carry, drop, decay=FACTOR (by round), or hold where ranks average models (bench
    /// --op p_reduce)
    #[arg(long, default_value = "carry")]
    pub(super) absent: Absent,
    /// Rounds that a rank may have unreleased
    #[arg(long, default_value_t = 8)]
    pub(super) depth: u32,
    /// How data moves once a round fires: auto, cut or tree
    #[arg(long, default_value = "auto")]
    pub(super) mover: Mover,
    /// The agent that carries a round out: auto, caller, thread, peer or provider
    #[arg(long, default_value = "auto")]
    pub(super) executor: Executor,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}

/// Whether this process is a rank already, and of how many ranks.
pub(super) struct Membership {
    pub(super) ranks: u32,
    pub(super) launched: bool,
    pub(super) config: Config,
}

impl Start {
    /// Finds out whether this process is a rank; `usual` is the number of ranks if none is given.
    pub(super) fn place(&self, usual: u32) -> Result<Membership, Box<dyn std::error::Error>> {
        let identity = Identity::from_env()?;
        let mut config = Config::from_env()?;
        if self.provider.is_some() {
            config.ofi.provider.clone_from(&self.provider);
            config.fabric = FabricChoice::Ofi;
        }
        match self.fabric {
            Some(fabric @ (FabricChoice::Shm | FabricChoice::Verbs)) if self.provider.is_some() => {
                return Err(format!("--provider is for --fabric ofi, and --fabric {fabric} was given").into());
            }
            Some(fabric) => config.fabric = fabric,
            None => {}
        }
        // A launcher that started one process has started no job: in a shell of Slurm, `-n` decides.
        let launched = identity.is_launched() && (identity.ranks > 1 || self.ranks.is_none_or(|asked| asked == 1));
        if !launched {
            // Checked here, and not once by each rank that is started.
            HwConfig::load(config.hw_config.as_deref())?;
        }
        let ranks = if launched { identity.ranks } else { self.ranks.unwrap_or(usual) };
        match self.ranks {
            Some(asked) if asked != ranks => {
                let by = identity.started_by();
                Err(format!("-n {asked} was given, and {by} started {ranks} ranks; omit -n").into())
            }
            _ => Ok(Membership { ranks, launched, config }),
        }
    }
}

impl Common {
    /// Checks these options with a choice of rules.
    pub(super) fn check(&self, ranks: u32, fires: &[Fire]) -> Result<(), String> {
        check_ranks(ranks)?;
        if self.depth == 0 || self.depth > 65536 {
            return Err(format!("--depth {}: use 1 to 65536", self.depth));
        }
        fires.iter().try_for_each(|fire| fire.check(ranks)).map_err(|error| error.to_string())
    }
}

/// Returns the mean of each element, by an allreduce of this library.
pub(super) fn mean_over_ranks(world: &World, mine: &[f64], patience: Duration) -> crate::Result<Vec<f64>> {
    let mut mean = world.allreduce::<f64>(&[mine.len()]).scale(Scale::World).build()?;
    mean.contribution()?.copy_from_slice(mine);
    mean.arrive()?;
    let all = mean.wait(patience)?.newest().to_vec();
    mean.finish(patience)?;
    Ok(all)
}
