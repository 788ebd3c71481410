//! YAML as Kubernetes reads it: turned into what the same JSON would say, octal modes and all.
//! Used through `codec::decode` and `codec::encode`.
//! One document, bounded in depth and in aliases.

use serde::de::DeserializeSeed;
use serde_json::{Map, Value};
use serde_saphyr::{Options, options::DuplicateKeyPolicy};

use super::{Decoded, mistyped_document, typed::Walk, unreadable};
use crate::{
    ApiError,
    schema::{self, Schema, TypeId},
};

/// Lower than for JSON, because the YAML reader takes 20 kB of stack for a level in a build without optimizations: at 92
/// levels a worker's 2 MiB were used up. What is deeper can be sent as JSON.
const YAML_DEPTH_MAX: usize = 64;

fn options(duplicate_keys: DuplicateKeyPolicy) -> Options {
    let mut options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: duplicate_keys,
        with_snippet: false,
    };
    if let Some(budget) = &mut options.budget {
        budget.max_depth = YAML_DEPTH_MAX;
    }
    options
}

pub(super) fn decode(bytes: &[u8], schema: Option<(&Schema, TypeId)>) -> Result<Decoded, ApiError> {
    if let Some(decoded) = decode_json(bytes, schema) {
        return Ok(decoded);
    }
    let walk = Walk::of_yaml(super::schema_or_builtin(schema));
    let read = serde_saphyr::with_deserializer_from_slice_with_options(
        bytes,
        options(DuplicateKeyPolicy::LastWins),
        |reader| match schema {
            Some((_, id)) => walk.root(id).deserialize(reader),
            None => walk.any().deserialize(reader),
        },
    );
    let (mut problems, failure) = walk.into_parts();
    if problems.iter().any(|p| p.starts_with("duplicate field ")) {
        let line = first_duplicate(bytes);
        problems.iter_mut().for_each(|problem| retell(problem, line));
    }
    match (read, failure) {
        (Ok(value), _) => Ok(Decoded { value, problems }),
        (Err(_), Some(failure)) => {
            let meta = type_meta(bytes);
            Err(mistyped_document(bytes, meta.as_object().unwrap_or(&Map::new()), schema, &failure))
        }
        (Err(error), None) => {
            // Go counts from zero there, and so does not name the first.
            let line = error.location().map(|l| l.line()).filter(|line| *line > 1);
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            let what = error.without_snippet().to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            Err(unreadable(bytes, schema, &format!("yaml: {line}{what}")))
        }
    }
}

/// JSON is YAML, and read much faster. Whatever is odd about it is for the YAML reader to say.
fn decode_json(bytes: &[u8], schema: Option<(&Schema, TypeId)>) -> Option<Decoded> {
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let walk = Walk::of_yaml(super::schema_or_builtin(schema));
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = match schema {
        Some((_, id)) => walk.root(id).deserialize(&mut reader),
        None => walk.any().deserialize(&mut reader),
    };
    let value = value.and_then(|value| reader.end().map(|()| value)).ok()?;
    let (problems, _) = walk.into_parts();
    problems.is_empty().then_some(Decoded { value, problems })
}

/// Upstream's YAML reader names the line and the key, not the path.
fn retell(problem: &mut String, line: u64) {
    if let Some(path) = problem.strip_prefix("duplicate field ") {
        let path = path.trim_matches('"');
        let key = path.rsplit('.').next().unwrap_or(path);
        *problem = format!("yaml: unmarshal errors:\n  line {line}: key {key:?} already set in map");
    }
}

fn first_duplicate(bytes: &[u8]) -> u64 {
    let walk = Walk::of_yaml(schema::builtin());
    let strict = options(DuplicateKeyPolicy::Error);
    let read = serde_saphyr::with_deserializer_from_slice_with_options(bytes, strict, |r| walk.any().deserialize(r));
    read.err().and_then(|e| e.location()).map_or(1, |l| l.line())
}

fn type_meta(bytes: &[u8]) -> Value {
    let walk = Walk::of_yaml(schema::builtin());
    let lenient = options(DuplicateKeyPolicy::LastWins);
    serde_saphyr::with_deserializer_from_slice_with_options(bytes, lenient, |r| walk.any().deserialize(r))
        .unwrap_or_default()
}
