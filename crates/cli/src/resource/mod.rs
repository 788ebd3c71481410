//! Which objects a command line names: files, types and names, selectors.
//! Used by the verbs: `Selection` is what was typed, `select` asks for it.
//! Reads only.

mod arguments;
pub mod files;
pub mod suggestion;
mod watch_pause;
pub mod yaml;

use std::rc::Rc;

use bytes::Bytes;
use futures::{StreamExt, stream::LocalBoxStream};
use http::header;
use serde_json::{Value, json};
pub use watch_pause::WatchPause;

use crate::{
    discovery::ApiResource,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, int, list, string},
    session::Session,
};

pub const FILENAME: &[Flag] = &[
    list("filename", "Files, directories or URLs with the objects").short('f'),
    string("kustomize", "", "Directory with a kustomization file").short('k'),
    boolean("recursive", "false", "Go into the directories of -f").short('R'),
];
/// As the verbs take it that go into directories by themselves and know no kustomization.
pub const PLAIN_FILENAME: &[Flag] = &[
    list("filename", "Files, directories or URLs with the objects").short('f'),
    boolean("recursive", "true", "Go into the directories of -f").short('R'),
];
/// Files alone.
pub const FILES: &[Flag] = &[list("filename", "Files or URLs with the object").short('f')];
pub const SELECTOR: &[Flag] = &[string("selector", "", "Label selector").short('l')];
pub const FIELD_SELECTOR: &[Flag] = &[string("field-selector", "", "Field selector, such as metadata.name=web")];
pub const ALL_NAMESPACES: &[Flag] = &[boolean("all-namespaces", "false", "Of all namespaces").short('A')];
pub const CHUNK_SIZE: &[Flag] = &[int("chunk-size", "500", "List in chunks of this many; 0 for all at once")];

/// One object, or the place of one.
#[derive(Debug, Clone)]
pub struct Info {
    pub resource: Rc<ApiResource>,
    pub namespace: String,
    pub name: String,
    /// The file it comes from.
    pub source: String,
    /// Null until it is fetched.
    pub object: Value,
}

impl Info {
    /// Never without a name: that is the path of the whole collection, and `delete` would empty it.
    pub fn path(&self) -> Result<String> {
        match self.name.as_str() {
            "" => Err(Failure::message("resource name may not be empty")),
            name => Ok(self.resource.path(&self.namespace, name)),
        }
    }

    /// `deployment.apps/web`
    pub fn shown(&self) -> String {
        format!("{}/{}", self.resource.qualified_kind(), self.name)
    }

    pub async fn get(&self, session: &Session) -> Result<Value> {
        session.rest().await?.get(self.path()?).about(&self.resource.qualified(), &self.name).value().await
    }

    /// The lines of a watch of it.
    pub async fn watch(&self, session: &Session) -> Result<LocalBoxStream<'static, Result<Bytes>>> {
        let call = session.rest().await?.get(self.resource.path(&self.namespace, ""));
        call.query("fieldSelector", format!("metadata.name={}", self.name)).query("watch", "true").lines().await
    }

    /// Watches it until it is as `there` says, and returns it as it is then.
    pub async fn watch_until(&self, session: &Session, there: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut lines = self.watch(session).await?;
        while let Some(line) = lines.next().await {
            let mut event: Value = serde_json::from_slice(&line?)?;
            if there(&event["object"]) {
                return Ok(event["object"].take());
            }
        }
        Err(Failure::message("the watch ended before the condition was met"))
    }
}

/// What was typed.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub arguments: Vec<String>,
    pub filenames: Vec<String>,
    pub kustomize: String,
    pub recursive: bool,
    pub selector: String,
    pub field_selector: String,
    pub all: bool,
    pub all_namespaces: bool,
    pub namespace: String,
    /// A flag named the namespace: objects of others are refused.
    pub enforce_namespace: bool,
    pub chunk_size: i64,
    pub subresource: String,
    /// `get pods` needs no name, `delete pods` does.
    pub allow_empty_selector: bool,
    /// The `Accept` header, for tables.
    pub accept: String,
    /// For tables: also the objects, to sort by.
    pub include_object: bool,
    pub ignore_not_found: bool,
    /// Asks no server: what is in the files must do.
    pub local: bool,
    /// What the server lists stays whole; lists of files never do.
    pub keep_lists: bool,
    /// For objects of files: what the server has now.
    pub latest: bool,
    pub single_type: bool,
    /// Names are taken as they are, without asking for the objects.
    pub no_fetch: bool,
    /// Objects of files are checked before anything else is done with them.
    pub validate: bool,
}

impl Selection {
    /// From the flags that the command has.
    pub fn of(session: &Session, matches: &Matches) -> Result<Self> {
        let (namespace, enforce_namespace) = session.namespace()?;
        let has = |name: &str| matches.has(name);
        let text = |name: &str| if has(name) { matches.str(name).to_string() } else { String::new() };
        let truth = |name: &str| has(name) && matches.bool(name);
        let all_namespaces = truth("all-namespaces");
        let selection = Self {
            arguments: matches.args.clone(),
            filenames: if has("filename") { matches.list("filename") } else { Vec::new() },
            kustomize: text("kustomize"),
            recursive: truth("recursive"),
            selector: text("selector"),
            field_selector: text("field-selector"),
            all: truth("all"),
            all_namespaces,
            namespace,
            enforce_namespace: enforce_namespace && !all_namespaces,
            chunk_size: if has("chunk-size") { matches.int("chunk-size") } else { 0 },
            subresource: text("subresource"),
            local: truth("local"),
            validate: has("validate") && !["false", "ignore"].contains(&matches.str("validate")),
            ..Self::default()
        };
        if !selection.filenames.is_empty() && !selection.kustomize.is_empty() {
            return Err(Failure::message("only one of -f or -k can be specified"));
        }
        if !selection.kustomize.is_empty() && selection.recursive {
            return Err(Failure::message("the -k flag can't be used with -f or -R"));
        }
        Ok(selection)
    }

