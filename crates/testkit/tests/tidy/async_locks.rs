//! No lock is held across an await: clippy sees to `std`'s and `parking_lot`'s guards (`await_holding_lock`), this rule to
//! tokio's, which are made to be held across one. Each is here with its reason.

use crate::sources::{all, check};

/// The files that may name `tokio::sync::{Mutex, RwLock}`, and what their lock is for.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/kubelet/src/image_manager.rs", "one pull of an image at a time; whoever waits finds it pulled"),
    ("crates/kubelet/src/pod_workers.rs", "one sync of a pod at a time"),
    ("crates/kubelet/src/runtime_manager/mod.rs", "one call about a pod's sandbox at a time"),
    ("crates/kubelet/src/status_manager.rs", "one write of a pod's status at a time, newest last"),
];

#[test]
fn async_locks_have_reasons() {
    let files = all();
    let breaking = files.iter().filter(|file| !file.is_test()).filter(|file| {
        let mut imports = file.text.split("use tokio::").skip(1).filter_map(|rest| rest.split(';').next());
        let word = |text: &str, word: &str| text.split(|c: char| !c.is_alphanumeric()).any(|part| part == word);
        let imported = imports.any(|import| word(import, "sync") && (word(import, "Mutex") || word(import, "RwLock")));
        imported || ["tokio::sync::Mutex", "tokio::sync::RwLock"].iter().any(|path| file.text.contains(path))
    });
    check("an async lock is held across awaits on purpose", breaking.map(|file| file.path.clone()), ALLOWED);
}
