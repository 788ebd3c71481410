//! Notes about a request for those who look at it later: what policies, webhooks and Pod Security had to say.
//! Called by `policy`, `webhooks` and `pod_security`; the audit log will take them from here.
//! A note never decides anything.

use super::Attributes;

/// Upstream's limit on one note.
const ANNOTATION_BYTES_MAX: usize = 10 * 1024;

pub fn annotate(a: &Attributes<'_>, key: &str, value: &str) {
    let value = shortened(value);
    let resource = format!("{}/{}", a.resource.plural, a.subresource);
    tracing::info!(
        target: "audit",
        user = a.user.name,
        operation = a.operation.as_str(),
        resource = resource.trim_end_matches('/'),
        namespace = a.namespace,
        name = a.name,
        key,
        value,
    );
}

fn shortened(value: &str) -> &str {
    let mut end = value.len().min(ANNOTATION_BYTES_MAX);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    &value[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_limited_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "é".repeat(ANNOTATION_BYTES_MAX);
        assert_eq!(shortened(&long).len(), ANNOTATION_BYTES_MAX);
        let odd = format!("a{long}");
        assert_eq!(shortened(&odd).len(), ANNOTATION_BYTES_MAX - 1);
    }
}
