//! The embedded store as a file and as a report: what `minke store backup|restore|check` do.
//! Over `backup` and `embedded`. A backup may be made of a store that is in use; the rest needs it to itself.
//! Invariant: a file or a store is there whole or not at all (test: `a_backup_comes_back_whole`); what is wrong is said
//! with what to do about it (test: `damage_is_told_with_what_to_do`).

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
    sync::Arc,
};

use crate::{
    StoreError,
    backup::{self, Copied},
    disk::{Disk, DiskFile, RealDisk, SyncPoint},
};

/// Writes the store in `directory`, which may be in use, to `file`, reads that back, and says what came of it.
pub fn backup(directory: &Path, file: &Path) -> Result<String, StoreError> {
    exists(directory)?;
    let copied = backup_on(&RealDisk, directory, file)?;
    Ok(format!("wrote {} ({} keys at revision {})", file.display(), copied.keys, copied.revision))
}

pub(crate) fn backup_on(disk: &dyn Disk, directory: &Path, file: &Path) -> Result<Copied, StoreError> {
    let cannot = |error: io::Error| StoreError::Unavailable(format!("can't write {}: {error}", file.display()));
    // Beside the file, so that it can take its place in one step.
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = disk.create(partial).map_err(cannot).and_then(|out| {
        let mut stream = Stream::new(out);
        let copied = backup::backup_directory(disk, directory, &mut stream)?;
        stream.file.sync(SyncPoint::BackupFile).map_err(cannot)?;
        stream.rewind();
        backup::read_backup(&mut stream, |_, _| Ok(()))?;
        disk.rename(partial, file).and_then(|()| disk.sync_directory(parent, SyncPoint::BackupName)).map_err(cannot)?;
        Ok(copied)
    });
    if written.is_err() {
        let _ = disk.remove(partial);
    }
    written
}

/// A file of the disk from its beginning to its end, once to write and once to read.
struct Stream {
    file: Arc<dyn DiskFile>,
    offset: u64,
    buffer: Vec<u8>,
    read: usize,
}

const STREAM_BUFFER_BYTES: usize = 256 << 10;

impl Stream {
    fn new(file: Arc<dyn DiskFile>) -> Self {
        Self { file, offset: 0, buffer: Vec::new(), read: 0 }
    }

    fn rewind(&mut self) {
        self.file.forget_cached(0, self.offset);
        *self = Self::new(self.file.clone());
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= STREAM_BUFFER_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.buffer);
        self.file.write_at(&bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.read == self.buffer.len() {
            let left = self.file.len()?.saturating_sub(self.offset);
            self.buffer = vec![0; left.min(STREAM_BUFFER_BYTES as u64) as usize];
            self.file.read_at(&mut self.buffer, self.offset)?;
            self.offset += self.buffer.len() as u64;
            self.read = 0;
        }
        let mut rest = &self.buffer[self.read..];
        let count = rest.read(into)?;
        self.read += count;
        Ok(count)
    }
}

/// Fills the store in `directory`, which must be empty, from `file`; says what came of it.
pub fn restore(directory: &Path, file: &Path, wall_ms: u64) -> Result<String, StoreError> {
    let input = File::open(file);
    let mut input = input.map_err(|e| StoreError::Unavailable(format!("can't open {}: {e}", file.display())))?;
    let copied = crate::restore(directory, &mut input, wall_ms)?;
    Ok(format!(
        "restored {} ({} keys of revision {}, at revision {} from now on: whoever watches starts again)",
        directory.display(),
        copied.keys,
        copied.revision,
        backup::restored_revision(copied.revision, wall_ms)
    ))
}

/// Verifies everything in the store in `directory` and changes nothing; says what it found.
pub fn check(directory: &Path) -> Result<String, StoreError> {
    exists(directory)?;
    let report = crate::check(directory)?;
    let mut text = format!(
        "{} is sound: {} keys at revision {}, history from {}; {} records in {} files of {} bytes",
        directory.display(),
        report.keys,
        report.revision,
        report.oldest_revision,
        report.records,
        report.segments,
        report.bytes
    );
    if report.torn_bytes > 0 {
        text += &format!(
            "\n{} bytes at the end are of a write that was cut off before it was acknowledged; the next start drops them",
            report.torn_bytes
        );
    }
    if report.dead_damage > 0 {
        text += &format!("\n{} damaged places hold nothing that is needed any more", report.dead_damage);
    }
    Ok(text)
}

