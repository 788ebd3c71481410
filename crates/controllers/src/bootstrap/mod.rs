//! Bootstrap tokens: the signatures that they make, and their end.
//! One file per controller; rows in `descriptors`.

mod signer;
mod token_cleaner;

pub use signer::make as make_signer;
pub use token_cleaner::make as make_token_cleaner;
