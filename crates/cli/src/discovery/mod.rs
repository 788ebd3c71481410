//! Which resources the server has.
//! Asked by `resource` and `api-resources`; `cache` keeps the answers under `~/.kube/cache`, as stock kubectl does.
//! Never changes anything on the server.

pub mod cache;
pub mod mapper;

use std::rc::Rc;

use futures::future::join_all;
use http::header;
use serde_json::{Value, json};

use crate::{
    describe::fields::texts,
    failure::{Failure, Result},
    rest::{Rest, path},
    session::Session,
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiResource {
    /// The plural, `pods`; `pods/log` for a subresource.
    pub name: String,
    pub singular: String,
    pub namespaced: bool,
    pub kind: String,
    pub group: String,
    pub version: String,
    pub verbs: Vec<String>,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
}

impl ApiResource {
    pub fn group_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// As an `APIResource`, without group and version.
    pub fn json(&self) -> Value {
        let mut value = json!({
            "name": self.name,
            "singularName": self.singular,
            "namespaced": self.namespaced,
            "kind": self.kind,
            "verbs": self.verbs,
        });
        if !self.short_names.is_empty() {
            value["shortNames"] = json!(self.short_names);
        }
        if !self.categories.is_empty() {
            value["categories"] = json!(self.categories);
        }
        value
    }

    /// `pods`, `deployments.apps`.
    pub fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.name.clone(),
            group => format!("{}.{group}", self.name),
        }
    }

    /// `pod`, `deployment.apps`, as `-o name` says it.
    pub fn qualified_kind(&self) -> String {
        match self.group.as_str() {
            "" => self.kind.to_lowercase(),
            group => format!("{}.{group}", self.kind.to_lowercase()),
        }
    }

    pub fn path(&self, namespace: &str, name: &str) -> String {
        let mut found = path::group_version(&self.group, &self.version);
        if self.namespaced && !namespace.is_empty() {
            found.push_str(&format!("/namespaces/{}", path::segment(namespace)));
        }
        found.push_str(&format!("/{}", self.name));
        if !name.is_empty() {
            found.push_str(&format!("/{}", path::segment(name)));
        }
        found
    }

    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

/// A group, its versions in the server's order, and the one it prefers.
#[derive(Debug, Clone, Default)]
pub struct Group {
    pub name: String,
    pub versions: Vec<String>,
    pub preferred: String,
}

#[derive(Debug, Default)]
pub struct Discovery {
    pub groups: Vec<Group>,
    /// In the order of groups and versions; subresources too.
    pub resources: Vec<Rc<ApiResource>>,
    /// Asked of the server just now, not read from a file.
    pub fresh: bool,
    /// Groups whose server did not answer.
    pub failed: Vec<(String, String)>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

impl Discovery {
    /// From the cache if that is young, else from the server.
    pub async fn load(session: &Session, invalidate: bool) -> Result<Self> {
        let rest = session.rest().await?;
        let place = cache::place(session, rest.server());
        if !invalidate && let Some(found) = place.as_deref().and_then(|p| cache::read(p, &session.env)) {
            return Ok(found);
        }
        let found = Self::ask(rest).await?;
        if let Some(place) = place {
            // A cache that can't be written is no reason to fail.
            let _ = cache::write(&place, &found);
        }
        Ok(found)
    }

    pub async fn ask(rest: &Rest) -> Result<Self> {
        let ask = |path: &'static str| async move { rest.get(path).header(header::ACCEPT, AGGREGATED).value().await };
        let (core, others) = futures::join!(ask("/api"), ask("/apis"));
        let mut found = Self { fresh: true, ..Self::default() };
        for (answer, is_core) in [(core, true), (others, false)] {
            let answer = match answer {
                Ok(answer) => answer,
                Err(failure) if failure.is_not_found() => continue,
                Err(Failure::Status(mut status)) if status.reason == "Unauthorized" => {
                    // Upstream's client does not read what discovery answers then.
                    status.message = "the server has asked for the client to provide credentials".to_string();
                    return Err(Failure::Status(status));
                }
                Err(failure) => return Err(failure),
            };
            match answer["kind"].as_str() {
                Some("APIGroupDiscoveryList") => found.add_aggregated(&answer),
                _ if is_core => found.add_each(rest, &core_groups(&answer)).await?,
                _ => found.add_each(rest, &answer["groups"].as_array().cloned().unwrap_or_default()).await?,
            }
        }
        Ok(found)
    }

    fn add_aggregated(&mut self, answer: &Value) {
        for item in answer["items"].as_array().into_iter().flatten() {
            let name = text(&item["metadata"]["name"]);
            let versions = item["versions"].as_array().cloned().unwrap_or_default();
            let names: Vec<String> = versions.iter().map(|v| text(&v["version"])).collect();
            for version in &versions {
                let id = text(&version["version"]);
                if version["freshness"] == "Stale" {
                    let shown = if name.is_empty() { id.clone() } else { format!("{name}/{id}") };
                    self.failed.push((shown, "stale GroupVersion discovery".to_string()));
                }
                for resource in version["resources"].as_array().into_iter().flatten() {
                    self.add_aggregated_resource(&name, &id, resource);
                }
            }
            let preferred = names.first().cloned().unwrap_or_default();
            self.groups.push(Group { name, versions: names, preferred });
        }
    }

