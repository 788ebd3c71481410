//! What extension servers keep in namespaces, found by discovery: the table of kinds and the definitions know nothing of it.
//! Asked by the controller beside it, each time a namespace is emptied.
//! A server that can't be asked is a failure, never an empty list: what it keeps would outlive its namespace.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use api::{ApiError, Resource, Scope};
use client::Client;
use http::Method;
use serde_json::Value;

use crate::common::objects;

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

#[derive(Debug, Default)]
pub struct ExtensionServers {
    /// Namespaced ones that can be deleted, each in one version.
    pub resources: Vec<Arc<Resource>>,
    /// By group and version: why nobody knows what is there.
    pub failures: BTreeMap<String, String>,
}

pub async fn discover(client: &Client) -> Result<ExtensionServers, ApiError> {
    let list = objects::call(client, Method::GET, API_SERVICES.into(), "application/json", Vec::new()).await?;
    let (mut found, mut seen) = (ExtensionServers::default(), HashSet::new());
    for (group, version, available) in versions(&list) {
        let group_version = format!("{group}/{version}");
        let answer = match available {
            true => {
                let path = format!("/apis/{group_version}");
                objects::call(client, Method::GET, path, "application/json", Vec::new()).await
            }
            false => Err(ApiError::internal(format!("stale GroupVersion discovery: {group_version}"))),
        };
        match answer {
            Ok(list) => {
                let resources = resources(&group, &version, &list).into_iter();
                found.resources.extend(resources.filter(|resource| seen.insert(resource.group_resource())));
            }
            Err(error) => drop(found.failures.insert(group_version, error.message.clone())),
        }
    }
    Ok(found)
}

/// Group, version and availability of those that another server answers for, the preferred version of a group first.
fn versions(list: &Value) -> Vec<(String, String, bool)> {
    let services = list["items"].as_array().into_iter().flatten().filter(|item| item["spec"]["service"].is_object());
    let mut services: Vec<&Value> = services.collect();
    services.sort_by_key(|item| std::cmp::Reverse(item["spec"]["versionPriority"].as_i64()));
    let text = |item: &Value, field: &str| item["spec"][field].as_str().unwrap_or_default().to_string();
    let available = |item: &Value| {
        let conditions = item["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|c| c["type"] == "Available" && c["status"] == "True")
    };
    services.into_iter().map(|item| (text(item, "group"), text(item, "version"), available(item))).collect()
}

/// Of an APIResourceList those that live in namespaces and can be deleted.
fn resources(group: &str, version: &str, list: &Value) -> Vec<Arc<Resource>> {
    let one = |item: &Value| {
        let text = |field: &str| item[field].as_str().unwrap_or_default().to_string();
        let can = |verb: &str| item["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|v| v == verb));
        let (plural, kind) = (text("name"), text("kind"));
        if item["namespaced"] != true || !can("delete") || !can("list") || plural.contains('/') {
            return None;
        }
        Some(Arc::new(Resource {
            singular: text("singularName"),
            ..Resource::custom(group, version, &kind, &plural, Scope::Namespaced)
        }))
    };
    list["resources"].as_array().into_iter().flatten().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_other_servers_count_and_the_preferred_version_comes_first() {
        let service = |version: &str, priority: i64, available: &str, is_local: bool| {
            let service = if is_local { Value::Null } else { json!({ "name": "s", "namespace": "n" }) };
            json!({ "spec": { "group": "sea.example", "version": version, "versionPriority": priority, "service": service },
                "status": { "conditions": [{ "type": "Available", "status": available }] } })
        };
        let list = json!({ "items": [service("v1alpha1", 5, "True", false), service("v1", 15, "False", false),
            service("v2", 20, "True", true)] });
        let of = |version: &str, available: bool| ("sea.example".to_string(), version.to_string(), available);
        assert_eq!(versions(&list), [of("v1", false), of("v1alpha1", true)]);
    }

    #[test]
    fn resources_of_namespaces_that_can_be_deleted() {
        let check = |resource: Value, expected: &[&str]| {
            let found = resources("sea.example", "v1", &json!({ "resources": [resource] }));
            assert_eq!(found.iter().map(|r| r.path(Some("d"), None)).collect::<Vec<_>>(), expected);
        };
        let resource = |name: &str, namespaced: bool, verbs: &[&str]| json!({ "name": name, "singularName": "", "kind": "Whale", "namespaced": namespaced, "verbs": verbs });
        let verbs = ["list", "delete"];
        check(resource("whales", true, &verbs), &["/apis/sea.example/v1/namespaces/d/whales"]);
        check(resource("whales", false, &verbs), &[]);
        check(resource("whales", true, &["list", "get"]), &[]);
        check(resource("whales/status", true, &verbs), &[]);
    }
}
