//! Every certificate in a data directory, with its end.
//! Shown by `minke certs ls`, `minke status` and `minke doctor`.
//! Reads certificates only, never a key.

use std::{
    fs,
    path::{Path, PathBuf},
};

use env::Env;
use jiff::Timestamp;
use serde::Serialize;

use crate::cluster::instance::Instance;

const DAY_SECONDS: i64 = 86_400;
/// A certificate renews itself at two thirds of its life: one with so little left was not renewed.
const WARNING_DAYS: i64 = 30;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    pub file: PathBuf,
    pub subject: String,
    pub issuer: String,
    pub is_authority: bool,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub days_left: i64,
}

impl Found {
    /// What is to be said about its end, if anything.
    pub fn warning(&self) -> Option<String> {
        let file = self.file.display();
        let advice = match self.is_authority {
            true => "an authority is not renewed: back up what the cluster holds and start a new one in time",
            false => "it renews itself while the cluster runs and at its start: `minke certs renew` does it now",
        };
        match self.days_left {
            left if left < 0 => Some(format!("the certificate {file} has ended: {advice}")),
            left if left < WARNING_DAYS => Some(format!("the certificate {file} ends in {left} days: {advice}")),
            _ => None,
        }
    }
}

/// Those of this cluster on this machine, its further nodes included; the first to end first.
pub fn list(instance: &Instance, env: &Env) -> Vec<Found> {
    let mut directories = vec![instance.pki(), instance.pki().join("kubelet")];
    directories.extend(instance.nodes().into_iter().map(|(_, node)| node.pki()));
    let mut found: Vec<Found> = directories.iter().flat_map(|directory| of_directory(directory, env)).collect();
    found.sort_by_key(|certificate| certificate.not_after);
    found
}

fn of_directory(directory: &Path, env: &Env) -> Vec<Found> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "crt"));
    files.filter_map(|path| read(&path, env)).collect()
}

/// The first certificate of a file.
pub fn read(path: &Path, env: &Env) -> Option<Found> {
    let chain = client::certificates(&fs::read(path).ok()?).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let name = |name: &x509_parser::x509::X509Name<'_>| {
        name.iter_common_name().next().and_then(|cn| cn.as_str().ok()).unwrap_or_default().to_string()
    };
    let not_after = certificate.validity().not_after.timestamp();
    Some(Found {
        file: path.to_path_buf(),
        subject: name(certificate.subject()),
        issuer: name(certificate.issuer()),
        is_authority: certificate.is_ca(),
        not_before: Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()?,
        not_after: Timestamp::from_second(not_after).ok()?,
        days_left: (not_after - env.now().as_second()).div_euclid(DAY_SECONDS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::pki::{LEAF_LIFETIME, Leaf, Pki};

    #[tokio::test(start_paused = true)]
    async fn the_first_to_end_is_first_and_told_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(directory.path());
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let pki = Pki::open(&instance.pki(), env.clone()).unwrap();
        pki.leaf(&Leaf::client("admin", "kubernetes-admin", None)).unwrap();
        let look = || {
            let found = list(&instance, &env);
            found.iter().map(|c| (c.subject.clone(), c.days_left, c.warning().is_some())).collect::<Vec<_>>()
        };
        assert_eq!(look(), [("kubernetes-admin".into(), 365, false), ("minke-ca".into(), 3650, false)]);
        env.sleep(LEAF_LIFETIME - std::time::Duration::from_secs(10 * 86_400)).await;
        assert_eq!(look()[0], ("kubernetes-admin".into(), 10, true));
        env.sleep(std::time::Duration::from_secs(11 * 86_400)).await;
        let ended = list(&instance, &env)[0].warning().unwrap();
        assert!(ended.contains("has ended") && ended.contains("minke certs renew"), "{ended}");
    }
}