    fn add_aggregated_resource(&mut self, group: &str, version: &str, resource: &Value) {
        let main = ApiResource {
            name: text(&resource["resource"]),
            singular: text(&resource["singularResource"]),
            namespaced: resource["scope"] == "Namespaced",
            kind: text(&resource["responseKind"]["kind"]),
            group: group.to_string(),
            version: version.to_string(),
            verbs: texts(&resource["verbs"]),
            short_names: texts(&resource["shortNames"]),
            categories: texts(&resource["categories"]),
        };
        // Without a kind only its subresources are served.
        let (name, namespaced) = (main.name.clone(), main.namespaced);
        if !main.kind.is_empty() {
            self.resources.push(Rc::new(main));
        }
        for sub in resource["subresources"].as_array().into_iter().flatten() {
            self.resources.push(Rc::new(ApiResource {
                name: format!("{name}/{}", text(&sub["subresource"])),
                namespaced,
                kind: text(&sub["responseKind"]["kind"]),
                group: group.to_string(),
                version: version.to_string(),
                verbs: texts(&sub["verbs"]),
                ..ApiResource::default()
            }));
        }
    }

    async fn add_each(&mut self, rest: &Rest, groups: &[Value]) -> Result<()> {
        for group in groups {
            let name = text(&group["name"]);
            let versions: Vec<String> =
                group["versions"].as_array().into_iter().flatten().map(|v| text(&v["version"])).collect();
            let asked = versions.iter().map(|v| rest.get(path::group_version(&name, v)).value());
            for (version, answer) in versions.iter().zip(join_all(asked).await) {
                match answer {
                    Ok(list) => self.add_list(&name, version, &list),
                    Err(Failure::Connection { server, refused, cause }) => {
                        return Err(Failure::Connection { server, refused, cause });
                    }
                    Err(failure) => self.failed.push((format!("{name}/{version}"), failure.text())),
                }
            }
            let preferred = text(&group["preferredVersion"]["version"]);
            let preferred =
                if preferred.is_empty() { versions.first().cloned().unwrap_or_default() } else { preferred };
            self.groups.push(Group { name, versions, preferred });
        }
        Ok(())
    }

    /// An `APIResourceList`.
    fn add_list(&mut self, group: &str, version: &str, list: &Value) {
        for resource in list["resources"].as_array().into_iter().flatten() {
            self.resources.push(Rc::new(ApiResource {
                name: text(&resource["name"]),
                singular: text(&resource["singularName"]),
                namespaced: resource["namespaced"] == true,
                kind: text(&resource["kind"]),
                group: group.to_string(),
                version: version.to_string(),
                verbs: texts(&resource["verbs"]),
                short_names: texts(&resource["shortNames"]),
                categories: texts(&resource["categories"]),
            }));
        }
    }

    fn group_list(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|group| {
                let of = |version: &str| {
                    let shown = match group.name.as_str() {
                        "" => version.to_string(),
                        name => format!("{name}/{version}"),
                    };
                    json!({"groupVersion": shown, "version": version})
                };
                json!({
                    "name": group.name,
                    "versions": group.versions.iter().map(|v| of(v)).collect::<Vec<_>>(),
                    "preferredVersion": of(&group.preferred),
                })
            })
            .collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    fn resource_list(&self, group: &str, version: &str) -> Value {
        let of = self.resources.iter().filter(|r| r.group == group && r.version == version);
        let resources: Vec<Value> = of.map(|resource| resource.json()).collect();
        let shown = if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": shown, "resources": resources})
    }
}

fn core_groups(answer: &Value) -> Vec<Value> {
    let versions: Vec<Value> = texts(&answer["versions"]).iter().map(|v| json!({"version": v})).collect();
    let preferred = versions.first().cloned().unwrap_or_default();
    vec![json!({"name": "", "versions": versions, "preferredVersion": preferred})]
}

impl Session {
    pub async fn discovery(&self) -> Result<Rc<Discovery>> {
        if let Some(found) = self.discovery.borrow().clone() {
            return Ok(found);
        }
        let found = Rc::new(Discovery::load(self, false).await?);
        *self.discovery.borrow_mut() = Some(found.clone());
        Ok(found)
    }

    /// Asks the server again, if what we know came from a file.
    pub async fn rediscovered(&self) -> Result<Rc<Discovery>> {
        let known = self.discovery().await?;
        if known.fresh {
            return Ok(known);
        }
        let found = Rc::new(Discovery::load(self, true).await?);
        *self.discovery.borrow_mut() = Some(found.clone());
        Ok(found)
    }
}
