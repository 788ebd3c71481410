//! The kubeconfig files of the cluster: written and renewed by the control plane (`keep_renewed`), read anew by the components
//! that use one (`follow`).
//! Used by `server` on one side, `commands` and `access` on the other.
//! Neither a renewal nor a new file needs a restart.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use client::{HttpsConfig, Identity};
use env::Env;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::pki::{Leaf, Pki, RECHECK_INTERVAL, until_renewal, write_private},
    cluster::{file_modes, instance::Instance},
    control_plane::server::MASTERS,
    network::ingress,
};

/// As often as upstream's clients look whether the files that a kubeconfig names have changed.
const REREAD_INTERVAL: Duration = Duration::from_secs(60);

/// Where credentials for an API server are read from.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// None: those of the pod that we run in.
    pub kubeconfig: Option<PathBuf>,
    /// In place of the server's address there.
    pub master: Option<String>,
}

impl Source {
    pub fn read(&self, user_agent: &str) -> Result<HttpsConfig> {
        let mut connection = match (&self.kubeconfig, &self.master) {
            (Some(kubeconfig), _) => client::from_kubeconfig(kubeconfig, user_agent)?,
            (None, None) => client::in_cluster(user_agent)?,
            (None, Some(_)) => {
                HttpsConfig { user_agent: user_agent.into(), system_roots: true, ..HttpsConfig::default() }
            }
        };
        if let Some(master) = &self.master {
            connection.server = match master.contains("://") {
                true => master.clone(),
                false => format!("http://{master}"),
            };
        }
        Ok(connection)
    }

    fn directory(&self) -> &Path {
        let parent = self.kubeconfig.as_deref().map(|path| path.parent().unwrap_or(Path::new("")));
        match parent {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => Path::new(client::POD_CREDENTIALS),
        }
    }
}

/// The admin's file, and one for each component that can run apart.
fn files(instance: &Instance) -> Vec<(PathBuf, Leaf)> {
    let directory = instance.data.join("kubeconfig");
    let component = |name: &str, user: &str| (directory.join(name), Leaf::client(name, user, None));
    vec![
        (instance.admin_kubeconfig(), Leaf::client("admin", "kubernetes-admin", Some(MASTERS))),
        component("controller-manager", "system:kube-controller-manager"),
        component("scheduler", "system:kube-scheduler"),
        component("proxy", "system:kube-proxy"),
        component("ingress", ingress::USER),
    ]
}

/// Writes them, and again with new certificates at two thirds of the life of the old ones.
pub fn keep_renewed(
    instance: &Instance,
    pki: &Arc<Pki>,
    server: &str,
    env: &Env,
    shutdown: &CancellationToken,
) -> Result<()> {
    file_modes::private_directory(&instance.data.join("kubeconfig"))?;
    let files = files(instance);
    let mut wait = write(&files, pki, server, env)?;
    let (pki, server, env, shutdown) = (pki.clone(), server.to_string(), env.clone(), shutdown.clone());
    env.clone().spawn(async move {
        while shutdown.run_until_cancelled(env.sleep(wait.min(RECHECK_INTERVAL))).await.is_some() {
            wait = write(&files, &pki, &server, &env).unwrap_or_else(|error| {
                tracing::error!(error = format!("{error:#}"), "failed to renew a kubeconfig; will try again");
                REREAD_INTERVAL
            });
        }
    });
    Ok(())
}

/// Writes those that are there again, with the certificates that there are now. Returns how many.
pub fn rewrite(instance: &Instance, pki: &Pki, env: &Env) -> Result<usize> {
    let present: Vec<_> = files(instance).into_iter().filter(|(path, _)| path.exists()).collect();
    for file in &present {
        let server = client::from_kubeconfig(&file.0, "")?.server;
        write(std::slice::from_ref(file), pki, &server, env)?;
    }
    Ok(present.len())
}

