//! Which form of an answer the client asked for, and which form its body has.
//! Read by `respond` and by everything that decodes a body.
//! An answer never has a form the client did not accept.

use api::{ApiError, Reason};
use http::{HeaderMap, header};
use serde_json::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    Json,
    Yaml,
    Protobuf,
}

impl Media {
    pub fn as_str(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        MEDIA.into_iter().find(|media| media.as_str() == text)
    }
}

/// In the order in which a client that takes anything gets them.
const MEDIA: [Media; 3] = [Media::Json, Media::Yaml, Media::Protobuf];
const ALL: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// In place of a media type that cannot be read.
const UNREADABLE: &str = "unreadable";

/// What the routes of built-in resources answer with: lists and watches are one route.
pub const ROUTED: &str = ALL;
pub const ROUTED_LISTS: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf, \
                                application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

const STREAMS: &str = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

/// The object itself, or a view of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Object,
    /// Rows as `kubectl get` prints them, in this version of `meta.k8s.io`.
    Table(&'static str),
    /// Metadata only, in this version of `meta.k8s.io`.
    Partial(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    pub media: Media,
    pub view: View,
    pub pretty: bool,
}

impl Output {
    pub const JSON: Output = Output { media: Media::Json, view: View::Object, pretty: false };
    /// What upstream answers with when it can't tell what the client would read.
    pub const BY_HAND: Output = Output { pretty: true, ..Output::JSON };
}

/// Which forms there are to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms {
    /// Tables and partial metadata.
    pub views: bool,
    /// The objects themselves in protobuf. Custom resources have none; their metadata alone does.
    pub protobuf: bool,
    /// A watch: YAML has no frames.
    pub stream: bool,
    /// What a route of upstream's would list, where a type that it does not have finds no route.
    pub routed: Option<&'static str>,
}

impl Forms {
    /// A document that is not a stored object: a Status, a Scale, a review.
    pub const PLAIN: Forms = Forms { views: false, protobuf: true, stream: false, routed: None };

    fn has(&self, media: Media, clause: &Clause<'_>) -> Option<View> {
        if clause.param("stream").is_some_and(|s| !s.is_empty() && s != "watch") {
            return None;
        }
        let version = clause.param("sv").unwrap_or_default();
        if !version.is_empty() && (version != "v1" || !self.views) {
            return None;
        }
        let target = [clause.param("as"), clause.param("g"), clause.param("v")];
        if target == [None, None, None] {
            return (self.protobuf || media != Media::Protobuf).then_some(View::Object);
        }
        let [kind, group, version] = target.map(Option::unwrap_or_default);
        let version = match (self.views && group == "meta.k8s.io", version) {
            (true, "v1") => "meta.k8s.io/v1",
            (true, "v1beta1") => "meta.k8s.io/v1beta1",
            _ => return None,
        };
        match kind {
            "Table" if media != Media::Protobuf => Some(View::Table(version)),
            "PartialObjectMetadata" | "PartialObjectMetadataList" => Some(View::Partial(version)),
            _ => None,
        }
    }
}

/// One clause of an Accept header: type and parameters.
pub struct Clause<'a> {
    pub media: &'a str,
    params: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    pub fn param(&self, name: &str) -> Option<&'a str> {
        self.params.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }

    fn quality(&self) -> f32 {
        self.param("q").and_then(|q| q.parse().ok()).unwrap_or(1.0)
    }

    /// More of it is left open.
    fn openness(&self) -> usize {
        self.media.matches('*').count()
    }
}

/// The clauses of an Accept header, best first: by quality, then the more precise, then in the client's order.
pub fn accept(headers: &HeaderMap) -> Vec<Clause<'_>> {
    // What cannot be read asks for a type that nobody has.
    let texts = headers.get_all(header::ACCEPT).iter().map(|v| v.to_str().unwrap_or(UNREADABLE));
    let mut clauses: Vec<Clause> =
        texts.flat_map(|t| t.split(',')).map(clause).filter(|c| !c.media.is_empty()).collect();
    if clauses.is_empty() {
        clauses.push(clause("*/*"));
    }
    clauses.sort_by(|a, b| b.quality().total_cmp(&a.quality()).then(a.openness().cmp(&b.openness())));
    clauses
}

fn clause(text: &str) -> Clause<'_> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let params = parts.filter_map(|p| p.split_once('=')).map(|(n, v)| (n.trim(), v.trim())).collect();
    Clause { media, params }
}

