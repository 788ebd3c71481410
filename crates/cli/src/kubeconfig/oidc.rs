//! Tokens of an OpenID Connect provider: `users[].user.auth-provider` with the name `oidc`.
//! Used by `resolve`.
//! An expired token is exchanged with the refresh token, and the new one written to the kubeconfig.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{Method, header};
use serde_json::Value;

use super::{Entry, Places};
use crate::{
    failure::{Failure, Result},
    output::Output,
    rest::{
        Rest,
        connect::{Connection, HttpTransport},
        path::query_escape,
    },
};

/// As client-go: a token that ends within this is as good as expired.
const EXPIRY_DELTA_SECONDS: i64 = 10;

fn expired(token: &str, now_seconds: i64) -> bool {
    let claims = token.split('.').nth(1).and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
    let claims: Value = claims.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    claims["exp"].as_i64().is_none_or(|exp| exp - EXPIRY_DELTA_SECONDS <= now_seconds)
}

pub async fn id_token(places: &Places, user: &Entry, env: &env::Env) -> Result<String> {
    let config = &user.value["auth-provider"]["config"];
    let text = |field: &str| config[field].as_str().unwrap_or_default();
    let token = text("id-token");
    if !token.is_empty() && !expired(token, env.now().as_second()) {
        return Ok(token.to_string());
    }
    let (issuer, refresh) = (text("idp-issuer-url"), text("refresh-token"));
    if refresh.is_empty() {
        return Err(Failure::message("No valid id-token, and cannot refresh without refresh-token"));
    }
    let connection = Connection {
        server: issuer.trim_end_matches('/').to_string(),
        certificate_authority: authority(user, config)?,
        ..Connection::default()
    };
    let open = |connection: Connection| -> Result<Rest> {
        let transport = std::rc::Rc::new(HttpTransport::new(connection)?);
        Ok(Rest::new(transport, Output::to(std::io::sink(), std::io::sink()), 0, None, env.clone()))
    };
    let provider = open(connection.clone())?.get("/.well-known/openid-configuration").value().await?;
    let endpoint = provider["token_endpoint"]
        .as_str()
        .ok_or_else(|| Failure::message("oidc: discovery object doesn't contain a token_endpoint"))?;
    let (server, path) = match endpoint.find("://").and_then(|at| endpoint[at + 3..].find('/').map(|p| at + 3 + p)) {
        Some(at) => endpoint.split_at(at),
        None => (endpoint, "/"),
    };
    let body = [
        ("grant_type", "refresh_token"),
        ("refresh_token", refresh),
        ("client_id", text("client-id")),
        ("client_secret", text("client-secret")),
    ];
    let body: Vec<String> =
        body.iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| format!("{k}={}", query_escape(v))).collect();
    let answer = open(Connection { server: server.to_string(), ..connection })?
        .call(Method::POST, path)
        .header(header::ACCEPT, "application/json")
        .body("application/x-www-form-urlencoded", body.join("&"))
        .value()
        .await
        .map_err(|e| Failure::message(format!("failed to refresh token: {}", e.text())))?;
    let fresh = answer["id_token"]
        .as_str()
        .ok_or_else(|| Failure::message("token response did not contain an id_token, either the scope \"openid\" wasn't requested upon login, or the provider doesn't support id_tokens as part of the refresh response"))?;
    let refreshed = answer["refresh_token"].as_str().unwrap_or(refresh);
    persist(places, user, fresh, refreshed)?;
    Ok(fresh.to_string())
}

fn authority(user: &Entry, config: &Value) -> Result<Vec<u8>> {
    use base64::prelude::BASE64_STANDARD;
    if let Some(data) = config["idp-certificate-authority-data"].as_str() {
        return BASE64_STANDARD
            .decode(data)
            .map_err(|e| Failure::message(format!("idp-certificate-authority-data: {e}")));
    }
    match config["idp-certificate-authority"].as_str().filter(|f| !f.is_empty()) {
        Some(file) => Ok(std::fs::read(super::resolve_beside(user, file))?),
        None => Ok(Vec::new()),
    }
}

fn persist(places: &Places, user: &Entry, id_token: &str, refresh_token: &str) -> Result<()> {
    if !places.files.contains(&user.file) {
        return Ok(());
    }
    let Ok(mut config) = super::read(&user.file) else { return Ok(()) };
    for entry in config.users.iter_mut().filter(|e| e.name == user.name) {
        entry.value["auth-provider"]["config"]["id-token"] = id_token.into();
        entry.value["auth-provider"]["config"]["refresh-token"] = refresh_token.into();
    }
    config.write(&user.file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ends_with_its_claim() {
        let token = |exp: i64| format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(format!("{{\"exp\":{exp}}}")));
        let check = |token: &str, wanted: bool| assert_eq!(expired(token, 1000), wanted, "{token}");
        check(&token(2000), false);
        check(&token(1005), true);
        check(&token(10), true);
        check("nonsense", true);
    }
}
