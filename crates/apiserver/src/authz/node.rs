//! What a kubelet may touch: its node, its pods and what they mount.
//! A row of the modes in `authz`; the index is fed by the watch cache.
//! An object is reachable only through a pod bound to the node, an attachment to it, or its own name.

use std::collections::HashMap;

use async_trait::async_trait;
use serde_json::Value;

use api::{
    Object, Verb,
    feature_gates::{FeatureGates, POD_CERTIFICATE_REQUEST},
    local_storage,
    selectors::{FieldSelector, LabelSelector, Operator, Requirement},
};

use super::{
    Attributes, Authorizer, Decision, Rules,
    rbac::{Rule, bootstrap::node_rules},
};
use crate::{
    authn::User,
    storage::{
        cluster::Cluster,
        index::{Index, Indexed},
    },
};

pub struct NodeAuthorizer {
    graph: Indexed<Graph>,
    rules: Vec<Rule>,
    pod_certificates: bool,
}

/// The node a user is, if it is one; empty if it is one without a name.
pub fn identity(user: &User) -> Option<&str> {
    if !user.in_group("system:nodes") {
        return None;
    }
    Some(user.name.strip_prefix("system:node:").unwrap_or_default())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Pod,
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
    ResourceClaim,
    Attachment,
    LocalVolume,
    ResourceSlice,
    PodCertificateRequest,
}

/// Which nodes have a reason to read an object, and how many reasons.
#[derive(Default)]
pub struct Graph {
    reasons: HashMap<(Kind, String), HashMap<String, usize>>,
    /// The claim a volume is bound to.
    claims: HashMap<String, String>,
    /// The volumes that name a secret.
    volumes: HashMap<String, Vec<String>>,
}

impl Graph {
    fn reaches(&self, node: &str, kind: Kind, key: String) -> bool {
        self.reasons.get(&(kind, key)).is_some_and(|nodes| nodes.contains_key(node))
    }

    fn reaches_volume(&self, node: &str, volume: &str) -> bool {
        self.claims.get(volume).is_some_and(|claim| self.reaches(node, Kind::Claim, claim.clone()))
    }

    fn reaches_secret(&self, node: &str, key: String) -> bool {
        let through = self.volumes.get(&key).is_some_and(|v| v.iter().any(|v| self.reaches_volume(node, v)));
        through || self.reaches(node, Kind::Secret, key)
    }

    fn count(&mut self, new: bool, kind: Kind, key: String, node: &str) {
        let id = (kind, key);
        if new {
            *self.reasons.entry(id).or_default().entry(node.to_string()).or_default() += 1;
            return;
        }
        let Some(nodes) = self.reasons.get_mut(&id) else { return };
        if let Some(count) = nodes.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(node);
            }
        }
        if nodes.is_empty() {
            self.reasons.remove(&id);
        }
    }

    fn pod(&mut self, new: bool, object: &Object) {
        let pod = object.value();
        let Some(node) = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) else { return };
        let namespace = object.meta.namespace.as_deref().unwrap_or_default();
        self.count(new, Kind::Pod, object.key(), node);
        // A node makes mirror pods itself: what they name is no reason to read it.
        if object.meta.annotations.contains_key("kubernetes.io/config.mirror") {
            return;
        }
        for (kind, name) in references(&pod) {
            self.count(new, kind, format!("{namespace}/{name}"), node);
        }
    }

    /// An object that names its node itself.
    fn named(&mut self, new: bool, kind: Kind, object: &Object) {
        if let Some(node) = object.value()["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
            self.count(new, kind, object.key(), node);
        }
    }

    fn volume(&mut self, new: bool, object: &Object) {
        let value = object.value();
        if let Some(node) = local_storage::node_of(&value) {
            self.count(new, Kind::LocalVolume, object.meta.name.clone(), node);
        }
        let claim = &value["spec"]["claimRef"];
        let (Some(namespace), Some(name)) = (claim["namespace"].as_str(), claim["name"].as_str()) else { return };
        let volume = object.meta.name.clone();
        match new {
            true => self.claims.insert(volume.clone(), format!("{namespace}/{name}")),
            false => self.claims.remove(&volume),
        };
        for key in volume_secrets(&value["spec"], namespace) {
            match new {
                true => self.volumes.entry(key).or_default().push(volume.clone()),
                false => {
                    if let Some(volumes) = self.volumes.get_mut(&key) {
                        volumes.retain(|v| *v != volume);
                        if volumes.is_empty() {
                            self.volumes.remove(&key);
                        }
                    }
                }
            }
        }
    }
}

