//! One attempt of a probe: a command, an HTTP request, a connection, a gRPC health check.
//! Part of `probe_manager`.
//! Takes no longer than its timeout.

use std::time::Duration;

use api::printing::go_duration;
use cri::Runtime;
use env::Env;
use k8s_openapi::api::core::v1::{Container, Probe};

use crate::{
    pod::http_probe::{self, HttpError, HttpRequest, io_text, resolve_port},
    runtime::container_config::expansion::expand,
};

/// Output of a command that is shown in Events.
const OUTPUT_BYTES_MAX: usize = 10 * 1024;

/// What a probe that was made found, in its own words.
#[derive(Debug, PartialEq)]
pub enum Found {
    Success,
    /// Alive, though not as it should be.
    Warning(String),
    Failure(String),
}

/// Why a probe could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("{0}")]
    Port(#[from] HttpError),
    #[error("rpc error: {0}")]
    Exec(cri::Error),
    #[error("missing probe handler")]
    MissingHandler,
}

/// `Err` when the probe could not be made.
pub type Outcome = Result<Found, ProbeError>;

#[allow(clippy::too_many_arguments)]
pub async fn attempt(
    runtime: &dyn Runtime,
    probe: &Probe,
    container: &Container,
    container_id: &str,
    pod_ip: &str,
    timeout: Duration,
    env: &Env,
) -> Outcome {
    if let Some(exec) = &probe.exec {
        let command = exec.command.iter().flatten().map(|word| expand(word, |name| given(container, name)));
        return exec_command(runtime, container_id, command.collect(), timeout, env).await;
    }
    if let Some(get) = &probe.http_get {
        let request = HttpRequest::from_action(get, container, pod_ip, http_probe::PROBE_AGENT)?;
        let late = || {
            format!(
                "Get {:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                request.url()
            )
        };
        return Ok(match env.timeout(timeout, http_probe::send(&request)).await {
            None => Found::Failure(late()),
            Some(Ok((200..300, _))) => Found::Success,
            // It points to somebody else, who is not asked.
            Some(Ok((300..400, body))) => Found::Warning(format!("Probe terminated redirects, Response body: {body}")),
            Some(Ok((status, _))) => Found::Failure(format!("HTTP probe failed with statuscode: {status}")),
            Some(Err(error)) => Found::Failure(error.to_string()),
        });
    }
    if let Some(tcp) = &probe.tcp_socket {
        let host = tcp.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| pod_ip.into());
        let port = resolve_port(&tcp.port, container)?;
        let address = authority(&host, i32::from(port));
        return Ok(match env.timeout(timeout, tokio::net::TcpStream::connect(&address)).await {
            None => Found::Failure(format!("dial tcp {address}: i/o timeout")),
            Some(Ok(_)) => Found::Success,
            Some(Err(error)) => Found::Failure(format!("dial tcp {address}: connect: {}", io_text(&error))),
        });
    }
    if let Some(grpc) = &probe.grpc {
        let service = grpc.service.clone().unwrap_or_default();
        return Ok(match env.timeout(timeout, health_check(pod_ip, grpc.port, &service)).await {
            None => Found::Failure(format!(
                "timeout: failed to connect service {:?} within {}: context deadline exceeded",
                authority(pod_ip, grpc.port),
                go_duration(timeout)
            )),
            Some(Ok(())) => Found::Success,
            Some(Err(error)) => Found::Failure(error.to_string()),
        });
    }
    Err(ProbeError::MissingHandler)
}

/// Variables as the specification spells them: what they are taken from elsewhere is not known here.
fn given(container: &Container, name: &str) -> Option<String> {
    let mut named = container.env.iter().flatten().filter(|variable| variable.name == name);
    named.next_back().map(|variable| variable.value.clone().unwrap_or_default())
}

