//! Input that is nested far too deeply, through every parser that a request reaches: each is refused, and the server goes
//! on. What is stored can always be read again.

use serde_json::{Value, json};

use crate::harness::{Answer, Server, server};

const DEEP: usize = 100_000;
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BAGS: &str = "/apis/example.com/v1/namespaces/default/bags";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn bags(extra: Value) -> Value {
    let mut schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    schema["properties"] = json!({ "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    for (key, value) in extra.as_object().into_iter().flatten() {
        schema[key] = value.clone();
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "bags.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "bags", "kind": "Bag" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

/// A server on which anything can be put into a Bag.
async fn with_bags() -> Server {
    let s = server().await;
    s.post(CRDS, bags(Value::Null)).await.expect(201);
    let served = async {
        while s.get(BAGS).await.code != 200 {
            env::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    env::timeout(std::time::Duration::from_secs(60), served).await.expect("bags are served");
    s
}

fn nested(levels: usize) -> String {
    format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels))
}

fn bag(name: &str, spec: &str) -> Vec<u8> {
    format!(r#"{{"apiVersion":"example.com/v1","kind":"Bag","metadata":{{"name":"{name}"}},"spec":{spec}}}"#)
        .into_bytes()
}

fn refused(what: &str, answer: Answer) {
    let message: String = answer.value["message"].as_str().unwrap_or_default().chars().take(300).collect();
    assert!(matches!(answer.code, 400 | 413 | 414 | 415 | 422), "{what}: {} {message}", answer.code);
}

#[tokio::test]
async fn deep_bodies_are_refused() {
    let s = with_bags().await;
    let send = async |what: &str, method: &str, path: &str, media: &str, body: Vec<u8>| {
        refused(what, s.send(method, path, &[("content-type", media)], body).await);
    };
    s.send("POST", BAGS, &[("content-type", "application/json")], bag("a", "{}")).await.expect(201);
    let one = format!("{BAGS}/a");
    for (what, deep) in [
        ("maps", nested(DEEP)),
        ("lists", format!("{}{}", "[".repeat(DEEP), "]".repeat(DEEP))),
        ("open lists", "[".repeat(DEEP)),
    ] {
        for media in ["application/json", "application/yaml"] {
            send(&format!("{what} as {media}"), "POST", BAGS, media, bag("b", &deep)).await;
            send(&format!("bare {what} as {media}"), "POST", BAGS, media, deep.clone().into_bytes()).await;
            send(&format!("{what} in a ConfigMap as {media}"), "POST", MAPS, media, deep.clone().into_bytes()).await;
        }
        let patch = format!(r#"{{"spec":{deep}}}"#).into_bytes();
        send(&format!("merge patch of {what}"), "PATCH", &one, "application/merge-patch+json", patch.clone()).await;
        let strategic = "application/strategic-merge-patch+json";
        s.post(MAPS, json!({ "metadata": { "name": "m" } })).await;
        send(&format!("strategic patch of {what}"), "PATCH", &format!("{MAPS}/m"), strategic, patch).await;
        let apply = format!("{one}?fieldManager=me");
        send(&format!("apply of {what}"), "PATCH", &apply, "application/apply-patch+yaml", bag("a", &deep)).await;
        let add = format!(r#"[{{"op":"add","path":"/spec/x","value":{deep}}}]"#).into_bytes();
        send(&format!("JSON patch of {what}"), "PATCH", &one, "application/json-patch+json", add).await;
    }
    let blocks: String = (0..2_000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    send("YAML blocks", "POST", MAPS, "application/yaml", blocks.into_bytes()).await;
    send("YAML lists", "POST", MAPS, "application/yaml", "- ".repeat(DEEP).into_bytes()).await;
    send("YAML keys", "POST", MAPS, "application/yaml", "? ".repeat(DEEP).into_bytes()).await;
    send("protobuf", "POST", CRDS, "application/vnd.kubernetes.protobuf", nested_definition(DEEP)).await;
    s.get(&one).await.expect(200);
}

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(&mut out, bytes.len());
    out.extend_from_slice(bytes);
    out
}

fn varint(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn varint_bytes(number: usize) -> usize {
    (usize::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// A CustomResourceDefinition in protobuf whose schema has properties within properties.
fn nested_definition(levels: usize) -> Vec<u8> {
    // Written from the outside in, because that takes linear time: first the lengths of a schema and of its entry.
    let mut lengths = vec![(0, 0)];
    for _ in 0..levels {
        let inner = lengths[lengths.len() - 1].0;
        let entry = 4 + varint_bytes(inner) + inner;
        lengths.push((2 + varint_bytes(entry) + entry, entry));
    }
    let mut schema = Vec::new();
    for pair in lengths.windows(2).rev() {
        // An entry of `properties` (29): the key `a` and the schema of it.
        schema.extend([0xea, 0x01]);
        varint(&mut schema, pair[1].1);
        schema.extend([0x0a, 0x01, b'a', 0x12]);
        varint(&mut schema, pair[0].0);
    }
    let validation = field(1, &schema);
    let version = [field(1, b"v1"), field(4, &validation)].concat();
    let spec = [field(1, b"example.org"), field(7, &version)].concat();
    let definition = [field(1, &field(1, b"deep.example.org")), field(2, &spec)].concat();
    let type_meta = [field(1, b"apiextensions.k8s.io/v1"), field(2, b"CustomResourceDefinition")].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &definition)].concat()
}

#[tokio::test]
async fn what_is_accepted_can_be_read_again_at_every_depth() {
    let s = with_bags().await;
    let mut accepted = 0;
    for levels in [1, 20, 60, 90, 95, 97, 98, 99, 100, 101, 105, 110, 120, 124, 125, 126, 127, 128, 129, 200] {
        let (path, name) = (format!("{BAGS}/d{levels}"), format!("d{levels}"));
        let made = s.send("POST", BAGS, &[("content-type", "application/json")], bag(&name, &nested(levels))).await;
        match made.code {
            201 => {
                accepted += 1;
                s.get(&path).await.expect(200);
                s.patch("merge-patch", &path, json!({ "metadata": { "labels": { "a": "b" } } })).await.expect(200);
                let applied = bag(&name, &nested(levels));
                let media = [("content-type", "application/apply-patch+yaml")];
                let answer = s.send("PATCH", &format!("{path}?fieldManager=me&force=true"), &media, applied).await;
                answer.expect(200);
                s.get(BAGS).await.expect(200);
            }
            _ => refused(&name, made),
        }
    }
    assert!((5..=9).contains(&accepted), "{accepted}");

    // Short operations of a JSON patch put everything one level further in, again and again.
    let round = [
        json!({ "op": "add", "path": "/spec/b", "value": {} }),
        json!({ "op": "move", "from": "/spec/a", "path": "/spec/b/a" }),
        json!({ "op": "move", "from": "/spec/b", "path": "/spec/a" }),
    ];
    let rounds = Value::from(vec![round.to_vec(); 3000].concat());
    refused("JSON patch that nests", s.patch("json-patch", &format!("{BAGS}/d20"), rounds).await);
    let long = json!([{ "op": "add", "path": "/spec/a".to_string() + &"/a".repeat(DEEP), "value": 1 }]);
    refused("JSON patch with a long path", s.patch("json-patch", &format!("{BAGS}/d20"), long).await);
    let replaced = format!(r#"[{{"op":"replace","path":"","value":{}}}]"#, nested(120)).into_bytes();
    let media = [("content-type", "application/json-patch+json")];
    refused("JSON patch of the whole", s.send("PATCH", &format!("{BAGS}/d20"), &media, replaced).await);

    // A schema within a schema is two levels of JSON: in protobuf less nesting is enough.
    for levels in [10, 40, 60, 90, 120, 127, 128, 200] {
        let media = [("content-type", "application/vnd.kubernetes.protobuf")];
        let answer = s.send("POST", CRDS, &media, nested_definition(levels)).await;
        assert!(answer.code < 500, "{levels}: {}", answer.value);
    }
    s.get(CRDS).await.expect(200);
}

#[tokio::test]
async fn deep_expressions_and_selectors_are_refused() {
    let s = server().await;
    const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let policy = |expression: &str| {
        json!({
            "metadata": { "name": "deep" },
            "spec": {
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }] },
                "validations": [{ "expression": expression }],
            },
        })
    };
    for (before, inner, after) in [
        ("(", "true", ")"),
        ("[", "true", "]"),
        ("{'a': ", "true", "}"),
        ("!", "true", ""),
        ("-", "1", ""),
        ("", "1", " + 1"),
        ("", "object", ".a"),
        ("", "object", "[0]"),
        ("", "object", ".a()"),
        ("f(", "1", ")"),
        ("true ? true : ", "true", ""),
        ("[1].map(x, ", "x", ")"),
        ("", "true", " && (true)"),
        ("1 in [", "1", "]"),
        ("(", "true", ""),
        ("[", "true", ""),
        ("a.?", "b", ""),
    ] {
        for levels in [300, 5_000, DEEP] {
            let expression = format!("{}{inner}{}", before.repeat(levels), after.repeat(levels));
            let what = format!("{levels} levels of {before}{inner}{after}");
            if before.is_empty() && after.contains("&&") && levels < 5_000 {
                continue;
            }
            let answer = s.post(POLICIES, policy(&expression)).await;
            match (answer.code, after.contains("&&")) {
                // Side by side, not within each other.
                (201, true) => drop(s.delete(&format!("{POLICIES}/deep"), Value::Null).await.expect(200)),
                _ => refused(&what, answer),
            }
            if levels == 300 {
                let rule = json!({ "x-kubernetes-validations": [{ "rule": expression, "message": "m" }] });
                refused(&format!("{what} in a rule"), s.post(CRDS, bags(rule)).await);
            }
        }
    }
    for selector in ["(", "a in (", "!", "a,", "a=", "x in ((", "a=b,", "((((((((a))))", "\\", "a in (b,"] {
        // As much as fits into a request's address.
        let deep =
            selector.repeat(DEEP).chars().take(15_000).map(|c| if c == ' ' { '+' } else { c }).collect::<String>();
        for parameter in ["labelSelector", "fieldSelector"] {
            let deep = deep.replace('\\', "%5C");
            let answer = s.get(&format!("{MAPS}?{parameter}={deep}")).await;
            assert!(answer.code < 500, "{parameter} {selector}: {}", answer.code);
        }
    }
    for path in [".a", "[0]", "{", "[?(@.a==1)]", "[?(@", "..", "[*]", "(", "\\"] {
        let mut definition = bags(Value::Null);
        definition["spec"]["versions"][0]["additionalPrinterColumns"] =
            json!([{ "name": "Deep", "type": "string", "jsonPath": path.repeat(DEEP / 10) }]);
        let answer = s.post(CRDS, definition).await;
        assert!(answer.code < 500, "{path}: {}", answer.code);
        if answer.code == 201 {
            s.send("GET", BAGS, &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], Vec::new()).await;
            s.delete(&format!("{CRDS}/bags.example.com"), Value::Null).await.expect(200);
            let gone = async {
                while s.get(&format!("{CRDS}/bags.example.com")).await.code != 404 {
                    env::sleep(std::time::Duration::from_millis(20)).await;
                }
            };
            env::timeout(std::time::Duration::from_secs(60), gone).await.expect("the definition goes");
        }
    }
    s.get(MAPS).await.expect(200);
}
