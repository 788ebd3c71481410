//! Changes of existing objects: PUT, every patch and every subresource end here.
//! Part of `registry`.
//! Decided on one version, stored only if that is still the newest; otherwise decided again.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::Value;

use api::{ApiError, Object, Reason, Verb, field::ErrorList};

use super::{
    Registry, Superseded, create::canonicalize, managed, namespace, object_meta, object_reply, options::WriteOptions,
};
use crate::{
    admission::{Attributes, Operation, device_admin_access, expressions},
    authz::{self, Decision},
    discovery::served::{Served, StorageVersion},
    handlers::respond::Reply,
    request::call::Call,
    storage,
    storage::watch_cache::store_error,
};

/// Contended objects are tried this often before the client is told to try itself.
const UPDATE_ATTEMPTS_MAX: usize = 50;

/// Nodes say that they live, and nobody waits for the answer: those of one beat are written with one sync.
const LEASE_BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// From the current object (in the served version) to the wanted one.
pub(super) type Transform<'a> = &'a (dyn Fn(&Value) -> Result<Value, ApiError> + Send + Sync);

pub(super) type CreateOnUpdate<'a> = &'a (dyn Fn() -> Result<Value, ApiError> + Send + Sync);

/// What admission is shown of a change.
#[derive(Clone, Copy)]
pub(super) enum AdmissionView {
    /// The whole object.
    Whole,
    /// What the subresource is of it, which is written back as it was completed.
    Part { of: fn(&Served, &Value) -> Value, put: fn(&Served, &Value, &Value) -> Result<Value, ApiError> },
    /// Nothing: it has seen the body that led to the change.
    Nothing,
}

pub(super) struct Change<'a> {
    pub call: &'a Call,
    pub served: &'a Arc<Served>,
    pub namespace: &'a str,
    pub name: &'a str,
    pub subresource: &'a str,
    pub options: &'a WriteOptions,
    pub transform: Transform<'a>,
    /// What to create if there is nothing yet.
    pub otherwise: Option<CreateOnUpdate<'a>>,
    /// The transform is a server-side apply and keeps the managed fields itself.
    pub apply: bool,
    pub shown: AdmissionView,
}

/// A version and whether it is known to be the newest.
struct Current {
    object: Arc<Object>,
    live: bool,
}

impl Registry {
    pub(super) async fn put(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let options = WriteOptions::from_query(call, "UpdateOptions")?;
        let mut object = self.decode(call, served, body, &options)?;
        object_meta::set_type(&mut object, served);
        object_meta::ensure_namespace(&mut object, served, &call.info.namespace)?;
        let name = &call.info.name;
        object_meta::check_name(&object, name)?;
        let create = served.behavior.allow_create_on_update() && call.info.subresource.is_empty();
        let wanted = || Ok(object.clone());
        let change = Change {
            call,
            served,
            namespace: &call.info.namespace,
            name,
            subresource: &call.info.subresource,
            options: &options,
            transform: &|_| Ok(object.clone()),
            otherwise: create.then_some(&wanted),
            apply: false,
            shown: AdmissionView::Whole,
        };
        let (status, object) = Box::pin(self.change(&change)).await?;
        Ok(object_reply(status, served, object))
    }