/// Makes a damaged store in `directory` one that can be started again; says what is lost.
pub fn salvage(directory: &Path, wall_ms: u64) -> Result<String, StoreError> {
    exists(directory)?;
    let report = crate::salvage(directory, wall_ms)?;
    if report.was_sound {
        return Ok(format!("{} needs no salvage: nothing that is needed is damaged", directory.display()));
    }
    let mut text = format!(
        "kept {} keys of {}, at revision {} from now on; what was there before is in the files that end with .damaged",
        report.kept_keys,
        directory.display(),
        report.revision
    );
    for lost in &report.lost {
        let place = format!("{} at byte {}", lost.file.display(), lost.offset);
        text += &match (&lost.key, lost.revision) {
            (Some(key), Some(revision)) => format!("\nlost {key} at revision {revision} ({place})"),
            _ => format!("\nlost a record that cannot be told ({place}); an older value may be in its place"),
        };
    }
    Ok(text)
}

/// Opening what is not there would make it.
fn exists(directory: &Path) -> Result<(), StoreError> {
    match directory.is_dir() {
        true => Ok(()),
        false => Err(StoreError::Unavailable(format!(
            "{} holds no store: name the data directory of a cluster",
            directory.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, OpenOptions},
        os::unix::fs::{FileExt, PermissionsExt},
        path::PathBuf,
    };

    use env::Env;

    use super::*;
    use crate::{EmbeddedStore, Operation, Range, Store, Transaction, prefix_end};

    const KEYS: usize = 30;

    async fn filled(directory: &Path) {
        let store = EmbeddedStore::open(directory, Env::real()).unwrap();
        for n in 0..KEYS {
            let value = format!("value {n}").into();
            let operation = Operation::Put { key: format!("/registry/k/{n:02}"), value, ttl_seconds: None };
            store.transact(Transaction { compare: vec![], operations: vec![operation] }).await.unwrap();
        }
    }

    fn log(directory: &Path) -> PathBuf {
        let files = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
        files.filter(|p| p.file_name().unwrap() != "LOCK").max().unwrap()
    }

    #[track_caller]
    fn told(result: Result<String, StoreError>, words: &[&str]) {
        let text = result.unwrap_or_else(|error| error.to_string());
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }

    #[tokio::test]
    async fn a_backup_comes_back_whole() {
        let place = tempfile::tempdir().unwrap();
        let [from, to, file, other] = ["from", "to", "file", "other"].map(|name| place.path().join(name));
        filled(&from).await;
        told(backup(&from, &file), &["wrote", "30 keys at revision 31"]);
        told(restore(&to, &file, 0), &["restored", "30 keys of revision 31", "at revision 1000000031"]);
        told(check(&to), &["is sound", "30 keys at revision 1000000031"]);
        let store = EmbeddedStore::open(&to, Env::real()).unwrap();
        let record = store.get("/registry/k/07").await.unwrap().unwrap();
        assert_eq!((&record.value[..], record.mod_revision), (&b"value 7"[..], 9));
        // Not over what is there, and not beside a running server.
        told(restore(&to, &file, 0), &["not empty", "restore into an empty directory"]);
        told(check(&to), &["in use by another process", "stop it"]);
        // A backup is made while it serves.
        told(backup(&to, &other), &["wrote", "30 keys at revision 1000000031"]);
        // None of it is for others.
        for path in [&to, &file, &other, &log(&to), &to.join("LOCK")] {
            let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        }
    }

    #[tokio::test]
    async fn modes_of_older_stores_are_corrected() {
        let place = tempfile::tempdir().unwrap();
        let store = place.path().join("store");
        filled(&store).await;
        let all = [store.clone(), log(&store), store.join("LOCK")];
        for path in &all {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        drop(EmbeddedStore::open(&store, Env::real()).unwrap());
        let modes = all.map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o777);
        assert_eq!(modes, [0o700, 0o600, 0o600]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_backup_of_a_store_that_serves_is_consistent() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        let limits = crate::Limits { segment_bytes: 8 << 10, history_revisions: 20, ..crate::Limits::default() };
        let store = Arc::new(EmbeddedStore::open_with_limits(&from, Env::real(), limits).unwrap());
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let writer = env::spawn({
            let (store, stop) = (store.clone(), stop.clone());
            async move {
                let mut n = 0u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    n += 1;
                    // All keys of one transaction say the same.
                    let puts = (0..5).map(|key| Operation::Put {
                        key: format!("/k/{key}"),
                        value: n.to_string().repeat(50).into(),
                        ttl_seconds: None,
                    });
                    store.transact(Transaction { compare: vec![], operations: puts.collect() }).await.unwrap();
                }
            }
        });
        store.watch("/k/", "/l", 1).await.map(drop).unwrap();
        while store.count("/k/", "/l").await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        for n in 0..20 {
            let (file, to) = (place.path().join(format!("file{n}")), place.path().join(format!("to{n}")));
            let (directory, target) = (from.clone(), file.clone());
            env::spawn_blocking(move || backup(&directory, &target)).await.unwrap().unwrap();
            restore(&to, &file, 0).unwrap();
            let restored = EmbeddedStore::open(&to, Env::real()).unwrap();
            let first = restored.get("/k/0").await.unwrap().unwrap().value;
            for key in 1..5 {
                assert_eq!(restored.get(&format!("/k/{key}")).await.unwrap().unwrap().value, first, "backup {n}");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_salvaged_starts_again_and_says_what_is_lost() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        filled(&from).await;
        told(salvage(&from, 0), &["needs no salvage"]);
        let path = log(&from);
        let mut bytes = fs::read(&path).unwrap();
        let damaged = bytes.windows(7).position(|window| window == b"value 7").unwrap();
        bytes[damaged + 6] ^= 1;
        fs::write(&path, bytes).unwrap();
        let said = EmbeddedStore::open(&from, Env::real()).map(drop).unwrap_err().to_string();
        assert!(said.contains("/registry/k/07 at revision 9: checksum"), "{said}");
        told(salvage(&from, 0), &["kept 29 keys", "lost /registry/k/07 at revision 9 ("]);
        told(check(&from), &["is sound", "29 keys"]);
        let store = EmbeddedStore::open(&from, Env::real()).unwrap();
        assert_eq!(store.get("/registry/k/07").await.unwrap(), None);
        assert_eq!(&store.get("/registry/k/08").await.unwrap().unwrap().value[..], b"value 8");
        let gone = store.watch("", "0", 32).await.map(drop).unwrap_err();
        assert!(matches!(gone, StoreError::Compacted { .. }), "{gone}");
        assert!(from.join("00000001.log.damaged").exists());
    }

    #[tokio::test]
    async fn damage_that_nothing_needs_does_not_stop_the_start() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        filled(&from).await;
        let store = EmbeddedStore::open(&from, Env::real()).unwrap();
        let again = Operation::Put { key: "/registry/k/07".into(), value: "new".into(), ttl_seconds: None };
        store.transact(Transaction { compare: vec![], operations: vec![again] }).await.unwrap();
        drop(store);
        let path = log(&from);
        let mut bytes = fs::read(&path).unwrap();
        let damaged = bytes.windows(7).position(|window| window == b"value 7").unwrap();
        bytes[damaged + 6] ^= 1;
        fs::write(&path, bytes).unwrap();
        told(check(&from), &["is sound", "30 keys", "1 damaged places hold nothing"]);
        let store = EmbeddedStore::open(&from, Env::real()).unwrap();
        assert_eq!(&store.get("/registry/k/07").await.unwrap().unwrap().value[..], b"new");
    }

    #[tokio::test]
    async fn a_range_over_damaged_records_repairs_them_or_says_which() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        filled(&from).await;
        let store = EmbeddedStore::open(&from, Env::real()).unwrap();
        let path = log(&from);
        let mut bytes = fs::read(&path).unwrap();
        for value in [b"value 7", b"value 9"] {
            let damaged = bytes.windows(7).position(|window| window == value).unwrap();
            bytes[damaged + 6] ^= 1;
        }
        fs::write(&path, bytes).unwrap();
        let all = || Range { start: String::new(), end: prefix_end(""), limit: 0, revision: None };
        let said = store.range(all()).await.unwrap_err().to_string();
        assert!(said.contains("/registry/k/07 at revision 9: checksum"), "{said}");
        store.repair_from(Box::new(|key, _| {
            let number: u32 = key.rsplit('/').next()?.parse().ok()?;
            Some(format!("value {number}").into())
        }));
        for _ in 0..2 {
            let found = store.range(all()).await.unwrap();
            let values: Vec<_> = found.records.iter().map(|record| (record.key.as_str(), &record.value[..])).collect();
            assert_eq!(values.len(), 30, "{values:?}");
            assert!(
                values.contains(&("/registry/k/07", &b"value 7"[..]))
                    && values.contains(&("/registry/k/09", &b"value 9"[..]))
            );
        }
        drop(store);
        told(check(&from), &["is sound", "30 keys"]);
    }

    #[tokio::test]
    async fn what_is_not_there_is_not_made() {
        let place = tempfile::tempdir().unwrap();
        let [none, file, from] = ["none", "file", "from"].map(|name| place.path().join(name));
        told(backup(&none, &file), &["holds no store", "name the data directory"]);
        told(check(&none), &["holds no store"]);
        told(restore(&none, &file, 0), &["can't open", "file"]);
        assert!(!none.exists() && !file.exists());
        fs::write(&file, "something else entirely").unwrap();
        told(restore(&none, &file, 0), &["not a minke backup", "name a file made by"]);
        told(check(&none), &["holds no minke store"]);
        filled(&from).await;
        let unwritable = place.path().join("no/such/place");
        told(backup(&from, &unwritable), &["can't write", "no/such/place"]);
    }

    #[tokio::test]
    async fn damage_is_told_with_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let [from, to, file, other] = ["from", "to", "file", "other"].map(|name| place.path().join(name));
        filled(&from).await;
        backup(&from, &file).unwrap();
        let whole = fs::read(&file).unwrap();
        for (name, damaged) in [
            ("cut", whole[..whole.len() - 7].to_vec()),
            ("half", whole[..whole.len() / 2].to_vec()),
            ("flipped", whole.iter().enumerate().map(|(at, b)| if at == 400 { b ^ 4 } else { *b }).collect()),
        ] {
            fs::write(&file, damaged).unwrap();
            told(restore(&to, &file, 0), &["damaged or cut off", "nothing was restored", "use another one"]);
            assert_eq!(fs::read_dir(&to).unwrap().count(), 0, "{name} leaves nothing");
        }
        // A torn tail is a write nobody was promised: told, and dropped by the next start.
        let last = log(&from);
        let length = fs::metadata(&last).unwrap().len();
        OpenOptions::new().append(true).open(&last).unwrap().write_all(&[7; 20]).unwrap();
        told(check(&from), &["is sound", "30 keys", "20 bytes at the end", "the next start drops them"]);
        assert_eq!(fs::metadata(&last).unwrap().len(), length + 20, "checking changes nothing");
        drop(EmbeddedStore::open(&from, Env::real()).unwrap());
        told(check(&from), &["is sound", "30 keys"]);
        // A flipped bit in the midst is damage.
        let bits = OpenOptions::new().read(true).write(true).open(&last).unwrap();
        let mut byte = [0];
        bits.read_exact_at(&mut byte, length / 2).unwrap();
        bits.write_all_at(&[byte[0] ^ 1], length / 2).unwrap();
        for result in [check(&from), backup(&from, &other)] {
            assert!(result.is_err());
            told(result, &["store is corrupted", "at byte", "restore a backup with `minke store restore`"]);
        }
        assert!(!other.exists(), "no half backup is left");
    }
}
