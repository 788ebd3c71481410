//! Lines in columns, as Go's tabwriter lays them out.
//! Every describer writes through it; `why` and `timeline` too.
//! A column is as wide as its widest cell among the lines that follow each other with that column.

use crate::template::go_format::escape_terminal;

/// Spaces between two columns.
const PADDING: usize = 2;

/// Collects text at indentation levels of two spaces and aligns its tabs at the end.
#[derive(Default)]
pub struct Writer {
    text: String,
    /// What was aligned before a flush.
    aligned: String,
    indent: usize,
}

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn write(&mut self, level: usize, text: &str) {
        for _ in 0..(level + self.indent) {
            self.text.push_str("  ");
        }
        self.text.push_str(&escape_terminal(text));
    }

    /// What follows does not share columns with what came before.
    pub fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        self.aligned.push_str(&align(&text, PADDING));
    }

    /// Runs `body` with every line `levels` further to the right.
    pub fn nested(&mut self, levels: usize, body: impl FnOnce(&mut Self)) {
        self.indent += levels;
        body(self);
        self.indent -= levels;
    }

    /// With its tabs.
    pub fn unaligned(self) -> String {
        self.text
    }

    pub fn finish(mut self) -> String {
        self.flush();
        self.aligned
    }
}

/// Aligns the cells that tabs end. What follows a line's last tab is in no column.
pub fn align(text: &str, padding: usize) -> String {
    let lines: Vec<Vec<&str>> = text.split('\n').map(|line| line.split('\t').collect()).collect();
    let mut widths: Vec<Vec<usize>> = lines.iter().map(|cells| vec![0; cells.len().saturating_sub(1)]).collect();
    for (row, cells) in lines.iter().enumerate() {
        for column in 0..cells.len() - 1 {
            if widths[row][column] != 0 {
                continue;
            }
            let block = lines[row..].iter().take_while(|cells| cells.len() > column + 1);
            let width = block.clone().map(|cells| cells[column].chars().count()).max().unwrap_or(0) + padding;
            for line in &mut widths[row..row + block.count()] {
                line[column] = width;
            }
        }
    }
    let mut out = String::with_capacity(text.len() * 2);
    for (row, cells) in lines.iter().enumerate() {
        if row > 0 {
            out.push('\n');
        }
        for (column, cell) in cells.iter().enumerate() {
            out.push_str(cell);
            if let Some(width) = widths[row].get(column) {
                out.extend(std::iter::repeat_n(' ', width - cell.chars().count()));
            }
        }
    }
    out
}

/// Writes a formatted text at a level.
macro_rules! put {
    ($writer:expr, $level:expr, $($format:tt)*) => {
        $writer.write($level, &format!($($format)*))
    };
}
pub(crate) use put;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_end_where_lines_without_them_come() {
        let check = |text: &str, expected: &str| assert_eq!(align(text, 2), expected);
        check("Name:\tweb\nNamespace:\tdefault\n", "Name:       web\nNamespace:  default\n");
        check("a\tb\nplain\nccc\td\n", "a  b\nplain\nccc  d\n");
        check("Labels:\tx=1\n\ty=2\n", "Labels:  x=1\n         y=2\n");
        check("a\tbb\tc\na\tb\n", "a  bb  c\na  b\n");
    }
}
