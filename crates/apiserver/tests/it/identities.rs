//! Every way to say who one is, over real TLS with real certificates, and what becomes of those who lie.

use apiserver::config;
use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{Client, Config};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::Value;

use crate::listening::{Authority, Listening, start_with};

type Identity = Option<(String, String)>;

/// Who the server takes a client for; the status code if for nobody.
async fn who(server: &Listening, identity: Identity, headers: &[(&str, &str)]) -> String {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut config = Config::new(server.url().parse().unwrap());
    let ca = std::fs::read(server.path("ca.pem")).unwrap();
    config.root_cert = Some(vec![CertificateDer::from_pem_slice(&ca).unwrap().to_vec()]);
    if let Some((certificate, key)) = identity {
        config.auth_info.client_certificate_data = Some(BASE64_STANDARD.encode(certificate));
        config.auth_info.client_key_data = Some(BASE64_STANDARD.encode(key).into());
    }
    let client = Client::try_from(config).unwrap();
    let mut request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews");
    request = request.header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    match client.request::<Value>(request.body(b"{}".to_vec()).unwrap()).await {
        Ok(review) => {
            let info = &review["status"]["userInfo"];
            let groups: Vec<_> = info["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            format!("{} {}", info["username"].as_str().unwrap_or_default(), groups.join(","))
        }
        Err(kube::Error::Api(status)) => status.code.to_string(),
        Err(other) => other.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn identities_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let proxies = Authority::new();
    let server = start_with(|config| {
        config.authentication.token_file = Some(file("tokens", "t0ken,carol,1,\"dev,ops\"\n"));
        config.authentication.password_file = Some(file("passwords", "w0rd,dave,2\n"));
        config.authentication.request_header = Some(config::RequestHeader::usual(proxies.pem.clone(), "front"));
    })
    .await;
    let own = |name: &str, expired| Some(server.authority().issue(name, "dev", expired));
    let check = async |identity: Identity, headers: &[(&str, &str)], expected: &str| {
        assert_eq!(who(&server, identity, headers).await, expected, "{headers:?}");
    };
    check(None, &[], "403").await;
    check(own("alice", false), &[], "alice dev,system:authenticated").await;
    check(own("alice", true), &[], "401").await;
    check(Some(Authority::new().issue("alice", "system:masters", false)), &[], "401").await;
    let token = ("authorization", "Bearer t0ken");
    check(None, &[token], "carol dev,ops,system:authenticated").await;
    check(None, &[("authorization", "Bearer t0ke")], "401").await;
    // A certificate comes before a token; a wrong one does not spoil a right one.
    check(own("alice", false), &[token], "alice dev,system:authenticated").await;
    check(own("alice", true), &[token], "carol dev,ops,system:authenticated").await;
    let basic = format!("Basic {}", BASE64_STANDARD.encode("dave:w0rd"));
    check(None, &[("authorization", &basic)], "dave system:authenticated").await;

    // Headers that name a user are believed from the proxy alone.
    let remote = [("x-remote-user", "erin"), ("x-remote-group", "qa"), ("x-remote-uid", "7")];
    let front = |name: &str| Some(proxies.issue(name, "none", false));
    check(front("front"), &remote, "erin qa,system:authenticated").await;
    check(front("other"), &remote, "401").await;
    check(None, &remote, "403").await;
    check(own("alice", false), &remote, "alice dev,system:authenticated").await;
    check(None, &[remote[0], token], "carol dev,ops,system:authenticated").await;
    check(front("front"), &[("x-remote-group", "system:masters")], "401").await;
    // Acting as someone else is a permission of its own, under any spelling of the header.
    for name in ["impersonate-user", "Impersonate-User", "IMPERSONATE-USER"] {
        check(None, &[(name, "system:admin"), token], "403").await;
    }
    check(None, &[("impersonate-group", "system:masters"), token], "400").await;
    // The first of several counts; nothing is joined.
    check(None, &[token, ("authorization", "Bearer other")], "carol dev,ops,system:authenticated").await;
    check(None, &[("authorization", "Bearer other"), token], "401").await;
}
