//! Image references, as far as the API server looks into them.
//! Used by defaults (pull policy).
//! Never resolves a name.

/// The tag of a reference: `latest` when there is neither a tag nor a digest, empty when there is only a digest.
pub fn tag(reference: &str) -> &str {
    if reference.is_empty() {
        return "";
    }
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    let last = name.rsplit('/').next().unwrap_or(name);
    match (last.split_once(':'), digest) {
        (Some((_, tag)), _) => tag,
        (None, Some(_)) => "",
        (None, None) => "latest",
    }
}

/// What `imagePullPolicy` becomes when it is not given.
pub fn default_pull_policy(reference: &str) -> &'static str {
    if tag(reference) == "latest" { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    #[test]
    fn tags() {
        for (reference, tag) in [
            ("nginx", "latest"),
            ("nginx:1.2", "1.2"),
            ("host:5000/nginx", "latest"),
            ("host:5000/a/nginx:v1", "v1"),
            ("nginx@sha256:00", ""),
            ("nginx:v1@sha256:00", "v1"),
            ("", ""),
        ] {
            assert_eq!(super::tag(reference), tag, "{reference}");
        }
    }
}
