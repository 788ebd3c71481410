//! What is served: `/api`, `/apis` and below, plain and aggregated.
//! Read by every client first; made from `served`.
//! Says exactly what `registry` would serve at that moment.

pub mod api_enablement;
mod field_order;
mod group_order;
pub mod served;

use std::{fmt::Write, net::SocketAddr, sync::Arc};

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use api::{ApiError, Scope, feature_gates::STORAGE_VERSION_HASH, kinds::Subresource};

use crate::{
    audit,
    discovery::{
        group_order::{Form, GroupOrder},
        served::{Served, Set},
    },
    handlers::{
        negotiate::{self, Forms, Media, Output},
        respond::{Reply, content_response, value_response},
    },
    metrics_api,
    registry::not_found_path,
    request::{
        body::{self, Body},
        call::Call,
    },
    server::pipeline::ApiServer,
};

pub fn version() -> Value {
    json!({
        "major": "1", "minor": "35",
        "emulationMajor": "1", "emulationMinor": "35", "minCompatibilityMajor": "1", "minCompatibilityMinor": "34",
        "gitVersion": api::GIT_VERSION, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other }),
    })
}

/// `/version`, laid out for people.
pub fn version_response() -> Response<Body> {
    field_order::response(&version(), Output::BY_HAND)
}

/// A document for people, always laid out for them.
pub fn serve_paths(server: &ApiServer) -> Reply {
    Reply::Raw(value_response(StatusCode::OK, &paths(server), Output::BY_HAND))
}

fn paths(server: &ApiServer) -> Value {
    let set = server.cluster.served.current();
    let mut paths =
        vec!["/.well-known/openid-configuration".to_string(), "/api".into(), "/api/v1".into(), "/apis".into()];
    for (group, versions) in groups(&set) {
        if !group.is_empty() {
            paths.push(format!("/apis/{group}"));
            paths.extend(versions.iter().map(|v| format!("/apis/{group}/{v}")));
        }
    }
    let fixed = [
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ];
    paths.extend(fixed.map(str::to_string));
    json!({ "paths": paths })
}

pub fn serve(server: &Arc<ApiServer>, call: &Call) -> Result<Reply, ApiError> {
    let set = server.cluster.served.current();
    let parts: Vec<&str> = call.info.path.split('/').filter(|p| !p.is_empty()).collect();
    let ordered = |form| {
        let mut groups = all_groups(&set, &server.extensions.lists(&server.cluster));
        GroupOrder::new(&server.cluster, &set).sort(&mut groups, form);
        groups
    };
    let shows_hashes = server.config.feature_gates.enabled(STORAGE_VERSION_HASH);
    let value = match parts[..] {
        ["api"] | ["apis"] => {
            if is_aggregated(call) {
                let extensions = server.extensions.lists(&server.cluster);
                let mut groups = ordered(Form::Aggregated);
                groups.retain(|g| g.0.is_empty() == (parts[0] == "api"));
                return aggregated_reply(call, &set, &extensions, &groups);
            }
            match parts[0] {
                "api" => {
                    let address = SocketAddr::new(server.config.advertise_address, server.config.port).to_string();
                    json!({
                        "kind": "APIVersions", "versions": ["v1"],
                        "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": address }],
                    })
                }
                _ => {
                    let all = ordered(Form::Plain);
                    let list: Vec<Value> = all.iter().filter(|g| !g.0.is_empty()).map(group_value).collect();
                    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": list })
                }
            }
        }
        ["api", version] if set.serves_version("", version) => resource_list(&set, "", version, shows_hashes),
        ["apis", group] => {
            let groups = ordered(Form::Plain);
            let found = groups.iter().find(|g| g.0 == group).ok_or_else(not_found_path)?;
            let mut value = group_value(found);
            value["kind"] = "APIGroup".into();
            value["apiVersion"] = "v1".into();
            value
        }
        ["apis", group, version] if set.serves_version(group, version) => {
            resource_list(&set, group, version, shows_hashes)
        }
        ["apis", group, version] => {
            // What extension servers have they say themselves.
            let own = |list: &&Extension| list.0.0 == group && list.0.1 == version && group == metrics_api::GROUP;
            let lists = server.extensions.lists(&server.cluster);
            lists.iter().find(own).map(|(_, list)| list.clone()).ok_or_else(not_found_path)?
        }
        _ => return Err(not_found_path()),
    };
    let output = call.output(Forms::PLAIN)?;
    match output.media {
        Media::Json => {
            audit::response_value(&value);
            Ok(Reply::Raw(field_order::response(&value, output)))
        }
        _ => Ok(Reply::Value(StatusCode::OK, value)),
    }
}

