//! A file that says after a restart what was so before: written whole or not at all.
//! Used by `devices`, whose state is what it holds.
//! Of two writes that overlap the one with the newer state is last: the state is encoded while the file is held.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

/// Beyond this a file is not one of ours.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone)]
pub struct CheckpointFile {
    path: PathBuf,
    writing: Arc<Mutex<()>>,
}

impl CheckpointFile {
    pub fn new(path: PathBuf) -> Self {
        Self { path, writing: Arc::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `None` when there is no file.
    pub fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::metadata(&self.path) {
            Ok(meta) if meta.len() > FILE_BYTES_MAX => Err(io::Error::other("the checkpoint is too large")),
            Ok(_) => fs::read(&self.path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// On a thread that may block. Done once it is on disk.
    pub async fn write(&self, encode: impl FnOnce() -> Vec<u8> + Send + 'static) -> io::Result<()> {
        let file = self.clone();
        let written = env::spawn_blocking(move || {
            let _writing = file.writing.lock();
            replace(&file.path, &encode())
        });
        written.await.unwrap_or_else(|ended| Err(io::Error::other(ended)))
    }
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.new"));
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
