//! Plugins of a node, which the kubelet reaches over sockets: `registration` finds them, `devices` are device plugins and
//! who has which of their devices, `dra` are drivers of claims, `pod_resources` tells monitors of both; `grpc` is what all
//! of them speak.
//! Used by `kubelet`; `example` has plugins for tests and for those who write one.
//! Invariant: every call of a plugin has a deadline (type: `grpc::PluginChannel::call` takes one).

pub mod cdi;
pub mod checkpoint_file;
pub mod devices;
pub mod dra;
pub mod example;
pub mod grpc;
pub mod plugin_metrics;
pub mod pod_resources;
pub mod registration;

use std::sync::Arc;

/// Told the UID of a pod whose devices are not as healthy, or as ill, as they were.
pub type HealthListener = Arc<dyn Fn(&str) + Send + Sync>;
