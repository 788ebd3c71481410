//! Acting as someone else: the `Impersonate-*` headers and what they take.
//! Read by `pipeline` right after authentication.
//! Every part of the other identity needs its own permission.

use std::collections::BTreeMap;

use http::HeaderMap;

use api::{ApiError, names};

use super::{
    ANONYMOUS, User,
    identity_headers::{extra, values},
};
use crate::authz;

const VERSION: &str = "authentication.k8s.io/v1";

/// Whom a request asks to act as.
pub struct Impersonation {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// `None`: the request is its sender's own.
pub fn impersonation(headers: &HeaderMap) -> Result<Option<Impersonation>, ApiError> {
    let first = |name: &str| Ok::<_, ApiError>(values(headers, name)?.into_iter().next().unwrap_or_default());
    let wanted = Impersonation {
        name: first("impersonate-user")?,
        uid: first("impersonate-uid")?,
        groups: values(headers, "impersonate-group")?,
        extra: extra(headers, "impersonate-extra-")?,
    };
    let others = !wanted.uid.is_empty() || !wanted.groups.is_empty() || !wanted.extra.is_empty();
    match (wanted.name.is_empty(), others) {
        (true, false) => Ok(None),
        (true, true) => Err(ApiError::bad_request(format!(
            "requested [{}] without impersonating a user",
            wanted.references().join(" ")
        ))),
        _ => Ok(Some(wanted)),
    }
}

impl Impersonation {
    /// Everything `caller` must be allowed to do first.
    pub fn permissions(&self, caller: &User) -> Vec<authz::Attributes> {
        let ask = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| authz::Attributes {
            user: caller.clone(),
            verb: "impersonate".into(),
            is_resource: true,
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..authz::Attributes::default()
        };
        const GROUP: &str = "authentication.k8s.io";
        let mut asked = vec![match self.account() {
            Some((namespace, name)) => ask("", "serviceaccounts", "", namespace, name),
            None => ask("", "users", "", "", &self.name),
        }];
        asked.extend(self.groups.iter().map(|g| ask("", "groups", "", "", g)));
        if !self.uid.is_empty() {
            asked.push(ask(GROUP, "uids", "", "", &self.uid));
        }
        for (key, values) in &self.extra {
            asked.extend(values.iter().map(|v| ask(GROUP, "userextras", key, "", v)));
        }
        asked
    }

    /// Groups, extra fields and UID as upstream prints references to them.
    fn references(&self) -> Vec<String> {
        let mut shown: Vec<String> = self.groups.iter().map(|group| format!("{{Group  {group}    }}")).collect();
        for (key, values) in &self.extra {
            shown.extend(values.iter().map(|value| format!("{{UserExtra  {value}  {VERSION}  {key}}}")));
        }
        if !self.uid.is_empty() {
            shown.push(format!("{{UID  {}  {VERSION}  }}", self.uid));
        }
        shown
    }

    /// Namespace and name, if the user is a service account and not only named like one.
    fn account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        let valid = names::dns_label(namespace, false).is_empty() && names::dns_subdomain(name, false).is_empty();
        valid.then_some((namespace, name))
    }

    pub fn user(self) -> User {
        let groups = match (self.account(), self.groups.is_empty()) {
            (Some((namespace, _)), true) => {
                vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")]
            }
            _ => self.groups,
        };
        let mut user = User { name: self.name, uid: self.uid, groups, extra: self.extra };
        if user.name == ANONYMOUS && !user.in_group("system:unauthenticated") {
            user.groups.push("system:unauthenticated".into());
        }
        user.authenticated()
    }
}
