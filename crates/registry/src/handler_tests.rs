//! Requests to a registry on a loopback port, as clients make them.

use std::{path::Path, time::Duration};

use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::Registry;

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

struct Server {
    base: String,
    registry: Registry,
    stop: CancellationToken,
    _directory: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Storage)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut registry = Registry::open(directory.path(), Env::real()).unwrap();
        change(Arc::get_mut(&mut registry.storage).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (served, stop) = (registry.clone(), CancellationToken::new());
        let until = stop.clone();
        env::spawn(async move { served.serve_loopback(listener, until).await });
        Self { base, registry, stop, _directory: directory }
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, HeaderMap, Vec<u8>) {
        let uri = if path.starts_with("http") { path.to_string() } else { format!("{}{path}", self.base) };
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let answer = client.request(request).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        (status, headers, answer.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    async fn push_blob(&self, name: &str, content: &[u8]) -> Digest {
        let digest = Digest::of_bytes(content);
        let path = format!("/v2/{name}/blobs/uploads/?digest={digest}");
        assert_eq!(self.ask("POST", &path, &[], content).await.0, 201);
        digest
    }

    async fn push_image(&self, name: &str, tag: &str, layer: &[u8]) -> Digest {
        let (layer_digest, config) = (self.push_blob(name, layer).await, self.push_blob(name, b"{}").await);
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST_TYPE,
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config.to_string(), "size": 2 },
            "layers": [{ "mediaType": "x", "digest": layer_digest.to_string(), "size": layer.len() }] });
        let bytes = manifest.to_string().into_bytes();
        let path = format!("/v2/{name}/manifests/{tag}");
        let (status, headers, _) = self.ask("PUT", &path, &[("content-type", MANIFEST_TYPE)], &bytes).await;
        assert_eq!((status, &headers[DIGEST_HEADER]), (201, &Digest::of_bytes(&bytes).to_string().parse().unwrap()));
        Digest::of_bytes(&bytes)
    }
}

fn code(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap();
    value["errors"][0]["code"].as_str().unwrap().to_string()
}

/// The cluster's store may be on the same disk, and writes nothing once that is full.
#[tokio::test]
async fn a_push_does_not_fill_the_disk() {
    let server = Server::start_with(|storage| storage.is_full = |_| Ok(true)).await;
    let digest = Digest::of_bytes(b"layer");
    let path = format!("/v2/a/blobs/uploads/?digest={digest}");
    assert_eq!(server.ask("POST", &path, &[], b"layer").await.0, 507);
    let (status, headers, _) = server.ask("POST", "/v2/a/blobs/uploads/", &[], b"").await;
    assert_eq!(status, 202);
    assert_eq!(server.ask("PATCH", headers["location"].to_str().unwrap(), &[], b"layer").await.0, 507);
    assert_eq!(std::fs::read_dir(server.registry.storage.uploads()).unwrap().count(), 0, "nothing of it stays");
}

#[tokio::test]
async fn uploads_that_nobody_ends_are_limited() {
    let server = Server::start().await;
    let uploads = server.registry.storage.uploads();
    (0..1023).for_each(|number| std::fs::write(uploads.join(format!("u{number}")), "").unwrap());
    assert_eq!(server.ask("POST", "/v2/a/blobs/uploads/", &[], b"").await.0, 202);
    assert_eq!(server.ask("POST", "/v2/a/blobs/uploads/", &[], b"").await.0, 507);
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    std::fs::File::open(uploads.join("u0")).unwrap().set_modified(long_ago).unwrap();
    assert_eq!(server.ask("POST", "/v2/a/blobs/uploads/", &[], b"").await.0, 202, "an old one makes room");
}

