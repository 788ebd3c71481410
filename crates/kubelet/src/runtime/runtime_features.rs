//! What the runtime can do beyond the basics: recursively read-only mounts, user namespaces, images as volumes; and
//! whether it has a network for pods just now.
//! Learnt by `node_status` from the runtime's status; asked by `runtime_manager`, `pod_workers` and `pod_status`.
//! What the runtime has not reported it can do, it can't.

use cri::v1;
use k8s_openapi::api::core::v1::{NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures};
use parking_lot::RwLock;

use super::user_namespaces::UserNamespaceError;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    pub recursive_read_only: bool,
    pub user_namespaces: bool,
}

/// What the runtime last reported of itself.
#[derive(Debug, Default, PartialEq)]
struct ReportedFeatures {
    handlers: Vec<(String, Features)>,
    supplemental_groups_policy: Option<bool>,
    network_problem: Option<String>,
}

#[derive(Default)]
pub struct RuntimeFeatures {
    reported: RwLock<ReportedFeatures>,
    /// Why images can't be volumes here.
    without_image_volumes: Option<String>,
    ignores_cdi: bool,
}

/// The first releases that mount images; the runtime does not say so itself, and older ones ignore the request.
const IMAGE_VOLUME_VERSION_MIN: [(&str, (u64, u64)); 2] = [("containerd", (2, 1)), ("cri-o", (1, 31))];
/// The first releases that give containers CDI devices; older ones ignore them.
const CDI_VERSION_MIN: [(&str, (u64, u64)); 2] = [("containerd", (1, 7)), ("cri-o", (1, 27))];

impl RuntimeFeatures {
    pub fn new(version: &v1::VersionResponse) -> Self {
        let (name, found) = (version.runtime_name.as_str(), version.runtime_version.as_str());
        let mut numbers = found.trim_start_matches('v').split('.').map(|part| part.parse::<u64>().unwrap_or(0));
        let present = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let too_old = |table: &[(&str, (u64, u64))]| {
            let first = table.iter().find(|(known, _)| *known == name).map(|(_, first)| *first);
            first.filter(|first| present < *first)
        };
        let ignores_cdi = too_old(&CDI_VERSION_MIN).is_some();
        let without_image_volumes = too_old(&IMAGE_VOLUME_VERSION_MIN).map(|(major, minor)| {
            format!("image volumes need {name} {major}.{minor} or newer, and this node has {found}")
        });
        Self { reported: RwLock::default(), without_image_volumes, ignores_cdi }
    }

    pub fn without_image_volumes(&self) -> Option<&str> {
        self.without_image_volumes.as_deref()
    }

    /// Whether the kubelet has to give CDI devices itself.
    pub fn ignores_cdi(&self) -> bool {
        self.ignores_cdi
    }

    pub fn observe(&self, answer: &v1::StatusResponse) {
        let read = |handler: &v1::RuntimeHandler| {
            let features = handler.features.unwrap_or_default();
            let features = Features {
                recursive_read_only: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            };
            (handler.name.clone(), features)
        };
        let now = ReportedFeatures {
            handlers: answer.runtime_handlers.iter().map(read).collect(),
            supplemental_groups_policy: answer.features.as_ref().map(|f| f.supplemental_groups_policy),
            network_problem: network_problem(answer),
        };
        if *self.reported.read() != now {
            *self.reported.write() = now;
        }
    }

    /// Why pods that need a network of their own must wait.
    pub fn network_problem(&self) -> Option<String> {
        self.reported.read().network_problem.clone()
    }

    /// Of a handler by its name, that of the default one being empty; `None` for one that is not known.
    pub fn of_handler(&self, name: &str) -> Option<Features> {
        self.reported.read().handlers.iter().find(|(known, _)| known == name).map(|(_, features)| *features)
    }

    /// Says why pods of that handler can't have users of their own.
    pub fn check_user_namespaces(&self, handler: &str) -> Result<(), UserNamespaceError> {
        let known = self.of_handler(handler);
        let handler = handler.to_string();
        match known {
            Some(features) if features.user_namespaces => Ok(()),
            None if !self.reported.read().handlers.is_empty() => Err(UserNamespaceError::UnknownHandler { handler }),
            _ => Err(UserNamespaceError::Unsupported { handler }),
        }
    }

    /// As the Node object shows it, by runtimes that say anything of it.
    pub fn shown_features(&self) -> Option<NodeFeatures> {
        let supplemental_groups_policy = Some(self.reported.read().supplemental_groups_policy?);
        Some(NodeFeatures { supplemental_groups_policy })
    }

    /// As the Node object shows them; runtimes that say nothing have none to show.
    pub fn node_handlers(&self) -> Option<Vec<NodeRuntimeHandler>> {
        let show = |(name, features): &(String, Features)| NodeRuntimeHandler {
            name: Some(name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(features.recursive_read_only),
                user_namespaces: Some(features.user_namespaces),
            }),
        };
        let all: Vec<_> = self.reported.read().handlers.iter().map(show).collect();
        (!all.is_empty()).then_some(all)
    }
}

