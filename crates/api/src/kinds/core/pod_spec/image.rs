//! Image references, as far as the API server looks into them.
//! Used by defaults (pull policy).
//! Never resolves a name.

/// The tag of a reference: `latest` when there is neither a tag nor a digest, empty when there is only a digest.
pub fn tag(reference: &str) -> &str {
    if !is_reference(reference) {
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

/// Whether a reference can be read: a name in lower case of at most 255 characters, after a host that may have a port.
fn is_reference(reference: &str) -> bool {
    let name = reference.split('@').next().unwrap_or_default();
    let (path, last) = name.rsplit_once('/').map_or(("", name), |(path, last)| (path, last));
    let (last, tag) = last.split_once(':').map_or((last, None), |(last, tag)| (last, Some(tag)));
    let mut parts: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
    let is_host =
        |part: &&str| part.contains(['.', ':']) || *part == "localhost" || part.chars().any(char::is_uppercase);
    let host = parts.first().copied().filter(is_host);
    if host.is_some() {
        parts.remove(0);
    }
    parts.push(last);
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let is_tag =
        |tag: &str| !tag.is_empty() && tag.len() <= 128 && tag.chars().all(word) && !tag.starts_with(['.', '-']);
    let length = path.len() + last.len() + usize::from(!path.is_empty());
    length <= 255 && parts.iter().all(|part| is_component(part)) && tag.is_none_or(is_tag)
}

/// Lower case letters and digits, with `.`, `_`, `__` or any number of `-` between them.
fn is_component(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let between = |text: &str| matches!(text, "." | "_" | "__") || text.chars().all(|c| c == '-');
    let edges = part.starts_with(plain) && part.ends_with(plain);
    edges && part.split(plain).filter(|text| !text.is_empty()).all(between)
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
            ("Bad_Value!", ""),
            ("Host/a_b/c--d", "latest"),
            ("a/B", ""),
        ] {
            assert_eq!(super::tag(reference), tag, "{reference}");
        }
    }
}
