//! Files of `--encryption-provider-config` (EncryptionConfiguration): which resources are encrypted how.
//! Read by `encryption` at start and, if asked for, at every change of the file.
//! A file with an error is refused whole; the error names the line or the field, and never a key.

use std::{collections::HashSet, path::Path as FilePath, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::Value;

use api::field::{ErrorList, Path};

use crate::server::config_document;

const KIND: &str = "EncryptionConfiguration";
const API_VERSION: &str = "apiserver.config.k8s.io/v1";
/// Upstream's names from before.
const FORMER: (&str, &str) = ("v1", "EncryptionConfig");
const KMS_TIMEOUT: Duration = Duration::from_secs(3);
const AES_KEY_BYTES: [usize; 3] = [16, 24, 32];
const SECRETBOX_KEY_BYTES: [usize; 1] = [32];

/// Some resources and how they are encrypted; the first provider writes.
#[derive(Debug)]
pub struct ResourceConfiguration {
    pub resources: Vec<GroupResource>,
    pub providers: Vec<Provider>,
}

/// `*` stands for any.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GroupResource {
    pub group: String,
    pub resource: String,
}

impl GroupResource {
    /// As `resource.group` names it.
    pub fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self { group: group.into(), resource: resource.into() }
    }

    pub fn any_of(group: &str) -> Self {
        Self { group: group.into(), resource: "*".into() }
    }

    fn shown(&self) -> String {
        match (self.resource.as_str(), self.group.as_str()) {
            ("*", "") => "*.".into(),
            (resource, "") => resource.into(),
            (resource, group) => format!("{resource}.{group}"),
        }
    }
}

pub struct NamedKey {
    pub name: String,
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for NamedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NamedKey({})", self.name)
    }
}

#[derive(Debug, Clone)]
pub struct KmsConfiguration {
    pub name: String,
    /// The path of its socket.
    pub socket: String,
    pub timeout: Duration,
}

