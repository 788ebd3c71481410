//! Paths into objects and the validation errors found there, in upstream's words.
//! Used by `kinds/*` (validation); turned into a 422 by `status`.
//! Collects every error; never stops at the first.

use std::fmt;

use serde_json::{Value, json};

/// `spec.containers[0].image`. Cheap to extend; rendered only when there is an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Path(String);

impl Path {
    pub fn new(root: &str) -> Self {
        Self(root.to_string())
    }

    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_string()) } else { Self(format!("{}.{name}", self.0)) }
    }

    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorType {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    InternalError,
    TypeInvalid,
}

impl ErrorType {
    fn reason(self) -> &'static str {
        match self {
            ErrorType::NotFound => "FieldValueNotFound",
            ErrorType::Required => "FieldValueRequired",
            ErrorType::Duplicate => "FieldValueDuplicate",
            ErrorType::Invalid => "FieldValueInvalid",
            ErrorType::NotSupported => "FieldValueNotSupported",
            ErrorType::Forbidden => "FieldValueForbidden",
            ErrorType::TooLong => "FieldValueTooLong",
            ErrorType::TooMany => "FieldValueTooMany",
            ErrorType::InternalError => "InternalError",
            ErrorType::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn words(self) -> &'static str {
        match self {
            ErrorType::NotFound => "Not found",
            ErrorType::Required => "Required value",
            ErrorType::Duplicate => "Duplicate value",
            ErrorType::Invalid | ErrorType::TypeInvalid => "Invalid value",
            ErrorType::NotSupported => "Unsupported value",
            ErrorType::Forbidden => "Forbidden",
            ErrorType::TooLong => "Too long",
            ErrorType::TooMany => "Too many",
            ErrorType::InternalError => "Internal error",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    pub kind: ErrorType,
    pub path: Path,
    /// What was found there; not shown for `Required`, `Forbidden`, `TooLong` and `InternalError`.
    pub value: Value,
    pub detail: String,
    /// What is shown instead of the value; empty for nothing.
    shown: Option<String>,
}

impl Error {
    fn body(&self) -> String {
        let words = self.kind.words();
        let head = match self.kind {
            ErrorType::Required | ErrorType::Forbidden | ErrorType::TooLong | ErrorType::InternalError => {
                words.to_string()
            }
            _ => match self.shown.as_deref() {
                Some("") => words.to_string(),
                Some(text) => format!("{words}: {text}"),
                None => format!("{words}: {}", shown(&self.value)),
            },
        };
        if self.detail.is_empty() { head } else { format!("{head}: {}", self.detail) }
    }

    /// One entry of `Status.details.causes`.
    pub fn cause(&self) -> Value {
        json!({ "reason": self.kind.reason(), "message": self.body(), "field": self.path.to_string() })
    }
}

/// Values as Go's `%q`/`%v`/`%#v` show them in field errors.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Null => "null".to_string(),
        other => other.to_string(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// Everything wrong with one object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ErrorList {
    errors: Vec<Error>,
    /// Where expressions stand, which only the API server can read: before which error what is wrong with one belongs.
    expressions: Vec<(usize, Path)>,
}

impl ErrorList {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, kind: ErrorType, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.errors.push(Error { kind, path: path.clone(), value: value.into(), detail: detail.into(), shown: None });
    }

    /// The same, about a value that is found at `path`.
    pub fn below(mut self, path: &Path) -> Self {
        for error in &mut self.errors {
            error.path = if error.path.0.is_empty() { path.clone() } else { path.child(&error.path.0) };
        }
        self
    }

    pub fn required(&mut self, path: &Path, detail: &str) {
        self.push(ErrorType::Required, path, "", detail);
    }

    pub fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(ErrorType::Invalid, path, value, detail);
    }

    /// Invalid, without showing the value: it is large, or secret, or has no text.
    pub fn invalid_quiet(&mut self, path: &Path, detail: impl Into<String>) {
        self.invalid_shown(path, "", detail);
    }

    /// Invalid, with a value that upstream shows in a form of its own.
    pub fn invalid_shown(&mut self, path: &Path, shown: impl Into<String>, detail: impl Into<String>) {
        self.errors.push(Error {
            kind: ErrorType::Invalid,
            path: path.clone(),
            value: Value::Null,
            detail: detail.into(),
            shown: Some(shown.into()),
        });
    }

