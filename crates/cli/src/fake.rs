//! A server for tests: a table of answers, and a list of what was asked.
//! Used by the tests of the verbs.
//! Answers 404 to what the table does not have.

use std::{
    cell::RefCell,
    io::{self, Write},
    rc::Rc,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::LocalBoxFuture};
use http::{HeaderName, HeaderValue, Request, Response};
use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    output::Output,
    rest::{Body, Transport, Upgrade},
    session::Session,
};

/// Method and path with query, code, body.
type Answer = (&'static str, u16, String);

#[derive(Clone, Default)]
pub struct FakeServer {
    answers: Rc<RefCell<Vec<Answer>>>,
    pub asked: Rc<RefCell<Vec<(String, String)>>>,
}

impl FakeServer {
    /// Serves pods, and has none yet.
    pub fn of_pods() -> Self {
        let pods = serde_json::json!({
            "resource": "pods", "singularResource": "pod", "scope": "Namespaced", "shortNames": ["po"],
            "responseKind": {"group": "", "version": "v1", "kind": "Pod"}, "verbs": ["get", "list", "watch"],
        });
        let core = serde_json::json!({"metadata": {"name": ""}, "versions": [{"version": "v1", "resources": [pods]}]});
        Self::default().on("GET /api", 200, serde_json::json!({"kind": "APIGroupDiscoveryList", "items": [core]})).on(
            "GET /apis",
            200,
            serde_json::json!({"kind": "APIGroupDiscoveryList", "items": []}),
        )
    }

    pub fn on(self, request: &'static str, code: u16, body: Value) -> Self {
        self.on_text(request, code, body.to_string())
    }

    pub fn on_text(self, request: &'static str, code: u16, body: String) -> Self {
        self.answers.borrow_mut().push((request, code, body));
        self
    }

    /// Runs a command line; what it printed, what it complained, and its exit code.
    pub fn run(&self, words: &[&str]) -> (String, String, u8) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (out, err) = (Memory::default(), Memory::default());
        let output = Output::to(out.clone(), err.clone());
        let args: Vec<String> = words.iter().map(|w| w.to_string()).collect();
        let server: Rc<dyn Transport> = Rc::new(self.clone());
        let code = runtime.block_on(crate::run_line(&args, output, |output, matches| {
            Session::with_transport(output, matches, env::Env::real(), server)
        }));
        (out.text(), err.text(), code)
    }
}

#[derive(Clone, Default)]
pub struct Memory(Rc<RefCell<Vec<u8>>>);

impl Memory {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.borrow()).into_owned()
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport for FakeServer {
    fn server(&self) -> &str {
        "https://fake.test"
    }

    fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        static TOKEN: [(HeaderName, HeaderValue); 1] =
            [(http::header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"))];
        &TOKEN
    }

    fn send(&self, request: Request<Bytes>) -> LocalBoxFuture<'_, Result<Response<Body>>> {
        async move {
            let line = format!("{} {}", request.method(), request.uri());
            let body = String::from_utf8_lossy(request.body()).into_owned();
            self.asked.borrow_mut().push((line.clone(), body));
            let answers = self.answers.borrow();
            let (code, body) = match answers.iter().find(|(wanted, ..)| *wanted == line) {
                Some((_, code, body)) => (*code, body.clone()),
                None => (404, "404 page not found".to_string()),
            };
            let body = futures::stream::iter([Ok(Bytes::from(body))]).boxed();
            Response::builder().status(code).body(body).map_err(|e| Failure::message(e.to_string()))
        }
        .boxed_local()
    }

    fn connect(&self) -> LocalBoxFuture<'_, Result<Upgrade>> {
        async { Err(Failure::message("no sockets here")) }.boxed_local()
    }
}
