//! `delete`: at once, after a grace period, or once the last finalizer is gone.
//! Part of `registry`; `collection` and `eviction` delete through here.
//! `decide` is pure; the shell only carries its decision out on the version it was made for.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use api::{ApiError, Object, Reason};
use store::Revision;

use super::{
    Registry, Superseded, namespace, object_meta,
    options::{DeleteOptions, Propagation},
};
use crate::{
    admission::{Attributes, Operation},
    authn::User,
    discovery::served::Served,
    handlers::respond::Reply,
    request::call::Call,
    storage,
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// What deleting comes down to.
#[derive(Debug, PartialEq)]
enum Decision {
    /// With the version to show last, of kinds that have a grace period.
    Remove(Option<Value>),
    /// Marked; a kubelet, a finalizer or a controller ends it.
    Update(Value),
    /// Already on its way and nothing to change.
    Pending,
}

/// What became of the object.
pub(super) enum Deleted {
    Removed(Arc<Object>),
    Marked(Arc<Object>),
}

impl Registry {
    pub(super) async fn delete(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let options = DeleteOptions::from_request(call, body)?;
        let unsaid = options.propagation.is_none() && options.orphan_dependents.is_none();
        if let Some(warning) = served.behavior.unsaid_propagation_warning().filter(|_| unsaid) {
            call.warn(warning);
        }
        let deleted = self.delete_object(call, served, &call.info.namespace, &call.info.name, &options).await?;
        Ok(match deleted {
            Deleted::Marked(object) => {
                let status = match options.orphan_dependents {
                    Some(false) => StatusCode::ACCEPTED,
                    _ => StatusCode::OK,
                };
                Reply::Object(status, served.clone(), object)
            }
            Deleted::Removed(object) if served.behavior.returns_deleted() => {
                Reply::Object(StatusCode::OK, served.clone(), object)
            }
            Deleted::Removed(object) => Reply::Value(StatusCode::OK, success(served, &object)),
        })
    }

    pub(super) async fn delete_object(
        &self,
        call: &Call,
        served: &Arc<Served>,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        // Deletions are rare next to reads: deciding on the newest version saves a second round.
        let mut current = self.cluster.live(served, namespace, name).await?;
        loop {
            let Some(object) = &current else {
                return Err(ApiError::not_found(&served.group, &served.plural, name));
            };
            match self.delete_attempt(call, served, namespace, name, object, options).await? {
                Ok(deleted) => return Ok(deleted),
                Err(Superseded(newer)) => current = newer,
            }
        }
    }

    async fn delete_attempt(
        &self,
        call: &Call,
        served: &Arc<Served>,
        namespace: &str,
        name: &str,
        object: &Arc<Object>,
        options: &DeleteOptions,
    ) -> Result<Result<Deleted, Superseded>, ApiError> {
        preconditions(served, object, options)?;
        let old = object.value();
        if !options.admitted {
            let mut attributes = Attributes {
                user: &call.user,
                operation: Operation::Delete,
                resource: &served.resource,
                subresource: "",
                namespace,
                name,
                object: Value::Null,
                old: old.clone(),
                dry_run: options.dry_run,
                options: options.to_value(),
                warnings: Vec::new(),
            };
            self.admission.admit(&mut attributes).await?;
            self.admission.validate(&mut attributes).await?;
            attributes.warnings.iter().for_each(|w| call.warn(w));
        }
        let decision = decide(served, &old, options, self.cluster.env.now())?;
        let key = served.key(namespace, name);
        let expected = object.meta.resource_version;
        match decision {
            Decision::Pending => Ok(Ok(Deleted::Marked(self.view(served, object).await?))),
            Decision::Remove(marked) => {
                let last = match &marked {
                    Some(marked) => storage::encode(marked),
                    None => storage::without_revision(object.json()),
                };
                if options.dry_run {
                    let last = Arc::new(storage::decode(&last, expected)?);
                    return Ok(Ok(Deleted::Removed(self.view(served, &last).await?)));
                }
                if let Some(marked) = marked.filter(|_| node_must_hear(served, &old, &call.user)) {
                    return self.remove_after_marking(served, &key, &marked, expected).await;
                }
                match self.remove(served, &key, &old, expected).await? {
                    Ok((_, revision)) => {
                        let last = Arc::new(storage::decode(&last, revision)?);
                        Ok(Ok(Deleted::Removed(self.view(served, &last).await?)))
                    }
                    Err(lost) => Ok(Err(lost)),
                }
            }
            Decision::Update(new) if options.dry_run => {
                Ok(Ok(Deleted::Marked(self.view(served, &Arc::new(Object::from_value(&new)?)).await?)))
            }
            Decision::Update(new) => match self.commit(served, &key, Some(&new), expected).await? {
                Ok((bytes, revision)) => {
                    let marked = Arc::new(storage::decode(&bytes, revision)?);
                    Ok(Ok(Deleted::Marked(self.view(served, &marked).await?)))
                }
                Err(lost) => Ok(Err(lost)),
            },
        }
    }
}

impl Registry {
    /// The object and what was allocated for it.
    async fn remove(
        &self,
        served: &Served,
        key: &str,
        old: &Value,
        expected: Revision,
    ) -> Result<Result<(Bytes, Revision), Superseded>, ApiError> {
        let with = self.allocations.for_delete(served, old).writes(old, &self.cluster.env);
        let removed = self.commit_with(served, key, None, expected, with).await?;
        Ok(removed.map_err(|why| why.unwrap_or(Superseded(None))))
    }

    /// A grace period of zero is written before the object goes, so that whoever watches it learns how it went. What
    /// fails in between is finished by the next deletion.
    async fn remove_after_marking(
        &self,
        served: &Arc<Served>,
        key: &str,
        marked: &Value,
        expected: Revision,
    ) -> Result<Result<Deleted, Superseded>, ApiError> {
        let (bytes, revision) = match self.commit(served, key, Some(marked), expected).await? {
            Ok(written) => written,
            Err(lost) => return Ok(Err(lost)),
        };
        let mut last = Arc::new(storage::decode(&bytes, revision)?);
        loop {
            let removed = self.remove(served, key, &last.value(), last.meta.resource_version).await?;
            let newer = match removed {
                Ok((_, revision)) => {
                    let gone = storage::decode(&storage::without_revision(last.json()), revision)?;
                    return Ok(Ok(Deleted::Removed(self.view(served, &Arc::new(gone)).await?)));
                }
                Err(Superseded(newer)) => newer.filter(|newer| newer.meta.uid == last.meta.uid),
            };
            // Removed by another, which the same mark told to.
            let Some(newer) = newer else { return Ok(Ok(Deleted::Removed(self.view(served, &last).await?))) };
            if !newer.meta.finalizers.is_empty() {
                return Ok(Ok(Deleted::Marked(self.view(served, &newer).await?)));
            }
            last = newer;
        }
    }
}

/// Whether a kubelet may still run what goes at once. The one that says it has stopped the pod need not be told.
fn node_must_hear(served: &Served, old: &Value, user: &User) -> bool {
    let something_runs = served.behavior.grace_period_seconds(old, Some(1)) == Some(1);
    let told = old["metadata"]["deletionTimestamp"].is_string()
        && old["metadata"]["deletionGracePeriodSeconds"].as_i64() == Some(0);
    something_runs && !told && !user.in_group("system:nodes")
}

pub(super) fn preconditions(served: &Served, object: &Object, options: &DeleteOptions) -> Result<(), ApiError> {
    let meta = &object.meta;
    // Kinds with finalizers of their own look themselves; the others name the kind, not the resource.
    if served.behavior.has_spec_finalizers() || served.behavior.deletion_finalizer().is_some() {
        return own_preconditions(served, object, options);
    }
    let conflict = |why: String| Err(ApiError::conflict(&served.group, &served.kind, &meta.name, &why));
    if let Some(uid) = options.uid.as_ref().filter(|u| **u != meta.uid) {
        return conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been \
             deleted and then recreated",
            meta.uid
        ));
    }
    let version = meta.resource_version.to_string();
    if let Some(wanted) = options.resource_version.as_ref().filter(|v| **v != version) {
        return conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
             ({version}). The object might have been modified"
        ));
    }
    Ok(())
}

