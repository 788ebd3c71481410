//! The forms of answers and bodies: Accept, Content-Type, `pretty` and gzip, with upstream's words where they fail.
//! An answer nobody accepts has no effects.

use std::io::Read;

use api::codec;
use serde_json::{Value, json};

use crate::harness::*;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ALL: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const STREAMS: &str = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

fn content_type(answer: &Answer) -> &str {
    answer.headers["content-type"].to_str().unwrap()
}

#[tokio::test]
async fn what_is_not_accepted_is_refused_in_upstreams_words() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    let one = format!("{MAPS}/a");
    let watch = format!("{MAPS}?watch=1");
    // No route answers with a type that upstream does not have; what has one is refused by its handler.
    let no_route = |types: &str| format!("406: Not Acceptable\n\nAvailable representations: {types}");
    let lists = no_route(&format!("{ALL}, {STREAMS}"));
    let refusal = format!("only the following media types are accepted: {ALL}");
    for (path, accept, message) in [
        (MAPS, "text/html", &lists),
        (&one, "application/cbor", &no_route(ALL)),
        (&one, "application/json;as=Sausage;g=meta.k8s.io;v=v1", &refusal),
        (&one, "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1", &refusal),
        (&watch, "text/html", &lists),
        (&watch, "application/json;stream=other", &refusal),
    ] {
        let refused = s.send("GET", path, &[("accept", accept)], Vec::new()).await;
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": "NotAcceptable", "code": 406,
        });
        if message.starts_with("406") {
            status["details"] = json!({});
        }
        assert_eq!(
            (refused.code, content_type(&refused), &refused.value),
            (406, "application/json", &status),
            "{accept}"
        );
    }
    // YAML has no stream, and only the first form that an object has is looked at. The refusal has one.
    for accept in ["application/yaml", "application/yaml, application/json;q=0.5"] {
        let refused = s.send("GET", &watch, &[("accept", accept)], Vec::new()).await;
        let words = format!("only the following media types are accepted: {STREAMS}");
        assert_eq!((refused.code, content_type(&refused)), (406, "application/yaml"), "{accept}");
        let status = codec::decode(&refused.bytes, codec::ContentType::Yaml, None).unwrap().value;
        assert_eq!(status["message"], words);
    }
    // Nothing is made of what could not be shown.
    let made = s.send("POST", MAPS, &[("accept", "text/html")], config_map("b").to_string().into_bytes()).await;
    assert_eq!((made.code, s.get(&format!("{MAPS}/b")).await.code), (406, 404));
    // A failure is told all the same.
    let missing = s.send("GET", &format!("{MAPS}/none"), &[("accept", "application/yaml")], Vec::new()).await;
    assert_eq!((missing.code, content_type(&missing)), (404, "application/yaml"));

    let unknown = format!("the body of the request was in an unknown format - accepted media types include: {ALL}");
    for (method, content, message) in [
        ("POST", "text/plain", unknown.as_str()),
        ("POST", "application/json, text/plain", &unknown),
        ("PATCH", "application/json", "415: Unsupported Media Type"),
        ("PATCH", "", "415: Unsupported Media Type"),
    ] {
        let path = if method == "POST" { MAPS } else { &one };
        let headers = [("content-type", content)];
        let headers = if content.is_empty() { &[][..] } else { &headers[..] };
        let refused = s.send(method, path, headers, config_map("c").to_string().into_bytes()).await;
        refused.refused(415, "UnsupportedMediaType", message);
    }
}

