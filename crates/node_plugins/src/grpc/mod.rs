//! gRPC over sockets on this machine: `PluginChannel` calls, `service` answers.
//! Used by everything that speaks with a plugin.
//! No call waits for ever; a plugin that restarts is reached again without any action here.

mod authority;
pub mod service;
mod socket;
mod watched;

use std::{path::PathBuf, time::Duration};

use env::Env;
use hyper_util::rt::TokioIo;
use tonic::{
    Code, Streaming,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};

#[derive(Debug, Clone, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(.code))]
pub struct RpcError {
    pub code: Code,
    pub message: String,
}

/// As Go writes it, in messages and metrics.
pub fn code_name(code: &Code) -> String {
    match code {
        Code::Ok => "OK".into(),
        Code::Cancelled => "Canceled".into(),
        other => format!("{other:?}"),
    }
}

impl RpcError {
    /// Whether the plugin is done with the call: it said no. Otherwise it may still do what was asked.
    pub fn is_final(&self) -> bool {
        !matches!(
            self.code,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        )
    }
}

impl From<tonic::Status> for RpcError {
    fn from(status: tonic::Status) -> Self {
        Self { code: status.code(), message: status.message().into() }
    }
}

fn socket_path(endpoint: &str) -> &str {
    endpoint.strip_prefix("unix://").unwrap_or(endpoint)
}

#[derive(Clone)]
pub struct PluginChannel {
    name: String,
    channel: Channel,
    env: Env,
}

impl PluginChannel {
    /// `endpoint` is the path of a socket. No connection is made until the first call.
    pub fn new(name: &str, endpoint: &str, env: Env) -> Result<Self, RpcError> {
        let path = PathBuf::from(socket_path(endpoint));
        if !path.is_absolute() {
            let message = format!("{endpoint:?} is not the path of a socket");
            return Err(RpcError { code: Code::InvalidArgument, message });
        }
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { socket::connect(&path).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Ok(Self { name: name.into(), channel, env })
    }

    pub async fn call<Q, R>(&self, path: &'static str, request: Q, timeout: Duration) -> Result<R, RpcError>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let answer = async {
            let mut grpc = self.ready().await?;
            let codec: tonic_prost::ProstCodec<Q, R> = tonic_prost::ProstCodec::default();
            let answer = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
            Ok(answer?.into_inner())
        };
        self.within(timeout, answer).await
    }

    /// The answers to one request, for as long as the plugin gives some. Only the beginning has a deadline.
    pub async fn stream<Q, R>(
        &self,
        path: &'static str,
        request: Q,
        timeout: Duration,
    ) -> Result<Streaming<R>, RpcError>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let answer = async {
            let mut grpc = self.ready().await?;
            let codec: tonic_prost::ProstCodec<Q, R> = tonic_prost::ProstCodec::default();
            let request = tonic::Request::new(request);
            Ok(grpc.server_streaming(request, PathAndQuery::from_static(path), codec).await?.into_inner())
        };
        self.within(timeout, answer).await
    }

    async fn ready(&self) -> Result<tonic::client::Grpc<Channel>, RpcError> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            RpcError { code: Code::Unavailable, message: why }
        })?;
        Ok(grpc)
    }

    async fn within<T>(
        &self,
        timeout: Duration,
        answer: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        self.env.timeout(timeout, answer).await.unwrap_or_else(|| {
            let message = format!("{} did not answer within {} s", self.name, timeout.as_secs());
            Err(RpcError { code: Code::DeadlineExceeded, message })
        })
    }
}
