//! Acting as someone else: the `Impersonate-*` headers and what they take.
//! Read by `pipeline` right after authentication.
//! Invariant: every part of the other identity needs its own permission.

use std::collections::BTreeMap;

use http::HeaderMap;

use api::ApiError;

use super::{ANONYMOUS, User};
use crate::authz;

/// Whom a request asks to act as.
pub struct Impersonation {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

pub fn impersonation(headers: &HeaderMap) -> Result<Option<Impersonation>, ApiError> {
    let texts = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().filter_map(|v| v.to_str().ok().map(str::to_string)).collect()
    };
    let first = |name: &str| texts(name).into_iter().next().unwrap_or_default();
    let mut extra = BTreeMap::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix("impersonate-extra-") {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().to_lowercase();
            extra.insert(key, texts(name.as_str()));
        }
    }
    let wanted = Impersonation {
        name: first("impersonate-user"),
        uid: first("impersonate-uid"),
        groups: texts("impersonate-group"),
        extra,
    };
    let others = !wanted.uid.is_empty() || !wanted.groups.is_empty() || !wanted.extra.is_empty();
    match (wanted.name.is_empty(), others) {
        (true, false) => Ok(None),
        (true, true) => {
            Err(ApiError::internal("requested impersonation of groups, UID or extra without impersonating a user"))
        }
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

    fn account(&self) -> Option<(&str, &str)> {
        self.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
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
