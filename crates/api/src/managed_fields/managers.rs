//! `metadata.managedFields`: who owns what, since when, through which operation.
//! Used by `update` and `apply`.
//! Written sorted as upstream sorts; at most `UPDATE_MANAGERS_MAX` entries come from updates.

use serde_json::{Map, Value, json};

use super::set::Set;

/// Beyond this many update entries the oldest are merged.
pub const UPDATE_MANAGERS_MAX: usize = 10;
const ANCIENT: &str = "ancient-changes";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// Who: what makes two entries the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub manager: String,
    pub operation: Operation,
    /// Empty for appliers, who stay themselves from version to version.
    pub api_version: String,
    pub subresource: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    pub who: Identity,
    pub api_version: String,
    pub time: Option<String>,
    pub set: Set,
}

impl Manager {
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let manager = if manager.is_empty() { "unknown" } else { manager };
        let named_version = if operation == Operation::Apply { "" } else { api_version };
        Self {
            who: Identity {
                manager: manager.into(),
                operation,
                api_version: named_version.into(),
                subresource: subresource.into(),
            },
            api_version: api_version.into(),
            time: None,
            set: Set::default(),
        }
    }

    fn seconds(&self) -> i64 {
        let parse = |time: &String| time.parse::<jiff::Timestamp>().ok();
        self.time.as_ref().and_then(parse).map_or(0, |time| time.as_second())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managers(pub Vec<Manager>);

impl Managers {
    pub fn parse(entries: Option<&Value>) -> Result<Self, String> {
        let mut managers = Managers::default();
        let entries = match entries {
            None | Some(Value::Null) => return Ok(managers),
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err("managedFields must be a list".into()),
        };
        for (i, entry) in entries.iter().enumerate() {
            managers.replace(parse_entry(i, entry)?);
        }
        Ok(managers)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, who: &Identity) -> Option<&Manager> {
        self.0.iter().find(|m| m.who == *who)
    }

    pub fn take(&mut self, who: &Identity) -> Option<Manager> {
        self.0.iter().position(|m| m.who == *who).map(|at| self.0.remove(at))
    }

    /// Puts the entry in, in place of the one with its identity.
    pub fn replace(&mut self, manager: Manager) {
        self.take(&manager.who);
        self.0.push(manager);
    }

    pub fn encode(&self) -> Value {
        let mut sorted: Vec<(i64, &Manager)> = self.0.iter().map(|m| (m.seconds(), m)).collect();
        sorted.sort_by(|(seconds_a, a), (seconds_b, b)| {
            (a.who.operation, seconds_a, &a.who.manager, &a.api_version, &a.who.subresource).cmp(&(
                b.who.operation,
                seconds_b,
                &b.who.manager,
                &b.api_version,
                &b.who.subresource,
            ))
        });
        Value::Array(sorted.into_iter().map(|(_, m)| encode_entry(m)).collect())
    }

    /// Merges the oldest update entries, per version, until there are few enough.
    pub fn cap(&mut self) {
        let updates = |managers: &Managers| managers.0.iter().filter(|m| m.who.operation == Operation::Update).count();
        let mut excess = updates(self).saturating_sub(UPDATE_MANAGERS_MAX);
        if excess == 0 {
            return;
        }
        let mut oldest: Vec<(i64, Identity)> = self
            .0
            .iter()
            .filter(|m| m.who.operation == Operation::Update)
            .map(|m| (m.seconds(), m.who.clone()))
            .collect();
        oldest.sort();
        let mut first_of_version: Map<String, Value> = Map::new();
        for (i, (_, who)) in oldest.iter().enumerate() {
            if excess == 0 {
                return;
            }
            let version = who.api_version.clone();
            let Some(first) = first_of_version.get(&version).and_then(Value::as_u64) else {
                first_of_version.insert(version, json!(i));
                continue;
            };
            let mut bucket = Manager::new(ANCIENT, Operation::Update, &version, "");
            if bucket.who == *who {
                continue;
            }
            let Some(merged) = self.take(who) else { continue };
            // The first of its version becomes the bucket when a second one joins it.
            let base = self.take(&bucket.who).or_else(|| self.take(&oldest[first as usize].1));
            bucket.set = base.map_or(merged.set.clone(), |base| base.set.union(&merged.set));
            bucket.time = merged.time;
            self.replace(bucket);
            excess -= 1;
        }
    }
}

fn text<'v>(entry: &'v Value, key: &str) -> &'v str {
    entry.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn parse_entry(i: usize, entry: &Value) -> Result<Manager, String> {
    let operation = match text(entry, "operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".into()),
    };
    let api_version = text(entry, "apiVersion");
    if api_version.is_empty() {
        return Err("apiVersion must not be empty".into());
    }
    match text(entry, "fieldsType") {
        "FieldsV1" => {}
        "" => return Err(format!("missing fieldsType in managed fields entry {i}")),
        other => return Err(format!("invalid fieldsType {other:?} in managed fields entry {i}")),
    }
    let mut manager = Manager::new("", operation, api_version, text(entry, "subresource"));
    manager.who.manager = text(entry, "manager").into();
    manager.time = entry.get("time").and_then(Value::as_str).map(Into::into);
    manager.set = Set::parse(entry.get("fieldsV1").unwrap_or(&Value::Null))
        .map_err(|e| format!("error decoding versioned set: error decoding set: {e}"))?;
    Ok(manager)
}

fn encode_entry(manager: &Manager) -> Value {
    let mut entry = json!({
        "manager": manager.who.manager,
        "operation": manager.who.operation.as_str(),
        "apiVersion": manager.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": manager.set.encode(),
    });
    if let Some(time) = &manager.time {
        entry["time"] = time.as_str().into();
    }
    if !manager.who.subresource.is_empty() {
        entry["subresource"] = manager.who.subresource.as_str().into();
    }
    entry
}
