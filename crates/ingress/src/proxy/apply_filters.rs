//! A route's filters at work on heads.
//! Called by `proxy` before a request goes to its backend and when the answer has come.
//! Pure (tidy: `pure_files`). A target that can't be written as it should is an error, never sent as it was.

use http::{HeaderMap, Uri, header::HOST, request::Parts, uri::PathAndQuery};

use super::Failure;
use crate::{destinations::Destination, filters::Filters, routes::Route};

pub fn to_request(filters: &Filters, route: &Route, head: &mut Parts) -> Result<(), Failure> {
    filters.request_headers.apply(&mut head.headers);
    let Some(rewrite) = &filters.rewrite else { return Ok(()) };
    if let Some(hostname) = &rewrite.hostname {
        head.headers.insert(HOST, hostname.clone());
    }
    if let Some(change) = &rewrite.path {
        let path = change.apply(head.uri.path(), &route.path);
        let target = match head.uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let target = PathAndQuery::try_from(target).map_err(|_| Failure::BadRewrite)?;
        head.uri = Uri::from(target);
    }
    Ok(())
}

/// `asked`: the request's headers, where they matter.
pub fn to_answer(
    filters: Option<&Filters>,
    destination: &Destination,
    asked: Option<&HeaderMap>,
    headers: &mut HeaderMap,
) {
    for filters in destination.filters.as_deref().into_iter().chain(filters) {
        filters.response_headers.apply(headers);
        if let (Some(cors), Some(asked)) = (&filters.cors, asked) {
            cors.answer(asked, headers);
        }
    }
}