/// Returns when the first of them is to be renewed.
fn write(files: &[(PathBuf, Leaf)], pki: &Pki, server: &str, env: &Env) -> Result<Duration> {
    let mut wait = Duration::MAX;
    for (path, leaf) in files {
        let pem = pki.leaf(leaf)?;
        let text = client::kubeconfig_yaml(server, pki.ca_pem(), &leaf.common_name, &pem.certificate, &pem.key);
        if fs::read_to_string(path).ok().as_deref() != Some(&text) {
            write_private(path, &text)?;
        }
        let chain = client::certificates(pem.certificate.as_bytes()).map_err(anyhow::Error::msg)?;
        wait = wait.min(chain.first().map_or(Duration::ZERO, |der| until_renewal(env, der)));
    }
    Ok(wait)
}

/// Reads the credentials of a kubeconfig anew whenever its directory changes, and now and then for the sake of other
/// files that it names. Runs until shutdown.
/// A program that gives credentials is run when they are needed, and a server's bare address has none.
pub fn follow(source: &Source, identity: &Identity, env: &Env, shutdown: &CancellationToken) {
    if identity.exec.is_some() || (identity.certificate.is_none() && identity.bearer_token.is_none()) {
        return;
    }
    let (source, identity, env, shutdown) = (source.clone(), identity.clone(), env.clone(), shutdown.clone());
    env.clone().spawn(async move {
        let reading = async {
            if let Err(error) = follow_changes(&source, &identity, &env).await {
                tracing::error!(error = format!("{error:#}"), ?source, "a kubeconfig is not followed");
            }
        };
        shutdown.run_until_cancelled(reading).await;
    });
}

async fn follow_changes(source: &Source, identity: &Identity, env: &Env) -> Result<()> {
    let inotify = Inotify::init()?;
    inotify.watches().add(source.directory(), WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO)?;
    let mut changes = inotify.into_event_stream(vec![0; 4096])?;
    loop {
        let source = source.clone();
        match env::spawn_blocking(move || source.read("")).await? {
            Ok(read) => take_over(identity, &read.identity),
            // Half of a file, perhaps; what we have still counts.
            Err(error) => tracing::warn!(%error, "a kubeconfig can't be used; the credentials from before are kept"),
        }
        tokio::select! {
            _ = changes.next() => {}
            () = env.sleep(REREAD_INTERVAL) => {}
        }
    }
}