/// The best form this server has for the client.
pub fn output(headers: &HeaderMap, pretty: bool, forms: Forms) -> Result<Output, ApiError> {
    let clauses = accept(headers);
    let is_known =
        |clause: &Clause| matches!(clause.media, "*/*" | "application/*") || Media::parse(clause.media).is_some();
    if let Some(routed) = forms.routed.filter(|_| !clauses.iter().any(is_known)) {
        return Err(no_route(
            Reason::NotAcceptable,
            &format!("406: Not Acceptable\n\nAvailable representations: {routed}"),
        ));
    }
    for clause in clauses {
        let offered: &[Media] = match clause.media {
            "*/*" | "application/*" => &MEDIA,
            other => match MEDIA.iter().position(|m| m.as_str() == other) {
                Some(at) => &MEDIA[at..=at],
                None => continue,
            },
        };
        let found = offered.iter().find_map(|media| Some((*media, forms.has(*media, &clause)?)));
        if let Some((media, view)) = found {
            // As upstream: what comes later in the client's list is not looked at.
            if forms.stream && media == Media::Yaml {
                return Err(not_acceptable(STREAMS));
            }
            return Ok(Output { media, view, pretty: pretty || clause.param("pretty") == Some("1") });
        }
    }
    Err(not_acceptable(ALL))
}

/// As upstream's router says it, which knows no resource.
pub fn no_route(reason: Reason, message: &str) -> ApiError {
    ApiError::new(reason, message).with_details(json!({}))
}

fn not_acceptable(accepted: &str) -> ApiError {
    ApiError::new(Reason::NotAcceptable, format!("only the following media types are accepted: {accepted}"))
}

/// The form of a request's body. An absent Content-Type is JSON, as upstream has it.
pub fn input(headers: &HeaderMap) -> Result<Media, ApiError> {
    let text = content_type(headers);
    match text.as_str() {
        "" => Ok(Media::Json),
        other => Media::parse(other).ok_or_else(|| unsupported(ALL)),
    }
}

/// The media type of the body without parameters.
pub fn content_type(headers: &HeaderMap) -> String {
    let text = headers.get(header::CONTENT_TYPE).map_or("", |v| v.to_str().unwrap_or(UNREADABLE));
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub fn unsupported(accepted: &str) -> ApiError {
    ApiError::new(
        Reason::UnsupportedMediaType,
        format!("the body of the request was in an unknown format - accepted media types include: {accepted}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_that_cannot_be_read_are_refused() {
        let mut headers = HeaderMap::new();
        let unreadable = http::HeaderValue::from_bytes(b"application/json\xff").unwrap();
        headers.insert(header::CONTENT_TYPE, unreadable.clone());
        headers.insert(header::ACCEPT, unreadable);
        assert_eq!(input(&headers).map_err(|e| e.code), Err(415));
        assert_eq!(output(&headers, false, Forms::PLAIN).map_err(|e| e.code), Err(406));
    }

    #[test]
    fn picks_the_best_form_it_has() {
        const BUILTIN: Forms = Forms { views: true, ..Forms::PLAIN };
        const CUSTOM: Forms = Forms { protobuf: false, ..BUILTIN };
        let check = |forms: Forms, accept: &str, expected: Option<(Media, View)>| {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(header::ACCEPT, accept.parse().unwrap());
            }
            let found = output(&headers, false, forms).ok().map(|o| (o.media, o.view));
            assert_eq!(found, expected, "{accept}");
        };
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let protobuf = "application/vnd.kubernetes.protobuf";
        let json = Some((Media::Json, View::Object));
        let (rows, partial) = (View::Table("meta.k8s.io/v1"), View::Partial("meta.k8s.io/v1"));
        check(BUILTIN, "", json);
        check(BUILTIN, "*/*", json);
        check(BUILTIN, "application/yaml", Some((Media::Yaml, View::Object)));
        check(BUILTIN, "*/*, application/yaml", Some((Media::Yaml, View::Object)));
        check(BUILTIN, "text/html", None);
        check(BUILTIN, "text/html, application/yaml;q=0.3, */*;q=0.8", json);
        check(BUILTIN, &format!("{table},application/json"), Some((Media::Json, rows)));
        check(Forms::PLAIN, &format!("{table},application/json"), json);
        check(Forms::PLAIN, table, None);
        let beta = View::Table("meta.k8s.io/v1beta1");
        check(BUILTIN, "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Some((Media::Json, beta)));
        check(BUILTIN, "application/json;as=Table;v=v2;g=meta.k8s.io,application/json", json);
        check(BUILTIN, "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", None);
        check(BUILTIN, "application/json;v=v1", None);
        check(BUILTIN, protobuf, Some((Media::Protobuf, View::Object)));
        check(BUILTIN, metadata, Some((Media::Protobuf, partial)));
        check(CUSTOM, metadata, Some((Media::Protobuf, partial)));
        check(CUSTOM, protobuf, None);
        check(CUSTOM, &format!("{protobuf},application/json"), json);
        check(
            BUILTIN,
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Some((Media::Json, partial)),
        );
        check(BUILTIN, "application/json;stream=watch", json);
        check(BUILTIN, "application/json;stream=other, application/yaml", Some((Media::Yaml, View::Object)));
        check(BUILTIN, "application/json;sv=v2", None);
    }
}
