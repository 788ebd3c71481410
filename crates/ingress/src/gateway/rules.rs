//! Rules of HTTPRoutes and GRPCRoutes become routes of the table.
//! Called by `model`; backends come from `backend_references`, filters from `route_filters`.
//! Pure (tidy: `pure_files`). What can't be understood makes its whole route unaccepted, so that nothing is half done.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, Method, StatusCode};

use super::{
    backend_references::{References, Referrer, Resolver},
    conditions::{ACCEPTED, DesiredCondition, fails},
    route_filters,
    types::{
        BackendRef, GrpcMethod, GrpcRoute, HttpRoute, HttpRouteMatch, HttpRouteRule, NamedValue, PathValue,
        RouteFilter, Timeouts, key, namespace,
    },
};
use crate::{
    backends::Protocol,
    destinations::{Destination, Destinations},
    pattern::Pattern,
    request_match::{RequestMatch, ValueMatch},
    routes::{PathMatch, PathPattern, Route, RouteSettings},
};

/// Of all patterns of one route: they are compiled again with every change of a route.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// As good as none; a timer does not reach further.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The routes of one object in the order of its rules, with what came of its references.
pub struct Compiled {
    pub routes: Vec<Arc<Route>>,
    pub references: References,
}

/// A value that the specification allows and we can't follow.
pub fn unsupported(message: impl Into<String>) -> DesiredCondition {
    fails(ACCEPTED, "UnsupportedValue", message)
}

/// Makes the patterns of one route, as long as they are not too large together.
#[derive(Default)]
struct Patterns {
    program_bytes: usize,
}

impl Patterns {
    fn compile(&mut self, text: &str) -> Result<Pattern, DesiredCondition> {
        let made = Pattern::new(text).map_err(unsupported)?;
        self.program_bytes += made.program_bytes();
        match self.program_bytes > PATTERN_BYTES_MAX {
            true => Err(unsupported("the regular expressions of the route are too large together")),
            false => Ok(made),
        }
    }
}

struct Compiler<'a, 'b> {
    resolver: &'a mut Resolver<'b>,
    from: Referrer<'a>,
    owner: Arc<str>,
    references: References,
    routes: Vec<Arc<Route>>,
}

/// What all kinds of rules have.
struct Rule<'a> {
    filters: &'a [RouteFilter],
    backends: &'a [BackendRef],
    settings: RouteSettings,
    /// Whether every match is a prefix, as some filters need.
    has_prefixes: bool,
}

pub fn http(route: &HttpRoute, resolver: &mut Resolver<'_>) -> Result<Compiled, DesiredCondition> {
    let from = Referrer {
        kind: "HTTPRoute",
        namespace: namespace(&route.metadata),
        protocol: Protocol::Http1,
        passthrough: false,
    };
    let mut compiler = Compiler::new(resolver, from, key(&route.metadata));
    let mut patterns = Patterns::default();
    let default = [HttpRouteRule::default()];
    for rule in route.spec.rules.as_deref().unwrap_or(&default) {
        let default = [HttpRouteMatch::default()];
        let matches = if rule.matches.is_empty() { &default[..] } else { &rule.matches };
        let conditions: Vec<_> = matches.iter().map(|one| http_match(one, &mut patterns)).collect::<Result<_, _>>()?;
        compiler.add(
            conditions,
            Rule {
                filters: &rule.filters,
                backends: &rule.backend_refs,
                settings: settings(&rule.timeouts)?,
                has_prefixes: matches.iter().all(|one| path_kind(one.path.as_ref()) == "PathPrefix"),
            },
        )?;
    }
    Ok(compiler.done())
}

pub fn grpc(route: &GrpcRoute, resolver: &mut Resolver<'_>) -> Result<Compiled, DesiredCondition> {
    let from = Referrer {
        kind: "GRPCRoute",
        namespace: namespace(&route.metadata),
        protocol: Protocol::Http2,
        passthrough: false,
    };
    let mut compiler = Compiler::new(resolver, from, key(&route.metadata));
    let mut patterns = Patterns::default();
    for rule in &route.spec.rules {
        let mut conditions = Vec::new();
        for one in &rule.matches {
            let path = grpc_path(one.method.as_ref(), &mut patterns)?;
            let headers = headers(&one.headers, &mut patterns)?;
            conditions.push((path, RequestMatch { headers, ..RequestMatch::default() }));
        }
        if conditions.is_empty() {
            conditions.push((PathMatch::prefix("/"), RequestMatch::default()));
        }
        let settings = settings(&Timeouts::default())?;
        let (filters, backends) = (&rule.filters, &rule.backend_refs);
        compiler.add(conditions, Rule { filters, backends, settings, has_prefixes: false })?;
    }
    Ok(compiler.done())
}

