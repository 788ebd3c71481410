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

use super::credentials::{Credential, CredentialSource};

/// Which present images a pod must show credentials for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verification {
    Never,
    /// Those that this node has pulled.
    #[default]
    NeverPreloaded,
    /// All but those on a list.
    NeverAllowlisted,
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
    /// As NAMESPACE/NAME/UID, those for which a program gave credentials.
    service_accounts: BTreeSet<String>,
}

/// The most secrets or ServiceAccounts remembered for one image; those beyond are asked for again.
const SECRETS_PER_IMAGE_MAX: usize = 100;

#[derive(Default)]
pub struct PullRecords {
    /// Without one nothing is kept.
    file: Option<PathBuf>,
    policy: Verification,
    /// Names without tag, or all below "NAME/*".
    allowlist: Vec<String>,
    records: Mutex<Records>,
}

/// Why a name can't be on the list of images that are not verified.
pub fn check_allowlisted(pattern: &str) -> Result<(), &'static str> {
    let plain = pattern.strip_suffix("/*").unwrap_or(pattern);
    match plain {
        _ if pattern.trim() != pattern => Err("an image without leading or trailing spaces"),
        "" => Err("an image"),
        _ if plain.contains('*') => Err("an image with a wildcard only at its end, as \"/*\""),
        _ if plain.contains('@') || name(plain) != plain => Err("an image without tag and digest"),
        _ => Ok(()),
    }
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
        Self { file: Some(file), policy, allowlist: vec![], records: Mutex::new(records) }
    }

    pub fn with_allowlist(self, allowlist: Vec<String>) -> Self {
        Self { allowlist, ..self }
    }

    fn is_allowlisted(&self, image: &str) -> bool {
        let image = name(image);
        self.allowlist.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => image.starts_with(prefix),
            None => image == pattern,
        })
    }

    /// Whether a pod with these credentials must pull an image that is present.
    pub fn must_pull(&self, image: &str, id: &str, credentials: &[Credential]) -> bool {
        let records = self.records.lock();
        let pulled = records.pulled.get(id);
        let by_us = pulled.is_some() || records.pulling.contains(image);
        match self.policy {
            Verification::Never => return false,
            Verification::NeverPreloaded if !by_us => return false,
            Verification::NeverAllowlisted if self.is_allowlisted(image) => return false,
            _ => {}
        }
        let Some(access) = pulled.and_then(|names| names.get(name(image))) else { return true };
        let known = |credential: &Credential| match &credential.source {
            CredentialSource::Secret(uid) => {
                access.secrets.contains_key(uid) || access.secrets.values().any(|hash| *hash == credential.hash)
            }
            CredentialSource::ServiceAccount { namespace, name, uid } => {
                access.service_accounts.contains(&format!("{namespace}/{name}/{uid}"))
            }
            CredentialSource::Node => false,
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
        match credential.map(|credential| (&credential.source, &credential.hash)) {
            None | Some((CredentialSource::Node, _)) => access.everyone = true,
            Some((CredentialSource::Secret(uid), hash)) if access.secrets.len() < SECRETS_PER_IMAGE_MAX => {
                access.secrets.insert(uid.clone(), hash.clone());
            }
            Some((CredentialSource::ServiceAccount { namespace, name, uid }, _))
                if access.service_accounts.len() < SECRETS_PER_IMAGE_MAX =>
            {
                access.service_accounts.insert(format!("{namespace}/{name}/{uid}"));
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
        let source = CredentialSource::Secret(secret.into());
        Credential { auth: cri::v1::AuthConfig::default(), source, hash: hash.into() }
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
            let copy =
                |c: &Credential| Credential { auth: c.auth.clone(), source: c.source.clone(), hash: c.hash.clone() };
            let credentials: Vec<Credential> = credentials.iter().map(|c| copy(c)).collect();
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
    fn what_programs_gave_is_its_service_accounts_or_the_nodes() {
        let records = PullRecords::load(Path::new("/nowhere"), Verification::Always);
        let of = |source| Credential { auth: cri::v1::AuthConfig::default(), source, hash: "h".into() };
        let account = |uid: &str| {
            of(CredentialSource::ServiceAccount { namespace: "n".into(), name: "a".into(), uid: uid.into() })
        };
        records.pulled("r/a:1", "id", Some(&account("1")));
        assert!(!records.must_pull("r/a:1", "id", &[account("1")]));
        assert!(records.must_pull("r/a:1", "id", &[account("2")]));
        records.pulled("r/a:1", "id", Some(&of(CredentialSource::Node)));
        assert!(!records.must_pull("r/a:1", "id", &[]));
    }

    #[test]
    fn listed_images_are_not_verified() {
        let list = vec!["r/a".to_string(), "r/team/*".to_string()];
        let records = PullRecords { policy: Verification::NeverAllowlisted, ..PullRecords::default() };
        let records = records.with_allowlist(list);
        for (image, expected) in [("r/a:1", false), ("r/ab:1", true), ("r/team/x:1", false), ("r/team:1", true)] {
            assert_eq!(records.must_pull(image, "id", &[]), expected, "{image}");
        }
        for (pattern, fine) in
            [("r/a", true), ("r:5000/a", true), ("r/*", true), ("r/a:1", false), ("r/*/a", false), (" r", false)]
        {
            assert_eq!(check_allowlisted(pattern).is_ok(), fine, "{pattern}");
        }
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