impl Index for Graph {
    const RESOURCES: &'static [&'static str] =
        &["pods", "persistentvolumes", "volumeattachments", "resourceslices", "podcertificaterequests"];

    fn apply(&mut self, resource: &'static str, old: Option<&Object>, new: Option<&Object>) {
        for (new, object) in old.map(|o| (false, o)).into_iter().chain(new.map(|o| (true, o))) {
            match resource {
                "pods" => self.pod(new, object),
                "persistentvolumes" => self.volume(new, object),
                "resourceslices" => self.named(new, Kind::ResourceSlice, object),
                "podcertificaterequests" => self.named(new, Kind::PodCertificateRequest, object),
                _ => self.named(new, Kind::Attachment, object),
            }
        }
    }
}

/// Everything of its namespace that a pod names.
fn references(pod: &Value) -> Vec<(Kind, String)> {
    let spec = &pod["spec"];
    let mut found = Vec::new();
    let mut add = |kind: Kind, name: &Value| {
        if let Some(name) = name.as_str().filter(|n| !n.is_empty()) {
            found.push((kind, name.to_string()));
        }
    };
    add(Kind::ServiceAccount, &spec["serviceAccountName"]);
    let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
    items(&spec["imagePullSecrets"]).iter().for_each(|s| add(Kind::Secret, &s["name"]));
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(&spec[list]) {
            for source in items(&container["envFrom"]) {
                add(Kind::ConfigMap, &source["configMapRef"]["name"]);
                add(Kind::Secret, &source["secretRef"]["name"]);
            }
            for variable in items(&container["env"]) {
                add(Kind::ConfigMap, &variable["valueFrom"]["configMapKeyRef"]["name"]);
                add(Kind::Secret, &variable["valueFrom"]["secretKeyRef"]["name"]);
            }
        }
    }
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    for volume in items(&spec["volumes"]) {
        add(Kind::ConfigMap, &volume["configMap"]["name"]);
        add(Kind::Secret, &volume["secret"]["secretName"]);
        add(Kind::Claim, &volume["persistentVolumeClaim"]["claimName"]);
        if volume["ephemeral"].is_object() {
            let volume = volume["name"].as_str().unwrap_or_default();
            add(Kind::Claim, &api::volume_claims::generated_name(pod_name, volume).into());
        }
        for source in items(&volume["projected"]["sources"]) {
            add(Kind::ConfigMap, &source["configMap"]["name"]);
            add(Kind::Secret, &source["secret"]["name"]);
        }
        for driver in ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"] {
            add(Kind::Secret, &volume[driver]["secretRef"]["name"]);
        }
        add(Kind::Secret, &volume["azureFile"]["secretName"]);
        add(Kind::Secret, &volume["csi"]["nodePublishSecretRef"]["name"]);
    }
    // A claim made from a template is known by the status, and only if the spec asks for it.
    let made = items(&pod["status"]["resourceClaimStatuses"]);
    for claim in items(&spec["resourceClaims"]) {
        match claim["resourceClaimName"].is_string() {
            true => add(Kind::ResourceClaim, &claim["resourceClaimName"]),
            false => made
                .iter()
                .filter(|status| status["name"] == claim["name"])
                .for_each(|status| add(Kind::ResourceClaim, &status["resourceClaimName"])),
        }
    }
    add(Kind::ResourceClaim, &pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]);
    found
}

fn volume_secrets(spec: &Value, claim_namespace: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |reference: &Value, name: &str| {
        let namespace = ["namespace", "secretNamespace"].iter().find_map(|f| reference[*f].as_str());
        if let Some(name) = reference[name].as_str().filter(|n| !n.is_empty()) {
            found.push(format!("{}/{name}", namespace.filter(|n| !n.is_empty()).unwrap_or(claim_namespace)));
        }
    };
    for driver in ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"] {
        add(&spec[driver]["secretRef"], "name");
    }
    add(&spec["azureFile"], "secretName");
    for field in ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"] {
        add(&spec["csi"][field], "name");
    }
    found
}

impl NodeAuthorizer {
    pub fn new(cluster: &Cluster, gates: &FeatureGates) -> Self {
        let pod_certificates = gates.enabled(POD_CERTIFICATE_REQUEST);
        Self { graph: Indexed::new(cluster), rules: node_rules(gates), pod_certificates }
    }

