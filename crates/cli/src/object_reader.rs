//! How pure parts of this crate ask for objects: one query, one answer.
//! Implemented over REST by the session, over a map by tests; asked by `describe`, `why` and `timeline`.
//! Reading only; nothing here can change the cluster.

use std::future::Future;

use serde_json::Value;

use crate::rest::path::query_escape;

/// A get (with a name) or a list.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Query {
    /// `v1` or `GROUP/VERSION`.
    pub api_version: String,
    /// The plural name of the resource.
    pub resource: String,
    /// Empty for all namespaces and for kinds of the cluster.
    pub namespace: String,
    pub name: Option<String>,
    pub label_selector: String,
    pub field_selector: String,
}

impl Query {
    pub fn list(api_version: &str, resource: &str, namespace: &str) -> Self {
        Self {
            api_version: api_version.to_string(),
            resource: resource.to_string(),
            namespace: namespace.to_string(),
            ..Self::default()
        }
    }

    pub fn get(api_version: &str, resource: &str, namespace: &str, name: &str) -> Self {
        Self { name: Some(name.to_string()), ..Self::list(api_version, resource, namespace) }
    }

    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.label_selector = selector.into();
        self
    }

    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.field_selector = selector.into();
        self
    }

    /// The path and query of the request.
    pub fn path(&self) -> String {
        let mut path = match self.api_version.contains('/') {
            true => format!("/apis/{}", self.api_version),
            false => format!("/api/{}", self.api_version),
        };
        if !self.namespace.is_empty() {
            path.push_str(&format!("/namespaces/{}", self.namespace));
        }
        path.push_str(&format!("/{}", self.resource));
        if let Some(name) = &self.name {
            path.push_str(&format!("/{name}"));
        }
        let selectors = [("labelSelector", &self.label_selector), ("fieldSelector", &self.field_selector)];
        let given: Vec<String> = selectors
            .iter()
            .filter(|(_, selector)| !selector.is_empty())
            .map(|(parameter, selector)| format!("{parameter}={}", query_escape(selector)))
            .collect();
        if !given.is_empty() {
            path.push_str(&format!("?{}", given.join("&")));
        }
        path
    }
}

/// Reads objects. A query with a name is answered by one object or an error.
pub trait ObjectReader {
    fn read(&self, query: Query) -> impl Future<Output = Result<Vec<Value>, String>>;

    /// A document that is not an object, such as what a server publishes under `/debug`.
    fn raw(&self, path: &str) -> impl Future<Output = Result<Value, String>>;

    /// A text, such as a container's log. Readers that have none say so.
    fn text(&self, path: &str) -> impl Future<Output = Result<String, String>> {
        let why = format!("{path} is not read here");
        async { Err(why) }
    }
}

/// Answers from objects held in memory.
#[cfg(test)]
#[derive(Default)]
pub struct MapReader {
    /// Objects under the resource's plural name.
    pub objects: Vec<(&'static str, Value)>,
    pub documents: Vec<(String, Value)>,
    pub texts: Vec<(String, &'static str)>,
}

#[cfg(test)]
impl ObjectReader for MapReader {
    async fn read(&self, query: Query) -> Result<Vec<Value>, String> {
        let selector = api::selectors::LabelSelector::parse(&query.label_selector)?;
        let fields = api::selectors::FieldSelector::parse(&query.field_selector)?;
        let matches = |object: &&Value| {
            let meta = &object["metadata"];
            let in_namespace = query.namespace.is_empty() || meta["namespace"] == query.namespace.as_str();
            let named = query.name.as_ref().is_none_or(|name| meta["name"] == name.as_str());
            let labels = meta["labels"].as_object().into_iter().flatten();
            let labels = labels.map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_string())).collect();
            let field =
                |path: &str| path.split('.').fold(*object, |value, part| &value[part]).as_str().unwrap_or_default();
            in_namespace && named && selector.matches(&labels) && fields.matches(field)
        };
        let of_resource = self.objects.iter().filter(|(resource, _)| *resource == query.resource);
        let found: Vec<Value> = of_resource.map(|(_, object)| object).filter(matches).cloned().collect();
        match &query.name {
            Some(name) if found.is_empty() => Err(format!("{} \"{name}\" not found", query.resource)),
            _ => Ok(found),
        }
    }

    async fn raw(&self, path: &str) -> Result<Value, String> {
        let found = self.documents.iter().find(|(own, _)| own == path);
        found.map(|(_, document)| document.clone()).ok_or_else(|| "not found".to_string())
    }

    async fn text(&self, path: &str) -> Result<String, String> {
        let found = self.texts.iter().find(|(own, _)| own == path);
        found.map(|(_, text)| text.to_string()).ok_or_else(|| "not found".to_string())
    }
}
