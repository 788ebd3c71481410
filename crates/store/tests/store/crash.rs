//! Acknowledged writes survive kill -9: a child writes and says so, is killed, and everything it said must be there.
//! The child is this test binary again, told by an environment variable.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use env::Env;
use store::{EmbeddedStore, Limits, Operation, Outcome, Store, Transaction, check};

const DIRECTORY: &str = "MINKE_STORE_CRASH_DIRECTORY";
const ROUND: &str = "MINKE_STORE_CRASH_ROUND";
const ROUNDS: usize = 10;
const WRITERS: usize = 8;

/// Small, so that segments are closed, reclaimed and removed while the child is killed.
fn limits() -> Limits {
    Limits { segment_bytes: 64 << 10, history_revisions: 100, ..Limits::default() }
}

/// A value that shows which write it is and whether it is whole.
fn value(round: usize, writer: usize, n: usize) -> Bytes {
    let filler = (round * 31 + writer * 7 + n) as u8;
    let mut bytes = format!("{round} {writer} {n} ").into_bytes();
    bytes.extend(std::iter::repeat_n(filler, 200 + n % 800));
    bytes.into()
}

fn number(value: &Bytes, round: usize, writer: usize) -> usize {
    let text = String::from_utf8_lossy(value);
    let n = text.split(' ').nth(2).and_then(|n| n.parse().ok()).expect("a number in the value");
    assert_eq!(*value, self::value(round, writer, n), "the value is whole");
    n
}

/// Does nothing unless it is the child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_writes() {
    let (Ok(directory), Ok(round)) = (std::env::var(DIRECTORY), std::env::var(ROUND)) else { return };
    let round: usize = round.parse().expect("a round");
    let store = Arc::new(EmbeddedStore::open_with_limits(directory, Env::real(), limits()).expect("the store opens"));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for n in 0.. {
                let once = format!("/once/{round:02}/{writer}/{n:06}");
                let hot = format!("/hot/{round:02}/{writer}");
                let operations =
                    [once, hot].map(|key| Operation::Put { key, value: value(round, writer, n), ttl_seconds: None });
                let transaction = Transaction { compare: vec![], operations: operations.into() };
                let Ok(Outcome::Done { revision, .. }) = store.transact(transaction).await else {
                    panic!("write failed")
                };
                // One write call per line, so that a line is there or not.
                let line = format!("\nack {writer} {n} {revision}\n");
                std::io::stdout().write_all(line.as_bytes()).expect("the parent reads");
                // Keep the data small; deletions are part of the test.
                if n >= 40 {
                    let key = format!("/once/{round:02}/{writer}/{:06}", n - 40);
                    let transaction = Transaction { compare: vec![], operations: vec![Operation::Delete { key }] };
                    store.transact(transaction).await.expect("a deletion");
                }
            }
        });
    }
    writers.join_next().await;
}

/// Runs the child until `life` has passed since its first acknowledged write; the last one and the highest revision per
/// writer.
fn run_and_kill(directory: &Path, round: usize, life: Duration) -> BTreeMap<usize, (usize, u64)> {
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "crash::child_writes", "--nocapture", "--test-threads", "1"])
        .env(DIRECTORY, directory)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the child starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let (wrote, first) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut acknowledged = BTreeMap::new();
        for line in lines.map_while(Result::ok) {
            let words: Vec<_> = line.split(' ').collect();
            if let ["ack", writer, n, revision] = words[..]
                && let (Ok(writer), Ok(n), Ok(revision)) = (writer.parse(), n.parse(), revision.parse())
            {
                acknowledged.insert(writer, (n, revision));
                let _ = wrote.send(());
            }
        }
        acknowledged
    });
    // A busy machine may take long to start it.
    if first.recv_timeout(Duration::from_secs(120)).is_ok() {
        std::thread::sleep(life);
    }
    drop(first);
    child.kill().expect("the child runs until it is killed");
    child.wait().expect("our child");
    reader.join().expect("the reader")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_in_a_loop() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let directory = temporary.path().join("store");
    let mut all = BTreeMap::new();
    for round in 0..ROUNDS {
        let life = Duration::from_millis(150 + 37 * round as u64);
        let acknowledged = run_and_kill(&directory, round, life);
        assert!(!acknowledged.is_empty(), "round {round} wrote something");
        all.extend(acknowledged.into_iter().map(|(writer, last)| ((round, writer), last)));

        check(&directory).expect("a sound store");
        let store = EmbeddedStore::open_with_limits(&directory, Env::real(), limits()).expect("the store opens");
        let reached = store.revision().await.expect("a revision");
        for ((round, writer), (n, revision)) in &all {
            assert!(reached >= *revision, "revision {revision} was acknowledged, reached {reached}");
            let hot = store.get(&format!("/hot/{round:02}/{writer}")).await.expect("a get").expect("the hot key");
            assert!(number(&hot.value, *round, *writer) >= *n, "round {round} writer {writer} said {n}");
            // The last ones were never deleted.
            for n in n.saturating_sub(30)..=*n {
                let key = format!("/once/{round:02}/{writer}/{n:06}");
                let record = store.get(&key).await.expect("a get").unwrap_or_else(|| panic!("{key} was acknowledged"));
                assert_eq!(number(&record.value, *round, *writer), n);
            }
        }
    }
}
