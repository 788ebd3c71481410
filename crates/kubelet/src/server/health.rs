//! `/healthz` of the node's servers and what is below it: whether the server answers, the log is written and the sync loop
//! turns.
//! Part of `server`; how the checks went is at `/metrics/slis`.
//! Says which check failed, not why.

use api::ApiError;
use http::{Response, StatusCode};

use super::{Body, text};

const ENDPOINT: &str = "healthz";

/// A health check and whether it passes.
pub type Check = (&'static str, bool);

/// All checks, or the one that is named. `observe` is told of every one that was asked.
pub fn answer(
    checks: &[Check],
    named: &[&str],
    query: &[(String, String)],
    observe: impl Fn(&str, bool),
) -> Result<Response<Body>, ApiError> {
    let not_found = || ApiError::new(api::Reason::NotFound, "404 page not found");
    match named {
        [] => {
            let (passed, page) = report(checks, query, observe);
            Ok(page_of(passed, page))
        }
        [name] => {
            let (name, passed) = checks.iter().find(|(known, _)| known == name).ok_or_else(not_found)?;
            let page = if *passed { "ok".to_string() } else { format!("internal server error: {name} failed\n") };
            Ok(page_of(*passed, page))
        }
        _ => Err(not_found()),
    }
}

fn page_of(passed: bool, page: String) -> Response<Body> {
    let mut response = text(page);
    if !passed {
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    response
}

fn report(checks: &[Check], query: &[(String, String)], observe: impl Fn(&str, bool)) -> (bool, String) {
    let mut excluded: Vec<&str> = query.iter().filter(|(key, _)| key == "exclude").map(|(_, name)| &**name).collect();
    let (mut all_passed, mut page) = (true, String::new());
    for (name, passed) in checks {
        if excluded.contains(name) {
            page.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        observe(name, *passed);
        all_passed &= passed;
        page.push_str(&match passed {
            true => format!("[+]{name} ok\n"),
            false => format!("[-]{name} failed: reason withheld\n"),
        });
    }
    excluded.retain(|name| checks.iter().all(|(known, _)| known != name));
    excluded.sort_unstable();
    excluded.dedup();
    if !excluded.is_empty() {
        let unknown: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let unknown = unknown.join(",");
        page.push_str(&format!("warn: some health checks cannot be excluded: no matches for {unknown}\n"));
    }
    match (all_passed, query.iter().any(|(key, _)| key == "verbose")) {
        (false, _) => (false, format!("{page}{ENDPOINT} check failed\n")),
        (true, true) => (true, format!("{page}{ENDPOINT} check passed\n")),
        (true, false) => (true, "ok".into()),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn each_check_is_told_of() {
        let check = async |alive: bool, named: &[&str], query: &[(&str, &str)], code: u16, expected: &str| {
            let query: Vec<_> = query.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            let checks = [("ping", true), ("syncloop", alive)];
            let response = match answer(&checks, named, &query, |_, _| {}) {
                Ok(response) => response,
                Err(error) => return assert_eq!(error.code, code, "{named:?}"),
            };
            assert_eq!(response.status().as_u16(), code, "{named:?} {query:?}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(String::from_utf8_lossy(&body), expected, "{named:?} {query:?}");
        };
        check(true, &[], &[], 200, "ok").await;
        check(true, &[], &[("verbose", "")], 200, "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n").await;
        let failed = "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
        check(false, &[], &[], 500, failed).await;
        check(false, &["ping"], &[], 200, "ok").await;
        check(false, &["syncloop"], &[], 500, "internal server error: syncloop failed\n").await;
        check(true, &["etcd"], &[], 404, "").await;
        let excluded = "[+]ping ok\n[+]syncloop excluded: ok\nwarn: some health checks cannot be excluded: no matches for \
            \"x\"\nhealthz check passed\n";
        check(false, &[], &[("exclude", "syncloop"), ("exclude", "x"), ("verbose", "1")], 200, excluded).await;
    }
}