#[tokio::test]
async fn custom_resources_have_no_protobuf_but_their_metadata_does() {
    let s = server().await;
    let path = &*widgets(&s).await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    let refused = s.send("GET", path, &[("accept", protobuf)], Vec::new()).await;
    // A Status has a protobuf form, so that is what says so.
    assert_eq!((refused.code, content_type(&refused)), (406, protobuf));
    let words = format!("only the following media types are accepted: {ALL}");
    assert!(String::from_utf8_lossy(&refused.bytes).contains(&words));
    let accept = format!("{protobuf},application/json");
    for path in [path.to_string(), format!("{path}/w")] {
        let second = s.send("GET", &path, &[("accept", &accept)], Vec::new()).await;
        assert_eq!((second.code, content_type(&second)), (200, "application/json"), "{path}");
    }
    let accept = format!("{protobuf};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let partial = s.send("GET", path, &[("accept", &accept)], Vec::new()).await;
    assert_eq!((partial.code, content_type(&partial)), (200, protobuf));
    assert!(partial.bytes.starts_with(b"k8s\0"));
    let strategic = s.patch("strategic-merge-patch", &format!("{path}/w"), json!({})).await;
    strategic.refused(415, "UnsupportedMediaType", "merge-patch+json, application/apply-patch+yaml");
}

#[tokio::test]
async fn people_get_it_laid_out() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    for (query, agent, accept, pretty) in [
        ("", "client", "application/json", false),
        ("", "curl/8.0", "application/json", true),
        ("", "Wget/1.2", "", true),
        ("", "Mozilla/5.0 (X11)", "", true),
        ("?pretty=false", "curl/8.0", "", false),
        ("?pretty=0", "curl/8.0", "", false),
        ("?pretty=true", "client", "", true),
        ("?pretty=1", "client", "", true),
        ("?pretty=nonsense", "curl/8.0", "", false),
        ("?pretty=", "curl/8.0", "", true),
        ("", "client", "application/json;pretty=1", true),
    ] {
        for path in [format!("{MAPS}/a{query}"), format!("{MAPS}{query}"), format!("{MAPS}/none{query}")] {
            let mut headers = vec![("user-agent", agent)];
            if !accept.is_empty() {
                headers.push(("accept", accept));
            }
            let answer = s.send("GET", &path, &headers, Vec::new()).await;
            let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
            assert_eq!(text.starts_with("{\n  \""), pretty, "{agent} {path}: {text}");
            assert!(!pretty || !text.ends_with('\n'), "{agent} {path}");
        }
    }
    // Documents for people are laid out for everybody.
    for path in ["/version", "/"] {
        assert!(s.get(path).await.bytes.starts_with(b"{\n  \""), "{path}");
    }
}

#[tokio::test]
async fn tables_and_metadata_come_in_the_version_asked_for() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    for version in ["v1", "v1beta1"] {
        let api_version = format!("meta.k8s.io/{version}");
        for (kind, path) in [("Table", MAPS.to_string()), ("PartialObjectMetadata", format!("{MAPS}/a"))] {
            let accept = format!("application/json;as={kind};g=meta.k8s.io;v={version}");
            let found = s.send("GET", &path, &[("accept", &accept)], Vec::new()).await.expect(200);
            assert_eq!((&found["kind"], &found["apiVersion"]), (&json!(kind), &json!(api_version)));
            if kind == "Table" {
                let row = found["rows"].as_array().unwrap().iter().find(|r| r["cells"][0] == "a").unwrap();
                assert_eq!(row["object"]["apiVersion"], api_version);
            }
        }
    }
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_ask() {
    let s = server().await;
    // No chance of a small object growing by accident: one clearly below the threshold, one clearly above.
    for (name, size) in [("small", 64 << 10), ("large", 160 << 10)] {
        let mut map = config_map(name);
        map["data"]["k"] = "x".repeat(size).into();
        s.post(MAPS, map).await.expect(201);
    }
    for (path, accepts, compressed) in [
        (format!("{MAPS}/small"), "gzip", false),
        (format!("{MAPS}/large"), "gzip", true),
        (format!("{MAPS}/large"), "deflate, gzip", true),
        (format!("{MAPS}/large"), "", false),
        (format!("{MAPS}/large"), "identity", false),
        (MAPS.to_string(), "gzip", true),
    ] {
        let headers = [("accept-encoding", accepts)];
        let headers = if accepts.is_empty() { &[][..] } else { &headers[..] };
        let answer = s.send("GET", &path, headers, Vec::new()).await;
        let encoding = answer.headers.get("content-encoding").map(|v| v.to_str().unwrap());
        assert_eq!(encoding, compressed.then_some("gzip"), "{path} {accepts}");
        let varies = answer.headers.get("vary").map(|v| v.to_str().unwrap());
        assert_eq!(varies, compressed.then_some("Accept-Encoding"));
        let mut text = Vec::new();
        match compressed {
            true => drop(flate2::read::GzDecoder::new(&answer.bytes[..]).read_to_end(&mut text).unwrap()),
            false => text = answer.bytes.to_vec(),
        }
        let value: Value = serde_json::from_slice(&text).unwrap();
        assert!(value["data"]["k"].is_string() || value["items"].is_array(), "{path}");
    }
    let mut map = config_map("new");
    map["data"]["k"] = "x".repeat(160 << 10).into();
    let headers = [("content-type", "application/json"), ("accept-encoding", "gzip")];
    let made = s.send("POST", MAPS, &headers, map.to_string().into_bytes()).await;
    assert_eq!((made.code, made.headers["content-encoding"].to_str().unwrap()), (201, "gzip"));
}
