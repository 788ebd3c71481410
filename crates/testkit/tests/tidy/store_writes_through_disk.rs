//! The embedded store touches files only through its `disk` trait, under which tests put a disk that lies.

use crate::sources::{all, check};

#[test]
fn the_store_writes_through_its_disk() {
    let files = all();
    let own = files.iter().filter(|file| {
        let store = file.path.strip_prefix("crates/store/src/").unwrap_or_default();
        (store.starts_with("embedded/") || store.starts_with("mvcc/") || store == "backup.rs") && !file.is_test()
    });
    let breaking = own.flat_map(|file| {
        let lines =
            file.code().filter(|(_, line)| ["fs::", "File::", "OpenOptions"].iter().any(|way| line.contains(way)));
        lines.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim()))
    });
    check("the embedded store touches files through `disk` alone", breaking, &[]);
}