/// Credentials that are the same stay the same objects: connections are made anew for others only.
fn take_over(ours: &Identity, read: &Identity) {
    if let (Some(ours), Some(read)) = (&ours.certificate, &read.certificate) {
        let read = read.read().clone();
        if ours.read().cert != read.cert {
            *ours.write() = read;
        }
    }
    if let (Some(ours), Some(read)) = (&ours.bearer_token, &read.bearer_token) {
        let read = read.read().clone();
        if *ours.read() != read {
            *ours.write() = read;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use parking_lot::{Mutex, RwLock};

    use super::*;
    use crate::certificates::pki::LEAF_LIFETIME;

    #[tokio::test(start_paused = true)]
    async fn kubeconfigs_are_renewed_while_the_cluster_runs() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(directory.path());
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let pki = Pki::open(&instance.pki(), env.clone()).unwrap();
        let shutdown = CancellationToken::new();
        keep_renewed(&instance, &pki, "https://127.0.0.1:6443", &env, &shutdown).unwrap();
        let paths: Vec<PathBuf> = files(&instance).into_iter().map(|(path, _)| path).collect();
        let texts = || paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<Vec<_>>();
        let first = texts();
        for path in &paths {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        }
        env.sleep(LEAF_LIFETIME / 2).await;
        assert_eq!(texts(), first, "good for a while");
        env.sleep(LEAF_LIFETIME / 4).await;
        for (path, (old, new)) in paths.iter().zip(first.iter().zip(texts())) {
            assert_ne!(*old, new, "{}", path.display());
            let identity = client::from_kubeconfig(path, "").unwrap().identity.certificate.unwrap();
            let left = until_renewal(&env, &identity.read().cert[0]);
            assert!(left > LEAF_LIFETIME / 4, "{}: {left:?}", path.display());
        }
        shutdown.cancel();
    }

    /// Tells of each request the user of the certificate that its connection was made with.
    async fn serve(pki: &Arc<Pki>, seen: Arc<Mutex<Vec<Vec<u8>>>>) -> String {
        let leaf = Leaf {
            name: "server".into(),
            common_name: "server".into(),
            addresses: vec![[127, 0, 0, 1].into()],
            server: true,
            ..Leaf::default()
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(Arc::new(apiserver::ProofOfKey::new(Vec::new(), provider)))
            .with_cert_resolver(Arc::new(pki.rotating(leaf).unwrap()));
        let tls = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        env::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let stream = tls.accept(stream).await.unwrap();
                let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
                let seen = seen.clone();
                let service = hyper::service::service_fn(move |_| {
                    seen.lock().push(shown.clone());
                    let body = http_body_util::Full::new(bytes::Bytes::from_static(b"{}"));
                    async { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
                env::spawn(async move {
                    let _: Result<(), _> =
                        builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await;
                });
            }
        });
        url
    }

    /// The server knows a connection by the certificate it began with, which ends some day.
    #[tokio::test]
    async fn requests_after_a_renewal_show_the_renewed_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Env::real()).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let certified = |name: &str| {
            let pem = pki.leaf(&Leaf::client(name, "system:kube-scheduler", None)).unwrap();
            Arc::new(client::certified_key(pem.certificate.as_bytes(), pem.key.as_bytes()).unwrap())
        };
        let (first, second) = (certified("one"), certified("two"));
        let current = Arc::new(RwLock::new(first.clone()));
        let identity = Identity { certificate: Some(current.clone()), ..Identity::default() };
        let ca = client::certificates(pki.ca_pem().as_bytes()).unwrap();
        let server = serve(&pki, seen.clone()).await;
        let config = HttpsConfig { server, ca, identity, user_agent: "test".into(), ..HttpsConfig::default() };
        let transport = client::HttpsTransport::new(config).unwrap();
        let ask = async || {
            let request = http::Request::get("/version").body(bytes::Bytes::new()).unwrap();
            client::Transport::send(&transport, request).await.unwrap();
        };
        ask().await;
        ask().await;
        *current.write() = second.clone();
        ask().await;
        let expected = [&first, &first, &second].map(|certificate| certificate.cert[0].to_vec());
        assert_eq!(*seen.lock(), expected);
    }

    #[tokio::test]
    async fn a_component_takes_the_certificate_of_a_renewed_kubeconfig() {
        let directory = tempfile::tempdir().unwrap();
        let (env, shutdown) = (Env::real(), CancellationToken::new());
        let pki = Pki::open(&directory.path().join("pki"), env.clone()).unwrap();
        let path = directory.path().join("scheduler");
        let put = |name: &str| {
            let pem = pki.leaf(&Leaf::client(name, "system:kube-scheduler", None)).unwrap();
            let text = client::kubeconfig_yaml("https://a:6443", pki.ca_pem(), "u", &pem.certificate, &pem.key);
            write_private(&path, &text).unwrap();
        };
        put("one");
        let identity = client::from_kubeconfig(&path, "").unwrap().identity;
        let certificate = identity.certificate.clone().unwrap();
        let first = certificate.read().clone();
        let source = Source { kubeconfig: Some(path.clone()), master: None };
        follow(&source, &identity, &env, &shutdown);
        let changed = async {
            // The task may not have begun to listen: a file that is written again tells it as well.
            loop {
                put("two");
                if !Arc::ptr_eq(&certificate.read(), &first) {
                    return;
                }
                env::sleep(Duration::from_millis(20)).await;
            }
        };
        env::timeout(Duration::from_secs(120), changed).await.expect("the renewed certificate");
        assert_ne!(certificate.read().cert, first.cert);
        shutdown.cancel();
    }
}