impl<'a, 'b> Compiler<'a, 'b> {
    fn new(resolver: &'a mut Resolver<'b>, from: Referrer<'a>, owner: String) -> Self {
        Self { resolver, from, owner: owner.into(), references: References::default(), routes: Vec::new() }
    }

    fn add(&mut self, matches: Vec<(PathMatch, RequestMatch)>, rule: Rule<'_>) -> Result<(), DesiredCondition> {
        let filters = self.filters(rule.filters, rule.has_prefixes)?;
        let mut list = Vec::new();
        for reference in rule.backends {
            let backend = self.resolver.backend(self.from, reference, &mut self.references);
            let filters = self.filters(&reference.filters, rule.has_prefixes)?;
            // A filter that nobody knows may not be left out: such requests fail.
            let (backend, filters) = match filters {
                Some(filters) => (backend, filters),
                None => (None, None),
            };
            list.push(Destination { weight: reference.weight.unwrap_or(1), backend, filters });
        }
        let (destinations, filters) = match filters {
            Some(filters) => (Destinations::new(list), filters),
            None => (Destinations::default(), None),
        };
        let (destinations, settings) = (Arc::new(destinations), Arc::new(rule.settings));
        for (path, condition) in matches {
            self.routes.push(Arc::new(Route {
                owner: self.owner.clone(),
                path,
                one_label: false,
                condition,
                destinations: destinations.clone(),
                filters: filters.clone(),
                settings: settings.clone(),
            }));
        }
        Ok(())
    }

    /// None when there is one among them that is not known.
    fn filters(
        &mut self,
        filters: &[RouteFilter],
        has_prefixes: bool,
    ) -> Result<Option<Option<Arc<crate::filters::Filters>>>, DesiredCondition> {
        if filters.is_empty() {
            return Ok(Some(None));
        }
        let made = route_filters::filters(filters, has_prefixes, |reference| {
            self.resolver.backend(self.from, reference, &mut self.references)
        })?;
        match made {
            Ok(filters) => Ok(Some(Some(Arc::new(filters)))),
            Err(problem) => {
                self.references.fail(problem);
                Ok(None)
            }
        }
    }

    fn done(self) -> Compiled {
        Compiled { routes: self.routes, references: self.references }
    }
}

fn path_kind(path: Option<&PathValue>) -> &str {
    path.and_then(|path| path.kind.as_deref()).unwrap_or("PathPrefix")
}

fn http_match(one: &HttpRouteMatch, patterns: &mut Patterns) -> Result<(PathMatch, RequestMatch), DesiredCondition> {
    let value = one.path.as_ref().and_then(|path| path.value.as_deref()).unwrap_or("/");
    let path = match path_kind(one.path.as_ref()) {
        "Exact" => PathMatch::Exact(value.to_string()),
        "PathPrefix" => PathMatch::prefix(value),
        "RegularExpression" => PathMatch::Pattern(PathPattern(patterns.compile(value)?)),
        other => return Err(unsupported(format!("paths of type {other} are not supported"))),
    };
    let method = one.method.as_deref().map(|method| method.parse::<Method>());
    let method = method.transpose().map_err(|_| unsupported("the method is not one"))?;
    let mut query: Vec<(String, ValueMatch)> = Vec::new();
    for parameter in &one.query_params {
        // Of two with one name the first counts.
        if !query.iter().any(|(name, _)| *name == parameter.name) {
            query.push((parameter.name.clone(), value_match(parameter, patterns)?));
        }
    }
    Ok((path, RequestMatch { method, headers: headers(&one.headers, patterns)?, query }))
}

fn headers(wanted: &[NamedValue], patterns: &mut Patterns) -> Result<Vec<(HeaderName, ValueMatch)>, DesiredCondition> {
    let mut headers: Vec<(HeaderName, ValueMatch)> = Vec::new();
    for header in wanted {
        let name = HeaderName::try_from(header.name.as_str());
        let name = name.map_err(|_| unsupported(format!("{:?} is not the name of a header", header.name)))?;
        if !headers.iter().any(|(known, _)| *known == name) {
            headers.push((name, value_match(header, patterns)?));
        }
    }
    Ok(headers)
}

fn value_match(wanted: &NamedValue, patterns: &mut Patterns) -> Result<ValueMatch, DesiredCondition> {
    match wanted.kind.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(ValueMatch::Exact(wanted.value.clone())),
        "RegularExpression" => patterns.compile(&wanted.value).map(ValueMatch::Pattern),
        other => Err(unsupported(format!("matches of type {other} are not supported"))),
    }
}