async fn exec_command(
    runtime: &dyn Runtime,
    container_id: &str,
    command: Vec<String>,
    timeout: Duration,
    env: &Env,
) -> Outcome {
    let shown = format!("{command:?}");
    let seconds = timeout.as_secs() as i64;
    let late = || Ok(Found::Failure(format!("command timed out: {shown} timed out after {seconds}s")));
    // The runtime enforces the timeout; the slack covers a runtime that answers late.
    match env.timeout(timeout + Duration::from_secs(2), runtime.exec_sync(container_id, command.clone(), seconds)).await
    {
        None | Some(Err(cri::Error::DeadlineExceeded(_))) => late(),
        Some(Ok(result)) => {
            let mut output = [result.stdout, result.stderr].concat();
            output.truncate(OUTPUT_BYTES_MAX);
            let text = String::from_utf8_lossy(&output).into_owned();
            Ok(if result.exit_code == 0 { Found::Success } else { Found::Failure(text) })
        }
        Some(Err(error)) => Err(ProbeError::Exec(error)),
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    /// 1 is SERVING.
    #[prost(int32, tag = "1")]
    status: i32,
}

fn authority(host: &str, port: i32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Why a service is not healthy, as grpc_health_probe says it.
#[derive(Debug, thiserror::Error)]
enum HealthCheckError {
    #[error("{0}")]
    Transport(tonic::transport::Error),
    #[error("timeout: failed to connect service {authority:?}: connection refused")]
    Connect { authority: String },
    #[error("service unhealthy (responded with {0:?})")]
    Unhealthy(&'static str),
    #[error("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {0}")]
    Unimplemented(String),
    #[error("error: health rpc probe failed: {0}")]
    Rpc(Box<tonic::Status>),
}

async fn health_check(host: &str, port: i32, service: &str) -> Result<(), HealthCheckError> {
    let authority = authority(host, port);
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{authority}"))
        .and_then(|endpoint| endpoint.user_agent("kube-probe/1.35"))
        .map_err(HealthCheckError::Transport)?;
    let channel = endpoint.connect().await.map_err(|_| HealthCheckError::Connect { authority: authority.clone() })?;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(HealthCheckError::Transport)?;
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec: tonic_prost::ProstCodec<HealthCheckRequest, HealthCheckResponse> = tonic_prost::ProstCodec::default();
    let request = tonic::Request::new(HealthCheckRequest { service: service.into() });
    match grpc.unary(request, path, codec).await {
        Ok(answer) if answer.get_ref().status == 1 => Ok(()),
        Ok(answer) => Err(HealthCheckError::Unhealthy(status_name(answer.get_ref().status))),
        Err(status) if status.code() == tonic::Code::Unimplemented => {
            Err(HealthCheckError::Unimplemented(status.message().into()))
        }
        Err(status) => Err(HealthCheckError::Rpc(Box::new(status))),
    }
}

fn status_name(status: i32) -> &'static str {
    match status {
        1 => "SERVING",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, StreamBody};
    use hyper::body::{Frame, Incoming};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    /// A gRPC server that answers every call with one message and one code.
    async fn serve(message: &'static [u8], code: &'static str) -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        env::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = hyper::service::service_fn(move |request: http::Request<Incoming>| async move {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let _ = request.into_body().collect().await;
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", http::HeaderValue::from_static(code));
                    let data = Frame::data(Bytes::from_static(message));
                    let frames = [Ok::<_, std::convert::Infallible>(data), Ok(Frame::trailers(trailers))];
                    let body = StreamBody::new(futures::stream::iter(frames));
                    let response = http::Response::builder().header("content-type", "application/grpc");
                    response.body(body)
                });
                let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                env::spawn(served.serve_connection(TokioIo::new(stream), service));
            }
        });
        port
    }

    #[tokio::test]
    async fn grpc_servers_say_how_they_are() {
        // A message is its length in five bytes, then the field `status`.
        for (message, code, expected) in [
            (&b"\0\0\0\0\x02\x08\x01"[..], "0", Ok(())),
            (b"\0\0\0\0\x02\x08\x02", "0", Err("NOT_SERVING")),
            (b"", "12", Err("does not implement the grpc health protocol")),
            (b"", "14", Err("health rpc probe failed")),
        ] {
            let port = serve(message, code).await;
            let found = health_check("127.0.0.1", i32::from(port), "").await;
            match (found, expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let refused = health_check("127.0.0.1", i32::from(free), "").await.unwrap_err().to_string();
        assert!(refused.contains("connection refused"), "{refused}");
    }
}
