//! Kubeconfigs of every form, and what a server sees of them.

use std::{os::unix::fs::PermissionsExt, path::PathBuf};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::{HttpsTransport, Transport};

fn write(directory: &Path, cluster: Value, user: Value) -> PathBuf {
    let config = json!({ "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}], "users": [{"name": "u", "user": user}] });
    let path = directory.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// Answers every request with 200, or 401 without the token, and says what it was asked.
async fn server(token: &'static str) -> (String, Arc<parking_lot::Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let asked = seen.clone();
    env::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let asked = asked.clone();
            env::spawn(async move {
                let mut text = String::new();
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    text.push_str(&String::from_utf8_lossy(&buffer[..count]));
                    if !text.ends_with("\r\n\r\n") {
                        continue;
                    }
                    let good = text.contains(token) || text.starts_with("CONNECT");
                    let line = if good { "200 OK" } else { "401 Unauthorized" };
                    asked.lock().push(std::mem::take(&mut text));
                    let body = if asked.lock().last().is_some_and(|t| t.starts_with("CONNECT")) { "" } else { "{}" };
                    let head = match body {
                        "" => format!("HTTP/1.1 {line}\r\n\r\n"),
                        body => format!("HTTP/1.1 {line}\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
                    };
                    stream.write_all(head.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (address, seen)
}

async fn ask(transport: &HttpsTransport) -> Result<u16, String> {
    let request = http::Request::get("/version").body(bytes::Bytes::new()).unwrap();
    transport.send(request).await.map(|answer| answer.status().as_u16()).map_err(|e| e.message.clone())
}

#[test]
fn files_tokens_and_names_are_read() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("token"), "from-file\n").unwrap();
    let check = |cluster: Value, user: Value, show: fn(&HttpsConfig) -> String, expected: Result<&str, &str>| {
        let found = from_kubeconfig(&write(directory.path(), cluster.clone(), user.clone()), "test");
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(show(&found), expected, "{cluster} {user}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, expected) => panic!("{cluster} {user}: {:?} {expected:?}", found.map(|c| c.server)),
        }
    };
    let token = |c: &HttpsConfig| c.identity.bearer_token.as_ref().map(|t| t.read().clone()).unwrap_or_default();
    let server = json!({"server": "https://a:1"});
    check(server.clone(), json!({"token": "plain"}), token, Ok("plain"));
    check(server.clone(), json!({"tokenFile": "token", "token": "plain"}), token, Ok("from-file"));
    check(server.clone(), json!({"tokenFile": "none"}), token, Err("tokenFile"));
    let headers = |c: &HttpsConfig| {
        let texts = c.headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap_or_default()));
        texts.collect::<Vec<_>>().join(" ")
    };
    check(server.clone(), json!({"username": "u", "password": "p"}), headers, Ok("authorization=Basic dTpw"));
    let another = json!({"as": "other", "as-groups": ["g"], "as-user-extra": {"Scope": ["s"]}});
    let sent = "impersonate-user=other impersonate-group=g impersonate-extra-scope=s";
    check(server.clone(), another, headers, Ok(sent));
    let options = |c: &HttpsConfig| format!("{} {:?} {:?}", c.insecure_skip_tls_verify, c.tls_server_name, c.proxy_url);
    let insecure = json!({"server": "https://a:1", "insecure-skip-tls-verify": true, "tls-server-name": "b",
        "proxy-url": "socks5://c:1"});
    check(insecure, json!({}), options, Ok("true Some(\"b\") Some(\"socks5://c:1\")"));
    let both = json!({"server": "https://a:1", "insecure-skip-tls-verify": true, "certificate-authority": "token"});
    check(both, json!({}), options, Err("with the insecure flag is not allowed"));
    check(json!({}), json!({}), options, Err("the cluster has no server"));
    check(server.clone(), json!({"client-certificate": "token"}), options, Err("must be given together"));
    let exec = json!({"exec": {"apiVersion": "v0", "command": "x"}});
    check(server, exec, options, Err("invalid apiVersion \"v0\""));
    let refused = |url: &str| match crate::connections::Route::new(Some(url), None) {
        Ok(_) => String::new(),
        Err(error) => error,
    };
    assert!(refused("ftp://a:1").contains("unsupported scheme") && refused("a:1").contains("no scheme"));
    assert_eq!(refused("http://user:secret@a:1/"), "");
}

#[tokio::test]
async fn a_program_gives_the_token_and_is_asked_again_when_it_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (address, seen) = server("Bearer t2").await;
    let program = directory.path().join("plugin");
    // A new token each time it runs.
    let script = "#!/bin/sh\necho x >>\"$1\"\nn=$(wc -l <\"$1\" | tr -d ' ')\n\
        echo \"{\\\"apiVersion\\\":\\\"client.authentication.k8s.io/v1\\\",\\\"kind\\\":\\\"ExecCredential\\\",\
        \\\"status\\\":{\\\"token\\\":\\\"t$n\\\"}}\"\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let runs = directory.path().join("runs");
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "./plugin", "args": [runs]}});
    let path = write(directory.path(), json!({"server": format!("http://{address}")}), exec);
    let transport = HttpsTransport::new(from_kubeconfig(&path, "test").unwrap()).unwrap();
    assert_eq!(ask(&transport).await, Ok(401));
    assert!(transport.reachability().problem().unwrap().contains("401"));
    assert_eq!(ask(&transport).await, Ok(200));
    assert_eq!(ask(&transport).await, Ok(200));
    assert_eq!(transport.reachability().problem(), None);
    let tokens: Vec<bool> = seen.lock().iter().map(|request| request.contains("Bearer t2")).collect();
    assert_eq!(tokens, [false, true, true]);
}

#[tokio::test]
async fn a_proxy_is_gone_through_and_who_cannot_connect_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (proxy, seen) = server("host").await;
    let url = format!("http://user:secret@{proxy}");
    let path = write(directory.path(), json!({"server": "http://server.test:1", "proxy-url": url}), json!({}));
    let transport = HttpsTransport::new(from_kubeconfig(&path, "test").unwrap()).unwrap();
    assert_eq!(ask(&transport).await, Ok(200));
    let requests = seen.lock().clone();
    assert!(requests[0].starts_with("CONNECT server.test:1 ") && requests[0].contains("Basic dXNlcjpzZWNyZXQ="));
    assert!(requests[1].starts_with("GET "), "{requests:?}");

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let path = write(directory.path(), json!({"server": format!("https://{free}")}), json!({"token": "t"}));
    let transport = HttpsTransport::new(from_kubeconfig(&path, "test").unwrap()).unwrap();
    assert_eq!(transport.reachability().problem(), None, "nobody has tried");
    assert!(ask(&transport).await.is_err());
    assert!(transport.reachability().problem().unwrap().contains("couldn't reach"));
}
