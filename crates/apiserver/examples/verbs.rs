//! One verb again and again without sockets, to count instructions: `valgrind --tool=callgrind verbs apply 300`.
//! What a verb costs in the server itself; `api_figures` measures it with everything around it.
//! The same requests in the same order every time.

use std::{error::Error, sync::Arc};

use apiserver::{ApiServer, Config, authn::User, body};
use env::Env;
use http::Request;
use serde_json::{Value, json};

const PATH: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(n: usize, version: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("cm-{n}") },
        "data": { "version": version.to_string(), "filler": format!("{n:0>1000}") } })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(verb), Some(count)) = (arguments.next(), arguments.next()) else {
        return Err("usage: verbs create|get|update|patch|apply|delete COUNT".into());
    };
    let env = Env::real();
    let config = Config::in_process(rcgen::KeyPair::generate()?.serialize_pem());
    let server = ApiServer::new(config, Arc::new(store::MemoryStore::new(env.clone())), env).await?;
    let send = async |method: &str, path: String, kind: &str, content: Value| {
        let content = if content.is_null() { Vec::new() } else { content.to_string().into_bytes() };
        let mut request = Request::builder().method(method).uri(path).body(body::full(content))?;
        request.headers_mut().insert("content-type", kind.parse()?);
        request.headers_mut().insert("accept", "application/json".parse()?);
        let user = User::new("admin", &["system:masters"]);
        let response = server.handle(ApiServer::in_process_request(user, request)).await;
        match response.status().is_success() {
            true => Ok::<_, Box<dyn Error>>(()),
            false => Err(format!("{method} was answered {}", response.status()).into()),
        }
    };
    let json_type = "application/json";
    for n in 0..count.parse::<usize>()? {
        send("POST", PATH.into(), json_type, config_map(n, 0)).await?;
        let item = format!("{PATH}/cm-{n}");
        for version in 1..=4 {
            match verb.as_str() {
                "get" => send("GET", item.clone(), json_type, Value::Null).await?,
                "update" => send("PUT", item.clone(), json_type, config_map(n, version)).await?,
                "patch" => {
                    let patch = json!({ "data": { "version": version.to_string() } });
                    send("PATCH", item.clone(), "application/merge-patch+json", patch).await?;
                }
                "apply" => {
                    let path = format!("{item}?fieldManager=verbs&force=true");
                    send("PATCH", path, "application/apply-patch+yaml", config_map(n, version)).await?;
                }
                _ => {}
            }
        }
        if verb == "delete" {
            send("DELETE", item, json_type, Value::Null).await?;
        }
    }
    Ok(())
}
