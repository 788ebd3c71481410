//! Decoders against broken input: objects that are right are bent a little, many times, and nothing may panic.
//! Needs nothing outside the repository.
//! Every run is told by proptest's seed.

mod words;

use api::{
    codec::{self, ContentType, protobuf},
    schema,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn corpus() -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"},
            "creationTimestamp": "2024-05-06T07:08:09Z", "managedFields": [{"fieldsV1": {"f:spec": {}}}]},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
                "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3}}],
                "volumes": [{"name": "v", "secret": {"secretName": "s", "defaultMode": 420}}]}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "dmFsdWU="}, "type": "Opaque"}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 3,
            "selector": {"matchLabels": {"a": "b"}}, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
            "template": {"spec": {"containers": []}}}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
            "spec": {"renewTime": "2024-05-06T07:08:09.123456Z", "leaseDurationSeconds": 15}}),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "c"},
            "spec": {"group": "g", "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"a": {"items": {"type": "string"}, "maximum": 1.5, "default": [1, null]},
                    "b": {"additionalProperties": true}}}}}]}}),
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "status": {"user": {"extra": {"k": ["a", "b"]}}}}),
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}}),
    ]
}

/// Every decoder on `bytes`; what it accepts must survive being written again.
fn check(bytes: &[u8], value: &Value) -> Result<(), TestCaseError> {
    let schema = schema::builtin();
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let id =
        schema.find_kind(group, version, value["kind"].as_str().unwrap_or_default()).expect("a kind of the corpus");
    for content in [ContentType::Json, ContentType::Yaml, ContentType::Protobuf] {
        let _ = codec::decode(bytes, content, None);
        let Ok(decoded) = codec::decode(bytes, content, Some((schema, id))) else { continue };
        if !decoded.value.is_object() {
            continue;
        }
        let mut value = decoded.value;
        schema.apply_defaults(id, &mut value);
        schema.canonicalize(id, &mut value);
        let text = value.to_string();
        let again = codec::decode(text.as_bytes(), ContentType::Json, Some((schema, id)));
        let mut again = again.map_err(|e| TestCaseError::fail(format!("{e}: {text}")))?.value;
        schema.canonicalize(id, &mut again);
        prop_assert_eq!(&again, &value);
        let packed = protobuf::encode(schema, id, &value).map_err(|e| TestCaseError::fail(format!("{e}: {text}")))?;
        let unpacked = protobuf::decode(&protobuf::envelope("", "", &packed), Some((schema, id)));
        prop_assert!(unpacked.is_ok(), "{:?}: {}", unpacked, text);
    }
    Ok(())
}

#[derive(Debug, Clone)]
enum Bend {
    Flip(usize, u8),
    Cut(usize),
    Remove(usize, usize),
    Insert(usize, &'static str),
    Repeat(usize, usize),
}

fn bends() -> impl Strategy<Value = Vec<Bend>> {
    let words = prop::sample::select(words::WORDS);
    let bend = prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, with)| Bend::Flip(at, with)),
        any::<usize>().prop_map(Bend::Cut),
        (any::<usize>(), 1..20usize).prop_map(|(at, n)| Bend::Remove(at, n)),
        (any::<usize>(), words).prop_map(|(at, word)| Bend::Insert(at, word)),
        (any::<usize>(), 1..60usize).prop_map(|(at, n)| Bend::Repeat(at, n)),
    ];
    prop::collection::vec(bend, 1..5)
}

fn bend(bytes: &mut Vec<u8>, how: &Bend) {
    if bytes.is_empty() {
        return;
    }
    let length = bytes.len();
    match how {
        Bend::Flip(at, with) => bytes[at % length] ^= with,
        Bend::Cut(at) => bytes.truncate(at % length),
        Bend::Remove(at, n) => drop(bytes.drain(at % length..(at % length + n).min(length))),
        Bend::Insert(at, word) => drop(bytes.splice(at % length..at % length, word.bytes())),
        Bend::Repeat(at, n) => {
            let piece = bytes[at % length..(at % length + n).min(length)].to_vec();
            bytes.splice(at % length..at % length, piece);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bent_objects(which in 0..7usize, form in 0..3usize, how in bends()) {
        let value = &corpus()[which];
        let content = [ContentType::Json, ContentType::Yaml, ContentType::Protobuf][form];
        let mut bytes = codec::encode(value, content).expect("the corpus encodes");
        for one in &how {
            bend(&mut bytes, one);
        }
        check(&bytes, value)?;
    }

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes, &corpus()[0])?;
        let mut with_magic = protobuf::MAGIC.to_vec();
        with_magic.extend(&bytes);
        check(&with_magic, &corpus()[0])?;
        check(&protobuf::envelope("v1", "Pod", &bytes), &corpus()[0])?;
        let _ = protobuf::read_watch_frame(&bytes);
    }
}

#[test]
fn the_corpus_itself() {
    for value in corpus() {
        for content in [ContentType::Json, ContentType::Yaml, ContentType::Protobuf] {
            let bytes = codec::encode(&value, content).expect("it encodes");
            check(&bytes, &value).expect("it is right");
        }
    }
}
