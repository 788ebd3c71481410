//! `kubectl apply --prune`: deletes what was applied before and is in no file now.
//! Used by `apply`. With `--applyset` a parent object keeps the set; without, an allow list of kinds is searched.
//! Only objects that an apply made are ever deleted.

use std::{cell::OnceCell, collections::BTreeSet};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::delete;
use crate::{
    apply::last_applied,
    failure::{Failure, Result},
    flags::Matches,
    printers::operation::DryRun,
    resource::{Info, Selection, items_of, metadata},
    session::{CLIENT_VERSION, Session},
};

const ID_LABEL: &str = "applyset.kubernetes.io/id";
const PART_OF_LABEL: &str = "applyset.kubernetes.io/part-of";
const TOOLING: &str = "applyset.kubernetes.io/tooling";
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";

/// The kinds that are searched where nobody says.
const DEFAULT_KINDS: [&str; 16] = [
    "core/v1/ConfigMap",
    "core/v1/Endpoints",
    "core/v1/PersistentVolumeClaim",
    "core/v1/Pod",
    "core/v1/ReplicationController",
    "core/v1/Secret",
    "core/v1/Service",
    "batch/v1/Job",
    "batch/v1/CronJob",
    "networking.k8s.io/v1/Ingress",
    "apps/v1/DaemonSet",
    "apps/v1/Deployment",
    "apps/v1/ReplicaSet",
    "apps/v1/StatefulSet",
    "core/v1/Namespace",
    "core/v1/PersistentVolume",
];

fn allow_list(matches: &Matches) -> Vec<String> {
    let listed = matches.list("prune-allowlist");
    if listed.is_empty() { DEFAULT_KINDS.map(str::to_string).to_vec() } else { listed }
}

pub struct Pruning {
    selector: String,
    namespace: String,
    kinds: Vec<String>,
    cascade: &'static str,
    grace_period_seconds: Option<i64>,
    /// Resource and name of the parent.
    parent: Option<(String, String)>,
    /// What members of the set are labelled with, once the parent's kind is known.
    set_id: OnceCell<String>,
    /// Says what a later kubectl will do otherwise.
    warns: bool,
}

