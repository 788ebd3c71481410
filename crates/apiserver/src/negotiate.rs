//! Which form of an answer the client asked for, and which form its body has.
//! Read by `respond` and by everything that decodes a body.
//! Invariant: an answer never has a form the client did not accept.

use api::{ApiError, Reason};
use http::{HeaderMap, header};

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
        match text {
            "application/json" => Some(Media::Json),
            "application/yaml" => Some(Media::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Media::Protobuf),
            _ => None,
        }
    }
}

/// The object itself, or a view of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Object,
    Table,
    Partial,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    pub media: Media,
    pub view: View,
    pub pretty: bool,
}

impl Output {
    pub const JSON: Output = Output { media: Media::Json, view: View::Object, pretty: false };
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
}

/// The clauses of an Accept header, best first, in the client's order where equal.
pub fn accept(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let texts = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    let mut clauses: Vec<Clause> =
        texts.flat_map(|t| t.split(',')).map(clause).filter(|c| !c.media.is_empty()).collect();
    if clauses.is_empty() {
        clauses.push(clause("*/*"));
    }
    clauses.sort_by(|a, b| b.quality().total_cmp(&a.quality()));
    clauses
}

fn clause(text: &str) -> Clause<'_> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let params = parts.filter_map(|p| p.split_once('=')).map(|(n, v)| (n.trim(), v.trim())).collect();
    Clause { media, params }
}

/// The best form this server has for the client. `views` says whether tables and partial metadata exist here.
pub fn output(headers: &HeaderMap, pretty: bool, views: bool) -> Result<Output, ApiError> {
    for clause in accept(headers) {
        let media = match clause.media {
            "*/*" | "application/*" => Media::Json,
            other => match Media::parse(other) {
                Some(media) => media,
                None => continue,
            },
        };
        let view = match (clause.param("as"), clause.param("g"), clause.param("v")) {
            (None, ..) => View::Object,
            (Some("Table"), Some("meta.k8s.io"), Some("v1")) if views && media != Media::Protobuf => View::Table,
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) if views => {
                View::Partial
            }
            _ => continue,
        };
        return Ok(Output { media, view, pretty });
    }
    Err(not_acceptable())
}

fn not_acceptable() -> ApiError {
    ApiError::new(
        Reason::NotAcceptable,
        "only the following media types are accepted: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf",
    )
}

/// The form of a request's body. An absent Content-Type is JSON, as upstream has it.
pub fn input(headers: &HeaderMap) -> Result<Media, ApiError> {
    let text = content_type(headers);
    match text.as_str() {
        "" => Ok(Media::Json),
        other => Media::parse(other).ok_or_else(|| {
            unsupported("application/json, application/yaml, application/vnd.kubernetes.protobuf".to_string())
        }),
    }
}

/// The media type of the body without parameters.
pub fn content_type(headers: &HeaderMap) -> String {
    let text = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub fn unsupported(accepted: String) -> ApiError {
    ApiError::new(
        Reason::UnsupportedMediaType,
        format!("the body of the request was in an unknown format - accepted media types include: {accepted}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_the_first_form_it_has() {
        let check = |accept: &str, expected: Option<(Media, View)>| {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(header::ACCEPT, accept.parse().unwrap());
            }
            let found = output(&headers, false, true).ok().map(|o| (o.media, o.view));
            assert_eq!(found, expected, "{accept}");
        };
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        check("", Some((Media::Json, View::Object)));
        check("*/*", Some((Media::Json, View::Object)));
        check("application/yaml", Some((Media::Yaml, View::Object)));
        check("text/html", None);
        check("text/html, application/yaml;q=0.3, */*;q=0.8", Some((Media::Json, View::Object)));
        check(&format!("{table},application/json"), Some((Media::Json, View::Table)));
        check("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Some((Media::Json, View::Object)));
        check("application/vnd.kubernetes.protobuf", Some((Media::Protobuf, View::Object)));
        check("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Some((Media::Json, View::Partial)));
    }
}
