//! Static pods from a directory: told by inotify, and looked at every 20 s for file systems that tell nothing.
//! Invariant: an unreadable manifest hides only itself.

use std::{path::PathBuf, sync::Arc, time::Duration};

use env::Env;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use tokio::sync::mpsc;

use super::{Source, StaticPods, parse};

const INTERVAL: Duration = Duration::from_secs(20);
/// Editors write in several steps: wait for the dust to settle.
const SETTLE: Duration = Duration::from_millis(50);

pub async fn follow(path: PathBuf, node_name: String, env: Env, sender: mpsc::UnboundedSender<StaticPods>) {
    let mut changes = None;
    loop {
        if changes.is_none() {
            changes = watch(&path);
        }
        let pods = read(&path, &node_name, &env.now().to_string());
        if sender.send(StaticPods { source: Source::File, pods }).is_err() {
            return;
        }
        let next = async {
            match &mut changes {
                Some(stream) => stream.next().await.is_some(),
                None => std::future::pending().await,
            }
        };
        if let Some(false) = env.timeout(INTERVAL, next).await {
            changes = None;
        }
        env.sleep(SETTLE).await;
    }
}

fn watch(path: &PathBuf) -> Option<inotify::EventStream<[u8; 1024]>> {
    let inotify = Inotify::init().ok()?;
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::DELETE | WatchMask::CREATE | WatchMask::ATTRIB;
    inotify.watches().add(path, mask).ok()?;
    inotify.into_event_stream([0; 1024]).ok()
}

fn read(path: &PathBuf, node_name: &str, seen: &str) -> Vec<Arc<k8s_openapi::api::core::v1::Pod>> {
    let mut files: Vec<PathBuf> = if path.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        entries
            .filter(|file| file.is_file())
            .filter(|file| !file.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')))
            .collect()
    } else {
        vec![path.clone()]
    };
    files.sort();
    let mut pods = Vec::new();
    for file in files {
        let parsed = std::fs::read_to_string(&file)
            .map_err(|error| error.to_string())
            .and_then(|text| parse(&text, Source::File, node_name, seen));
        match parsed {
            Ok(found) => pods.extend(found.into_iter().map(Arc::new)),
            Err(error) => tracing::warn!(file = %file.display(), error, "can't process manifest file"),
        }
    }
    pods
}
