//! CredentialProviderConfig (kubelet.config.k8s.io/v1): which programs know credentials for which images.
//! Part of `credential_provider`.
//! Invariant: pure; what upstream refuses is refused with its words (tidy: `pure_files`).

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use serde::Deserialize;

use crate::configuration::parse_duration;

const VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
const PROTOCOL: &str = "credentialprovider.kubelet.k8s.io/v1";
const PROTOCOLS: [&str; 3] =
    [PROTOCOL, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<ProviderFields>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProviderFields {
    #[serde(default)]
    name: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
    token_attributes: Option<TokenFields>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TokenFields {
    #[serde(default)]
    service_account_token_audience: String,
    #[serde(default)]
    cache_type: String,
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    optional_service_account_annotation_keys: Vec<String>,
}

/// How long what was learnt with a token serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCacheType {
    /// For that very token.
    Token,
    /// For the ServiceAccount.
    ServiceAccount,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenAttributes {
    pub audience: String,
    pub cache_type: TokenCacheType,
    pub require_service_account: bool,
    pub required_annotations: Vec<String>,
    pub optional_annotations: Vec<String>,
}

impl TokenAttributes {
    /// What of a ServiceAccount's annotations the program is to see; the key that is missing otherwise.
    pub fn annotations(&self, all: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
        let mut shown = BTreeMap::new();
        for key in &self.required_annotations {
            shown.insert(key.clone(), all.get(key).ok_or_else(|| key.clone())?.clone());
        }
        let optional = self.optional_annotations.iter().filter_map(|key| Some((key.clone(), all.get(key)?.clone())));
        shown.extend(optional);
        Ok(shown)
    }
}

/// One program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderConfig {
    pub name: String,
    pub match_images: Vec<String>,
    pub default_cache_duration: Duration,
    pub api_version: String,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub token_attributes: Option<TokenAttributes>,
}

/// One file, in YAML or JSON.
pub fn parse(text: &str) -> Result<Vec<ProviderConfig>, String> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let file: ConfigFile = serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    if file.kind != "CredentialProviderConfig" {
        return Err(format!("failed to decode {:?} (wrong Kind)", file.kind));
    }
    if !VERSIONS.contains(&file.api_version.as_str()) {
        return Err(format!("no kind \"CredentialProviderConfig\" is registered for version {:?}", file.api_version));
    }
    file.providers.into_iter().map(provider).collect()
}

/// Rules that concern all programs of all files.
pub fn check(providers: &[ProviderConfig]) -> Result<(), String> {
    if providers.is_empty() {
        return Err("providers: Required value: at least 1 item in plugins is required".into());
    }
    let mut names = HashSet::new();
    match providers.iter().find(|provider| !names.insert(&provider.name)) {
        Some(twice) => Err(format!("duplicate provider name {:?} found in configuration file(s)", twice.name)),
        None => Ok(()),
    }
}

fn provider(fields: ProviderFields) -> Result<ProviderConfig, String> {
    let name = fields.name;
    let invalid = |why: &str| Err(format!("providers.name: Invalid value: {name:?}: provider name {why}"));
    match name.as_str() {
        "" => return invalid("cannot be empty"),
        "." => return invalid("cannot be '.'"),
        ".." => return invalid("cannot be '..'"),
        _ if name.contains('/') => return invalid("cannot contain '/'"),
        _ if name.contains(' ') => return invalid("cannot contain spaces"),
        _ => {}
    }
    if fields.api_version.is_empty() {
        return Err("providers.apiVersion: Required value".into());
    }
    if !PROTOCOLS.contains(&fields.api_version.as_str()) {
        let known = PROTOCOLS.map(|known| format!("{known:?}")).join(", ");
        return Err(format!(
            "providers.apiVersion: Unsupported value: {:?}: supported values: {known}",
            fields.api_version
        ));
    }
    if fields.match_images.is_empty() {
        return Err("providers.matchImages: Required value: at least 1 item in matchImages is required".into());
    }
    if let Some(wrong) = fields.match_images.iter().find(|image| image.is_empty() || image.contains([' ', '%'])) {
        return Err(format!("providers.matchImages: Invalid value: {wrong:?}: match image is invalid"));
    }
    let Some(text) = fields.default_cache_duration else {
        return Err("providers.defaultCacheDuration: Required value".into());
    };
    let Some(default_cache_duration) = parse_duration(&text) else {
        return Err(format!(
            "providers.defaultCacheDuration: Invalid value: {text:?}: must be greater than or equal to 0"
        ));
    };
    let token_attributes =
        fields.token_attributes.map(|token| token_attributes(token, &fields.api_version)).transpose()?;
    Ok(ProviderConfig {
        name,
        match_images: fields.match_images,
        default_cache_duration,
        api_version: fields.api_version,
        arguments: fields.args,
        environment: fields.env.into_iter().map(|variable| (variable.name, variable.value)).collect(),
        token_attributes,
    })
}

