//! Ownership after a write that is not an apply: whoever changes a field owns it.
//! Used by `apiserver` on create, update and the other patches; by `apply` for objects nobody has tracked yet.
//! Never fails; what cannot be read in `managedFields` is forgotten.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    Options, UNOWNED, managed_fields,
    managers::{Manager, Managers, Operation},
    set::Set,
    set_managed_fields, take_managed_fields,
    typed::Typed,
};
use crate::schema::{Node, Schema, TypeId};

/// Writes `metadata.managedFields` of `new`, which is about to replace `live` (`None`: it is being created).
pub fn track_update(
    schema: &Schema,
    root: TypeId,
    live: Option<&Value>,
    new: &mut Value,
    manager: &str,
    api_version: &str,
    subresource: &str,
    now: Timestamp,
) {
    let options = Options { manager, force: false, subresource, api_version, now, reset: None };
    track_update_with(schema, root, live, new, &options);
}

/// As `track_update`, with the endpoint's reset fields given.
pub fn track_update_with(schema: &Schema, root: TypeId, live: Option<&Value>, new: &mut Value, options: &Options) {
    let sent = take_managed_fields(new);
    let kept = live.and_then(managed_fields);
    let known = |entries: Option<&Value>| Managers::parse(entries).unwrap_or_default();
    let mut managers = if !options.subresource.is_empty() {
        known(kept)
    } else if is_reset(sent.as_ref()) {
        Managers::default()
    } else {
        match Managers::parse(sent.as_ref()) {
            Ok(managers) if !managers.is_empty() => managers,
            _ => known(kept),
        }
    };
    // An object whose tracking was switched off stays untracked until it is applied.
    if managers.is_empty() && live.is_some() {
        return;
    }
    let nothing = Value::Object(Map::new());
    record(schema, root, live.unwrap_or(&nothing), new, &mut managers, options);
    set_managed_fields(new, &managers);
}

/// `[]` or `[{}]`: the client asks to forget.
fn is_reset(entries: Option<&Value>) -> bool {
    match entries {
        Some(Value::Array(entries)) => match &entries[..] {
            [] => true,
            [Value::Object(entry)] => entry.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

/// Moves every field that differs between `live` and `new` to the writer.
pub(super) fn record(
    schema: &Schema,
    root: TypeId,
    live: &Value,
    new: &Value,
    managers: &mut Managers,
    options: &Options,
) {
    let typed = Typed { schema };
    let node = Node::Struct(root);
    for manager in &mut managers.0 {
        typed.reconcile(&node, &mut manager.set);
    }
    let changes = typed.compare(&node, live, new).without(&options.ignored(schema, root));
    let written = changes.modified.union(&changes.added).difference(&UNOWNED);
    let touched: Set = changes.modified.union(&changes.added).union(&changes.removed);
    if touched.is_empty() {
        return;
    }
    for manager in &mut managers.0 {
        manager.set = manager.set.difference(&touched);
    }
    managers.0.retain(|manager| !manager.set.is_empty());
    if !written.is_empty() {
        let mut me = Manager::new(options.manager, Operation::Update, options.api_version, options.subresource);
        me.set = match managers.get(&me.who) {
            Some(before) => written.union(&before.set),
            None => written,
        };
        me.time = Some(options.time());
        managers.replace(me);
    }
    managers.cap();
}
