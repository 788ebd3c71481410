//! Filters of routes, from objects to what the proxy does.
//! Called by `rules`.
//! Pure (tidy: `pure_files`). Values are read here once, so that no request meets one that can't be used.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};

use super::{
    conditions::{DesiredCondition, RESOLVED_REFS, fails},
    rules::unsupported,
    types::{
        BackendRef, CorsFilter, HeaderModifier, NamedValue, PathModifier, RequestMirror, RequestRedirect, RouteFilter,
        UrlRewrite,
    },
};
use crate::{
    backends::Backend,
    destinations::Share,
    filters::{Cors, Filters, HeaderChanges, Mirror, PathChange, Redirect, Rewrite},
};

/// The outer error makes the route unaccepted; the inner one is a reference to a filter that nobody knows.
pub fn filters(
    list: &[RouteFilter],
    has_prefixes: bool,
    mut backend: impl FnMut(&BackendRef) -> Option<Arc<Backend>>,
) -> Result<Result<Filters, DesiredCondition>, DesiredCondition> {
    let mut made = Filters::default();
    for filter in list {
        match filter.kind.as_str() {
            "RequestHeaderModifier" => made.request_headers = changes(filter.request_header_modifier.as_ref())?,
            "ResponseHeaderModifier" => made.response_headers = changes(filter.response_header_modifier.as_ref())?,
            "RequestRedirect" => {
                made.redirect = filter.request_redirect.as_ref().map(|r| redirect(r, has_prefixes)).transpose()?
            }
            "URLRewrite" => made.rewrite = filter.url_rewrite.as_ref().map(|r| rewrite(r, has_prefixes)).transpose()?,
            "RequestMirror" => {
                let mirror = filter.request_mirror.as_ref();
                // One that leads nowhere is said in ResolvedRefs; the requests themselves go on.
                made.mirrors.extend(mirror.and_then(|m| Some(mirror_to(m, backend(&m.backend_ref)?))));
            }
            "CORS" => made.cors = filter.cors.as_ref().map(cors),
            "ExtensionRef" => {
                return Ok(Err(fails(RESOLVED_REFS, "InvalidKind", "there are no filters by extensionRef")));
            }
            other => return Err(unsupported(format!("filters of type {other} are not supported"))),
        }
    }
    if made.redirect.is_some() && made.rewrite.is_some() {
        let message = "a request can't be redirected and rewritten";
        return Err(fails(super::conditions::ACCEPTED, "IncompatibleFilters", message));
    }
    Ok(Ok(made))
}

fn header_name(name: &str) -> Result<HeaderName, DesiredCondition> {
    HeaderName::try_from(name).map_err(|_| unsupported(format!("{name:?} is not the name of a header")))
}

fn changes(modifier: Option<&HeaderModifier>) -> Result<HeaderChanges, DesiredCondition> {
    let Some(modifier) = modifier else { return Ok(HeaderChanges::default()) };
    let header = |header: &NamedValue| {
        let value = HeaderValue::from_str(&header.value);
        let value = value.map_err(|_| unsupported(format!("the value of header {} can't be sent", header.name)))?;
        Ok::<_, DesiredCondition>((header_name(&header.name)?, value))
    };
    Ok(HeaderChanges {
        set: modifier.set.iter().map(header).collect::<Result<_, _>>()?,
        add: modifier.add.iter().map(header).collect::<Result<_, _>>()?,
        remove: modifier.remove.iter().map(|name| header_name(name)).collect::<Result<_, _>>()?,
    })
}

fn path_change(path: &PathModifier, has_prefixes: bool) -> Result<PathChange, DesiredCondition> {
    match (path.kind.as_str(), &path.replace_full_path, &path.replace_prefix_match) {
        ("ReplaceFullPath", Some(full), _) => Ok(PathChange::Full(rooted(full))),
        ("ReplacePrefixMatch", _, Some(prefix)) if has_prefixes => Ok(PathChange::Prefix(prefix.clone())),
        ("ReplacePrefixMatch", _, Some(_)) => {
            Err(unsupported("replacePrefixMatch needs matches of type PathPrefix, and no others"))
        }
        _ => Err(unsupported(format!("the path can't be changed by {:?}", path.kind))),
    }
}

fn rooted(path: &str) -> String {
    if path.starts_with('/') { path.to_string() } else { format!("/{path}") }
}

fn redirect(filter: &RequestRedirect, has_prefixes: bool) -> Result<Redirect, DesiredCondition> {
    let status = filter.status_code.unwrap_or(302);
    let known = [301, 302, 303, 307, 308].contains(&status);
    let status = StatusCode::from_u16(status).ok().filter(|_| known);
    Ok(Redirect {
        scheme: filter.scheme.clone(),
        hostname: filter.hostname.clone(),
        path: filter.path.as_ref().map(|path| path_change(path, has_prefixes)).transpose()?,
        port: filter.port,
        status: status.ok_or_else(|| unsupported("the status code is not that of a redirect"))?,
    })
}

fn rewrite(filter: &UrlRewrite, has_prefixes: bool) -> Result<Rewrite, DesiredCondition> {
    let hostname = filter.hostname.as_deref().map(HeaderValue::from_str).transpose();
    Ok(Rewrite {
        hostname: hostname.map_err(|_| unsupported("the host name can't be sent"))?,
        path: filter.path.as_ref().map(|path| path_change(path, has_prefixes)).transpose()?,
    })
}

fn mirror_to(filter: &RequestMirror, backend: Arc<Backend>) -> Mirror {
    let (numerator, denominator) = match (&filter.fraction, filter.percent) {
        (Some(fraction), _) => (fraction.numerator, fraction.denominator.unwrap_or(100).max(1)),
        (None, Some(percent)) => (percent, 100),
        (None, None) => (1, 1),
    };
    Mirror { backend, numerator, denominator, share: Share::default() }
}

fn cors(filter: &CorsFilter) -> Cors {
    Cors {
        allow_origins: filter.allow_origins.clone(),
        allow_methods: filter.allow_methods.clone(),
        allow_headers: filter.allow_headers.clone(),
        expose_headers: filter.expose_headers.clone(),
        allow_credentials: filter.allow_credentials.unwrap_or_default(),
        max_age_seconds: filter.max_age.unwrap_or(5),
    }
}