#[tokio::test]
async fn blobs_come_back_as_they_were_pushed() {
    let server = Server::start().await;
    let (content, digest) = (b"0123456789".to_vec(), Digest::of_bytes(b"0123456789"));
    let (status, headers, _) = server.ask("POST", "/v2/a/b/blobs/uploads/", &[], b"").await;
    let place = headers["location"].to_str().unwrap().to_string();
    assert_eq!(status, 202);
    let chunk = |range: &'static str| [("content-range", range), ("content-type", "application/octet-stream")];
    assert_eq!(server.ask("PATCH", &place, &chunk("0-3"), &content[..4]).await.0, 202);
    assert_eq!(server.ask("PATCH", &place, &chunk("7-8"), &content[7..9]).await.0, 416, "out of order");
    let (status, headers, _) = server.ask("GET", &place, &[], b"").await;
    assert_eq!((status, headers["range"].to_str().unwrap()), (204, "0-3"));
    assert_eq!(server.ask("PUT", &format!("{place}?digest={digest}"), &[], &content[4..]).await.0, 201);
    let blob = format!("/v2/a/b/blobs/{digest}");
    assert_eq!(server.ask("GET", &blob, &[], b"").await.2, content);
    let (status, headers, body) = server.ask("HEAD", &blob, &[], b"").await;
    assert_eq!((status, headers["content-length"].to_str().unwrap(), body.len()), (200, "10", 0));
    let range = async |text: &str| {
        let (status, _, body) = server.ask("GET", &blob, &[("range", text)], b"").await;
        (status, String::from_utf8(body).unwrap())
    };
    assert_eq!(range("bytes=2-4").await, (206, "234".into()));
    assert_eq!(range("bytes=-3").await, (206, "789".into()));
    assert_eq!(range("bytes=8-100").await, (206, "89".into()));
    assert_eq!(range("bytes=10-").await.0, 416);

    let wrong = format!("/v2/a/b/blobs/uploads/?digest={}", Digest::of_bytes(b"other"));
    let (status, _, body) = server.ask("POST", &wrong, &[], b"this").await;
    assert_eq!((status, code(&body).as_str()), (400, "DIGEST_INVALID"));
    let absent = format!("/v2/a/b/blobs/{}", Digest::of_bytes(b"this"));
    assert_eq!(server.ask("GET", &absent, &[], b"").await.0, 404, "under neither name");
    let mount = format!("/v2/other/blobs/uploads/?mount={digest}&from=a%2Fb");
    assert_eq!(server.ask("POST", &mount, &[], b"").await.0, 201);
    server.stop.cancel();
}

#[tokio::test]
async fn one_request_at_a_time_writes_to_an_upload() {
    let server = Server::start().await;
    let (_, headers, _) = server.ask("POST", "/v2/a/blobs/uploads/", &[], b"").await;
    let place = headers["location"].to_str().unwrap().to_string();
    let turn = server.registry.storage.take_upload(place.rsplit('/').next().unwrap()).unwrap();
    for method in ["PATCH", "PUT", "DELETE"] {
        let (status, _, body) = server.ask(method, &place, &[], b"x").await;
        assert_eq!((status, code(&body).as_str()), (400, "BLOB_UPLOAD_INVALID"), "{method}");
    }
    drop(turn);
    let digest = Digest::of_bytes(b"x");
    assert_eq!(server.ask("PUT", &format!("{place}?digest={digest}"), &[], b"x").await.0, 201);
    server.stop.cancel();
}

#[tokio::test]
async fn manifests_have_tags_and_all_that_they_name() {
    let server = Server::start().await;
    let digest = server.push_image("team/app", "v1", b"layer").await;
    for reference in ["v1".to_string(), digest.to_string()] {
        let (status, headers, body) = server.ask("GET", &format!("/v2/team/app/manifests/{reference}"), &[], b"").await;
        assert_eq!((status, headers["content-type"].to_str().unwrap()), (200, MANIFEST_TYPE));
        assert_eq!(Digest::of_bytes(&body), digest);
    }
    server.push_image("team/app", "v2", b"layer two").await;
    let (_, headers, body) = server.ask("GET", "/v2/team/app/tags/list?n=1", &[], b"").await;
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({ "name": "team/app", "tags": ["v1"] }));
    assert_eq!(headers["link"], "</v2/team/app/tags/list?n=1&last=v1>; rel=\"next\"");
    let (_, _, body) = server.ask("GET", "/v2/_catalog", &[], b"").await;
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({ "repositories": ["team/app"] }));

    let refused = async |manifest: &str, media_type: &str| {
        let headers = [("content-type", media_type)];
        code(&server.ask("PUT", "/v2/team/app/manifests/bad", &headers, manifest.as_bytes()).await.2)
    };
    let missing = json!({ "config": { "digest": Digest::of_bytes(b"nowhere").to_string() } }).to_string();
    assert_eq!(refused(&missing, MANIFEST_TYPE).await, "MANIFEST_BLOB_UNKNOWN");
    assert_eq!(refused("{", MANIFEST_TYPE).await, "MANIFEST_INVALID");
    assert_eq!(refused("{}", MANIFEST_TYPE).await, "MANIFEST_INVALID");
    assert_eq!(refused(r#"{"mediaType":"a","config":{}}"#, MANIFEST_TYPE).await, "MANIFEST_INVALID");
    assert_eq!(server.ask("GET", "/v2/team/app/manifests/bad", &[], b"").await.0, 404);
    let large = "x".repeat(MANIFEST_BYTES_MAX + 1);
    assert_eq!(refused(&large, MANIFEST_TYPE).await, "MANIFEST_INVALID");

    let signature = json!({ "mediaType": MANIFEST_TYPE, "artifactType": "sig", "config": { "digest": Digest::of_bytes(b"{}").to_string() },
        "subject": { "digest": digest.to_string() } }).to_string();
    let path = format!("/v2/team/app/manifests/{}", Digest::of_bytes(signature.as_bytes()));
    let (status, headers, _) = server.ask("PUT", &path, &[("content-type", MANIFEST_TYPE)], signature.as_bytes()).await;
    assert_eq!((status, headers["oci-subject"].to_str().unwrap()), (201, digest.to_string().as_str()));
    let (_, _, body) = server.ask("GET", &format!("/v2/team/app/referrers/{digest}?artifactType=sig"), &[], b"").await;
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["manifests"].as_array().unwrap().len(), 1);
    server.stop.cancel();
}