fn own_preconditions(served: &Served, object: &Object, options: &DeleteOptions) -> Result<(), ApiError> {
    let version = object.meta.resource_version.to_string();
    let parts = [
        ("UID", &options.uid, object.meta.uid.as_str()),
        ("ResourceVersion", &options.resource_version, version.as_str()),
    ];
    for (name, wanted, found) in parts {
        if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != found) {
            let why = format!("Precondition failed: {name} in precondition: {wanted}, {name} in object meta: {found}");
            return Err(ApiError::conflict(&served.group, &served.plural, &object.meta.name, &why));
        }
    }
    Ok(())
}

fn decide(served: &Served, old: &Value, options: &DeleteOptions, now: Timestamp) -> Result<Decision, ApiError> {
    if served.behavior.has_spec_finalizers() {
        return decide_namespace(old, now);
    }
    let mut new = old.clone();
    let deleting = old["metadata"]["deletionTimestamp"].as_str();
    if let Some(finalizer) = served.behavior.deletion_finalizer().filter(|_| deleting.is_none()) {
        // Marked in a way of its own: no grace period, no generation.
        let now = object_meta::timestamp(now);
        push_finalizer(&mut new, finalizer);
        object_meta::metadata_mut(&mut new).insert("deletionTimestamp".into(), now.as_str().into());
        served.behavior.prepare_deletion(&mut new, &now);
        return Ok(Decision::Update(new));
    }
    let granted = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    let mut graceful = false;
    match deleting {
        Some(deadline) if granted > 0 => match options.grace_period_seconds {
            // A grace period can only be shortened.
            Some(asked) if asked < granted => {
                shorten(&mut new, deadline, granted, asked, now);
                graceful = asked > 0;
            }
            _ => return Ok(Decision::Pending),
        },
        Some(_) => {}
        None => {
            if let Some(seconds) = served.behavior.grace_period_seconds(old, options.grace_period_seconds) {
                mark(&mut new, now, seconds);
                graceful = seconds > 0;
            }
        }
    }
    set_finalizers(&mut new, options, served.behavior.default_propagation());
    if graceful {
        return Ok(Decision::Update(new));
    }
    let held = new["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    if !held {
        let has_grace = served.behavior.grace_period_seconds(old, None).is_some();
        return Ok(Decision::Remove(has_grace.then_some(new)));
    }
    if !new["metadata"]["deletionTimestamp"].is_string() {
        mark(&mut new, now, 0);
    } else {
        object_meta::metadata_mut(&mut new).insert("deletionGracePeriodSeconds".into(), 0.into());
    }
    Ok(if new == *old { Decision::Pending } else { Decision::Update(new) })
}

