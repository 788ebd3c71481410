//! Certificate signing requests: approved where a node asks for its own, signed, and cleared away.
//! `signing` is the core; agents join and kubelets renew through here.
//! Nothing is signed that a person or the approver has not approved.

mod approver;
mod cleaner;
mod serving_approver;
mod serving_ca_publisher;
mod signer;
mod signing;

pub use approver::make as make_approver;
pub use cleaner::make as make_cleaner;
pub use serving_approver::{ReservedNames, make as make_serving_approver};
pub use serving_ca_publisher::make as make_serving_ca_publisher;
pub use signer::make as make_signer;
