//! `earlybird info --layout`: what lies where in the memory of a collective.

use std::process::ExitCode;

use serde_json::json;

use crate::cli::launch::check_ranks;
use crate::cli::table::Table;
use crate::collective::build::layout::LayoutOf;
use crate::model::HwConfig;
use crate::{Config, Fire, Group, Mover};

#[derive(Clone, Debug, clap::Args)]
pub(super) struct LayoutArgs {
    /// Print what lies where in the memory of a collective
    #[arg(long, conflicts_with = "env")]
    pub(super) layout: bool,
    /// With --layout: ranks in the world
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4, requires = "layout")]
    ranks: u32,
    /// With --layout: ranks that share memory [default: all]
    #[arg(long, value_name = "N", requires = "layout")]
    per_host: Option<u32>,
    /// With --layout: firing rule, as bench has it
    #[arg(long, default_value = "solo", requires = "layout")]
    fire: Fire,
    /// With --layout: bytes of a contribution
    #[arg(short = 'b', long, value_parser = crate::cli::size, default_value = "4K", requires = "layout")]
    bytes: u64,
    /// With --layout: rounds that a rank may have unreleased
    #[arg(long, default_value_t = 8, requires = "layout", value_parser = clap::value_parser!(u32).range(1..=65536))]
    depth: u32,
    /// With --layout: how data moves: cut or tree
    #[arg(long, default_value = "cut", requires = "layout")]
    mover: Mover,
    /// With --layout: ranks have models, and these average: world or butterfly=SIZE
    #[arg(long, value_name = "GROUP", requires = "layout")]
    models: Option<Group>,
}

pub(super) fn main(args: &LayoutArgs, json: bool) -> super::super::Outcome {
    let LayoutArgs { ranks, fire, depth, mover, models: memory, .. } = *args;
    check_ranks(ranks)?;
    if matches!(memory, Some(Group::Arrivals(_))) {
        return Err("--models: groups by order of arrival have a layout of their own, which is not printed".into());
    }
    if memory.is_some() && mover == Mover::Tree {
        return Err("--models: the tree mover moves no models; use the cut mover".into());
    }
    let per_host = args.per_host.unwrap_or(ranks).max(1);
    let fabric = if per_host >= ranks { "shm" } else { "ofi" };
    let parameters = HwConfig::load(Config::from_env()?.hw_config.as_deref())?.of(fabric, None)?;
    let bytes = usize::try_from(args.bytes)?.next_multiple_of(size_of::<u64>());
    let of = LayoutOf { ranks, per_host, fire, bytes, depth, tree: mover == Mover::Tree, memory };
    let layout = of.layout(&parameters)?;
    if json {
        for (region, bytes, name) in &layout.rows {
            say!("{}", json!({"region": region, "from": bytes.start, "to": bytes.end, "holds": name}));
        }
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "The memory of host 0, {} rank(s) of {ranks}: {} bytes of control cells and {} bytes of data. Path: {}.",
        per_host.min(ranks),
        layout.control_bytes,
        layout.data_bytes,
        layout.path
    );
    let mut table = Table::new(&["region", "from", "bytes", "holds"]);
    for (region, bytes, name) in &layout.rows {
        table.row(&[(*region).to_owned(), bytes.start.to_string(), bytes.len().to_string(), name.clone()]);
    }
    say!("{table}");
    Ok(ExitCode::SUCCESS)
}