impl Pruning {
    pub fn of(matches: &Matches, selection: &Selection) -> Result<Self> {
        let parent = match matches.str("applyset") {
            "" => None,
            text => Some(match text.split_once('/') {
                Some((resource, name)) => (resource.to_string(), name.to_string()),
                None => ("secrets".to_string(), text.to_string()),
            }),
        };
        if parent.is_some() {
            let given = [
                ("all", matches.bool("all")),
                ("selector", !selection.selector.is_empty()),
                ("prune-allowlist", matches.changed("prune-allowlist")),
            ];
            if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
                return Err(Failure::message(format!("--{flag} is incompatible with --applyset")));
            }
        } else if !matches.bool("all") && selection.selector.is_empty() {
            return Err(Failure::message(
                "all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector",
            ));
        } else if matches.bool("server-side") {
            return Err(Failure::message(
                "--prune is in alpha and doesn't currently work on objects created by server-side apply",
            ));
        }
        let listed = matches.list("prune-allowlist");
        if let Some(kind) = listed.iter().find(|kind| parent.is_none() && kind.split('/').count() != 3) {
            return Err(Failure::message(format!(
                "invalid GroupVersionKind format: {kind}, please follow <group/version/kind>"
            )));
        }
        Ok(Self {
            selector: selection.selector.clone(),
            namespace: selection.namespace.clone(),
            kinds: allow_list(matches),
            cascade: delete::cascade(matches.str("cascade"))?,
            grace_period_seconds: (matches.int("grace-period") >= 0).then(|| matches.int("grace-period")),
            parent,
            set_id: OnceCell::new(),
            warns: true,
        })
    }

    /// For `diff`: without a parent, whatever the selector.
    pub fn by_kinds(matches: &Matches, selection: &Selection) -> Self {
        Self {
            selector: selection.selector.clone(),
            namespace: selection.namespace.clone(),
            kinds: allow_list(matches),
            cascade: "Background",
            grace_period_seconds: None,
            parent: None,
            set_id: OnceCell::new(),
            warns: selection.enforce_namespace,
        }
    }

    async fn parent_info(&self, session: &Session) -> Result<Option<Info>> {
        let Some((word, name)) = &self.parent else { return Ok(None) };
        let resource = session.resource(word).await?;
        let namespace = if resource.namespaced { self.namespace.clone() } else { String::new() };
        Ok(Some(Info { resource, namespace, name: name.clone(), source: String::new(), object: Value::Null }))
    }

    fn id(parent: &Info) -> String {
        let text = format!("{}.{}.{}.{}", parent.name, parent.namespace, parent.resource.kind, parent.resource.group);
        format!("applyset-{}-v1", BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(text)))
    }

    /// Makes or widens the parent, so that nothing is applied outside the set.
    pub async fn before(&self, session: &Session, infos: &[Info]) -> Result<()> {
        let Some(mut parent) = self.parent_info(session).await? else { return Ok(()) };
        let _ = self.set_id.set(Self::id(&parent));
        parent.object = match parent.get(session).await {
            Ok(object) => object,
            Err(failure) if failure.is_not_found() && parent.resource.name == "secrets" => Value::Null,
            Err(failure) => return Err(failure),
        };
        let annotation = |name: &str| -> BTreeSet<String> {
            let text = parent.object["metadata"]["annotations"][name].as_str().unwrap_or_default();
            text.split(',').filter(|p| !p.is_empty()).map(str::to_string).collect()
        };
        let (mut kinds, mut namespaces) = (annotation(KINDS), annotation(NAMESPACES));
        self.gather(&parent, infos, &mut kinds, &mut namespaces);
        self.write_parent(session, &parent, &kinds, &namespaces).await
    }

    fn gather(&self, parent: &Info, infos: &[Info], kinds: &mut BTreeSet<String>, namespaces: &mut BTreeSet<String>) {
        for info in infos {
            kinds.insert(match info.resource.group.as_str() {
                "" => info.resource.kind.clone(),
                group => format!("{}.{group}", info.resource.kind),
            });
            if !info.namespace.is_empty() && info.namespace != parent.namespace {
                namespaces.insert(info.namespace.clone());
            }
        }
    }

    async fn write_parent(
        &self,
        session: &Session,
        parent: &Info,
        kinds: &BTreeSet<String>,
        namespaces: &BTreeSet<String>,
    ) -> Result<()> {
        let join = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(",");
        let object = json!({
            "apiVersion": parent.resource.group_version(),
            "kind": parent.resource.kind,
            "metadata": {
                "name": parent.name,
                "annotations": {TOOLING: format!("kubectl/{CLIENT_VERSION}"), KINDS: join(kinds), NAMESPACES: join(namespaces)},
                "labels": {ID_LABEL: Self::id(parent)},
            },
        });
        let call = session.rest().await?.call(Method::PATCH, parent.path()?);
        let call = call.query("fieldManager", "kubectl-applyset").query("force", "false");
        call.body("application/apply-patch+yaml", object.to_string()).value().await.map(drop)
    }

    /// Puts an object into the set.
    pub fn label(&self, info: &mut Info) -> Result<()> {
        let Some(id) = self.set_id.get() else { return Ok(()) };
        if !info.object["metadata"]["labels"][PART_OF_LABEL].is_null() {
            return Err(Failure::message(format!("ApplySet label {PART_OF_LABEL:?} already set in input data")));
        }
        info.object["metadata"]["labels"][PART_OF_LABEL] = id.clone().into();
        Ok(())
    }

    /// What was applied before and is not among `applied`.
    pub async fn left_over(&self, session: &Session, applied: &[Info]) -> Result<Vec<Info>> {
        let kept: BTreeSet<&str> = applied.iter().map(|i| metadata(&i.object, "uid")).collect();
        let mut candidates = match self.parent_info(session).await? {
            Some(parent) => self.of_set(session, &parent).await?,
            None => self.of_kinds(session, applied).await?,
        };
        candidates.retain(|info| !kept.contains(metadata(&info.object, "uid")));
        Ok(candidates)
    }

    /// Deletes what is left over.
    pub async fn after(&self, session: &Session, applied: &[Info], dry_run: DryRun) -> Result<()> {
        let candidates = self.left_over(session, applied).await?;
        let plan = delete::Plan {
            grace_period_seconds: self.grace_period_seconds,
            cascade: self.cascade,
            ignore_not_found: true,
            dry_run: Some(dry_run),
            ..delete::Plan::default()
        };
        let suffix = match dry_run {
            DryRun::None => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        };
        for info in &candidates {
            delete::delete_all(session, &plan, std::slice::from_ref(info), std::time::Duration::ZERO).await?;
            session.output.line(&format!("{} pruned{suffix}", info.shown()));
        }
        if let (Some(parent), DryRun::None) = (self.parent_info(session).await?, dry_run) {
            let (mut kinds, mut namespaces) = (BTreeSet::new(), BTreeSet::new());
            self.gather(&parent, applied, &mut kinds, &mut namespaces);
            self.write_parent(session, &parent, &kinds, &namespaces).await?;
        }
        Ok(())
    }

    async fn of_set(&self, session: &Session, parent: &Info) -> Result<Vec<Info>> {
        let object = parent.get(session).await?;
        let listed = |name: &str| -> Vec<String> {
            let text = object["metadata"]["annotations"][name].as_str().unwrap_or_default();
            text.split(',').filter(|p| !p.is_empty()).map(str::to_string).collect()
        };
        let selector = format!("{PART_OF_LABEL}={}", Self::id(parent));
        let mut namespaces = listed(NAMESPACES);
        namespaces.push(parent.namespace.clone());
        let mut found = Vec::new();
        for kind in listed(KINDS) {
            let resource = session.resource(&kind).await?;
            let places = if resource.namespaced { namespaces.clone() } else { vec![String::new()] };
            for namespace in places {
                found.extend(list(session, &resource, &namespace, &selector).await?);
            }
        }
        Ok(found)
    }

    async fn of_kinds(&self, session: &Session, applied: &[Info]) -> Result<Vec<Info>> {
        let namespaces: BTreeSet<String> =
            applied.iter().map(|i| i.namespace.clone()).filter(|n| !n.is_empty()).collect();
        if self.warns && self.kinds == DEFAULT_KINDS {
            let text = "Deprecated: kubectl apply will no longer prune non-namespaced resources by default when used with the --namespace flag in a future release. To preserve the current behaviour, list the resources you want to target explicitly in the --prune-allowlist flag.";
            crate::rest::log::warning(&session.env, &session.output, "prune.go:71", text);
        }
        let mut found = Vec::new();
        for kind in &self.kinds {
            let parts: Vec<&str> = kind.split('/').collect();
            let [group, version, kind] = parts.as_slice() else {
                return Err(Failure::message(format!(
                    "invalid GroupVersionKind format: {kind}, please follow <group/version/kind>"
                )));
            };
            let group = if *group == "core" { "" } else { group };
            let Some(resource) = session.discovery().await?.by_kind(group, version, kind) else { continue };
            let places: Vec<String> = match resource.namespaced {
                true => namespaces.iter().cloned().collect(),
                false => vec![String::new()],
            };
            for namespace in places {
                let listed = list(session, &resource, &namespace, &self.selector).await?;
                found.extend(listed.into_iter().filter(|i| last_applied(&i.object).is_some()));
            }
        }
        Ok(found)
    }
}

async fn list(
    session: &Session,
    resource: &std::rc::Rc<crate::discovery::ApiResource>,
    namespace: &str,
    selector: &str,
) -> Result<Vec<Info>> {
    let call = session.rest().await?.get(resource.path(namespace, "")).query_opt("labelSelector", selector);
    let items = items_of(call.value().await?);
    Ok(items
        .into_iter()
        .map(|object| Info {
            resource: resource.clone(),
            namespace: metadata(&object, "namespace").to_string(),
            name: metadata(&object, "name").to_string(),
            source: String::new(),
            object,
        })
        .collect())
}
