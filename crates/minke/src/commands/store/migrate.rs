//! `minke store migrate`: copies every object between the embedded store and etcd, each in the form that it has there.
//! Called by `commands`; `apiserver::storage` knows the forms, `store` both places.
//! Nothing is removed from where it was. A copy is taken for whole only after both sides came to the same hash; until
//! then no server starts on it.

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use anyhow::{Context, Result, bail};
use apiserver::storage::{self, ROOT, StorageMediaType, UNFINISHED_MIGRATION};
use async_trait::async_trait;
use bytes::Bytes;
use env::Env;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::{
    Compare, EmbeddedStore, Operation, Outcome, Range, RangeResult, Record, Revision, Store, StoreError, StoreLayer,
    Transaction, prefix_end,
};

use crate::{cluster::file_modes, control_plane::cluster_settings, flags::store_flags::StoreFlags};

/// What is copied: objects, and what is written down of node ports.
const PARTS: [&str; 2] = ["/minke/node-ports/", ROOT];
/// Of servers that live, for seconds.
const LEASES: &str = "/registry/masterleases/";
const PAGE_KEYS: usize = 1000;
/// etcd takes 128 operations and 1.5 MiB in one transaction.
const BATCH_KEYS: usize = 100;
const BATCH_BYTES: usize = 768 << 10;
const PROGRESS_KEYS: u64 = 10_000;

/// How many keys there are, and what they come to. Keys that end by themselves are counted apart, out of the hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    keys: u64,
    expiring: u64,
    hash: String,
}

pub async fn run(to: &str, flags: &StoreFlags, directory: &Path, env: &Env) -> Result<String> {
    let etcd = flags.open_etcd(env).await?;
    let done = match to {
        "etcd" => {
            if !directory.is_dir() {
                bail!("{} has no store", directory.display());
            }
            let source = EmbeddedStore::open(directory, env.clone())
                .with_context(|| format!("{} can't be opened: stop the cluster first", directory.display()))?;
            let name = format!("embedded store {}", directory.canonicalize()?.display());
            to_etcd(&source, &name, &*etcd, env).await?
        }
        "embedded" => to_embedded(etcd, directory, env).await?,
        other => bail!("--to {other} is not known: use `etcd` or `embedded`"),
    };
    Ok(format!(
        "copied {} keys, and {} that end by themselves; both sides come to sha256 {}",
        done.keys, done.expiring, done.hash
    ))
}

