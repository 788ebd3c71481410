//! StorageVersions: which API server stores a resource in which version. Strategy, columns, validation.
//! Written by the API servers at their start, cleaned by the storage version garbage collector; both set what the
//! servers have in common with `set_common_encoding_version`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{int, items, set, text, texts},
            checks,
            columns::{age, age_of, list_with_more, name, name_of, or, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct StorageVersion;

impl Behavior for StorageVersion {
    fn initial_status(&self) -> Value {
        json!({})
    }

    fn validate_update(&self, _object: &Value, _old: &Value, _errors: &mut ErrorList) {}

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        validate_status(errors, &Path::new("status"), &object["status"]);
    }

    /// `<group>.<resource>`.
    fn validate_name(&self, name: &str, _prefix: bool) -> Vec<String> {
        let Some((group, resource)) = name.rsplit_once('.') else {
            return vec!["name must be in the form of <group>.<resource>".into()];
        };
        let group = names::dns_subdomain(group, false).into_iter().map(|c| format!("the group segment {c}"));
        let resource = names::dns1035_label(resource, false).into_iter().map(|c| format!("the resource segment {c}"));
        group.chain(resource).collect()
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("CommonEncodingVersion", "What all servers store it in."),
            string("StorageVersions", "What each server stores it in."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let status = &object["status"];
        let versions = items(status, "storageVersions").iter();
        let versions: Vec<_> =
            versions.map(|v| format!("{}={}", text(v, "apiServerID"), text(v, "encodingVersion"))).collect();
        vec![
            name_of(object),
            json!(or(text(status, "commonEncodingVersion"), "<unset>")),
            json!(list_with_more(&versions, "")),
            age_of(object, now),
        ]
    }
}

/// The version that all servers store in, if there is one.
fn common_version(status: &Value) -> Option<&str> {
    let mut versions = items(status, "storageVersions").iter().map(|v| text(v, "encodingVersion"));
    let first = versions.next()?;
    versions.all(|version| version == first).then_some(first)
}

/// Says in the status what the servers in it have in common.
pub fn set_common_encoding_version(object: &mut Value, now: Timestamp) {
    let before = text(&object["status"], "commonEncodingVersion").to_string();
    let common = common_version(&object["status"]).map(str::to_string);
    let (status, reason, message) = match common {
        Some(_) => ("True", "CommonEncodingVersionSet", "Common encoding version set"),
        None => ("False", "CommonEncodingVersionUnset", "Common encoding version unset"),
    };
    let conditions = items(&object["status"], "conditions").to_vec();
    let old = conditions.iter().find(|c| text(c, "type") == "AllEncodingVersionsEqual");
    let moved = common.as_ref().is_some_and(|common| !before.is_empty() && before != *common);
    let since = old.filter(|old| text(old, "status") == status && !moved).map(|old| old["lastTransitionTime"].clone());
    let condition = json!({
        "type": "AllEncodingVersionsEqual", "status": status, "reason": reason, "message": message,
        "observedGeneration": int(&object["metadata"], "generation").unwrap_or(0),
        "lastTransitionTime": since.unwrap_or_else(|| json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())),
    });
    let others = conditions.iter().filter(|c| text(c, "type") != "AllEncodingVersionsEqual").cloned();
    let conditions: Vec<Value> = others.chain([condition]).collect();
    set(&mut object["status"], "commonEncodingVersion", common.map_or(Value::Null, Value::from));
    set(&mut object["status"], "conditions", json!(conditions));
}

fn validate_status(errors: &mut ErrorList, path: &Path, status: &Value) {
    let mut seen = BTreeSet::new();
    for (index, version) in items(status, "storageVersions").iter().enumerate() {
        let at = path.child("storageVersions").index(index);
        let server = text(version, "apiServerID");
        if !seen.insert(server) {
            errors.duplicate(&at.child("apiServerID"), server);
        }
        validate_server(errors, &at, version);
    }
    let (at, said) = (path.child("commonEncodingVersion"), text(status, "commonEncodingVersion"));
    match common_version(status) {
        None if !said.is_empty() => errors.invalid(
            &at,
            said,
            "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the \
             supported versions yet",
        ),
        Some(actual) if said.is_empty() => {
            errors.invalid(&at, Value::Null, format!("the common encoding version is {actual}"));
        }
        Some(actual) if said != actual => {
            errors.invalid(&at, said, format!("the actual common encoding version is {actual}"));
        }
        _ => {}
    }
    validate_conditions(errors, path, items(status, "conditions"));
}

fn validate_server(errors: &mut ErrorList, path: &Path, version: &Value) {
    let server = text(version, "apiServerID");
    checks::complaints(errors, &path.child("apiServerID"), server, names::dns_subdomain(server, false));
    let encoding = text(version, "encodingVersion");
    let check = |errors: &mut ErrorList, path: &Path, version: &str| {
        let complaints = api_version(version);
        if !complaints.is_empty() {
            errors.invalid(path, version, complaints.join(","));
        }
    };
    check(errors, &path.child("encodingVersion"), encoding);
    let decodable: Vec<&str> = texts(version, "decodableVersions").collect();
    for (index, found) in decodable.iter().enumerate() {
        check(errors, &path.child("decodableVersions").index(index), found);
    }
    if !decodable.contains(&encoding) {
        let why = format!("decodableVersions must include encodingVersion {encoding}");
        errors.invalid(&path.child("decodableVersions"), json!(decodable), why);
    }
    for (index, served) in texts(version, "servedVersions").enumerate() {
        let at = path.child("servedVersions").index(index);
        check(errors, &at, served);
        if !decodable.contains(&served) {
            let all = decodable.join(" ");
            let why = format!("individual served version : {served} must be included in decodableVersions : [{all}]");
            errors.invalid(&at, served, why);
        }
    }
}

