//! How far the files of a volume are given to a pod's group, which may take long where there are many.
//! Counted by `file_system`, told to the pod by `volume_manager`.
//! Tells nothing of what is done soon.

use std::{
    convert::Infallible,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use env::Env;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How long it may take before the pod is told.
const FIRST_REPORT_DELAY: Duration = Duration::from_secs(30);
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct OwnershipProgress {
    files: AtomicU64,
    directory: Mutex<String>,
    began: Notify,
}

impl OwnershipProgress {
    pub fn begin(&self, directory: &Path) {
        *self.directory.lock() = directory.to_string_lossy().into_owned();
        self.began.notify_one();
    }

    pub fn count_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    /// Carries out work that may give files to a group, and tells of it while it takes long.
    pub async fn told_while<T>(&self, env: &Env, uid: &str, tell: impl Fn(String), work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            done = work => done,
            never = self.report(env, uid, tell) => match never {},
        }
    }

    async fn report(&self, env: &Env, uid: &str, tell: impl Fn(String)) -> Infallible {
        self.began.notified().await;
        env.sleep(FIRST_REPORT_DELAY).await;
        let directory = || shown(&self.directory.lock(), uid);
        tell(format!(
            "Setting volume ownership for {} is taking longer than expected, consider using OnRootMismatch - \
             https://kubernetes.io/docs/tasks/configure-pod-container/security-context/\
             #configure-volume-permission-and-ownership-change-policy-for-pods",
            directory()
        ));
        loop {
            env.sleep(REPORT_INTERVAL).await;
            let files = self.files.load(Ordering::Relaxed);
            tell(format!("Setting volume ownership for {}, processed {files} files.", directory()));
        }
    }
}

/// From the pod's UID on, if it is the pod's own directory.
fn shown(directory: &str, uid: &str) -> String {
    let start = directory.find(uid).filter(|_| !uid.is_empty()).unwrap_or(0);
    directory[start..].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_what_takes_long_is_told() {
        let check = async |seconds: Option<u64>, expected: &[&str]| {
            let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
            let (progress, told) = (OwnershipProgress::default(), Mutex::new(Vec::new()));
            let work = async {
                // Before that it waits for something else.
                env.sleep(Duration::from_secs(500)).await;
                if let Some(seconds) = seconds {
                    progress.begin(Path::new("/data/pods/u-1/volumes/kubernetes.io~csi/pv/mount"));
                    for _ in 0..seconds {
                        env.sleep(Duration::from_secs(1)).await;
                        progress.count_file();
                    }
                }
            };
            progress.told_while(&env, "u-1", |text| told.lock().push(text), work).await;
            let told = told.into_inner();
            assert_eq!(told.len(), expected.len(), "{seconds:?}: {told:?}");
            for (found, part) in told.iter().zip(expected) {
                assert!(found.contains(part), "{seconds:?}: {found}");
            }
        };
        let first = "for u-1/volumes/kubernetes.io~csi/pv/mount is taking longer than expected, consider using OnRoot";
        check(None, &[]).await;
        check(Some(29), &[]).await;
        check(Some(45), &[first]).await;
        check(Some(100), &[first, "for u-1/volumes/kubernetes.io~csi/pv/mount, processed "]).await;
    }
}
