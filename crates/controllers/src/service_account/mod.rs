//! ServiceAccounts, the Secrets with their tokens, and the ConfigMap with the authority that their pods believe.
//! One file per controller; rows in `descriptors`.

mod accounts;
mod legacy_tokens;
mod root_ca;
mod tokens;

pub use accounts::make as make_accounts;
pub use legacy_tokens::make as make_legacy_token_cleaner;
pub use root_ca::make as make_root_ca_publisher;
pub use tokens::make as make_tokens;
