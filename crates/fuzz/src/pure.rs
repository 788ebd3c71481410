//! Targets that need no server: codecs, patches, apply, selectors, quantities, expressions, files of the administrator.

use std::collections::BTreeMap;

use api::{
    codec::{self, ContentType, protobuf as wire},
    managed_fields, patch,
    quantity::Quantity,
    schema::{self, Schema, TypeId},
    selectors::{FieldSelector, LabelSelector},
};
use apiserver::{
    authn::{Credentials, PasswordFile, TokenFile, User},
    authz::{Abac, Attributes, Authorizer},
    cel,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::FutureExt;
use serde_json::{Value, json};

fn kind(group: &str, version: &str, kind: &str) -> (&'static Schema, TypeId) {
    let schema = schema::builtin();
    (schema, schema.find_kind(group, version, kind).unwrap())
}

/// The type that the text says it is, or else one with everything in it.
fn type_of(value: &Value) -> (&'static Schema, TypeId) {
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let schema = schema::builtin();
    let found = schema.find_kind(group, version, value["kind"].as_str().unwrap_or_default());
    found.map_or_else(|| kind("", "v1", "Pod"), |id| (schema, id))
}

/// What is accepted is written and read again without a difference.
fn decodes(bytes: &[u8], content: ContentType) {
    let Ok(loose) = codec::decode(bytes, content, None) else { return };
    let (schema, id) = type_of(&loose.value);
    let Ok(decoded) = codec::decode(bytes, content, Some((schema, id))) else { return };
    if !decoded.value.is_object() {
        return;
    }
    let mut value = decoded.value;
    schema.apply_defaults(id, &mut value);
    schema.canonicalize(id, &mut value);
    let text = value.to_string();
    let mut again = codec::decode(text.as_bytes(), ContentType::Json, Some((schema, id))).unwrap().value;
    schema.canonicalize(id, &mut again);
    assert_eq!(again, value);
    let packed = wire::encode(schema, id, &value).unwrap();
    wire::decode(&wire::envelope("", "", &packed), Some((schema, id))).unwrap();
}

pub fn json(bytes: &[u8]) {
    decodes(bytes, ContentType::Json);
}

pub fn yaml(bytes: &[u8]) {
    decodes(bytes, ContentType::Yaml);
    // JSON is YAML: whoever reads it must find the same. The comment keeps the JSON reader from being asked.
    let commented = [b"#\n", bytes].concat();
    if let (Ok(a), Ok(b)) =
        (codec::decode(bytes, ContentType::Json, None), codec::decode(&commented, ContentType::Yaml, None))
        && a.problems.is_empty()
        && !has_fraction(&a.value)
    {
        assert_eq!(a.value, b.value);
    }
}

/// Numbers that YAML readers turn into whole ones where they can.
fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(has_fraction),
        Value::Object(map) => map.values().any(has_fraction),
        _ => false,
    }
}

/// The corpus is JSON, for people's sake: it is packed first, and the last bytes say what to damage.
pub fn protobuf(bytes: &[u8]) {
    decodes(bytes, ContentType::Protobuf);
    let _ = wire::read_watch_frame(bytes);
    let Ok(decoded) = codec::decode(bytes, ContentType::Json, None) else { return };
    let Ok(mut packed) = codec::encode(&decoded.value, ContentType::Protobuf) else { return };
    decodes(&packed, ContentType::Protobuf);
    for (at, byte) in bytes.iter().enumerate().take(64) {
        let place = (at * 31 + usize::from(*byte)) % packed.len();
        packed[place] = packed[place].wrapping_add(*byte);
        decodes(&packed, ContentType::Protobuf);
    }
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "d", "namespace": "n", "labels": { "a": "b" }, "finalizers": ["x/a", "x/b"] },
        "spec": {
            "replicas": 2, "selector": { "matchLabels": { "a": "b" } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1 } },
            "template": {
                "metadata": { "labels": { "a": "b" } },
                "spec": {
                    "containers": [
                        { "name": "c", "image": "i", "ports": [{ "containerPort": 80, "protocol": "TCP" }],
                          "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }] },
                        { "name": "e", "image": "j" },
                    ],
                    "volumes": [{ "name": "v", "emptyDir": {} }],
                },
            },
        },
    })
}

pub fn json_patch(bytes: &[u8]) {
    let _ = patch::json_patch(&deployment(), bytes);
}

