//! What a kubeconfig file may hold: fields, their types, and which of them are always written.
//! Asked by `Config` when it reads, shows and writes.
//! What is not here is neither shown nor written back, as Go's typed reader would have it.

use serde_json::{Map, Value, json};

enum Shape {
    Text,
    Truth,
    Texts,
    One(&'static Struct),
    Many(&'static Struct),
    /// Whatever somebody else put there.
    Any,
}

/// What stands for a field that nobody set.
enum Absent {
    Nothing,
    Text,
    Null,
    False,
}

use Absent::{False, Nothing, Null};
use Shape::{Any, Many, One, Text, Texts, Truth};

pub struct Struct {
    /// The name of Go's type, which its messages say.
    name: &'static str,
    fields: &'static [(&'static str, Shape, Absent)],
}

pub static CLUSTER: Struct = Struct {
    name: "Cluster",
    fields: &[
        ("server", Text, Absent::Text),
        ("tls-server-name", Text, Nothing),
        ("insecure-skip-tls-verify", Truth, Nothing),
        ("certificate-authority", Text, Nothing),
        ("certificate-authority-data", Text, Nothing),
        ("proxy-url", Text, Nothing),
        ("disable-compression", Truth, Nothing),
        ("extensions", Any, Nothing),
    ],
};

pub static USER: Struct = Struct {
    name: "AuthInfo",
    fields: &[
        ("client-certificate", Text, Nothing),
        ("client-certificate-data", Text, Nothing),
        ("client-key", Text, Nothing),
        ("client-key-data", Text, Nothing),
        ("token", Text, Nothing),
        ("tokenFile", Text, Nothing),
        ("as", Text, Nothing),
        ("as-uid", Text, Nothing),
        ("as-groups", Texts, Nothing),
        ("as-user-extra", Any, Nothing),
        ("username", Text, Nothing),
        ("password", Text, Nothing),
        ("auth-provider", One(&AUTH_PROVIDER), Nothing),
        ("exec", One(&EXEC), Nothing),
        ("extensions", Any, Nothing),
    ],
};

pub static CONTEXT: Struct = Struct {
    name: "Context",
    fields: &[
        ("cluster", Text, Absent::Text),
        ("user", Text, Absent::Text),
        ("namespace", Text, Nothing),
        ("extensions", Any, Nothing),
    ],
};

static AUTH_PROVIDER: Struct =
    Struct { name: "AuthProviderConfig", fields: &[("name", Text, Absent::Text), ("config", Any, Null)] };

static EXEC: Struct = Struct {
    name: "ExecConfig",
    fields: &[
        ("command", Text, Absent::Text),
        ("args", Texts, Null),
        ("env", Many(&EXEC_ENV_VAR), Null),
        ("apiVersion", Text, Nothing),
        ("installHint", Text, Nothing),
        ("provideClusterInfo", Truth, False),
        ("interactiveMode", Text, Nothing),
    ],
};

static EXEC_ENV_VAR: Struct =
    Struct { name: "ExecEnvVar", fields: &[("name", Text, Absent::Text), ("value", Text, Absent::Text)] };

pub static FILE: Struct = Struct {
    name: "Config",
    fields: &[
        ("kind", Any, Nothing),
        ("apiVersion", Any, Nothing),
        ("preferences", Any, Nothing),
        ("clusters", Many(&NAMED_CLUSTER), Nothing),
        ("users", Many(&NAMED_USER), Nothing),
        ("contexts", Many(&NAMED_CONTEXT), Nothing),
        ("current-context", Text, Nothing),
        ("extensions", Any, Nothing),
    ],
};
static NAMED_CLUSTER: Struct =
    Struct { name: "NamedCluster", fields: &[("name", Text, Nothing), ("cluster", One(&CLUSTER), Nothing)] };
static NAMED_USER: Struct =
    Struct { name: "NamedAuthInfo", fields: &[("name", Text, Nothing), ("user", One(&USER), Nothing)] };
static NAMED_CONTEXT: Struct =
    Struct { name: "NamedContext", fields: &[("name", Text, Nothing), ("context", One(&CONTEXT), Nothing)] };

/// Versions whose plugins may be without an interactive mode, and the one they then have.
pub const MODE_IS_OPTIONAL: [&str; 2] =
    ["client.authentication.k8s.io/v1beta1", "client.authentication.k8s.io/v1alpha1"];
const MODE_IF_ABSENT: &str = "IfAvailable";

/// What is of another type than its field, in the words of Go's JSON reader.
pub fn mismatch(file: &Value) -> Option<String> {
    FILE.mismatch(file, "")
}

