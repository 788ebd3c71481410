//! How answers are made: negotiation, encoding, table rows, and the answers that belong to no resource.
//! Called by `server::pipeline` with what `registry` returns.

pub mod codec;
pub mod console;
pub mod debug;
pub mod negotiate;
pub mod not_found;
pub mod respond;
pub mod table;