fn mark(object: &mut Value, now: Timestamp, seconds: i64) {
    let deadline = Timestamp::from_second(now.as_second().saturating_add(seconds)).unwrap_or(now);
    let generation = object["metadata"]["generation"].as_i64();
    let metadata = object_meta::metadata_mut(object);
    metadata.insert("deletionTimestamp".into(), object_meta::timestamp(deadline).into());
    metadata.insert("deletionGracePeriodSeconds".into(), seconds.into());
    if let Some(generation) = generation.filter(|g| *g > 0) {
        metadata.insert("generation".into(), (generation + 1).into());
    }
}

/// Moves the deadline to where it would be had the shorter period been asked for at first, but not into the past.
fn shorten(object: &mut Value, deadline: &str, granted: i64, asked: i64, now: Timestamp) {
    let deadline = deadline.parse::<Timestamp>().unwrap_or(now).as_second() - granted + asked;
    let (deadline, asked) = match deadline < now.as_second() {
        true => (now.as_second(), asked.min(1)),
        false => (deadline, asked),
    };
    let deadline = Timestamp::from_second(deadline).unwrap_or(now);
    let metadata = object_meta::metadata_mut(object);
    metadata.insert("deletionTimestamp".into(), object_meta::timestamp(deadline).into());
    metadata.insert("deletionGracePeriodSeconds".into(), asked.into());
}

/// How dependents are treated is said by two finalizers the garbage collector acts on.
fn set_finalizers(object: &mut Value, options: &DeleteOptions, default: Propagation) {
    let says = |finalizer: &Value| finalizer == ORPHAN || finalizer == FOREGROUND;
    let said = object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| finalizers.iter().any(says));
    let policy = match (options.propagation, options.orphan_dependents) {
        (Some(policy), _) => policy,
        (None, Some(true)) => Propagation::Orphan,
        (None, Some(false)) => Propagation::Background,
        (None, None) if default == Propagation::Orphan && !said => Propagation::Orphan,
        // Unsaid: whatever the object already says.
        (None, None) => return,
    };
    let metadata = object_meta::metadata_mut(object);
    let found = metadata.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut finalizers: Vec<Value> = found.into_iter().filter(|f| f != ORPHAN && f != FOREGROUND).collect();
    match policy {
        Propagation::Orphan => finalizers.push(ORPHAN.into()),
        Propagation::Foreground => finalizers.push(FOREGROUND.into()),
        Propagation::Background => {}
    }
    match finalizers.is_empty() {
        true => metadata.remove("finalizers"),
        false => metadata.insert("finalizers".into(), finalizers.into()),
    };
}

