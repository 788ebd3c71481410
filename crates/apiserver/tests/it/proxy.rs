//! The `proxy` subresource against a server of our own on the loopback interface, reached as a node.

use std::{convert::Infallible, net::Ipv4Addr, sync::Arc};

use apiserver::{ApiServer, authn::User};
use env::Env;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use store::MemoryStore;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};

use crate::harness::{Server, default_account, server_on};

/// Says what it was asked; pages and redirects on request.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let sent = body.collect().await.map(|b| b.to_bytes().len()).unwrap_or_default();
    let header = |name: &str| parts.headers.get(name).map(|v| v.to_str().unwrap().to_string());
    let text = match parts.uri.path() {
        "/page" => r#"<a href="/rewriteme">test</a>"#.to_string(),
        path => json!({
            "method": parts.method.as_str(), "path": path, "query": parts.uri.query(), "sent": sent,
            "forwarded": header("x-forwarded-uri"), "authorization": header("authorization"),
        })
        .to_string(),
    };
    let mut response = Response::new(Full::new(text.into()));
    match parts.uri.path() {
        "/page" => {
            drop(response.headers_mut().insert(header::CONTENT_TYPE, "text/html; charset=utf-8".parse().unwrap()))
        }
        "/away" => {
            *response.status_mut() = http::StatusCode::FOUND;
            response.headers_mut().insert(header::LOCATION, "/there/?q=1".parse().unwrap());
        }
        _ => {}
    }
    Ok(response)
}

/// Where nodes and pods of these tests are; connections go to the loopback interface.
const OUTWARD: &str = "192.0.2.7";

async fn server() -> Server {
    let env = Env::real();
    server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
        config.address_translations.insert(OUTWARD.parse().unwrap(), Ipv4Addr::LOCALHOST.into());
    })
    .await
}

/// A server behind a node called `proxy`; what it is called as.
async fn behind(s: &Server) -> String {
    let port = listening().await;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "proxy" } });
    s.post("/api/v1/nodes", node).await.expect(201);
    node_at(s, OUTWARD).await;
    format!("/api/v1/nodes/http:proxy:{port}/proxy")
}

async fn node_at(s: &Server, address: &str) {
    let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": address }] } });
    s.patch("merge-patch", "/api/v1/nodes/proxy/status", status).await.expect(200);
}

/// A server on the loopback interface that answers everybody; its port.
async fn listening() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    env::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serve =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            env::spawn(serve);
        }
    });
    port
}

#[tokio::test]
async fn every_method_is_passed_on() {
    let s = server().await;
    let root = behind(&s).await;
    for method in ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"] {
        let path = format!("{root}/some/path/with/{method}?a=%20b");
        let answer = s.send(method, &path, &[("authorization", "Bearer x")], b"four".to_vec()).await;
        let answer = answer.expect(200);
        if method == "HEAD" {
            continue;
        }
        let expected = json!({
            "method": method, "path": format!("/some/path/with/{method}"), "query": "a=%20b", "sent": 4,
            "forwarded": format!("{root}/some/path/with/{method}"), "authorization": Value::Null,
        });
        assert_eq!(answer, expected);
    }
    let large = s.send("POST", &root, &[], vec![b'x'; 5 << 20]).await.expect(200);
    assert_eq!((&large["path"], &large["sent"]), (&json!("/"), &json!(5 << 20)), "not subject to the limit on objects");
    s.send("TRACE", &format!("{root}/"), &[], Vec::new()).await.refused(405, "MethodNotAllowed", "");
}

#[tokio::test]
async fn answers_work_under_the_proxys_path() {
    let s = server().await;
    let root = behind(&s).await;
    let page = s.get(&format!("{root}/page")).await;
    assert_eq!(String::from_utf8_lossy(&page.bytes), format!(r#"<a href="{root}/rewriteme">test</a>"#));
    let away = s.get(&format!("{root}/away")).await;
    assert_eq!((away.code, &away.headers["location"]), (302, &format!("{root}/there/?q=1").parse().unwrap()));
    for method in ["GET", "HEAD"] {
        let bare = s.send(method, &format!("{root}?method={method}"), &[], Vec::new()).await;
        assert_eq!((bare.code, &bare.headers["location"]), (301, &format!("{root}/?method={method}").parse().unwrap()));
    }
    s.get("/api/v1/nodes/ftp:proxy:1/proxy/").await.refused(400, "BadRequest", "invalid node request");
}

/// A server that agrees to any other protocol and then sends back every byte; its port.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    env::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        let head = head(&mut reader).await;
        assert!(head.starts_with("GET /socket?a=b HTTP/1.1") && head.to_lowercase().contains("upgrade: websocket"));
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        writer.write_all(agreed.as_bytes()).await.unwrap();
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
    });
    port
}

/// All lines up to the empty one.
async fn head(reader: &mut (impl AsyncBufRead + Unpin)) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).await.unwrap(), 0, "{head}");
    }
    head
}

