//! Every golden object through JSON, YAML and protobuf, protobuf byte for byte.

use api::{
    codec::{self, ContentType, protobuf},
    schema,
};

use super::{reference, report};

#[test]
#[ignore = "needs MINKE_REFERENCE: make test-reference"]
fn golden_objects_round_trip() {
    let mut problems = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(reference("golden")).expect("the golden directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "json") {
            count += 1;
            if let Err(problem) = round_trip(&path) {
                problems.push(format!("{}: {problem}", path.display()));
            }
        }
    }
    assert!(count > 150, "only {count} golden objects");
    report(problems);
}

fn round_trip(path: &std::path::Path) -> Result<(), String> {
    let read = |extension: &str| std::fs::read(path.with_extension(extension)).map_err(|e| e.to_string());
    let name = path.file_stem().and_then(|s| s.to_str()).ok_or("no name")?;
    let mut parts = name.rsplitn(3, '.');
    let (kind, version, group) = (parts.next(), parts.next(), parts.next());
    let (Some(kind), Some(version), Some(group)) = (kind, version, group) else { return Err("odd name".into()) };
    let group = if group == "core" { "" } else { group };
    let schema = schema::with_unserved();
    let id = schema.find_kind(group, version, kind).ok_or("no such type")?;

    let json = codec::decode(&read("json")?, ContentType::Json, Some((schema, id))).map_err(|e| e.to_string())?;
    let plain: serde_json::Value = serde_json::from_slice(&read("json")?).map_err(|e| e.to_string())?;
    if !json.problems.is_empty() {
        return Err(format!("{:?}", json.problems));
    }
    same("decoded JSON", &json.value, &plain)?;
    let mut canonical = json.value.clone();
    schema.canonicalize(id, &mut canonical);
    same("canonical", &canonical, &plain)?;

    let yaml = codec::decode(&read("yaml")?, ContentType::Yaml, Some((schema, id))).map_err(|e| e.to_string())?;
    if !yaml.problems.is_empty() {
        return Err(format!("YAML: {:?}", yaml.problems));
    }
    same("decoded YAML", &yaml.value, &plain)?;
    let again = codec::encode(&yaml.value, ContentType::Yaml).map_err(|e| e.to_string())?;
    let again = codec::decode(&again, ContentType::Yaml, Some((schema, id))).map_err(|e| e.to_string())?;
    same("YAML written and read", &again.value, &plain)?;

    let golden = read("pb")?;
    // WatchEvent has no type of its own, so its golden envelope names none.
    let own = |name: &str| plain[name].as_str().unwrap_or_default();
    let bytes = protobuf::encode(schema, id, &json.value).map_err(|e| e.to_string())?;
    let bytes = protobuf::envelope(own("apiVersion"), own("kind"), &bytes);
    if bytes != golden {
        let at = bytes.iter().zip(&golden).take_while(|(a, b)| a == b).count();
        let near = |b: &[u8]| {
            String::from_utf8_lossy(&b[at.saturating_sub(30)..b.len().min(at + 30)]).escape_debug().to_string()
        };
        return Err(format!("protobuf differs at {at}:\n   ours  {}\n   gold  {}", near(&bytes), near(&golden)));
    }
    let back = protobuf::decode(&golden, Some((schema, id))).map_err(|e| e.to_string())?;
    same("decoded protobuf", &back, &plain)
}

fn same(what: &str, ours: &serde_json::Value, theirs: &serde_json::Value) -> Result<(), String> {
    if ours == theirs {
        return Ok(());
    }
    let patch = json_patch::diff(theirs, ours);
    Err(format!("{what}: {}", patch.to_string().chars().take(600).collect::<String>()))
}
