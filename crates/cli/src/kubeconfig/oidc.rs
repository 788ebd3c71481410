//! Tokens of an OpenID Connect provider: `users[].user.auth-provider` with the name `oidc`.
//! Used by `resolve`.
//! An expired token is exchanged with the refresh token, and the new one written to the kubeconfig.

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
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
    let rest = open(Connection { server: server.to_string(), ..connection })?;
    let grant = format!("grant_type=refresh_token&refresh_token={}", query_escape(refresh));
    let (id, secret) = (query_escape(text("client-id")), query_escape(text("client-secret")));
    let ask = |body: String| {
        let call = rest.call(Method::POST, path).header(header::ACCEPT, "application/json");
        call.body("application/x-www-form-urlencoded", body)
    };
    // Providers differ in where they want the client's name, and none says so: as in client-go, the header comes first.
    let login = format!("Basic {}", BASE64_STANDARD.encode(format!("{id}:{secret}")));
    let answer = match ask(grant.clone()).header(header::AUTHORIZATION, login).value().await {
        Err(Failure::Status(_)) => {
            let secret = if secret.is_empty() { String::new() } else { format!("&client_secret={secret}") };
            ask(format!("{grant}&client_id={id}{secret}")).value().await
        }
        other => other,
    };
    let answer = answer.map_err(|e| Failure::message(format!("failed to refresh token: {}", e.text())))?;
    let fresh = answer["id_token"]
        .as_str()
        .ok_or_else(|| Failure::message("token response did not contain an id_token, either the scope \"openid\" wasn't requested upon login, or the provider doesn't support id_tokens as part of the refresh response"))?;
    let refreshed = answer["refresh_token"].as_str().unwrap_or(refresh);
    persist(places, user, fresh, refreshed)?;
    Ok(fresh.to_string())
}

fn authority(user: &Entry, config: &Value) -> Result<Vec<u8>> {
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
    use std::{cell::RefCell, path::PathBuf};

    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// A provider that wants clients named in the body; what it was asked.
    async fn provide(listener: &TcpListener, asked: &RefCell<Vec<String>>) {
        let issuer = format!("http://{}", listener.local_addr().expect("an address"));
        loop {
            let (mut stream, _) = listener.accept().await.expect("somebody asks");
            let mut request = Vec::new();
            let whole = |request: &[u8]| {
                let text = String::from_utf8_lossy(request).to_lowercase();
                let (head, body) = text.split_once("\r\n\r\n")?;
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
                (body.len() >= length.unwrap_or(0)).then_some(())
            };
            while whole(&request).is_none() {
                request.push(stream.read_u8().await.expect("a request"));
            }
            let text = String::from_utf8_lossy(&request).into_owned();
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_string();
            let (code, answer) = match (text.starts_with("GET "), body.contains("client_id=")) {
                (true, _) => (200, json!({"token_endpoint": format!("{issuer}/token")})),
                (false, false) => (401, json!({"error": "invalid_client"})),
                (false, true) => (200, json!({"id_token": "new", "refresh_token": "next"})),
            };
            asked.borrow_mut().push(format!("{} {body}", text.lines().next().unwrap_or_default()));
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all(format!("{head}{answer}").as_bytes()).await.expect("it listens");
        }
    }

    #[tokio::test]
    async fn a_token_that_has_ended_is_exchanged_and_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let issuer = format!("http://{}", listener.local_addr().expect("an address"));
        let folder = tempfile::tempdir().expect("a directory");
        let file: PathBuf = folder.path().join("config");
        let provider = json!({"name": "oidc", "config": {"client-id": "me", "client-secret": "s&t", "id-token": "old",
            "idp-issuer-url": issuer, "refresh-token": "first"}});
        let user = json!({"auth-provider": provider});
        let config = json!({"kind": "Config", "apiVersion": "v1", "users": [{"name": "u", "user": user}]});
        std::fs::write(&file, config.to_string()).expect("a file");
        let places = Places { files: vec![file.clone()], explicit: true };
        let user = Entry { name: "u".into(), value: user, file: file.clone() };
        let (asked, env) = (RefCell::default(), env::Env::real());
        let fresh = tokio::select! {
            fresh = id_token(&places, &user, &env) => fresh,
            () = provide(&listener, &asked) => unreachable!("it goes on"),
        };
        assert_eq!(fresh.map_err(|failure| failure.text()).as_deref(), Ok("new"));
        let grant = "grant_type=refresh_token&refresh_token=first";
        let wanted = [
            "GET /.well-known/openid-configuration HTTP/1.1 ".to_string(),
            format!("POST /token HTTP/1.1 {grant}"),
            format!("POST /token HTTP/1.1 {grant}&client_id=me&client_secret=s%26t"),
        ];
        assert_eq!(*asked.borrow(), wanted);
        let kept = crate::kubeconfig::read(&file).unwrap_or_default().users.remove(0).value;
        let kept = &kept["auth-provider"]["config"];
        assert_eq!((&kept["id-token"], &kept["refresh-token"]), (&json!("new"), &json!("next")));
    }

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
