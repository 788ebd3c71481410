//! `create`: a new object, completed, checked and stored under a name nobody has.
//! Part of `registry`; also used by a PUT or apply that creates.
//! What is allocated for an object is stored with it or not at all.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use api::{ApiError, Object, Reason, kinds::MetadataValidation};

use super::{
    AllocationConflict, Registry, Superseded, managed, object_meta, object_reply, options::WriteOptions,
    service::Allocation,
};
use crate::{
    admission::{Attributes, Operation, device_admin_access, expressions},
    discovery::served::Served,
    handlers::respond::Reply,
    request::call::Call,
    storage,
};

/// How often a taken generated name is replaced by another.
const NAME_ATTEMPTS: usize = 8;
/// How often an address or port that another server was quicker with is replaced by another.
const ALLOCATION_ATTEMPTS: usize = 32;

impl Registry {
    pub(super) async fn create(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let options = WriteOptions::from_query(call, "CreateOptions")?;
        let object = self.decode(call, served, body, &options)?;
        let object = Box::pin(self.create_object(call, served, object, &options, false)).await?;
        Ok(object_reply(StatusCode::CREATED, served, object))
    }

    /// `managed` objects (from server-side apply) already carry their managed fields.
    pub(super) async fn create_object(
        &self,
        call: &Call,
        served: &Arc<Served>,
        mut object: Value,
        options: &WriteOptions,
        managed: bool,
    ) -> Result<Arc<Object>, ApiError> {
        let namespace = call.info.namespace.as_str();
        object_meta::set_type(&mut object, served);
        object_meta::ensure_namespace(&mut object, served, namespace)?;
        object_meta::clear_system_fields(&mut object);
        let generated = object_meta::generate_name(&mut object, &self.cluster.env);
        let shares_labels = served.behavior.shares_template_labels(&object);
        self.default(served, &mut object);
        if !managed {
            // Owned is what Go would print: no empty lists, no zeros that are left out.
            canonicalize_sent(served, &mut object);
            managed::track(served, None, &mut object, options, "", self.cluster.env.now());
        }
        let mut object = self.admit_create(call, served, object, options, generated).await?;
        self.default(served, &mut object);
        // First: a job selects its pods by its uid.
        object_meta::fill_system_fields(&mut object, served, &self.cluster.env);
        self.assign_initializers(call, served, &mut object).await?;
        served.behavior.warnings_before_prepare(&object).into_iter().for_each(|w| call.warn(w));
        served.behavior.prepare_create(&mut object);
        if shares_labels {
            let labels = object["spec"]["template"]["metadata"]["labels"].clone();
            object_meta::metadata_mut(&mut object).insert("labels".into(), labels);
        }
        api::kinds::drop_disabled_fields(&served.resource, &mut object, &Value::Null, &self.config.feature_gates);
        for _ in 0..ALLOCATION_ATTEMPTS {
            let mut object = match self.allocations.concern(served) {
                true => object.clone(),
                false => std::mem::take(&mut object),
            };
            let allocation = self.allocations.for_create(served, &mut object).await?;
            canonicalize(served, &mut object);
            let object = self.validate_create(call, served, object, options).await?;
            let object = self.to_storage(served, object).await?;
            // As upstream, which allocates before it looks at the store.
            self.allocations.check(&allocation)?;
            if options.dry_run {
                self.refuse_existing(served, &object).await?;
                return self.view(served, &Arc::new(Object::from_value(&object)?)).await;
            }
            match self.insert(served, object, generated, &allocation).await? {
                Ok(stored) => {
                    let stored = self.await_initialized(call, served, stored).await?;
                    return self.view(served, &stored).await;
                }
                Err(contested) => self.contested(&allocation, contested).await?,
            }
        }
        Err(ApiError::internal("addresses and ports are contested; please try again"))
    }

    pub(super) fn default(&self, served: &Served, object: &mut Value) {
        if let Some((schema, id)) = &served.schema {
            schema.apply_defaults(*id, object);
        }
        served.behavior.default(object);
    }

    async fn admit_create(
        &self,
        call: &Call,
        served: &Served,
        object: Value,
        options: &WriteOptions,
        generated: bool,
    ) -> Result<Value, ApiError> {
        // As presented in the request: empty where it is to be generated.
        let name = if generated { String::new() } else { object_meta::text(&object, "name").to_string() };
        let mut attributes = self.create_attributes(call, served, object, &name, options);
        self.admission.admit(&mut attributes).await?;
        attributes.warnings.drain(..).for_each(|w| call.warn(w));
        Ok(attributes.object)
    }

