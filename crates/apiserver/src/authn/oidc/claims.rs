//! What the claims of a verified token make of its bearer.
//! Called by `oidc`; `configuration` has compiled the expressions.
//! Pure: the same claims make the same user.

use kube_cel::cel::objects::Value as CelValue;
use serde_json::{Map, Value, json};

use super::{
    super::{User, service_account::CREDENTIAL_ID},
    configuration::{CompiledExpressions, JwtAuthenticator},
};
use crate::cel::{CelError, Expression, Variables};

/// Clocks of issuers may be ahead by this much, as for upstream's library.
const NOT_BEFORE_LEEWAY_SECONDS: i64 = 60;

/// Google's tokens name their issuer in two ways.
pub fn full_issuer(issuer: &str) -> &str {
    if issuer == "accounts.google.com" { "https://accounts.google.com" } else { issuer }
}

/// The user, and when the token expires.
pub fn user(
    config: &JwtAuthenticator,
    expressions: &CompiledExpressions,
    claims: Map<String, Value>,
    now: i64,
) -> Result<(User, i64), String> {
    let expires = standard_claims(config, &claims, now)?;
    let mut variables = Variables::default();
    let claims = Value::Object(claims);
    variables.set("claims", &claims);
    let mappings = &config.claim_mappings;
    let mut user = User {
        name: username(config, expressions, &claims, &variables)?,
        groups: groups(config, expressions, &claims, &variables)?,
        ..User::default()
    };
    user.uid = match (&expressions.uid, mappings.uid.claim.as_str()) {
        (Some(expression), _) => text(expression, &variables, "uid")?,
        (None, "") => String::new(),
        (None, claim) => {
            claim_text(&claims, claim).map_err(|e| format!("oidc: parse uid claim {claim:?}: {e}"))?.to_string()
        }
    };
    if let Some(id) = claims["jti"].as_str().filter(|id| !id.is_empty()) {
        user.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={id}")]);
    }
    for (key, expression) in &expressions.extra {
        let attempt = |e: String| format!("oidc: error evaluating extra claim expression: {}: {e}", expression.source);
        let values = texts(expression, &variables).map_err(attempt)?;
        if !values.is_empty() {
            user.extra.insert(key.clone(), values);
        }
    }
    for rule in config.claim_validation_rules.iter().filter(|rule| !rule.claim.is_empty()) {
        let claim = &rule.claim;
        if claims.get(claim).is_none() {
            return Err(format!("oidc: required claim {claim} not present in ID token"));
        }
        let found = claim_text(&claims, claim).map_err(|e| format!("oidc: parse claim {claim}: {e}"))?;
        if found != rule.required_value {
            let wanted = &rule.required_value;
            return Err(format!("oidc: required claim {claim} value does not match. Got = {found}, want = {wanted}"));
        }
    }
    holds_all(&expressions.claim_rules, &variables)
        .map_err(|e| format!("oidc: error evaluating claim validation expression: {e}"))?;
    if !expressions.user_rules.is_empty() {
        let mut variables = Variables::default();
        let info = json!({ "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra });
        variables.set("user", &info);
        holds_all(&expressions.user_rules, &variables)
            .map_err(|e| format!("oidc: error evaluating user info validation rule: {e}"))?;
    }
    Ok((user, expires))
}

/// Issuer, audience and times. Returns when the token expires.
fn standard_claims(config: &JwtAuthenticator, claims: &Map<String, Value>, now: i64) -> Result<i64, String> {
    expiry(&config.issuer.url, &config.issuer.audiences, claims, now)
}

/// When a token of `issuer` for one of `audiences` expires. One that says what can't be read is refused.
pub fn expiry(issuer: &str, audiences: &[String], claims: &Map<String, Value>, now: i64) -> Result<i64, String> {
    let found = full_issuer(claims.get("iss").and_then(Value::as_str).unwrap_or_default());
    if found != issuer {
        return Err(format!("oidc: id token issued by a different provider, expected {issuer:?} got {found:?}"));
    }
    let unreadable = |name: &str| format!("oidc: failed to unmarshal claims: {name:?} is not what it should be");
    let found: Vec<&str> = match claims.get("aud") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => {
            several.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(|| unreadable("aud"))?
        }
        Some(_) => return Err(unreadable("aud")),
    };
    if !audiences.iter().any(|a| found.contains(&a.as_str())) {
        return Err(format!("oidc: expected audience in {audiences:?} got {found:?}"));
    }
    // Numbers that are written as texts are numbers, as for Go's decoder.
    let seconds = |name: &str| {
        let number = match claims.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) => text.parse::<f64>().ok().filter(|number| number.is_finite()),
            Some(value) => value.as_f64(),
        };
        number.map(Some).ok_or_else(|| unreadable(name))
    };
    seconds("iat")?;
    let expires = seconds("exp")?.ok_or("oidc: token has no expiry")? as i64;
    if expires <= now {
        return Err(format!("oidc: token is expired (Token Expiry: {expires})"));
    }
    match seconds("nbf")?.map(|seconds| seconds as i64) {
        Some(from) if from > now + NOT_BEFORE_LEEWAY_SECONDS => {
            Err(format!("oidc: current time {now} before the nbf (not before) time: {from}"))
        }
        _ => Ok(expires),
    }
}

