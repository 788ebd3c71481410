//! What the runtime can do beyond the basics: recursively read-only mounts, user namespaces, images as volumes.
//! Learnt by `node_status` from the runtime's status; asked by `runtime_manager` and `pod_status`.
//! Invariant: what the runtime has not said it can do, it can't.

use cri::v1;
use k8s_openapi::api::core::v1::{NodeRuntimeHandler, NodeRuntimeHandlerFeatures};
use parking_lot::RwLock;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    pub recursive_read_only: bool,
    pub user_namespaces: bool,
}

#[derive(Default)]
pub struct RuntimeFeatures {
    handlers: RwLock<Vec<(String, Features)>>,
    /// Why images can't be volumes here.
    without_image_volumes: Option<String>,
}

/// The first releases that mount images; the runtime does not say so itself, and older ones ignore the request.
const WITH_IMAGE_VOLUMES: [(&str, (u64, u64)); 2] = [("containerd", (2, 1)), ("cri-o", (1, 31))];

impl RuntimeFeatures {
    pub fn of(version: &v1::VersionResponse) -> Self {
        let (name, found) = (version.runtime_name.as_str(), version.runtime_version.as_str());
        let mut numbers = found.trim_start_matches('v').split('.').map(|part| part.parse::<u64>().unwrap_or(0));
        let present = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let first = WITH_IMAGE_VOLUMES.iter().find(|(known, _)| *known == name).map(|(_, first)| *first);
        let without_image_volumes = first.filter(|first| present < *first).map(|(major, minor)| {
            format!("image volumes need {name} {major}.{minor} or newer, and this node has {found}")
        });
        Self { handlers: RwLock::default(), without_image_volumes }
    }

    pub fn without_image_volumes(&self) -> Option<&str> {
        self.without_image_volumes.as_deref()
    }

    pub fn observe(&self, handlers: &[v1::RuntimeHandler]) {
        let read = |handler: &v1::RuntimeHandler| {
            let features = handler.features.unwrap_or_default();
            let features = Features {
                recursive_read_only: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            };
            (handler.name.clone(), features)
        };
        let now: Vec<_> = handlers.iter().map(read).collect();
        if *self.handlers.read() != now {
            *self.handlers.write() = now;
        }
    }

    /// Of the default handler.
    pub fn usual(&self) -> Features {
        self.handlers.read().iter().find(|(name, _)| name.is_empty()).map(|(_, features)| *features).unwrap_or_default()
    }

    /// As the Node object shows them; runtimes that say nothing have none to show.
    pub fn shown(&self) -> Option<Vec<NodeRuntimeHandler>> {
        let show = |(name, features): &(String, Features)| NodeRuntimeHandler {
            name: Some(name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(features.recursive_read_only),
                user_namespaces: Some(features.user_namespaces),
            }),
        };
        let all: Vec<_> = self.handlers.read().iter().map(show).collect();
        (!all.is_empty()).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_runtimes_have_no_image_volumes() {
        let check = |runtime_name: &str, runtime_version: &str, possible: bool| {
            let (runtime_name, runtime_version) = (runtime_name.to_string(), runtime_version.to_string());
            let version = v1::VersionResponse { runtime_name, runtime_version, ..Default::default() };
            let features = RuntimeFeatures::of(&version);
            assert_eq!(features.without_image_volumes().is_none(), possible, "{version:?}");
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
        assert_eq!((features.usual(), features.shown()), (Features::default(), None));
        let handler = |name: &str, rro| v1::RuntimeHandler {
            name: name.into(),
            features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts: rro, user_namespaces: false }),
        };
        features.observe(&[handler("", true), handler("kata", false)]);
        assert!(features.usual().recursive_read_only && !features.usual().user_namespaces);
        assert_eq!(features.shown().map(|all| all.len()), Some(2));
    }
}
