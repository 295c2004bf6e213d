//! The picture of a run: latency over size, a line for each rule, and for each of other programs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::plot::{COLOURS, Series, escaped, lines, standalone};
use crate::files;

/// What is drawn, and where.
#[derive(Debug)]
pub(super) struct Picture {
    file: PathBuf,
    /// The name of each line, with its points: bytes and microseconds.
    lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Picture {
    /// Checks that a picture can be in such a file, and reads the rows of other programs.
    ///
    /// # Errors
    /// A name that ends neither in `.svg` nor in `.html`, or rows that are none.
    pub(super) fn new(file: &Path, others: &[PathBuf]) -> Result<Self, String> {
        if !matches!(file.extension().and_then(|end| end.to_str()), Some("svg" | "html")) {
            return Err(format!("--plot {}: the name ends in .svg or .html", file.display()));
        }
        let mut picture = Picture { file: file.to_owned(), lines: Vec::new() };
        for other in others {
            picture.overlay(other).map_err(|what| format!("--overlay {}: {what}", other.display()))?;
        }
        Ok(picture)
    }

    /// Adds the rows of a file: an object a line, as `--json` prints it. A line is named by `name`, `fire` or `op`.
    fn overlay(&mut self, file: &Path) -> Result<(), String> {
        const MOST_BYTES: u64 = 64 << 20;
        let text = files::text(file, MOST_BYTES).map_err(|cause| cause.to_string())?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.starts_with('{')) {
            let row: Value = serde_json::from_str(line).map_err(|problem| format!("line {number}: {problem}"))?;
            let value = |name: &str| row[name].as_f64();
            let (Some(bytes), Some(us)) = (value("bytes"), value("p50_us").or_else(|| value("mean_us"))) else {
                return Err(format!("line {number}: a row has bytes, and p50_us or mean_us"));
            };
            // What a picture with logarithmic axes can show, from a nanosecond to years.
            let can_be_drawn = (1.0..=1e18).contains(&bytes) && (1e-3..=1e15).contains(&us);
            if !can_be_drawn {
                return Err(format!("line {number}: {bytes} bytes in {us} µs cannot be drawn"));
            }
            let name = ["name", "fire", "op"].into_iter().find_map(|key| row[key].as_str()).unwrap_or("row");
            self.add(format!("{stem}: {name}"), bytes, us);
        }
        if text.lines().any(|line| line.starts_with('{')) { Ok(()) } else { Err("it has no rows".to_owned()) }
    }

    pub(super) fn add(&mut self, name: String, bytes: f64, us: f64) {
        match self.lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((bytes, us)),
            None => self.lines.push((name, vec![(bytes, us)])),
        }
    }

    /// Writes the file.
    pub(super) fn write(&self, title: &str) -> Result<(), String> {
        let series = |(colour, (_, points)): (usize, &(String, Vec<_>))| Series { colour, points: points.clone() };
        let series: Vec<Series> = self.lines.iter().enumerate().map(series).collect();
        let title = escaped(title);
        let figure = lines(&title, ("bytes", true), ("p50, µs", true), &series);
        let names: Vec<String> = self.lines.iter().map(|(name, _)| name.clone()).collect();
        let image = standalone(&figure, &names);
        let text = match self.file.extension().is_some_and(|end| end == "html") {
            false => image,
            true => {
                let row = |(index, name): (usize, &String)| {
                    let points: Vec<String> =
                        self.lines[index].1.iter().map(|(bytes, us)| format!("<td>{bytes} B: {us:.2}")).collect();
                    let colour = COLOURS[index % COLOURS.len()];
                    format!("<tr><th style=\"color:{colour}\">{}{}</tr>\n", escaped(name), points.concat())
                };
                let rows: String = names.iter().enumerate().map(row).collect();
                format!(
                    "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>\
                     body{{font:15px system-ui,sans-serif;margin:2em}}td,th{{padding:.2em .8em;text-align:left}}</style>\n\
                     <h1>{title}</h1>\n{image}<p>p50 in microseconds:</p>\n<table>{rows}</table></html>\n"
                )
            }
        };
        files::write(&self.file, text.as_bytes()).map_err(|cause| format!("{}: {cause}", self.file.display()))
    }
}
