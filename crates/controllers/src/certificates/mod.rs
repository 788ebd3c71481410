//! Certificate signing requests: approved where a node asks for its own, signed, and cleared away.
//! `signing` is the core; agents join and kubelets renew through here.
//! Nothing is signed that a person or the approver has not approved.

mod approval;
mod approver;
mod cleaner;
mod pod_request_cleaner;
mod serving_approver;
mod serving_ca_publisher;
mod signer;
mod signing;
mod trust_bundle_publisher;

pub use approver::make as make_approver;
pub use cleaner::make as make_cleaner;
pub use pod_request_cleaner::make as make_pod_request_cleaner;
pub use serving_approver::{ReservedNames, make as make_serving_approver};
pub use serving_ca_publisher::make as make_serving_ca_publisher;
pub use signer::make as make_signer;
pub use trust_bundle_publisher::make as make_trust_bundle_publisher;
