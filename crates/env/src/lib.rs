//! Time, chance and tasks as arguments: real in production, simulated in tests.
//! Used by every other crate; depends on none of them.
//! Invariant: nothing else in the workspace asks the system for the time or for a random number (clippy:
//! `disallowed_methods`).

mod backoff;
pub mod memory;
pub mod open_files;
mod runtime;
pub mod system_roots;

pub use backoff::Backoff;
pub use runtime::{instant_now, sleep, spawn, spawn_blocking, timeout};

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use tokio::task::AbortHandle;

/// The handle to the outside that components receive. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    world: Arc<World>,
    /// Only where this part of the world can crash on its own.
    tasks: Option<Arc<Mutex<Vec<AbortHandle>>>>,
}

struct World {
    wall: Wall,
    start: tokio::time::Instant,
    rng: Mutex<StdRng>,
}

enum Wall {
    System,
    /// Wall time is `base` plus what tokio's (pausable) clock has advanced plus how far it has jumped.
    Simulated {
        base: Timestamp,
        jumped_milliseconds: AtomicI64,
    },
}

impl Env {
    /// The real world.
    pub fn real() -> Self {
        Self::new(Wall::System, rand::make_rng())
    }

    /// A world that starts at `base` and draws all chance from `seed`. With tokio's time paused, sleeping is free.
    pub fn simulated(base: Timestamp, seed: u64) -> Self {
        Self::new(Wall::Simulated { base, jumped_milliseconds: AtomicI64::new(0) }, StdRng::seed_from_u64(seed))
    }

    fn new(wall: Wall, rng: StdRng) -> Self {
        let world = World { wall, start: instant_now(), rng: Mutex::new(rng) };
        Self { world: Arc::new(world), tasks: None }
    }

    /// A part of the same world that can `crash` on its own.
    pub fn part(&self) -> Self {
        Self { world: self.world.clone(), tasks: Some(Arc::default()) }
    }

    /// Ends every task of this part at once, wherever it is, as the death of its process would.
    pub fn crash(&self) {
        for task in self.tasks.iter().flat_map(|tasks| std::mem::take(&mut *lock(tasks))) {
            task.abort();
        }
    }

    /// Sets a simulated wall clock forward or back; durations and deadlines don't notice. The real one is not ours.
    pub fn jump(&self, by: SignedDuration) {
        if let Wall::Simulated { jumped_milliseconds, .. } = &self.world.wall {
            jumped_milliseconds.fetch_add(by.as_millis() as i64, Ordering::Relaxed);
        }
    }

    /// Wall-clock time, for timestamps that people and other machines read.
    #[allow(clippy::disallowed_methods)]
    pub fn now(&self) -> Timestamp {
        match &self.world.wall {
            Wall::System => Timestamp::now(),
            Wall::Simulated { base, jumped_milliseconds } => {
                let jumped = SignedDuration::from_millis(jumped_milliseconds.load(Ordering::Relaxed));
                *base + self.world.start.elapsed() + jumped
            }
        }
    }

    /// Time since this environment was made; never goes backward. For durations and deadlines.
    pub fn monotonic(&self) -> Duration {
        self.world.start.elapsed()
    }

    pub async fn sleep(&self, duration: Duration) {
        sleep(duration).await;
    }

    /// Sleeps until the next multiple of `period`: what can wait a moment goes on together, and shares what it costs.
    pub async fn next_beat(&self, period: Duration) {
        let into = self.monotonic().as_nanos() % period.as_nanos().max(1);
        self.sleep(period.saturating_sub(Duration::from_nanos(into as u64))).await;
    }

    /// `None` when `future` did not finish within `limit`.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        timeout(limit, future).await
    }

    pub fn spawn<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let task = spawn(future);
        if let Some(tasks) = &self.tasks {
            let mut tasks = lock(tasks);
            // Now and then, so that ended tasks don't pile up.
            if tasks.len() == tasks.capacity() {
                tasks.retain(|task| !task.is_finished());
            }
            tasks.push(task.abort_handle());
        }
        task
    }

    pub fn random_u64(&self) -> u64 {
        self.rng(|r| r.next_u64())
    }

    /// A number in `[0, 1)`, for jitter.
    pub fn random_fraction(&self) -> f64 {
        self.rng(|r| r.random::<f64>())
    }

    pub fn fill_random(&self, bytes: &mut [u8]) {
        self.rng(|r| r.fill_bytes(bytes));
    }

    /// A random (version 4) UUID in its usual text form.
    pub fn uuid(&self) -> String {
        let mut bytes = [0; 16];
        self.fill_random(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// `length` characters of Kubernetes' suffix alphabet (no vowels, no look-alikes).
    pub fn name_suffix(&self, length: usize) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        self.rng(|r| (0..length).map(|_| ALPHABET[r.random_range(0..ALPHABET.len())] as char).collect())
    }

    fn rng<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut lock(&self.world.rng))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("never poisoned: what is done under these locks does not panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn simulated_time_follows_sleep_and_seed_fixes_chance() {
        let base: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (a, b) = (Env::simulated(base, 7), Env::simulated(base, 7));
        a.sleep(Duration::from_secs(90)).await;
        assert_eq!(a.now(), base + Duration::from_secs(90));
        assert_eq!(a.uuid(), b.uuid());
        assert_eq!(a.name_suffix(5).len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_jump_and_parts_crash() {
        let base: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let env = Env::simulated(base, 7);
        let (doomed, other) = (env.part(), env.part());
        env.jump(SignedDuration::from_secs(-60));
        assert_eq!(doomed.now(), base - Duration::from_secs(60));
        assert_eq!(env.monotonic(), Duration::ZERO);
        let sleeper = |env: &Env| env.spawn(sleep(Duration::from_secs(1)));
        let (dies, lives) = (sleeper(&doomed), sleeper(&other));
        doomed.crash();
        assert!(dies.await.unwrap_err().is_cancelled());
        lives.await.unwrap();
    }
}