fn token_attributes(fields: TokenFields, api_version: &str) -> Result<TokenAttributes, String> {
    const PATH: &str = "providers.tokenAttributes";
    if fields.service_account_token_audience.is_empty() {
        return Err(format!("{PATH}.serviceAccountTokenAudience: Required value"));
    }
    let Some(require_service_account) = fields.require_service_account else {
        return Err(format!("{PATH}.requireServiceAccount: Required value"));
    };
    if api_version != PROTOCOL {
        return Err(format!("{PATH}: Forbidden: tokenAttributes is only supported for {PROTOCOL} API version"));
    }
    let (required, optional) =
        (fields.required_service_account_annotation_keys, fields.optional_service_account_annotation_keys);
    if !require_service_account && !required.is_empty() {
        return Err(format!(
            "{PATH}.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when \
             requiredServiceAccountAnnotationKeys is set"
        ));
    }
    if let Some(both) = required.iter().find(|key| optional.contains(key)) {
        return Err(format!("{PATH}: Invalid value: [{both:?}]: annotation keys cannot be both required and optional"));
    }
    let cache_type = match fields.cache_type.as_str() {
        "Token" => TokenCacheType::Token,
        "ServiceAccount" => TokenCacheType::ServiceAccount,
        "" => {
            return Err(format!(
                "{PATH}.cacheType: Required value: cacheType is required to be set when serviceAccountTokenAudience is specified"
            ));
        }
        other => {
            return Err(format!(
                "{PATH}.cacheType: Unsupported value: {other:?}: supported values: \"ServiceAccount\", \"Token\""
            ));
        }
    };
    Ok(TokenAttributes {
        audience: fields.service_account_token_audience,
        cache_type,
        require_service_account,
        required_annotations: required,
        optional_annotations: optional,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n";
    const PROVIDER: &str = "- name: ecr\n  matchImages: [\"*.example.com\"]\n  defaultCacheDuration: 12h\n  \
        apiVersion: credentialprovider.kubelet.k8s.io/v1\n";

    #[test]
    fn files_are_read_strictly() {
        let check = |text: &str, expected: Result<&str, &str>| {
            let found = parse(text).and_then(|providers| check(&providers).map(|()| providers));
            match (found, expected) {
                (Ok(found), Ok(name)) => assert_eq!(found[0].name, name),
                (Err(found), Err(part)) => assert!(found.contains(part), "{text}: {found}"),
                (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
            }
        };
        let whole = |provider: &str| format!("{HEAD}{provider}");
        check(&whole(PROVIDER), Ok("ecr"));
        let extra = "  args: [get]\n  env: [{name: A, value: b}]\n  tokenAttributes:\n    serviceAccountTokenAudience: x\n    \
            cacheType: Token\n    requireServiceAccount: true\n";
        check(&whole(&format!("{PROVIDER}{extra}")), Ok("ecr"));
        check(&whole(&PROVIDER.replace("ecr", "a/b")), Err("provider name cannot contain '/'"));
        check(&whole(&PROVIDER.replace("ecr", "..")), Err("provider name cannot be '..'"));
        check(&whole(&PROVIDER.replace("12h", "-1s")), Err("must be greater than or equal to 0"));
        check(
            &whole(&PROVIDER.replace(".io/v1\n", ".io/v7\n")),
            Err("Unsupported value: \"credentialprovider.kubelet.k8s.io/v7\""),
        );
        check(&whole(&PROVIDER.replace("matchImages", "matchImage")), Err("matchImage"));
        check(&whole(&format!("{PROVIDER}{PROVIDER}")), Err("duplicate provider name \"ecr\""));
        check(&HEAD.replace("providers:\n", ""), Err("at least 1 item in plugins is required"));
        check("apiVersion: v1\nkind: Pod\n", Err("(wrong Kind)"));
        let token = |cache: &str| extra.replace("cacheType: Token", cache);
        check(&whole(&format!("{PROVIDER}{}", token("cacheType: Other"))), Err("Unsupported value: \"Other\""));
        check(
            &whole(&format!("{}{extra}", PROVIDER.replace("k8s.io/v1\n", "k8s.io/v1beta1\n"))),
            Err("is only supported for"),
        );
    }

    #[test]
    fn programs_see_the_annotations_they_ask_for() {
        let attributes = TokenAttributes {
            audience: "a".into(),
            cache_type: TokenCacheType::Token,
            require_service_account: true,
            required_annotations: vec!["must".into()],
            optional_annotations: vec!["may".into()],
        };
        let all = |keys: &[&str]| keys.iter().map(|key| (key.to_string(), "v".to_string())).collect();
        assert_eq!(attributes.annotations(&all(&["may", "other"])), Err("must".into()));
        assert_eq!(attributes.annotations(&all(&["must", "other"])), Ok(all(&["must"])));
        assert_eq!(attributes.annotations(&all(&["must", "may"])), Ok(all(&["must", "may"])));
    }
}
