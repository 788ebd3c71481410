//! The control plane's side of joining: the bootstrap token. What nodes may do with it is in the bootstrap policy.
//! Seen to by `server` at every start; used by `join` on the node's side.
//! A token that was revoked (its Secret deleted) never comes back; another takes its place.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context, Result};
use client::Client;
use env::Env;
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use sha2::{Digest, Sha256};

use crate::{
    certificates::pki::write_private,
    cluster::{
        instance::Instance,
        ranges::{self, Ranges},
    },
};

/// As kubeadm's.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Time enough to type the command on another machine.
const REMAINING_MIN: Duration = Duration::from_secs(3600);
pub const NAMESPACE: &str = "kube-system";
/// The service account that may make tokens.
pub const ISSUER: &str = "join-token-issuer";

/// Sees to it that the token on disk is good for a while; makes another where it is revoked or nearly over.
pub async fn ensure_token(client: &Client, instance: &Instance, env: &Env) -> Result<()> {
    let secrets = client.namespaced::<Secret>(NAMESPACE);
    if let Ok(token) = fs::read_to_string(instance.join_token())
        && let Some((id, _)) = token.trim().split_once('.')
        && let Some(secret) = secrets.find(&secret_name(id)).await?
        && is_good(&secret, env.now() + REMAINING_MIN)
    {
        return Ok(());
    }
    let (id, secret) = (random(env, 6), random(env, 16));
    // Whole seconds, as kubeadm writes it.
    let expires = Timestamp::from_second((env.now() + TOKEN_LIFETIME).as_second())?.to_string();
    let data = [
        ("token-id", id.as_str()),
        ("token-secret", &secret),
        ("expiration", &expires),
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

/// Whether the token still lets nodes in at `then`. One without an end is not ours any more.
fn is_good(secret: &Secret, then: Timestamp) -> bool {
    let expires = secret.data.as_ref().and_then(|data| data.get("expiration"));
    let expires = expires.and_then(|value| std::str::from_utf8(&value.0).ok()?.parse::<Timestamp>().ok());
    expires.is_some_and(|expires| expires > then)
}

/// The same from another process of this machine, with the admin's credentials. Without a server that answers, what
/// is on disk must do.
pub async fn refresh(instance: &Instance, env: &Env) -> Result<()> {
    let connection = client::from_kubeconfig(&instance.admin_kubeconfig(), "minke-node")?;
    let client = Client::new(client::HttpsTransport::new(connection)?);
    ensure_token(&client, instance, env).await
}

pub fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

pub fn random(env: &Env, length: usize) -> String {
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
pub async fn print_command(instance: &Instance, env: &Env) -> Result<()> {
    if let Err(error) = refresh(instance, env).await {
        tracing::warn!(error = format!("{error:#}"), "the token could not be renewed");
    }
    let token = fs::read_to_string(instance.join_token())
        .with_context(|| format!("no cluster was started in {}", instance.data.display()))?;
    let ca = fs::read(instance.pki().join("ca.crt"))?;
    let ca = client::certificates(&ca).map_err(anyhow::Error::msg)?;
    let hash = fingerprint(ca.first().context("pki/ca.crt is empty")?)?;
    let server = fs::read_to_string(instance.data.join("server-url")).unwrap_or_default();
    println!("{}", join_command(server.trim(), &hash, token.trim(), ranges::kept(instance)));
    Ok(())
}

/// The token goes in by a pipe from the shell itself: it is in no process's arguments, not even under sudo.
fn join_command(server: &str, hash: &str, token: &str, ranges: Option<Ranges>) -> String {
    let list = |ranges: &[IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut command = format!("echo {token} | minke agent --server {server} --token-file - --ca-hash {hash}");
    if let Some(Ranges { pods, services }) = ranges {
        for (flag, range, usual) in [
            ("--pod-cidr", list(&pods), ranges::USUAL_PODS),
            ("--service-cidr", list(&services), ranges::USUAL_SERVICES),
        ] {
            if range != usual {
                command += &format!(" {flag} {range}");
            }
        }
    }
    command
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

    #[test]
    fn the_command_to_join_keeps_the_token_out_of_arguments() {
        let ranges = Ranges {
            pods: vec!["10.243.0.0/16".parse().unwrap()],
            services: vec![ranges::USUAL_SERVICES.parse().unwrap()],
        };
        let command = join_command("https://a:6443", "sha256:0", "abcdef.0123", Some(ranges));
        let (before, after) = command.split_once(" | ").unwrap();
        assert_eq!(before, "echo abcdef.0123", "a builtin of every shell");
        assert!(!after.contains("abcdef"), "{after}");
        assert_eq!(
            after,
            "minke agent --server https://a:6443 --token-file - --ca-hash sha256:0 --pod-cidr 10.243.0.0/16"
        );
    }

    #[test]
    fn tokens_that_end_soon_are_replaced() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let check = |expiration: Option<&str>, good: bool| {
            let data = expiration.map(|text| ("expiration".to_string(), ByteString(text.as_bytes().to_vec())));
            let secret = Secret { data: Some(data.into_iter().collect()), ..Secret::default() };
            assert_eq!(is_good(&secret, now), good, "{expiration:?}");
        };
        check(Some("2026-01-01T00:00:01Z"), true);
        check(Some("2025-12-31T23:00:00Z"), false);
        check(Some("soon"), false);
        check(None, false);
    }
}
