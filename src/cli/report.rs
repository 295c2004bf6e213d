//! `earlybird report`: which ranks were late, from the recording of a run.

mod html;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::table::Table;
use crate::collective::lateness::Account;
use crate::collective::recording::Recorded;
use crate::{Fire, Lateness, RankLateness, SlowSpell, When, files};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A file of a recording, such as run.0.0 for EARLYBIRD_RECORD=run: those of all ranks tell the same
    file: PathBuf,
    /// A JSON object
    #[arg(long)]
    json: bool,
    /// Also write a page with a picture, a line a rank
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const COLUMNS: [&str; 9] =
    ["rank", "host", "rounds", "late", "mean_age", "computes_ms", "waits", "slow_steps", "slow in rounds"];

const LEGEND: [&str; 3] = [
    "# late: contributions that missed their round; mean_age: rounds by which contributions came late, mean over all",
    "# computes_ms: mean of the measured steps; waits: share of the rank's time; slow_steps: those 15 % longer than a fast rank's",
    "# slow in rounds: when the rank was slow for long, and how many times as long as a fast rank it took",
];

pub(super) fn main(args: &Args) -> super::Outcome {
    let named = |what: String| format!("{}: {what}", args.file.display());
    let recorded = Recorded::open(&args.file).map_err(named)?;
    let mut account = Account::new(recorded.ranks);
    recorded.cuts.iter().for_each(|cut| account.add(cut.round(), cut, |_| ()));
    let lateness = account.lateness();
    let hosts = lateness.slow_hosts(|rank| recorded.hosts[rank as usize]);
    if let Some(page) = &args.html {
        files::check_apart(page, std::slice::from_ref(&args.file))?;
        let text = html::page(&args.file.display().to_string(), &recorded, (&lateness, &hosts));
        files::write(page, text.as_bytes()).map_err(|cause| format!("cannot write {}: {cause}", page.display()))?;
    }
    if args.json {
        say!("{}", as_json(&recorded, &lateness, &hosts));
        return Ok(ExitCode::SUCCESS);
    }
    let Recorded { ranks, collective, fire, .. } = &recorded;
    say!("# collective {collective}, {ranks} ranks, fire {fire}, {} rounds", lateness.rounds);
    let mut table = Table::new(&COLUMNS);
    for rank in &lateness.ranks {
        table.row(&row(rank, recorded.hosts[rank.rank as usize]));
    }
    say!("{table}");
    LEGEND.iter().for_each(|line| say!("{line}"));
    conclusions(&recorded, &lateness, &hosts).iter().for_each(|line| say!("{line}"));
    Ok(ExitCode::SUCCESS)
}

fn row(rank: &RankLateness, host: u32) -> Vec<String> {
    let measured = |text: String| if rank.measured > 0 { text } else { "-".to_owned() };
    vec![
        rank.rank.to_string(),
        host.to_string(),
        rank.contributions.to_string(),
        percent(share(rank.late, rank.contributions)),
        format!("{:.2}", rank.mean_age),
        measured(format!("{:.3}", mean_ms(rank))),
        measured(percent(waits(rank))),
        measured(percent(share(rank.slow, rank.measured))),
        rank.spells.iter().map(spell).collect::<Vec<_>>().join(", "),
    ]
}

fn share(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn mean_ms(rank: &RankLateness) -> f64 {
    rank.computed.as_secs_f64() * 1e3 / rank.measured.max(1) as f64
}

/// Returns the part of its measured time that a rank waited.
fn waits(rank: &RankLateness) -> f64 {
    let (waited, computed) = (rank.waited.as_secs_f64(), rank.computed.as_secs_f64());
    if waited > 0.0 { waited / (waited + computed) } else { 0.0 }
}

fn spell(spell: &SlowSpell) -> String {
    format!("{} {:.2}x", rounds(spell), spell.factor)
}

fn rounds(spell: &SlowSpell) -> String {
    match spell.until {
        Some(until) => format!("{} to {}", spell.since, until - 1),
        None => format!("since {}", spell.since),
    }
}

/// Returns a sentence for each time in which a rank was slow, in a run that waited for all ranks or did not.
pub(super) fn spells(lateness: &Lateness, waited: bool) -> Vec<String> {
    let cost_them = cost_them(waited);
    let sentence = |rank: u32, slow: &SlowSpell| {
        let cost = seconds(slow.cost);
        let factor = slow.factor;
        let when = match slow.until {
            Some(_) => format!("in rounds {}", rounds(slow)),
            None => format!("from round {} on", slow.since),
        };
        format!(
            "Rank {rank} was slow {when}: {factor:.2} times as long as a fast rank. Waiting for it in each round {cost_them} {cost}."
        )
    };
    let of_rank = |rank: &RankLateness| rank.spells.iter().map(|slow| sentence(rank.rank, slow)).collect::<Vec<_>>();
    lateness.slow_ranks().flat_map(of_rank).collect()
}

/// Returns whether each round of a world waits for all ranks.
pub(super) fn waits_for_all(fire: Fire, ranks: u32) -> bool {
    fire.is_synchronous() || matches!(fire.when(), When::Quorum(least) if least >= ranks)
}

fn cost_them(waited: bool) -> &'static str {
    if waited { "cost" } else { "would have cost" }
}

/// Returns the account as JSON: a rank after the other.
pub(super) fn ranks_as_json(lateness: &Lateness) -> Vec<serde_json::Value> {
    let spell = |spell: &SlowSpell| json!({"since": spell.since, "until": spell.until, "factor": spell.factor, "cost_s": spell.cost.as_secs_f64()});
    let rank = |rank: &RankLateness| {
        json!({
            "rank": rank.rank, "contributions": rank.contributions, "late": rank.late, "mean_age": rank.mean_age,
            "measured": rank.measured, "slow": rank.slow, "computed_s": rank.computed.as_secs_f64(),
            "waited_s": rank.waited.as_secs_f64(), "would_wait_s": rank.would_wait.as_secs_f64(),
            "computes_ms": mean_ms(rank), "waits": waits(rank), "spells": rank.spells.iter().map(spell).collect::<Vec<_>>(),
        })
    };
    lateness.ranks.iter().map(rank).collect()
}

/// What the account comes to, in sentences.
fn conclusions(recorded: &Recorded, lateness: &Lateness, hosts: &[u32]) -> Vec<String> {
    if lateness.ranks.iter().all(|rank| rank.measured == 0) {
        let (collective, rounds) = (recorded.collective, lateness.rounds);
        return vec![format!(
            "Nothing was measured in the {rounds} round(s) of collective {collective}. The files of other collectives of this run have other numbers before the rank."
        )];
    }
    let waited = waits_for_all(recorded.fire, recorded.ranks);
    let mut lines = spells(lateness, waited);
    lines.extend(hosts.iter().map(|host| format!("All ranks of host {host} became slow together: look at the host.")));
    if lines.is_empty() {
        lines.push("No rank was slow for long.".to_owned());
    }
    let (cost_them, cost) = (cost_them(waited), seconds(lateness.jitter));
    lines.push(format!("Single long steps of ranks that were not slow then {cost_them} {cost}."));
    lines
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn as_json(recorded: &Recorded, lateness: &Lateness, hosts: &[u32]) -> serde_json::Value {
    json!({
        "collective": recorded.collective, "fire": recorded.fire.to_string(), "recorded_by": recorded.rank, "rounds": lateness.rounds,
        "hosts": recorded.hosts, "slow_hosts": hosts, "jitter_s": lateness.jitter.as_secs_f64(), "ranks": ranks_as_json(lateness),
    })
}
