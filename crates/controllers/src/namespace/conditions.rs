//! The core: what the conditions of a terminating namespace say about what remains.
//! Called by the controller beside it.
//! Upstream's words, since people and scripts read them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NamespaceCondition, NamespaceStatus};

use crate::common::meta::time;

/// What a round of deletions left behind.
#[derive(Debug, Default, PartialEq)]
pub struct RemainingContent {
    /// By resource (`plural.group`): how many objects.
    pub resources: BTreeMap<String, usize>,
    /// By finalizer: how many objects hold it.
    pub finalizers: BTreeMap<String, usize>,
    pub errors: Vec<String>,
    /// By group and version: why a server can't say what it has.
    pub undiscovered: BTreeMap<String, String>,
}

impl RemainingContent {
    pub fn any(&self) -> bool {
        !self.resources.is_empty() || !self.errors.is_empty() || !self.undiscovered.is_empty()
    }

    pub fn discovery_failure(&self) -> Option<String> {
        let failures: Vec<_> = self.undiscovered.iter().map(|(server, why)| format!("{server}: {why}")).collect();
        let all = || format!("unable to retrieve the complete list of server APIs: {}", failures.join(", "));
        (!failures.is_empty()).then(all)
    }
}

/// The new status; `None` when it says the same as the old one.
pub fn status(old: &NamespaceStatus, remains: &RemainingContent, now: Timestamp) -> Option<NamespaceStatus> {
    let list = |counts: &BTreeMap<String, usize>, between: &str| {
        let parts: Vec<_> =
            counts.iter().map(|(name, count)| format!("{name} {between} {count} resource instances")).collect();
        parts.join(", ")
    };
    let failed = !remains.errors.is_empty();
    let wanted: [(&str, bool, &str, String); 5] = [
        match remains.discovery_failure() {
            Some(failure) => {
                let count = remains.undiscovered.len();
                let message = format!("Discovery failed for some groups, {count} failing: {failure}");
                ("NamespaceDeletionDiscoveryFailure", true, "DiscoveryFailed", message)
            }
            None => {
                let message = "All resources successfully discovered".into();
                ("NamespaceDeletionDiscoveryFailure", false, "ResourcesDiscovered", message)
            }
        },
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".into(),
        ),
        if failed {
            let (count, errors) = (remains.errors.len(), remains.errors.join(", "));
            let message = format!("Failed to delete all resource types, {count} remaining: {errors}");
            ("NamespaceDeletionContentFailure", true, "ContentDeletionFailed", message)
        } else {
            let message = "All content successfully deleted, may be waiting on finalization".into();
            ("NamespaceDeletionContentFailure", false, "ContentDeleted", message)
        },
        if remains.resources.is_empty() {
            ("NamespaceContentRemaining", false, "ContentRemoved", "All content successfully removed".into())
        } else {
            let message = format!("Some resources are remaining: {}", list(&remains.resources, "has"));
            ("NamespaceContentRemaining", true, "SomeResourcesRemain", message)
        },
        if remains.finalizers.is_empty() {
            let message = "All content-preserving finalizers finished".into();
            ("NamespaceFinalizersRemaining", false, "ContentHasNoFinalizers", message)
        } else {
            let remaining = list(&remains.finalizers, "in");
            let message = format!("Some content in the namespace has finalizers remaining: {remaining}");
            ("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", message)
        },
    ];
    let mut conditions = old.conditions.clone().unwrap_or_default();
    for (kind, holds, reason, message) in wanted {
        let state = if holds { "True" } else { "False" };
        let known = conditions.iter_mut().find(|c| c.type_ == kind);
        let same = |c: &NamespaceCondition| {
            c.status == state && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(message.as_str())
        };
        match known {
            Some(condition) if same(condition) => {}
            Some(condition) => {
                if condition.status != state {
                    condition.last_transition_time = Some(time(now));
                }
                condition.status = state.into();
                (condition.reason, condition.message) = (Some(reason.into()), Some(message));
            }
            None => conditions.push(NamespaceCondition {
                type_: kind.into(),
                status: state.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_transition_time: Some(time(now)),
            }),
        }
    }
    let new = NamespaceStatus { phase: Some("Terminating".into()), conditions: Some(conditions) };
    Some(new).filter(|new| new != old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_say_what_remains() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let check = |remains: &RemainingContent, kind: &str, state: &str, message: &str| {
            let new = status(&NamespaceStatus::default(), remains, now).unwrap();
            let condition = new.conditions.as_ref().unwrap().iter().find(|c| c.type_ == kind).unwrap();
            assert_eq!((condition.status.as_str(), condition.message.as_deref()), (state, Some(message)));
            assert_eq!(status(&new, remains, now), None);
        };
        let nothing = RemainingContent::default();
        check(&nothing, "NamespaceContentRemaining", "False", "All content successfully removed");
        let some = RemainingContent {
            resources: [("pods.".to_string(), 2)].into(),
            finalizers: [("example.com/hold".to_string(), 1)].into(),
            errors: vec!["no".into()],
            undiscovered: [("a.b/v1".to_string(), "stale GroupVersion discovery: a.b/v1".to_string())].into(),
        };
        check(
            &some,
            "NamespaceDeletionDiscoveryFailure",
            "True",
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: a.b/v1: \
             stale GroupVersion discovery: a.b/v1",
        );
        check(
            &some,
            "NamespaceContentRemaining",
            "True",
            "Some resources are remaining: pods. has 2 resource instances",
        );
        check(
            &some,
            "NamespaceFinalizersRemaining",
            "True",
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
        );
        check(&some, "NamespaceDeletionContentFailure", "True", "Failed to delete all resource types, 1 remaining: no");
    }
}