async fn to_etcd(source: &dyn Store, name: &str, target: &dyn Store, env: &Env) -> Result<Summary> {
    let revision = source.revision().await?;
    let mut state = begin(target, name, revision).await?;
    let deadlines = deadlines(source).await?;
    let encrypted_fits = target.stored_key(ROOT) == ROOT;
    let (mut wanted, mut batch, mut bytes) = (Hasher::new(&deadlines), Vec::new(), 0);
    let now = now_ms(env)?;
    let mut pages = Pages::new(source, Some(revision));
    while let Some(page) = pages.next().await? {
        for record in page {
            if is_sealed(&record.value) && !encrypted_fits {
                bail!("{} is encrypted for its key: it can only move to --etcd-prefix /registry", record.key);
            }
            wanted.add(&record.key, &record.value);
            wanted.show_progress("read");
            if record.key <= state.after {
                continue;
            }
            let ttl_seconds = deadlines.get(&record.key).map(|at| (at.saturating_sub(now) / 1000).max(1));
            let value = shared_form(&record.key, record.value);
            bytes += value.len();
            batch.push(Operation::Put { key: record.key, value, ttl_seconds });
            if batch.len() >= BATCH_KEYS || bytes >= BATCH_BYTES {
                state.write(target, std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
        }
    }
    state.write(target, batch).await?;
    let wanted = wanted.finish();
    let found = summary(target, None, &deadlines).await?;
    if found.keys != wanted.keys || found.hash != wanted.hash {
        bail!("etcd does not hold what was copied: {found:?}, not {wanted:?}; remove it there and start again");
    }
    let unmark = Operation::Delete { key: UNFINISHED_MIGRATION.into() };
    target.transact(Transaction { compare: vec![state.compare()], operations: vec![unmark] }).await?;
    Ok(wanted)
}

/// Copies a store's objects into an etcd that has none. Returns how many keys.
pub async fn fill(source: &dyn Store, name: &str, target: &dyn Store, env: &Env) -> Result<u64> {
    let done = to_etcd(source, name, target, env).await?;
    Ok(done.keys + done.expiring)
}

/// Removes the cluster's objects, as changes that whoever watches hears of.
pub async fn clear(etcd: &dyn Store) -> Result<()> {
    if etcd.count(LEASES, &prefix_end(LEASES)).await? > 0 {
        bail!(
            "API servers run on this etcd: stop them first (`minke server stop`), and give it the 15 seconds after which they \
             are taken for gone"
        );
    }
    // No server starts on what is only half removed.
    let state = json!({ "source": "restore --replace", "revision": 0, "after": "" }).to_string();
    let mark = Operation::Put { key: UNFINISHED_MIGRATION.into(), value: state.into(), ttl_seconds: None };
    etcd.transact(Transaction { compare: Vec::new(), operations: vec![mark] }).await?;
    let mut pages = Pages::new(etcd, None);
    while let Some(page) = pages.next().await? {
        for batch in page.chunks(BATCH_KEYS) {
            let delete = |record: &Record| Operation::Delete { key: record.key.clone() };
            let operations = batch.iter().map(delete).collect();
            etcd.transact(Transaction { compare: Vec::new(), operations }).await?;
        }
    }
    // Whoever starts next says what the cluster's settings are, an older version too.
    let last = [cluster_settings::KEY, UNFINISHED_MIGRATION].map(|key| Operation::Delete { key: key.into() });
    etcd.transact(Transaction { compare: Vec::new(), operations: last.into() }).await?;
    Ok(())
}

/// Writes an etcd's objects, as they are at one revision, to `file`, fills an empty store in `directory` from that, and
/// compares both by hash. Returns how many keys.
pub async fn back_up(etcd: Arc<dyn Store>, file: &Path, out: fs::File, directory: &Path, env: &Env) -> Result<u64> {
    if etcd.get(UNFINISHED_MIGRATION).await?.is_some() {
        bail!("etcd holds a half-done migration: finish it first");
    }
    let view = OwnForm::of(etcd.clone()).await?;
    let mut out = std::io::BufWriter::new(out);
    store::backup(&view, &mut out).await?;
    out.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    store::restore(directory, &mut fs::File::open(file)?, now_ms(env)?)?;
    let found = summary(&EmbeddedStore::open(directory, env.clone())?, None, &view.deadlines).await?;
    let wanted = summary(&*etcd, Some(view.revision), &view.deadlines).await?;
    if (wanted.keys, &wanted.hash) != (found.keys, &found.hash) {
        bail!("what was written is not what etcd holds: {found:?}, not {wanted:?}; try again");
    }
    Ok(found.keys + found.expiring)
}

/// How far a copy has come, as it is written down in the target until it is whole.
struct MigrationState {
    source: String,
    revision: Revision,
    /// The last key that was copied.
    after: String,
    written: Revision,
}

async fn begin(target: &dyn Store, source: &str, revision: Revision) -> Result<MigrationState> {
    let mut state = MigrationState { source: source.into(), revision, after: String::new(), written: 0 };
    if let Some(record) = target.get(UNFINISHED_MIGRATION).await? {
        let old: Value = serde_json::from_slice(&record.value).unwrap_or_default();
        if old["source"] != source || old["revision"] != revision {
            bail!(
                "the target holds a half-done migration of another state ({} at revision {}): empty it and start again",
                old["source"],
                old["revision"]
            );
        }
        state.after = old["after"].as_str().unwrap_or_default().to_string();
        state.written = record.mod_revision;
        eprintln!("going on after {:?}", state.after);
        return Ok(state);
    }
    for part in PARTS {
        if target.count(part, &prefix_end(part)).await? > 0 {
            bail!("the target is not empty: it has keys below {}", target.stored_key(part));
        }
    }
    state.write(target, Vec::new()).await?;
    Ok(state)
}

impl MigrationState {
    fn compare(&self) -> Compare {
        Compare { key: UNFINISHED_MIGRATION.into(), mod_revision: self.written }
    }

    /// Writes a batch together with the news that it is there.
    async fn write(&mut self, target: &dyn Store, mut batch: Vec<Operation>) -> Result<()> {
        if let Some(last) = batch.last() {
            self.after = last.key().to_string();
        }
        let state = json!({ "source": self.source, "revision": self.revision, "after": self.after }).to_string();
        batch.push(Operation::Put { key: UNFINISHED_MIGRATION.into(), value: state.into(), ttl_seconds: None });
        match target.transact(Transaction { compare: vec![self.compare()], operations: batch }).await? {
            Outcome::Done { revision, .. } => self.written = revision,
            Outcome::Conflict { .. } => bail!("somebody else migrates into the same target"),
        }
        Ok(())
    }
}

async fn to_embedded(etcd: Arc<dyn Store>, directory: &Path, env: &Env) -> Result<Summary> {
    if etcd.get(UNFINISHED_MIGRATION).await?.is_some() {
        bail!("etcd holds a half-done migration itself");
    }
    if directory.is_dir() && fs::read_dir(directory)?.next().is_some() {
        bail!("{} is not empty: migrate into an empty one", directory.display());
    }
    file_modes::private_directory(directory)?;
    // Beside the store: it is filled in one go, or not at all.
    let file = directory.with_extension("migration");
    let view = OwnForm::of(etcd.clone()).await?;
    let filled = async {
        let mut out = std::io::BufWriter::new(fs::File::create(&file)?);
        store::backup(&view, &mut out).await?;
        drop(out);
        store::restore(directory, &mut fs::File::open(&file)?, now_ms(env)?)?;
        anyhow::Ok(())
    };
    let filled = filled.await;
    let _ = fs::remove_file(&file);
    filled?;
    let copied = EmbeddedStore::open(directory, env.clone())?;
    let found = summary(&copied, None, &view.deadlines).await?;
    drop(copied);
    for revision in [Some(view.revision), None] {
        let wanted = summary(&*etcd, revision, &view.deadlines).await?;
        if (wanted.keys, &wanted.hash) != (found.keys, &found.hash) {
            fs::remove_dir_all(directory)?;
            bail!("objects changed while they were copied: stop every server on this etcd and start again");
        }
    }
    Ok(found)
}

/// What is in etcd at one revision, in the form of the embedded store.
struct OwnForm {
    inner: Arc<dyn Store>,
    revision: Revision,
    deadlines: HashMap<String, u64>,
}

impl OwnForm {
    /// etcd tells when keys end only of those that are there now: asked before and after, it misses none of the revision's. A
    /// key without its end would stay for ever.
    async fn of(inner: Arc<dyn Store>) -> Result<Self> {
        let mut all = deadlines(&*inner).await?;
        let revision = inner.revision().await?;
        all.extend(deadlines(&*inner).await?);
        Ok(Self { inner, revision, deadlines: all })
    }
}

#[async_trait]
impl StoreLayer for OwnForm {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    /// One part after the other, and nothing beside them.
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        let revision = Some(range.revision.unwrap_or(self.revision));
        let mut found = RangeResult::default();
        for (place, part) in PARTS.into_iter().enumerate() {
            let (start, end) = (range.start.as_str().max(part).to_string(), prefix_end(part));
            if start >= end {
                continue;
            }
            found = self.inner.range(Range { start, end, limit: range.limit, revision }).await?;
            for later in &PARTS[place + 1..] {
                found.remaining += self.inner.count(later, &prefix_end(later)).await?;
            }
            if !found.records.is_empty() {
                break;
            }
        }
        for record in &mut found.records {
            record.value = own_form(&record.key, record.value.clone());
        }
        found.records.retain(|record| !record.key.starts_with(LEASES));
        Ok(found)
    }

    async fn deadlines(&self, _start: &str, _end: &str) -> Result<Vec<(String, u64)>, StoreError> {
        Ok(self.deadlines.iter().map(|(key, at)| (key.clone(), *at)).collect())
    }
}

fn is_sealed(value: &[u8]) -> bool {
    value.starts_with(b"k8s:enc:")
}

/// As the embedded store has it; what can't be read stays as it is.
fn own_form(key: &str, value: Bytes) -> Bytes {
    if is_sealed(&value) { value } else { storage::to_json(key, value.clone()).unwrap_or(value) }
}

/// As etcd has it: protobuf, unless that would not give back the very same object.
fn shared_form(key: &str, value: Bytes) -> Bytes {
    if is_sealed(&value) || storage::prefix_of_key(key).is_none_or(|prefix| !storage::holds_objects(prefix)) {
        return value;
    }
    let Ok(json) = storage::to_json(key, value.clone()) else { return value };
    let stored = storage::to_stored(key, &json, StorageMediaType::Protobuf);
    let same = |back: Bytes| parsed(&back) == parsed(&json);
    if storage::to_json(key, stored.clone()).is_ok_and(same) { stored } else { json }
}

fn parsed(json: &[u8]) -> Option<Value> {
    serde_json::from_slice(json).ok()
}

fn now_ms(env: &Env) -> Result<u64> {
    Ok(u64::try_from(env.now().as_millisecond())?)
}

async fn deadlines(store: &dyn Store) -> Result<HashMap<String, u64>> {
    let mut all = HashMap::new();
    for part in PARTS {
        all.extend(store.deadlines(part, &prefix_end(part)).await?);
    }
    Ok(all)
}

/// Everything that is copied, in order.
struct Pages<'s> {
    store: &'s dyn Store,
    revision: Option<Revision>,
    part: usize,
    start: String,
}

