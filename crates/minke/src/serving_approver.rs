//! Approves kubelets' requests for serving certificates when they name nothing but the node itself.
//! Runs beside the controllers, which sign what is approved; upstream leaves this approval to the operator.
//! Invariant: every name in the certificate is one that the Node object of the asking kubelet has.

use std::net::IpAddr;

use anyhow::{Context, Result};
use client::{Client, InformerFactory};
use env::Env;
use k8s_openapi::api::{
    certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
    core::v1::Node,
};
use rcgen::{CertificateSigningRequestParams, DnType, DnValue, SanType};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const SIGNER: &str = "kubernetes.io/kubelet-serving";

pub async fn run(client: Client, env: Env, shutdown: CancellationToken) {
    let informers = InformerFactory::new(client.clone(), env.clone(), shutdown);
    let mut changes = informers.informer::<CertificateSigningRequest>().subscribe();
    while let Some(change) = changes.next().await {
        let Some(request) = change.new else { continue };
        let pending = request.status.as_ref().is_none_or(|s| s.conditions.as_ref().is_none_or(|c| c.is_empty()));
        if request.spec.signer_name != SIGNER || !pending {
            continue;
        }
        if let Err(error) = decide(&client, &env, &request).await {
            let name = request.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(error = format!("{error:#}"), request = name, "a serving certificate waits for approval");
        }
    }
}

async fn decide(client: &Client, env: &Env, request: &CertificateSigningRequest) -> Result<()> {
    let user = request.spec.username.as_deref().unwrap_or_default();
    let name = user.strip_prefix("system:node:").context("not asked by a node")?;
    let node = client.api::<Node>().find(name).await?.with_context(|| format!("there is no node {name}"))?;
    if let Some(problem) = problem(request, &node)? {
        anyhow::bail!(problem);
    }
    let mut approved = request.clone();
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(env.now());
    approved.status.get_or_insert_default().conditions.get_or_insert_default().push(
        CertificateSigningRequestCondition {
            type_: "Approved".into(),
            status: "True".into(),
            reason: Some("AutoApproved".into()),
            message: Some("Every name in the request is one of the node's own.".into()),
            last_update_time: Some(now.clone()),
            last_transition_time: Some(now),
        },
    );
    let key = request.metadata.name.as_deref().unwrap_or_default();
    let api = client.api::<CertificateSigningRequest>();
    api.replace_subresource::<_, Value>(key, "approval", &approved).await?;
    Ok(())
}

fn problem(request: &CertificateSigningRequest, node: &Node) -> Result<Option<String>> {
    let pem = std::str::from_utf8(&request.spec.request.0).context("the request is not PEM")?;
    let params = CertificateSigningRequestParams::from_pem(pem)?.params;
    let common_name = match params.distinguished_name.get(&DnType::CommonName) {
        Some(DnValue::Utf8String(text)) => text.clone(),
        Some(DnValue::PrintableString(text)) => text.as_str().to_string(),
        _ => String::new(),
    };
    if request.spec.username.as_deref() != Some(common_name.as_str()) {
        return Ok(Some(format!("asked for {common_name}")));
    }
    let addresses = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    let own: Vec<&str> = addresses.map(|a| a.address.as_str()).collect();
    for name in &params.subject_alt_names {
        let known = match name {
            SanType::DnsName(name) => own.contains(&name.as_str()),
            SanType::IpAddress(ip) => own.iter().any(|a| a.parse::<IpAddr>().ok() == Some(*ip)),
            _ => false,
        };
        if !known {
            return Ok(Some(format!("the node has no address {name:?}")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_nodes_own_names() {
        let node: Node = serde_json::from_value(json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "Hostname", "address": "a" } ] } }))
        .unwrap();
        let check = |common_name: &str, dns: &str, ip: [u8; 4], good: bool| {
            let mut params = CertificateParams::new(vec![dns.to_string()]).unwrap();
            params.subject_alt_names.push(SanType::IpAddress(ip.into()));
            params.distinguished_name.push(DnType::CommonName, common_name);
            let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
            let mut request = CertificateSigningRequest::default();
            request.spec.request.0 = pem.into_bytes();
            request.spec.username = Some("system:node:a".into());
            assert_eq!(problem(&request, &node).unwrap().is_none(), good, "{common_name} {dns} {ip:?}");
        };
        check("system:node:a", "a", [192, 0, 2, 1], true);
        check("system:node:b", "a", [192, 0, 2, 1], false);
        check("system:node:a", "b", [192, 0, 2, 1], false);
        check("system:node:a", "a", [192, 0, 2, 2], false);
    }
}
