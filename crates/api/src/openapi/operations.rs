//! Every path and operation of a set of resources, said once; `v2` and `v3` only write them differently.
//! Made from the table of kinds (and custom resources); read by `documents`.
//! Names no kind; everything follows from `Resource`.

use crate::{
    Resource, Verb,
    kinds::Subresource,
    schema::{self, Node},
};

pub(super) struct Path {
    pub(super) path: String,
    pub(super) parameters: Vec<Parameter>,
    pub(super) operations: Vec<Operation>,
}

#[derive(Clone)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) in_path: bool,
    pub(super) kind: &'static str,
    pub(super) description: String,
}

pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) tag: String,
    pub(super) action: &'static str,
    pub(super) description: String,
    /// Group, version, kind; none for discovery.
    pub(super) about: Option<[String; 3]>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) codes: &'static [u16],
    pub(super) answer: Answer,
}

pub(super) enum Body {
    Object(String),
    /// Not required.
    DeleteOptions,
    Patch {
        strategic: bool,
    },
}

#[derive(Clone)]
pub(super) enum Answer {
    Object(String),
    List(String),
    Watch,
    /// Whatever the other end of a connection says.
    Stream,
    /// Plain text, by any content type that was asked for.
    Text,
}

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

// Name, type, description. Those of the selectors and of `watch` are found by upstream's checks of a server's document.
const QUERY: &[(&str, &str, &str)] = &[
    ("allowWatchBookmarks", "boolean", "Ask for BOOKMARK events in a watch."),
    ("continue", "string", "The token of the previous page of a list."),
    ("dryRun", "string", "\"All\": go through every stage, but persist nothing."),
    ("fieldManager", "string", "Who makes this change, for the record of managed fields."),
    (
        "fieldSelector",
        "string",
        "A selector to restrict the list of returned objects by their fields. Defaults to everything.",
    ),
    ("fieldValidation", "string", "What unknown and duplicate fields cause: Ignore, Warn or Strict."),
    ("force", "boolean", "Take over fields that other managers own. Only for apply patches."),
    ("gracePeriodSeconds", "integer", "Seconds until the object is deleted; zero: at once."),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean", "Delete an object even though it cannot be read."),
    (
        "labelSelector",
        "string",
        "A selector to restrict the list of returned objects by their labels. Defaults to everything.",
    ),
    ("limit", "integer", "How many objects a page of the list has at most."),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    ("path", "string", "The path of the proxied request."),
    ("pretty", "string", "\"true\": indent the answer."),
    ("propagationPolicy", "string", "What happens to dependents: Orphan, Background or Foreground."),
    ("resourceVersion", "string", "The version that the answer may not be older than, or where a watch starts."),
    ("resourceVersionMatch", "string", "How resourceVersion is applied to a list."),
    ("sendInitialEvents", "boolean", "Open a watch with the objects that exist, closed by a bookmark."),
    ("timeoutSeconds", "integer", "How long the call may last."),
    ("watch", "boolean", "Watch for changes to the described resources: a stream of them instead of a list."),
];

const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];

fn query(names: &[&str]) -> Vec<Parameter> {
    let find = |name: &&str| QUERY.iter().find(|(known, ..)| known == name);
    names
        .iter()
        .filter_map(find)
        .map(|(name, kind, description)| Parameter {
            name: (*name).into(),
            in_path: false,
            kind,
            description: (*description).into(),
        })
        .collect()
}

fn in_path(name: &str, description: String) -> Parameter {
    Parameter { name: name.into(), in_path: true, kind: "string", description }
}

