//! Files of `--authentication-config` (AuthenticationConfiguration): who issues tokens and what their claims mean.
//! Read by `oidc` at start and at every change of the file; the `--oidc-*` flags make the same.
//! A file with an error is refused whole, and the error names the line or the field.

use std::{collections::HashSet, path::Path as FilePath};

use serde::Deserialize;

use api::{
    field::{ErrorList, Path},
    names,
};

use crate::{
    cel::{Expression, types::Type},
    server::config_document,
    transport::tls_config,
};

const KIND: &str = "AuthenticationConfiguration";
const GROUP: &str = "apiserver.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthenticationConfiguration {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    pub jwt: Vec<JwtAuthenticator>,
    #[serde(default)]
    pub anonymous: Option<Anonymous>,
    /// The text of the file, where mistakes are looked for.
    #[serde(skip)]
    pub source: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Anonymous {
    #[serde(default)]
    pub enabled: bool,
    #[serde(default)]
    pub conditions: Vec<AnonymousCondition>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnonymousCondition {
    pub path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtAuthenticator {
    #[serde(default)]
    pub issuer: Issuer,
    #[serde(default)]
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    #[serde(default)]
    pub claim_mappings: ClaimMappings,
    #[serde(default)]
    pub user_validation_rules: Vec<UserValidationRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Issuer {
    pub url: String,
    #[serde(rename = "discoveryURL")]
    pub discovery_url: String,
    pub certificate_authority: String,
    pub audiences: Vec<String>,
    pub audience_match_policy: String,
    pub egress_selector_type: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClaimValidationRule {
    pub claim: String,
    pub required_value: String,
    pub expression: String,
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClaimMappings {
    pub username: PrefixedClaimOrExpression,
    pub groups: PrefixedClaimOrExpression,
    pub uid: ClaimOrExpression,
    pub extra: Vec<ExtraMapping>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrefixedClaimOrExpression {
    pub claim: String,
    pub prefix: Option<String>,
    pub expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClaimOrExpression {
    pub claim: String,
    pub expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtraMapping {
    pub key: String,
    pub value_expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserValidationRule {
    pub expression: String,
    pub message: String,
}

/// The expressions of one authenticator, ready to be evaluated.
#[derive(Default)]
pub struct CompiledExpressions {
    pub username: Option<Expression>,
    pub groups: Option<Expression>,
    pub uid: Option<Expression>,
    /// By the key of what they make.
    pub extra: Vec<(String, Expression)>,
    /// With the message of each.
    pub claim_rules: Vec<(Expression, String)>,
    pub user_rules: Vec<(Expression, String)>,
}

impl AuthenticationConfiguration {
    pub fn load(path: &FilePath) -> Result<Self, String> {
        let attempt = |e: String| format!("failed to read authentication configuration {}: {e}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| attempt(e.to_string()))?;
        Self::parse(&text).map_err(attempt)
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("it is empty".into());
        }
        let file: Self = config_document::read(text)?;
        let version = file.api_version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/'));
        match version {
            Some(version) if file.kind == KIND && VERSIONS.contains(&version) => {
                Ok(Self { source: text.to_string(), ..file })
            }
            _ => Err(format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version)),
        }
    }

    /// From the `--oidc-*` flags.
    pub fn single(authenticator: JwtAuthenticator) -> Self {
        Self { jwt: vec![authenticator], ..Self::default() }
    }

    /// The expressions of every authenticator, or all that is wrong. `own_issuers` issue the tokens of ServiceAccounts.
    pub fn compile(&self, own_issuers: &[String]) -> Result<Vec<CompiledExpressions>, ErrorList> {
        let mut errors = ErrorList::new();
        let (mut urls, mut discovery) = (HashSet::new(), HashSet::new());
        let mut compiled = Vec::new();
        for (index, authenticator) in self.jwt.iter().enumerate() {
            let path = Path::new("jwt").index(index);
            let issuer = &authenticator.issuer;
            issuer.validate(&path.child("issuer"), own_issuers, &mut errors);
            compiled.push(authenticator.compile(&path, &mut errors));
            if !urls.insert(&issuer.url) {
                errors.duplicate(&path.child("issuer").child("url"), issuer.url.as_str());
            }
            if !issuer.discovery_url.is_empty() && !discovery.insert(&issuer.discovery_url) {
                errors.duplicate(&path.child("issuer").child("discoveryURL"), issuer.discovery_url.as_str());
            }
        }
        if let Some(anonymous) = self.anonymous.as_ref().filter(|a| !a.enabled && !a.conditions.is_empty()) {
            let paths: Vec<_> = anonymous.conditions.iter().map(|c| c.path.as_str()).collect();
            let path = Path::new("anonymous").child("conditions");
            errors.invalid(&path, paths, "enabled should be set to true when conditions are defined");
        }
        if errors.is_empty() { Ok(compiled) } else { Err(errors) }
    }
}

impl Issuer {
    fn validate(&self, path: &Path, own_issuers: &[String], errors: &mut ErrorList) {
        let url = path.child("url");
        if self.url.is_empty() {
            errors.required(&url, "");
        } else {
            if own_issuers.contains(&self.url) {
                let detail = format!("URL must not overlap with disallowed issuers: [{}]", own_issuers.join(" "));
                errors.invalid(&url, self.url.as_str(), detail);
            }
            validate_url(&self.url, &url, errors);
        }
        if !self.discovery_url.is_empty() {
            let path = path.child("discoveryURL");
            if !self.url.is_empty() && self.url.trim_end_matches('/') == self.discovery_url.trim_end_matches('/') {
                errors.invalid(&path, self.discovery_url.as_str(), "discoveryURL must be different from URL");
            }
            validate_url(&self.discovery_url, &path, errors);
        }
        self.validate_audiences(path, errors);
        if !self.certificate_authority.is_empty()
            && let Err(e) = tls_config::parse_roots(self.certificate_authority.as_bytes())
        {
            errors.invalid(&path.child("certificateAuthority"), "<omitted>", e);
        }
        if !self.egress_selector_type.is_empty() {
            let detail = match self.egress_selector_type.as_str() {
                "controlplane" | "cluster" => "this server has no egress selectors: issuers are reached directly",
                _ => "egress selector must be either controlplane or cluster",
            };
            errors.invalid(&path.child("egressSelectorType"), self.egress_selector_type.as_str(), detail);
        }
    }

    fn validate_audiences(&self, path: &Path, errors: &mut ErrorList) {
        let audiences = path.child("audiences");
        if self.audiences.is_empty() {
            errors.required(&audiences, &format!("at least one {audiences} is required"));
            return;
        }
        let mut seen = HashSet::new();
        for (index, audience) in self.audiences.iter().enumerate() {
            if audience.is_empty() {
                errors.required(&audiences.index(index), "");
            }
            if !seen.insert(audience) {
                errors.duplicate(&audiences.index(index), audience.as_str());
            }
        }
        let policy = self.audience_match_policy.as_str();
        let detail = match self.audiences.len() {
            1 if policy.is_empty() || policy == "MatchAny" => return,
            1 => "audienceMatchPolicy must be empty or MatchAny for single audience",
            _ if policy == "MatchAny" => return,
            _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
        };
        errors.invalid(&path.child("audienceMatchPolicy"), policy, detail);
    }
}

fn validate_url(text: &str, path: &Path, errors: &mut ErrorList) {
    let mut wrong = |detail: &str| errors.invalid(path, text, detail);
    let Ok(url) = text.split('#').next().unwrap_or_default().parse::<http::Uri>() else {
        return wrong("URL cannot be parsed");
    };
    if url.scheme_str() != Some("https") {
        wrong("URL scheme must be https");
    }
    if url.authority().is_some_and(|a| a.as_str().contains('@')) {
        wrong("URL must not contain a username or password");
    }
    if url.query().is_some_and(|q| !q.is_empty()) {
        wrong("URL must not contain a query");
    }
    if text.split_once('#').is_some_and(|(_, fragment)| !fragment.is_empty()) {
        wrong("URL must not contain a fragment");
    }
}

/// What expressions about claims, and those about the user, can name.
fn claims_scope() -> Vec<(&'static str, Type)> {
    vec![("claims", Type::Map(Box::new(Type::Dyn)))]
}

fn user_scope() -> Vec<(&'static str, Type)> {
    let texts = || Type::List(Box::new(Type::String));
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts()),
        ("extra", Type::Map(Box::new(texts()))),
    ];
    let fields = fields.map(|(name, of)| (name.to_string(), of)).to_vec();
    vec![("user", Type::Record("kubernetes.UserInfo", fields.into()))]
}

fn compile(
    source: &str,
    scope: &[(&str, Type)],
    condition: bool,
    path: &Path,
    errors: &mut ErrorList,
) -> Option<Expression> {
    let compiled = Expression::compile(source).and_then(|e| e.check(scope).map(|of| (e, of)));
    match compiled {
        Ok((_, of)) if condition && !matches!(of, Type::Bool | Type::Dyn) => {
            errors.invalid(path, source, "must evaluate to bool");
            None
        }
        Ok((expression, _)) => Some(expression),
        Err(e) => {
            errors.invalid(path, source, e.to_string());
            None
        }
    }
}

impl JwtAuthenticator {
    fn compile(&self, path: &Path, errors: &mut ErrorList) -> CompiledExpressions {
        let mut compiled = CompiledExpressions::default();
        self.compile_claim_rules(&path.child("claimValidationRules"), &mut compiled, errors);
        let mappings = path.child("claimMappings");
        let m = &self.claim_mappings;
        compiled.username = m.username.compile(&mappings.child("username"), true, errors);
        compiled.groups = m.groups.compile(&mappings.child("groups"), false, errors);
        if !m.uid.claim.is_empty() && !m.uid.expression.is_empty() {
            errors.invalid(&mappings.child("uid"), "", "claim and expression can't both be set");
        } else if !m.uid.expression.is_empty() {
            let path = mappings.child("uid").child("expression");
            compiled.uid = self::compile(&m.uid.expression, &claims_scope(), false, &path, errors);
        }
        self.compile_extra(&mappings.child("extra"), &mut compiled, errors);
        let email = |e: &Expression| e.selects("claims", "email_verified");
        let verified = compiled.username.as_ref().is_some_and(email)
            || compiled.extra.iter().any(|(_, e)| email(e))
            || compiled.claim_rules.iter().any(|(e, _)| email(e));
        if compiled.username.as_ref().is_some_and(|e| e.selects("claims", "email")) && !verified {
            errors.invalid(
                &mappings.child("username").child("expression"),
                m.username.expression.as_str(),
                "claims.email_verified must be used in claimMappings.username.expression or \
                 claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is \
                 used in claimMappings.username.expression",
            );
        }
        self.compile_user_rules(&path.child("userValidationRules"), &mut compiled, errors);
        compiled
    }

    fn compile_claim_rules(&self, path: &Path, compiled: &mut CompiledExpressions, errors: &mut ErrorList) {
        let (mut claims, mut expressions) = (HashSet::new(), HashSet::new());
        for (index, rule) in self.claim_validation_rules.iter().enumerate() {
            let path = path.index(index);
            match (rule.claim.as_str(), rule.expression.as_str()) {
                ("", "") => errors.required(&path, "claim or expression is required"),
                (claim, "") => {
                    if !rule.message.is_empty() {
                        let detail = "may not be specified when claim is set";
                        errors.invalid(&path.child("message"), rule.message.as_str(), detail);
                    }
                    if !claims.insert(claim) {
                        errors.duplicate(&path.child("claim"), claim);
                    }
                }
                ("", expression) => {
                    if !rule.required_value.is_empty() {
                        let detail = "may not be specified when expression is set";
                        errors.invalid(&path.child("requiredValue"), rule.required_value.as_str(), detail);
                    }
                    if !expressions.insert(expression) {
                        errors.duplicate(&path.child("expression"), expression);
                        continue;
                    }
                    let found = self::compile(expression, &claims_scope(), true, &path.child("expression"), errors);
                    compiled.claim_rules.extend(found.map(|e| (e, rule.message.clone())));
                }
                (claim, _) => errors.invalid(&path, claim, "claim and expression can't both be set"),
            }
        }
    }

    fn compile_extra(&self, path: &Path, compiled: &mut CompiledExpressions, errors: &mut ErrorList) {
        let mut keys = HashSet::new();
        for (index, mapping) in self.claim_mappings.extra.iter().enumerate() {
            let (path, key) = (path.index(index), mapping.key.as_str());
            validate_extra_key(key, &path.child("key"), errors);
            if !keys.insert(key) {
                errors.duplicate(&path.child("key"), key);
                continue;
            }
            let path = path.child("valueExpression");
            if mapping.value_expression.is_empty() {
                errors.required(&path, "");
                continue;
            }
            let found = self::compile(&mapping.value_expression, &claims_scope(), false, &path, errors);
            compiled.extra.extend(found.map(|e| (key.to_string(), e)));
        }
    }

    fn compile_user_rules(&self, path: &Path, compiled: &mut CompiledExpressions, errors: &mut ErrorList) {
        let mut seen = HashSet::new();
        for (index, rule) in self.user_validation_rules.iter().enumerate() {
            let path = path.index(index).child("expression");
            if rule.expression.is_empty() {
                errors.required(&path, "");
            } else if !seen.insert(&rule.expression) {
                errors.duplicate(&path, rule.expression.as_str());
            } else {
                let found = self::compile(&rule.expression, &user_scope(), true, &path, errors);
                compiled.user_rules.extend(found.map(|e| (e, rule.message.clone())));
            }
        }
    }
}

impl PrefixedClaimOrExpression {
    fn compile(&self, path: &Path, required: bool, errors: &mut ErrorList) -> Option<Expression> {
        match (self.claim.as_str(), self.expression.as_str()) {
            ("", "") if required => errors.required(path, "claim or expression is required"),
            ("", "") => {}
            ("", expression) => {
                if let Some(prefix) = &self.prefix {
                    let detail = "may not be specified when expression is set";
                    errors.invalid(&path.child("prefix"), prefix.as_str(), detail);
                }
                return compile(expression, &claims_scope(), false, &path.child("expression"), errors);
            }
            (_, "") if self.prefix.is_none() => errors.required(
                &path.child("prefix"),
                "prefix is required when claim is set. It can be set to an empty string to disable prefixing",
            ),
            (_, "") => {}
            _ => errors.invalid(path, "", "claim and expression can't both be set"),
        }
        None
    }
}

fn validate_extra_key(key: &str, path: &Path, errors: &mut ErrorList) {
    if key.is_empty() {
        return errors.required(path, "");
    }
    match key.split_once('/') {
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            names::dns_subdomain(domain, false).into_iter().for_each(|e| errors.invalid(path, domain, e));
            let reserved = |suffix: &str| domain == suffix || domain.ends_with(&format!(".{suffix}"));
            if reserved("kubernetes.io") || reserved("k8s.io") {
                let detail = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
                errors.invalid(path, key, detail);
            }
        }
        _ => errors.invalid(path, key, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if key != key.to_lowercase() {
        errors.invalid(path, key, "must be lowercase");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(rest: &str) -> String {
        format!("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n{rest}")
    }

    /// One authenticator with everything it needs, and `more`.
    fn issuer(more: &str) -> String {
        whole(&format!(
            "jwt:\n- issuer: {{url: 'https://a.example', audiences: [x]}}\n  claimMappings:\n    username: \
             {{claim: sub, prefix: ''}}\n{more}"
        ))
    }

    #[test]
    fn mistakes_are_named() {
        let check = |text: &str, expected: &str| {
            let found = AuthenticationConfiguration::parse(text).and_then(|c| {
                let own = ["https://kubernetes.default.svc".to_string()];
                c.compile(&own).map_err(|e| e.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
            });
            match found {
                Ok(_) => assert_eq!("", expected, "{text}"),
                Err(e) => assert!(!expected.is_empty() && e.contains(expected), "{text}: {e}"),
            }
        };
        check(&issuer(""), "");
        check(&whole("anonymous: {enabled: true, conditions: [{path: /livez}]}"), "");
        check("", "it is empty");
        check("jwt: [", "line 1");
        check("apiVersion: v1\nkind: Pod\n", "no kind \"Pod\" is registered for version \"v1\"");
        check(&issuer("  claimsMappings: {}\n"), "unknown field");
        let twice = issuer("- issuer: {url: 'https://a.example', audiences: [x]}\n");
        check(&twice, "jwt[1].issuer.url: Duplicate value: \"https://a.example\"");
        let urls = |url: &str| issuer("").replace("https://a.example", url);
        check(
            &urls("http://a.example"),
            "jwt[0].issuer.url: Invalid value: \"http://a.example\": URL scheme must be https",
        );
        check(&urls("https://u@a.example"), "must not contain a username or password");
        check(&urls("https://a.example?x=1"), "must not contain a query");
        check(&urls("https://a.example#x"), "must not contain a fragment");
        check(&urls("https://kubernetes.default.svc"), "URL must not overlap with disallowed issuers");
        let more = |text: &str| issuer("").replace("audiences: [x]", text);
        check(&more("audiences: []"), "jwt[0].issuer.audiences: Required value: at least one");
        check(&more("audiences: [x, y]"), "audienceMatchPolicy must be MatchAny for multiple audiences");
        check(&more("audiences: [x, y], audienceMatchPolicy: MatchAny"), "");
        check(&more("audiences: [x, x], audienceMatchPolicy: MatchAny"), "audiences[1]: Duplicate value");
        check(&more("audiences: [x], discoveryURL: 'https://a.example/'"), "discoveryURL must be different from URL");
        check(&more("audiences: [x], certificateAuthority: no"), "certificateAuthority: Invalid value: \"<omitted>\"");
        let named = |text: &str| issuer("").replace("{claim: sub, prefix: ''}", text);
        check(&named("{claim: sub}"), "username.prefix: Required value: prefix is required when claim is set");
        check(&named("{claim: sub, expression: claims.sub}"), "claim and expression can't both be set");
        check(&named("{}"), "claimMappings.username: Required value: claim or expression is required");
        check(&named("{expression: 'claims.('}"), "username.expression: Invalid value: \"claims.(\"");
        check(&named("{expression: claims.email}"), "claims.email_verified must be used");
        check(&named("{expression: 'claims.?email.orValue(\"\")'}"), "claims.email_verified must be used");
        check(&named("{expression: 'claims.email_verified ? claims.email : \"\"'}"), "");
        check(&issuer("    extra: [{key: foo, valueExpression: claims.x}]\n"), "must be a domain-prefixed path");
        check(&issuer("    extra: [{key: a.k8s.io/x, valueExpression: claims.x}]\n"), "reserved for Kubernetes use");
        check(&issuer("    extra: [{key: e.org/X, valueExpression: claims.x}]\n"), "must be lowercase");
        check(&issuer("    extra: [{key: e.org/x}]\n"), "extra[0].valueExpression: Required value");
        check(
            &issuer("  claimValidationRules: [{}]\n"),
            "claimValidationRules[0]: Required value: claim or expression",
        );
        check(&issuer("  claimValidationRules: [{claim: hd, requiredValue: a, message: b}]\n"), "when claim is set");
        check(&issuer("  claimValidationRules: [{expression: '1'}]\n"), "must evaluate to bool");
        check(&issuer("  userValidationRules: [{expression: \"!user.username.startsWith('system:')\"}]\n"), "");
        check(
            &issuer("  userValidationRules: [{expression: user.name}]\n"),
            "userValidationRules[0].expression: Invalid",
        );
        check(&whole("anonymous: {enabled: false, conditions: [{path: /x}]}"), "enabled should be set to true");
    }
}
