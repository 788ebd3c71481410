//! A client that gets, creates, updates (over a version or whatever is there) and deletes ConfigMaps as it likes, and
//! writes down what it was told.
//! Used by `registers`, and by the test that kills the real process.
//! Every write has a value of its own.

use std::sync::Arc;

use api::ApiError;
use bytes::Bytes;
use client::Client;
use env::Env;
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions},
};
use parking_lot::Mutex;

use crate::checkers::{
    history::{History, refusal},
    linearizability::{Answer, Request, Value},
};

const FIELD: &str = "value";
/// How the HTTPS transport says that it could not even connect.
const NO_CONNECTION: &str = "client error (Connect)";

pub struct RegisterClient {
    pub client: Client,
    pub env: Env,
    pub history: Arc<Mutex<History>>,
    pub namespace: &'static str,
    /// The last version this client read or wrote of an object, with its value.
    known: Option<(String, Value, String)>,
}

/// The value of an object as it is stored.
pub fn stored_value(object: &Bytes) -> Option<Value> {
    value_of(&serde_json::from_slice(object).ok()?)
}

fn value_of(object: &ConfigMap) -> Option<Value> {
    object.data.as_ref()?.get(FIELD)?.parse().ok()
}

fn version_of(object: &ConfigMap) -> Option<String> {
    object.metadata.resource_version.clone()
}

fn object(name: &str, value: Value, version: Option<String>) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), resource_version: version, ..ObjectMeta::default() };
    ConfigMap { metadata, data: Some([(FIELD.to_string(), value.to_string())].into()), ..ConfigMap::default() }
}

impl RegisterClient {
    pub fn new(client: Client, env: Env, history: Arc<Mutex<History>>, namespace: &'static str) -> Self {
        Self { client, env, history, namespace, known: None }
    }

    /// Over the version that this client knows of the object, if it knows one, every other time.
    fn expected(&self, name: &str) -> Option<(Value, String)> {
        let known = self.known.as_ref().filter(|(known, ..)| known == name);
        known.filter(|_| self.env.random_u64().is_multiple_of(2)).map(|(_, value, version)| (*value, version.clone()))
    }

    /// One request about `name`, drawn at random.
    pub async fn call(&mut self, name: &str) -> Result<(), ApiError> {
        let request = self.env.random_u64() % 8;
        self.send(name, request).await
    }

    /// Only reads it.
    pub async fn get(&mut self, name: &str) -> Result<(), ApiError> {
        self.send(name, 0).await
    }

    async fn send(&mut self, name: &str, request: u64) -> Result<(), ApiError> {
        let expected = self.expected(name);
        let over = expected.as_ref().map(|(value, _)| *value);
        let version = expected.map(|(_, version)| version);
        let objects = self.client.namespaced::<ConfigMap>(self.namespace);
        let (request, sent) = {
            let mut history = self.history.lock();
            let request = match request {
                0..3 => Request::Get,
                3 => Request::Create(history.next_value()),
                4..7 => Request::Update(history.next_value(), over),
                _ => Request::Delete(over),
            };
            (request, history.send(request))
        };
        let answer = match request {
            Request::Get => objects.get(name).await.map(Some),
            Request::Create(value) => objects.create(&object(name, value, None)).await.map(Some),
            Request::Update(value, _) => objects.replace(name, &object(name, value, version)).await.map(Some),
            Request::Delete(_) => {
                let preconditions = version.map(|v| Preconditions { resource_version: Some(v), uid: None });
                let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
                objects.delete(name, &options).await.map(|()| None)
            }
        };
        self.remember(name, &answer);
        // Without a connection nothing was sent: there is nothing to judge.
        if !answer.as_ref().is_err_and(|error| error.message.contains(NO_CONNECTION)) {
            let (answer, version) = told(request, &answer);
            self.history.lock().answer(name, sent, answer, version);
        }
        answer.map(drop)
    }

    fn remember(&mut self, name: &str, answer: &Result<Option<ConfigMap>, ApiError>) {
        if let Ok(Some(object)) = answer
            && let Some((value, version)) = value_of(object).zip(version_of(object))
        {
            self.known = Some((name.to_string(), value, version));
        }
    }
}

/// What an answer says about a request, and the version it shows.
fn told(request: Request, answer: &Result<Option<ConfigMap>, ApiError>) -> (Answer, Option<u64>) {
    match (request, answer) {
        (Request::Get, Ok(Some(object))) => {
            let version = version_of(object).and_then(|version| version.parse().ok());
            (value_of(object).map_or(Answer::Unknown, Answer::Found), version)
        }
        (_, Ok(object)) => {
            let version = object.as_ref().and_then(version_of).and_then(|version| version.parse().ok());
            (Answer::Done, version)
        }
        (_, Err(error)) => (refusal(error), None),
    }
}