/// `Core`, `Apps`, `RbacAuthorization`, `ExampleCom`.
fn group_words(group: &str) -> String {
    if group.is_empty() {
        return "Core".into();
    }
    group.trim_end_matches(".k8s.io").split(['.', '-']).map(capital).collect()
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// The full name of the type of a kind: upstream's for built-in ones, the reversed group for custom resources.
pub(super) fn type_name(group: &str, version: &str, kind: &str) -> String {
    let schema = super::schema_of(group, version, kind);
    if let Some((schema, id)) = schema.and_then(|schema| Some((schema, schema.find_kind(group, version, kind)?))) {
        return schema.get(id).name.clone();
    }
    let reversed: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

pub(super) fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// Where a group version's resources are listed.
pub(super) fn discovery(group: &str, version: &str) -> Path {
    let operation = Operation {
        method: "get",
        id: format!("get{}{}APIResources", group_words(group), capital(version)),
        tag: tag(group, version),
        action: "",
        description: "get available resources".into(),
        about: None,
        parameters: vec![],
        body: None,
        codes: &[200],
        answer: Answer::Object(format!("{META}.APIResourceList")),
    };
    Path { path: format!("{}/", root(group, version)), parameters: vec![], operations: vec![operation] }
}

fn tag(group: &str, version: &str) -> String {
    let words = group_words(group);
    let lower: String = words.chars().take(1).flat_map(char::to_lowercase).chain(words.chars().skip(1)).collect();
    format!("{lower}_{version}")
}

/// The paths of one resource and its subresources.
pub(super) fn paths_of(resource: &Resource) -> Vec<Path> {
    let maker = Maker::new(resource);
    let mut paths = maker.collections();
    paths.extend(maker.item());
    paths.extend(resource.subresources.iter().flat_map(|sub| maker.subresource(sub)));
    paths
}

struct Maker<'r> {
    resource: &'r Resource,
    object: String,
    list: String,
    /// `AppsV1`.
    words: String,
    scope: &'static str,
}

impl<'r> Maker<'r> {
    fn new(resource: &'r Resource) -> Self {
        let (group, version) = (&resource.group, &resource.version);
        Self {
            resource,
            object: type_name(group, version, &resource.kind),
            list: type_name(group, version, &resource.list_kind),
            words: format!("{}{}", group_words(group), capital(version)),
            scope: if resource.namespaced() { "Namespaced" } else { "" },
        }
    }

    fn operation(&self, method: &'static str, action: &'static str, id: String, what: String) -> Operation {
        let r = self.resource;
        Operation {
            method,
            id,
            tag: tag(&r.group, &r.version),
            action,
            description: what,
            about: Some([r.group.clone(), r.version.clone(), r.kind.clone()]),
            parameters: vec![],
            body: None,
            codes: &[200],
            answer: Answer::Object(self.object.clone()),
        }
    }

    fn id(&self, verb: &str, middle: &str, end: &str) -> String {
        format!("{verb}{}{middle}{}{}{end}", self.words, self.scope, self.resource.kind)
    }

    fn place(&self, name: bool, pretty: bool) -> Vec<Parameter> {
        let mut parameters = Vec::new();
        if name {
            parameters.push(in_path("name", format!("name of the {}", self.resource.kind)));
        }
        if self.resource.namespaced() {
            parameters.push(in_path("namespace", "the namespace that holds the object".into()));
        }
        if pretty {
            parameters.extend(query(&["pretty"]));
        }
        parameters
    }

    fn collection_path(&self, prefix: &str) -> String {
        let r = self.resource;
        let root = root(&r.group, &r.version);
        match r.namespaced() {
            true => format!("{root}{prefix}/namespaces/{{namespace}}/{}", r.plural),
            false => format!("{root}{prefix}/{}", r.plural),
        }
    }

    fn collections(&self) -> Vec<Path> {
        let (r, kind) = (self.resource, &self.resource.kind);
        let mut operations = Vec::new();
        if r.supports(&Verb::DeleteCollection) {
            operations.push(Operation {
                parameters: query(&[&LIST[1..], DELETE].concat()),
                body: Some(Body::DeleteOptions),
                answer: Answer::Object(format!("{META}.Status")),
                ..self.operation(
                    "delete",
                    "deletecollection",
                    self.id("delete", "Collection", ""),
                    format!("delete collection of {kind}"),
                )
            });
        }
        let list = |id: String| Operation {
            parameters: query(LIST),
            answer: Answer::List(self.list.clone()),
            ..self.operation("get", "list", id, format!("list or watch objects of kind {kind}"))
        };
        if r.supports(&Verb::List) {
            operations.push(list(self.id("list", "", "")));
        }
        if r.supports(&Verb::Create) {
            operations.push(Operation {
                parameters: query(WRITE),
                body: Some(Body::Object(self.object.clone())),
                codes: &[200, 201, 202],
                ..self.operation("post", "post", self.id("create", "", ""), format!("create {} {kind}", article(kind)))
            });
        }
        let mut paths = vec![Path { path: self.collection_path(""), parameters: self.place(false, true), operations }];
        if r.namespaced() && r.supports(&Verb::List) {
            let everywhere = list(format!("list{}{kind}ForAllNamespaces", self.words));
            let path = format!("{}/{}", root(&r.group, &r.version), r.plural);
            paths.push(Path { path, parameters: query(&["pretty"]), operations: vec![everywhere] });
        }
        if r.supports(&Verb::Watch) {
            paths.extend(self.watches());
        }
        paths
    }

    /// The old watch paths, which upstream still serves and publishes.
    fn watches(&self) -> Vec<Path> {
        let (r, kind) = (self.resource, &self.resource.kind);
        let watch = |action: &'static str, id: String, path: String, mut parameters: Vec<Parameter>| {
            parameters.extend(query(LIST));
            let what = format!("watch changes to objects of kind {kind}");
            let operation = Operation { answer: Answer::Watch, ..self.operation("get", action, id, what) };
            Path { path, parameters, operations: vec![operation] }
        };
        let collection = self.collection_path("/watch");
        let mut paths = vec![
            watch("watchlist", self.id("watch", "", "List"), collection.clone(), self.place(false, true)),
            watch("watch", self.id("watch", "", ""), format!("{collection}/{{name}}"), self.place(true, true)),
        ];
        if r.namespaced() {
            let path = format!("{}/watch/{}", root(&r.group, &r.version), r.plural);
            let id = format!("watch{}{kind}ListForAllNamespaces", self.words);
            paths.push(watch("watchlist", id, path, query(&["pretty"])));
        }
        paths
    }

    fn item(&self) -> Option<Path> {
        let (r, kind) = (self.resource, &self.resource.kind);
        let mut operations = Vec::new();
        if r.supports(&Verb::Delete) {
            operations.push(Operation {
                parameters: query(DELETE),
                body: Some(Body::DeleteOptions),
                codes: &[200, 202],
                answer: Answer::Object(match r.behavior.returns_deleted() {
                    true => self.object.clone(),
                    false => format!("{META}.Status"),
                }),
                ..self.operation(
                    "delete",
                    "delete",
                    self.id("delete", "", ""),
                    format!("delete {} {kind}", article(kind)),
                )
            });
        }
        operations.extend(self.read_write(&r.verbs, "", &self.object));
        let path = format!("{}/{{name}}", self.collection_path(""));
        (!operations.is_empty()).then(|| Path { path, parameters: self.place(true, true), operations })
    }

    /// get, put and patch of an object or of a subresource.
    fn read_write(&self, verbs: &[Verb], end: &str, object: &str) -> Vec<Operation> {
        let kind = &self.resource.kind;
        let part = if end.is_empty() { String::new() } else { format!("{} of the ", end.to_lowercase()) };
        let mut operations = Vec::new();
        if verbs.contains(&Verb::Get) {
            let what = format!("read {part}the specified {kind}").replace("the the", "the");
            operations.push(Operation {
                answer: Answer::Object(object.into()),
                ..self.operation("get", "get", self.id("read", "", end), what)
            });
        }
        if verbs.contains(&Verb::Patch) {
            let what = format!("partially update {part}the specified {kind}").replace("the the", "the");
            operations.push(Operation {
                parameters: query(PATCH),
                body: Some(Body::Patch { strategic: object.starts_with("io.k8s.") }),
                codes: &[200, 201],
                answer: Answer::Object(object.into()),
                ..self.operation("patch", "patch", self.id("patch", "", end), what)
            });
        }
        if verbs.contains(&Verb::Update) {
            let what = format!("replace {part}the specified {kind}").replace("the the", "the");
            operations.push(Operation {
                parameters: query(WRITE),
                body: Some(Body::Object(object.into())),
                codes: &[200, 201],
                answer: Answer::Object(object.into()),
                ..self.operation("put", "put", self.id("replace", "", end), what)
            });
        }
        operations
    }

    fn subresource(&self, sub: &Subresource) -> Vec<Path> {
        let path = format!("{}/{{name}}/{}", self.collection_path(""), sub.name);
        let end = capital(&sub.name);
        if sub.kind.ends_with("Options") {
            return self.connect(sub, path, &end);
        }
        let object = type_name(&sub.group, &sub.version, &sub.kind);
        let mut operations = self.read_write(&sub.verbs, &end, &object);
        let mut parameters = self.place(true, true);
        if sub.name == "log" {
            operations.iter_mut().for_each(|o| o.answer = Answer::Text);
            parameters.extend(options("", "v1", "PodLogOptions"));
        }
        if sub.verbs.contains(&Verb::Create) {
            parameters.extend(query(WRITE));
            operations.push(Operation {
                body: Some(Body::Object(object.clone())),
                codes: &[200, 201, 202],
                answer: Answer::Object(object),
                ..self.operation(
                    "post",
                    "post",
                    self.id("create", "", &end),
                    format!("create {} of {} {}", sub.name, article(&self.resource.kind), self.resource.kind),
                )
            });
        }
        for operation in &mut operations {
            operation.about = Some([sub.group.clone(), sub.version.clone(), sub.kind.clone()]);
        }
        vec![Path { path, parameters, operations }]
    }

    /// Streams and proxies: the answer is whatever the other end says.
    fn connect(&self, sub: &Subresource, path: String, end: &str) -> Vec<Path> {
        let methods: &[&'static str] = match sub.name.as_str() {
            "proxy" => &["delete", "get", "head", "options", "patch", "post", "put"],
            _ => &["get", "post"],
        };
        let make = |path: String, tail: &str, extra: Vec<Parameter>| {
            let operations = methods.iter().map(|method| Operation {
                about: Some([sub.group.clone(), sub.version.clone(), sub.kind.clone()]),
                answer: Answer::Stream,
                ..self.operation(
                    method,
                    "connect",
                    format!("connect{}{}{}{}{end}{tail}", self.words, capital(method), self.scope, self.resource.kind),
                    format!("connect {} requests to {} of {}", method.to_uppercase(), sub.name, self.resource.kind),
                )
            });
            let mut parameters = self.place(true, false);
            parameters.extend(extra);
            parameters.extend(options(&sub.group, &sub.version, &sub.kind));
            Path { path, parameters, operations: operations.collect() }
        };
        let mut paths = vec![make(path.clone(), "", vec![])];
        if sub.name == "proxy" {
            let rest = in_path("path", "path to the resource".into());
            paths.push(make(format!("{path}/{{path}}"), "WithPath", vec![rest]));
        }
        paths
    }
}

fn article(kind: &str) -> &'static str {
    if kind.starts_with(['A', 'E', 'I', 'O']) { "an" } else { "a" }
}

/// The query parameters that stand for the fields of an options kind.
fn options(group: &str, version: &str, kind: &str) -> Vec<Parameter> {
    let builtin = schema::builtin();
    let Some(id) = builtin.find_kind(group, version, kind) else { return vec![] };
    let fields = builtin.get(id).fields.iter().filter(|f| f.proto != 0);
    fields
        .map(|f| Parameter {
            name: f.name.clone(),
            in_path: false,
            kind: match f.node {
                Node::Boolean => "boolean",
                Node::Int32 | Node::Int64 => "integer",
                _ => "string",
            },
            description: format!("{} of {kind}", f.name),
        })
        .collect()
}