    fn decide(&self, a: &Attributes) -> Decision {
        let Some(node) = identity(&a.user) else { return no("") };
        if node.is_empty() {
            return no(format!("unknown node for user {:?}", a.user.name));
        }
        if !a.is_resource {
            return self.by_rules(a);
        }
        match (a.group.as_str(), a.resource.as_str()) {
            ("", "secrets") => self.read(node, Kind::Secret, a),
            ("", "configmaps") => self.read(node, Kind::ConfigMap, a),
            ("", "persistentvolumeclaims") if a.subresource == "status" => match &a.verb {
                Verb::Update | Verb::Patch => self.related(node, Kind::Claim, a),
                _ => no("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims") => self.get(node, Kind::Claim, a),
            ("", "persistentvolumes") => match (&a.verb, a.subresource.as_str()) {
                (Verb::Get, "") if self.graph.read().reaches_volume(node, &a.name) => yes(),
                // Which change is for NodeRestriction to check.
                (Verb::Get | Verb::Patch | Verb::Update, "") => self.related(node, Kind::LocalVolume, a),
                (Verb::List | Verb::Watch, "") if selects_label(a, local_storage::NODE_LABEL, node) => yes(),
                (Verb::Get, _) => no("cannot get subresource"),
                _ => no("can only get individual resources of this type"),
            },
            ("resource.k8s.io", "resourceclaims") => self.get(node, Kind::ResourceClaim, a),
            ("storage.k8s.io", "volumeattachments") => self.get(node, Kind::Attachment, a),
            ("", "serviceaccounts") => self.account(node, a),
            ("coordination.k8s.io", "leases") => lease(node, a),
            ("storage.k8s.io", "csinodes") => csi_node(node, a),
            ("resource.k8s.io", "resourceslices") => self.resource_slice(node, a),
            ("certificates.k8s.io", "podcertificaterequests") if self.pod_certificates => {
                self.pod_certificate_request(node, a)
            }
            ("", "nodes") => own_node(node, a),
            ("", "pods") => self.pod(node, a),
            _ => self.by_rules(a),
        }
    }

    fn by_rules(&self, a: &Attributes) -> Decision {
        if self.rules.iter().any(|r| r.allows(a)) { yes() } else { no("") }
    }

    fn get(&self, node: &str, kind: Kind, a: &Attributes) -> Decision {
        match (&a.verb, a.subresource.as_str()) {
            (Verb::Get, "") => self.related(node, kind, a),
            (Verb::Get, _) => no("cannot get subresource"),
            _ => no("can only get individual resources of this type"),
        }
    }

    fn read(&self, node: &str, kind: Kind, a: &Attributes) -> Decision {
        if !a.verb.is_read() {
            return no("can only read resources of this type");
        }
        if !a.subresource.is_empty() {
            return no("cannot read subresource");
        }
        if a.namespace.is_empty() {
            return no("can only read namespaced object of this type");
        }
        self.related(node, kind, a)
    }

    fn related(&self, node: &str, kind: Kind, a: &Attributes) -> Decision {
        if a.name.is_empty() {
            return no("No Object name found");
        }
        let key = if a.namespace.is_empty() { a.name.clone() } else { format!("{}/{}", a.namespace, a.name) };
        let graph = self.graph.read();
        let reached = match kind {
            Kind::Secret => graph.reaches_secret(node, key),
            _ => graph.reaches(node, kind, key),
        };
        if reached { yes() } else { unrelated(node) }
    }

    fn account(&self, node: &str, a: &Attributes) -> Decision {
        match (&a.verb, a.subresource.as_str()) {
            (Verb::Get, "") => self.read(node, Kind::ServiceAccount, a),
            (Verb::Create, "token") if !a.name.is_empty() => self.related(node, Kind::ServiceAccount, a),
            (Verb::Create, _) if !a.name.is_empty() => no("can only create token subresource of serviceaccount"),
            _ => no("can only create tokens for individual service accounts"),
        }
    }

    fn resource_slice(&self, node: &str, a: &Attributes) -> Decision {
        match &a.verb {
            _ if !a.subresource.is_empty() => no("cannot authorize ResourceSlice subresources"),
            // Whose slice it will be is for NodeRestriction to check.
            Verb::Create => yes(),
            Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => self.related(node, Kind::ResourceSlice, a),
            Verb::Watch | Verb::List | Verb::DeleteCollection if selects(a, "spec.nodeName", node) => yes(),
            Verb::Watch | Verb::List | Verb::DeleteCollection => {
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                 delete, deletecollection",
            ),
        }
    }

    fn pod_certificate_request(&self, node: &str, a: &Attributes) -> Decision {
        match &a.verb {
            _ if !a.subresource.is_empty() => {
                no("nodes may not access the status subresource of PodCertificateRequests")
            }
            // Whose pod it is for is for NodeRestriction to check.
            Verb::Create => yes(),
            Verb::Get => self.related(node, Kind::PodCertificateRequest, a),
            Verb::List | Verb::Watch if selects(a, "spec.nodeName", node) => yes(),
            Verb::List | Verb::Watch => no("can only list/watch podcertificaterequests with nodeName field selector"),
            verb => no(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn pod(&self, node: &str, a: &Attributes) -> Decision {
        match (a.subresource.as_str(), &a.verb) {
            ("", Verb::Get) => self.get(node, Kind::Pod, a),
            ("", Verb::List | Verb::Watch) if selects(a, "spec.nodeName", node) => yes(),
            ("", Verb::List | Verb::Watch) if !a.name.is_empty() => self.related(node, Kind::Pod, a),
            ("", Verb::List | Verb::Watch) => no("can only list/watch pods with spec.nodeName field selector"),
            // Which pods is for the NodeRestriction admission plugin to say.
            ("", Verb::Create | Verb::Delete) | ("status", Verb::Update | Verb::Patch) | ("eviction", Verb::Create) => {
                yes()
            }
            _ => no(""),
        }
    }
}

fn yes() -> Decision {
    Decision::Allow(String::new())
}

fn no(reason: impl Into<String>) -> Decision {
    Decision::NoOpinion(reason.into())
}

fn unrelated(node: &str) -> Decision {
    no(format!("no relationship found between node '{node}' and this object"))
}

/// Whether nothing but objects with this value is asked for, read as the handler will read it.
fn selects(a: &Attributes, field: &str, value: &str) -> bool {
    FieldSelector::parse(&a.field_selector).is_ok_and(|fields| fields.exact(field) == Some(value))
}

/// The same for a label.
fn selects_label(a: &Attributes, label: &str, value: &str) -> bool {
    let requires = |requirement: &Requirement| {
        let exact = matches!(requirement.operator, Operator::Equals | Operator::DoubleEquals | Operator::In);
        exact && requirement.key == label && requirement.values == [value]
    };
    LabelSelector::parse(&a.label_selector).is_ok_and(|labels| labels.requirements().iter().any(requires))
}

fn lease(node: &str, a: &Attributes) -> Decision {
    match &a.verb {
        Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete if a.namespace != "kube-node-lease" => {
            no("can only access leases in the \"kube-node-lease\" system namespace")
        }
        // The name of what is created is for NodeRestriction to check.
        Verb::Create => yes(),
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete if a.name == node => yes(),
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => {
            no("can only access node lease with the same name as the requesting node")
        }
        _ => no("can only get, create, update, patch, or delete a node lease"),
    }
}

fn csi_node(node: &str, a: &Attributes) -> Decision {
    match &a.verb {
        Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete if !a.subresource.is_empty() => {
            no("cannot authorize CSINode subresources")
        }
        Verb::Create => yes(),
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete if a.name == node => yes(),
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => {
            no("can only access CSINode with the same name as the requesting node")
        }
        _ => no("can only get, create, update, patch, or delete a CSINode"),
    }
}

fn own_node(node: &str, a: &Attributes) -> Decision {
    match (a.subresource.as_str(), &a.verb) {
        ("", Verb::Create | Verb::Update | Verb::Patch) | ("status", Verb::Update | Verb::Patch) => yes(),
        ("", Verb::Get | Verb::List | Verb::Watch) if a.name == node => yes(),
        ("", Verb::Get | Verb::List | Verb::Watch) if a.name.is_empty() => {
            no(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", Verb::Get | Verb::List | Verb::Watch) => {
            no(format!("node '{node}' cannot read '{}', only its own Node object", a.name))
        }
        _ => no(""),
    }
}

#[async_trait]
impl Authorizer for NodeAuthorizer {
    async fn authorize(&self, attributes: &Attributes) -> Decision {
        self.decide(attributes)
    }

    async fn rules(&self, user: &User, _: &str) -> Rules {
        match identity(user) {
            Some(_) => Rules::unknown("node authorizer does not support user rule resolution"),
            None => Rules::default(),
        }
    }
}
