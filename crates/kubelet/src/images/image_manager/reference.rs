//! Image references: `[registry/]path[:tag][@digest]`.
//! Used by `image_manager`.
//! Invariant: pure (tidy: `pure_files`).

/// A text that is no image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {image:?}: invalid reference format")]
pub struct InvalidReference {
    pub image: String,
}

/// The reference with `:latest` where it names neither tag nor digest.
pub fn with_default_tag(image: &str) -> Result<String, InvalidReference> {
    let invalid = || Err(InvalidReference { image: image.into() });
    if image.is_empty() || image.len() > 4096 {
        return invalid();
    }
    let (name_and_tag, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let (name, tag) = match name_and_tag.rsplit_once(':') {
        // A colon before a slash belongs to the registry's port.
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name_and_tag, None),
    };
    let word = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let (registry, path) = split_registry(name);
    let path_fine = !path.is_empty()
        && path.split('/').all(|part| {
            !part.is_empty()
                && part.chars().all(|c| word(c) && !c.is_ascii_uppercase())
                && part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.ends_with(|c: char| c.is_ascii_alphanumeric())
        });
    let registry_fine = registry.is_none_or(|r| !r.is_empty() && r.chars().all(|c| word(c) || ":[]".contains(c)));
    let tag_fine =
        tag.is_none_or(|t| !t.is_empty() && t.len() <= 128 && t.chars().all(word) && !t.starts_with(['.', '-']));
    let digest_fine = digest.is_none_or(|d| {
        d.split_once(':').is_some_and(|(algorithm, hex)| {
            !algorithm.is_empty() && hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
        })
    });
    if !(path_fine && registry_fine && tag_fine && digest_fine) {
        return invalid();
    }
    Ok(if tag.is_none() && digest.is_none() { format!("{image}:latest") } else { image.to_string() })
}

/// The registry's host, if the first part of the name is one.
fn split_registry(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (Some(first), rest),
        _ => (None, name),
    }
}

/// The registry host and the path, with what stands for them when they are left out.
pub fn registry_and_path(image: &str) -> (&str, String) {
    let name = image.split('@').next().unwrap_or(image);
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match split_registry(name) {
        (Some(registry), path) => (registry, path.to_string()),
        (None, path) if path.contains('/') => ("docker.io", path.to_string()),
        (None, path) => ("docker.io", format!("library/{path}")),
    }
}

/// What the API would have set.
pub fn default_policy(image: &str) -> &'static str {
    if image.ends_with(":latest") { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        let check = |image: &str, expected: Option<&str>| {
            assert_eq!(with_default_tag(image).ok().as_deref(), expected, "{image}");
        };
        check("busybox", Some("busybox:latest"));
        check("busybox:1.36", Some("busybox:1.36"));
        check("localhost:5000/a/b", Some("localhost:5000/a/b:latest"));
        let digest = "a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        check(digest, Some(digest));
        check("example.com/Upper", None);
        check("a b", None);
        check("", None);
        check("x:", None);
        check("a//b", None);
        let check = |image: &str, registry: &str, path: &str| {
            assert_eq!(registry_and_path(image), (registry, path.to_string()));
        };
        check("busybox", "docker.io", "library/busybox");
        check("me/x:1", "docker.io", "me/x");
        check("localhost:5000/a/b:2", "localhost:5000", "a/b");
    }
}