impl<'s> Pages<'s> {
    fn new(store: &'s dyn Store, revision: Option<Revision>) -> Self {
        Self { store, revision, part: 0, start: PARTS[0].to_string() }
    }

    async fn next(&mut self) -> Result<Option<Vec<Record>>> {
        let Some(part) = PARTS.get(self.part) else { return Ok(None) };
        let (start, end) = (std::mem::take(&mut self.start), prefix_end(part));
        let page = self.store.range(Range { start, end, limit: PAGE_KEYS, revision: self.revision }).await?;
        self.revision = Some(page.revision);
        match page.records.last() {
            Some(last) if page.remaining > 0 => self.start = format!("{}\0", last.key),
            _ => {
                self.part += 1;
                self.start = PARTS.get(self.part).map_or_else(String::new, ToString::to_string);
            }
        }
        let mut records = page.records;
        records.retain(|record| !record.key.starts_with(LEASES));
        Ok(Some(records))
    }
}

async fn summary(store: &dyn Store, revision: Option<Revision>, deadlines: &HashMap<String, u64>) -> Result<Summary> {
    let (mut hasher, mut pages) = (Hasher::new(deadlines), Pages::new(store, revision));
    while let Some(page) = pages.next().await? {
        for record in page {
            hasher.add(&record.key, &record.value);
            hasher.show_progress("checked");
        }
    }
    Ok(hasher.finish())
}

