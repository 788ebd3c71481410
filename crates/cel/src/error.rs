//! Why an expression gives no value.
//! Told to clients by admission and by the scheduler, in upstream's words.

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum CelError {
    /// It cannot be parsed, or cannot work with the types of what it names.
    #[error("{0}")]
    Compilation(String),
    /// What it was evaluated with does not fit.
    #[error("{0}")]
    Evaluation(String),
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// Its deadline was over.
    #[error("operation interrupted")]
    Interrupted,
    /// It and those before it cost more than they may together.
    #[error("validation failed due to running out of cost budget, no further validation rules will be run")]
    OutOfBudget,
}

impl CelError {
    /// What the interpreter says, in upstream's words.
    pub(crate) fn evaluation(error: &impl ToString) -> Self {
        let text = error.to_string();
        Self::Evaluation(match text.strip_prefix("No such key") {
            Some(rest) => format!("no such key{rest}"),
            None => text,
        })
    }

    /// Whether the evaluation was stopped before its end.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::CostLimit | Self::Interrupted)
    }
}
