//! AlwaysAdmit and AlwaysDeny: plugins with one answer, both deprecated upstream.
//! Rows of the table in `admission`.
//! Look at nothing.

use async_trait::async_trait;

use api::ApiError;

use super::{Attributes, Plugin};

/// Has nothing against anything.
pub struct AlwaysAdmit;

#[async_trait]
impl Plugin for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }
}

/// Refuses every write but the server's own, without which it would not start.
pub struct AlwaysDeny;

impl AlwaysDeny {
    fn decide(&self, a: &Attributes<'_>) -> Result<(), ApiError> {
        match a.user.name == "system:apiserver" {
            true => Ok(()),
            false => Err(a.forbidden("admission control is denying all modifications")),
        }
    }
}

#[async_trait]
impl Plugin for AlwaysDeny {
    fn name(&self) -> &'static str {
        "AlwaysDeny"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        self.decide(a)
    }

    fn validates(&self) -> bool {
        true
    }

    fn mutates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        self.decide(a)
    }
}
