//! The picture of a recorded run: a line a rank, in one page that loads nothing.

use std::fmt::Write;
use std::time::Duration;

use super::super::plot::escaped;
use super::{percent, rounds, share};
use crate::collective::lateness::NewestSteps;
use crate::collective::recording::Recorded;
use crate::{Lateness, Part};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}\
svg{width:100%;height:auto}svg text{font-size:11px;fill:#444}.line{fill:none;stroke:#2b6cb0;stroke-width:1}\
.base{stroke:#ddd}.late{fill:#c05621}.slow{fill:#fed7d7}ul{padding-left:1.2em}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}svg text{fill:#bbb}.base{stroke:#333}.slow{fill:#5a2a2a}}";

const LEFT: f64 = 90.0;
const WIDTH: f64 = 1000.0;
const ROW: f64 = 34.0;

/// The most points of a line: each then stands for several rounds, of which it shows the longest step.
const POINTS: usize = 1000;

/// A step this number of times as long as that of a fast rank is drawn at the upper edge of its line.
const MOST: f64 = 4.0;

/// What a line shows of some consecutive rounds.
#[derive(Clone, Copy, Default)]
struct Point {
    /// The longest step, as a multiple of that of a fast rank.
    factor: Option<f64>,
    is_late: bool,
}

fn rounds_of_a_point(recorded: &Recorded) -> usize {
    recorded.cuts.len().div_ceil(POINTS).max(1)
}

/// Returns the points of each rank.
fn points(recorded: &Recorded) -> Vec<Vec<Point>> {
    let each = rounds_of_a_point(recorded);
    let count = recorded.cuts.len().div_ceil(each);
    let mut lines = vec![vec![Point::default(); count]; recorded.ranks as usize];
    let mut newest = NewestSteps::new(recorded.ranks);
    for (index, cut) in recorded.cuts.iter().enumerate() {
        let fast = newest.learn(cut).map(|time| Duration::from_nanos(time.max(1)));
        for entry in cut.contributions() {
            let point = &mut lines[entry.rank as usize][index / each];
            point.is_late |= entry.part == Part::Carried;
            if let (Some(computed), Some(fast)) = (entry.computed(), fast) {
                let factor = computed.div_duration_f64(fast);
                point.factor = Some(point.factor.map_or(factor, |before| before.max(factor)));
            }
        }
    }
    lines
}

pub(super) fn page(title: &str, recorded: &Recorded, (lateness, hosts): (&Lateness, &[u32])) -> String {
    let title = escaped(title);
    let (ranks, rounds_of_all) = (recorded.ranks, lateness.rounds);
    let each = rounds_of_a_point(recorded);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n\
         <p>{ranks} ranks, {rounds_of_all} rounds, fire {}. A line a rank: how long it computed, as a multiple of a fast rank's \
         time; the lower edge is 1, the upper one {MOST} or more. A point is the longest step of {each} round(s), so a line shows each long \
         step and not the mean. Dots: contributions that came late. Shaded: rounds in which the rank was slow \
         for long.</p>\n<ul>\n",
        recorded.fire
    );
    for line in super::conclusions(recorded, lateness, hosts) {
        let _ = writeln!(html, "<li>{line}</li>");
    }
    let lines = points(recorded);
    let height = ROW * f64::from(ranks) + 30.0;
    let _ = writeln!(html, "</ul>\n<svg viewBox=\"0 0 {} {height}\" role=\"img\">", LEFT + WIDTH + 10.0);
    let across = |round: u64| LEFT + WIDTH * (round.saturating_sub(1)) as f64 / rounds_of_all.max(1) as f64;
    for (rank, line) in lateness.ranks.iter().zip(&lines) {
        let base = ROW * (f64::from(rank.rank) + 1.0) - 4.0;
        let _ = writeln!(html, "<g id=\"rank{}\">", rank.rank);
        for spell in &rank.spells {
            let (from, to) = (across(spell.since), across(spell.until.unwrap_or(rounds_of_all + 1)));
            let _ = writeln!(
                html,
                "<rect class=\"slow\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}: {:.2} times</title></rect>",
                base - ROW + 8.0,
                (to - from).max(1.0),
                ROW - 8.0,
                rounds(spell),
                spell.factor
            );
        }
        let _ = writeln!(
            html,
            "<text x=\"0\" y=\"{:.1}\">rank {}, late {}</text><line class=\"base\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{base:.1}\" y2=\"{base:.1}\"/>",
            base - 6.0,
            rank.rank,
            percent(share(rank.late, rank.contributions)),
            LEFT + WIDTH
        );
        let place = |index: usize| LEFT + WIDTH * (index as f64 + 0.5) / line.len().max(1) as f64;
        let up = |factor: f64| base - (ROW - 10.0) * (factor.clamp(1.0, MOST) - 1.0) / (MOST - 1.0);
        let drawn: Vec<String> = line
            .iter()
            .enumerate()
            .filter_map(|(index, point)| Some(format!("{:.1},{:.1}", place(index), up(point.factor?))))
            .collect();
        let _ = writeln!(html, "<polyline class=\"line\" points=\"{}\"/>", drawn.join(" "));
        for (index, _) in line.iter().enumerate().filter(|(_, point)| point.is_late) {
            let _ =
                write!(html, "<circle class=\"late\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"1.2\"/>", place(index), base + 2.0);
        }
        html.push_str("</g>\n");
    }
    let _ = writeln!(
        html,
        "<text x=\"{LEFT}\" y=\"{:.1}\">round 1</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">round {rounds_of_all}</text></svg></html>",
        height - 8.0,
        LEFT + WIDTH,
        height - 8.0
    );
    html
}
