//! Aligned tables for people.

use std::fmt;

/// A table whose rows are printed as they come. A column is as wide as its head and its first cell, with space for
/// greater numbers, and grows with a longer cell.
#[derive(Debug)]
pub(super) struct Rows {
    head: Vec<String>,
    /// The width of each column; before the first row, its minimum width.
    widths: Vec<usize>,
    has_begun: bool,
}

/// The number of digits by which numbers may become longer than the first one.
const ROOM: usize = 2;

impl Rows {
    pub(super) fn new(head: &[&str]) -> Self {
        let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
        Rows { widths: head.iter().map(|cell| cell.chars().count()).collect(), head, has_begun: false }
    }

    /// Makes a column at least as wide as this number of characters.
    pub(super) fn widen(&mut self, column: usize, characters: usize) {
        self.widths[column] = self.widths[column].max(characters);
    }

    /// Prints a row, and the head before the first one.
    pub(super) fn row(&mut self, cells: &[String]) {
        let numeric: Vec<bool> = cells.iter().map(|cell| is_number(cell)).collect();
        for (column, cell) in cells.iter().enumerate() {
            let room = if numeric[column] && !self.has_begun { ROOM } else { 0 };
            self.widen(column, cell.chars().count() + room);
        }
        if !self.has_begun {
            self.has_begun = true;
            say!("{}", line(&self.head, &self.widths, &numeric));
        }
        say!("{}", line(cells, &self.widths, &numeric));
    }
}

/// Formats a row in columns of these widths.
fn line(cells: &[String], widths: &[usize], numeric: &[bool]) -> String {
    let cell = |(column, cell): (usize, &String)| {
        let width = widths[column];
        if numeric[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    };
    let line: Vec<String> = cells.iter().enumerate().map(cell).collect();
    line.join("  ").trim_end().to_owned()
}

/// A table whose columns are as wide as their widest cell; numbers are aligned to the right.
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
