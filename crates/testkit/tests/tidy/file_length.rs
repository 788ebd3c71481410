//! A file is read in one sitting.

use crate::sources::{all, check};

const LINES_MAX: usize = 600;

#[test]
fn files_are_short() {
    let long = all().iter().filter(|file| file.text.lines().count() > LINES_MAX);
    check("a file has at most 600 lines", long.map(|file| file.path.clone()), &[]);
}
