//! What a request asks for, by its path.
//! Read by `handler`. Pure.

use crate::digest::Digest;

/// Longer ones would not fit into the name of a file.
const NAME_BYTES_MAX: usize = 200;
const TAG_BYTES_MAX: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Root,
    Catalog,
    Tags { name: String },
    Blob { name: String, digest: Digest },
    Uploads { name: String },
    Upload { name: String, id: String },
    Manifest { name: String, reference: Reference },
    Referrers { name: String, digest: Digest },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    Tag(String),
    Digest(Digest),
}

#[derive(Debug, PartialEq, Eq)]
pub enum RouteError {
    NotFound,
    Invalid,
}

impl Route {
    pub fn parse(path: &str) -> Result<Self, RouteError> {
        let rest = match path {
            "/v2" | "/v2/" => return Ok(Self::Root),
            "/v2/_catalog" => return Ok(Self::Catalog),
            _ => path.strip_prefix("/v2/").ok_or(RouteError::NotFound)?,
        };
        let words: Vec<&str> = rest.split('/').collect();
        let name = |words: &[&str]| repository(&words.join("/")).ok_or(RouteError::Invalid);
        let digest = |text: &str| Digest::parse(text).ok_or(RouteError::Invalid);
        match words.as_slice() {
            [head @ .., "blobs", "uploads"] | [head @ .., "blobs", "uploads", ""] => {
                Ok(Self::Uploads { name: name(head)? })
            }
            [head @ .., "blobs", "uploads", id] => match id.bytes().all(|b| b.is_ascii_alphanumeric()) {
                true => Ok(Self::Upload { name: name(head)?, id: id.to_string() }),
                false => Err(RouteError::Invalid),
            },
            [head @ .., "tags", "list"] => Ok(Self::Tags { name: name(head)? }),
            [head @ .., "blobs", last] => Ok(Self::Blob { name: name(head)?, digest: digest(last)? }),
            [head @ .., "referrers", last] => Ok(Self::Referrers { name: name(head)?, digest: digest(last)? }),
            [head @ .., "manifests", last] => {
                let reference = Reference::parse(last).ok_or(RouteError::Invalid)?;
                Ok(Self::Manifest { name: name(head)?, reference })
            }
            _ => Err(RouteError::NotFound),
        }
    }
}

impl Reference {
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains(':') {
            return Digest::parse(text).map(Self::Digest);
        }
        let first = text.bytes().next()?;
        let is_good = (first.is_ascii_alphanumeric() || first == b'_')
            && text.len() <= TAG_BYTES_MAX
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        is_good.then(|| Self::Tag(text.to_string()))
    }
}

/// `library/demo`: small letters and digits, with single dots, dashes and underscores in between.
pub fn repository(name: &str) -> Option<String> {
    let is_word = |word: &str| {
        let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let (first, last) = (word.bytes().next(), word.bytes().last());
        first.is_some_and(is_letter)
            && last.is_some_and(is_letter)
            && word.bytes().all(|b| is_letter(b) || b"._-".contains(&b))
            && !word.contains("..")
    };
    (name.len() <= NAME_BYTES_MAX && name.split('/').all(is_word)).then(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_what_the_specification_says() {
        let hex = "a".repeat(64);
        let digest = Digest::of_hex(&hex).unwrap();
        let check =
            |path: &str, expected: Result<Route, RouteError>| assert_eq!(Route::parse(path), expected, "{path}");
        let name = || "library/demo".to_string();
        check("/v2/", Ok(Route::Root));
        check("/v2/_catalog", Ok(Route::Catalog));
        check("/v2/library/demo/tags/list", Ok(Route::Tags { name: name() }));
        check("/v2/library/demo/blobs/uploads/", Ok(Route::Uploads { name: name() }));
        check("/v2/library/demo/blobs/uploads/a1", Ok(Route::Upload { name: name(), id: "a1".into() }));
        check(
            &format!("/v2/library/demo/blobs/sha256:{hex}"),
            Ok(Route::Blob { name: name(), digest: digest.clone() }),
        );
        let tag = Reference::Tag("v1.0".into());
        check("/v2/library/demo/manifests/v1.0", Ok(Route::Manifest { name: name(), reference: tag }));
        let by_digest = Reference::Digest(digest.clone());
        check(&format!("/v2/a/manifests/sha256:{hex}"), Ok(Route::Manifest { name: "a".into(), reference: by_digest }));
        check(&format!("/v2/a/referrers/sha256:{hex}"), Ok(Route::Referrers { name: "a".into(), digest }));
        for bad in [
            "/v2/../x/tags/list",
            "/v2/A/tags/list",
            "/v2/a//b/tags/list",
            "/v2/a/manifests/..",
            "/v2/-a/tags/list",
            "/v2/a/blobs/uploads/..",
            "/v2/a/blobs/sha256:xyz",
            "/v2/a/manifests/sha256:..",
            "/v2/tags/list",
        ] {
            check(bad, Err(RouteError::Invalid));
        }
        check("/metrics", Err(RouteError::NotFound));
        check("/v2/a/other", Err(RouteError::NotFound));
    }
}
