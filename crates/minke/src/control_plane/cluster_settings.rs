//! Who the servers on one etcd are: written down there by the first, compared by every other before it serves.
//! Called by `server` where the store is shared.
//! A server of another cluster, or one with other settings beside servers that run, is refused with the reason.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use apiserver::config::Config;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::{Compare, Operation, Outcome, Store, Transaction, prefix_end};

use crate::{cluster::data_version, control_plane::join_token::fingerprint, flags};

/// Beside the objects; upstream's servers know nothing of it.
pub const KEY: &str = "/minke/cluster";
/// Servers that live, by address.
const LEASES: &str = "/registry/masterleases/";
/// Two servers that start at once may meet here.
const ATTEMPTS_MAX: usize = 10;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSettings {
    /// Of the newest server that ever was.
    version: String,
    /// Fingerprints of the authorities by which clients are known.
    authorities: Vec<String>,
    /// Fingerprint of the key that signs tokens of ServiceAccounts.
    service_account_key: Option<String>,
    /// What all servers have to be told alike, by flag.
    flags: BTreeMap<String, String>,
}

/// What is to be done about settings that are there.
#[derive(Debug, PartialEq)]
enum Verdict {
    Same,
    /// Nobody else is there who goes by the others.
    Replace(ClusterSettings),
}