/// Groups in order of appearance, each with its versions, the preferred one first.
fn groups(set: &Set) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for served in &set.resources {
        match groups.iter_mut().find(|g| g.0 == served.group) {
            Some((_, versions)) if versions.contains(&served.version) => {}
            Some((_, versions)) => versions.push(served.version.clone()),
            None => groups.push((served.group.clone(), vec![served.version.clone()])),
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by_key(|v| priority(v));
    }
    groups
}

type Extension = ((String, String), Value);
/// A group and its versions.
type Group = (String, Vec<String>);

/// The same with what extension servers add.
fn all_groups(set: &Set, extensions: &[Extension]) -> Vec<Group> {
    let mut all = groups(set);
    for ((group, version), _) in extensions {
        match all.iter_mut().find(|g| g.0 == *group) {
            Some((_, versions)) if versions.contains(version) => {}
            Some((_, versions)) => {
                versions.push(version.clone());
                versions.sort_by_key(|v| priority(v));
            }
            None => all.push((group.clone(), vec![version.clone()])),
        }
    }
    all
}

/// Stable before beta before alpha, higher before lower; anything else last, by name.
pub fn priority(version: &str) -> (u8, i64, i64, String) {
    let parse = || -> Option<(u8, i64, i64)> {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major: i64 = rest[..digits].parse().ok()?;
        match &rest[digits..] {
            "" => Some((0, -major, 0)),
            tail => {
                let (stage, number) = match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
                    (Some(n), _) => (1, n),
                    (_, Some(n)) => (2, n),
                    _ => return None,
                };
                Some((stage, -major, -number.parse::<i64>().ok()?))
            }
        }
    };
    match parse() {
        Some((stage, major, minor)) => (stage, major, minor, String::new()),
        None => (3, 0, 0, version.to_string()),
    }
}

fn group_value((group, versions): &Group) -> Value {
    let version = |v: &String| json!({ "groupVersion": format!("{group}/{v}"), "version": v });
    let all: Vec<Value> = versions.iter().map(version).collect();
    json!({ "name": group, "preferredVersion": all.first(), "versions": all })
}

fn resource_list(set: &Set, group: &str, version: &str, shows_hashes: bool) -> Value {
    let mut resources = Vec::new();
    for served in set.resources.iter().filter(|r| r.group == group && r.version == version) {
        resources.push(resource_value(served, shows_hashes));
        resources.extend(served.subresources.iter().map(|s| subresource_value(served, s)));
    }
    // By name; what belongs to a custom resource stays in the order in which that is made.
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_string();
    let is_custom = |name: &str| set.find(group, version, name).is_some_and(|served| served.custom.is_some());
    resources.sort_by_key(|value| match name(value).split_once('/') {
        Some((of, _)) if is_custom(of) => of.to_string(),
        _ => name(value),
    });
    let group_version = if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
    let mut list = json!({ "kind": "APIResourceList", "groupVersion": group_version, "resources": resources });
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    list
}

fn resource_value(served: &Served, shows_hash: bool) -> Value {
    let mut value = json!({
        "name": served.plural, "singularName": served.singular, "namespaced": served.namespaced(),
        "kind": served.kind, "verbs": verbs(served),
    });
    if !served.short_names.is_empty() {
        value["shortNames"] = json!(served.short_names);
    }
    if !served.categories.is_empty() {
        value["categories"] = json!(served.categories);
    }
    if served.stored() && shows_hash {
        value["storageVersionHash"] = storage_hash(served).into();
    }
    value
}

/// Sorted, but for custom resources, whose order upstream has written down.
fn verbs(served: &Served) -> Value {
    match served.custom {
        Some(_) => json!(["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]),
        None => json!(served.verbs),
    }
}

/// Tells clients when the stored version changes; upstream's form of it.
fn storage_hash(served: &Served) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let to = &served.storage_version;
    let written = &served.resource.storage.api_version;
    let version = match served.is_storage_version() && !written.is_empty() {
        // Fields of several versions may be the same, and upstream writes the oldest of them.
        true if written.contains('/') => written.clone(),
        true => format!("/{written}"),
        false => format!("{}/{}", to.group, to.version),
    };
    let digest = Sha256::digest(format!("{version}/{}", served.kind));
    BASE64_STANDARD.encode(&digest[..8])
}

fn subresource_value(served: &Served, sub: &Subresource) -> Value {
    let mut value = json!({
        "name": format!("{}/{}", served.plural, sub.name), "singularName": "", "namespaced": served.namespaced(),
        "kind": sub.kind, "verbs": sub.verbs,
    });
    if sub.group != served.group || sub.version != served.version {
        value["group"] = sub.group.as_str().into();
        value["version"] = sub.version.as_str().into();
    }
    value
}

/// Whether the client asks for aggregated discovery before anything plain.
fn is_aggregated(call: &Call) -> bool {
    for clause in negotiate::accept(&call.headers) {
        let json = matches!(clause.media, "application/json" | "*/*" | "application/*");
        match (clause.param("as"), clause.param("g"), clause.param("v")) {
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) if json => return true,
            (None, ..) => return false,
            _ => {}
        }
    }
    false
}

