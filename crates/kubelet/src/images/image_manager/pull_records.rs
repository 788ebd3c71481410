//! Remembers with whose credentials images were pulled, so that no pod runs one that it could not have pulled itself.
//! Used by `image_manager`; kept in a file, because images outlive us.
//! An image that we began to pull is never taken for one that was always there, and no credential is kept, only its
//! hash.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::credentials::Credential;

/// Which present images a pod must show credentials for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verification {
    Never,
    /// Those that this node has pulled.
    #[default]
    NeverPreloaded,
    Always,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Records {
    /// Images whose pulls have begun and not ended.
    pulling: BTreeSet<String>,
    /// By the image's id and by its name without tag.
    pulled: BTreeMap<String, BTreeMap<String, Access>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Access {
    /// It was pulled without credentials.
    everyone: bool,
    /// Hashes of credentials by the UID of the secret they are from.
    secrets: BTreeMap<String, String>,
}

/// The most secrets remembered for one image; those beyond are asked for again.
const SECRETS_PER_IMAGE_MAX: usize = 100;

#[derive(Default)]
pub struct PullRecords {
    /// Without one nothing is kept.
    file: Option<PathBuf>,
    policy: Verification,
    records: Mutex<Records>,
}

impl PullRecords {
    /// As an earlier run left them in this directory.
    pub fn load(directory: &Path, policy: Verification) -> Self {
        let file = directory.join("pulled-images.json");
        let records = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(file = %file.display(), %error, "failed to read by whom images were pulled");
                Records::default()
            }),
            Err(_) => Records::default(),
        };
        Self { file: Some(file), policy, records: Mutex::new(records) }
    }

    /// Whether a pod with these credentials must pull an image that is present.
    pub fn must_pull(&self, image: &str, id: &str, credentials: &[Credential]) -> bool {
        let records = self.records.lock();
        let pulled = records.pulled.get(id);
        let by_us = pulled.is_some() || records.pulling.contains(image);
        match self.policy {
            Verification::Never => return false,
            Verification::NeverPreloaded if !by_us => return false,
            _ => {}
        }
        let Some(access) = pulled.and_then(|names| names.get(name(image))) else { return true };
        let known = |c: &Credential| {
            access.secrets.contains_key(&c.secret) || access.secrets.values().any(|hash| *hash == c.hash)
        };
        !access.everyone && !credentials.iter().any(known)
    }

    pub fn begin(&self, image: &str) -> io::Result<()> {
        let mut records = self.records.lock();
        match records.pulling.insert(image.into()) {
            true => self.save(&records),
            false => Ok(()),
        }
    }

    /// The image is there, pulled with this credential or without any.
    pub fn pulled(&self, image: &str, id: &str, credential: Option<&Credential>) {
        let mut records = self.records.lock();
        records.pulling.remove(image);
        let access = records.pulled.entry(id.into()).or_default().entry(name(image).into()).or_default();
        match credential {
            None => access.everyone = true,
            Some(c) if access.secrets.len() < SECRETS_PER_IMAGE_MAX => {
                access.secrets.insert(c.secret.clone(), c.hash.clone());
            }
            Some(_) => {}
        }
        self.keep(&records);
    }

    pub fn failed(&self, image: &str) {
        let mut records = self.records.lock();
        if records.pulling.remove(image) {
            self.keep(&records);
        }
    }

    /// The image was removed.
    pub fn forget(&self, id: &str) {
        let mut records = self.records.lock();
        if records.pulled.remove(id).is_some() {
            self.keep(&records);
        }
    }

    fn keep(&self, records: &Records) {
        if let Err(error) = self.save(records) {
            tracing::warn!(%error, "failed to keep by whom images were pulled");
        }
    }

    fn save(&self, records: &Records) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if let Some(directory) = file.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let new = file.with_extension("new");
        let mut writer = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        writer.write_all(&serde_json::to_vec(records)?)?;
        std::fs::rename(new, file)
    }
}

/// Without tag and digest: who may pull one version may pull them all.
fn name(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(secret: &str, hash: &str) -> Credential {
        Credential { auth: cri::v1::AuthConfig::default(), secret: secret.into(), hash: hash.into() }
    }

    #[test]
    fn only_those_who_could_have_pulled_it_run_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let (own, rotated) = (credential("s1", "h1"), credential("s1", "h2"));
        let (same, other) = (credential("s2", "h1"), credential("s3", "h3"));
        let records = PullRecords::load(directory.path(), Verification::default());
        assert!(!records.must_pull("r/a:1", "id", &[]), "it was there before us");
        records.begin("r/a:1").unwrap();
        assert!(PullRecords::load(directory.path(), Verification::default()).must_pull("r/a:1", "id", &[]), "begun");
        records.pulled("r/a:1", "id", Some(&own));
        let check = |policy, image: &str, credentials: &[&Credential], expected: bool| {
            let credentials: Vec<Credential> = credentials.iter().map(|c| credential(&c.secret, &c.hash)).collect();
            // As the next run finds it.
            let records = PullRecords::load(directory.path(), policy);
            assert_eq!(records.must_pull(image, "id", &credentials), expected, "{policy:?} {image} {credentials:?}");
        };
        let usual = Verification::default();
        check(usual, "r/a:1", &[], true);
        check(usual, "r/a:1", &[&other], true);
        check(usual, "r/a:1", &[&other, &own], false);
        check(usual, "r/a:1", &[&rotated], false);
        check(usual, "r/a@sha256:1", &[&same], false);
        check(usual, "r/b:1", &[&own], true);
        check(Verification::Never, "r/a:1", &[], false);
        check(Verification::Always, "r/a:1", &[&own], false);
        assert!(PullRecords::load(directory.path(), Verification::Always).must_pull("r/c:1", "preloaded", &[]));
        records.pulled("r/a:1", "id", None);
        check(usual, "r/a:1", &[], false);
        records.forget("id");
        check(usual, "r/a:1", &[], false);
    }

    #[test]
    fn a_pull_that_failed_leaves_nothing() {
        let records = PullRecords::default();
        records.begin("r/a:1").unwrap();
        assert!(records.must_pull("r/a:1", "id", &[]));
        records.failed("r/a:1");
        assert!(!records.must_pull("r/a:1", "id", &[]));
    }
}
