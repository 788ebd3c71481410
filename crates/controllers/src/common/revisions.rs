//! ControllerRevisions: the templates that a daemon set or stateful set has had.
//! The core says which to make, renumber and delete; `carry_out` does so. Read by `kubectl rollout history`.
//! One revision per template; the present one has the highest number.

use std::{collections::BTreeMap, sync::Arc};

use api::ApiError;
use client::{Api, Client, Informer};
use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec},
    apimachinery::pkg::{
        apis::meta::v1::{DeleteOptions, ObjectMeta},
        runtime::RawExtension,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::common::{
    indexes,
    meta::{self, Object},
    ownership,
};

pub const HASH_LABEL: &str = "controller-revision-hash";

/// The present revision and the older ones, oldest first.
#[derive(Debug, Clone)]
pub struct History {
    pub update: ControllerRevision,
    pub old: Vec<Arc<ControllerRevision>>,
    change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    None,
    Create,
    Renumber,
}

/// What a template is stored as: a patch that puts it back.
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = "replace".into();
    json!({ "spec": { "template": template } })
}

pub fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    parse(&revision.data.as_ref()?.0)
}

fn parse(data: &Value) -> Option<PodTemplateSpec> {
    serde_json::from_slice(data["spec"]["template"].to_string().as_bytes()).ok()
}

fn same_data(revision: &ControllerRevision, data: &Value) -> bool {
    // Compared as templates: a server may have stored the same thing with other words for "nothing".
    revision.data.as_ref().is_some_and(|known| known.0 == *data || parse(&known.0) == parse(data))
}

/// Looks for `template` among the `revisions` of `owner`; plans a new one where it is missing.
pub fn history<O: Object>(
    owner: &O,
    template: &PodTemplateSpec,
    labels: &BTreeMap<String, String>,
    collisions: Option<i32>,
    mut revisions: Vec<Arc<ControllerRevision>>,
) -> History {
    revisions.sort_by(|a, b| (a.revision, a.created(), a.name()).cmp(&(b.revision, b.created(), b.name())));
    let data = data(template);
    let next = revisions.last().map_or(0, |r| r.revision) + 1;
    if let Some(at) = revisions.iter().rposition(|r| same_data(r, &data)) {
        let last = at + 1 == revisions.len();
        let mut update = (*revisions.remove(at)).clone();
        if !last {
            update.revision = next;
        }
        return History { update, old: revisions, change: if last { Change::None } else { Change::Renumber } };
    }
    let hash = meta::safe_hash(data.to_string().as_bytes(), collisions);
    let mut labels = labels.clone();
    labels.insert(HASH_LABEL.into(), hash.clone());
    let update = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", owner.name())),
            namespace: owner.meta().namespace.clone(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![owner.as_controller()]),
            ..ObjectMeta::default()
        },
        revision: next,
        data: Some(RawExtension(data)),
    };
    History { update, old: revisions, change: Change::Create }
}

impl History {
    /// The name that pods carry as their hash.
    pub fn update_hash(&self) -> &str {
        hash(&self.update)
    }

    /// Old revisions beyond `limit` that no pod uses.
    pub fn surplus(&self, limit: i32, live: impl Fn(&ControllerRevision) -> bool) -> Vec<Arc<ControllerRevision>> {
        let idle: Vec<_> = self.old.iter().filter(|r| !live(r) && !r.deleting()).cloned().collect();
        let count = idle.len().saturating_sub(limit.max(0) as usize);
        idle.into_iter().take(count).collect()
    }

    /// Writes what is new. `false` is a collision: the name is taken by another template.
    pub async fn carry_out(&mut self, client: &Client) -> Result<bool, ApiError> {
        let api = client.namespaced::<ControllerRevision>(self.update.namespace());
        match self.change {
            Change::None => {}
            Change::Renumber => self.update = api.replace(self.update.name(), &self.update).await?,
            Change::Create => match api.create(&self.update).await {
                Ok(created) => self.update = created,
                Err(error) if error.is_already_exists() => {
                    let known = api.get(self.update.name()).await?;
                    let data = self.update.data.as_ref().map(|d| d.0.clone()).unwrap_or_default();
                    if !same_data(&known, &data) {
                        return Ok(false);
                    }
                    self.update = known;
                }
                Err(error) => return Err(error),
            },
        }
        self.change = Change::None;
        Ok(true)
    }
}

pub fn hash(revision: &ControllerRevision) -> &str {
    revision.label(HASH_LABEL).unwrap_or_default()
}

/// The revisions of `owner`; orphans that match are taken in.
pub async fn claim<O: Object + Serialize + DeserializeOwned>(
    revisions: &Informer<ControllerRevision>,
    client: &Client,
    owner: &O,
    matches: impl Fn(&ControllerRevision) -> bool,
) -> Result<Vec<Arc<ControllerRevision>>, ApiError> {
    let mut all = revisions.by_index(indexes::CONTROLLER, owner.uid());
    all.extend(revisions.by_index(indexes::ORPHAN, owner.namespace()));
    let claims = ownership::claims(all, owner.meta(), matches);
    let owners: Api<O> = client.namespaced(owner.namespace());
    ownership::claim(claims, &client.namespaced(owner.namespace()), &owners, owner).await
}

pub async fn delete(client: &Client, surplus: &[Arc<ControllerRevision>]) -> Result<(), ApiError> {
    for revision in surplus {
        let api = client.namespaced::<ControllerRevision>(revision.namespace());
        match api.delete(revision.name(), &DeleteOptions::default()).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;

    use super::*;

    #[test]
    fn templates_make_and_reuse_revisions() {
        let owner: DaemonSet =
            serde_json::from_value(json!({ "metadata": { "name": "d", "namespace": "n" } })).unwrap();
        let template = |image: &str| -> PodTemplateSpec {
            serde_json::from_value(json!({ "spec": { "containers": [{ "name": "c", "image": image }] } })).unwrap()
        };
        let mut known: Vec<Arc<ControllerRevision>> = Vec::new();
        let mut check = |image: &str, change: Change, number: i64| {
            let history = history(&owner, &template(image), &BTreeMap::new(), None, known.clone());
            assert_eq!((history.change, history.update.revision), (change, number), "{image}");
            known = history.old.iter().cloned().chain([Arc::new(history.update.clone())]).collect();
            history
        };
        check("a", Change::Create, 1);
        check("a", Change::None, 1);
        check("b", Change::Create, 2);
        check("c", Change::Create, 3);
        let history = check("a", Change::Renumber, 4);
        assert_eq!(template_image(&history.update), "a");
        let surplus = history.surplus(0, |r| r.revision == 3);
        assert_eq!(surplus.iter().map(|r| r.revision).collect::<Vec<_>>(), [2]);
    }

    fn template_image(revision: &ControllerRevision) -> String {
        template(revision).unwrap().spec.unwrap().containers[0].image.clone().unwrap()
    }
}
