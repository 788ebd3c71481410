//! The GatewayClass of ours: made once the kind is defined, then the user's.
//! Asked by `model` which Gateways are ours; made by `objects`.
//! A class that is there is never changed.

use api::ApiError;
use bytes::Bytes;
use client::Client;
use http::{Method, Request};
use serde_json::json;

use super::{
    conditions::{ACCEPTED, DesiredCondition, fails, holds},
    types::{GROUP, GatewayClass},
};

/// What our classes name as their controller.
pub const CONTROLLER: &str = "minke.io/gateway";
const NAME: &str = "minke";

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

/// Makes the class unless there is one of its name.
pub async fn create(client: &Client, version: &str) -> Result<(), ApiError> {
    let class = json!({
        "apiVersion": format!("{GROUP}/{version}"),
        "kind": "GatewayClass",
        "metadata": { "name": NAME },
        "spec": { "controllerName": CONTROLLER },
    });
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("/apis/{GROUP}/{version}/gatewayclasses"))
        .header("accept", "application/json")
        .header("content-type", "application/json")
        .body(Bytes::from(class.to_string()))
        .map_err(|error| ApiError::bad_request(format!("couldn't make a request: {error}")))?;
    match client.request(request).await {
        Err(error) if error.code == 409 => Ok(()),
        created => created.map(drop),
    }
}