/// The hash of keys and what they mean, whichever form they have.
struct Hasher<'d> {
    deadlines: &'d HashMap<String, u64>,
    hash: Sha256,
    keys: u64,
    expiring: u64,
}

impl<'d> Hasher<'d> {
    fn new(deadlines: &'d HashMap<String, u64>) -> Self {
        Self { deadlines, hash: Sha256::new(), keys: 0, expiring: 0 }
    }

    fn add(&mut self, key: &str, value: &Bytes) {
        if self.deadlines.contains_key(key) {
            self.expiring += 1;
            return;
        }
        self.keys += 1;
        let json = own_form(key, value.clone());
        match parsed(&json).filter(|_| !is_sealed(&json)) {
            Some(value) => self.text(key, canonical(value).to_string().as_bytes()),
            None => self.text(key, &json),
        }
    }

    fn text(&mut self, key: &str, value: &[u8]) {
        for part in [key.as_bytes(), value] {
            self.hash.update((part.len() as u64).to_be_bytes());
            self.hash.update(part);
        }
    }

    fn show_progress(&self, what: &str) {
        if self.keys > 0 && self.keys.is_multiple_of(PROGRESS_KEYS) {
            eprintln!("{what} {} keys", self.keys);
        }
    }

    fn finish(self) -> Summary {
        let hash = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Summary { keys: self.keys, expiring: self.expiring, hash }
    }
}