    pub(super) async fn change(&self, change: &Change<'_>) -> Result<(StatusCode, Arc<Object>), ApiError> {
        let served = change.served;
        if served.behavior.is_heartbeat(change.namespace) {
            self.cluster.env.next_beat(LEASE_BATCH_INTERVAL).await;
        }
        let not_found = || ApiError::not_found(&served.group, &served.plural, change.name);
        let local = storage::local_key(&served.resource, change.namespace, change.name);
        let cached = self.cluster.cache.resource(&served.prefix).get(&local);
        let mut current = match cached {
            Some(entry) => Some(Current { object: entry.object.clone(), live: false }),
            None => self.live(change).await?,
        };
        for _ in 0..UPDATE_ATTEMPTS_MAX {
            let Some(now) = &current else {
                return match change.otherwise {
                    Some(wanted) => {
                        self.may_create(change).await?;
                        let mut object = wanted()?;
                        // A version of what is not there is none.
                        if !change.options.dry_run {
                            object_meta::metadata_mut(&mut object).remove("resourceVersion");
                        }
                        let made = self.create_object(change.call, served, object, change.options, change.apply);
                        Ok((StatusCode::CREATED, Box::pin(made).await?))
                    }
                    None => Err(not_found()),
                };
            };
            match self.attempt(change, &now.object).await {
                Ok(Ok(object)) => return Ok((StatusCode::OK, object)),
                Ok(Err(Superseded(newer))) => current = newer.map(|object| Current { object, live: true }),
                Err(e) if now.live => return Err(e),
                // Decided on what may be an old version: only the newest may refuse.
                Err(e) => {
                    let newest = self.live(change).await?;
                    if newest
                        .as_ref()
                        .is_some_and(|n| n.object.meta.resource_version == now.object.meta.resource_version)
                    {
                        return Err(e);
                    }
                    current = newest;
                }
            }
        }
        Err(ApiError::modified(&served.group, &served.plural, change.name))
    }

    /// Who may change an object that exists may not therefore make one.
    async fn may_create(&self, change: &Change<'_>) -> Result<(), ApiError> {
        let mut attributes = authz::Attributes::new(&change.call.user, &change.call.info);
        attributes.verb = Verb::Create;
        match self.authorizer.authorize(&attributes).await {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(why) | Decision::NoOpinion(why) => Err(authz::refusal(&attributes, &why)),
        }
    }

    async fn live(&self, change: &Change<'_>) -> Result<Option<Current>, ApiError> {
        let object = self.cluster.live(change.served, change.namespace, change.name).await?;
        Ok(object.map(|object| Current { object, live: true }))
    }

    async fn attempt(
        &self,
        change: &Change<'_>,
        current: &Arc<Object>,
    ) -> Result<Result<Arc<Object>, Superseded>, ApiError> {
        let served = change.served;
        let shown = self.view(served, current).await?;
        let old = shown.value();
        let mut new = (change.transform)(&old)?;
        self.check_preconditions(served, change.name, &new, &old)?;
        self.check_initializers(served, &mut new, &old)?;
        object_meta::keep_system_fields(&mut new, &old, served.namespaced());
        object_meta::metadata_mut(&mut new)
            .insert("resourceVersion".into(), old["metadata"]["resourceVersion"].clone());
        self.default(served, &mut new);
        if !change.apply {
            canonicalize(served, &mut new);
            managed::track(served, Some(&old), &mut new, change.options, change.subresource, self.cluster.env.now());
        }
        let (mut new, old) = self.admit_update(change, new, old).await?;
        self.default(served, &mut new);
        // Before the generation is compared: nil and empty are one.
        canonicalize(served, &mut new);
        self.prepare(change, &mut new, &old);
        let mut allocation = self.allocations.for_update(served, &mut new, &old).await?;
        canonicalize(served, &mut new);
        let (new, old) = self.validate_update(change, new, old).await?;
        let key = served.key(change.namespace, change.name);
        if managed::same(&new, &old)
            && !is_of_old_version(served, current)
            && !self.cluster.encrypted.is_stale(&key).await.map_err(store_error)?
        {
            return Ok(Ok(shown));
        }
        let gone = finishes_deletion(served, &new, &old);
        let stored = self.to_storage(served, new).await?;
        if change.options.dry_run {
            self.allocations.check(&allocation)?;
            return Ok(Ok(self.view(served, &Arc::new(Object::from_value(&stored)?)).await?));
        }
        let expected = current.meta.resource_version;
        let object = if gone { None } else { Some(&stored) };
        if gone {
            allocation = self.allocations.for_delete(served, &old);
        }
        let with = allocation.writes(&stored, &self.cluster.env);
        match self.commit_with(served, &key, object, expected, with).await? {
            Ok((bytes, revision)) => {
                let bytes = if gone { storage::encode(&stored) } else { bytes };
                let object = Arc::new(storage::decode(&bytes, revision)?);
                Ok(Ok(self.view(served, &object).await?))
            }
            Err(Ok(lost)) => Ok(Err(lost)),
            Err(Err(contested)) => {
                self.contested(&allocation, contested).await?;
                Ok(Err(Superseded(Some(current.clone()))))
            }
        }
    }

