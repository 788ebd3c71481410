//! Static pods from a URL, asked every 20 s unless configured otherwise.
//! Invariant: a failed request changes nothing: what was there last stays.

use std::{sync::Arc, time::Duration};

use env::Env;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use super::{Origin, Source, StaticPods, parse};
use crate::{
    config::Config,
    http_probe::{self, HttpRequest},
};

const MAX_MANIFEST: usize = 10 << 20;
const LIMIT: Duration = Duration::from_secs(10);

pub async fn follow(url: String, config: Arc<Config>, env: Env, sender: mpsc::UnboundedSender<StaticPods>) {
    let Some(mut request) = request(&url) else {
        tracing::error!(url, "the manifest URL is not one");
        return;
    };
    request.headers = config.manifest_url_headers.clone();
    loop {
        match env.timeout(LIMIT, http_probe::send(&request)).await {
            Some(Ok((200, body))) => match read(&url, &body, &config.node_name, &env.now().to_string()) {
                Ok(pods) => {
                    if sender.send(StaticPods { source: Source::Http, pods }).is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(url, error, "can't process the manifest"),
            },
            Some(Ok((status, _))) => tracing::warn!(url, status, "the manifest URL answered with an error"),
            Some(Err(error)) => tracing::warn!(url, error, "failed to read the manifest URL"),
            None => tracing::warn!(url, "the manifest URL does not answer"),
        }
        env.sleep(config.manifest_url_interval).await;
    }
}

fn read(url: &str, body: &str, node_name: &str, seen: &str) -> Result<Vec<Arc<Pod>>, String> {
    let pods = parse(body, &Origin { source: Source::Http, place: url, node_name, seen })?;
    Ok(pods.into_iter().map(Arc::new).collect())
}

fn request(url: &str) -> Option<HttpRequest> {
    let uri: http::Uri = url.parse().ok()?;
    let tls = uri.scheme_str() == Some("https");
    Some(HttpRequest {
        tls,
        host: uri.host()?.trim_matches(['[', ']']).to_string(),
        port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
        path: uri.path_and_query().map_or("/".into(), ToString::to_string),
        headers: vec![],
        agent: "kubelet/1.35",
        max_body: MAX_MANIFEST,
    })
}
