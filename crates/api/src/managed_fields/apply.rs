//! Server-side apply: merge the configuration, drop what its manager no longer mentions, refuse what others own.
//! Used by `apiserver` on PATCH with `application/apply-patch+yaml`.
//! An apply that changes nothing gives back the live object as it was.

use serde_json::{Map, Value};

use super::{
    Options, UNOWNED,
    conflict::{self, Conflict},
    last_applied, managed_fields,
    managers::{Manager, Managers, Operation},
    path::equal,
    set::Set,
    set_managed_fields, take_managed_fields,
    typed::Typed,
    update,
};
use crate::{
    ApiError, Reason,
    schema::{Node, Schema, TypeId},
};

const KUBECTL: &str = "kubectl";
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The object after `config` is applied to `live` (`None`: there is no such object yet). Defaulting and validation
/// come after. The result equals `live` when there is nothing to write.
pub fn apply(
    schema: &Schema,
    root: TypeId,
    live: Option<&Value>,
    config: &Value,
    options: Options,
) -> Result<Value, ApiError> {
    let attempt = Attempt { typed: Typed { schema }, root, node: Node::Struct(root), config, options };
    attempt.check_config(live)?;
    let mut object = live.cloned().unwrap_or_else(|| Value::Object(Map::new()));
    let mut managers = Managers::parse(managed_fields(&object))
        .map_err(|e| ApiError::new(Reason::Unknown, format!("failed to decode managed fields: {e}")))?;
    take_managed_fields(&mut object);
    for manager in &mut managers.0 {
        attempt.typed.reconcile(&attempt.node, &mut manager.set);
    }
    if managers.is_empty() && live.is_some() {
        let before = Options { manager: BEFORE_FIRST_APPLY, ..options };
        let nothing = Value::Object(Map::new());
        update::record(schema, root, &nothing, &object, &mut managers, &before);
    }
    attempt.run(live, &object, managers)
}

/// Whether the configuration says null where the object has nothing: no change of the object, but upstream counts it as
/// one when it notes the time.
fn brings_null(live: &Value, config: &Value) -> bool {
    match (live, config) {
        (Value::Object(live), Value::Object(config)) => config.iter().any(|(key, value)| match live.get(key) {
            Some(live) => brings_null(live, value),
            None => value.is_null(),
        }),
        (Value::Array(live), Value::Array(config)) => live.iter().zip(config).any(|(l, c)| brings_null(l, c)),
        _ => false,
    }
}

struct Attempt<'a> {
    typed: Typed<'a>,
    root: TypeId,
    node: Node,
    config: &'a Value,
    options: Options<'a>,
}

