//! Torn tails, flipped bits, missing and foreign files, a full disk: found, reported, and nothing acknowledged lost.

use std::{fs, path::Path};

use bytes::Bytes;
use env::Env;
use store::{
    EmbeddedStore, Limits, Operation, Store, StoreError, Transaction, check,
    contract::{delete, put, under, write},
};

fn open(path: &Path) -> Result<EmbeddedStore, StoreError> {
    let limits = Limits { segment_bytes: 4 << 10, ..Limits::default() };
    EmbeddedStore::open_with_limits(path, Env::real(), limits)
}

/// A store with several segments; the revision after each write.
async fn filled(path: &Path) -> Vec<u64> {
    let store = open(path).expect("an empty store");
    let mut revisions = Vec::new();
    for n in 0..20 {
        revisions.push(write(&store, vec![put(&format!("/k/{n:02}"), &"x".repeat(700))]).await);
    }
    revisions
}

fn segments(path: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut logs: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
    logs.sort();
    logs
}

fn corrupted<T>(result: Result<T, StoreError>, words: &[&str]) {
    match result.err() {
        Some(StoreError::Corrupted(reason)) => {
            for word in words {
                assert!(reason.contains(word), "{reason:?} should name {word:?}");
            }
            assert!(!reason.contains('\n'));
        }
        other => panic!("should be corrupted: {other:?}"),
    }
}

#[tokio::test]
async fn a_torn_tail_loses_only_what_was_torn_and_is_reported() {
    for (cut, extended) in [(1, false), (7, false), (60, false), (100, false), (700, false), (750, false), (750, true)]
    {
        let directory = tempfile::tempdir().unwrap();
        let revisions = filled(directory.path()).await;
        let last = segments(directory.path()).pop().unwrap();
        let length = fs::metadata(&last).unwrap().len();
        let file = fs::File::options().write(true).open(&last).unwrap();
        file.set_len(length - cut).unwrap();
        if extended {
            // A power cut: the length is there, the data is not.
            file.set_len(length).unwrap();
        }
        assert!(check(directory.path()).unwrap().torn_bytes > 0);
        let store = open(directory.path()).unwrap();
        assert!(store.torn_bytes() > 0, "cut {cut} is reported");
        assert_eq!(store.revision().await.unwrap(), revisions[18]);
        assert_eq!(store.range(under("/k/", 0, None)).await.unwrap().records.len(), 19, "cut {cut}");
        // Writing goes on, and is there after another opening.
        write(&store, vec![put("/k/more", "y")]).await;
        drop(store);
        let store = open(directory.path()).unwrap();
        assert_eq!(store.torn_bytes(), 0);
        assert_eq!(store.count("/k/", "/l").await.unwrap(), 20);
    }
}

#[tokio::test]
async fn a_flipped_bit_is_found_wherever_acknowledged_writes_follow() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path()).await;
    let logs = segments(directory.path());
    assert!(logs.len() > 3);
    let last = logs.len() - 1;
    let end = fs::metadata(&logs[last]).unwrap().len() as usize;
    let places = [(0, 3), (0, 20), (0, 30), (0, 400), (1, 900), (last - 1, 2000), (last, 17), (last, 300)];
    // Even in the newest write, as long as it is all there.
    for (segment, offset) in places.into_iter().chain([(last, end - 700), (last, end - 10)]) {
        let path = &logs[segment];
        let sound = fs::read(path).unwrap();
        let mut damaged = sound.clone();
        damaged[offset] ^= 4;
        fs::write(path, &damaged).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        corrupted(check(directory.path()), &[name, "minke store restore"]);
        corrupted(open(directory.path()), &[name, "at byte"]);
        fs::write(path, &sound).unwrap();
    }
    assert_eq!(check(directory.path()).unwrap().keys, 20);
}

#[tokio::test]
async fn space_made_ahead_is_no_damage_and_hides_none() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    for n in 0..20 {
        write(&store, vec![put(&format!("/k/{n}"), &"x".repeat(700))]).await;
    }
    // What a crash leaves: the files as they are while the store is open.
    let crashed = || {
        let copy = tempfile::tempdir().unwrap();
        for file in segments(directory.path()) {
            fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
        }
        copy
    };
    let copy = crashed();
    let last = segments(copy.path()).pop().unwrap();
    let bytes = fs::read(&last).unwrap();
    assert!(bytes.ends_with(&[0; 1000]), "space is made ahead");
    let report = check(copy.path()).unwrap();
    assert_eq!((report.keys, report.torn_bytes), (20, 0));
    let again = open(copy.path()).unwrap();
    assert_eq!((again.torn_bytes(), again.count("/k/", "/l").await.unwrap()), (0, 20));
    write(&again, vec![put("/k/more", "y")]).await;
    drop(again);
    assert_eq!(check(copy.path()).unwrap().keys, 21);
    assert!(!fs::read(&last).unwrap().ends_with(&[0; 1000]), "and given back at the end");
    // The newest write is all there, so a flipped bit in it is damage and not a write that was cut off.
    let end = bytes.iter().rposition(|b| *b != 0).unwrap();
    for offset in [end, end - 300, end - 700] {
        let copy = crashed();
        let last = segments(copy.path()).pop().unwrap();
        let mut damaged = bytes.clone();
        damaged[offset] ^= 4;
        fs::write(&last, damaged).unwrap();
        corrupted(open(copy.path()), &["at byte", "minke store restore"]);
    }
    // One that was cut off is dropped and told.
    let copy = crashed();
    let last = segments(copy.path()).pop().unwrap();
    let mut torn = bytes.clone();
    torn[end - 300..].fill(0);
    fs::write(&last, torn).unwrap();
    let again = open(copy.path()).unwrap();
    assert_eq!((again.torn_bytes() > 0, again.count("/k/", "/l").await.unwrap()), (true, 19));
}

