//! An API server that is not there, for tests of what does not ask it.
//! Used by tests next to the code.
//! Invariant: every question fails.

/// Answers nothing.
pub struct NoApi;

#[async_trait::async_trait]
impl client::Transport for NoApi {
    async fn send(&self, _: http::Request<bytes::Bytes>) -> Result<http::Response<bytes::Bytes>, api::ApiError> {
        Err(api::ApiError::internal("no API"))
    }

    async fn list(
        &self,
        _: &api::Resource,
        _: Option<&str>,
        _: &client::ListParams,
    ) -> Result<client::ObjectList, api::ApiError> {
        Err(api::ApiError::internal("no API"))
    }

    async fn watch(
        &self,
        _: &api::Resource,
        _: Option<&str>,
        _: &client::ListParams,
        _: &str,
    ) -> Result<client::WatchStream, api::ApiError> {
        Err(api::ApiError::internal("no API"))
    }
}