fn username(
    config: &JwtAuthenticator,
    expressions: &CompiledExpressions,
    claims: &Value,
    variables: &Variables,
) -> Result<String, String> {
    if let Some(expression) = &expressions.username {
        let name = text(expression, variables, "username")?;
        return if name.is_empty() {
            Err("oidc: empty username via CEL expression is not allowed".into())
        } else {
            Ok(name)
        };
    }
    let mapping = &config.claim_mappings.username;
    let claim = &mapping.claim;
    let attempt = |e: String| format!("oidc: parse username claims {claim:?}: {e}");
    let name = claim_text(claims, claim).map_err(attempt)?;
    if name.is_empty() {
        return Err(attempt("it is empty".into()));
    }
    if claim == "email" {
        match &claims["email_verified"] {
            Value::Null if claims.get("email_verified").is_none() => {}
            Value::Bool(true) => {}
            Value::Bool(false) => return Err("oidc: email not verified".into()),
            _ => return Err("oidc: parse 'email_verified' claim: it is no boolean".into()),
        }
    }
    Ok(format!("{}{name}", mapping.prefix.as_deref().unwrap_or_default()))
}

fn groups(
    config: &JwtAuthenticator,
    expressions: &CompiledExpressions,
    claims: &Value,
    variables: &Variables,
) -> Result<Vec<String>, String> {
    if let Some(expression) = &expressions.groups {
        return texts(expression, variables).map_err(|e| format!("oidc: error evaluating group claim expression: {e}"));
    }
    let mapping = &config.claim_mappings.groups;
    let found = match claims.get(&mapping.claim) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(one)) => Some(vec![one.as_str()]),
        Some(Value::Array(several)) => several.iter().map(Value::as_str).collect(),
        Some(_) => None,
    };
    let found = found.ok_or_else(|| {
        format!("oidc: parse groups claim {:?}: it must be a string or a list of strings", mapping.claim)
    })?;
    let prefix = mapping.prefix.as_deref().unwrap_or_default();
    Ok(found.into_iter().map(|group| format!("{prefix}{group}")).collect())
}

fn claim_text<'a>(claims: &'a Value, claim: &str) -> Result<&'a str, String> {
    let found = claims.get(claim).ok_or("claim not present")?;
    found.as_str().ok_or_else(|| "it is no string".into())
}

fn text(expression: &Expression, variables: &Variables, what: &str) -> Result<String, String> {
    let attempt = |e: CelError| format!("oidc: error evaluating {what} claim expression: {e}");
    match expression.evaluate(variables).0.map_err(attempt)? {
        CelValue::String(text) => Ok(text.to_string()),
        _ => {
            Err(format!("oidc: error evaluating {what} claim expression: {what} claim expression must return a string"))
        }
    }
}

/// A string, several or none.
fn texts(expression: &Expression, variables: &Variables) -> Result<Vec<String>, String> {
    let text = |value: &CelValue| match value {
        CelValue::String(text) => Ok(text.to_string()),
        other => Err(format!("expected string elements, got {:?}", other.type_of())),
    };
    let found = match expression.evaluate(variables).0.map_err(|e| e.to_string())? {
        CelValue::Null => Vec::new(),
        CelValue::List(items) => items.iter().map(text).collect::<Result<_, _>>()?,
        CelValue::String(one) => vec![one.to_string()],
        other => return Err(format!("expression must return a string or a list, got {:?}", other.type_of())),
    };
    Ok(found.into_iter().filter(|text| !text.is_empty()).collect())
}

