//! The console at `/console/`: its files for everybody, and its questions about an object for those who may read it.
//! Asked through `pipeline`; filled in by whoever starts the server, since nothing here knows the page.
//! A question is answered by reads under the caller's own identity, each of them authorized; so it needs no leave itself.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Response, request::Parts};
use serde_json::Value;

use api::ApiError;

use crate::{
    authn::User,
    request::{
        body::{self, Body},
        call::Call,
        query::Query,
    },
};

const ROOT: &str = "/console";

/// What a signed-in page wants to know.
pub struct Question {
    pub user: User,
    /// What follows `/console/`.
    pub name: String,
    pub query: Query,
}

pub type Files = fn(&Method, &str, &HeaderMap) -> Option<Response<Bytes>>;
/// `None`: there is no such question.
pub type Answers = Arc<dyn Fn(Question) -> Option<BoxFuture<'static, Result<Value, ApiError>>> + Send + Sync>;

pub struct ConsoleHandlers {
    pub files: Files,
    pub answers: Answers,
}

/// Empty where the console is off.
#[derive(Default)]
pub struct Console(OnceLock<ConsoleHandlers>);

impl Console {
    /// Shows it from now on. A second call changes nothing.
    pub fn show(&self, handlers: ConsoleHandlers) {
        let _ = self.0.set(handlers);
    }

    /// A file of the page, for whoever asks.
    pub(crate) fn file(&self, parts: &Parts) -> Option<Response<Body>> {
        let path = parts.uri.path();
        let handlers = self.0.get().filter(|_| path.starts_with(ROOT))?;
        Some((handlers.files)(&parts.method, path, &parts.headers)?.map(body::full))
    }

    /// The answer to a question of the page.
    pub(crate) fn answer(&self, call: &Call) -> Option<BoxFuture<'static, Result<Value, ApiError>>> {
        let name = call.info.path.strip_prefix(ROOT)?.strip_prefix('/')?;
        let handlers = self.0.get().filter(|_| call.method == Method::GET)?;
        let question = Question { user: call.user.clone(), name: name.to_string(), query: call.query.clone() };
        (handlers.answers)(question)
    }
}