impl ClusterSettings {
    /// Of this server. `runs_controllers`: an API server alone has no ranges of pods.
    pub fn new(config: &Config, flags: &flags::Server, runs_controllers: bool) -> Result<Self> {
        let authorities = client::certificates(&config.client_ca_pem).map_err(anyhow::Error::msg)?;
        let list = |ranges: &[ipnet::IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut alike = BTreeMap::new();
        alike.insert("service-cidr".to_string(), list(&flags.service_cidr));
        alike.insert("service-node-port-range".to_string(), flags.service_node_port_range.clone());
        if runs_controllers {
            alike.insert("pod-cidr".to_string(), list(&flags.pod_cidr));
        }
        // Keys that this can't read are another's to compare.
        let key = rcgen::KeyPair::from_pem(&config.service_accounts.signing_key_pem).ok();
        let key = key.filter(|_| config.service_accounts.verification_keys_pem.is_empty());
        Ok(Self {
            version: data_version::own().to_string(),
            authorities: authorities.iter().map(|der| fingerprint(der)).collect::<Result<_>>()?,
            service_account_key: key.map(|key| hex(&Sha256::digest(key.public_key_raw()))),
            flags: alike,
        })
    }

    /// `others` live on the same etcd.
    fn compare(&self, found: &Self, others: &[String], key: &str) -> Result<Verdict> {
        let is_known = |authority: &String| found.authorities.contains(authority);
        if !self.authorities.is_empty() && !found.authorities.is_empty() && !self.authorities.iter().any(is_known) {
            bail!(
                "another cluster (authority {}) keeps its objects in this etcd under the same prefix: choose another \
                 --etcd-prefix, or become one of its servers with what `minke server join-command` there prints; if that \
                 cluster is gone, delete the key {key}",
                found.authorities.join(", ")
            );
        }
        if let (Some(own), Some(theirs)) = (&self.service_account_key, &found.service_account_key)
            && own != theirs
        {
            bail!(
                "the cluster's servers sign tokens of ServiceAccounts with another key: give this server the same \
                 (pki/sa.key, or --service-account-signing-key-file), or also believe theirs with \
                 --service-account-key-file"
            );
        }
        if let (Some(own), Some(newest)) = (data_version::parse(&self.version), data_version::parse(&found.version))
            && (own.0, own.1 + 1) < (newest.0, newest.1)
        {
            bail!(
                "a server of version {} was on this etcd, and this is {}: versions may differ by one minor version; \
                 install {} or restore a backup of before",
                found.version,
                self.version,
                found.version
            );
        }
        let differing = self.flags.iter().filter_map(|(flag, own)| {
            let theirs = found.flags.get(flag).filter(|theirs| *theirs != own)?;
            Some((flag, own, theirs))
        });
        for (flag, own, theirs) in differing {
            if let Some(other) = others.first() {
                bail!(
                    "the cluster's other servers ({other}) have --{flag} {theirs}, and this one {own}: give it the same, or \
                     stop the others first"
                );
            }
            tracing::warn!(flag, own, former = theirs, "the cluster's servers had another setting before");
        }
        let mut wanted = found.clone();
        wanted.flags.extend(self.flags.clone());
        wanted
            .authorities
            .extend(self.authorities.iter().filter(|authority| !found.authorities.contains(authority)).cloned());
        wanted.service_account_key = self.service_account_key.clone().or(wanted.service_account_key);
        if data_version::parse(&self.version) > data_version::parse(&found.version) {
            wanted.version.clone_from(&self.version);
        }
        Ok(if wanted == *found { Verdict::Same } else { Verdict::Replace(wanted) })
    }
}

/// Compares this server's settings with those of the etcd, and writes them down where there are none.
pub async fn check(store: &dyn Store, own: &ClusterSettings, config: &Config) -> Result<()> {
    let own_lease = format!("{LEASES}{}", config.advertise_address);
    for _ in 0..ATTEMPTS_MAX {
        let found = store.get(KEY).await?;
        let range = store::Range { start: LEASES.into(), end: prefix_end(LEASES), limit: 0, revision: None };
        let leases = store.range(range).await?.records.into_iter().map(|record| record.key);
        let others = leases.filter(|key| *key != own_lease).map(|key| key[LEASES.len()..].to_string());
        let others: Vec<String> = others.collect();
        let (wanted, mod_revision) = match &found {
            None => (own.clone(), 0),
            Some(record) => {
                let settings = serde_json::from_slice(&record.value)
                    .with_context(|| format!("the key {} in etcd can't be read", store.stored_key(KEY)))?;
                match own.compare(&settings, &others, &store.stored_key(KEY))? {
                    Verdict::Same => return Ok(()),
                    Verdict::Replace(wanted) => (wanted, record.mod_revision),
                }
            }
        };
        let put = Operation::Put { key: KEY.into(), value: serde_json::to_vec(&wanted)?.into(), ttl_seconds: None };
        let compare = vec![Compare { key: KEY.into(), mod_revision }];
        if let Outcome::Done { .. } = store.transact(Transaction { compare, operations: vec![put] }).await? {
            return Ok(());
        }
    }
    bail!("other servers keep changing the cluster's settings in etcd: try again")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(authority: &str, key: &str, version: &str, services: &str) -> ClusterSettings {
        ClusterSettings {
            version: version.into(),
            authorities: vec![authority.into()],
            service_account_key: Some(key.into()),
            flags: [("service-cidr".to_string(), services.to_string())].into(),
        }
    }

    #[test]
    fn servers_that_can_not_work_together_are_refused_with_the_reason() {
        let found = settings("sha256:1", "a", "0.3.0", "10.96.0.0/12");
        let check = |own: ClusterSettings, others: &[&str], expected: Result<bool, &str>| {
            let others: Vec<String> = others.iter().map(ToString::to_string).collect();
            match (own.compare(&found, &others, "/minke/cluster"), expected) {
                (Ok(Verdict::Same), Ok(true)) | (Ok(Verdict::Replace(_)), Ok(false)) => {}
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (found, expected) => panic!("{found:?}, expected {expected:?}"),
            }
        };
        check(found.clone(), &[], Ok(true));
        check(found.clone(), &["192.0.2.2"], Ok(true));
        let other = |authority, key, version, services| settings(authority, key, version, services);
        check(other("sha256:2", "a", "0.3.0", "10.96.0.0/12"), &[], Err("--etcd-prefix"));
        check(other("sha256:1", "b", "0.3.0", "10.96.0.0/12"), &[], Err("another key"));
        check(other("sha256:1", "a", "0.1.9", "10.96.0.0/12"), &[], Err("differ by one minor version"));
        check(other("sha256:1", "a", "0.2.0", "10.96.0.0/12"), &[], Ok(true));
        check(other("sha256:1", "a", "0.4.0", "10.96.0.0/12"), &["192.0.2.2"], Ok(false));
        check(other("sha256:1", "a", "0.3.0", "10.0.0.0/16"), &["192.0.2.2"], Err("--service-cidr 10.96.0.0/12"));
        check(other("sha256:1", "a", "0.3.0", "10.0.0.0/16"), &[], Ok(false));
    }
}
