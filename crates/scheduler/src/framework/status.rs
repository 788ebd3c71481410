//! What a plugin answers when it does not simply agree, in upstream's codes.
//! Returned at every extension point; counted by `diagnosis`.

use std::borrow::Cow;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Something went wrong; the pod is tried again after its back-off.
    Error,
    /// The pod can't be scheduled (here) now; removing other pods may help.
    Unschedulable,
    /// As `Unschedulable`, and no preemption changes it.
    UnschedulableAndUnresolvable,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "Error",
            Self::Unschedulable => "Unschedulable",
            Self::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Status {
    pub code: Code,
    pub reasons: Vec<Cow<'static, str>>,
}

impl Status {
    pub fn unschedulable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Code::Unschedulable, reasons: vec![reason.into()] }
    }

    pub fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Code::UnschedulableAndUnresolvable, reasons: vec![reason.into()] }
    }

    pub fn error(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Code::Error, reasons: vec![reason.into()] }
    }

    /// Whether removing other pods could change the answer.
    pub fn is_resolvable(&self) -> bool {
        self.code == Code::Unschedulable
    }

    pub fn message(&self) -> String {
        self.reasons.join(", ")
    }
}
