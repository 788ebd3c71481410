//! Static pods that somebody on this machine has submitted over HTTP.
//! Fed by `server::manifest_server`; kept as files below the node's directory, so that a restart of the kubelet ends none.
//! A manifest is parsed before it is kept: what can't become a pod changes nothing.

use std::{
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use env::Env;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{ManifestError, Origin, Source, StaticPods, parse};
use crate::config::Config;

const DIRECTORY: &str = "submitted-manifests";
const MANIFESTS_MAX: usize = 256;
/// Of one manifest; as the API server takes of one object.
pub const SUBMITTED_BYTES_MAX: usize = 3 << 20;

#[derive(Debug, thiserror::Error)]
pub enum SubmissionError {
    #[error("{0:?} is no name of a manifest: lower case letters, digits, '-' and '.' are, at most 253 of them")]
    Name(String),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("there are {MANIFESTS_MAX} manifests already")]
    Full,
    #[error("failed to keep the manifest: {0}")]
    Keep(#[from] io::Error),
}

/// Locked while a file is written and the list is told, so that the last to change it is the last to tell.
struct State {
    sender: mpsc::Sender<StaticPods>,
}

pub struct Submissions {
    directory: PathBuf,
    config: Arc<Config>,
    env: Env,
    state: Mutex<State>,
}

impl Submissions {
    pub fn new(config: Arc<Config>, env: Env, sender: mpsc::Sender<StaticPods>) -> Arc<Self> {
        let directory = config.root_dir.join(DIRECTORY);
        Arc::new(Self { directory, config, env, state: Mutex::new(State { sender }) })
    }

    /// Tells of those that an earlier run was given.
    pub fn start(&self) -> io::Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        self.tell(&self.state.lock());
        Ok(())
    }

    /// Names, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_name(name)).collect();
        names.sort();
        names
    }

    pub fn get(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.place(name).ok()?).ok()
    }

    /// Keeps a manifest under a name, in place of what was there, and says which pods it has.
    pub fn put(&self, name: &str, text: &str) -> Result<Vec<Pod>, SubmissionError> {
        let place = self.place(name)?;
        let pods = self.read(name, text)?;
        let state = self.state.lock();
        if !place.exists() && self.names().len() >= MANIFESTS_MAX {
            return Err(SubmissionError::Full);
        }
        replace(&place, text)?;
        self.tell(&state);
        Ok(pods)
    }

    /// Whether there was one.
    pub fn remove(&self, name: &str) -> Result<bool, SubmissionError> {
        let place = self.place(name)?;
        let state = self.state.lock();
        match std::fs::remove_file(place) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.tell(&state);
        Ok(true)
    }

    fn place(&self, name: &str) -> Result<PathBuf, SubmissionError> {
        match is_name(name) {
            true => Ok(self.directory.join(name)),
            false => Err(SubmissionError::Name(name.into())),
        }
    }

    fn read(&self, name: &str, text: &str) -> Result<Vec<Pod>, ManifestError> {
        let seen = self.env.now().to_string();
        let origin = Origin { source: Source::Submission, place: name, node_name: &self.config.node_name, seen: &seen };
        parse(text, &origin)
    }

    fn tell(&self, state: &State) {
        let mut pods = Vec::new();
        for name in self.names() {
            let text = std::fs::read_to_string(self.directory.join(&name)).map_err(ManifestError::from);
            match text.and_then(|text| self.read(&name, &text)) {
                Ok(found) => pods.extend(found.into_iter().map(Arc::new)),
                Err(error) => tracing::warn!(name, %error, "can't process a submitted manifest"),
            }
        }
        // Called on a thread of its own; an end of the sync loop is an end of the node.
        let _ = state.sender.blocking_send(StaticPods { source: Source::Submission, pods });
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= 253 && !name.starts_with('.') && name.bytes().all(allowed)
}

/// A reader sees the old text or the new one.
fn replace(place: &Path, text: &str) -> io::Result<()> {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let temporary = place.with_file_name(format!(".{name}.new"));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::pod_spec;

    fn manifest(name: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: i}}]}}}}"
        )
    }

    fn told(receiver: &mut mpsc::Receiver<StaticPods>) -> Vec<String> {
        let list = receiver.try_recv().expect("a list");
        assert_eq!(list.source, Source::Submission);
        list.pods.iter().map(|pod| pod_spec::name(pod).to_string()).collect()
    }

    #[test]
    fn manifests_are_kept_told_and_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { root_dir: dir.path().into(), node_name: "node".into(), ..Config::default() };
        let config = Arc::new(config);
        let (sender, mut receiver) = mpsc::channel(8);
        let open = || Submissions::new(config.clone(), Env::real(), sender.clone());
        let submissions = open();
        submissions.start().unwrap();
        assert!(told(&mut receiver).is_empty());
        let pods = submissions.put("web", &manifest("a")).unwrap();
        assert_eq!(pods[0].metadata.annotations.as_ref().unwrap()[pod_spec::CONFIG_SOURCE], "http");
        assert_eq!(told(&mut receiver), ["a-node"]);
        submissions.put("web", &manifest("b")).unwrap();
        assert_eq!(told(&mut receiver), ["b-node"], "replaced");
        for (name, text) in [("web", "kind: Service"), ("../web", &*manifest("c")), (".web", ""), ("W", ""), ("", "")] {
            assert!(submissions.put(name, text).is_err(), "{name} {text}");
        }
        assert_eq!(submissions.get("web").unwrap(), manifest("b"), "what was refused has changed nothing");
        assert!(receiver.try_recv().is_err());
        // Another run finds it.
        open().start().unwrap();
        assert_eq!((told(&mut receiver), submissions.names()), (vec!["b-node".to_string()], vec!["web".to_string()]));
        assert!(submissions.remove("web").unwrap() && !submissions.remove("web").unwrap());
        assert!(told(&mut receiver).is_empty() && submissions.get("web").is_none());
    }

    #[test]
    fn there_are_not_more_than_so_many() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { root_dir: dir.path().into(), node_name: "node".into(), ..Config::default() };
        let (sender, receiver) = mpsc::channel(1);
        let submissions = Submissions::new(Arc::new(config), Env::real(), sender);
        drop(receiver);
        submissions.start().unwrap();
        for number in 0..MANIFESTS_MAX {
            std::fs::write(submissions.directory.join(number.to_string()), "odd").unwrap();
        }
        assert!(matches!(submissions.put("one-more", &manifest("a")), Err(SubmissionError::Full)));
    }
}