fn aggregated_reply(call: &Call, set: &Set, extensions: &[Extension], groups: &[Group]) -> Result<Reply, ApiError> {
    let items: Vec<Value> = groups.iter().map(|g| aggregated_group(set, extensions, g)).collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items,
    });
    let bytes = field_order::text(&list);
    let digest = Sha256::digest(&bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    });
    let tag = format!("\"{digest}\"");
    let content = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let mut response = content_response(StatusCode::OK, bytes, content);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    if let Ok(value) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, value);
    }
    if call.header(header::IF_NONE_MATCH) == tag {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = body::empty();
    }
    Ok(Reply::Raw(response))
}

fn aggregated_group(set: &Set, extensions: &[Extension], (group, versions): &Group) -> Value {
    let version = |version: &String| {
        let fits = |r: &&Arc<Served>| r.group == *group && r.version == *version;
        let mut resources: Vec<Value> = set.resources.iter().filter(fits).map(|r| aggregated_resource(r)).collect();
        if let Some((_, list)) = extensions.iter().find(|((g, v), _)| g == group && v == version) {
            resources.extend(from_plain(list, group, version));
        }
        resources.sort_by(|a, b| a["resource"].as_str().cmp(&b["resource"].as_str()));
        json!({ "version": version, "freshness": "Current", "resources": resources })
    };
    let metadata = if group.is_empty() { json!({}) } else { json!({ "name": group }) };
    json!({ "metadata": metadata, "versions": versions.iter().map(version).collect::<Vec<_>>() })
}

/// Group and version are left out where they are the enclosing ones.
fn response_kind(served: &Served, group: &str, version: &str, kind: &str) -> Value {
    match group == served.group && version == served.version && served.custom.is_none() {
        true => json!({ "group": "", "version": "", "kind": kind }),
        false => json!({ "group": group, "version": version, "kind": kind }),
    }
}

fn aggregated_resource(served: &Served) -> Value {
    let mut value = json!({
        "resource": served.plural, "singularResource": served.singular, "verbs": verbs(served),
        "scope": if served.scope == Scope::Namespaced { "Namespaced" } else { "Cluster" },
        "responseKind": response_kind(served, &served.group, &served.version, &served.kind),
    });
    if !served.short_names.is_empty() {
        value["shortNames"] = json!(served.short_names);
    }
    if !served.categories.is_empty() {
        value["categories"] = json!(served.categories);
    }
    let subresource = |s: &Subresource| {
        json!({
            "subresource": s.name, "verbs": s.verbs,
            "responseKind": response_kind(served, &s.group, &s.version, &s.kind),
        })
    };
    if !served.subresources.is_empty() {
        value["subresources"] = served.subresources.iter().map(subresource).collect();
    }
    value
}

/// A plain `APIResourceList` in the aggregated form.
fn from_plain(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let all: Vec<&Value> = list["resources"].as_array().into_iter().flatten().collect();
    let name = |r: &Value| r["name"].as_str().unwrap_or_default().to_string();
    let kind = |r: &Value| {
        let or = |field: &str, own: &str| r[field].as_str().filter(|t| !t.is_empty()).unwrap_or(own).to_string();
        json!({ "group": or("group", group), "version": or("version", version), "kind": r["kind"] })
    };
    let whole = all.iter().filter(|r| !name(r).contains('/'));
    let convert = |r: &&Value| {
        let prefix = format!("{}/", name(r));
        let parts = all.iter().filter_map(|s| Some((name(s).strip_prefix(&prefix)?.to_string(), *s)));
        let parts: Vec<Value> = parts
            .map(|(part, s)| json!({ "subresource": part, "verbs": s["verbs"], "responseKind": kind(s) }))
            .collect();
        let mut value = json!({
            "resource": r["name"], "singularResource": r["singularName"], "verbs": r["verbs"], "responseKind": kind(r),
            "scope": if r["namespaced"] == true { "Namespaced" } else { "Cluster" },
        });
        for (field, found) in [("shortNames", &r["shortNames"]), ("categories", &r["categories"])] {
            if found.is_array() {
                value[field] = found.clone();
            }
        }
        if !parts.is_empty() {
            value["subresources"] = parts.into();
        }
        value
    };
    whole.map(convert).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_sort_by_stability() {
        let mut versions = ["v1alpha1", "v2beta1", "foo", "v1", "v10", "v2", "v1beta2", "v1beta1"];
        versions.sort_by_key(|v| super::priority(v));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1beta1", "v1alpha1", "foo"]);
    }
}