    fn check_preconditions(&self, served: &Served, name: &str, new: &Value, old: &Value) -> Result<(), ApiError> {
        let (wanted, found) = (object_meta::text(new, "uid"), object_meta::text(old, "uid"));
        if !wanted.is_empty() && wanted != found {
            return Err(other_uid(served, new, old));
        }
        let (wanted, found) = (object_meta::text(new, "resourceVersion"), object_meta::text(old, "resourceVersion"));
        match wanted {
            "" | "0" if served.behavior.allow_unconditional_update() => Ok(()),
            "" | "0" => {
                let mut errors = ErrorList::new();
                let path = api::field::Path::new("metadata").child("resourceVersion");
                errors.invalid(&path, 0, "must be specified for an update");
                // Upstream names the resource here, not the kind.
                Err(ApiError::invalid(&served.group, &served.plural, name, errors))
            }
            _ if wanted == found => Ok(()),
            _ if wanted.parse::<u64>().is_err() => {
                let why = format!("strconv.ParseUint: parsing {wanted:?}: invalid syntax");
                Err(ApiError::new(Reason::Unknown, why))
            }
            _ => Err(ApiError::modified(&served.group, &served.plural, name)),
        }
    }

    fn update_attributes<'a>(&self, change: &'a Change<'_>, object: Value, old: Value) -> Attributes<'a> {
        Attributes {
            user: &change.call.user,
            operation: Operation::Update,
            resource: &change.served.resource,
            subresource: change.subresource,
            namespace: change.namespace,
            name: change.name,
            object,
            old,
            dry_run: change.options.dry_run,
            options: change.options.to_value("UpdateOptions"),
            warnings: Vec::new(),
        }
    }

    /// The completed object; the old one comes back as it was.
    async fn admit_update(&self, change: &Change<'_>, new: Value, old: Value) -> Result<(Value, Value), ApiError> {
        let served = change.served;
        match change.shown {
            AdmissionView::Nothing => Ok((new, old)),
            AdmissionView::Whole => self.admit_shown(change, new, old).await,
            AdmissionView::Part { of, put } => {
                let (part, _) = self.admit_shown(change, of(served, &new), of(served, &old)).await?;
                Ok((put(served, &new, &part)?, old))
            }
        }
    }

    async fn admit_shown(&self, change: &Change<'_>, new: Value, old: Value) -> Result<(Value, Value), ApiError> {
        let mut attributes = self.update_attributes(change, new, old);
        self.admission.admit(&mut attributes).await?;
        attributes.warnings.drain(..).for_each(|w| change.call.warn(w));
        Ok((attributes.object, attributes.old))
    }

    fn prepare(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        let behavior = &change.served.behavior;
        match change.subresource {
            "" => {
                behavior.prepare_update(new, old);
                api::kinds::drop_disabled_fields(&change.served.resource, new, old, &self.config.feature_gates);
            }
            "status" => {
                api::kinds::drop_disabled_status(&change.served.resource, new, &self.config.feature_gates);
                behavior.prepare_status_update(new, old);
                behavior.stamp_status_update(new, old, self.cluster.env.now());
            }
            other => {
                behavior.prepare_subresource_update(other, new, old);
                behavior.stamp_subresource_update(other, new, old, self.cluster.env.now());
            }
        }
        // A pod is not asked for anything else by being bound.
        if behavior.has_generation()
            && behavior.generation_grows()
            && !["status", "binding"].contains(&change.subresource)
        {
            let whole = change.served.custom.is_some() && !behavior.has_status();
            object_meta::bump_generation(new, old, whole, behavior.generation_metadata());
        }
    }

