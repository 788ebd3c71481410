//! Work on files that a pod can make slow: off the workers that everything else shares.
//! Used by `volume_manager` and `runtime_manager`.
//! A place whose file system hangs holds one thread, and nobody waits for it longer than `WORK_TIMEOUT`; many such places
//! hold no more than a part of the threads that the whole process has for waiting.

use std::{collections::HashMap, sync::Arc, time::Duration};

use env::Env;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Work that takes longer is told of; it goes on.
const WORK_TIMEOUT: Duration = Duration::from_secs(30);
/// Half of the runtime's: pods that come and go, with volumes of servers that do not answer, leave the rest alone.
const THREADS_MAX: usize = 256;

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum FileWorkError {
    #[error("timed out waiting for the condition: its file system does not answer")]
    TimedOut,
    #[error("{0}")]
    Panicked(String),
}

/// For work whose failures are told as text.
impl From<FileWorkError> for String {
    fn from(error: FileWorkError) -> Self {
        error.to_string()
    }
}

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
    threads: Arc<Semaphore>,
    /// By what is being worked on.
    busy: Arc<Mutex<HashMap<String, Busy>>>,
}

impl FileWork {
    pub fn new(env: Env) -> Self {
        Self { env, timeout: WORK_TIMEOUT, threads: Arc::new(Semaphore::new(THREADS_MAX)), busy: Arc::default() }
    }

    /// Work on a thread that may hang. Work for the same `key` goes one after the other; behind work that hangs nobody
    /// waits, and no other thread joins it.
    pub async fn run<T: Send + 'static, E: From<FileWorkError> + Send + 'static>(
        &self,
        key: String,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let turn = async {
            let done = self.take(&key).await?;
            let thread = self.threads.clone().acquire_owned().await;
            let task = env::spawn_blocking(move || {
                let result = work();
                drop((done, thread));
                result
            });
            task.await.unwrap_or_else(|error| Err(FileWorkError::Panicked(error.to_string()).into()))
        };
        match self.env.timeout(self.timeout, turn).await {
            Some(result) => result,
            None => {
                if let Some(busy) = self.busy.lock().get_mut(&key) {
                    busy.late = true;
                }
                Err(FileWorkError::TimedOut.into())
            }
        }
    }

    async fn take(&self, key: &str) -> Result<Done, FileWorkError> {
        loop {
            let before = {
                let mut all = self.busy.lock();
                match all.get(key) {
                    Some(busy) if busy.late => return Err(FileWorkError::TimedOut),
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
        assert_eq!(files.run("stuck".into(), wait).await, Err(FileWorkError::TimedOut));
        assert_eq!(files.run("stuck".into(), || Ok(())).await, Err(FileWorkError::TimedOut));
        let patient = FileWork { timeout: WORK_TIMEOUT, ..files.clone() };
        assert_eq!(patient.run("other".into(), || Ok(())).await, Ok::<(), FileWorkError>(()));
        drop(release);
        while !files.busy.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(patient.run("stuck".into(), || Ok(())).await, Ok::<(), FileWorkError>(()));
    }

    /// A pod may go while its mount hangs, and another come: each leaves a thread behind.
    #[tokio::test]
    async fn servers_that_never_answer_do_not_take_all_threads() {
        let timeout = Duration::from_millis(1);
        let files = FileWork { timeout, threads: Arc::new(Semaphore::new(3)), ..FileWork::new(Env::real()) };
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        for pod in 0..3 {
            let released = released.clone();
            let hangs = move || {
                let _ = released.lock().recv();
                Ok(())
            };
            assert_eq!(files.run(format!("{pod}"), hangs).await, Err(FileWorkError::TimedOut));
        }
        let fourth = files.run("3".into(), || Ok(())).await;
        assert_eq!(fourth, Err::<(), _>(FileWorkError::TimedOut), "it gets no thread");
        drop(release);
        while !files.busy.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        let patient = FileWork { timeout: WORK_TIMEOUT, ..files.clone() };
        assert_eq!(patient.run("3".into(), || Ok(())).await, Ok::<(), FileWorkError>(()));
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
        assert_eq!(tokio::join!(first, second), (Ok::<i32, FileWorkError>(1), Ok::<i32, FileWorkError>(2)));
    }
}
