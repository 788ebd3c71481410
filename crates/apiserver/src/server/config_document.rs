//! Configuration files: read as YAML or JSON, and what is wrong with one told by its line and field.
//! Used by `authn::oidc`, `authz`, `admission`, `audit`, `storage::encryption` and for the kubeconfigs of webhooks.
//! Of a file that holds secrets only the names of fields are ever quoted: what is told goes to the log and into Events.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Error, Spanned};

use api::field::ErrorList;

/// The longest name of a field that is quoted from a file with secrets, and no key is as short.
const QUOTED_NAME_BYTES_MAX: usize = 20;

/// The document; an error says where it is.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    parse(text).map_err(|error| error.to_string())
}

/// As `read`, of a document whose values nobody may see.
pub fn read_secret<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    parse(text).map_err(|error| {
        let at = error.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
        format!("{}{}", without_values(&error), at.unwrap_or_default())
    })
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { with_snippet: false })
}

fn without_values(error: &Error) -> String {
    let is_name = |text: &str| text.len() <= QUOTED_NAME_BYTES_MAX && text.bytes().all(|b| b.is_ascii_alphanumeric());
    match error.without_snippet() {
        Error::SerdeUnknownField { field, .. } if is_name(field) => format!("unknown field `{field}`"),
        Error::SerdeUnknownField { .. } => "unknown field".into(),
        Error::SerdeMissingField { field, .. } => format!("missing field `{field}`"),
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            format!("invalid value, expected {expected}")
        }
        Error::Unexpected { expected, .. } => format!("unexpected value, expected {expected}"),
        _ => "the file is not as it should be".into(),
    }
}

/// What is wrong with the fields of a document, each mistake with its line.
pub fn mistakes(text: &str, errors: &ErrorList) -> String {
    let root = Node::of(text);
    let told = errors.iter().map(|error| with_line(root.as_ref(), &error.path.to_string(), &error.to_string()));
    told.collect::<Vec<_>>().join(", ")
}

/// The same of one mistake in the settings below `under`, which are `what` and are told by a text that may begin with a
/// field.
pub fn mistake(text: &str, under: &str, what: &str, why: &str) -> String {
    let root = Node::of(text);
    let found = root.as_ref().and_then(|root| {
        let (below, whole) = root.find(under);
        if !whole {
            return Some(below);
        }
        // As serde tells of one: "unknown field `name`, expected …".
        let unknown = why.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        let named = why.split(": ").next().filter(|field| !field.contains(' '));
        match (unknown, named) {
            (Some(name), _) => below.search(name).or(Some(below)),
            (None, Some(field)) => Some(below.find(field).0),
            (None, None) => Some(below),
        }
    });
    told(found, &format!("{what}{why}"))
}

fn with_line(root: Option<&Node>, field: &str, why: &str) -> String {
    told(root.map(|root| root.find(field).0), why)
}

fn told(node: Option<&Node>, why: &str) -> String {
    node.map_or_else(|| why.to_string(), |node| format!("line {}: {why}", node.line))
}

/// A value of a document, by where it begins.
struct Node {
    line: u64,
    content: Content,
}

enum Content {
    Leaf,
    List(Vec<Node>),
    Fields(Vec<(String, Node)>),
}

impl Node {
    /// `None`: it is no YAML, or has no fields.
    fn of(text: &str) -> Option<Self> {
        let found = parse::<Spanned<Content>>(text).ok()?;
        let has_fields = !matches!(found.value, Content::Leaf);
        has_fields.then_some(Self { line: found.referenced.line(), content: found.value })
    }

    fn field(&self, name: &str) -> Option<&Node> {
        let Content::Fields(fields) = &self.content else { return None };
        let own = fields.iter().find(|(key, _)| key == name).map(|(_, node)| node);
        own.or_else(|| {
            // Upstream's errors about `webhook.timeout` of an authorizer leave `webhook` out.
            let mut inner = fields.iter().filter_map(|(_, node)| match &node.content {
                Content::Fields(fields) => fields.iter().find(|(key, _)| key == name).map(|(_, node)| node),
                _ => None,
            });
            inner.next().filter(|_| inner.next().is_none())
        })
    }