#[tokio::test]
async fn what_is_deleted_frees_its_blobs_once_they_are_old() {
    let server = Server::start().await;
    let (kept, gone) = (server.push_image("a", "1", b"shared").await, server.push_image("a", "2", b"alone").await);
    assert_eq!(server.ask("DELETE", &format!("/v2/a/manifests/{gone}"), &[], b"").await.0, 202);
    assert_eq!(server.ask("GET", "/v2/a/manifests/2", &[], b"").await.0, 404, "its tags go with it");
    let blob = format!("/v2/a/blobs/{}", Digest::of_bytes(b"alone"));
    assert_eq!(server.ask("GET", &blob, &[], b"").await.0, 200, "perhaps a push is under way");
    let storage = &server.registry.storage;
    for entry in std::fs::read_dir(storage.blobs()).unwrap().flatten() {
        let old = std::time::UNIX_EPOCH + Duration::from_secs(1);
        std::fs::File::options().write(true).open(entry.path()).unwrap().set_modified(old).unwrap();
    }
    assert_eq!(storage.collect_garbage(BLOB_AGE_MIN, &Env::real()).unwrap(), 2);
    assert_eq!(server.ask("GET", &blob, &[], b"").await.0, 404);
    assert_eq!(server.ask("GET", &format!("/v2/a/manifests/{kept}"), &[], b"").await.0, 200);
    assert_eq!(server.ask("DELETE", "/v2/a/manifests/1", &[], b"").await.0, 202);
    assert_eq!(server.ask("GET", &format!("/v2/a/manifests/{kept}"), &[], b"").await.0, 200, "a tag alone");
    server.stop.cancel();
}

#[tokio::test]
async fn names_that_are_not_of_this_machine_are_refused() {
    let server = Server::start().await;
    let asked = async |host: &str| server.ask("GET", "/v2/", &[("host", host)], b"").await.0;
    assert_eq!((asked("localhost:5000").await, asked("127.0.0.1").await, asked("[::1]:5000").await), (200, 200, 200));
    assert_eq!((asked("evil.example:5000").await, asked("192.0.2.1").await), (403, 403));
    assert_eq!(server.ask("GET", "/other", &[], b"").await.0, 404);
    let of_a_page = [("origin", "https://evil.example")];
    assert_eq!(server.ask("POST", "/v2/a/blobs/uploads/", &of_a_page, b"").await.0, 403);
    server.stop.cancel();
}

#[tokio::test]
async fn uploads_that_nobody_went_on_with_are_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::open(directory.path(), Env::real()).unwrap();
    let (young, old) = (registry.storage.start_upload(&Env::real()), registry.storage.start_upload(&Env::real()));
    let path = |id: &str| -> std::path::PathBuf { Path::new(directory.path()).join("uploads").join(id) };
    let (young, old) = (path(&young.unwrap()), path(&old.unwrap()));
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    Registry::open(directory.path(), Env::real()).unwrap();
    assert!(young.exists() && !old.exists());
}
