//! Where pods come from: the API server, a directory of manifests, a URL, and whoever on this machine submits some.
//! Each source sends what it has to `sync_loop`.
//! A source always tells the whole of what it has, so what it no longer tells is gone.

mod file;
mod manifest;
mod references;
pub mod submission;
mod url;

use std::{path::PathBuf, sync::Arc};

use env::Env;
pub use file::check;
use k8s_openapi::api::core::v1::Pod;
pub use manifest::{ManifestError, Origin, parse};
use tokio::sync::mpsc;

use crate::config::Config;

/// Lists of static pods that wait for the sync loop; a source that has another one waits.
pub const STATIC_POD_LISTS_MAX: usize = 4;

/// Of a file or an answer with manifests.
const MANIFEST_BYTES_MAX: u64 = 10 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    File,
    Http,
    /// Submitted over HTTP; told apart from a URL's only here.
    Submission,
}

impl Source {
    pub fn as_str(self) -> &'static str {
        match self {
            Source::File => "file",
            Source::Http | Source::Submission => "http",
        }
    }
}

/// Everything a static source has now.
pub struct StaticPods {
    pub source: Source,
    pub pods: Vec<Arc<Pod>>,
}

/// Follows a directory (or one file) of manifests.
pub fn follow_directory(path: PathBuf, config: Arc<Config>, env: Env, sender: mpsc::Sender<StaticPods>) {
    let task_env = env.clone();
    env.spawn(async move { file::follow(path, config, task_env, sender).await });
}

/// Follows a URL of manifests.
pub fn follow_url(url: String, config: Arc<Config>, env: Env, sender: mpsc::Sender<StaticPods>) {
    let task_env = env.clone();
    env.spawn(async move { url::follow(url, config, task_env, sender).await });
}
