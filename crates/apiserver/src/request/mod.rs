//! A request as handlers read it: body, query, what it is about and who sends it.
//! Made by `server::pipeline`; read by everything behind it.

pub mod body;
pub mod request_info;

pub(crate) mod call;
pub(crate) mod query;
