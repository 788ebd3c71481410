//! Who asks, and whether they may, in the API server's words (TokenReview, SubjectAccessReview).
//! Used by ports that keep no users of their own: the kubelet's, and those of controllers and scheduler.
//! When in doubt, no.

use api::ApiError;
use http::{HeaderMap, header};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec},
};

use crate::Client;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    pub fn anonymous() -> Self {
        Self { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()] }
    }

    /// Whose token it is; 401 when it is nobody's.
    pub async fn of_token(client: &Client, token: &str) -> Result<Self, ApiError> {
        if token.is_empty() {
            return Err(ApiError::unauthorized());
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_string()), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let status = client.api::<TokenReview>().create(&review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).ok_or_else(ApiError::unauthorized)?;
        Ok(Self { name: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() })
    }

    /// Whether they may do `what`, which names the resource or path and the verb.
    pub async fn may(&self, client: &Client, what: SubjectAccessReviewSpec) -> Result<bool, ApiError> {
        let spec = SubjectAccessReviewSpec { user: Some(self.name.clone()), groups: Some(self.groups.clone()), ..what };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = client.api::<SubjectAccessReview>().create(&review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

/// The token that a request carries; 401 for an Authorization that is no token, or cannot be read.
pub fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let shown = value.to_str().ok().and_then(|text| text.trim().split_once(' '));
    let token = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    token.filter(|token| !token.is_empty()).map(Some).ok_or_else(ApiError::unauthorized)
}