/// With members in the order of their names.
fn canonical(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.into_iter().map(|(name, value)| (name, canonical(value))).collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(members.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(canonical).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Both sides are embedded here: the one in the place of etcd is only written as etcd is.
    fn opened(folder: &Path, name: &str) -> EmbeddedStore {
        EmbeddedStore::open(folder.join(name), Env::real()).unwrap()
    }

    async fn put(store: &dyn Store, key: &str, value: Bytes, ttl_seconds: Option<u64>) {
        let put = Operation::Put { key: key.into(), value, ttl_seconds };
        store.transact(Transaction { compare: Vec::new(), operations: vec![put] }).await.unwrap();
    }

    async fn filled(store: &dyn Store) {
        let mut operations = Vec::new();
        for n in 0..250 {
            let map = json!({ "kind": "ConfigMap", "apiVersion": "v1",
                "metadata": { "name": format!("m{n}"), "namespace": "d" }, "data": { "k": n.to_string() } });
            let key = format!("/registry/configmaps/d/m{n:03}");
            operations.push(Operation::Put { key, value: storage::encode(&map), ttl_seconds: None });
        }
        store.transact(Transaction { compare: Vec::new(), operations }).await.unwrap();
        let widget = r#"{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w"},"x":[]}"#;
        put(store, "/registry/example.com/widgets/d/w", widget.into(), None).await;
        put(store, "/registry/secrets/d/s", Bytes::from_static(b"k8s:enc:aesgcm:v1:k:\xff\x00"), None).await;
        put(store, "/registry/unknowns/x", Bytes::from_static(b"k8s\0\n\x06\n\x01x\x12\x01Y\x12\x00"), None).await;
        put(store, "/minke/node-ports/30001", "d/svc".into(), None).await;
        put(store, "/registry/masterleases/192.0.2.1", "x".into(), Some(15)).await;
        let event = json!({ "kind": "Event", "apiVersion": "v1", "metadata": { "name": "e", "namespace": "d" } });
        put(store, "/registry/events/d/e", storage::encode(&event), Some(3600)).await;
        // Not of this cluster.
        put(store, "/elsewhere/x", "x".into(), None).await;
    }

    #[tokio::test]
    async fn stores_move_there_and_back() {
        let (env, folder) = (Env::real(), tempfile::tempdir().unwrap());
        let source = opened(folder.path(), "source");
        filled(&source).await;
        let etcd: Arc<dyn Store> = Arc::new(opened(folder.path(), "etcd"));
        let there = to_etcd(&source, "a", &*etcd, &env).await.unwrap();
        assert_eq!((there.keys, there.expiring), (254, 1));
        assert!(etcd.get("/registry/configmaps/d/m007").await.unwrap().unwrap().value.starts_with(b"k8s\0"));
        assert_eq!(etcd.get(UNFINISHED_MIGRATION).await.unwrap(), None);
        for raw in ["/registry/secrets/d/s", "/registry/unknowns/x", "/minke/node-ports/30001"] {
            let value = async |store: &dyn Store| store.get(raw).await.unwrap().unwrap().value;
            assert_eq!(value(&*etcd).await, value(&source).await, "{raw}");
        }
        let store = folder.path().join("store");
        let back = to_embedded(etcd.clone(), &store, &env).await.unwrap();
        assert_eq!(back.hash, there.hash);
        let store_now = EmbeddedStore::open(&store, env.clone()).unwrap();
        let ends = store_now.deadlines("", &prefix_end("")).await.unwrap();
        assert_eq!(ends.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["/registry/events/d/e"]);
        let map = store_now.get("/registry/configmaps/d/m007").await.unwrap().unwrap();
        assert_eq!(map.value, source.get("/registry/configmaps/d/m007").await.unwrap().unwrap().value);
        drop(store_now);
        // Neither is written over.
        assert!(to_embedded(etcd.clone(), &store, &env).await.unwrap_err().to_string().contains("not empty"));
        assert!(to_etcd(&source, "a", &*etcd, &env).await.unwrap_err().to_string().contains("not empty"));
    }

    #[tokio::test]
    async fn half_done_copies_go_on_or_are_refused() {
        let (env, folder) = (Env::real(), tempfile::tempdir().unwrap());
        let source = opened(folder.path(), "source");
        filled(&source).await;
        let target = opened(folder.path(), "target");
        let revision = source.revision().await.unwrap();
        let mut state = begin(&target, "a", revision).await.unwrap();
        let first = source.get("/minke/node-ports/30001").await.unwrap().unwrap();
        let batch = vec![Operation::Put { key: first.key, value: first.value, ttl_seconds: None }];
        state.write(&target, batch).await.unwrap();
        // Another source, another state of it: refused.
        let refused = to_etcd(&source, "b", &target, &env).await.unwrap_err().to_string();
        assert!(refused.contains("half-done migration of another state"), "{refused}");
        assert_eq!(to_etcd(&source, "a", &target, &env).await.unwrap().keys, 254);
        // What was changed in the target does not pass for a copy.
        let target = opened(folder.path(), "other");
        begin(&target, "a", revision).await.unwrap();
        put(&target, "/registry/configmaps/d/stray", "{}".into(), None).await;
        let refused = to_etcd(&source, "a", &target, &env).await.unwrap_err().to_string();
        assert!(refused.contains("does not hold what was copied"), "{refused}");
        assert!(target.get(UNFINISHED_MIGRATION).await.unwrap().is_some());
    }

    /// Servers go on writing Events while somebody asks when keys end, and fail at a transaction of one's choice.
    struct Busy {
        inner: Arc<dyn Store>,
        asked: AtomicUsize,
        transactions_left: AtomicUsize,
    }

    impl Busy {
        fn new(inner: EmbeddedStore, transactions: usize) -> Arc<Self> {
            let (asked, transactions_left) = (AtomicUsize::new(0), AtomicUsize::new(transactions));
            Arc::new(Self { inner: Arc::new(inner), asked, transactions_left })
        }
    }

    #[async_trait]
    impl StoreLayer for Busy {
        fn inner(&self) -> &dyn Store {
            &*self.inner
        }

        async fn deadlines(&self, start: &str, end: &str) -> Result<Vec<(String, u64)>, StoreError> {
            let found = self.inner.deadlines(start, end).await;
            let number = self.asked.fetch_add(1, Ordering::Relaxed);
            put(&*self.inner, &format!("/registry/events/d/while-{number}"), "{}".into(), Some(3600)).await;
            found
        }

        async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
            let left = self.transactions_left.load(Ordering::Relaxed);
            let left = left.checked_sub(1).ok_or_else(|| StoreError::Unavailable("as it should".into()))?;
            self.transactions_left.store(left, Ordering::Relaxed);
            self.inner.transact(transaction).await
        }
    }

    #[tokio::test]
    async fn what_ends_by_itself_does_so_after_a_restore() {
        let (env, folder) = (Env::real(), tempfile::tempdir().unwrap());
        let source = opened(folder.path(), "source");
        filled(&source).await;
        let (file, directory) = (folder.path().join("backup"), folder.path().join("store"));
        let out = fs::File::create(&file).unwrap();
        back_up(Busy::new(source, 0), &file, out, &directory, &env).await.unwrap();
        let restored = EmbeddedStore::open(&directory, env).unwrap();
        let ends: HashMap<_, _> = restored.deadlines("", &prefix_end("")).await.unwrap().into_iter().collect();
        let (start, end) = ("/registry/events/".to_string(), prefix_end("/registry/events/"));
        let events = restored.range(Range { start, end, limit: 0, revision: None }).await.unwrap().records;
        assert!(events.len() > 1, "{events:?}");
        assert!(events.iter().all(|event| ends.contains_key(&event.key)), "{events:?} {ends:?}");
    }

    #[tokio::test]
    async fn what_is_half_removed_is_marked_and_settings_go_with_objects() {
        let folder = tempfile::tempdir().unwrap();
        let source = opened(folder.path(), "source");
        filled(&source).await;
        let lease = Operation::Delete { key: "/registry/masterleases/192.0.2.1".into() };
        source.transact(Transaction { compare: Vec::new(), operations: vec![lease] }).await.unwrap();
        put(&source, cluster_settings::KEY, "{}".into(), None).await;
        let failing = Busy::new(source, 3);
        let store: &dyn Store = &*failing;
        clear(store).await.unwrap_err();
        assert!(store.get("/registry/configmaps/d/m000").await.unwrap().is_none());
        assert!(store.get(UNFINISHED_MIGRATION).await.unwrap().is_some());
        failing.transactions_left.store(usize::MAX, Ordering::Relaxed);
        clear(store).await.unwrap();
        for part in PARTS.iter().chain(&[cluster_settings::KEY, UNFINISHED_MIGRATION]) {
            assert_eq!(store.count(part, &prefix_end(part)).await.unwrap(), 0, "{part}");
        }
        assert!(store.get("/elsewhere/x").await.unwrap().is_some());
    }
}