pub fn merge_patch(bytes: &[u8]) {
    let Ok(asked) = serde_json::from_slice::<Value>(bytes) else { return };
    if let Ok(once) = patch::merge_patch(&deployment(), &asked) {
        assert_eq!(patch::merge_patch(&once, &asked).unwrap(), once, "a second time changes nothing");
    }
}

pub fn strategic_merge_patch(bytes: &[u8]) {
    let Ok(asked) = serde_json::from_slice::<Value>(bytes) else { return };
    let (schema, id) = kind("apps", "v1", "Deployment");
    let _ = patch::strategic(schema, id, &deployment(), &asked);
}

/// Applying the same again changes nothing; another manager who applies the same has no conflict.
pub fn apply(bytes: &[u8]) {
    let Ok(config) = codec::decode(bytes, ContentType::Yaml, None) else { return };
    let (schema, id) = kind("apps", "v1", "Deployment");
    let options = |manager: &'static str| managed_fields::Options {
        manager,
        force: false,
        subresource: "",
        api_version: "apps/v1",
        now: jiff::Timestamp::UNIX_EPOCH,
        reset: None,
    };
    let mut live = deployment();
    managed_fields::track_update(schema, id, None, &mut live, "maker", "apps/v1", "", jiff::Timestamp::UNIX_EPOCH);
    let _ = managed_fields::apply(schema, id, Some(&live), &config.value, options("other"));
    let Ok(made) = managed_fields::apply(schema, id, None, &config.value, options("one")) else { return };
    let again = managed_fields::apply(schema, id, Some(&made), &config.value, options("one")).unwrap();
    assert_eq!(again, made);
    managed_fields::apply(schema, id, Some(&made), &config.value, options("two")).unwrap();
}

pub fn managed_fields(bytes: &[u8]) {
    let Ok(fields) = serde_json::from_slice::<Value>(bytes) else { return };
    let _ = managed_fields::validate(Some(&fields));
    if let Ok(set) = managed_fields::Set::parse(&fields) {
        assert_eq!(managed_fields::Set::parse(&set.encode()).unwrap(), set);
    }
}

pub fn label_selector(bytes: &[u8]) {
    let labels = BTreeMap::from([("app".to_string(), "web".to_string())]);
    if let Ok(selector) = LabelSelector::parse(&String::from_utf8_lossy(bytes)) {
        selector.matches(&labels);
    }
    if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
        let _ = LabelSelector::from_value(&value);
    }
}

pub fn field_selector(bytes: &[u8]) {
    if let Ok(selector) = FieldSelector::parse(&String::from_utf8_lossy(bytes)) {
        selector.matches(|_| "x");
    }
}

pub fn quantity(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(quantity) = Quantity::parse(&text) {
        let canonical = quantity.canonical();
        assert_eq!(Quantity::parse(&canonical).unwrap().canonical(), canonical, "{text}");
    }
}

pub fn cel(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(program) = cel::Expression::compile(&text) else { return };
    let mut variables = cel::Variables::default();
    variables.set("self", &deployment());
    variables.set("oldSelf", &Value::Null);
    let _ = program.evaluate(&variables);
}

/// The line an error names is one of the file.
fn names_a_line(text: &str, line: usize) {
    assert!((1..=text.lines().count()).contains(&line), "line {line} of {text:?}");
}

pub fn policy_file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let abac = match Abac::parse(&text) {
        Ok(abac) => abac,
        Err((line, _)) => return names_a_line(&text, line),
    };
    let user = User::new("alice", &["readers"]);
    let mut attributes =
        Attributes { user: user.clone(), verb: "get".into(), path: "/x".into(), ..Attributes::default() };
    abac.authorize(&attributes).now_or_never().unwrap();
    attributes.is_resource = true;
    abac.authorize(&attributes).now_or_never().unwrap();
    abac.rules(&user, "default").now_or_never().unwrap();
}

/// No error tells a secret.
pub fn token_file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match (TokenFile::parse(&text), PasswordFile::parse(&text)) {
        (Ok(_), Ok(passwords)) => {
            let basic = format!("Basic {}", BASE64_STANDARD.encode("alice:secret"));
            let headers = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, basic.parse().unwrap())]);
            let extensions = http::Extensions::default();
            let _ = passwords.user(&Credentials { path: "/", headers: &headers, extensions: &extensions });
        }
        (Err((line, why)), Err(_)) => {
            names_a_line(&text, line);
            assert!(!why.contains("secret"), "{why}");
        }
        _ => panic!("a token file and a password file are written alike"),
    }
}
