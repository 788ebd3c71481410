//! `minke store reencrypt`: has the API server write again what is not encrypted as its configuration says now.
//! Called by `commands`; the API server decides which objects those are.
//! Changes nothing of any object: a patch that asks for nothing writes an object only if its stored form is out of date.

use anyhow::{Context, Result, bail};
use client::Client;
use http::Method;
use serde_json::Value;

const PAGE_OBJECTS: usize = 500;

/// What was done, for people.
pub async fn run(client: &Client) -> Result<String> {
    let (mut seen, mut written, mut kinds) = (0, 0, 0);
    for collection in collections(client).await? {
        kinds += 1;
        let mut next = String::new();
        loop {
            let path = format!("{collection}?limit={PAGE_OBJECTS}&continue={next}");
            let page = get(client, &path).await.with_context(|| format!("failed to list {collection}"))?;
            for object in page["items"].as_array().into_iter().flatten() {
                seen += 1;
                written += usize::from(rewrite(client, &collection, object).await?);
            }
            next = page["metadata"]["continue"].as_str().unwrap_or_default().to_string();
            if next.is_empty() {
                break;
            }
        }
    }
    Ok(format!("looked at {seen} objects of {kinds} kinds, {written} were written again"))
}

/// The path of everything that can be listed and patched, once for each resource.
async fn collections(client: &Client) -> Result<Vec<String>> {
    let mut versions = vec!["/api/v1".to_string()];
    let groups = get(client, "/apis").await.context("failed to ask which groups there are")?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        let preferred = group["preferredVersion"]["groupVersion"].as_str().unwrap_or_default();
        // Stored as those of the first group.
        if preferred != "events.k8s.io/v1" {
            versions.push(format!("/apis/{preferred}"));
        }
    }
    let mut found = Vec::new();
    for version in versions {
        let list = match get(client, &version).await {
            Ok(list) => list,
            // An extension server that is down keeps its objects itself.
            Err(error) if version.contains('.') => {
                tracing::warn!(version, error = format!("{error:#}"), "skipped a group that can't be read");
                continue;
            }
            Err(error) => return Err(error),
        };
        for resource in list["resources"].as_array().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap_or_default();
            let can = |verb: &str| resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|v| v == verb));
            if !name.contains('/') && can("list") && can("patch") {
                found.push(format!("{version}/{name}"));
            }
        }
    }
    Ok(found)
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    Ok(serde_json::from_slice(&client.get(path).await?)?)
}

/// Whether the object has another version afterwards.
async fn rewrite(client: &Client, collection: &str, object: &Value) -> Result<bool> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let (version, resource) = collection.rsplit_once('/').context("a collection has a path")?;
    let path = match text("namespace") {
        "" => format!("{collection}/{}", text("name")),
        namespace => format!("{version}/namespaces/{namespace}/{resource}/{}", text("name")),
    };
    match client.call(Method::PATCH, &path, "application/merge-patch+json", "{}").await {
        Ok(answer) => {
            let answer: Value = serde_json::from_slice(&answer)?;
            Ok(answer["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"])
        }
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => bail!("failed to write {path} again: {}", error.message),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::{ApiServer, config};
    use env::Env;
    use http::Request;
    use serde_json::json;
    use store::{MemoryStore, Store};

    use super::*;

    #[tokio::test]
    async fn what_is_out_of_date_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("encryption.yaml");
        let env = Env::real();
        let store = Arc::new(MemoryStore::new(env.clone()));
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let start = async |providers: Value| {
            let entries = json!([{ "resources": ["secrets"], "providers": providers }]);
            let text = json!({
                "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration", "resources": entries,
            });
            std::fs::write(&file, text.to_string()).unwrap();
            let mut config = config::Config::in_process(key.clone());
            let providers = config::EncryptionProviders { file: file.clone(), automatic_reload: false };
            config.encryption_providers = Some(providers);
            let api = ApiServer::new(config, store.clone(), env.clone()).await.unwrap();
            in_process::client(&api, "admin", &["system:masters"])
        };
        let client = start(json!([{ "identity": {} }])).await;
        for name in ["a", "b"] {
            let secret = json!({ "metadata": { "name": name }, "stringData": { "k": "v" } }).to_string();
            let request =
                Request::post("/api/v1/namespaces/default/secrets").header("content-type", "application/json");
            client.request(request.body(secret.into()).unwrap()).await.unwrap();
        }
        let secret = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
        let aes = json!({ "aesgcm": { "keys": [{ "name": "one", "secret": secret }] } });
        let client = start(json!([aes, { "identity": {} }])).await;
        let done = run(&client).await.unwrap();
        assert!(done.ends_with("2 were written again"), "{done}");
        for name in ["a", "b"] {
            let record = store.get(&format!("/registry/secrets/default/{name}")).await.unwrap().unwrap();
            assert!(record.value.starts_with(b"k8s:enc:aesgcm:v1:one:"), "{record:?}");
        }
        let done = run(&client).await.unwrap();
        assert!(done.ends_with(" 0 were written again"), "{done}");
    }
}
