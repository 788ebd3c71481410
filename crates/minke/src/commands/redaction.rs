//! Takes secrets out of what leaves the machine: those that are known here word by word, and whatever looks like one.
//! Used by `support_bundle`.
//! Rather takes out too much: what is lost is a line of a log, what stays would be a key.

use std::{collections::BTreeSet, fs, path::Path, sync::LazyLock};

use base64::{Engine, prelude::BASE64_STANDARD};
use regex::Regex;
use serde_json::Value;

const REDACTED: &str = "[redacted]";
/// Shorter ones would take every `true` and `default` out of the logs.
const KNOWN_BYTES_MIN: usize = 8;

/// What looks like a secret, and which part of it stays.
static PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let patterns = [
        // Keys, in lines of their own or in one line with \n in words.
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", REDACTED),
        // JSON web tokens.
        (r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*", REDACTED),
        // Bootstrap tokens, and those with which servers join.
        (r"\b[a-z0-9]{6}\.[a-z0-9]{16}(\.[a-z0-9]+)?\b", REDACTED),
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.=~-]{6,}", "$1 [redacted]"),
        // Credentials in an address.
        (r"(?i)\b([a-z][a-z0-9+.-]*://[^/\s:@]*):[^/\s@]+@", "$1:[redacted]@"),
        (
            r#"(?i)([a-z0-9_.-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)[a-z0-9_.-]*["']?\s*[:=]\s*)("[^"\n]*"|'[^'\n]*'|[^\s,;&"'{}\[\]]+)"#,
            "${1}[redacted]",
        ),
        (r"(?i)(client-key-data|certificate-authority-key|aescbc|aesgcm|secretbox)(\s*[:=]\s*)\S+", "$1$2[redacted]"),
    ];
    patterns.map(|(pattern, kept)| (Regex::new(pattern).expect("a pattern of ours"), kept)).into()
});

/// What is known to be secret here.
#[derive(Debug, Default)]
pub struct Redaction {
    known: BTreeSet<String>,
}

impl Redaction {
    /// The keys and tokens in a data directory.
    pub fn of_data_directory(data: &Path) -> Self {
        let mut redaction = Self::default();
        redaction.learn_directory(data, 0);
        redaction
    }

    fn learn_directory(&mut self, directory: &Path, depth: u8) {
        // Keys are at the top, in `pki`, and in the same places of nodes.
        const DEPTH_MAX: u8 = 4;
        const SKIPPED: [&str; 6] = ["containerd", "kubelet", "store", "log", "registry", "local-storage"];
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && depth < DEPTH_MAX && !SKIPPED.contains(&name.as_str()) {
                self.learn_directory(&path, depth + 1);
            } else if name.ends_with(".key") || name.contains("token") {
                self.learn_text(&fs::read_to_string(&path).unwrap_or_default());
            } else if name.ends_with("kubeconfig") || path.parent().is_some_and(|p| p.ends_with("kubeconfig")) {
                let text = fs::read_to_string(&path).unwrap_or_default();
                text.lines()
                    .filter_map(|line| line.trim().strip_prefix("client-key-data:"))
                    .for_each(|key| self.learn(key));
            }
        }
    }

    /// Every line, and every field of a line.
    fn learn_text(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with("-----")) {
            self.learn(line);
            line.split([',', ' ', '"']).for_each(|word| self.learn(word));
        }
    }

    /// A list of Secrets, as the API gives it.
    pub fn learn_secrets(&mut self, list: &Value) {
        for secret in list["items"].as_array().into_iter().flatten() {
            for value in secret["data"].as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str()) {
                self.learn(value);
                if let Ok(text) = BASE64_STANDARD.decode(value).map(String::from_utf8)
                    && let Ok(text) = text
                {
                    self.learn(&text);
                    self.learn_text(&text);
                }
            }
        }
    }

    fn learn(&mut self, secret: &str) {
        let secret = secret.trim();
        if secret.len() >= KNOWN_BYTES_MIN {
            self.known.insert(secret.to_string());
            self.known.insert(BASE64_STANDARD.encode(secret));
        }
    }

    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_string();
        // Longer ones first: a part of one may be another.
        let mut known: Vec<&String> = self.known.iter().collect();
        known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        for secret in known {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), REDACTED);
            }
        }
        for (pattern, kept) in PATTERNS.iter() {
            text = pattern.replace_all(&text, *kept).into_owned();
        }
        text
    }

    /// Values of the environment and what was applied last, in any object: people put passwords there.
    pub fn object(object: &mut Value) {
        match object {
            Value::Object(fields) => {
                if let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) {
                    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
                }
                fields.remove("managedFields");
                for variable in fields.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
                    if let Some(value) = variable.get_mut("value") {
                        *value = REDACTED.into();
                    }
                }
                fields.values_mut().for_each(Self::object);
            }
            Value::Array(items) => items.iter_mut().for_each(Self::object),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_looks_like_a_secret_goes() {
        let check = |text: &str, expected: &str| assert_eq!(Redaction::default().text(text), expected);
        check("--token-file=/a/b started", "--token-file=[redacted] started");
        check("error: password: \"it is\" wrong", "error: password: [redacted] wrong");
        check(r#"{"dbPassword":"x","user":"jane"}"#, r#"{"dbPassword":[redacted],"user":"jane"}"#);
        check("postgres://jane:s3cret@db:5432/x", "postgres://jane:[redacted]@db:5432/x");
        check("GET /api?access_token=abc&x=1", "GET /api?access_token=[redacted]&x=1");
        check("Authorization: Bearer abcdef123", "Authorization: Bearer [redacted]");
        check("a pod default/web-0 is ready at 10.244.0.5:8080", "a pod default/web-0 is ready at 10.244.0.5:8080");
        check("-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\nnext", "[redacted]\nnext");
    }

    #[test]
    fn values_of_secrets_go_wherever_they_stand() {
        let mut redaction = Redaction::default();
        redaction.learn_secrets(
            &json!({"items": [{"data": {"p": BASE64_STANDARD.encode("correct horse"), "short": "YQ=="}}]}),
        );
        let found = redaction.text(&format!("it said correct horse, {}", BASE64_STANDARD.encode("correct horse")));
        assert_eq!(found, "it said [redacted], [redacted]");
        let mut pod = json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}},
            "spec": {"containers": [{"env": [{"name": "A", "value": "battery staple"}, {"name": "B"}]}]}});
        Redaction::object(&mut pod);
        assert_eq!(
            pod,
            json!({"metadata": {"annotations": {"a": "b"}},
            "spec": {"containers": [{"env": [{"name": "A", "value": "[redacted]"}, {"name": "B"}]}]}})
        );
    }
}
