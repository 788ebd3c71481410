//! What the runtime can do beyond the basics: recursively read-only mounts, user namespaces.
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
pub struct RuntimeFeatures(RwLock<Vec<(String, Features)>>);

impl RuntimeFeatures {
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
        if *self.0.read() != now {
            *self.0.write() = now;
        }
    }

    /// Of the default handler.
    pub fn usual(&self) -> Features {
        self.0.read().iter().find(|(name, _)| name.is_empty()).map(|(_, features)| *features).unwrap_or_default()
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
        let all: Vec<_> = self.0.read().iter().map(show).collect();
        (!all.is_empty()).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