#[tokio::test]
async fn switched_protocols_go_through() {
    let s = server().await;
    behind(&s).await;
    let port = echo().await;
    let (client, connection) = tokio::io::duplex(1 << 16);
    let api = s.api.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let api = api.clone();
        async move {
            let request = request.map(|body| body.map_err(|e| Box::new(e) as _).boxed_unsync());
            let user = User::new("admin", &["system:masters"]);
            Ok::<_, Infallible>(api.handle(ApiServer::in_process_request(user, request)).await)
        }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(connection), service);
    env::spawn(serving.with_upgrades());
    let mut client = BufReader::new(client);
    let request = format!(
        "GET /api/v1/nodes/http:proxy:{port}/proxy/socket?a=b HTTP/1.1\r\nHost: api\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let answer = head(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.to_lowercase().contains("upgrade: websocket"), "{answer}");
    for word in ["there", "again"] {
        client.write_all(word.as_bytes()).await.unwrap();
        let mut back = [0; 5];
        client.read_exact(&mut back).await.unwrap();
        assert_eq!(back, word.as_bytes());
    }
}

#[tokio::test]
async fn names_elsewhere_are_not_proxied_to() {
    let s = server().await;
    let service = json!({
        "metadata": { "name": "away" }, "spec": { "type": "ExternalName", "externalName": "localhost" },
    });
    s.post("/api/v1/namespaces/default/services", service).await.expect(201);
    let refused = s.get("/api/v1/namespaces/default/services/away:6443/proxy/").await;
    refused.refused(503, "ServiceUnavailable", "no endpoints available for service \"away\"");
}

#[tokio::test]
async fn nodes_on_addresses_of_this_machine_are_not_proxied_to() {
    let s = server().await;
    let root = behind(&s).await;
    s.get(&format!("{root}/")).await.expect(200);
    for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "localhost"] {
        node_at(&s, address).await;
        s.get(&format!("{root}/")).await.refused(400, "BadRequest", "address not allowed");
        s.get("/api/v1/nodes/proxy/proxy/").await.refused(400, "BadRequest", "address not allowed");
    }
}

#[tokio::test]
async fn services_are_proxied_to_their_pods_and_nowhere_else() {
    let s = server().await;
    default_account(&s).await;
    let port = listening().await;
    let ports = json!([{ "port": 80, "targetPort": port }]);
    let service = json!({ "metadata": { "name": "web" }, "spec": { "ports": ports } });
    s.post("/api/v1/namespaces/default/services", service).await.expect(201);
    let container = json!({ "name": "c", "image": "i" });
    let pod = json!({ "metadata": { "name": "web-0" }, "spec": { "containers": [container], "nodeName": "n" } });
    s.post("/api/v1/namespaces/default/pods", pod).await.expect(201);
    let status = json!({ "status": { "podIP": OUTWARD, "podIPs": [{ "ip": OUTWARD }] } });
    s.patch("strategic-merge-patch", "/api/v1/namespaces/default/pods/web-0/status", status).await.expect(200);

    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    const PROXY: &str = "/api/v1/namespaces/default/services/web:80/proxy/";
    let check = async |family: &str, address: &str, target: Value, reached: bool| {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": { "name": "web", "labels": { "kubernetes.io/service-name": "web" } },
            "ports": [{ "port": port }], "endpoints": [{ "addresses": [address], "targetRef": target }],
        });
        s.post(SLICES, slice).await.expect(201);
        s.api.cluster.cache.wait_until_fresh().await.unwrap();
        let answer = s.get(PROXY).await;
        match reached {
            true => drop(answer.expect(200)),
            false => answer.refused(503, "ServiceUnavailable", "no endpoints available for service \"web\""),
        }
        s.delete(&format!("{SLICES}/web"), Value::Null).await.expect(200);
    };
    let pod = |name: &str, namespace: &str| json!({ "kind": "Pod", "name": name, "namespace": namespace });
    check("IPv4", OUTWARD, pod("web-0", "default"), true).await;
    check("IPv4", OUTWARD, Value::Null, false).await;
    check("IPv4", OUTWARD, pod("web-1", "default"), false).await;
    check("IPv4", OUTWARD, pod("web-0", "other"), false).await;
    check("IPv4", "192.0.2.8", pod("web-0", "default"), false).await;
    check("FQDN", "localhost.localdomain", pod("web-0", "default"), false).await;

    // A node that lies about its pod's address reaches no further.
    let forged = json!({ "status": { "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }] } });
    s.patch("merge-patch", "/api/v1/namespaces/default/pods/web-0/status", forged).await.expect(200);
    check("IPv4", OUTWARD, pod("web-0", "default"), false).await;
    let direct = format!("/api/v1/namespaces/default/pods/web-0:{port}/proxy/");
    s.get(&direct).await.refused(400, "BadRequest", "address not allowed");
    for address in ["127.0.0.1", "::ffff:127.0.0.1", "169.254.169.254"] {
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": { "name": "web", "labels": { "kubernetes.io/service-name": "web" } },
            "ports": [{ "port": port }], "endpoints": [{ "addresses": [address], "targetRef": pod("web-0", "default") }],
        });
        s.post(SLICES, slice).await.refused(422, "Invalid", "endpoints[0].addresses[0]");
    }
}
