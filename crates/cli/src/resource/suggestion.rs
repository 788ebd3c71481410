//! What somebody may have meant: the nearest field, kind or type to a word that is not known.
//! Used where a server refused a word, and where a kind or type was not found.
//! Only adds to what is said: what is refused is decided elsewhere.

use api::{
    names::distance,
    schema::{Node, TypeId},
};

use crate::discovery::Discovery;

/// How many letters may be wrong.
const DISTANCE_MAX: usize = 2;

fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Short words are near to everything.
    let limit = DISTANCE_MAX.min(word.len().saturating_sub(2) / 3);
    let near = known.map(|candidate| (distance(candidate, word), candidate)).filter(|(far, _)| *far <= limit);
    near.min().map(|(_, candidate)| candidate)
}

/// `did you mean "spec.replicas"?` for each unknown field that an answer names.
pub fn for_fields(kind: (&str, &str, &str), answer: &str) -> Vec<String> {
    let Some(root) = api::schema::builtin().find_kind(kind.0, kind.1, kind.2) else { return Vec::new() };
    let named = answer.split("unknown field \"").skip(1).filter_map(|rest| rest.split('"').next());
    named
        .filter_map(|path| {
            let meant = nearest_field(root, path)?;
            Some(format!("unknown field {path:?}: did you mean {meant:?}?"))
        })
        .collect()
}

fn nearest_field(root: TypeId, path: &str) -> Option<String> {
    let schema = api::schema::builtin();
    let (parents, last) = path.rsplit_once('.').map_or((None, path), |(parents, last)| (Some(parents), last));
    let mut node = Node::Struct(root);
    for part in parents.into_iter().flat_map(|parents| parents.split('.')) {
        let (name, indices) =
            part.split_once('[').map_or((part, 0), |(name, rest)| (name, 1 + rest.matches('[').count()));
        let Node::Struct(id) = node else { return None };
        node = schema.get(id).field(name)?.node.clone();
        for _ in 0..indices {
            node = match node {
                Node::List(inner, _) | Node::Map(inner, _) => *inner,
                _ => return None,
            };
        }
    }
    let Node::Struct(id) = node else { return None };
    let found = nearest(last, schema.get(id).fields.iter().map(|field| field.name.as_str()))?;
    Some(parents.map_or_else(|| found.to_string(), |parents| format!("{parents}.{found}")))
}

/// The same kind in another version, or the nearest kind.
pub fn for_kind(discovery: &Discovery, kind: &str) -> Option<String> {
    let kinds = || discovery.resources.iter().filter(|r| !r.name.contains('/'));
    let meant = nearest(kind, kinds().map(|r| r.kind.as_str()))?;
    let found = kinds().find(|r| r.kind == meant)?;
    Some(format!("did you mean kind {meant:?} in version {:?}?", found.group_version()))
}

/// The nearest name of a type.
pub fn for_resource(discovery: &Discovery, word: &str) -> Option<String> {
    let names = discovery.resources.iter().filter(|r| !r.name.contains('/'));
    let words = names.flat_map(|r| [r.name.as_str(), r.singular.as_str()]);
    nearest(&word.to_lowercase(), words.filter(|name| !name.is_empty())).map(|meant| format!("did you mean {meant:?}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_field_is_named() {
        let check = |answer: &str, wanted: &[&str]| {
            assert_eq!(for_fields(("apps", "v1", "Deployment"), answer), wanted, "{answer}");
        };
        check(
            "strict decoding error: unknown field \"spec.replicsa\", unknown field \"spec.template.spec.containers[0].imagePulPolicy\"",
            &[
                "unknown field \"spec.replicsa\": did you mean \"spec.replicas\"?",
                "unknown field \"spec.template.spec.containers[0].imagePulPolicy\": did you mean \"spec.template.spec.containers[0].imagePullPolicy\"?",
            ],
        );
        check("unknown field \"spec.Replicas\"", &["unknown field \"spec.Replicas\": did you mean \"spec.replicas\"?"]);
        check("unknown field \"spec.whatever\"", &[]);
        check("unknown field \"spec.no.such[0].path\"", &[]);
        check("unknown field \"sepc\"", &[]);
    }
}
