//! Aligned tables for people.

use std::fmt;

/// A table whose rows are printed as they come. A column is as wide as its head and its first cell, with room for greater
/// numbers, and grows with a longer cell.
#[derive(Debug)]
pub(super) struct Rows {
    head: Vec<String>,
    /// Of each column; none before the first row.
    widths: Vec<usize>,
}

/// Digits by which numbers may become longer than the first one.
const ROOM: usize = 2;

impl Rows {
    pub(super) fn new(head: &[&str]) -> Self {
        Rows { head: head.iter().map(|&cell| cell.to_owned()).collect(), widths: Vec::new() }
    }

    /// Prints a row, and the head before the first one.
    pub(super) fn row(&mut self, cells: &[String]) {
        let numeric: Vec<bool> = cells.iter().map(|cell| is_number(cell)).collect();
        if self.widths.is_empty() {
            let width = |(head, cell): (&String, &String)| {
                let room = if is_number(cell) { ROOM } else { 0 };
                head.chars().count().max(cell.chars().count() + room)
            };
            self.widths = self.head.iter().zip(cells).map(width).collect();
            say!("{}", line(&self.head, &self.widths, &numeric));
        }
        self.widths.iter_mut().zip(cells).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
        say!("{}", line(cells, &self.widths, &numeric));
    }
}

/// A row in columns of these widths.
fn line(cells: &[String], widths: &[usize], numeric: &[bool]) -> String {
    let cell = |(column, cell): (usize, &String)| {
        let width = widths[column];
        if numeric[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    };
    let line: Vec<String> = cells.iter().enumerate().map(cell).collect();
    line.join("  ").trim_end().to_owned()
}

/// Columns as wide as their widest cell; numbers are aligned to the right.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: &[&str]) -> Self {
        Table { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub(super) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }
}

fn is_number(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let numeric = |column: usize| self.rows.len() > 1 && self.rows[1..].iter().all(|row| is_number(&row[column]));
        let numeric: Vec<bool> = (0..columns).map(numeric).collect();
        for (index, row) in self.rows.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            f.write_str(&line(row, &widths, &numeric))?;
        }
        Ok(())
    }
}