    /// Gives both back as they were.
    async fn validate_update(&self, change: &Change<'_>, new: Value, old: Value) -> Result<(Value, Value), ApiError> {
        let served = change.served;
        let errors =
            device_admin_access::errors(&self.cluster, &served.resource, change.subresource, &new, &old).await?;
        self.validate_kind(change, &new, &old, errors)?;
        if !self.admission.has_validators() {
            return Ok((new, old));
        }
        let served = change.served;
        match change.shown {
            AdmissionView::Nothing => Ok((new, old)),
            AdmissionView::Whole => self.validate_shown(change, new, old).await,
            AdmissionView::Part { of, .. } => {
                self.validate_shown(change, of(served, &new), of(served, &old)).await?;
                Ok((new, old))
            }
        }
    }

    async fn validate_shown(&self, change: &Change<'_>, new: Value, old: Value) -> Result<(Value, Value), ApiError> {
        let mut attributes = self.update_attributes(change, new, old);
        self.admission.validate(&mut attributes).await?;
        attributes.warnings.iter().for_each(|w| change.call.warn(w));
        Ok((attributes.object, attributes.old))
    }

    fn validate_kind(
        &self,
        change: &Change<'_>,
        new: &Value,
        old: &Value,
        mut errors: ErrorList,
    ) -> Result<(), ApiError> {
        let served = change.served;
        api::kinds::metadata::validate_update(new, old, &mut errors);
        match change.subresource {
            "" => {
                served.behavior.validate_update(new, old, &mut errors);
                if crate::crd::is_definition(served) && new["spec"] != old["spec"] {
                    crate::crd::validate_rules(new, &mut errors);
                }
                errors.put_expressions(expressions::errors(&served.resource, new, old));
            }
            "status" => served.behavior.validate_status_update(new, old, &mut errors),
            other => served.behavior.validate_subresource_update(other, new, old, &mut errors),
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid(&served.group, &served.kind, change.name, errors));
        }
        if change.subresource.is_empty() {
            served.behavior.warnings(new, Some(old)).into_iter().for_each(|w| change.call.warn(w));
        }
        Ok(())
    }
}

/// What is to be changed is another object of that name, in the words of upstream's storage.
pub(super) fn other_uid(served: &Served, wanted: &Value, old: &Value) -> ApiError {
    let (namespace, name) = (object_meta::text(old, "namespace"), object_meta::text(old, "name"));
    let key = served.key(namespace, name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID \
         in precondition: {}, UID in object meta: {}",
        key.strip_prefix(storage::ROOT).unwrap_or(&key),
        object_meta::text(wanted, "uid"),
        object_meta::text(old, "uid"),
    );
    ApiError::conflict(&served.group, &served.plural, name, &why)
}

/// Whether it was stored before its kind got another storage version: then a write that changes nothing is written.
fn is_of_old_version(served: &Served, current: &Object) -> bool {
    let StorageVersion { group, version } = &served.storage_version;
    served.custom.is_some() && current.value()["apiVersion"] != format!("{group}/{version}")
}

/// An object that waits for its deletion goes with its last finalizer.
fn finishes_deletion(served: &Served, new: &Value, old: &Value) -> bool {
    let metadata = &new["metadata"];
    let deleted = old["metadata"]["deletionTimestamp"].is_string();
    let waiting = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0;
    let held = metadata["finalizers"].as_array().is_some_and(|f| !f.is_empty())
        || (served.behavior.has_spec_finalizers() && namespace::held(new));
    deleted && !waiting && !held
}