/// In the words of the node's condition.
pub fn network_problem(answer: &v1::StatusResponse) -> Option<String> {
    let conditions = answer.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let bad = conditions.iter().find(|condition| condition.r#type == "NetworkReady" && !condition.status)?;
    Some(format!(
        "container runtime network not ready: NetworkReady=false reason:{} message:{}",
        bad.reason, bad.message
    ))
}

/// In the words of the node's condition.
pub fn runtime_problem(answer: &v1::StatusResponse) -> Option<String> {
    let conditions = answer.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let condition = conditions.iter().find(|c| c.r#type == "RuntimeReady" && !c.status)?;
    Some(format!(
        "container runtime not ready: RuntimeReady=false reason:{} message:{}",
        condition.reason, condition.message
    ))
}

/// Several problems as upstream lists them.
pub fn aggregated(mut problems: Vec<String>) -> Option<String> {
    match problems.len() {
        0 | 1 => problems.pop(),
        _ => Some(format!("[{}]", problems.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_ready_says_all_that_is_wrong() {
        let status = |runtime: bool, network: bool| {
            let condition = |kind: &str, status| v1::RuntimeCondition {
                r#type: kind.into(),
                status,
                reason: "R".into(),
                message: "why".into(),
            };
            let conditions = vec![condition("RuntimeReady", runtime), condition("NetworkReady", network)];
            let status = v1::RuntimeStatus { conditions };
            let answer = v1::StatusResponse { status: Some(status), ..Default::default() };
            aggregated([runtime_problem(&answer), network_problem(&answer)].into_iter().flatten().collect())
        };
        let not_ready = "container runtime not ready: RuntimeReady=false reason:R message:why";
        let no_network = "container runtime network not ready: NetworkReady=false reason:R message:why";
        assert_eq!(status(true, true), None);
        assert_eq!(status(false, true).as_deref(), Some(not_ready));
        assert_eq!(status(true, false).as_deref(), Some(no_network));
        assert_eq!(status(false, false), Some(format!("[{not_ready}, {no_network}]")));
    }

    #[test]
    fn old_runtimes_have_no_image_volumes() {
        let check = |runtime_name: &str, runtime_version: &str, possible: bool| {
            let (runtime_name, runtime_version) = (runtime_name.to_string(), runtime_version.to_string());
            let version = v1::VersionResponse { runtime_name, runtime_version, ..Default::default() };
            let features = RuntimeFeatures::new(&version);
            assert_eq!(features.without_image_volumes().is_none(), possible, "{version:?}");
            assert_eq!(features.ignores_cdi(), version.runtime_version == "v1.6.20", "{version:?}");
        };
        check("containerd", "v1.6.20", false);
        check("containerd", "1.7.24~ds1", false);
        check("containerd", "v2.0.5", false);
        check("containerd", "v2.1.0", true);
        check("cri-o", "1.30.2", false);
        check("cri-o", "1.33.0", true);
        check("another", "0.1", true);
    }

    #[test]
    fn only_what_was_said_is_there() {
        let features = RuntimeFeatures::default();
        assert_eq!((features.of_handler(""), features.node_handlers(), features.shown_features()), (None, None, None));
        let handler = |name: &str, recursive_read_only_mounts, user_namespaces| v1::RuntimeHandler {
            name: name.into(),
            features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts, user_namespaces }),
        };
        let refused = "can't set `spec.hostUsers: false`, ";
        let check = |handler: &str, expected: Option<&str>| {
            let expected = expected.map(|why| format!("{refused}{why}"));
            assert_eq!(
                features.check_user_namespaces(handler).err().map(|error| error.to_string()),
                expected,
                "{handler:?}"
            );
        };
        check("", Some("runtime does not support user namespaces"));
        check("kata", Some("RuntimeClass handler \"kata\" does not support user namespaces"));
        features.observe(&v1::StatusResponse {
            runtime_handlers: vec![handler("", true, false), handler("kata", false, true)],
            features: Some(v1::RuntimeFeatures { supplemental_groups_policy: true }),
            ..Default::default()
        });
        let recursive = |handler: &str| features.of_handler(handler).map(|f| f.recursive_read_only);
        assert_eq!((recursive(""), recursive("kata"), recursive("gone")), (Some(true), Some(false), None));
        check("", Some("runtime does not support user namespaces"));
        check("kata", None);
        let unknown = "does not support user namespaces: the handler \"gone\" is not known";
        check("gone", Some(&format!("RuntimeClass handler \"gone\" {unknown}")));
        assert_eq!(features.node_handlers().map(|all| all.len()), Some(2));
        assert_eq!(features.shown_features().and_then(|f| f.supplemental_groups_policy), Some(true));
    }
}