#[derive(Debug)]
pub enum Provider {
    Identity,
    AesGcm(Vec<NamedKey>),
    AesCbc(Vec<NamedKey>),
    SecretBox(Vec<NamedKey>),
    Kms(KmsConfiguration),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    resources: Vec<ResourcesFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourcesFile {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<ProviderFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderFile {
    #[serde(default)]
    aesgcm: Option<KeysFile>,
    #[serde(default)]
    aescbc: Option<KeysFile>,
    #[serde(default)]
    secretbox: Option<KeysFile>,
    #[serde(default)]
    identity: Option<Nothing>,
    #[serde(default)]
    kms: Option<KmsFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    #[serde(default)]
    keys: Vec<KeyFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    secret: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KmsFile {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cachesize: Option<i64>,
    #[serde(default)]
    endpoint: String,
    #[serde(default)]
    timeout: String,
}

pub fn load(path: &FilePath) -> Result<Vec<ResourceConfiguration>, String> {
    let attempt = |e: String| format!("encryption provider configuration file {:?}: {e}", path.display().to_string());
    let text = std::fs::read_to_string(path).map_err(|e| attempt(e.to_string()))?;
    if text.trim().is_empty() {
        return Err(attempt("it is empty".into()));
    }
    parse(&text).map_err(attempt)
}

pub fn parse(text: &str) -> Result<Vec<ResourceConfiguration>, String> {
    let file: File = config_document::read_secret(text)?;
    let named = (file.api_version.as_str(), file.kind.as_str());
    if named != (API_VERSION, KIND) && named != FORMER {
        return Err(format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version));
    }
    let mut errors = ErrorList::new();
    let root = Path::new("resources");
    if file.resources.is_empty() {
        errors.required(&root, "at least one resources is required");
    }
    let mut kms_names = HashSet::new();
    let mut found = Vec::new();
    for (index, entry) in file.resources.iter().enumerate() {
        let path = root.index(index);
        let names = path.child("resources");
        if entry.resources.is_empty() {
            errors.required(&names, &format!("at least one {names} is required"));
        }
        validate_names(&entry.resources, &names, &mut errors);
        let providers = path.child("providers");
        if entry.providers.is_empty() {
            errors.required(&providers, &format!("at least one {providers} is required"));
        }
        let mut usable = Vec::new();
        for (index, provider) in entry.providers.iter().enumerate() {
            usable.extend(provider.read(&providers.index(index), &mut kms_names, &mut errors));
        }
        let resources = entry.resources.iter().map(|name| GroupResource::parse(name)).collect();
        found.push(ResourceConfiguration { resources, providers: usable });
    }
    if !errors.is_empty() {
        return Err(config_document::mistakes(text, &errors));
    }
    refuse_masked(&found, text)?;
    Ok(found)
}

fn validate_names(names: &[String], path: &Path, errors: &mut ErrorList) {
    let parsed: Vec<_> = names.iter().map(|name| GroupResource::parse(name)).collect();
    let pairs = || parsed.iter().enumerate().flat_map(|(i, a)| parsed[i + 1..].iter().map(move |b| (a, b)));
    let any = GroupResource::any_of("*");
    if pairs().any(|(a, b)| a == b) {
        errors.invalid(path, names.to_vec(), "the same resource cannot be specified multiple times");
    }
    let overlap = |a: &GroupResource, b: &GroupResource| {
        a != b && (*a == any || *b == any || (a.group == b.group && (a.resource == "*" || b.resource == "*")))
    };
    if pairs().any(|(a, b)| overlap(a, b)) {
        let detail = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as \
                      they will be masked";
        errors.invalid(path, names.to_vec(), detail);
    }
    for ((index, name), parsed) in names.iter().enumerate().zip(&parsed) {
        let detail = match (name.as_str(), parsed.group.as_str()) {
            (name, _) if name.chars().any(char::is_uppercase) => "resource name should not contain capital letters",
            ("*", _) => "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
            ("apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations", _) => {
                "resources which do not have REST API/s cannot be encrypted"
            }
            (_, "events.k8s.io") => {
                "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
                 config file"
            }
            (_, "extensions") => "'extensions' group has been removed and cannot be used for encryption",
            (_, "*") if parsed.resource != "*" => "encrypting the same resource across groups is not supported",
            _ => continue,
        };
        errors.invalid(&path.index(index), name.as_str(), detail);
    }
}

fn refuse_masked(all: &[ResourceConfiguration], text: &str) -> Result<(), String> {
    let mut seen: HashSet<&GroupResource> = HashSet::new();
    for (entry_index, entry) in all.iter().enumerate() {
        for (index, resource) in entry.resources.iter().enumerate() {
            for mask in [GroupResource::any_of(&resource.group), GroupResource::any_of("*")] {
                if seen.contains(&mask) {
                    let (resource, mask) = (resource.shown(), mask.shown());
                    let why = format!("resource {resource:?} is masked by earlier rule {mask:?}");
                    let at = format!("resources[{entry_index}].resources[{index}]");
                    return Err(config_document::mistake(text, &at, "", &why));
                }
            }
        }
        seen.extend(&entry.resources);
    }
    Ok(())
}

impl ProviderFile {
    fn read(&self, path: &Path, kms_names: &mut HashSet<String>, errors: &mut ErrorList) -> Option<Provider> {
        let given = [
            self.aesgcm.is_some(),
            self.aescbc.is_some(),
            self.secretbox.is_some(),
            self.identity.is_some(),
            self.kms.is_some(),
        ];
        match given.iter().filter(|given| **given).count() {
            1 => {}
            0 => {
                let detail = "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, \
                              Identity";
                errors.invalid(path, Value::Null, detail);
                return None;
            }
            _ => {
                let detail = "more than one provider specified in a single element, should split into different list \
                              elements";
                errors.invalid(path, Value::Null, detail);
                return None;
            }
        }
        if let Some(file) = &self.aesgcm {
            return Some(Provider::AesGcm(file.read(&path.child("aesgcm"), &AES_KEY_BYTES, errors)));
        }
        if let Some(file) = &self.aescbc {
            return Some(Provider::AesCbc(file.read(&path.child("aescbc"), &AES_KEY_BYTES, errors)));
        }
        if let Some(file) = &self.secretbox {
            return Some(Provider::SecretBox(file.read(&path.child("secretbox"), &SECRETBOX_KEY_BYTES, errors)));
        }
        match &self.kms {
            Some(file) => file.read(&path.child("kms"), kms_names, errors).map(Provider::Kms),
            None => Some(Provider::Identity),
        }
    }
}

impl KeysFile {
    fn read(&self, path: &Path, lengths: &[usize], errors: &mut ErrorList) -> Vec<NamedKey> {
        let path = path.child("keys");
        if self.keys.is_empty() {
            errors.required(&path, "at least one keys is required");
        }
        let mut found = Vec::new();
        for (index, key) in self.keys.iter().enumerate() {
            let path = path.index(index);
            if key.name.is_empty() {
                errors.required(&path.child("name"), "name is a mandatory field for a key");
            }
            let secret = path.child("secret");
            if key.secret.is_empty() {
                errors.required(&secret, "secret is a mandatory field for a key");
                continue;
            }
            match BASE64_STANDARD.decode(&key.secret) {
                Err(_) => errors.invalid(&secret, "REDACTED", "secrets must be base64 encoded"),
                Ok(bytes) if !lengths.contains(&bytes.len()) => {
                    let expected: Vec<_> = lengths.iter().map(ToString::to_string).collect();
                    let (length, expected) = (bytes.len(), expected.join(" "));
                    let detail =
                        format!("secret is not of the expected length, got {length}, expected one of [{expected}]");
                    errors.invalid(&secret, "REDACTED", detail);
                }
                Ok(bytes) => found.push(NamedKey { name: key.name.clone(), secret: bytes }),
            }
        }
        found
    }
}

impl KmsFile {
    fn read(&self, path: &Path, names: &mut HashSet<String>, errors: &mut ErrorList) -> Option<KmsConfiguration> {
        let before = errors.len();
        let name = path.child("name");
        if self.name.is_empty() {
            errors.required(&name, "name is a mandatory field for a provider");
        } else if self.name.contains(':') {
            let detail = format!("invalid KMS provider name {}, must not contain ':'", self.name);
            errors.invalid(&name, self.name.as_str(), detail);
        } else if !names.insert(self.name.clone()) {
            let detail = format!("duplicate KMS provider name {}, names must be unique", self.name);
            errors.invalid(&name, self.name.as_str(), detail);
        }
        match self.api_version.as_str() {
            "v2" => {}
            // Upstream's default, which it refuses as well unless a feature gate is set.
            "" | "v1" => errors.forbidden(
                &path.child("apiVersion"),
                "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead",
            ),
            other => {
                let detail = format!("unsupported apiVersion {other} for KMS provider, only v1 and v2 are supported");
                errors.invalid(&path.child("apiVersion"), other, detail);
            }
        }
        if let Some(size) = self.cachesize.filter(|_| self.api_version == "v2") {
            errors.invalid(&path.child("cachesize"), size, "cachesize is not supported in v2");
        }
        let timeout = match self.timeout.as_str() {
            "" => Some(KMS_TIMEOUT),
            text => {
                let found = api::codec::parse_unsigned_duration(text).filter(|timeout| !timeout.is_zero());
                if found.is_none() {
                    errors.invalid(&path.child("timeout"), text, "timeout should be a positive value");
                }
                found
            }
        };
        let endpoint = path.child("endpoint");
        let socket = self.endpoint.strip_prefix("unix://").filter(|path| !path.is_empty());
        match (&socket, self.endpoint.as_str()) {
            (Some(_), _) => {}
            (None, "") => errors.invalid(&endpoint, "", "endpoint is a mandatory field for a kms"),
            (None, other) => {
                let scheme = other.split_once("://").map_or("", |(scheme, _)| scheme);
                let detail = format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported");
                errors.invalid(&endpoint, other, detail);
            }
        }
        if errors.len() > before {
            return None;
        }
        Some(KmsConfiguration { name: self.name.clone(), socket: socket?.to_string(), timeout: timeout? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named_and_keys_are_not_shown() {
        let whole = |resources: &str, providers: &str| {
            format!(
                "apiVersion: {API_VERSION}\nkind: {KIND}\nresources:\n- resources: {resources}\n  providers: {providers}\n"
            )
        };
        let check = |text: &str, expected: &str| match parse(text) {
            Ok(_) => assert_eq!("", expected, "{text}"),
            Err(e) => {
                assert!(!expected.is_empty() && e.contains(expected), "{text}: {e}");
                assert!(!e.contains("c2VjcmV0"), "{e}");
            }
        };
        let key = BASE64_STANDARD.encode([7; 32]);
        let secretbox = format!("[{{secretbox: {{keys: [{{name: a, secret: {key}}}]}}}}]");
        for names in ["[secrets]", "['*.']", "['*.*']", "['*.apps', secrets]", "[widgets.example.com]"] {
            check(&whole(names, &secretbox), "");
        }
        check(&whole("[secrets]", "[{identity: {}}]"), "");
        check("kind: [", "line 1");
        check(&whole("[secrets]", "[{}]"), "line 5: resources[0].providers[0]: Invalid value");
        check(&whole("[secrets]", "[{aesgcm: c2VjcmV0}]"), "line 5");
        check(&whole("[secrets]", "[{aesgcm: {keys: [{name: a, secret:c2VjcmV0LXRoYXQ=}]}}]"), "line 5");
        check("apiVersion: v1\nkind: Pod\n", "no kind \"Pod\" is registered");
        check(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\n"), "resources: Required value");
        check(&whole("[secrets]", "[{rot13: {}}]"), "unknown field");
        check(&whole("[]", &secretbox), "resources[0].resources: Required value");
        check(&whole("[secrets]", "[]"), "resources[0].providers: Required value");
        check(&whole("[secrets]", "[{}]"), "does not contain any of the expected providers");
        check(&whole("[secrets]", "[{identity: {}, aesgcm: {keys: []}}]"), "more than one provider specified");
        for (names, expected) in [
            ("[Secrets]", "capital letters"),
            ("['*']", "use '*.' to encrypt all"),
            ("[secrets, secrets]", "the same resource cannot be specified multiple times"),
            ("[secrets, '*.']", "using overlapping resources"),
            ("['*.*', secrets]", "using overlapping resources"),
            ("[events.events.k8s.io]", "Use 'events' instead"),
            ("[deployments.extensions]", "'extensions' group has been removed"),
            ("['secrets.*']", "across groups is not supported"),
            ("[serviceipallocations]", "do not have REST API/s"),
        ] {
            check(&whole(names, &secretbox), expected);
        }
        let second = "- resources: [secrets]\n  providers: [{identity: {}}]\n";
        let masked = |first: &str| whole(first, &secretbox) + second;
        check(&masked("['*.']"), "resource \"secrets\" is masked by earlier rule \"*.\"");
        check(&masked("['*.*']"), "resource \"secrets\" is masked by earlier rule \"*.*\"");
        check(&masked("['*.apps']"), "");
        check(&whole("[secrets]", "[{aescbc: {keys: []}}]"), "aescbc.keys: Required value");
        check(&whole("[secrets]", "[{aescbc: {keys: [{name: a}]}}]"), "keys[0].secret: Required value");
        check(&whole("[secrets]", "[{aesgcm: {keys: [{secret: c2VjcmV0}]}}]"), "keys[0].name: Required value");
        let short = "got 6, expected one of [16 24 32]";
        check(&whole("[secrets]", "[{aesgcm: {keys: [{name: a, secret: c2VjcmV0}]}}]"), short);
        check(&whole("[secrets]", "[{aesgcm: {keys: [{name: a, secret: 'c2VjcmV0!'}]}}]"), "must be base64 encoded");
        let kms = |fields: &str| whole("[secrets]", &format!("[{{kms: {{name: k, {fields}}}}}]"));
        check(&kms("apiVersion: v2, endpoint: 'unix:///k.sock'"), "");
        check(&kms("endpoint: 'unix:///k.sock'"), "KMSv1 is deprecated");
        check(&kms("apiVersion: v3, endpoint: 'unix:///k.sock'"), "unsupported apiVersion v3");
        check(&kms("apiVersion: v2"), "endpoint is a mandatory field for a kms");
        check(&kms("apiVersion: v2, endpoint: 'http://k'"), "unsupported scheme \"http\"");
        check(&kms("apiVersion: v2, endpoint: 'unix:///k', timeout: 0s"), "timeout should be a positive value");
        check(&kms("apiVersion: v2, endpoint: 'unix:///k', cachesize: 1"), "cachesize is not supported in v2");
        let former = parse(&kms("apiVersion: v1, endpoint: 'unix:///k', cachesize: 1")).unwrap_err();
        assert!(former.contains("KMSv1 is deprecated") && !former.contains("cachesize"), "{former}");
        let twice = "{kms: {name: k, apiVersion: v2, endpoint: 'unix:///k'}}";
        check(&whole("[secrets]", &format!("[{twice}, {twice}]")), "duplicate KMS provider name k");
    }
}