/// The path of a call is `/service/method`.
fn grpc_path(method: Option<&GrpcMethod>, patterns: &mut Patterns) -> Result<PathMatch, DesiredCondition> {
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (service, name) = method.map_or((None, None), |method| (some(&method.service), some(&method.method)));
    let kind = method.and_then(|method| method.kind.as_deref()).unwrap_or("Exact");
    let is_pattern = match kind {
        "Exact" => false,
        "RegularExpression" => true,
        other => return Err(unsupported(format!("methods of type {other} are not supported"))),
    };
    Ok(match (service, name, is_pattern) {
        (None, None, _) => PathMatch::prefix("/"),
        (Some(service), Some(method), false) => PathMatch::Exact(format!("/{service}/{method}")),
        (Some(service), None, false) => PathMatch::prefix(&format!("/{service}")),
        (None, Some(method), false) => PathMatch::Pattern(PathPattern(patterns.compile(&format!("/[^/]+/{method}"))?)),
        (service, method, true) => {
            let part = |part: Option<String>| part.map_or("[^/]+".to_string(), |part| format!("(?:{part})"));
            let text = format!("/{}/{}", part(service), part(method));
            PathMatch::Pattern(PathPattern(patterns.compile(&text)?))
        }
    })
}

fn settings(timeouts: &Timeouts) -> Result<RouteSettings, DesiredCondition> {
    let mut settings =
        RouteSettings { unresolved_status: StatusCode::INTERNAL_SERVER_ERROR, ..RouteSettings::default() };
    let parse = |text: &String| {
        let parsed = duration(text).ok_or_else(|| unsupported(format!("{text:?} is not a duration")))?;
        Ok::<_, DesiredCondition>(if parsed.is_zero() { NO_TIMEOUT } else { parsed })
    };
    if let Some(request) = timeouts.request.as_ref().map(parse).transpose()? {
        settings.request_timeout = Some(request);
        // The longer one would cut it off otherwise.
        settings.response_timeout = settings.response_timeout.max(request);
    }
    if let Some(backend) = timeouts.backend_request.as_ref().map(parse).transpose()? {
        settings.response_timeout = backend;
    }
    Ok(settings)
}

/// Up to four numbers with `h`, `m`, `s` or `ms`.
fn duration(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u32 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let end = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        total += match &unit[..end] {
            "h" => Duration::from_secs(3600) * number,
            "m" => Duration::from_secs(60) * number,
            "s" => Duration::from_secs(1) * number,
            "ms" => Duration::from_millis(1) * number,
            _ => return None,
        };
        rest = &unit[end..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::PatternBudget;

    #[test]
    fn durations_are_those_of_the_specification() {
        for (text, milliseconds) in [
            ("1h", Some(3_600_000)),
            ("1m30s", Some(90_000)),
            ("500ms", Some(500)),
            ("1h2m3s4ms", Some(3_723_004)),
            ("0s", Some(0)),
            ("", None),
            ("10", None),
            ("1d", None),
            ("-1s", None),
        ] {
            assert_eq!(duration(text).map(|found| found.as_millis()), milliseconds, "{text:?}");
        }
        let of = |request: Option<&str>, backend: Option<&str>| {
            let made =
                settings(&Timeouts { request: request.map(Into::into), backend_request: backend.map(Into::into) });
            made.map(|made| (made.request_timeout, made.response_timeout)).unwrap()
        };
        let seconds = Duration::from_secs;
        assert_eq!(of(None, None), (None, seconds(60)));
        assert_eq!(of(Some("2s"), Some("1s")), (Some(seconds(2)), seconds(1)));
        assert_eq!(of(Some("90s"), None), (Some(seconds(90)), seconds(90)));
        assert_eq!(of(Some("0s"), None), (Some(NO_TIMEOUT), NO_TIMEOUT));
    }

    #[test]
    fn a_call_is_a_path() {
        let check = |kind: &str, service: Option<&str>, method: Option<&str>, calls: &[&str], others: &[&str]| {
            let wanted = GrpcMethod {
                kind: Some(kind.into()),
                service: service.map(Into::into),
                method: method.map(Into::into),
            };
            let takes = |path: &str| match grpc_path(Some(&wanted), &mut Patterns::default()).unwrap() {
                PathMatch::Exact(exact) => exact == path,
                PathMatch::Prefix(prefix) => path.strip_prefix(&prefix).is_some_and(|rest| rest.starts_with('/')),
                PathMatch::Pattern(pattern) => pattern.0.takes(path, &PatternBudget::default()),
            };
            assert!(calls.iter().all(|call| takes(call)) && !others.iter().any(|other| takes(other)), "{wanted:?}");
        };
        check("Exact", Some("a.B"), Some("C"), &["/a.B/C"], &["/a.B/D", "/a.BB/C"]);
        check("Exact", Some("a.B"), None, &["/a.B/C", "/a.B/D"], &["/a.BB/C"]);
        check("Exact", None, Some("C"), &["/a.B/C", "/x/C"], &["/a.B/D", "/C"]);
        check("Exact", None, None, &["/a.B/C"], &[]);
        check("RegularExpression", Some("a.*"), Some("C|D"), &["/a.B/C", "/abc/D"], &["/b/C", "/a.B/CD"]);
    }
}
