//! Joins the console to the API server: its files, and `why` and `timeline` for its pages.
//! Started by `server`; the answers are made by `cli`, from what the caller may read.
//! Reads only, and only as the caller: through the whole pipeline of the API server in this process.

use std::sync::Arc;

use api::ApiError;
use apiserver::{ApiServer, ConsoleHandlers, Question};
use cli::{
    object_reader::{ObjectReader, Query},
    timeline, why,
};
use client::Client;
use env::Env;
use futures::{FutureExt, future::BoxFuture};
use serde_json::Value;

pub fn show(api: &Arc<ApiServer>, env: &Env) {
    // Weak: the server owns what answers.
    let (server, env) = (Arc::downgrade(api), env.clone());
    let answers = move |question: Question| -> Option<BoxFuture<'static, Result<Value, ApiError>>> {
        let topic = Topic::named(&question.name)?;
        let client = in_process::client_as(&server.upgrade()?, question.user);
        let (query, env) = (question.query, env.clone());
        Some(async move { answer(topic, object_query(|name| query.text(name))?, client, &env).await }.boxed())
    };
    api.console.show(ConsoleHandlers { files: console::respond, answers: Arc::new(answers) });
}

enum Topic {
    Why,
    Timeline,
}

impl Topic {
    fn named(name: &str) -> Option<Self> {
        match name {
            "why" => Some(Self::Why),
            "timeline" => Some(Self::Timeline),
            _ => None,
        }
    }
}

async fn answer(topic: Topic, query: Query, client: Client, env: &Env) -> Result<Value, ApiError> {
    let reader = ClientReader { client };
    let object = reader.get(&query.path()).await?;
    Ok(match topic {
        Topic::Why => why::why(&object, &reader, env.now()).await.to_json(&object),
        Topic::Timeline => timeline::to_json(&object, &timeline::timeline(&object, &reader).await),
    })
}

/// Which object is meant: `apiVersion`, `resource`, `namespace` and `name` of the request.
fn object_query<'q>(parameter: impl Fn(&str) -> Option<&'q str>) -> Result<Query, ApiError> {
    let part = |name: &str, needed: bool, allowed: &[char]| {
        let text = parameter(name).unwrap_or_default();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c) || allowed.contains(&c);
        match (text.is_empty() && needed) || !text.chars().all(fits) || text.contains("..") {
            true => Err(ApiError::bad_request(format!("{name}: Invalid value: {text:?}"))),
            false => Ok(text),
        }
    };
    let (version, resource) = (part("apiVersion", true, &['/'])?, part("resource", true, &[])?);
    Ok(Query::get(version, resource, part("namespace", false, &[])?, part("name", true, &[])?))
}

struct ClientReader {
    client: Client,
}

impl ClientReader {
    async fn get(&self, path: &str) -> Result<Value, ApiError> {
        let answer = self.client.get(path).await?;
        serde_json::from_slice(&answer).map_err(|e| ApiError::internal(format!("failed to read an answer: {e}")))
    }
}

impl ObjectReader for ClientReader {
    async fn read(&self, query: Query) -> Result<Vec<Value>, String> {
        let mut answer = self.get(&query.path()).await.map_err(|e| e.message.clone())?;
        Ok(match (query.name, answer["items"].take()) {
            (None, Value::Array(items)) => items,
            (None, _) => Vec::new(),
            (Some(_), _) => vec![answer],
        })
    }

    async fn raw(&self, path: &str) -> Result<Value, String> {
        self.get(path).await.map_err(|e| e.message.clone())
    }
}

