//! Aligned tables for people.

use std::fmt;

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
            let cell = |(column, cell): (usize, &String)| {
                let width = widths[column];
                if numeric[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            };
            let line: Vec<String> = row.iter().enumerate().map(cell).collect();
            f.write_str(line.join("  ").trim_end())?;
        }
        Ok(())
    }
}
