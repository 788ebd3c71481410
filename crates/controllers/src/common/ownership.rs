//! Who belongs to whom: adoption of orphans that match a selector, release of those that no longer do.
//! Used by every controller with a selector.
//! Never takes an object from another controller, and never adopts for an owner that is going away.

use std::sync::Arc;

use api::ApiError;
use client::{Api, Patch};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::common::meta::Object;

#[derive(Debug)]
pub struct Claims<K> {
    pub owned: Vec<Arc<K>>,
    pub adopt: Vec<Arc<K>>,
    pub release: Vec<Arc<K>>,
}

/// Sorts `objects` (of the owner's namespace) by what is to be done with them.
pub fn claims<K: Object>(objects: Vec<Arc<K>>, owner: &ObjectMeta, matches: impl Fn(&K) -> bool) -> Claims<K> {
    let (uid, deleting) = (owner.uid.as_deref().unwrap_or_default(), owner.deletion_timestamp.is_some());
    let mut claims = Claims { owned: Vec::new(), adopt: Vec::new(), release: Vec::new() };
    for object in objects {
        match object.controller() {
            Some(other) if other.uid != uid => {}
            Some(_) if matches(&object) => claims.owned.push(object),
            Some(_) if !deleting => claims.release.push(object),
            None if !deleting && !object.deleting() && matches(&object) => claims.adopt.push(object),
            _ => {}
        }
    }
    claims
}

/// Carries the claims out; returns what is owned afterwards. `api` is that of the objects, `owners` that of the owner.
pub async fn claim<K, O>(claims: Claims<K>, api: &Api<K>, owners: &Api<O>, owner: &O) -> Result<Vec<Arc<K>>, ApiError>
where
    K: Object + Serialize + DeserializeOwned,
    O: Object + Serialize + DeserializeOwned,
{
    claim_with(claims, api, owners, owner, None).await
}

/// The same, and what is adopted gets `finalizer`.
pub async fn claim_with<K, O>(
    claims: Claims<K>,
    api: &Api<K>,
    owners: &Api<O>,
    owner: &O,
    finalizer: Option<&str>,
) -> Result<Vec<Arc<K>>, ApiError>
where
    K: Object + Serialize + DeserializeOwned,
    O: Object + Serialize + DeserializeOwned,
{
    let mut owned = claims.owned;
    for object in claims.release {
        release(api, &*object, owner.uid()).await?;
    }
    if claims.adopt.is_empty() {
        return Ok(owned);
    }
    // The cache may be behind: an owner that is already going must not gain children.
    let fresh = owners.get(owner.name()).await?;
    if fresh.uid() != owner.uid() || fresh.deleting() {
        return Err(ApiError::internal(format!("can't adopt: {} {} is being deleted", O::KIND, owner.key())));
    }
    for object in claims.adopt {
        match adopt(api, &*object, owner.as_controller(), finalizer).await {
            Ok(adopted) => owned.push(Arc::new(adopted)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(owned)
}

async fn adopt<K: Object + Serialize + DeserializeOwned>(
    api: &Api<K>,
    object: &K,
    owner: OwnerReference,
    finalizer: Option<&str>,
) -> Result<K, ApiError> {
    let mut owners = object.meta().owner_references.clone().unwrap_or_default();
    owners.retain(|o| o.uid != owner.uid);
    owners.push(owner);
    let mut change = change(object, owners);
    if let Some(finalizer) = finalizer.filter(|new| !object.finalizers().iter().any(|f| f == new)) {
        let held = object.finalizers().iter().map(String::as_str);
        change["metadata"]["finalizers"] = held.chain([finalizer]).collect();
    }
    api.patch(object.name(), &Patch::Merge(change)).await
}

/// Takes the reference to `owner_uid` away. An object that is gone needs no release.
pub async fn release<K: Object + Serialize + DeserializeOwned>(
    api: &Api<K>,
    object: &K,
    owner_uid: &str,
) -> Result<(), ApiError> {
    let mut owners = object.meta().owner_references.clone().unwrap_or_default();
    owners.retain(|o| o.uid != owner_uid);
    match api.patch(object.name(), &Patch::Merge(change(object, owners))).await {
        Err(error) if !error.is_not_found() && error.code != 422 => Err(error),
        _ => Ok(()),
    }
}

fn change<K: Object>(object: &K, owners: Vec<OwnerReference>) -> Value {
    json!({ "metadata": {
        "uid": object.uid(),
        "resourceVersion": object.meta().resource_version,
        "ownerReferences": owners,
    } })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn who_is_claimed() {
        let pod = |name: &str, owner: Option<&str>, app: &str, deleting: bool| {
            let owners: Vec<_> = owner
                .map(|uid| json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": uid, "controller": true }))
                .into_iter()
                .collect();
            let deletion = deleting.then_some("2026-01-01T00:00:00Z");
            Arc::new(
                serde_json::from_value::<Pod>(json!({ "metadata": {
                    "name": name, "labels": { "app": app }, "ownerReferences": owners, "deletionTimestamp": deletion,
                } }))
                .unwrap(),
            )
        };
        let pods = vec![
            pod("mine", Some("me"), "web", false),
            pod("strayed", Some("me"), "db", false),
            pod("orphan", None, "web", false),
            pod("dying-orphan", None, "web", true),
            pod("stranger", None, "db", false),
            pod("taken", Some("other"), "web", false),
        ];
        let check = |deleting: bool, expected: [&[&str]; 3]| {
            let mut owner = ObjectMeta { uid: Some("me".into()), ..ObjectMeta::default() };
            if deleting {
                owner.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
            }
            let claims = claims(pods.clone(), &owner, |p| p.label("app") == Some("web"));
            let names = |pods: &[Arc<Pod>]| pods.iter().map(|p| p.name().to_string()).collect::<Vec<_>>();
            assert_eq!(
                [names(&claims.owned), names(&claims.adopt), names(&claims.release)],
                expected.map(|e| e.to_vec())
            );
        };
        check(false, [&["mine"], &["orphan"], &["strayed"]]);
        check(true, [&["mine"], &[], &[]]);
    }
}