fn holds_all(rules: &[(Expression, String)], variables: &Variables) -> Result<(), String> {
    for (rule, message) in rules {
        match rule.holds(variables).0 {
            Ok(true) => {}
            Ok(false) if message.is_empty() => {
                return Err(format!("validation expression '{}' failed", rule.source));
            }
            Ok(false) => return Err(format!("validation expression '{}' failed: {message}", rule.source)),
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::oidc::configuration::AuthenticationConfiguration;

    /// `more` goes beside the issuer, `claims` beside those every token has.
    fn read(more: &str, claims: Value) -> Result<String, String> {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: \
             {{url: 'https://i', audiences: [a, b], audienceMatchPolicy: MatchAny}}\n{more}\n"
        );
        let config = AuthenticationConfiguration::parse(&text).unwrap();
        let compiled = config.compile(&[]);
        let compiled =
            compiled.unwrap_or_else(|e| panic!("{:?}", e.iter().map(ToString::to_string).collect::<Vec<_>>()));
        let mut all = json!({ "iss": "https://i", "aud": ["x", "b"], "exp": 2000, "sub": "ada" });
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        let Value::Object(all) = all else { panic!("claims are an object") };
        let (user, expires) = user(&config.jwt[0], &compiled[0], all, 1000)?;
        assert_eq!(expires, 2000);
        Ok(format!("{} {} {:?} {:?}", user.name, user.uid, user.groups, user.extra))
    }

    #[test]
    fn claims_make_users() {
        let check = |more: &str, claims: Value, expected: Result<&str, &str>| {
            let found = read(more, claims.clone());
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{more} {claims}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{more} {claims}: {found}"),
                _ => panic!("{more} {claims}: {found:?}, expected {expected:?}"),
            }
        };
        let sub = "  claimMappings: {username: {claim: sub, prefix: 'i:'}, groups: {claim: g, prefix: 'g:'}}";
        check(sub, json!({}), Ok("i:ada  [] {}"));
        check(sub, json!({ "g": "one" }), Ok("i:ada  [\"g:one\"] {}"));
        check(
            sub,
            json!({ "g": ["one", "two"], "jti": "7" }),
            Ok("i:ada  [\"g:one\", \"g:two\"] {\"authentication.kubernetes.io/credential-id\": [\"JTI=7\"]}"),
        );
        check(sub, json!({ "g": 1 }), Err("parse groups claim"));
        check(sub, json!({ "sub": 1 }), Err("parse username claims \"sub\""));
        check(sub, json!({ "sub": "" }), Err("it is empty"));
        check(sub, json!({ "aud": "a" }), Ok("i:ada  [] {}"));
        check(sub, json!({ "aud": "c" }), Err("expected audience"));
        check(sub, json!({ "aud": null }), Err("expected audience"));
        check(sub, json!({ "iss": "https://other" }), Err("different provider"));
        check(sub, json!({ "exp": 1000 }), Err("expired"));
        check(sub, json!({ "exp": null }), Err("no expiry"));
        check(sub, json!({ "nbf": 1060 }), Ok("i:ada  [] {}"));
        check(sub, json!({ "nbf": 1061 }), Err("not before"));
        check(sub, json!({ "nbf": "1061" }), Err("not before"));
        check(sub, json!({ "nbf": null, "exp": "2000" }), Ok("i:ada  [] {}"));
        // What can't be read is not taken for absent.
        for (name, value) in [
            ("nbf", json!("later")),
            ("nbf", json!([1061])),
            ("nbf", json!(true)),
            ("iat", json!({})),
            ("exp", json!("inf")),
            ("aud", json!(["b", 1])),
            ("aud", json!({ "b": "b" })),
        ] {
            check(sub, json!({ name: value }), Err("failed to unmarshal claims"));
        }
        check(sub, json!({ "g": null }), Ok("i:ada  [] {}"));
        let email = "  claimMappings: {username: {claim: email, prefix: ''}}";
        check(email, json!({ "email": "a@b" }), Ok("a@b  [] {}"));
        check(email, json!({ "email": "a@b", "email_verified": false }), Err("email not verified"));
        check(email, json!({ "email": "a@b", "email_verified": "yes" }), Err("parse 'email_verified'"));
        let cel = "  claimMappings: {username: {expression: 'claims.sub + \"@\" + claims.org'}, \
                   groups: {expression: 'claims.roles.split(\",\")'}, uid: {expression: 'string(claims.n)'}, \
                   extra: [{key: e.org/x, valueExpression: claims.org}, {key: e.org/none, valueExpression: '\"\"'}]}";
        check(cel, json!({ "org": "o", "roles": "a,b", "n": 7 }), Ok("ada@o 7 [\"a\", \"b\"] {\"e.org/x\": [\"o\"]}"));
        check(cel, json!({ "org": 1, "roles": "a", "n": 7 }), Err("error evaluating username claim expression"));
        check(cel, json!({ "org": "o", "n": 7 }), Err("error evaluating group claim expression"));
        let uid = "  claimMappings: {username: {claim: sub, prefix: ''}, uid: {claim: u}}";
        check(uid, json!({ "u": "9" }), Ok("ada 9 [] {}"));
        check(uid, json!({}), Err("parse uid claim \"u\": claim not present"));
        let rules = "  claimMappings: {username: {claim: sub, prefix: ''}}\n  claimValidationRules: [{claim: hd, \
                     requiredValue: e.org}, {expression: 'claims.exp - claims.nbf <= 600', message: too long}]\n  \
                     userValidationRules: [{expression: \"!user.username.startsWith('system:')\", message: reserved}]";
        check(rules, json!({ "hd": "e.org", "nbf": 1050 }), Err("failed: too long"));
        check(rules, json!({ "hd": "e.org", "nbf": 900 }), Err("failed: too long"));
        check(rules, json!({ "hd": "other", "nbf": 1050 }), Err("required claim hd value does not match"));
        check(rules, json!({ "nbf": 1050 }), Err("required claim hd not present"));
        let user = rules.replace("<= 600", "<= 6000");
        check(&user, json!({ "hd": "e.org", "nbf": 900 }), Ok("ada  [] {}"));
        check(&user, json!({ "hd": "e.org", "nbf": 900, "sub": "system:admin" }), Err("failed: reserved"));
        check(&user, json!({ "hd": "e.org" }), Err("claim validation expression"));
    }
}
