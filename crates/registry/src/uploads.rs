//! Blobs on their way in: a file each, which takes its place once its digest is what it should be.
//! Used by `handler`.
//! Invariant: nothing gets a digest's name that has another (test: `blobs_come_back_as_they_were_pushed`).

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use env::Env;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;

use crate::{
    answers::Problem,
    digest::Digest,
    storage::{Storage, sync_directory},
};

/// Nobody goes on with one that is older.
const UPLOAD_AGE_MAX: Duration = Duration::from_secs(86_400);
/// Begun and not ended.
const UPLOADS_MAX: usize = 1024;
/// So much comes in between two looks at how full the disk is.
const BYTES_BETWEEN_LOOKS: u64 = 16 << 20;

/// The right to change an upload, for as long as it lives.
pub struct UploadTurn {
    storage: Arc<Storage>,
    id: String,
}

impl Drop for UploadTurn {
    fn drop(&mut self) {
        self.storage.in_use.lock().remove(&self.id);
    }
}

fn full(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, why)
}

impl Storage {
    /// Refused while another request is at work on it.
    pub fn take_upload(self: &Arc<Self>, id: &str) -> Result<UploadTurn, Problem> {
        self.upload_size(id)?;
        match self.in_use.lock().insert(id.to_string()) {
            true => Ok(UploadTurn { storage: self.clone(), id: id.to_string() }),
            false => Err(Problem::UploadInvalid("another request is writing to it".into())),
        }
    }

    fn upload(&self, id: &str) -> PathBuf {
        self.uploads().join(id)
    }

    pub fn start_upload(&self, env: &Env) -> io::Result<String> {
        let under_way = || Ok::<_, io::Error>(fs::read_dir(self.uploads())?.count());
        if under_way()? >= UPLOADS_MAX {
            self.forget_old_uploads(env)?;
            if under_way()? >= UPLOADS_MAX {
                return Err(full(&format!("{UPLOADS_MAX} uploads are under way")));
            }
        }
        let id = env.uuid().replace('-', "");
        fs::File::create_new(self.upload(&id))?;
        Ok(id)
    }

    pub fn upload_size(&self, id: &str) -> Result<u64, Problem> {
        match fs::metadata(self.upload(id)) {
            Ok(found) => Ok(found.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Problem::UploadUnknown),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends what comes, and returns how much there is then. `from` is where the client thinks it goes.
    /// What fills the disk is removed, not kept for later: the cluster could write nothing any more.
    pub async fn append(&self, turn: &UploadTurn, from: Option<u64>, mut body: Incoming) -> Result<u64, Problem> {
        let id = turn.id.as_str();
        let mut size = self.upload_size(id)?;
        if from.is_some_and(|from| from != size) {
            return Err(Problem::RangeInvalid(size));
        }
        let mut file = tokio::fs::OpenOptions::new().append(true).open(self.upload(id)).await?;
        let mut looked_at = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Problem::UploadInvalid(error.to_string()))?;
            if let Ok(bytes) = frame.into_data() {
                if looked_at.is_none_or(|at| size - at >= BYTES_BETWEEN_LOOKS) {
                    looked_at = Some(size);
                    if (self.is_full)(&self.uploads())? {
                        fs::remove_file(self.upload(id))?;
                        return Err(full("the disk of the registry is nearly full").into());
                    }
                }
                file.write_all(&bytes).await?;
                size += bytes.len() as u64;
            }
        }
        file.flush().await?;
        Ok(size)
    }

    /// What has come is the blob, if it is what its digest says; else it is gone.
    pub fn finish_upload(&self, turn: &UploadTurn, digest: &Digest) -> Result<(), Problem> {
        let id = turn.id.as_str();
        self.upload_size(id)?;
        let path = self.upload(id);
        if Digest::of_file(&path)? != *digest {
            fs::remove_file(&path)?;
            return Err(Problem::DigestInvalid);
        }
        fs::File::open(&path)?.sync_all()?;
        fs::rename(&path, self.blob(digest))?;
        Ok(sync_directory(&self.blobs())?)
    }

    pub fn cancel_upload(&self, turn: &UploadTurn) -> Result<(), Problem> {
        self.upload_size(&turn.id)?;
        Ok(fs::remove_file(self.upload(&turn.id))?)
    }

    pub fn forget_old_uploads(&self, env: &Env) -> io::Result<()> {
        for entry in fs::read_dir(self.uploads())?.flatten() {
            if crate::garbage::is_older(&entry.path(), UPLOAD_AGE_MAX, env) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}