#[tokio::test]
async fn damage_while_open_is_found_by_reading() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    write(&store, vec![put("/k/a", &"x".repeat(500)), put("/k/b", "fine")]).await;
    let path = &segments(directory.path())[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[300] ^= 1;
    fs::write(path, &bytes).unwrap();
    corrupted(store.get("/k/a").await, &["00000001.log", "checksum"]);
    corrupted(store.range(under("/k/", 0, None)).await, &["00000001.log"]);
    assert_eq!(&store.get("/k/b").await.unwrap().unwrap().value[..], b"fine");
}

#[tokio::test]
async fn missing_foreign_and_locked_directories_are_told() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path()).await;
    let logs = segments(directory.path());
    for gone in [0, 1] {
        let bytes = fs::read(&logs[gone]).unwrap();
        fs::remove_file(&logs[gone]).unwrap();
        corrupted(open(directory.path()), &[logs[gone].to_str().unwrap(), "missing"]);
        fs::write(&logs[gone], bytes).unwrap();
    }
    let first = open(directory.path()).unwrap();
    let second = open(directory.path()).err().map(|e| e.to_string()).unwrap();
    assert!(second.contains(directory.path().to_str().unwrap()) && second.contains("in use"), "{second}");
    drop(first);
    open(directory.path()).unwrap();

    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("member"), "x").unwrap();
    corrupted(open(foreign.path()), &[foreign.path().to_str().unwrap(), "member", "empty directory"]);
    fs::write(foreign.path().join("00000001.log"), "something else entirely").unwrap();
    corrupted(open(foreign.path()), &["00000001.log", "not a log file"]);
}

/// Does nothing unless it is the child, which has a very small file system of its own at the directory it is given.
#[tokio::test]
async fn child_on_a_small_disk() {
    let Ok(directory) = std::env::var("MINKE_STORE_SMALL_DISK") else { return };
    let path = Path::new(&directory).join("store");
    fs::write(Path::new(&directory).join("ballast"), vec![1; 200 << 10]).unwrap();
    let store = open(&path).unwrap();
    let mut acknowledged = 0;
    let value = Bytes::from(vec![7; 10_000]);
    let put_at = |n: usize| Transaction {
        compare: vec![],
        operations: vec![Operation::Put { key: format!("/k/{n:04}"), value: value.clone(), ttl_seconds: None }],
    };
    let error = loop {
        match store.transact(put_at(acknowledged)).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1000, "the disk is small");
    };
    assert!(matches!(&error, StoreError::Unavailable(reason) if reason.contains("space")), "{error:?}");
    let reached = store.revision().await.unwrap();
    for _ in 0..3 {
        store.transact(put_at(acknowledged)).await.expect_err("the disk is still full");
    }
    assert_eq!(store.revision().await.unwrap(), reached);
    assert_eq!(store.count("/k/", "/l").await.unwrap(), acknowledged as u64, "reading goes on");
    fs::remove_file(Path::new(&directory).join("ballast")).unwrap();
    for n in acknowledged..acknowledged + 5 {
        store.transact(put_at(n)).await.expect("there is space again");
    }
    drop(store);
    assert_eq!(check(&path).unwrap().keys, acknowledged as u64 + 5);
    let store = open(&path).unwrap();
    assert_eq!((store.torn_bytes(), store.revision().await.unwrap()), (0, reached + 5));
    println!("survived a full disk");
}

#[test]
fn a_full_disk_refuses_writes_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let script =
        r#"mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" --exact damage::child_on_a_small_disk --nocapture"#;
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .env("MINKE_STORE_SMALL_DISK", directory.path())
        .output()
        .expect("unshare (util-linux) makes the small disk");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("survived a full disk"), "{said}");
}

#[tokio::test]
async fn deletions_stay_deleted_over_openings() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path()).await;
    let store = open(directory.path()).unwrap();
    let last = write(&store, (0..20).map(|n| delete(&format!("/k/{n:02}"))).collect()).await;
    store.compact(last).await.unwrap();
    drop(store);
    let store = open(directory.path()).unwrap();
    assert_eq!((store.count("/k/", "/l").await.unwrap(), store.revision().await.unwrap()), (0, last));
    let refused = store.range(under("/k/", 0, Some(last - 1))).await;
    assert!(matches!(refused, Err(StoreError::Compacted { oldest, .. }) if oldest == last), "{refused:?}");
}

#[tokio::test]
async fn a_process_on_its_way_keeps_nothing_locked() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path()).await;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let until = stop.clone();
    let starter = std::thread::spawn(move || {
        while !until.load(std::sync::atomic::Ordering::Relaxed) {
            assert!(std::process::Command::new("true").status().unwrap().success());
        }
    });
    for _ in 0..200 {
        drop(open(directory.path()).unwrap());
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    starter.join().unwrap();
}
