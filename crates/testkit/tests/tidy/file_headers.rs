//! Every file opens with what it is for.

use crate::sources::{all, check};

#[test]
fn every_file_opens_with_its_purpose() {
    let without = all().iter().filter(|file| !file.text.starts_with("//"));
    check("a file opens with its purpose", without.map(|file| file.path.clone()), &[]);
}
