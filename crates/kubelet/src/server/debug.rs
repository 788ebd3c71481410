//! `/debug/`: changes how much is logged, and shows the command line of the node's process.
//! Part of `server`.
//! There are no profiles: a profile that is asked for by name is not found.

use api::ApiError;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};

use super::{Body, BoxError, text};
use crate::config::Config;

/// A number is all that is sent.
const BODY_BYTES_MAX: usize = 1024;

pub async fn answer<B>(config: &Config, request: Request<B>, path: &[&str]) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let disabled = |message: &str| Err(ApiError::new(api::Reason::MethodNotAllowed, message));
    match path {
        ["pprof", ..] if !config.debugging_handlers => disabled("Debug endpoints are disabled."),
        ["pprof", ..] if !config.profiling_handler => disabled("profiling endpoint is disabled."),
        ["pprof"] => Ok(text("cmdline\n".into())),
        ["pprof", "cmdline"] => {
            let arguments: Vec<_> =
                std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
            Ok(text(arguments.join("\0")))
        }
        ["pprof", _] => Err(ApiError::new(api::Reason::NotFound, "Unknown profile")),
        ["flags", "v"] if !config.debugging_handlers => not_found(),
        ["flags", "v"] if !config.debug_flags_handler => disabled("flags endpoint is disabled."),
        ["flags", "v"] if request.method() != Method::PUT => {
            Ok(plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method"))
        }
        ["flags", "v"] => {
            let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
            Ok(match body {
                Ok(body) => set_verbosity(config, &String::from_utf8_lossy(&body.to_bytes())),
                Err(error) => plain(StatusCode::BAD_REQUEST, &format!("error reading request body: {error}")),
            })
        }
        _ => not_found(),
    }
}

fn not_found() -> Result<Response<Body>, ApiError> {
    Err(ApiError::new(api::Reason::NotFound, "404 page not found"))
}

fn set_verbosity(config: &Config, wanted: &str) -> Response<Body> {
    let failed =
        |why: String| plain(StatusCode::BAD_REQUEST, &format!("failed to set klog.logging.verbosity {wanted}: {why}"));
    let Ok(level) = wanted.parse::<u8>() else {
        return failed(format!("strconv.ParseInt: parsing {wanted:?}: invalid syntax"));
    };
    match config.set_log_verbosity.map(|set| set(level)) {
        Some(Ok(())) => plain(StatusCode::OK, &format!("successfully set klog.logging.verbosity to {wanted}")),
        Some(Err(error)) => failed(error.to_string()),
        None => failed("the log can't be changed".into()),
    }
}

fn plain(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = text(format!("{message}\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    async fn check(config: &Config, method: Method, path: &str, body: &str, expected: (u16, &str)) {
        let request = Request::builder().method(&method).body(Full::new(Bytes::from(body.to_string()))).unwrap();
        let segments: Vec<&str> = path.split('/').collect();
        let found = match answer(config, request, &segments).await {
            Ok(response) => {
                let status = response.status().as_u16();
                let body = response.into_body().collect().await.unwrap().to_bytes();
                (status, String::from_utf8_lossy(&body).into_owned())
            }
            Err(error) => (error.code, error.message.clone()),
        };
        assert_eq!((found.0, found.1.trim_end()), expected, "{method} {path} {body}");
    }

    #[tokio::test]
    async fn how_much_is_logged_can_be_changed() {
        let refuse: crate::config::SetLogVerbosity = |level| match level {
            9 => Err(std::io::Error::other("closed")),
            _ => Ok(()),
        };
        let config = Config { set_log_verbosity: Some(refuse), ..Config::default() };
        let put = async |body, expected| check(&config, Method::PUT, "flags/v", body, expected).await;
        put("4", (200, "successfully set klog.logging.verbosity to 4")).await;
        put("9", (400, "failed to set klog.logging.verbosity 9: closed")).await;
        let much = "failed to set klog.logging.verbosity much: strconv.ParseInt: parsing \"much\": invalid syntax";
        put("much", (400, much)).await;
        check(&config, Method::GET, "flags/v", "", (406, "unsupported http method")).await;
        check(&config, Method::PUT, "flags/w", "4", (404, "404 page not found")).await;
        let off = Config { debug_flags_handler: false, ..config };
        check(&off, Method::PUT, "flags/v", "4", (405, "flags endpoint is disabled.")).await;
    }

    #[tokio::test]
    async fn the_process_is_shown_unless_that_is_turned_off() {
        let config = Config::default();
        check(&config, Method::GET, "pprof", "", (200, "cmdline")).await;
        check(&config, Method::GET, "pprof/heap", "", (404, "Unknown profile")).await;
        let off = Config { profiling_handler: false, ..config.clone() };
        check(&off, Method::GET, "pprof/cmdline", "", (405, "profiling endpoint is disabled.")).await;
        let off = Config { debugging_handlers: false, ..config };
        check(&off, Method::GET, "pprof/cmdline", "", (405, "Debug endpoints are disabled.")).await;
    }
}