    fn create_attributes<'a>(
        &self,
        call: &'a Call,
        served: &'a Served,
        object: Value,
        name: &'a str,
        options: &WriteOptions,
    ) -> Attributes<'a> {
        Attributes {
            user: &call.user,
            operation: Operation::Create,
            resource: &served.resource,
            subresource: "",
            namespace: &call.info.namespace,
            name,
            object,
            old: Value::Null,
            dry_run: options.dry_run,
            options: options.to_value("CreateOptions"),
            warnings: Vec::new(),
        }
    }

    async fn validate_create(
        &self,
        call: &Call,
        served: &Served,
        object: Value,
        options: &WriteOptions,
    ) -> Result<Value, ApiError> {
        let name = object_meta::text(&object, "name").to_string();
        let mut errors =
            device_admin_access::errors(&self.cluster, &served.resource, "", &object, &Value::Null).await?;
        let when = served.behavior.metadata_validation();
        if when == MetadataValidation::First {
            api::kinds::metadata::validate_create(&served.resource, &object, &mut errors);
        }
        served.behavior.validate_create(&object, &mut errors);
        if when == MetadataValidation::Last || (when == MetadataValidation::Alone && errors.is_empty()) {
            api::kinds::metadata::validate_create(&served.resource, &object, &mut errors);
        }
        if crate::crd::is_definition(served) {
            crate::crd::validate_rules(&object, &mut errors);
        }
        errors.put_expressions(expressions::errors(&served.resource, &object, &Value::Null));
        if !errors.is_empty() {
            return Err(ApiError::invalid(&served.group, &served.kind, &name, errors));
        }
        served.behavior.warnings(&object, None).into_iter().for_each(|w| call.warn(w));
        if !self.admission.has_validators() {
            return Ok(object);
        }
        let mut attributes = self.create_attributes(call, served, object, &name, options);
        self.admission.validate(&mut attributes).await?;
        attributes.warnings.iter().for_each(|w| call.warn(w));
        Ok(attributes.object)
    }

    /// For a write that is only tried: the name is taken, or not.
    async fn refuse_existing(&self, served: &Served, object: &Value) -> Result<(), ApiError> {
        let (namespace, name) = (object_meta::text(object, "namespace"), object_meta::text(object, "name"));
        match self.cluster.live(served, namespace, name).await? {
            Some(current) => Err(already_exists(served, name, Some(&current))),
            None => Ok(()),
        }
    }

    async fn insert(
        &self,
        served: &Served,
        mut object: Value,
        generated: bool,
        allocation: &Allocation,
    ) -> Result<Result<Arc<Object>, AllocationConflict>, ApiError> {
        if object_meta::has_resource_version(&object) {
            // Upstream's storage gives this error without a reason.
            let text = "resourceVersion should not be set on objects to be created";
            return Err(ApiError::new(Reason::Unknown, text));
        }
        let attempts = if generated { NAME_ATTEMPTS } else { 1 };
        let mut in_the_way = None;
        for _ in 0..attempts {
            let (namespace, name) = (object_meta::text(&object, "namespace"), object_meta::text(&object, "name"));
            let key = served.key(namespace, name);
            let with = allocation.writes(&object, &self.cluster.env);
            match self.commit_with(served, &key, Some(&object), 0, with).await? {
                Ok((bytes, revision)) => return Ok(Ok(Arc::new(storage::decode(&bytes, revision)?))),
                Err(Err(contested)) => return Ok(Err(contested)),
                Err(Ok(_)) if generated => object_meta::regenerate_name(&mut object, &self.cluster.env),
                Err(Ok(Superseded(current))) => {
                    in_the_way = current;
                    break;
                }
            }
        }
        Err(already_exists(served, object_meta::text(&object, "name"), in_the_way.as_deref()))
    }
}

/// Says so when what is in the way is about to go.
fn already_exists(served: &Served, name: &str, current: Option<&Object>) -> ApiError {
    let error = ApiError::already_exists(&served.group, &served.plural, name);
    match current.is_some_and(|c| c.meta.deletion_timestamp.is_some()) {
        true => error.with_message_prefix("object is being deleted: "),
        false => error,
    }
}

/// The form Go would print of what it has just read: lists that are empty are not nil yet.
pub(super) fn canonicalize_sent(served: &Served, object: &mut Value) {
    if let Some((schema, id)) = &served.schema {
        schema.canonicalize_sent(*id, object);
    }
}

/// The form Go would print, so that the same object always has the same bytes.
pub(super) fn canonicalize(served: &Served, object: &mut Value) {
    if let Some((schema, id)) = &served.schema {
        schema.canonicalize(*id, object);
    }
}