impl Struct {
    fn mismatch(&self, value: &Value, path: &str) -> Option<String> {
        let map = value.as_object()?;
        self.fields.iter().find_map(|(field, shape, _)| {
            let found = map.get(*field).filter(|value| !value.is_null())?;
            let path = if path.is_empty() { (*field).to_string() } else { format!("{path}.{field}") };
            let wrong = |value: &Value, wanted: &str| {
                let found = match value {
                    Value::Object(_) => "object",
                    Value::Array(_) => "array",
                    Value::String(_) => "string",
                    Value::Bool(_) => "bool",
                    _ => "number",
                };
                let owner = self.name;
                Some(format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {wanted}"))
            };
            match (shape, found) {
                (Any, _) | (Text, Value::String(_)) | (Truth, Value::Bool(_)) => None,
                (Text, other) => wrong(other, "string"),
                (Truth, other) => wrong(other, "bool"),
                (Texts, Value::Array(items)) => {
                    items.iter().find(|item| !item.is_string()).and_then(|item| wrong(item, "string"))
                }
                (Texts, other) => wrong(other, "[]string"),
                (One(of), Value::Object(_)) => of.mismatch(found, &path),
                (One(of), other) => wrong(other, &format!("v1.{}", of.name)),
                (Many(of), Value::Array(items)) => items.iter().find_map(|item| match item {
                    Value::Object(_) | Value::Null => of.mismatch(item, &path),
                    other => wrong(other, &format!("v1.{}", of.name)),
                }),
                (Many(of), other) => wrong(other, &format!("[]v1.{}", of.name)),
            }
        })
    }

    /// Its fields in Go's order; with each the struct that it, or each of its items, is.
    pub fn in_order(&self) -> impl Iterator<Item = (&'static str, Option<&'static Struct>)> {
        self.fields.iter().map(|(field, shape, _)| match shape {
            One(of) | Many(of) => (*field, Some(*of)),
            Text | Truth | Texts | Any => (*field, None),
        })
    }

    /// The known fields of a value, and what is written for those that nobody set.
    pub fn shaped(&self, value: &Value) -> Value {
        let mut shaped = Map::new();
        for (field, shape, absent) in self.fields {
            let found = match (shape, &value[*field]) {
                (One(of), found @ Value::Object(_)) => of.shaped(found),
                (Many(of), Value::Array(items)) => items.iter().map(|item| of.shaped(item)).collect(),
                (_, found) => found.clone(),
            };
            let found = match (absent, is_empty(&found)) {
                (_, false) => found,
                (Nothing, true) => continue,
                (Absent::Text, true) => json!(""),
                // A list that is there and has nothing in it stays one.
                (Null, true) if found.is_array() => found,
                (Null, true) => Value::Null,
                (False, true) => json!(false),
            };
            shaped.insert((*field).to_string(), found);
        }
        let version = shaped.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        if std::ptr::eq(self, &EXEC) && MODE_IS_OPTIONAL.contains(&version) && !shaped.contains_key("interactiveMode") {
            shaped.insert("interactiveMode".to_string(), MODE_IF_ABSENT.into());
        }
        Value::Object(shaped)
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against what kubectl 1.35 says of the same files.
    #[test]
    fn what_is_of_another_type_is_named() {
        let check = |file: Value, wanted: Option<&str>| {
            let wanted = wanted.map(|tail| format!("json: cannot unmarshal {tail}"));
            assert_eq!(mismatch(&file), wanted, "{file}");
        };
        let user = |user: Value| json!({"users": [{"name": "u", "user": user}]});
        let field = |what: &str| format!("number into Go struct field {what}");
        check(user(json!({"token": 7})), Some(&field("AuthInfo.users.user.token of type string")));
        check(user(json!({"exec": {"args": 7}})), Some(&field("ExecConfig.users.user.exec.args of type []string")));
        check(json!({"users": [{"name": 7}]}), Some(&field("NamedAuthInfo.users.name of type string")));
        check(json!({"users": [7]}), Some(&field("Config.users of type v1.NamedAuthInfo")));
        check(user(json!(7)), Some(&field("NamedAuthInfo.users.user of type v1.AuthInfo")));
        let cluster = json!({"clusters": [{"name": "c", "cluster": {"insecure-skip-tls-verify": 7}}]});
        check(cluster, Some(&field("Cluster.clusters.cluster.insecure-skip-tls-verify of type bool")));
        check(json!({"current-context": 7}), Some(&field("Config.current-context of type string")));
        let env = user(json!({"exec": {"env": {"a": "b"}}}));
        check(env, Some("object into Go struct field ExecConfig.users.user.exec.env of type []v1.ExecEnvVar"));
        let clusters = json!({"clusters": {"a": "b"}});
        check(clusters, Some("object into Go struct field Config.clusters of type []v1.NamedCluster"));
        check(user(json!({"token": null, "nope": 7, "exec": {"args": ["a"]}})), None);
    }

    #[test]
    fn what_is_always_written_is_there_and_what_is_unknown_is_not() {
        let check = |of: &Struct, value: Value, wanted: Value| assert_eq!(of.shaped(&value), wanted, "{value}");
        check(&CLUSTER, json!({"nope": 3, "insecure-skip-tls-verify": false}), json!({"server": ""}));
        check(&CONTEXT, json!({"namespace": "n"}), json!({"cluster": "", "user": "", "namespace": "n"}));
        check(&USER, json!({"token": "", "username": "z"}), json!({"username": "z"}));
        check(
            &USER,
            json!({"exec": {"command": "a", "apiVersion": "client.authentication.k8s.io/v1beta1"}}),
            json!({"exec": {"command": "a", "args": null, "env": null, "provideClusterInfo": false,
                "apiVersion": "client.authentication.k8s.io/v1beta1", "interactiveMode": "IfAvailable"}}),
        );
        check(
            &USER,
            json!({"auth-provider": {"name": "oidc"}}),
            json!({"auth-provider": {"name": "oidc", "config": null}}),
        );
    }
}
