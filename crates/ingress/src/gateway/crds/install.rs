//! Defines the kinds of the Gateway API where nobody has.
//! Called by `minke` for `--gateway-api`; the definitions are the module's.
//! A definition that is there is never changed: it may be a user's own, of another release.

use std::time::Duration;

use api::ApiError;
use client::Client;
use env::{Backoff, Env};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// However often it takes.
pub async fn install(client: &Client, env: &Env) {
    let mut backoff = RETRY_BACKOFF;
    while let Err(error) = define(client).await {
        tracing::warn!(%error, "failed to define the kinds of the Gateway API; will try again");
        env.sleep(backoff.next_delay()).await;
    }
}

async fn define(client: &Client) -> Result<(), ApiError> {
    let definitions = client.api::<CustomResourceDefinition>();
    for value in super::all() {
        let definition: CustomResourceDefinition = serde_json::from_value(value)
            .map_err(|error| ApiError::internal(format!("couldn't read a definition of ours: {error}")))?;
        match definitions.create(&definition).await {
            Err(error) if error.code != 409 => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
