//! What is known here of `authorizer` in expressions: its names and what a question costs.
//! Used by the checker and the cost estimate; who can answer brings the functions (`Library`).

pub const NAME: &str = "authorizer";
pub const REQUEST_RESOURCE: &str = "authorizer.requestResource";
/// What one question costs an expression.
pub const CHECK_COST: u64 = 350_000;
