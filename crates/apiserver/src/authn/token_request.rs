//! `POST serviceaccounts/NAME/token`: a signed token for an account, bound to a pod, a secret or a node if asked.
//! Called by `registry`; `service_account` believes what this signs.
//! Never signs for an object that does not exist, nor for longer than the configuration allows.

use serde_json::{Value, json};

use api::{ApiError, Object};

use super::service_account::{Claims, Keys, Private, Reference};
use crate::storage::cluster::Cluster;

/// What the ServiceAccount admission plugin asks for. Such tokens live on for a year, so that clients that never
/// read them again go on working, and say when they should have been renewed.
const WARN_ONLY_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 86400;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";

/// The one default that belongs to the type itself: everybody is shown it.
pub fn default_expiration(request: &mut Value) {
    for part in ["metadata", "spec"] {
        if !request[part].is_object() {
            request[part] = json!({});
        }
    }
    if request["spec"]["expirationSeconds"].is_null() {
        request["spec"]["expirationSeconds"] = json!(3600);
    }
}

/// What a TokenRequest means that says less: its account, the server's own audiences. Those who may change the request
/// are shown it without; what comes of it must make sense before those who judge are asked.
/// `checks_uid`: whether the account must still be the one that is meant.
pub fn complete(
    cluster: &Cluster,
    keys: &Keys,
    account: &Object,
    checks_uid: bool,
    request: &mut Value,
) -> Result<(), ApiError> {
    let text = |field: &str| request["metadata"][field].as_str().unwrap_or_default();
    let (name, uid) = (text("name"), text("uid"));
    if !name.is_empty() && name != account.meta.name {
        let mut errors = api::field::ErrorList::new();
        let path = api::field::Path::new("metadata").child("name");
        errors.invalid(&path, name, "must match the service account name if specified");
        return Err(ApiError::invalid(GROUP, KIND, &account.meta.name, errors));
    }
    if checks_uid && !uid.is_empty() && uid != account.meta.uid {
        let why = format!(
            "the UID in the token request ({uid}) does not match the UID of the service account ({})",
            account.meta.uid
        );
        return Err(ApiError::conflict(GROUP, KIND, &account.meta.name, &why));
    }
    if request["spec"]["audiences"].as_array().is_none_or(Vec::is_empty) {
        request["spec"]["audiences"] = json!(keys.audiences);
    }
    request["metadata"]["name"] = json!(account.meta.name);
    request["metadata"]["uid"] = json!(account.meta.uid);
    let now =
        jiff::Timestamp::from_second(cluster.env.now().as_second()).map_err(|e| ApiError::internal(e.to_string()))?;
    request["metadata"]["creationTimestamp"] = json!(now.to_string());
    request["status"] = json!({ "token": "", "expirationTimestamp": null });
    validate(request["spec"]["expirationSeconds"].as_i64().unwrap_or_default())
}

/// Fills in the status of a complete TokenRequest; the second value is to be shown to the client as a warning.
pub async fn issue(
    cluster: &Cluster,
    keys: &Keys,
    max_seconds: i64,
    account: &Object,
    mut request: Value,
) -> Result<(Value, Option<String>), ApiError> {
    let namespace = account.meta.namespace.clone().unwrap_or_default();
    let now = cluster.env.now().as_second();
    let asked = request["spec"]["expirationSeconds"].as_i64().unwrap_or_default();
    let seconds = asked.min(max_seconds);
    let warning =
        (seconds < asked).then(|| format!("requested expiration of {asked} seconds shortened to {seconds} seconds"));
    let audiences = request["spec"]["audiences"].as_array().into_iter().flatten();
    let audiences: Vec<String> = audiences.filter_map(|a| a.as_str().map(str::to_string)).collect();
    let reference = Reference { name: account.meta.name.clone(), uid: account.meta.uid.clone() };
    let mut private = Private { namespace: namespace.clone(), serviceaccount: reference, ..Private::default() };
    if request["spec"]["boundObjectRef"].is_object() {
        bind(cluster, &mut private, &request["spec"]["boundObjectRef"]).await?;
    }
    let mut lasts = seconds;
    let own = audiences.iter().all(|a| keys.audiences.contains(a));
    if keys.extend_expiration && private.pod.is_some() && seconds == WARN_ONLY_SECONDS && own {
        private.warnafter = Some(now + seconds);
        // As upstream, whatever the longest expiration is that can be asked for.
        lasts = EXTENDED_SECONDS;
    }
    let claims = Claims {
        iss: keys.issuer.clone(),
        sub: format!("system:serviceaccount:{namespace}:{}", account.meta.name),
        aud: audiences.clone(),
        exp: now + lasts,
        iat: now,
        nbf: now,
        jti: cluster.env.uuid(),
        kubernetes: private,
    };
    let expires = jiff::Timestamp::from_second(now + seconds).map_err(|e| ApiError::internal(e.to_string()))?;
    request["spec"]["expirationSeconds"] = json!(seconds);
    if request["spec"].get("boundObjectRef").is_none() {
        request["spec"]["boundObjectRef"] = Value::Null;
    }
    request["status"] = json!({ "token": keys.sign(&claims)?, "expirationTimestamp": expires.to_string() });
    Ok((request, warning))
}

fn validate(seconds: i64) -> Result<(), ApiError> {
    let detail = match seconds {
        ..600 => "may not specify a duration less than 10 minutes",
        4_294_967_297.. => "may not specify a duration larger than 2^32 seconds",
        _ => return Ok(()),
    };
    let mut errors = api::field::ErrorList::new();
    errors.invalid(&api::field::Path::new("spec").child("expirationSeconds"), json!(seconds), detail);
    Err(ApiError::invalid(GROUP, KIND, "", errors))
}

async fn bind(cluster: &Cluster, private: &mut Private, bound: &Value) -> Result<(), ApiError> {
    let text = |field: &str| bound[field].as_str().unwrap_or_default();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let plural = match (group, kind) {
        ("", "Pod") => "pods",
        ("", "Secret") => "secrets",
        ("", "Node") => "nodes",
        _ => {
            let what = format!("{group}/{version}, Kind={kind}");
            return Err(ApiError::bad_request(format!("cannot bind token to object of type {what}")));
        }
    };
    let place = if kind == "Node" { "" } else { private.namespace.as_str() };
    let found = cluster.fresh_get(plural, place, name).await?;
    let object = found.ok_or_else(|| ApiError::not_found("", plural, name))?;
    if !uid.is_empty() && object.meta.uid != uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(ApiError::conflict("", kind, name, &why));
    }
    let reference = Reference { name: name.to_string(), uid: object.meta.uid.clone() };
    match kind {
        "Pod" => {
            let pod = object.value();
            let runs_as = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
            let account = private.serviceaccount.name.as_str();
            if runs_as != account {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            if let Some(node) = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
                let uid = cluster.get("nodes", "", node).map(|n| n.meta.uid.clone()).unwrap_or_default();
                private.node = Some(Reference { name: node.to_string(), uid });
            }
            private.pod = Some(reference);
        }
        "Secret" => private.secret = Some(reference),
        _ => private.node = Some(reference),
    }
    Ok(())
}
