//! `minke store reencrypt`: has the API server write again what is not encrypted as its configuration says now.
//! Called by `commands`; the API server decides which objects those are.
//! Changes nothing of any object: a patch that asks for nothing writes an object only if its stored form is out of date.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use client::Client;
use http::Method;
use serde_json::Value;

const PAGE_OBJECTS: usize = 500;

/// What was done, for people.
pub async fn run(client: &Client) -> Result<String> {
    let (mut seen, mut written, mut kinds) = (0, 0, 0);
    let Collections { paths, unreadable } = collections(client).await?;
    for collection in paths {
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
    let done = format!("looked at {seen} objects of {kinds} kinds, {written} were written again");
    Ok(match unreadable.as_slice() {
        [] => done,
        // Whoever takes the old key away now loses what is there.
        some => format!("{done}; what {} has could not be looked at: try again", some.join(" and ")),
    })
}

/// Everything that can be listed and patched, and what could not be asked about.
#[derive(Default)]
struct Collections {
    /// The path of each resource, in one of its versions.
    paths: Vec<String>,
    unreadable: Vec<String>,
}

/// A resource may be there in no version but the last of its group: all of them are looked at, the preferred one first.
async fn collections(client: &Client) -> Result<Collections> {
    let mut versions = vec![(String::new(), "/api/v1".to_string())];
    let groups = get(client, "/apis").await.context("failed to ask which groups there are")?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        let name = group["name"].as_str().unwrap_or_default();
        // Stored as those of the first group.
        if name == "events.k8s.io" {
            continue;
        }
        let all = std::iter::once(&group["preferredVersion"]).chain(group["versions"].as_array().into_iter().flatten());
        let all = all.filter_map(|version| version["groupVersion"].as_str());
        versions.extend(all.map(|version| (name.to_string(), format!("/apis/{version}"))));
    }
    let (mut found, mut known, mut asked) = (Collections::default(), BTreeSet::new(), BTreeSet::new());
    for (group, version) in versions {
        if !asked.insert(version.clone()) {
            continue;
        }
        let list = match get(client, &version).await {
            Ok(list) => list,
            // An extension server that is down keeps its objects itself.
            Err(error) if version.contains('.') => {
                tracing::warn!(version, error = format!("{error:#}"), "skipped a group that can't be read");
                found.unreadable.push(version);
                continue;
            }
            Err(error) => return Err(error),
        };
        for resource in list["resources"].as_array().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap_or_default();
            let can = |verb: &str| resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|v| v == verb));
            if !name.contains('/') && can("list") && can("patch") && known.insert((group.clone(), name.to_string())) {
                found.paths.push(format!("{version}/{name}"));
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
            let entries = json!([{ "resources": ["secrets", "*.example.com"], "providers": providers }]);
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
        // Of two kinds of a group, one is served in a version that is not the preferred one.
        for (plural, version) in [("things", "v1"), ("others", "v1beta1")] {
            let schema = json!({ "openAPIV3Schema": { "type": "object" } });
            let versions = json!([{ "name": version, "served": true, "storage": true, "schema": schema }]);
            let names =
                json!({ "plural": plural, "singular": plural, "kind": plural, "listKind": format!("{plural}List") });
            let crd = json!({ "metadata": { "name": format!("{plural}.example.com") }, "spec": {
                "group": "example.com", "scope": "Cluster", "names": names, "versions": versions } });
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let request = Request::post(path).header("content-type", "application/json");
            client.request(request.body(crd.to_string().into()).unwrap()).await.unwrap();
            let (path, object) = (
                format!("/apis/example.com/{version}/{plural}"),
                json!({ "metadata": { "name": "a" },
                "apiVersion": format!("example.com/{version}"), "kind": plural }),
            );
            loop {
                let request = Request::post(&path).header("content-type", "application/json");
                match client.request(request.body(object.to_string().into()).unwrap()).await {
                    Ok(_) => break,
                    Err(error) if error.is_not_found() => env.sleep(std::time::Duration::from_millis(10)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let secret = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
        let aes = json!({ "aesgcm": { "keys": [{ "name": "one", "secret": secret }] } });
        let client = start(json!([aes, { "identity": {} }])).await;
        let done = run(&client).await.unwrap();
        assert!(done.ends_with(" 4 were written again"), "{done}");
        let keys = ["secrets/default/a", "secrets/default/b", "example.com/things/a", "example.com/others/a"];
        for key in keys {
            let record = store.get(&format!("/registry/{key}")).await.unwrap().unwrap();
            assert!(record.value.starts_with(b"k8s:enc:aesgcm:v1:one:"), "{record:?}");
        }
        let done = run(&client).await.unwrap();
        assert!(done.ends_with(" 0 were written again"), "{done}");
    }
}
