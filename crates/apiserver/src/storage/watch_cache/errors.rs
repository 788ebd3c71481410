//! What goes wrong between cache, store and client, as upstream's `Status`.
//! Used by `registry` and whatever else reads the store.

use api::{ApiError, Reason};
use store::{Revision, StoreError};

/// A read asked for a revision that has not happened (yet).
pub fn too_large(asked: Revision, current: Revision) -> ApiError {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let cause = serde_json::json!([{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }]);
    ApiError::new(Reason::Timeout, format!("Timeout: {message}"))
        .with_details(serde_json::json!({ "causes": cause, "retryAfterSeconds": 1 }))
        .with_retry_after(1)
}

pub fn too_old(asked: Revision, oldest: Revision) -> ApiError {
    ApiError::expired(format!("too old resource version: {asked} ({oldest})"))
}

pub fn store_error(error: StoreError) -> ApiError {
    match error {
        StoreError::Compacted { requested, oldest } => too_old(requested, oldest),
        StoreError::Future { requested, newest } => too_large(requested, newest),
        StoreError::TooLarge { .. } => ApiError::new(Reason::RequestEntityTooLarge, error.to_string()),
        StoreError::Unavailable(_) => ApiError::new(Reason::ServiceUnavailable, error.to_string()),
        StoreError::Corrupted(_) | StoreError::Unreadable { .. } => ApiError::internal(error.to_string()),
    }
}
