//! The report: one self-contained page.

use std::fmt::Write;

use crate::units::Number;

use super::super::plot::{COLOURS, STYLE as CHARTS, Series, bars, lines};
use super::worker::{Point, Trained};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.charts{display:flex;flex-wrap:wrap;gap:1.2em}figure{margin:0;width:30em}\
figcaption{font-weight:600;margin-bottom:.3em}svg{width:100%;height:auto}.key{display:inline-block;width:1em;\
height:.7em;margin-right:.4em}@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}\
svg text{fill:#bbb}.grid{stroke:#333}td,th{border-color:#444}}";

/// Returns a page with a table and curves for each rule.
pub(super) fn page(title: &str, runs: &[(String, Trained)]) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{CHARTS}{STYLE}</style>\n<h1>{title}</h1>\n\
         <table><tr><th>rule<th>rounds<th>samples/s<th>speed-up<th>first loss<th>last loss<th>accuracy<th>fresh a round<th>mean age<th>greatest age<th>apart</tr>\n"
    );
    let yardstick = runs.first().map_or(1.0, |(_, run)| run.samples_per_s);
    for (index, (label, run)) in runs.iter().enumerate() {
        let (first, last, tally) = (run.first(), run.last(), &run.tally);
        let accuracy = last.accuracy.map_or("-".to_owned(), |accuracy| format!("{accuracy:.3}"));
        let _ = writeln!(
            html,
            "<tr><td><span class=\"key\" style=\"background:{}\"></span>{label}<td>{}<td>{:.0}<td>{:.2}<td>{:.4}<td>{:.4}<td>{accuracy}<td>{:.2}<td>{:.2}<td>{}<td>{:.4}</tr>",
            COLOURS[index % COLOURS.len()],
            tally.rounds,
            run.samples_per_s,
            run.samples_per_s / yardstick,
            Number(first.loss),
            Number(last.loss),
            tally.fresh_mean(),
            tally.age_mean(),
            tally.age_max(),
            run.apart,
        );
    }
    html.push_str("</table>\n<div class=\"charts\">\n");
    let curve = |x: fn(&Point) -> f64, y: fn(&Point) -> Option<f64>| -> Vec<Series> {
        let points = |run: &Trained| run.curve.iter().filter_map(|point| Some((x(point), y(point)?))).collect();
        runs.iter().enumerate().map(|(colour, (_, run))| Series { colour, points: points(run) }).collect()
    };
    let seconds = |point: &Point| point.seconds;
    let samples = |point: &Point| point.samples as f64;
    let loss = |point: &Point| Some(point.quality.loss);
    let accuracy = |point: &Point| point.quality.accuracy;
    html += &lines("Loss over time", ("seconds", false), ("loss", true), &curve(seconds, loss));
    html += &lines("Loss over samples", ("samples", false), ("loss", true), &curve(samples, loss));
    if runs.iter().any(|(_, run)| run.last().accuracy.is_some()) {
        html += &lines("Accuracy over time", ("seconds", false), ("accuracy", false), &curve(seconds, accuracy));
        html += &lines("Accuracy over samples", ("samples", false), ("accuracy", false), &curve(samples, accuracy));
    }
    let histogram = |counts: fn(&Trained) -> &[u64]| -> Vec<(usize, &[u64])> {
        runs.iter().enumerate().map(|(colour, (_, run))| (colour, counts(run))).collect()
    };
    html += &bars("Arrivals in a round", "fresh contributions", "part of rounds", &histogram(|run| &run.tally.fresh));
    html += &bars("Ages", "rounds late", "part of contributions", &histogram(|run| &run.tally.ages));
    html.push_str("\n</div></html>\n");
    html
}
