//! Requests for objects of any resource, custom ones too, as plain JSON.
//! Used by the namespace controller, the garbage collector and others that do not know their kinds beforehand.
//! Errors are the server's own `Status`.

use api::{ApiError, Resource};
use client::Client;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use serde_json::Value;

pub async fn get(client: &Client, resource: &Resource, namespace: &str, name: &str) -> Result<Value, ApiError> {
    call(client, Method::GET, resource.path(Some(namespace), Some(name)), "application/json", Vec::new()).await
}

pub async fn list(client: &Client, resource: &Resource, namespace: &str) -> Result<Vec<Value>, ApiError> {
    let path = resource.path(Some(namespace), None);
    let mut list = call(client, Method::GET, path, "application/json", Vec::new()).await?;
    Ok(match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    })
}

/// Whether discovery, which everybody may read, has the subresource.
pub async fn has_subresource(client: &Client, resource: &Resource, subresource: &str) -> Result<bool, ApiError> {
    let path = match resource.group.as_str() {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    let list = call(client, Method::GET, path, "application/json", Vec::new()).await?;
    let name = format!("{}/{subresource}", resource.plural);
    Ok(list["resources"].as_array().into_iter().flatten().any(|found| found["name"] == name.as_str()))
}

pub async fn merge(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
    patch: &Value,
) -> Result<(), ApiError> {
    let path = resource.path(Some(namespace), Some(name));
    let body = patch.to_string().into_bytes();
    call(client, Method::PATCH, path, "application/merge-patch+json", body).await.map(drop)
}

pub async fn delete(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let path = resource.path(Some(namespace), Some(name));
    call(client, Method::DELETE, path, "application/json", encode(options)?).await.map(drop)
}

pub async fn delete_all(client: &Client, resource: &Resource, namespace: &str) -> Result<(), ApiError> {
    let options = DeleteOptions { propagation_policy: Some("Background".into()), ..DeleteOptions::default() };
    let path = resource.path(Some(namespace), None);
    call(client, Method::DELETE, path, "application/json", encode(&options)?).await.map(drop)
}

/// What is gone already needs no more.
pub fn gone(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn encode(options: &DeleteOptions) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(options).map_err(|e| ApiError::internal(format!("couldn't encode a request: {e}")))
}

pub async fn call(
    client: &Client,
    method: Method,
    uri: String,
    content: &str,
    body: Vec<u8>,
) -> Result<Value, ApiError> {
    let answer = client.call(method, &uri, content, body).await?;
    serde_json::from_slice(&answer).map_err(|e| ApiError::internal(format!("couldn't read the server's answer: {e}")))
}
