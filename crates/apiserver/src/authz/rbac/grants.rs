//! Who is granted what: bindings by subject and namespace, roles by name.
//! Fed by the watch cache through `index`; read by the authorizer and by `escalation`.
//! A decision looks at the grants of its own subjects only, however many others there are.

use std::{collections::HashMap, sync::Arc};

use serde::Deserialize;

use api::Object;

use super::rule::Rule;
use crate::{authn::User, storage::index::Index};

type Rules = Arc<[Rule]>;
/// By namespace; cluster-wide grants under the empty one.
type ByNamespace = HashMap<Box<str>, Vec<Grant>>;

#[derive(Default)]
pub struct Grants {
    roles: HashMap<Box<str>, HashMap<Box<str>, Rules>>,
    users: HashMap<Box<str>, ByNamespace>,
    groups: HashMap<Box<str>, ByNamespace>,
}

pub struct Grant {
    binding: Arc<Binding>,
    subject: Subject,
}

struct Binding {
    name: Box<str>,
    /// Empty for a ClusterRoleBinding.
    namespace: Box<str>,
    role: RoleRef,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    pub kind: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

/// `ClusterRoleBinding "x" of ClusterRole "y" to Group "z"`, as reasons name a grant.
impl std::fmt::Display for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Binding { name, namespace, role } = &*self.binding;
        match namespace.is_empty() {
            true => write!(f, "ClusterRoleBinding {name:?}")?,
            false => write!(f, "RoleBinding \"{name}/{namespace}\"")?,
        }
        write!(f, " of {} {:?} to {} ", role.kind, role.name, self.subject.kind)?;
        match self.subject.kind.as_str() {
            "ServiceAccount" => write!(f, "\"{}/{}\"", self.subject.name, self.subject.namespace),
            _ => write!(f, "{:?}", self.subject.name),
        }
    }
}

impl Grants {
    /// Every grant of `user` that counts in `namespace`, with its rules; those of the whole cluster first.
    pub fn of<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Grant, Option<&'a Rules>)> {
        let namespaces = std::iter::once("").chain(Some(namespace).filter(|n| !n.is_empty()));
        let found = namespaces.flat_map(move |namespace| {
            let own = self.users.get(user.name.as_str());
            let shared = user.groups.iter().filter_map(|g| self.groups.get(g.as_str()));
            own.into_iter().chain(shared).filter_map(move |grants| grants.get(namespace)).flatten()
        });
        found.map(|grant| (grant, self.rules(&grant.binding.role, &grant.binding.namespace)))
    }

    /// The rules a binding in `namespace` refers to.
    pub fn rules(&self, role: &RoleRef, namespace: &str) -> Option<&Rules> {
        let place = if role.kind == "Role" { namespace } else { "" };
        self.roles.get(place)?.get(role.name.as_str())
    }

    fn role(&mut self, new: bool, object: &Object) {
        #[derive(Deserialize)]
        struct Role {
            #[serde(default)]
            rules: Option<Vec<Rule>>,
        }
        let place = object.meta.namespace.as_deref().unwrap_or_default();
        if !new {
            if let Some(roles) = self.roles.get_mut(place) {
                roles.remove(object.meta.name.as_str());
            }
            return;
        }
        let role = serde_json::from_slice::<Role>(object.json());
        let rules = role.ok().and_then(|r| r.rules).unwrap_or_default();
        self.roles.entry(place.into()).or_default().insert(object.meta.name.as_str().into(), rules.into());
    }

    fn binding(&mut self, new: bool, object: &Object) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Content {
            #[serde(default)]
            role_ref: RoleRef,
            #[serde(default)]
            subjects: Option<Vec<Subject>>,
        }
        let Ok(content) = serde_json::from_slice::<Content>(object.json()) else { return };
        let binding = Arc::new(Binding {
            name: object.meta.name.as_str().into(),
            namespace: object.meta.namespace.as_deref().unwrap_or_default().into(),
            role: content.role_ref,
        });
        for mut subject in content.subjects.unwrap_or_default() {
            if subject.kind == "ServiceAccount" && subject.namespace.is_empty() {
                subject.namespace = binding.namespace.to_string();
            }
            let (subjects, key) = match subject.kind.as_str() {
                "User" => (&mut self.users, subject.name.clone()),
                "Group" => (&mut self.groups, subject.name.clone()),
                "ServiceAccount" if !subject.namespace.is_empty() => {
                    (&mut self.users, format!("system:serviceaccount:{}:{}", subject.namespace, subject.name))
                }
                _ => continue,
            };
            if new {
                let places = subjects.entry(key.into()).or_default();
                let grants = places.entry(binding.namespace.clone()).or_default();
                grants.push(Grant { binding: binding.clone(), subject });
                continue;
            }
            let Some(places) = subjects.get_mut(key.as_str()) else { continue };
            if let Some(grants) = places.get_mut(&binding.namespace) {
                grants.retain(|g| g.binding.name != binding.name);
                if grants.is_empty() {
                    places.remove(&binding.namespace);
                }
            }
            if places.is_empty() {
                subjects.remove(key.as_str());
            }
        }
    }
}

impl Index for Grants {
    const RESOURCES: &'static [&'static str] = &["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

    fn apply(&mut self, resource: &'static str, old: Option<&Object>, new: Option<&Object>) {
        let is_role = matches!(resource, "clusterroles" | "roles");
        for (new, object) in old.map(|o| (false, o)).into_iter().chain(new.map(|o| (true, o))) {
            match is_role {
                true => self.role(new, object),
                false => self.binding(new, object),
            }
        }
    }
}

/// How upstream names a role that a binding refers to and nobody made.
pub fn not_found(grant: &Grant) -> String {
    let role = &grant.binding.role;
    format!("{}.rbac.authorization.k8s.io {:?} not found", role.kind.to_ascii_lowercase(), role.name)
}
