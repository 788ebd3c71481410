//! The embedded store of a stopped server as a file and as a report: what `minke store backup|restore|check` do.
//! Over `backup` and `embedded`.
//! Invariant: a file or a store is there whole or not at all; what is wrong is said with what to do about it.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use env::Env;

use crate::{EmbeddedStore, StoreError};

/// Writes the store in `directory` to `file`; says what came of it.
pub async fn backup(directory: &Path, file: &Path, env: Env) -> Result<String, StoreError> {
    exists(directory)?;
    let store = EmbeddedStore::open(directory, env)?;
    let cannot = |error: io::Error| StoreError::Unavailable(format!("can't write {}: {error}", file.display()));
    // Beside the file, so that it can take its place in one step.
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let mut out = File::create(&partial).map_err(cannot)?;
    let written = crate::backup(&store, &mut out).await;
    let written = written.and_then(|copied| {
        out.sync_all().and_then(|()| fs::rename(&partial, file)).map_err(cannot)?;
        Ok(copied)
    });
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    let copied = written?;
    Ok(format!("wrote {} ({} keys at revision {})", file.display(), copied.keys, copied.revision))
}

/// Fills the store in `directory`, which must be empty, from `file`; says what came of it.
pub fn restore(directory: &Path, file: &Path) -> Result<String, StoreError> {
    let input = File::open(file);
    let mut input = input.map_err(|e| StoreError::Unavailable(format!("can't open {}: {e}", file.display())))?;
    let copied = crate::restore(directory, &mut input)?;
    Ok(format!("restored {} ({} keys at revision {})", directory.display(), copied.keys, copied.revision))
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
    use std::{fs::OpenOptions, io::Write, os::unix::fs::FileExt, path::PathBuf};

    use super::*;
    use crate::{Operation, Store, Transaction};

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
        told(backup(&from, &file, Env::real()).await, &["wrote", "30 keys at revision 31"]);
        told(restore(&to, &file), &["restored", "30 keys at revision 31"]);
        told(check(&to), &["is sound", "30 keys at revision 31"]);
        let store = EmbeddedStore::open(&to, Env::real()).unwrap();
        let record = store.get("/registry/k/07").await.unwrap().unwrap();
        assert_eq!((&record.value[..], record.mod_revision), (&b"value 7"[..], 9));
        // Not over what is there, and not beside a running server.
        told(restore(&to, &file), &["not empty", "restore into an empty directory"]);
        told(check(&to), &["in use by another process", "stop it"]);
        told(backup(&to, &other, Env::real()).await, &["in use by another process", "stop it"]);
        assert!(!other.exists());
    }

    #[tokio::test]
    async fn what_is_not_there_is_not_made() {
        let place = tempfile::tempdir().unwrap();
        let [none, file, from] = ["none", "file", "from"].map(|name| place.path().join(name));
        told(backup(&none, &file, Env::real()).await, &["holds no store", "name the data directory"]);
        told(check(&none), &["holds no store"]);
        told(restore(&none, &file), &["can't open", "file"]);
        assert!(!none.exists() && !file.exists());
        fs::write(&file, "something else entirely").unwrap();
        told(restore(&none, &file), &["not a minke backup", "name a file made by"]);
        told(check(&none), &["holds no minke store"]);
        filled(&from).await;
        let unwritable = place.path().join("no/such/place");
        told(backup(&from, &unwritable, Env::real()).await, &["can't write", "no/such/place"]);
    }

    #[tokio::test]
    async fn damage_is_told_with_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let [from, to, file, other] = ["from", "to", "file", "other"].map(|name| place.path().join(name));
        filled(&from).await;
        backup(&from, &file, Env::real()).await.unwrap();
        let whole = fs::read(&file).unwrap();
        for (name, damaged) in [
            ("cut", whole[..whole.len() - 7].to_vec()),
            ("half", whole[..whole.len() / 2].to_vec()),
            ("flipped", whole.iter().enumerate().map(|(at, b)| if at == 400 { b ^ 4 } else { *b }).collect()),
        ] {
            fs::write(&file, damaged).unwrap();
            told(restore(&to, &file), &["damaged or cut off", "nothing was restored", "use another one"]);
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
        for result in [check(&from), backup(&from, &other, Env::real()).await] {
            assert!(result.is_err());
            told(result, &["store is corrupted", "at byte", "restore a backup with `minke store restore`"]);
        }
        assert!(!other.exists(), "no half backup is left");
    }
}
