//! What a request is about, from its method and path alone.
//! Read by every later stage of `pipeline`.
//! Invariant: pure; knows no kinds, so that authorization sees the same attributes for served and unserved resources
//! (tidy: `pure_files`).

use api::{Verb, selectors::FieldSelector};

use crate::request::query::Query;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub is_resource: bool,
    /// The decoded path.
    pub path: String,
    /// `get`, `list`, `create` …; the lower-case method for other paths.
    pub verb: Verb,
    /// `api` or `apis`.
    pub prefix: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// As sent with a list, a watch or a deletion of many.
    pub field_selector: String,
    pub label_selector: String,
    /// The segments from the resource on, for proxies.
    pub parts: Vec<String>,
}

const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    pub fn parse(method: &http::Method, raw_path: &str, query: &Query) -> Self {
        let path = percent_encoding::percent_decode_str(raw_path).decode_utf8_lossy().into_owned();
        let mut info = Self { path, verb: method.as_str().to_ascii_lowercase().as_str().into(), ..Self::default() };
        let all: Vec<String> = info.path.split('/').filter(|s| !s.is_empty()).map(str::to_string).collect();
        let mut parts: &[String] = match all.first().map(String::as_str) {
            Some("api") if all.len() >= 3 => &all[1..],
            Some("apis") if all.len() >= 4 => {
                info.group = all[1].clone();
                &all[2..]
            }
            _ => return info,
        };
        info.is_resource = true;
        info.prefix = all[0].clone();
        info.version = parts[0].clone();
        parts = &parts[1..];
        info.verb = Verb::of_method(method);
        // The old form /api/v1/watch/… is still served upstream.
        if parts[0] == "watch" && parts.len() > 1 {
            info.verb = Verb::Watch;
            parts = &parts[1..];
        }
        if parts[0] == "namespaces" && parts.len() > 1 {
            info.namespace = parts[1].clone();
            if parts.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&parts[2].as_str()) {
                parts = &parts[2..];
            }
        }
        info.parts = parts.to_vec();
        info.resource = parts[0].clone();
        info.name = parts.get(1).cloned().unwrap_or_default();
        info.subresource = parts.get(2).cloned().unwrap_or_default();
        info.collection_verb(query);
        info
    }

    fn collection_verb(&mut self, query: &Query) {
        match self.verb {
            Verb::Get if self.name.is_empty() => {
                self.verb = if query.flag("watch") { Verb::Watch } else { Verb::List };
            }
            // A watch of one object is a watch of the collection with a field selector.
            Verb::Get if self.subresource.is_empty() && query.flag("watch") => self.verb = Verb::Watch,
            Verb::Delete if self.name.is_empty() => self.verb = Verb::DeleteCollection,
            _ => {}
        }
        if matches!(self.verb, Verb::List | Verb::Watch | Verb::DeleteCollection) && self.name.is_empty() {
            let selector = query.get("fieldSelector").unwrap_or_default();
            self.field_selector = selector.to_string();
            self.label_selector = query.get("labelSelector").unwrap_or_default().to_string();
            // Who may delete one object by its name may not therefore delete a collection of it, as upstream.
            if self.verb == Verb::DeleteCollection {
                return;
            }
            // Read as the handler reads it: what is permitted for one name must not select others.
            let fields = FieldSelector::parse(selector).ok();
            self.name = fields.and_then(|f| f.exact("metadata.name").map(str::to_string)).unwrap_or_default();
        }
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Requests that may last as long as the client likes and are not counted in flight.
    pub fn is_long_running(&self) -> bool {
        self.verb == Verb::Watch
            || self.verb.as_str() == "proxy"
            || matches!(self.subresource.as_str(), "proxy" | "exec" | "attach" | "portforward")
            || self.subresource == "log"
    }

    pub fn is_mutating(&self) -> bool {
        !self.verb.is_read() && !matches!(self.verb.as_str(), "head" | "options")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_attributes() {
        let check = |method: &str, uri: &str, expected: &str| {
            let uri: http::Uri = uri.parse().unwrap();
            let method: http::Method = method.parse().unwrap();
            let i = RequestInfo::parse(&method, uri.path(), &Query::parse(uri.query().unwrap_or_default()));
            let found = match i.is_resource {
                true => format!(
                    "{} {} {} {} {} {}",
                    i.verb,
                    i.api_version(),
                    i.namespace,
                    i.resource,
                    i.name,
                    i.subresource
                ),
                false => format!("{} {}", i.verb, i.path),
            };
            assert_eq!(found, expected, "{method} {uri}");
        };
        check("GET", "/healthz", "get /healthz");
        check("GET", "/api/v1", "get /api/v1");
        check("GET", "/apis/apps/v1", "get /apis/apps/v1");
        check("GET", "/api/v1/pods", "list v1  pods  ");
        check("GET", "/api/v1/pods?watch=1", "watch v1  pods  ");
        check("GET", "/api/v1/watch/namespaces/a/pods", "watch v1 a pods  ");
        check("GET", "/api/v1/namespaces/a", "get v1 a namespaces a ");
        check("PUT", "/api/v1/namespaces/a/finalize", "update v1 a namespaces a finalize");
        check("GET", "/api/v1/namespaces/a/pods/p/log", "get v1 a pods p log");
        check("POST", "/apis/apps/v1/namespaces/a/deployments", "create apps/v1 a deployments  ");
        check("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection apps/v1 a deployments  ");
        check("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list v1  pods x ");
        check("DELETE", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx", "deletecollection v1 a pods  ");
        check("GET", "/api/v1/namespaces/a/pods/a%2Fb", "get v1 a pods a b");
    }
}