#[cfg(test)]
mod tests {
    use apiserver::{authn::User, body};
    use http::Request;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn files_are_for_everybody_and_answers_for_those_who_may_read_the_object() {
        let env = Env::real();
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let mut config = apiserver::Config::in_process(key);
        config.anonymous_auth = false;
        let api = ApiServer::new(config, store, env.clone()).await.unwrap();
        let ask = async |user: Option<&User>, method: &str, path: &str, content: Value| {
            let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
            let request = request.body(body::full(content.to_string())).unwrap();
            let request = match user {
                Some(user) => ApiServer::in_process_request(user.clone(), request),
                None => request,
            };
            let response = api.handle(request).await;
            let (code, content) = (response.status().as_u16(), response.into_body());
            let bytes = body::read_all(content, 1 << 20).await.unwrap();
            (code, serde_json::from_slice::<Value>(&bytes).unwrap_or_default())
        };
        let (admin, stranger) = (User::new("root", &["system:masters"]), User::new("alice", &[]));
        assert_eq!(ask(None, "GET", "/console/", Value::Null).await.0, 401, "not shown");
        assert_eq!(ask(Some(&admin), "GET", "/console/", Value::Null).await.0, 404, "not shown");
        show(&api, &env);
        let pods = "/api/v1/namespaces/default/pods";
        let namespace = json!({ "metadata": { "name": "default" } });
        ask(Some(&admin), "POST", "/api/v1/namespaces", namespace).await;
        let account = json!({ "metadata": { "name": "default" } });
        ask(Some(&admin), "POST", "/api/v1/namespaces/default/serviceaccounts", account).await;
        let pod = json!({ "metadata": { "name": "web" }, "spec": { "containers": [{ "name": "a", "image": "b" }] } });
        let (code, made) = ask(Some(&admin), "POST", pods, pod).await;
        assert_eq!(code, 201, "{made}");
        let query = "apiVersion=v1&resource=pods&namespace=default&name";
        let check = async |user: Option<&User>, path: &str, expected: u16| {
            let (code, answer) = ask(user, "GET", path, Value::Null).await;
            assert_eq!(code, expected, "{path}: {answer}");
            answer
        };
        check(None, "/console/", 200).await;
        check(None, "/console/main.js", 200).await;
        check(None, &format!("/console/why?{query}=web"), 401).await;
        let refused = check(Some(&stranger), &format!("/console/why?{query}=web"), 403).await;
        assert!(refused["message"].as_str().unwrap().contains("\"alice\" cannot get resource \"pods\""), "{refused}");
        check(Some(&stranger), &format!("/console/timeline?{query}=web"), 403).await;
        check(Some(&admin), &format!("/console/why?{query}=gone"), 404).await;
        check(Some(&admin), &format!("/console/why?{query}=web/log"), 400).await;
        check(Some(&admin), "/console/other", 404).await;
        let verdict = check(Some(&admin), &format!("/console/why?{query}=web"), 200).await;
        assert!(verdict["object"]["name"] == "web" && verdict["cause"].is_string(), "{verdict}");
        let timeline = check(Some(&admin), &format!("/console/timeline?{query}=web"), 200).await;
        assert_eq!(timeline["stations"][0]["what"], "created", "{timeline}");
    }

    #[test]
    fn questions_name_one_object_and_nothing_else() {
        let check = |parameters: &[(&str, &'static str)], expected: Result<&str, &str>| {
            let find = |name: &str| parameters.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
            let query = object_query(find).map(|query| query.path()).map_err(|e| e.message.clone());
            assert_eq!(query.as_deref().map_err(String::as_str), expected, "{parameters:?}");
        };
        let pod = [("apiVersion", "v1"), ("resource", "pods"), ("namespace", "default"), ("name", "web-0")];
        check(&pod, Ok("/api/v1/namespaces/default/pods/web-0"));
        let role = [("apiVersion", "rbac.authorization.k8s.io/v1"), ("resource", "clusterroles"), ("name", "system:a")];
        check(&role, Ok("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:a"));
        check(&pod[..3], Err("name: Invalid value: \"\""));
        check(&[pod[0], pod[1], ("name", "a/log")], Err("name: Invalid value: \"a/log\""));
        check(&[pod[0], pod[1], ("name", "..")], Err("name: Invalid value: \"..\""));
        check(&[pod[0], ("resource", "pods?watch=1"), pod[3]], Err("resource: Invalid value: \"pods?watch=1\""));
    }
}
