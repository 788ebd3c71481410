//! Static pods from a directory: told by inotify, and looked at every 20 s or so for file systems that tell nothing.
//! An unreadable manifest hides only itself; one that was removed and put back ends its pod, however soon it was back.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use env::Env;
use futures::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, Inotify, WatchMask};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use super::{MANIFEST_BYTES_MAX, ManifestError, Origin, Source, StaticPods, parse};
use crate::{config::Config, files::safe_open};

/// Editors write in several steps: wait for the dust to settle.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);

pub async fn follow(path: PathBuf, config: Arc<Config>, env: Env, sender: mpsc::Sender<StaticPods>) {
    let mut changes = None;
    let mut removed = BTreeSet::new();
    loop {
        if changes.is_none() {
            changes = watch(&path);
        }
        // What was removed is told before what is there now, which may be the same.
        let lists = if removed.is_empty() { vec![removed] } else { vec![removed, BTreeSet::new()] };
        for without in lists {
            let (place, node_name, seen) = (path.clone(), config.node_name.clone(), env.now().to_string());
            let read = env::spawn_blocking(move || read(&place, &without, &node_name, &seen)).await;
            let Ok(pods) = read else { return };
            if sender.send(StaticPods { source: Source::File, pods }).await.is_err() {
                return;
            }
        }
        removed = BTreeSet::new();
        let next = async {
            match &mut changes {
                Some(stream) => stream.next().await,
                None => std::future::pending().await,
            }
        };
        match env.timeout(config.manifest_dir_interval, next).await {
            Some(Some(Ok(event))) => removed.extend(removed_file(event)),
            Some(_) => changes = None,
            None => {}
        }
        env.sleep(SETTLE_INTERVAL).await;
        while let Some(Some(Ok(event))) = changes.as_mut().and_then(|stream| stream.next().now_or_never()) {
            removed.extend(removed_file(event));
        }
    }
}

fn removed_file(event: EventOwned) -> Option<OsString> {
    event.name.filter(|_| event.mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM))
}

fn watch(path: &PathBuf) -> Option<inotify::EventStream<[u8; 1024]>> {
    let inotify = Inotify::init().ok()?;
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::DELETE | WatchMask::CREATE | WatchMask::ATTRIB;
    inotify.watches().add(path, mask).ok()?;
    inotify.into_event_stream([0; 1024]).ok()
}

fn read(path: &Path, without: &BTreeSet<OsString>, node_name: &str, seen: &str) -> Vec<Arc<Pod>> {
    let mut pods = Vec::new();
    let there = |file: &PathBuf| file.file_name().is_none_or(|name| !without.contains(name));
    for file in files(path).unwrap_or_default().into_iter().filter(there) {
        match read_file(&file, node_name, seen) {
            Ok(found) => pods.extend(found.into_iter().map(Arc::new)),
            Err(error) => tracing::warn!(file = %file.display(), %error, "can't process manifest file"),
        }
    }
    pods
}

/// The first manifest that can't be used, told before a node starts with it.
pub fn check(path: &Path) -> Result<(), ManifestError> {
    let files = files(path).map_err(|error| ManifestError::from(error).in_file(path))?;
    files.iter().try_for_each(|file| match read_file(file, "node", "") {
        Ok(_) => Ok(()),
        Err(error) => Err(error.in_file(file)),
    })
}

fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return std::fs::metadata(path).map(|_| vec![path.to_path_buf()]);
    }
    let hidden = |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let entries = std::fs::read_dir(path)?.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|file| file.is_file() && !hidden(file)).collect();
    files.sort();
    Ok(files)
}

fn read_file(file: &Path, node_name: &str, seen: &str) -> Result<Vec<Pod>, ManifestError> {
    let mut text = String::new();
    let length = safe_open::administrators_file(file)?.take(MANIFEST_BYTES_MAX + 1).read_to_string(&mut text)?;
    if length as u64 > MANIFEST_BYTES_MAX {
        return Err(ManifestError::TooLarge(MANIFEST_BYTES_MAX));
    }
    let place = file.to_string_lossy();
    parse(&text, &Origin { source: Source::File, place: &place, node_name, seen })
}
