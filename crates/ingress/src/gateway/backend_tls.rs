//! BackendTLSPolicies: which Services are spoken to in TLS, and which policies can't be followed.
//! Made by `model` once per build, asked by `backend_refs`.
//! Pure (tidy: `pure_files`). Of two policies for one port of a Service the older one has it.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
};

use k8s_openapi::api::core::v1::ServicePort;

use super::{
    cluster::Cluster,
    conditions::{ACCEPTED, DesiredCondition, RESOLVED_REFS, fails, holds},
    types::{BackendTlsPolicy, age, key, namespace},
};
use crate::upstream_tls::{SubjectAltName, TrustedRoots, UpstreamTls, UpstreamTlsSettings};

pub struct PolicyState {
    /// As `namespace/name`.
    pub key: String,
    tls: Option<Arc<UpstreamTls>>,
    pub conditions: Vec<DesiredCondition>,
    /// The Gateways that use it.
    pub gateways: BTreeSet<String>,
}

#[derive(Default)]
pub struct BackendTls {
    policies: Vec<PolicyState>,
    /// By Service and name of its port, none for all of its ports.
    by_target: HashMap<(String, Option<String>), usize>,
}

/// How a port of a Service is spoken to.
pub enum PortTls {
    Plain,
    Tls {
        tls: Arc<UpstreamTls>,
        policy: usize,
    },
    /// Shall be TLS and can't.
    Broken {
        policy: usize,
    },
}

impl BackendTls {
    pub fn new(policies: &[Arc<BackendTlsPolicy>], cluster: &mut dyn Cluster) -> Self {
        let mut ordered: Vec<&BackendTlsPolicy> = policies.iter().map(Arc::as_ref).collect();
        ordered.sort_by_cached_key(|policy| age(&policy.metadata));
        let mut all = Self::default();
        for policy in ordered {
            all.add(policy, cluster);
        }
        all
    }

    fn add(&mut self, policy: &BackendTlsPolicy, cluster: &mut dyn Cluster) {
        let at = self.policies.len();
        let (mut has_target, mut conflict) = (false, None);
        for target in policy.spec.target_refs.iter().filter(|target| (&*target.group, &*target.kind) == ("", "Service"))
        {
            let service = format!("{}/{}", namespace(&policy.metadata), target.name);
            match self.by_target.entry((service, target.section_name.clone())) {
                Entry::Vacant(free) => {
                    free.insert(at);
                    has_target = true;
                }
                Entry::Occupied(taken) => conflict = Some(self.policies[*taken.get()].key.clone()),
            }
        }
        let (tls, conditions) = match (conflict, has_target) {
            (Some(older), false) => {
                let message = format!("BackendTLSPolicy {older} is older and for the same Service");
                (None, vec![fails(ACCEPTED, "Conflicted", message)])
            }
            _ => match settings(policy, cluster).and_then(|settings| {
                let made = cluster.upstream_tls(&settings);
                made.map_err(|why| fails(RESOLVED_REFS, "InvalidCACertificateRef", why))
            }) {
                Ok(tls) => (Some(tls), vec![holds(ACCEPTED, "Accepted"), holds(RESOLVED_REFS, "ResolvedRefs")]),
                Err(problem) => {
                    let accepted = fails(ACCEPTED, "NoValidCACertificate", problem.message.clone());
                    (None, vec![accepted, problem])
                }
            },
        };
        self.policies.push(PolicyState { key: key(&policy.metadata), tls, conditions, gateways: BTreeSet::new() });
    }

    /// A policy for the port comes before one for the whole Service.
    pub fn of_port(&self, service: &str, port: &ServicePort) -> PortTls {
        let find = |section: Option<String>| self.by_target.get(&(service.to_string(), section)).copied();
        let Some(policy) = port.name.clone().and_then(|name| find(Some(name))).or_else(|| find(None)) else {
            return PortTls::Plain;
        };
        match &self.policies[policy].tls {
            Some(tls) => PortTls::Tls { tls: tls.clone(), policy },
            None => PortTls::Broken { policy },
        }
    }

    pub fn used_by(&mut self, policy: usize, gateway: &str) {
        self.policies[policy].gateways.insert(gateway.to_string());
    }

    pub fn into_states(self) -> Vec<PolicyState> {
        self.policies
    }
}

fn settings(policy: &BackendTlsPolicy, cluster: &dyn Cluster) -> Result<UpstreamTlsSettings, DesiredCondition> {
    let validation = &policy.spec.validation;
    let subject_alt_names = validation.subject_alt_names.iter().filter_map(|name| match name.kind.as_str() {
        "Hostname" => name.hostname.clone().map(SubjectAltName::Hostname),
        _ => name.uri.clone().map(SubjectAltName::Uri),
    });
    let roots = match validation.well_known_ca_certificates.as_deref() {
        Some("System") if validation.ca_certificate_refs.is_empty() => TrustedRoots::System,
        Some(other) if validation.ca_certificate_refs.is_empty() => {
            let message = format!("wellKnownCACertificates {other} is not known");
            return Err(fails(RESOLVED_REFS, "InvalidKind", message));
        }
        _ => TrustedRoots::Pem(authorities(policy, cluster)?),
    };
    let hostname = validation.hostname.clone();
    Ok(UpstreamTlsSettings { hostname, subject_alt_names: subject_alt_names.collect(), roots })
}

fn authorities(policy: &BackendTlsPolicy, cluster: &dyn Cluster) -> Result<Vec<u8>, DesiredCondition> {
    let mut pem = Vec::new();
    for reference in &policy.spec.validation.ca_certificate_refs {
        let (group, kind) =
            (reference.group.as_deref().unwrap_or_default(), reference.kind.as_deref().unwrap_or_default());
        if (group, kind) != ("", "ConfigMap") {
            let message = format!("certificate authorities are in ConfigMaps, not in a {kind}");
            return Err(fails(RESOLVED_REFS, "InvalidKind", message));
        }
        let name = format!("{}/{}", namespace(&policy.metadata), reference.name);
        let found = cluster.config_map(&name).and_then(|map| map.data.as_ref()?.get("ca.crt").cloned());
        let Some(found) = found else {
            let message = format!("there is no ConfigMap {name} with ca.crt");
            return Err(fails(RESOLVED_REFS, "InvalidCACertificateRef", message));
        };
        pem.extend_from_slice(found.as_bytes());
        pem.push(b'\n');
    }
    Ok(pem)
}
