//! Plugins that ask whether the sender may have the effects of a write: owners and certificates.
//! Rows of the table in `admission`.
//! Ask the same authorizer as every request.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use api::ApiError;

use super::{Attributes, Operation, Plugin};
use crate::{
    authz::{self, Chain, Decision},
    storage::cluster::Cluster,
};

async fn may(authorizer: &Chain, a: &Attributes<'_>, verb: &str, target: (&str, &str, &str, &str, &str)) -> bool {
    let (group, resource, subresource, namespace, name) = target;
    let attributes = authz::Attributes {
        user: a.user.clone(),
        verb: verb.into(),
        is_resource: true,
        group: group.into(),
        version: "*".into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
        ..authz::Attributes::default()
    };
    matches!(authorizer.authorize(&attributes).await, Decision::Allow(_))
}

/// An owner's deletion may only be held up by those who may change its finalizers.
pub struct OwnerReferencesPermissionEnforcement {
    pub cluster: Arc<Cluster>,
    pub authorizer: Arc<Chain>,
}

#[async_trait]
impl Plugin for OwnerReferencesPermissionEnforcement {
    fn name(&self) -> &'static str {
        "OwnerReferencesPermissionEnforcement"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let owners = |o: &Value| o["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let (new, old) = (owners(&a.object), owners(&a.old));
        if !matches!(a.operation, Operation::Create | Operation::Update) || new == old {
            return Ok(());
        }
        let r = a.resource;
        if a.operation == Operation::Update
            && !may(&self.authorizer, a, "delete", (&r.group, &r.plural, "", a.namespace, a.name)).await
        {
            return Err(a.forbidden("cannot set an ownerRef on a resource you can't delete: "));
        }
        for owner in new.iter().filter(|o| o["blockOwnerDeletion"] == true) {
            let before = old.iter().find(|o| o["uid"] == owner["uid"]);
            if before.is_some_and(|o| o["blockOwnerDeletion"] == true) {
                continue;
            }
            let text = |field: &str| owner[field].as_str().unwrap_or_default();
            let set = self.cluster.served.current();
            let served = set.resources.iter().find(|r| r.kind == text("kind") && r.api_version() == text("apiVersion"));
            let Some(served) = served else {
                let why = format!(
                    "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {} Kind {}",
                    text("apiVersion"),
                    text("kind")
                );
                return Err(a.forbidden(&why));
            };
            let place = if served.namespaced() { a.namespace } else { "" };
            let target = (served.group.as_str(), served.plural.as_str(), "finalizers", place, text("name"));
            if !may(&self.authorizer, a, "update", target).await {
                let why = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: ";
                return Err(a.forbidden(why));
            }
        }
        Ok(())
    }
}

const CERTIFICATES: &str = "certificates.k8s.io";

/// `approve` or `sign` on the signer, by its full name or by its domain.
pub async fn may_act(authorizer: &Chain, a: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
    may(authorizer, a, verb, (CERTIFICATES, "signers", "", "", signer)).await
        || may(authorizer, a, verb, (CERTIFICATES, "signers", "", "", &domain)).await
}

fn is_request(a: &Attributes<'_>) -> bool {
    a.is(CERTIFICATES, "certificatesigningrequests") && a.operation == Operation::Update
}

/// A request for a certificate says who made it, and nobody says that but the server. Part of every chain.
pub fn stamp_requester(a: &mut Attributes<'_>) {
    let creates = a.is(CERTIFICATES, "certificatesigningrequests") && a.operation == Operation::Create;
    if !creates {
        return;
    }
    // `get_mut`, because indexing would make the field in whatever object this is.
    let Some(spec) = a.object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    if let Value::Object(info) = a.user.info() {
        spec.extend(info);
    }
}

pub struct CertificateApproval(pub Arc<Chain>);

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !is_request(a) || a.subresource != "approval" {
            return Ok(());
        }
        let signer = a.old["spec"]["signerName"].as_str().unwrap_or_default();
        match may_act(&self.0, a, "approve", signer).await {
            true => Ok(()),
            false => Err(a.forbidden(&format!("user not permitted to approve requests with signerName {signer:?}"))),
        }
    }
}

/// Who vouches for a signer's trust anchors may attest for that signer.
pub struct ClusterTrustBundleAttest(pub Arc<Chain>);

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        let signer = a.object["spec"]["signerName"].as_str().unwrap_or_default();
        if !writes || !a.is(CERTIFICATES, "clustertrustbundles") || signer.is_empty() {
            return Ok(());
        }
        // Garbage collection only takes finalizers and owners away.
        if a.operation == Operation::Update && without_gc_fields(&a.object) == without_gc_fields(&a.old) {
            return Ok(());
        }
        match may_act(&self.0, a, "attest", signer).await {
            true => Ok(()),
            false => Err(a.forbidden(&format!("user not permitted to attest for signerName {signer:?}"))),
        }
    }
}

fn without_gc_fields(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            metadata.remove(field);
        }
    }
    object
}

pub struct CertificateSigning(pub Arc<Chain>);

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !is_request(a) || a.subresource != "status" || a.old["status"] == a.object["status"] {
            return Ok(());
        }
        let signer = a.old["spec"]["signerName"].as_str().unwrap_or_default();
        match may_act(&self.0, a, "sign", signer).await {
            true => Ok(()),
            false => Err(a.forbidden(&format!("user not permitted to sign requests with signerName {signer:?}"))),
        }
    }
}

/// Nobody gets a client certificate for `system:masters`.
pub struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let creates = a.is(CERTIFICATES, "certificatesigningrequests") && a.operation == Operation::Create;
        if !creates || a.object["spec"]["signerName"] != "kubernetes.io/kube-apiserver-client" {
            return Ok(());
        }
        let subject = request_subject(&a.object["spec"]["request"]);
        let subject = subject.map_err(|why| a.forbidden(&format!("failed to parse CSR: {why}")))?;
        match subject.organizations.iter().any(|o| o == "system:masters") {
            true => Err(a.forbidden(
                "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
            )),
            false => Ok(()),
        }
    }
}

/// Who a certificate is asked for, as its request says.
pub struct RequestSubject {
    pub common_names: Vec<String>,
    pub organizations: Vec<String>,
}

/// The subject of a certificate request as it lies in an object. A name that can't be read is no reason to go on without
/// it: others may be able to.
pub fn request_subject(request: &Value) -> Result<RequestSubject, String> {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use rustls_pki_types::{CertificateSigningRequestDer, pem::PemObject};
    use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer, x509::AttributeTypeAndValue};
    let pem = BASE64_STANDARD.decode(request.as_str().unwrap_or_default()).map_err(|e| e.to_string())?;
    let der = CertificateSigningRequestDer::from_pem_slice(&pem);
    let der = der.map_err(|_| "PEM block type must be CERTIFICATE REQUEST".to_string())?;
    let (_, parsed) = X509CertificationRequest::from_der(&der).map_err(|e| e.to_string())?;
    let subject = &parsed.certification_request_info.subject;
    let text = |name: &AttributeTypeAndValue<'_>| name.as_str().map(str::to_string).map_err(|e| e.to_string());
    Ok(RequestSubject {
        common_names: subject.iter_common_name().map(text).collect::<Result<_, _>>()?,
        organizations: subject.iter_organization().map(text).collect::<Result<_, _>>()?,
    })
}
