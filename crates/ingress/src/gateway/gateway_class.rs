//! The GatewayClass of ours: made once the kind is defined, then the user's.
//! Asked by `model` which Gateways are ours; made by `objects`.
//! A class that is there is never changed.

use std::time::Duration;

use api::ApiError;
use client::Client;
use env::{Backoff, Env};
use http::Method;
use serde_json::json;

use super::{
    conditions::{ACCEPTED, DesiredCondition, fails, holds},
    types::{GROUP, GatewayClass},
};

/// What our classes name as their controller.
pub const CONTROLLER: &str = "minke.io/gateway";
const NAME: &str = "minke";
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
const ATTEMPTS_MAX: usize = 20;

/// What the class says it can do beyond the core of each kind, in order.
pub const SUPPORTED_FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "GRPCRouteRequestHeaderModifier",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayHTTPListenerIsolation",
    "GatewayPort8080",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendRequestRedirect",
    "HTTPRouteBackendTimeout",
    "HTTPRouteBackendURLRewrite",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ReferenceGrant",
    "TLSRoute",
];

pub fn is_ours(class: &GatewayClass) -> bool {
    class.spec.controller_name == CONTROLLER
}

pub fn accepted(class: &GatewayClass) -> DesiredCondition {
    match &class.spec.parameters_ref {
        Some(_) => fails(ACCEPTED, "InvalidParameters", "there are no parameters for GatewayClasses"),
        None => holds(ACCEPTED, "Accepted"),
    }
}

/// Tries for as long as a kind that is defined may take to be served.
pub async fn ensure(client: Client, version: String, env: Env) {
    let mut backoff = RETRY_BACKOFF;
    for _ in 0..ATTEMPTS_MAX {
        match create(&client, &version).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "failed to make the GatewayClass; will try again"),
        }
        env.sleep(backoff.next_delay()).await;
    }
}

/// Makes the class unless there is one of its name.
async fn create(client: &Client, version: &str) -> Result<(), ApiError> {
    let class = json!({
        "apiVersion": format!("{GROUP}/{version}"),
        "kind": "GatewayClass",
        "metadata": { "name": NAME },
        "spec": { "controllerName": CONTROLLER },
    });
    let uri = format!("/apis/{GROUP}/{version}/gatewayclasses");
    match client.call(Method::POST, &uri, "application/json", class.to_string()).await {
        Err(error) if error.code == 409 => Ok(()),
        created => created.map(drop),
    }
}
