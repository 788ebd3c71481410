//! Verbs that tell about the client, the server and their resources.
//! Rows of `verbs::ROOT`.
//! None of them changes anything.

pub mod api_resources;
pub mod api_versions;
pub mod cluster_info;
pub mod completion;
pub mod explain;
pub mod kustomize;
pub mod options;
pub mod plugin;
pub mod version;