    pub fn has_files(&self) -> bool {
        !self.filenames.is_empty() || !self.kustomize.is_empty()
    }

    fn has_selector(&self) -> bool {
        !self.selector.is_empty() || !self.field_selector.is_empty()
    }

    /// Every object that was named, in order, and everything that went wrong on the way.
    pub async fn select(&self, session: &Session) -> Result<(Vec<Info>, Vec<Failure>)> {
        if self.all && self.has_selector() {
            return Err(Failure::message("setting 'all' parameter but found a non empty selector. "));
        }
        if self.has_files() {
            if !self.arguments.is_empty() {
                return Err(Failure::message(
                    "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well",
                ));
            }
            let (mut infos, mut failures) = self.in_files(session).await?;
            if self.latest {
                let mut fetched = Vec::new();
                for info in infos {
                    match self.fetch(session, &info).await {
                        Ok(object) => fetched.push(Info { object, ..info }),
                        Err(failure) if self.ignore_not_found && failure.is_not_found() => {}
                        Err(failure) => failures.push(failure),
                    }
                }
                infos = fetched;
            }
            return Ok((infos, failures));
        }
        if self.local {
            return Err(Failure::Plain(
                "error: you must specify resources by --filename when --local is set.\nExample resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'".to_string(),
            ));
        }
        self.by_arguments(session).await
    }

    /// As `select`, with the first failure as the result.
    pub async fn all_or_nothing(&self, session: &Session) -> Result<Vec<Info>> {
        let (infos, failures) = self.select(session).await?;
        match failures.is_empty() {
            true => Ok(infos),
            false => Err(Failure::aggregate(failures).err().unwrap_or(Failure::Exit(1))),
        }
    }

    pub async fn fetch(&self, session: &Session, info: &Info) -> Result<Value> {
        let mut path = info.path()?;
        if !self.subresource.is_empty() {
            path.push_str(&format!("/{}", self.subresource));
        }
        let mut call = session.rest().await?.get(path).about(&info.resource.qualified(), &info.name);
        if !self.accept.is_empty() {
            call = call.header(header::ACCEPT, self.accept.as_str());
            if self.include_object {
                call = call.query("includeObject", "Object");
            }
        }
        call.value().await
    }

    /// A refused list says what was looked for.
    fn not_listed(&self, resource: &ApiResource, failure: Failure) -> Failure {
        if !["BadRequest", "NotFound"].contains(&failure.reason()) {
            return failure;
        }
        let id = match resource.group.as_str() {
            "" => format!("/{}, Resource={}", resource.version, resource.name),
            group => format!("{group}/{}, Resource={}", resource.version, resource.name),
        };
        failure.behind(&match self.has_selector() {
            true => format!(
                "Unable to find {id:?} that match label selector {:?}, field selector {:?}: ",
                self.selector, self.field_selector
            ),
            false => format!("Unable to list {id:?}: "),
        })
    }

    /// A list of one type; chunks are joined unless each goes to `keep_lists`.
    pub async fn list(&self, session: &Session, resource: &Rc<ApiResource>) -> Result<Vec<Value>> {
        let rest = session.rest().await?;
        let namespace = if self.all_namespaces { "" } else { self.namespace.as_str() };
        let mut chunks = Vec::new();
        let mut token = String::new();
        loop {
            let mut call = rest.get(resource.path(namespace, "")).about(&resource.qualified(), "");
            if !self.accept.is_empty() {
                call = call.header(header::ACCEPT, self.accept.as_str());
            }
            if !token.is_empty() {
                call = call.query("continue", token.as_str());
            }
            call = call.query_opt("fieldSelector", &self.field_selector);
            if self.include_object {
                call = call.query("includeObject", "Object");
            }
            call = call.query_opt("labelSelector", &self.selector);
            if self.chunk_size > 0 {
                call = call.query("limit", self.chunk_size.to_string());
            }
            let chunk = call.value().await.map_err(|failure| self.not_listed(resource, failure))?;
            token = chunk["metadata"]["continue"].as_str().unwrap_or_default().to_string();
            chunks.push(chunk);
            if token.is_empty() {
                return Ok(chunks);
            }
        }
    }
}

/// Does something with each object; what goes wrong with one keeps no other from it. `failures` are those of the selection.
pub async fn each(
    infos: Vec<Info>,
    failures: Vec<Failure>,
    mut act: impl AsyncFnMut(Info) -> Result<()>,
) -> Result<()> {
    let mut of_objects = Vec::new();
    for info in infos {
        if let Err(failure) = act(info).await {
            of_objects.push(failure);
        }
    }
    Failure::aggregate_behind(of_objects, failures)
}

/// The items of a list, each with the kind that the list says.
pub fn items_of(list: Value) -> Vec<Value> {
    let Value::Object(mut map) = list else { return Vec::new() };
    let version = map.get("apiVersion").cloned().unwrap_or_default();
    let kind = map.get("kind").and_then(Value::as_str).unwrap_or_default().to_string();
    let item_kind = kind.strip_suffix("List").unwrap_or_default().to_string();
    let Some(Value::Array(items)) = map.remove("items") else { return Vec::new() };
    items
        .into_iter()
        .map(|mut item| {
            if !item_kind.is_empty() && item["kind"].is_null() && item.is_object() {
                item["kind"] = item_kind.clone().into();
                item["apiVersion"] = version.clone();
            }
            item
        })
        .collect()
}

/// Several objects as one `List`.
pub fn list_of(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}})
}

pub fn metadata<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}
