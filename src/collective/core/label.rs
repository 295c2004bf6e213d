//! The form of relayed data: the data, and a label right in front of it that describes it.
//!
//! From the data downwards lie a head (in the form that a record has), the form of the data, an entry for each part,
//! and the hosts that have no free slot for the next round. So both ends of a write know where it begins, whatever the
//! number of entries.

use super::entry::{Entry, Part};

/// How data lies after its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Contributions as they were handed in, one after the other: zero, one or two.
    Rows(usize),
    /// A sum, in the width in which sums are made.
    Sum,
}

impl Form {
    /// Returns the number of rows in data of this form.
    pub(crate) fn rows(self) -> usize {
        if let Form::Rows(rows) = self { rows } else { 1 }
    }
}

/// A label, read by cells: the first cell lies right in front of the data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label<F> {
    cell: F,
}

const SUM: u64 = 3;
const FORM_BITS: u32 = 2;
const HEAD: usize = 0;
const FORM: usize = 1;
const ENTRIES: usize = 2;

impl<F: Fn(usize) -> u64> Label<F> {
    pub(crate) fn new(cell: F) -> Self {
        Label { cell }
    }

    /// Returns the cells of a record: its head, and then the entries.
    pub(crate) fn record(&self, index: usize) -> u64 {
        (self.cell)(if index == 0 { HEAD } else { ENTRIES + index - 1 })
    }

    fn entries(&self) -> usize {
        ((self.cell)(HEAD) & u64::from(u32::MAX)) as usize
    }

    pub(crate) fn form(&self) -> Form {
        match (self.cell)(FORM) & ((1 << FORM_BITS) - 1) {
            SUM => Form::Sum,
            rows => Form::Rows(rows as usize),
        }
    }

    /// Returns the hosts that have no free slot for the next round.
    pub(crate) fn without_slot(&self) -> impl Iterator<Item = u32> {
        let first = ENTRIES + self.entries();
        let count = ((self.cell)(FORM) >> FORM_BITS) as usize;
        (first..first + count).map(|index| (self.cell)(index) as u32)
    }

    /// Returns the number of cells of the label.
    pub(crate) fn cells(&self) -> usize {
        ENTRIES + self.entries() + ((self.cell)(FORM) >> FORM_BITS) as usize
    }
}

/// Returns the cells of a label; the first one lies right in front of the data.
pub(crate) fn label<'a>(
    mut record: impl Iterator<Item = u64> + 'a,
    form: Form,
    without_slot: &'a [u32],
) -> impl Iterator<Item = u64> + 'a {
    let code = match form {
        Form::Rows(rows) => rows as u64,
        Form::Sum => SUM,
    };
    let head = record.next().into_iter().chain([(without_slot.len() as u64) << FORM_BITS | code]);
    head.chain(record).chain(without_slot.iter().map(|&host| u64::from(host)))
}

/// Returns the greatest number of cells in a label of data that `ranks` ranks take part in.
pub(crate) fn most_cells(ranks: u32) -> usize {
    ENTRIES + 3 * ranks as usize
}

/// Returns the form of the data of a few entries that is not summed.
pub(crate) fn rows(entries: impl Iterator<Item = Entry>) -> Form {
    Form::Rows(entries.filter(|entry| entry.part != Part::Leaving).count())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_what_it_was_made_of() {
        for (form, without_slot) in [(Form::Sum, vec![]), (Form::Rows(2), vec![7, 1]), (Form::Rows(0), vec![3])] {
            let record = [5 << 32 | 2, 100, 200];
            let cells: Vec<u64> = label(record.into_iter(), form, &without_slot).collect();
            let label = Label::new(|index: usize| cells[index]);
            assert_eq!(label.form(), form);
            assert_eq!([0, 1, 2].map(|index| label.record(index)), record);
            assert_eq!(label.without_slot().collect::<Vec<_>>(), without_slot);
            assert_eq!(label.cells(), cells.len());
        }
    }
}