impl Attempt<'_> {
    fn check_config(&self, live: Option<&Value>) -> Result<(), ApiError> {
        let config = self.config;
        if !config.is_object() {
            return Err(ApiError::bad_request("error decoding YAML: the object to apply must be a map"));
        }
        let text = |object: &Value, key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        let (api_version, kind) = (text(config, "apiVersion"), text(config, "kind"));
        let other_kind = live.is_some_and(|live| text(live, "kind") != kind && live.get("kind").is_some());
        if api_version != self.options.api_version || kind.is_empty() || other_kind {
            let named = describe_kind(&api_version, &kind);
            return Err(ApiError::bad_request(format!("invalid object type: {named}")));
        }
        if managed_fields(config).is_some_and(|fields| !fields.is_null()) {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        self.typed.validate(&self.node, config).map_err(|complaint| {
            let name = |key: &str| {
                config.pointer(&format!("/metadata/{key}")).and_then(Value::as_str).unwrap_or_default().to_string()
            };
            let message = format!(
                "failed to create typed patch object ({}/{}; {}): {complaint}",
                name("namespace"),
                name("name"),
                describe_kind(&api_version, &kind)
            );
            ApiError::new(Reason::Unknown, message)
        })
    }

    fn run(&self, live: Option<&Value>, object: &Value, managers: Managers) -> Result<Value, ApiError> {
        let mut me =
            Manager::new(self.options.manager, Operation::Apply, self.options.api_version, self.options.subresource);
        let ignored = self.options.ignored(self.typed.schema, self.root);
        me.set = self.typed.field_set(&self.node, self.config).recursive_difference(&ignored);
        let before = managers.get(&me.who).cloned();
        me.time = before.as_ref().and_then(|m| m.time.clone());

        let mut others = managers.clone();
        others.take(&me.who);
        let merged = self.typed.merge(&self.node, Some(object), Some(self.config)).unwrap_or_default();
        let new = match before.as_ref().filter(|before| !before.set.is_subset(&me.set)) {
            Some(before) => self.prune(merged, &before.set, &me.set, &others),
            None => merged,
        };
        self.take_over(object, &new, &ignored, &mut others)?;

        let changed = !equal(object, &new) || brings_null(object, self.config);
        me.set = me.set.difference(&UNOWNED);
        if changed {
            me.time = Some(self.options.time());
        }
        if !me.set.is_empty() {
            others.0.push(me);
        }
        let mut new = new;
        if self.options.manager == KUBECTL {
            last_applied::refresh(&mut new, self.config);
        }
        if let Some(live) = live
            && !changed
            && same_managers(&managers, &others)
            && managed_fields(live).is_some()
        {
            return Ok(live.clone());
        }
        set_managed_fields(&mut new, &others);
        Ok(new)
    }

    /// Takes from the other managers what the apply changes; a conflict when that is not allowed.
    fn take_over(&self, old: &Value, new: &Value, ignored: &Set, others: &mut Managers) -> Result<(), ApiError> {
        let changes = self.typed.compare(&self.node, old, new).without(ignored);
        let written = changes.modified.union(&changes.added);
        let contested = |m: &Manager| Conflict::new(m, m.set.intersection(&written));
        let mut conflicts: Vec<Conflict> = others.0.iter().map(contested).filter(|c| !c.set.is_empty()).collect();
        if !conflicts.is_empty() && !self.options.force {
            let allowed = match self.options.manager {
                KUBECTL => last_applied::unchanged(&self.typed, &self.node, old, self.options.api_version),
                _ => None,
            };
            for conflict in &mut conflicts {
                conflict.set = conflict.set.difference(allowed.as_ref().unwrap_or(&Set::default()));
            }
            conflicts.retain(|c| !c.set.is_empty());
            if !conflicts.is_empty() {
                return Err(conflict::error(conflicts));
            }
        }
        let lost = written.union(&changes.removed);
        for manager in &mut others.0 {
            manager.set = manager.set.difference(&lost);
        }
        others.0.retain(|manager| !manager.set.is_empty());
        Ok(())
    }

    /// Removes what this manager applied last time, does not mention now, and nobody else owns.
    fn prune(&self, merged: Value, last: &Set, mine: &Set, others: &Managers) -> Value {
        let (typed, node) = (&self.typed, &self.node);
        let all = |set: &Set| typed.with_parents(node, set);
        let set_of = |value: &Value| all(&typed.field_set(node, value));
        let without = |gone: &Set| typed.remove(node, &merged, gone).unwrap_or_else(|| Value::Object(Map::new()));

        let last = all(last);
        let owned = others.0.iter().fold(mine.clone(), |sum, manager| sum.union(&manager.set));
        let merged_set = set_of(&merged);
        // First everything that was applied last time goes, then comes back what someone owns, and finally what was
        // never applied here: the parts of removed elements that nobody owns.
        let bare = set_of(&without(&last));
        let kept = set_of(&without(&merged_set.difference(&bare.union(&all(&owned)))));
        without(&merged_set.difference(&kept).intersection(&last))
    }
}

fn same_managers(a: &Managers, b: &Managers) -> bool {
    a.0.len() == b.0.len() && a.0.iter().all(|m| b.0.contains(m))
}

/// As Go prints a group, version and kind.
fn describe_kind(api_version: &str, kind: &str) -> String {
    match api_version.contains('/') {
        true => format!("{api_version}, Kind={kind}"),
        false => format!("/{api_version}, Kind={kind}"),
    }
}
