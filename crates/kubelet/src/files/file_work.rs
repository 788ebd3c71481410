//! Work on files that a pod can make slow: off the workers that everything else shares.
//! Used by `volume_manager` and `runtime_manager`.
//! A place whose file system hangs holds one thread, and nobody waits for it longer than `WORK_TIMEOUT`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use env::Env;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Work that takes longer is told of; it goes on.
const WORK_TIMEOUT: Duration = Duration::from_secs(30);

/// Work under way.
struct Busy {
    over: CancellationToken,
    /// Somebody has waited for it in vain.
    late: bool,
}

#[derive(Clone)]
pub struct FileWork {
    env: Env,
    timeout: Duration,
    /// By what is being worked on.
    busy: Arc<Mutex<HashMap<String, Busy>>>,
}

impl FileWork {
    pub fn new(env: Env) -> Self {
        Self { env, timeout: WORK_TIMEOUT, busy: Arc::default() }
    }

    /// Work on a thread that may hang. Work for the same `key` goes one after the other; behind work that hangs nobody
    /// waits, and no other thread joins it.
    pub async fn run<T: Send + 'static>(
        &self,
        key: String,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let turn = async {
            let done = self.take(&key).await?;
            let task = env::spawn_blocking(move || {
                let result = work();
                drop(done);
                result
            });
            task.await.unwrap_or_else(|error| Err(error.to_string()))
        };
        match self.env.timeout(self.timeout, turn).await {
            Some(result) => result,
            None => {
                if let Some(busy) = self.busy.lock().get_mut(&key) {
                    busy.late = true;
                }
                late()
            }
        }
    }

    async fn take(&self, key: &str) -> Result<Done, String> {
        loop {
            let before = {
                let mut all = self.busy.lock();
                match all.get(key) {
                    Some(busy) if busy.late => return late(),
                    Some(busy) => busy.over.clone(),
                    None => {
                        all.insert(key.into(), Busy { over: CancellationToken::new(), late: false });
                        return Ok(Done { busy: self.busy.clone(), key: key.into() });
                    }
                }
            };
            before.cancelled().await;
        }
    }
}

fn late<T>() -> Result<T, String> {
    Err("timed out waiting for the condition: its file system does not answer".into())
}

/// Work is over, also when it panics.
struct Done {
    busy: Arc<Mutex<HashMap<String, Busy>>>,
    key: String,
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(busy) = self.busy.lock().remove(&self.key) {
            busy.over.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_system_that_hangs_holds_one_thread_and_no_other_work() {
        let files = FileWork { timeout: Duration::from_millis(100), ..FileWork::new(Env::real()) };
        let (release, released) = std::sync::mpsc::channel::<()>();
        let wait = move || {
            let _ = released.recv();
            Ok(())
        };
        let is_late = |result: Result<(), String>| result.unwrap_err().contains("its file system does not answer");
        assert!(is_late(files.run("stuck".into(), wait).await));
        assert!(is_late(files.run("stuck".into(), || Ok(())).await));
        let patient = FileWork { timeout: WORK_TIMEOUT, ..files.clone() };
        assert_eq!(patient.run("other".into(), || Ok(())).await, Ok(()));
        drop(release);
        while !files.busy.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(patient.run("stuck".into(), || Ok(())).await, Ok(()));
    }

    #[tokio::test]
    async fn work_on_the_same_place_goes_one_after_the_other() {
        let files = FileWork::new(Env::real());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let wait = move || {
            let _ = released.recv();
            Ok(1)
        };
        let first = files.run("place".into(), wait);
        let second = async {
            while files.busy.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            let second = files.run("place".into(), || Ok(2));
            drop(release);
            second.await
        };
        assert_eq!(tokio::join!(first, second), (Ok(1), Ok(2)));
    }
}
