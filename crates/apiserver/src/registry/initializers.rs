//! Initializers: objects that stay out of sight until everybody on their list has acted, behind the feature gate of that
//! name.
//! Part of `registry`; InitializerConfigurations say which new objects wait for whom.
//! Only the first of the list may act, and takes itself off; who does not act in time is passed over, or ends the object.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use api::{
    ApiError, Object, Reason,
    feature_gates::INITIALIZERS,
    field::{ErrorList, Path},
};
use store::{Compare, Operation, Transaction};

use super::{Registry, object_meta};
use crate::{
    authz::{self, Attributes, Decision},
    discovery::served::Served,
    request::call::Call,
    storage,
    storage::{cluster::Cluster, watch_cache::store_error},
};

const FIELD: &str = "initializers";
const CONFIGURATIONS: &str = "initializerconfigurations";
/// Of initializers that no configuration names any more.
const USUAL_TIMEOUT: Duration = Duration::from_secs(30);

fn pending(object: &Value) -> &[Value] {
    object["metadata"][FIELD]["pending"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn first(object: &Value) -> Option<&str> {
    pending(object).first().and_then(|initializer| initializer["name"].as_str())
}

/// Whether somebody has still to act on the object.
pub fn is_uninitialized(object: &Object) -> bool {
    const MARK: &[u8] = b"\"initializers\":{";
    object.json().windows(MARK.len()).any(|window| window == MARK) && !pending(&object.value()).is_empty()
}

/// Takes the list out of a document whose schema does not know it.
pub fn take(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove(FIELD)
}

pub fn put_back(object: &mut Value, list: Option<Value>) {
    if let Some(list) = list.filter(|list| !list.is_null()) {
        object_meta::metadata_mut(object).insert(FIELD.into(), list);
    }
}

/// An initializer as its configuration names it.
struct Initializer {
    name: String,
    fails: bool,
    timeout: Duration,
}

fn initializers(cluster: &Cluster) -> Vec<(Initializer, Vec<Value>)> {
    let mut found = Vec::new();
    for configuration in cluster.list(CONFIGURATIONS, "") {
        for initializer in configuration.value()["initializers"].as_array().into_iter().flatten() {
            let timeout = initializer["timeoutSeconds"].as_u64().map_or(USUAL_TIMEOUT, Duration::from_secs);
            let name = initializer["name"].as_str().unwrap_or_default().to_string();
            let fails = initializer["failurePolicy"] == "Fail";
            let rules = initializer["rules"].as_array().cloned().unwrap_or_default();
            found.push((Initializer { name, fails, timeout }, rules));
        }
    }
    found
}

fn concerns(rules: &[Value], served: &Served) -> bool {
    let names = |rule: &Value, field: &str, wanted: &str| {
        let listed = rule[field].as_array().map(Vec::as_slice).unwrap_or_default();
        listed.iter().any(|text| text == "*" || text == wanted)
    };
    rules.iter().any(|rule| {
        names(rule, "apiGroups", &served.group)
            && names(rule, "apiVersions", &served.version)
            && names(rule, "resources", &served.plural)
    })
}

impl Registry {
    pub(super) fn has_initializers(&self) -> bool {
        self.config.feature_gates.enabled(INITIALIZERS)
    }

    /// Lists who has to act on a new object. Whoever may `initialize` such objects says so themselves, if they like.
    pub(super) async fn assign_initializers(
        &self,
        call: &Call,
        served: &Served,
        object: &mut Value,
    ) -> Result<(), ApiError> {
        if !self.has_initializers() || served.plural == CONFIGURATIONS {
            return Ok(());
        }
        if let Some(list) = take(object) {
            let mut attributes = Attributes::new(&call.user, &call.info);
            attributes.verb = "initialize".into();
            if !matches!(self.authorizer.authorize(&attributes).await, Decision::Allow(_)) {
                return Err(authz::refusal(&attributes, "only those who may initialize may set metadata.initializers"));
            }
            let asked = list["pending"].as_array().is_some_and(|pending| !pending.is_empty());
            put_back(object, asked.then_some(list));
            return Ok(());
        }
        let wanted = initializers(&self.cluster).into_iter().filter(|(_, rules)| concerns(rules, served));
        let wanted: Vec<Value> = wanted.map(|(initializer, _)| json!({ "name": initializer.name })).collect();
        put_back(object, (!wanted.is_empty()).then(|| json!({ "pending": wanted })));
        Ok(())
    }

    /// The list may only lose its first entry; what has been initialized never waits again.
    pub(super) fn check_initializers(&self, served: &Served, new: &mut Value, old: &Value) -> Result<(), ApiError> {
        if !self.has_initializers() {
            return Ok(());
        }
        let (before, after) = (pending(old), pending(new));
        let allowed = after == before || before.split_first().is_some_and(|(_, rest)| after == rest);
        if !allowed {
            let path = Path::new("metadata").child(FIELD);
            let mut errors = ErrorList::new();
            match before.is_empty() {
                true => errors.forbidden(&path, "field is immutable once initialization has completed"),
                false => errors.invalid(
                    &path.child("pending"),
                    new["metadata"][FIELD]["pending"].clone(),
                    format!("only {:?} may act now, and remove itself", first(old).unwrap_or_default()),
                ),
            }
            return Err(ApiError::invalid(&served.group, &served.kind, object_meta::text(new, "name"), errors));
        }
        if after.is_empty() && new["metadata"][FIELD]["result"].is_null() {
            take(new);
        }
        Ok(())
    }

    /// Sees to it that an object does not wait for ever, and, unless the client wants to see it at once, waits with it.
    pub(super) async fn await_initialized(
        &self,
        call: &Call,
        served: &Arc<Served>,
        stored: Arc<Object>,
    ) -> Result<Arc<Object>, ApiError> {
        if !self.has_initializers() || !is_uninitialized(&stored) {
            return Ok(stored);
        }
        let task = self.cluster.env.spawn(keep(self.cluster.clone(), served.clone(), stored.clone()));
        if call.query.flag("includeUninitialized") {
            return Ok(stored);
        }
        task.await.unwrap_or_else(|_| Err(ApiError::internal("waiting for initializers was interrupted")))
    }

    /// Goes on waiting for what a former process left uninitialized.
    pub fn resume_initializers(&self) {
        if !self.has_initializers() {
            return;
        }
        for served in self.cluster.served.current().resources.iter().filter(|s| s.stored() && s.is_storage_version()) {
            let snapshot =
                self.cluster.cache.resource(&served.prefix).list("", None, 0, 0, |e| is_uninitialized(&e.object));
            for entry in snapshot.entries {
                self.cluster.env.spawn(keep(self.cluster.clone(), served.clone(), entry.object.clone()));
            }
        }
    }
}

/// Follows an object until it is initialized: passes over who does not act in time, or ends it.
async fn keep(cluster: Arc<Cluster>, served: Arc<Served>, created: Arc<Object>) -> Result<Arc<Object>, ApiError> {
    let (namespace, name) = (created.meta.namespace.clone().unwrap_or_default(), created.meta.name.clone());
    let local = storage::local_key(&served.resource, &namespace, &name);
    let resource = cluster.cache.resource(&served.prefix);
    let mut changes = resource.changes();
    cluster.cache.wait_for(created.meta.resource_version).await?;
    let mut acting: Option<(String, Duration)> = None;
    loop {
        changes.borrow_and_update();
        let found = resource.get(&local).map(|entry| entry.object.clone());
        let Some(object) = found.filter(|object| object.meta.uid == created.meta.uid) else {
            let text = format!("{} {name:?} was deleted before it was initialized", served.group_resource());
            return Err(ApiError::new(Reason::Conflict, text));
        };
        let value = object.value();
        let result = &value["metadata"][FIELD]["result"];
        if result.is_object() {
            remove(&cluster, &served, &object, None).await?;
            let code = result["code"].as_u64().map_or(500, |code| code as u16);
            return Err(ApiError::from_status(code, result.to_string().as_bytes()));
        }
        let Some(next) = first(&value) else { return Ok(object) };
        let now = cluster.env.monotonic();
        let since = match &acting {
            Some((name, since)) if name == next => *since,
            _ => {
                acting = Some((next.to_string(), now));
                now
            }
        };
        let known = initializers(&cluster).into_iter().map(|(i, _)| i).find(|i| i.name == next);
        let (fails, timeout) = known.map_or((false, USUAL_TIMEOUT), |i| (i.fails, i.timeout));
        let left = timeout.saturating_sub(now.saturating_sub(since));
        if !left.is_zero() {
            // Configurations may change meanwhile; they are looked at again at the next change or in the end.
            let _ = cluster.env.timeout(left, changes.changed()).await;
            continue;
        }
        tracing::warn!(initializer = next, object = local, fails, "an initializer did not act in time");
        match fails {
            true => {
                remove(&cluster, &served, &object, None).await?;
                let text = format!("Timeout: initializer {next:?} did not act on {name:?} in time");
                return Err(ApiError::new(Reason::Timeout, text));
            }
            false => {
                let mut passed = value.clone();
                let rest: Vec<Value> = pending(&value)[1..].to_vec();
                take(&mut passed);
                put_back(&mut passed, (!rest.is_empty()).then(|| json!({ "pending": rest })));
                remove(&cluster, &served, &object, Some(&passed)).await?;
            }
        }
    }
}

/// Puts `instead` in the place of an object, or nothing, unless it has changed since.
async fn remove(cluster: &Cluster, served: &Served, object: &Object, instead: Option<&Value>) -> Result<(), ApiError> {
    let key = served.key(object.meta.namespace.as_deref().unwrap_or_default(), &object.meta.name);
    let compare = vec![Compare { key: key.clone(), mod_revision: object.meta.resource_version }];
    let operation = match instead {
        Some(value) => Operation::Put { key, value: storage::encode(value), ttl_seconds: None },
        None => Operation::Delete { key },
    };
    let transaction = Transaction { compare, operations: vec![operation] };
    match cluster.store.transact(transaction).await.map_err(store_error)? {
        store::Outcome::Done { revision, .. } => cluster.cache.wait_for(revision).await,
        store::Outcome::Conflict { .. } => Ok(()),
    }
}
