//! Expressions as the server has them: the language of the crate `cel`, and questions about permissions (`authorizer`).
//! Used by `admission`, `authn`, `authz` and custom resources.

pub mod authorizer;

pub use ::cel::{
    CALL_COST_MAX, CONDITIONS_COST_BUDGET, COST_BUDGET, CelError, Expression, Variables, cost_estimate, device,
    from_json, map, spend, to_json, types,
};
