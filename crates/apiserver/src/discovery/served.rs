//! The resources served right now: the table of kinds plus the custom ones, looked up by request.
//! Read by `registry`, `discovery` and `openapi`; changed only by `crd`.
//! A lookup sees one complete set; changes replace the whole set at once.

use std::{collections::HashMap, ops::Deref, sync::Arc};

use parking_lot::RwLock;
use serde_json::Value;

use api::{Resource, kinds::Handler, schema::TypeId};

use crate::{
    handlers::{
        codec::SchemaRef,
        negotiate::{self, Forms},
    },
    registry::custom::Custom,
    storage,
};

/// One version of one resource, with how it is stored.
pub struct Served {
    pub resource: Arc<Resource>,
    /// Of its keys in the store.
    pub prefix: String,
    pub schema: Option<(SchemaRef, TypeId)>,
    /// The version objects are stored in.
    pub storage_version: StorageVersion,
    pub custom: Option<Arc<Custom>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageVersion {
    pub group: String,
    pub version: String,
}

impl Deref for Served {
    type Target = Resource;

    fn deref(&self) -> &Resource {
        &self.resource
    }
}

impl Served {
    pub fn key(&self, namespace: &str, name: &str) -> String {
        format!("{}{}", self.prefix, storage::local_key(&self.resource, namespace, name))
    }

    /// The forms its answers come in.
    pub fn forms(&self, stream: bool) -> Forms {
        let routed = self.custom.is_none().then_some(if stream { negotiate::ROUTED_LISTS } else { negotiate::ROUTED });
        let protobuf = self.custom.is_none() && self.schema.is_some();
        let views = self.stored() || self.behavior.handler() == Handler::ComponentStatus;
        Forms { views, protobuf, stream, routed }
    }

    /// An object as an item of a list: built-in kinds leave their type to the list.
    pub fn list_item(&self, mut object: Value) -> Value {
        if let (None, Some(fields)) = (&self.custom, object.as_object_mut()) {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        object
    }

    /// Fields a selector may name beyond the metadata.
    pub fn selectable_names(&self) -> Vec<String> {
        self.behavior.selectable_field_names()
    }

    pub fn selectable_values(&self, object: &Value) -> Vec<(String, String)> {
        self.behavior.selectable_fields(object)
    }

    /// Whether stored bytes are already in this version.
    pub fn is_storage_version(&self) -> bool {
        self.resource.group == self.storage_version.group && self.resource.version == self.storage_version.version
    }
}

#[derive(Default)]
pub struct Set {
    pub resources: Vec<Arc<Served>>,
    by_name: HashMap<(String, String, String), usize>,
    /// Changes with every new set, for ETags and caches of documents.
    pub generation: u64,
    /// The custom ones, by the hash of what they were made of.
    custom: HashMap<[u8; 32], Vec<Arc<Served>>>,
}

impl Set {
    fn new(resources: Vec<Arc<Served>>, custom: HashMap<[u8; 32], Vec<Arc<Served>>>, generation: u64) -> Self {
        let name = |r: &Served| (r.group.clone(), r.version.clone(), r.plural.clone());
        let by_name = resources.iter().enumerate().map(|(i, r)| (name(r), i)).collect();
        Self { resources, by_name, generation, custom }
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Served>> {
        // Three small strings per lookup are cheap next to everything else a request does.
        let index = self.by_name.get(&(group.to_string(), version.to_string(), plural.to_string()))?;
        self.resources.get(*index)
    }

    pub fn serves_version(&self, group: &str, version: &str) -> bool {
        self.resources.iter().any(|r| r.group == group && r.version == version)
    }
}

pub struct ServedResources {
    builtin: Vec<Arc<Served>>,
    /// Built-in ones that clients don't see.
    hidden: Vec<Arc<Served>>,
    current: RwLock<Arc<Set>>,
}

impl ServedResources {
    /// Everything there is.
    pub fn new() -> Self {
        Self::of(Vec::new(), |_| true)
    }

    /// The built-in resources and those of feature gates, as far as they are to be `shown`, and the custom ones.
    pub fn of(gated: Vec<Arc<Resource>>, shown: impl Fn(&Resource) -> bool) -> Self {
        let schema = crate::handlers::codec::builtin_schema();
        let mut all: Vec<_> = api::kinds::builtin().iter().map(|r| Arc::new(builtin_row(r, &schema))).collect();
        if !gated.is_empty() {
            let schema = SchemaRef::Builtin(api::schema::with_unserved());
            all.extend(gated.iter().map(|r| Arc::new(builtin_row(r, &schema))));
        }
        let (builtin, hidden): (Vec<_>, Vec<_>) = all.into_iter().partition(|served| shown(&served.resource));
        let set = Set::new(builtin.clone(), HashMap::new(), 1);
        Self { builtin, hidden, current: RwLock::new(Arc::new(set)) }
    }

    pub fn current(&self) -> Arc<Set> {
        self.current.read().clone()
    }

    /// For the server itself, which also sees what is hidden from clients.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        let hidden = |s: &&Arc<Served>| s.group == group && s.version == version && s.plural == plural;
        let shown = self.current.read().find(group, version, plural).cloned();
        shown.or_else(|| self.hidden.iter().find(hidden).cloned())
    }

    /// Takes over the complete set of custom resources, given by what each definition of them is made of: what was
    /// made of the same before is kept, so that a change of one definition makes none of the others anew.
    pub fn replace_custom(&self, definitions: Vec<Definition<'_>>) {
        let before = self.current();
        if before.custom.len() == definitions.len() && definitions.iter().all(|d| before.custom.contains_key(&d.hash)) {
            return;
        }
        let mut custom = HashMap::with_capacity(definitions.len());
        let mut resources = self.builtin.clone();
        for Definition { hash, make } in definitions {
            let made = before.custom.get(&hash).cloned().unwrap_or_else(make);
            resources.extend(made.iter().cloned());
            custom.insert(hash, made);
        }
        let mut current = self.current.write();
        *current = Arc::new(Set::new(resources, custom, current.generation + 1));
    }
}

/// What makes custom resources served: one CustomResourceDefinition.
pub struct Definition<'a> {
    /// Of everything its resources are made of.
    pub hash: [u8; 32],
    pub make: Box<dyn FnOnce() -> Vec<Arc<Served>> + 'a>,
}

impl Default for ServedResources {
    fn default() -> Self {
        Self::new()
    }
}

fn builtin_row(resource: &Arc<Resource>, schema: &SchemaRef) -> Served {
    let (group, version) = resource.behavior.storage_version().unwrap_or((&resource.group, &resource.version));
    let storage_version = StorageVersion { group: group.into(), version: version.into() };
    Served {
        prefix: storage::prefix(resource),
        schema: schema.find_kind(&resource.group, &resource.version, &resource.kind).map(|id| (schema.clone(), id)),
        resource: resource.clone(),
        storage_version,
        custom: None,
    }
}
