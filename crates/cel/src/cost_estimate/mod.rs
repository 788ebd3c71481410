//! What an expression costs at most, before any object is seen: definitions with rules that could cost too much are
//! refused by it.
//! Used by `crd::declared` and for the selectors of devices.
//! Equal to what cel-go and Kubernetes' cost estimators say, since clients' definitions are made to fit those.

mod calls;
mod decl_type;
mod estimator;
mod size;
mod type_rules;

pub use decl_type::DeclType;
pub use estimator::CostEstimator;

#[cfg(test)]
mod tests;
