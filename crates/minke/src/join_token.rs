//! The control plane's side of joining: the bootstrap token, and what joined nodes may do.
//! Prepared by `server` at every start; used by `join` on the node's side.
//! Invariant: a token that was revoked (its Secret deleted) never comes back; another takes its place.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};
use client::{Client, Patch};
use env::Env;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::Secret,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{instance::Instance, pki::write_private};

const NAMESPACE: &str = "kube-system";
const NODES: &str = "system:nodes";
const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// Cluster roles of upstream's that nodes need: binding, role, group.
const BINDINGS: &[(&str, &str, &str)] = &[
    ("minke:node-bootstrapper", "system:node-bootstrapper", BOOTSTRAPPERS),
    ("minke:node-join", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", BOOTSTRAPPERS),
    ("minke:node-renewal", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", NODES),
    ("minke:node-proxier", "system:node-proxier", NODES),
];

/// Makes the token at first start, and the rights of those who join with it.
pub async fn prepare(client: &Client, instance: &Instance, env: &Env) -> Result<()> {
    let apply = |config: Value| Patch::Apply { manager: "minke".into(), force: true, config };
    let subjects = |group: &str| json!([{ "kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group }]);
    for (name, role, group) in BINDINGS {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": subjects(group),
        });
        client.api::<ClusterRoleBinding>().patch(name, &apply(binding)).await?;
    }
    // Every node serves DNS and says so itself.
    let name = "minke:node-dns";
    let group = "rbac.authorization.k8s.io";
    let read = json!([{ "apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"] }]);
    let write =
        json!([{ "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["create", "patch"] }]);
    let object = |kind: &str, namespace: Option<&str>, rest: (&str, Value)| {
        let mut object = json!({ "apiVersion": format!("{group}/v1"), "kind": kind, "metadata": { "name": name } });
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = namespace.into();
        }
        object[rest.0] = rest.1;
        object
    };
    let bound = |kind: &str, namespace: Option<&str>, role: &str| {
        let mut binding = object(kind, namespace, ("subjects", subjects(NODES)));
        binding["roleRef"] = json!({ "apiGroup": group, "kind": role, "name": name });
        apply(binding)
    };
    client.api::<ClusterRole>().patch(name, &apply(object("ClusterRole", None, ("rules", read)))).await?;
    client.api::<ClusterRoleBinding>().patch(name, &bound("ClusterRoleBinding", None, "ClusterRole")).await?;
    let inside = Some(NAMESPACE);
    client.namespaced::<Role>(NAMESPACE).patch(name, &apply(object("Role", inside, ("rules", write)))).await?;
    client.namespaced::<RoleBinding>(NAMESPACE).patch(name, &bound("RoleBinding", inside, "Role")).await?;
    ensure_token(client, instance, env).await
}

async fn ensure_token(client: &Client, instance: &Instance, env: &Env) -> Result<()> {
    let secrets = client.namespaced::<Secret>(NAMESPACE);
    if let Ok(token) = fs::read_to_string(instance.join_token())
        && let Some((id, _)) = token.trim().split_once('.')
        && secrets.find(&secret_name(id)).await?.is_some()
    {
        return Ok(());
    }
    let (id, secret) = (random(env, 6), random(env, 16));
    let data = [
        ("token-id", id.as_str()),
        ("token-secret", &secret),
        ("usage-bootstrap-authentication", "true"),
        ("description", "joins nodes to the cluster; delete this Secret to revoke it"),
    ];
    let mut object = Secret { type_: Some("bootstrap.kubernetes.io/token".into()), ..Secret::default() };
    object.metadata.name = Some(secret_name(&id));
    object.metadata.namespace = Some(NAMESPACE.into());
    let data = data.into_iter().map(|(key, value)| (key.to_string(), ByteString(value.as_bytes().to_vec())));
    object.data = Some(data.collect::<BTreeMap<_, _>>());
    secrets.create(&object).await.context("failed to make the token for joining")?;
    write_private(&instance.join_token(), &format!("{id}.{secret}\n"))
}

fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

fn random(env: &Env, length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bytes = vec![0; length];
    env.fill_random(&mut bytes);
    // 32 divides 256: every character is equally likely.
    bytes.into_iter().map(|b| char::from(ALPHABET[usize::from(b % 32)])).collect()
}

/// The fingerprint of a certificate's public key, as `--ca-hash` takes it.
pub fn fingerprint(der: &[u8]) -> Result<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).context("not a certificate")?;
    let hash = Sha256::digest(certificate.public_key().raw);
    Ok(format!("sha256:{}", hash.iter().map(|b| format!("{b:02x}")).collect::<String>()))
}

/// What to type on another machine.
pub fn print_command(instance: &Instance) -> Result<()> {
    let token = fs::read_to_string(instance.join_token())
        .with_context(|| format!("no cluster was started in {}", instance.data.display()))?;
    let ca = fs::read(instance.pki().join("ca.crt"))?;
    let ca = client::certificates(&ca).map_err(anyhow::Error::msg)?;
    let hash = fingerprint(ca.first().context("pki/ca.crt is empty")?)?;
    let server = fs::read_to_string(instance.data.join("server-url")).unwrap_or_default();
    println!("minke agent --server {} --token {} --ca-hash {hash}", server.trim(), token.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_form_of_bootstrap_tokens() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let token = random(&env, 16);
        assert_eq!(token.len(), 16);
        assert!(token.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{token}");
        assert!(fingerprint(b"junk").is_err());
    }
}
