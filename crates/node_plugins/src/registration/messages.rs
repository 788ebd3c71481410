//! The messages of `pluginregistration.Registration`, by their published field numbers.
//! Used by `plugin_watcher` and by the plugins of the tests.

pub const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
pub const NOTIFY_REGISTRATION_STATUS: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";

#[derive(Clone, PartialEq, prost::Message)]
pub struct InfoRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatusResponse {}