/// `v1`, `apps/v1`.
fn api_version(version: &str) -> Vec<String> {
    const EMPTY: &str = "must be non-empty";
    let parts: Vec<&str> = version.split('/').collect();
    let (group, version) = match parts.as_slice() {
        [version] => (None, *version),
        [group, version] => (Some(*group), *version),
        _ => {
            return vec![
                "an apiVersion is a DNS-1035 label with an optional DNS subdomain prefix and '/' (e.g. \
                         'example.com/MyVersion')"
                    .into(),
            ];
        }
    };
    let part = |name: &str, text: &str, complaints: Vec<String>| -> Vec<String> {
        match text.is_empty() {
            true => vec![format!("{name} part: {EMPTY}")],
            false => complaints.into_iter().map(|c| format!("{name} part: {c}")).collect(),
        }
    };
    let mut found = group.map(|group| part("group", group, names::dns_subdomain(group, false))).unwrap_or_default();
    found.extend(part("version", version, names::dns1035_label(version, false)));
    found
}

fn validate_conditions(errors: &mut ErrorList, path: &Path, conditions: &[Value]) {
    for (index, condition) in conditions.iter().enumerate() {
        let at = path.index(index);
        let kind = text(condition, "type");
        if let Some(other) = conditions[..index].iter().position(|other| text(other, "type") == kind) {
            let why = format!("the type of the condition is not unique, it also appears in conditions[{other}]");
            errors.invalid(&at.child("type"), kind, why);
        }
        for field in ["type", "status"] {
            let found = text(condition, field);
            checks::complaints(errors, &at.child(field), found, names::qualified_name(found));
        }
        checks::required(errors, &at, condition, "reason");
        checks::required(errors, &at, condition, "message");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: &str, encoding: &str) -> Value {
        json!({ "apiServerID": id, "encodingVersion": encoding, "decodableVersions": ["v1", "apps/v1"], "servedVersions": ["v1"] })
    }

    #[test]
    fn names_are_groups_and_resources() {
        let check = |name: &str, expected: &str| {
            let found = StorageVersion.validate_name(name, false);
            assert!(found.first().map_or(expected.is_empty(), |f| f.starts_with(expected)), "{name}: {found:?}");
        };
        check("apps.deployments", "");
        check("rbac.authorization.k8s.io.roles", "");
        check("pods", "name must be in the form of <group>.<resource>");
        check("Apps.deployments", "the group segment a lowercase RFC 1123 subdomain");
        check("apps.Deployments", "the resource segment a DNS-1035 label");
    }

    #[test]
    fn what_servers_have_in_common_is_said() {
        let check = |servers: Value, common: Option<&str>, status: &str| {
            let mut object = json!({ "status": { "storageVersions": servers } });
            set_common_encoding_version(&mut object, "2026-01-01T00:00:00Z".parse().unwrap());
            assert_eq!(object["status"]["commonEncodingVersion"].as_str(), common);
            assert_eq!(object["status"]["conditions"][0]["status"], status);
            let mut errors = ErrorList::new();
            StorageVersion.validate_status_update(&object, &json!({}), &mut errors);
            assert!(errors.is_empty(), "{:?}", errors.iter().map(ToString::to_string).collect::<Vec<_>>());
        };
        check(json!([]), None, "False");
        check(json!([server("a", "v1")]), Some("v1"), "True");
        check(json!([server("a", "v1"), server("b", "v1")]), Some("v1"), "True");
        check(json!([server("a", "v1"), server("b", "apps/v1")]), None, "False");
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let mut object = json!({ "status": { "storageVersions": [server("a", "v1")] } });
        let times = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"];
        let set = |time: &str, object: &mut Value| {
            set_common_encoding_version(object, time.parse().unwrap());
            object["status"]["conditions"][0]["lastTransitionTime"].as_str().unwrap().to_string()
        };
        assert_eq!(set(times[0], &mut object), times[0]);
        assert_eq!(set(times[1], &mut object), times[0]);
        object["status"]["storageVersions"] = json!([server("a", "apps/v1")]);
        assert_eq!(set(times[2], &mut object), times[2]);
    }

    #[test]
    fn statuses_are_checked() {
        let check = |status: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            StorageVersion.validate_status_update(&json!({ "status": status }), &json!({}), &mut errors);
            let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.contains(e));
            assert!(fits, "{status}: {found:?}");
        };
        check(
            json!({ "storageVersions": [server("a", "v1"), server("a", "v1")], "commonEncodingVersion": "v1" }),
            &["status.storageVersions[1].apiServerID: Duplicate value: \"a\""],
        );
        check(json!({ "storageVersions": [server("a", "v1")] }), &["the common encoding version is v1"]);
        check(
            json!({ "storageVersions": [server("a", "v1")], "commonEncodingVersion": "v2" }),
            &["the actual common encoding version is v1"],
        );
        check(json!({ "commonEncodingVersion": "v1" }), &["should be nil if servers do not agree"]);
        check(
            json!({ "storageVersions": [server("a", "v9")], "commonEncodingVersion": "v9" }),
            &["decodableVersions must include encodingVersion v9"],
        );
        check(
            json!({ "storageVersions": [server("a", "/v1")], "commonEncodingVersion": "/v1" }),
            &["group part: must be non-empty", "decodableVersions must include"],
        );
    }
}
