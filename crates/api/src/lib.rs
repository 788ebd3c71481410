//! What Kubernetes objects are: the table of kinds, their schemas, and everything pure that can be said of them.
//! Read by every other crate.
//! Invariant: no I/O, no clock, no randomness, no async (tidy: `pure_files`).

pub mod accessor;
pub mod cluster_dns;
pub mod cluster_ranges;
pub mod codec;
pub mod depth;
pub mod feature_gates;
pub mod field;
pub mod go_regex;
pub mod kinds;
pub mod managed_fields;
pub mod names;
pub mod object;
pub mod object_forms;
pub mod openapi;
pub mod patch;
pub mod placement;
pub mod pod_resources;
pub mod printing;
pub mod quantity;
pub mod quota;
pub mod resource_claims;
pub mod schema;
pub mod selectors;
pub mod status;
pub mod storage;
pub mod verb;
pub mod vertical_pod_autoscaler;
pub mod watch;

/// What every component of ours says it is: the API it has, and who made it.
pub const GIT_VERSION: &str = "v1.35.0+minke";

pub use accessor::Accessor;
pub use codec::pem;
pub use kinds::{Resource, Scope};
pub use object::{Meta, Object};
pub use status::{ApiError, Reason};
pub use storage::{csi, local_storage, selinux, volume_claims};
pub use verb::Verb;
pub use watch::{WatchEvent, WatchKind};
