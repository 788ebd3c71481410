//! Bootstrap tokens: secrets in kube-system with which a new node asks for its certificate.
//! A row of the chain in `authn`.
//! Only while the secret is there, says it may be used so, and has not expired.

use std::sync::Arc;

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use api::ApiError;

use super::{AuthenticatorResponse, TokenAuthenticator, User, files::same};
use crate::storage::cluster::Cluster;

pub struct BootstrapTokens(pub Arc<Cluster>);

#[async_trait]
impl TokenAuthenticator for BootstrapTokens {
    async fn token(&self, token: &str, _: &[String]) -> Result<Option<AuthenticatorResponse>, ApiError> {
        let Some((id, secret)) = split(token) else { return Ok(None) };
        let found = self.0.fresh_get("secrets", "kube-system", &format!("bootstrap-token-{id}")).await?;
        let Some(object) = found.filter(|o| o.meta.deletion_timestamp.is_none()) else { return Ok(None) };
        let groups = groups(&object.value(), id, secret, self.0.env.now());
        Ok(groups.map(|groups| User { name: format!("system:bootstrap:{id}"), groups, ..User::default() }.into()))
    }
}

/// `abcdef.0123456789abcdef`
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

/// The groups of whoever knows the secret; `None` if `secret` is not it or may not be used.
fn groups(object: &Value, id: &str, secret: &str, now: jiff::Timestamp) -> Option<Vec<String>> {
    let data = |key: &str| -> Option<String> {
        let bytes = BASE64_STANDARD.decode(object["data"][key].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    // `None`: there is something, and it can't be read.
    let optional = |key: &str| if object["data"][key].is_null() { Some(String::new()) } else { data(key) };
    if object["type"] != "bootstrap.kubernetes.io/token" || data("token-id")? != id {
        return None;
    }
    if !same(data("token-secret")?.as_bytes(), secret.as_bytes()) {
        return None;
    }
    if let Some(expires) = Some(optional("expiration")?).filter(|e| !e.is_empty()) {
        // What cannot be read has expired, as upstream sees it.
        expires.parse::<jiff::Timestamp>().ok().filter(|at| *at > now)?;
    }
    if data("usage-bootstrap-authentication")? != "true" {
        return None;
    }
    let mut groups = vec!["system:bootstrappers".to_string()];
    for group in optional("auth-extra-groups")?.split(',').filter(|g| !g.is_empty()) {
        let rest = group.strip_prefix("system:bootstrappers:")?;
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b':' || b == b'-';
        let ends = rest.bytes().last().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if rest.len() > 256 || !rest.bytes().all(fits) || !ends {
            return None;
        }
        groups.push(group.to_string());
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_say_who_may_come() {
        let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let whole = |change: &[(&str, &str)]| {
            let mut object = json!({ "type": "bootstrap.kubernetes.io/token", "data": {} });
            let usual = [
                ("token-id", "abcdef"),
                ("token-secret", "0123456789abcdef"),
                ("usage-bootstrap-authentication", "true"),
            ];
            for (key, value) in usual.iter().chain(change) {
                object["data"][key] = BASE64_STANDARD.encode(value).into();
            }
            object
        };
        let check = |change: &[(&str, &str)], secret: &str, expected: Option<&[&str]>| {
            let found = groups(&whole(change), "abcdef", secret, now);
            let found: Option<Vec<&str>> = found.as_ref().map(|g| g.iter().map(String::as_str).collect());
            assert_eq!(found.as_deref(), expected, "{change:?}");
        };
        const SECRET: &str = "0123456789abcdef";
        check(&[], SECRET, Some(&["system:bootstrappers"]));
        check(&[], "0123456789abcdee", None);
        check(&[("usage-bootstrap-authentication", "false")], SECRET, None);
        check(&[("expiration", "2025-12-31T00:00:00Z")], SECRET, None);
        check(&[("expiration", "2026-12-31T00:00:00Z")], SECRET, Some(&["system:bootstrappers"]));
        check(&[("expiration", "soon")], SECRET, None);
        let more = "system:bootstrappers:kubeadm:default-node-token";
        check(&[("auth-extra-groups", more)], SECRET, Some(&["system:bootstrappers", more]));
        check(&[("auth-extra-groups", "system:masters")], SECRET, None);
        check(&[("token-id", "fedcba")], SECRET, None);
        // What is no text is not taken for nothing.
        for key in ["expiration", "auth-extra-groups"] {
            let mut object = whole(&[]);
            object["data"][key] = BASE64_STANDARD.encode([0xff, 0xfe]).into();
            assert_eq!(groups(&object, "abcdef", SECRET, now), None, "{key}");
        }
        assert_eq!(split("abcdef.0123456789abcdef"), Some(("abcdef", SECRET)));
        assert_eq!(split("ABCDEF.0123456789abcdef"), None);
        assert_eq!(split("abcdef.short"), None);
    }
}