    pub fn forbidden(&mut self, path: &Path, detail: impl Into<String>) {
        self.push(ErrorType::Forbidden, path, "", detail);
    }

    pub fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.push(ErrorType::Duplicate, path, value, "");
    }

    pub fn not_found(&mut self, path: &Path, value: impl Into<Value>) {
        self.push(ErrorType::NotFound, path, value, "");
    }

    pub fn too_long(&mut self, path: &Path, max_bytes: usize) {
        self.push(ErrorType::TooLong, path, "", format!("may not be more than {max_bytes} bytes"));
    }

    pub fn too_many(&mut self, path: &Path, found: usize, max: usize) {
        let plural = if max == 1 { "item" } else { "items" };
        self.push(ErrorType::TooMany, path, found, format!("must have at most {max} {plural}"));
    }

    /// `supported` is listed sorted and quoted, as upstream mostly does.
    pub fn not_supported(&mut self, path: &Path, value: impl Into<Value>, supported: &[&str]) {
        let mut supported = supported.to_vec();
        supported.sort_unstable();
        self.not_supported_as_listed(path, value, &supported);
    }

    /// Where upstream lists the values in an order of its own.
    pub fn not_supported_as_listed(&mut self, path: &Path, value: impl Into<Value>, supported: &[&str]) {
        self.push(ErrorType::NotSupported, path, value, supported_values(supported));
    }

    /// The same, with a value that upstream shows in a form of its own.
    pub fn not_supported_shown(&mut self, path: &Path, shown: String, supported: &[&str]) {
        self.not_supported_as_listed(path, Value::Null, supported);
        if let Some(last) = self.errors.last_mut() {
            last.shown = Some(shown);
        }
    }

    /// Has values shown as `form` says, where it says something of them and nothing else has.
    pub fn show_values(&mut self, form: impl Fn(&Path, &Value) -> Option<String>) {
        for error in self.errors.iter_mut().filter(|error| error.shown.is_none()) {
            error.shown = form(&error.path, &error.value);
        }
    }

    pub fn append(&mut self, mut other: ErrorList) {
        let before = self.errors.len();
        self.expressions.extend(other.expressions.into_iter().map(|(at, path)| (before + at, path)));
        self.errors.append(&mut other.errors);
    }

    /// Notes that there is an expression at `path`.
    pub fn expression(&mut self, path: &Path) {
        self.expressions.push((self.errors.len(), path.clone()));
    }

    /// Puts what is wrong with expressions where they were noted; the rest goes to the end.
    pub fn put_expressions(&mut self, wrong: ErrorList) {
        let mut wrong = wrong.errors;
        for (at, path) in std::mem::take(&mut self.expressions).into_iter().rev() {
            let here = wrong.iter().position(|error| error.path == path).map(|index| wrong.remove(index));
            if let Some(error) = here {
                self.errors.insert(at.min(self.errors.len()), error);
            }
        }
        self.errors.append(&mut wrong);
    }

    /// By their texts.
    pub fn sort(&mut self) {
        self.errors.sort_by_cached_key(ToString::to_string);
    }

    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    pub fn len(&self) -> usize {
        self.errors.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Error> {
        self.errors.iter()
    }
}

fn supported_values(supported: &[&str]) -> String {
    let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
    format!("supported values: {}", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_upstream_writes_them() {
        let path = Path::new("spec").child("containers").index(0).child("image");
        let check = |fill: &dyn Fn(&mut ErrorList), text: &str| {
            let mut errors = ErrorList::new();
            fill(&mut errors);
            assert_eq!(errors.iter().next().unwrap().to_string(), text);
        };
        check(&|e| e.required(&path, ""), "spec.containers[0].image: Required value");
        check(&|e| e.invalid(&path, "x", "no"), "spec.containers[0].image: Invalid value: \"x\": no");
        check(
            &|e| e.not_supported(&path, "x", &["b", "a"]),
            "spec.containers[0].image: Unsupported value: \"x\": supported values: \"a\", \"b\"",
        );
        check(&|e| e.too_long(&path, 63), "spec.containers[0].image: Too long: may not be more than 63 bytes");
        check(&|e| e.too_many(&path, 4, 3), "spec.containers[0].image: Too many: 4: must have at most 3 items");
    }
}
