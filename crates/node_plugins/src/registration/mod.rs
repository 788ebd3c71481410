//! How plugins make themselves known: `plugin_watcher` follows the directory of their sockets, `messages` is the
//! protocol, a `PluginHandler` is who takes in plugins of one type.
//! Used by `kubelet`, which has one handler per type.

pub mod messages;
pub mod plugin_watcher;

use async_trait::async_trait;
use messages::PluginInfo;

/// Plugins of one type. What it returns as an error is told to the plugin, which is tried again later.
#[async_trait]
pub trait PluginHandler: Send + Sync {
    /// Why a plugin can't be used here.
    fn validate(&self, info: &PluginInfo) -> Result<(), String>;

    async fn register(&self, info: &PluginInfo, endpoint: &str) -> Result<(), String>;

    /// After the plugin was told that it is registered.
    async fn registered(&self, _name: &str) {}

    /// The socket has gone; `is_last` when no other socket has the same plugin.
    async fn deregister(&self, name: &str, endpoint: &str, is_last: bool) -> Result<(), String>;
}