fn push_finalizer(object: &mut Value, finalizer: &str) {
    let metadata = object_meta::metadata_mut(object);
    let list = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut()
        && !list.iter().any(|f| f == finalizer)
    {
        list.push(finalizer.into());
    }
}

fn decide_namespace(old: &Value, now: Timestamp) -> Result<Decision, ApiError> {
    let held = namespace::held(old) || old["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    if !held {
        return Ok(Decision::Remove(None));
    }
    if old["metadata"]["deletionTimestamp"].is_string() {
        let text = "The system is ensuring all content is removed from this namespace.  Upon completion, this \
                    namespace will automatically be purged by the system.";
        let name = object_meta::text(old, "name");
        let message = format!("Operation cannot be fulfilled on namespaces {name:?}: {text}");
        let details = json!({ "name": name, "kind": "namespaces" });
        return Err(ApiError::new(Reason::Conflict, message).with_details(details));
    }
    let mut new = old.clone();
    let metadata = object_meta::metadata_mut(&mut new);
    metadata.insert("deletionTimestamp".into(), object_meta::timestamp(now).into());
    new["status"]["phase"] = "Terminating".into();
    Ok(Decision::Update(new))
}

fn success(served: &Served, object: &Object) -> Value {
    let mut details = json!({ "name": object.meta.name, "kind": served.plural, "uid": object.meta.uid });
    if !served.group.is_empty() {
        details["group"] = served.group.as_str().into();
    }
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::served::ServedResources;

    #[test]
    fn decides_by_grace_and_finalizers() {
        let resources = ServedResources::new();
        let configmaps = resources.find("", "v1", "configmaps").unwrap();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let check = |finalizers: Value, options: Value, expected: &str| {
            let mut old = json!({ "metadata": { "name": "a", "finalizers": finalizers } });
            if old["metadata"]["finalizers"].is_null() {
                object_meta::metadata_mut(&mut old).remove("finalizers");
            }
            let options = DeleteOptions::from_value(&options).unwrap();
            let found = match decide(&configmaps, &old, &options, now).unwrap() {
                Decision::Remove(_) => "remove".to_string(),
                Decision::Pending => "pending".to_string(),
                Decision::Update(v) => v["metadata"]["finalizers"].to_string(),
            };
            assert_eq!(found, expected);
        };
        check(Value::Null, json!({}), "remove");
        check(json!(["x/y"]), json!({}), "[\"x/y\"]");
        check(Value::Null, json!({ "propagationPolicy": "Foreground" }), "[\"foregroundDeletion\"]");
        check(Value::Null, json!({ "propagationPolicy": "Orphan" }), "[\"orphan\"]");
        check(Value::Null, json!({ "orphanDependents": true }), "[\"orphan\"]");
        check(json!(["orphan"]), json!({ "propagationPolicy": "Background" }), "remove");
    }

    #[test]
    fn old_kinds_preserve_their_dependents() {
        let resources = ServedResources::new();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (group, plural) in [("", "replicationcontrollers"), ("batch", "jobs")] {
            let served = resources.find(group, "v1", plural).unwrap();
            let check = |finalizers: Value, options: Value, expected: &str| {
                let old = json!({ "metadata": { "name": "a", "finalizers": finalizers } });
                let options = DeleteOptions::from_value(&options).unwrap();
                let found = match decide(&served, &old, &options, now).unwrap() {
                    Decision::Update(v) => v["metadata"]["finalizers"].to_string(),
                    _ => "gone".to_string(),
                };
                assert_eq!(found, expected, "{plural} {options:?}");
            };
            check(json!([]), json!({}), "[\"orphan\"]");
            check(json!(["foregroundDeletion"]), json!({}), "[\"foregroundDeletion\"]");
            check(json!([]), json!({ "propagationPolicy": "Background" }), "gone");
            check(json!([]), json!({ "orphanDependents": false }), "gone");
        }
    }
}