    /// The value at `a.b[0].c`, or the last on the way to it that there is; and whether that is all of the way.
    fn find(&self, path: &str) -> (&Node, bool) {
        let mut found = self;
        let steps = path.split(['.', '[']).map(|step| step.strip_suffix(']').unwrap_or(step)).filter(|s| !s.is_empty());
        for step in steps {
            let next = match (&found.content, step.parse::<usize>()) {
                (Content::List(items), Ok(index)) => items.get(index),
                _ => found.field(step),
            };
            let Some(next) = next else { return (found, false) };
            found = next;
        }
        (found, true)
    }

    /// The first field of this name, however deep.
    fn search(&self, name: &str) -> Option<&Node> {
        match &self.content {
            Content::Leaf => None,
            Content::List(items) => items.iter().find_map(|item| item.search(name)),
            Content::Fields(fields) => fields.iter().find_map(|(key, node)| match key == name {
                true => Some(node),
                false => node.search(name),
            }),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value, a list or fields")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Leaf)
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Leaf)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Content, E> {
        Ok(Content::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Content, E> {
        Ok(Content::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Content, E> {
        Ok(Content::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Content, E> {
        Ok(Content::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Content, E> {
        Ok(Content::Leaf)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element::<Spanned<Content>>()? {
            items.push(Node { line: item.referenced.line(), content: item.value });
        }
        Ok(Content::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, content)) = map.next_entry::<Spanned<String>, Content>()? {
            fields.push((key.value, Node { line: key.referenced.line(), content }));
        }
        Ok(Content::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use api::field::Path;

    use super::*;

    const TEXT: &str =
        "# who\nkind: K\nlist:\n- name: a\n  inner:\n    timeout: 3s\n- name: b\n  deep: {x: [1,\n    2]}\n";

    #[test]
    fn mistakes_have_lines() {
        let root = Path::new("list");
        let check = |path: Path, line: u64| {
            let mut errors = ErrorList::new();
            errors.required(&path, "");
            assert_eq!(mistakes(TEXT, &errors), format!("line {line}: {path}: Required value"));
        };
        check(root.index(0).child("name"), 4);
        check(root.index(0).child("inner").child("timeout"), 6);
        check(root.index(0).child("timeout"), 6);
        check(root.index(0).child("absent"), 4);
        check(root.index(1).child("name"), 7);
        check(root.index(1).child("deep").child("x").index(1), 9);
        check(root.index(7), 3);
        check(Path::new("absent"), 2);
        assert_eq!(mistake(TEXT, "list[1]", "", "deep.x[1]: Invalid value: 2"), "line 9: deep.x[1]: Invalid value: 2");
        let unknown = "unknown field `timeout`, expected `a`";
        assert_eq!(mistake(TEXT, "list[0]", "p: ", unknown), format!("line 6: p: {unknown}"));
        assert_eq!(mistake(TEXT, "list[0]", "", "it can't be so"), "line 4: it can't be so");
        assert_eq!(mistake("", "list[0]", "", "why"), "why");
    }

    #[test]
    fn secrets_are_not_quoted() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct File {
            keys: Vec<Key>,
        }
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Key {
            secret: String,
        }
        const SECRET: &str = "c2VjcmV0LXRoYXQtaXMtbm90LXNob3du";
        let check = |text: &str, expected: &str| {
            let text = text.replace("SECRET", SECRET);
            let error = read_secret::<File>(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("c2Vj"), "{text}: {error}");
        };
        check("keys:\n- SECRET\n", "line 2");
        check("keys: SECRET\n", "line 1");
        check("keys:\n- {secret:SECRET}\n", "unknown field at line 2");
        check("keys:\n- {secret: {SECRET: a}}\n", "line 2");
        check("keys:\n- {sekret: SECRET}\n", "unknown field `sekret` at line 2");
        check("keys:\n- {secret: [SECRET]}\n", "line 2");
        check("keys:\n- {secret: SECRET\n", "line");
        check("keys:\n- {secret: \"SECRET}\n", "line");
        check("keys:\n- {secret: SECRET, secret: SECRET}\n", "line 2");
        check("keys:\n- *SECRET\n", "line 2");
        check("keys:\n- secret: a: SECRET\n", "line 2");
    }
}
