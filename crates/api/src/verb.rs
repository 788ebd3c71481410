//! What a request does to a resource: the verbs of the API, of discovery and of authorization.
//! Used by the table of kinds, by the API server's request info and authorizers, and by discovery.
//! A verb that has a variant is never `Other` (`From<&str>` and `FromStr` see to it).

use std::{convert::Infallible, fmt, str::FromStr};

use serde::{Serialize, Serializer};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Create,
    Delete,
    DeleteCollection,
    Get,
    List,
    Patch,
    Update,
    Watch,
    /// What only authorization knows (`impersonate`, `bind`, `use`), and the lower-case method of a request for a
    /// path that is no resource. Empty for a method that does nothing to resources.
    Other(Box<str>),
}

use Verb::{Create, Delete, DeleteCollection, Get, List, Other, Patch, Update, Watch};

impl Verb {
    /// The verbs that a resource may support, in the order of discovery.
    pub const RESOURCE: [Verb; 8] = [Create, Delete, DeleteCollection, Get, List, Patch, Update, Watch];

    pub fn as_str(&self) -> &str {
        match self {
            Create => "create",
            Delete => "delete",
            DeleteCollection => "deletecollection",
            Get => "get",
            List => "list",
            Patch => "patch",
            Update => "update",
            Watch => "watch",
            Other(text) => text,
        }
    }

    /// Of a request for a resource, as far as its method tells; a collection's `get` is a list or a watch.
    pub fn of_method(method: &http::Method) -> Self {
        match method.as_str() {
            "POST" => Create,
            "GET" | "HEAD" => Get,
            "PUT" => Update,
            "PATCH" => Patch,
            "DELETE" => Delete,
            _ => Self::default(),
        }
    }

    /// Changes nothing, on a resource.
    pub fn is_read(&self) -> bool {
        matches!(self, Get | List | Watch)
    }
}

/// None at all.
impl Default for Verb {
    fn default() -> Self {
        Other("".into())
    }
}

impl From<&str> for Verb {
    fn from(text: &str) -> Self {
        Self::RESOURCE.into_iter().find(|verb| verb.as_str() == text).unwrap_or_else(|| Other(text.into()))
    }
}

impl FromStr for Verb {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.into())
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Verb {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_back() {
        for verb in Verb::RESOURCE {
            assert_eq!(verb.to_string().parse(), Ok(verb));
        }
        assert_eq!(Verb::from("impersonate"), Other("impersonate".into()));
        assert_eq!(Verb::from("").to_string(), "");
        assert_eq!(Verb::from("GET"), Other("GET".into()), "verbs are lower case");
    }

    #[test]
    fn methods() {
        let check = |method: &str, verb: &str| {
            assert_eq!(Verb::of_method(&method.parse().unwrap()).as_str(), verb, "{method}");
        };
        check("POST", "create");
        check("HEAD", "get");
        check("PUT", "update");
        check("OPTIONS", "");
    }
}
