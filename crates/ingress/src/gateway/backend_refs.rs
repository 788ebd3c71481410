//! References of routes to backends become destinations.
//! Called by `rules` for every rule and mirror.
//! Pure (tidy: `pure_files`). A reference that leads nowhere keeps its share of the requests, which fail.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    backend_tls::{BackendTls, PortTls},
    cluster::Cluster,
    conditions::{DesiredCondition, RESOLVED_REFS, fails},
    reference_grants::{ReferenceGrants, Referent},
    types::BackendRef,
};
use crate::backends::{Backend, BackendKey, Protocol, ServicePort};

/// Where references are looked up.
pub struct Resolver<'a> {
    pub cluster: &'a mut dyn Cluster,
    pub grants: &'a ReferenceGrants,
    pub tls: &'a BackendTls,
}

/// Who refers.
#[derive(Clone, Copy)]
pub struct Referrer<'a> {
    pub kind: &'static str,
    pub namespace: &'a str,
    /// Spoken to backends that don't say.
    pub protocol: Protocol,
    /// Bytes are passed on as they come.
    pub passthrough: bool,
}

/// What came of a route's references.
#[derive(Default)]
pub struct References {
    /// The first thing that is wrong.
    pub problem: Option<DesiredCondition>,
    /// Policies that its backends are under.
    pub policies: BTreeSet<usize>,
}

impl References {
    pub fn fail(&mut self, problem: DesiredCondition) {
        self.problem.get_or_insert(problem);
    }
}

impl Resolver<'_> {
    pub fn backend(&mut self, from: Referrer<'_>, to: &BackendRef, found: &mut References) -> Option<Arc<Backend>> {
        match self.resolve(from, to, &mut found.policies) {
            Ok(backend) => Some(backend),
            Err(problem) => {
                found.fail(problem);
                None
            }
        }
    }

    fn resolve(
        &mut self,
        from: Referrer<'_>,
        to: &BackendRef,
        policies: &mut BTreeSet<usize>,
    ) -> Result<Arc<Backend>, DesiredCondition> {
        let fail = |reason, message| Err(fails(RESOLVED_REFS, reason, message));
        let (group, kind) = (to.group.as_deref().unwrap_or_default(), to.kind.as_deref().unwrap_or("Service"));
        if (group, kind) != ("", "Service") {
            return fail("InvalidKind", format!("a backend is a Service, not a {kind}"));
        }
        let namespace = to.namespace.as_deref().unwrap_or(from.namespace);
        let service = format!("{namespace}/{}", to.name);
        if !self.grants.allow(from.kind, from.namespace, Referent { group, kind, namespace, name: &to.name }) {
            let message = format!("no ReferenceGrant lets {}s of {} use Service {service}", from.kind, from.namespace);
            return fail("RefNotPermitted", message);
        }
        let Some(object) = self.cluster.service(&service) else {
            return fail("BackendNotFound", format!("Service {service} does not exist"));
        };
        let ports = object.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        let Some(port) = ports.iter().find(|port| Some(port.port) == to.port) else {
            let wanted = to.port.map_or("without a number".to_string(), |port| port.to_string());
            return fail("BackendNotFound", format!("Service {service} has no port {wanted}"));
        };
        let tls = match self.tls.of_port(&service, port) {
            _ if from.passthrough => None,
            PortTls::Plain => None,
            PortTls::Tls { tls, policy } => {
                policies.insert(policy);
                Some(tls)
            }
            PortTls::Broken { policy } => {
                policies.insert(policy);
                return fail("BackendNotFound", format!("the BackendTLSPolicy of Service {service} can't be followed"));
            }
        };
        let key = BackendKey {
            protocol: from.protocol,
            tls,
            ..BackendKey::new(namespace, &to.name, ServicePort::Number(port.port))
        };
        Ok(self.cluster.backend(&key))
    }
}
