//! The order of fields in Go's types, which encoders of typed objects keep.
//! Used by the JSON and KYAML of objects that a command made or changed as typed objects.
//! Maps, and what has no type here, stay sorted by key.

use api::schema::{Field, Node, TypeId, builtin};
use serde_json::{Map, Value};

use crate::kubeconfig::schema;

/// What is known of a value's type.
#[derive(Clone, Copy)]
pub enum Shape {
    Untyped,
    Struct(TypeId),
    Node(&'static Node),
    /// Of a kubeconfig, which no server has; of a list, what its items are.
    Kubeconfig(&'static schema::Struct),
}

impl Shape {
    /// By the object's own words.
    pub fn of(object: &Value) -> Self {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        if (text("apiVersion"), text("kind")) == ("v1", "Config") {
            return Self::Kubeconfig(&schema::FILE);
        }
        let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
        builtin().find_kind(group, version, text("kind")).map_or(Self::Untyped, Self::Struct)
    }

    /// The entries of a map in their order, each with its shape.
    pub fn entries(self, map: &Map<String, Value>) -> Vec<(&String, &Value, Self)> {
        let id = match self {
            Self::Struct(id) | Self::Node(&Node::Struct(id)) => id,
            Self::Node(Node::Map(inner, _)) => {
                return map.iter().map(|(key, value)| (key, value, Self::Node(inner))).collect();
            }
            Self::Kubeconfig(of) => {
                let shape = |inner: Option<&'static schema::Struct>| inner.map_or(Self::Untyped, Self::Kubeconfig);
                let found = |(field, inner)| map.get_key_value(field).map(|(key, value)| (key, value, shape(inner)));
                return of.in_order().filter_map(found).collect();
            }
            _ => return map.iter().map(|(key, value)| (key, value, Self::Untyped)).collect(),
        };
        let of = builtin().get(id);
        let mut found: Vec<_> = map.iter().map(|(key, value)| (key, value, of.field(key))).collect();
        found.sort_by_key(|(key, _, field)| place(key, *field));
        let shape = |field: Option<&'static Field>| field.map_or(Self::Untyped, |field| Self::Node(&field.node));
        found.into_iter().map(|(key, value, field)| (key, value, shape(field))).collect()
    }

    /// That of a list's items.
    pub fn item(self) -> Self {
        match self {
            Self::Node(Node::List(inner, _)) => Self::Node(inner),
            Self::Kubeconfig(of) => Self::Kubeconfig(of),
            _ => Self::Untyped,
        }
    }
}

/// The kind comes first; the rest has the order of its numbers on the wire.
fn place(key: &str, field: Option<&Field>) -> (u32, u32) {
    match (key, field) {
        ("kind", Some(field)) if field.proto == 0 => (0, 0),
        ("apiVersion", Some(field)) if field.proto == 0 => (0, 1),
        // Younger on the wire than in the struct.
        ("initContainers", Some(_)) => (1, 1),
        (_, Some(field)) => match field.wire.inside[0] {
            0 => (field.proto, 0),
            outer => (u32::from(outer), field.proto),
        },
        (_, None) => (u32::MAX, 0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::template::go_format;

    #[test]
    fn typed_objects_keep_the_order_of_go() {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"annotations": {"b": "1", "a": "2"}, "labels": {"x": "y"}, "name": "p"},
            "spec": {"containers": [{"image": "x", "name": "c"}], "dnsPolicy": "Default", "initContainers": [], "restartPolicy": "Never", "volumes": []},
        });
        let wanted = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","labels":{"x":"y"},"annotations":{"a":"2","b":"1"}},"spec":{"volumes":[],"initContainers":[],"containers":[{"name":"c","image":"x"}],"restartPolicy":"Never","dnsPolicy":"Default"}}"#;
        assert_eq!(go_format::typed_json(&object, None), wanted);
        let config = json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"cluster": {"certificate-authority": "f", "server": "s"}, "name": "n"}]});
        let wanted = r#"{"kind":"Config","apiVersion":"v1","clusters":[{"name":"n","cluster":{"server":"s","certificate-authority":"f"}}]}"#;
        assert_eq!(go_format::typed_json(&config, None), wanted);
        let foreign = json!({"apiVersion": "e.x/v1", "kind": "Own", "b": 1, "a": {"d": 1, "c": 2}});
        assert_eq!(go_format::typed_json(&foreign, None), go_format::json(&foreign));
    }
}
