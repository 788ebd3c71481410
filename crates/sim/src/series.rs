//! Plays many seeds, each in a process of its own, on all cores.
//! Called by `main` and by `tests/seeds.rs`; what one process does is in `runner`.
//! Ends, whatever a seed does: a process that takes too long is killed and counts as failed.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    path::Path,
    process::{Command, ExitStatus},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use env::Env;
use parking_lot::Mutex;

use crate::{Bootstrapped, Outcome};

/// Real time after which the process of a seed is given up.
const SEED_TIMEOUT: Duration = Duration::from_secs(900);
const SEED_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Real time between two lines about how far a series is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// Plays each seed by `program play SEED FILE`, as many at once as there are cores; in the order of the seeds.
pub fn play_all(program: &OsStr, seeds: &[u64]) -> io::Result<Vec<Outcome>> {
    let directory = std::env::temp_dir().join(format!("minke-sim-{}", Env::real().uuid()));
    std::fs::create_dir_all(&directory)?;
    Bootstrapped::make().write(&directory.join("bootstrapped.json"))?;
    let series = Series { program, directory: &directory, clock: Env::real(), told: Mutex::default() };
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..cores.min(seeds.len()) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = series.play(*seed);
                    let mut outcomes = outcomes.lock();
                    outcomes.push(outcome);
                    series.tell_progress(&outcomes, seeds.len());
                }
            });
        }
    });
    std::fs::remove_dir_all(&directory)?;
    let mut outcomes = outcomes.into_inner();
    outcomes.sort_by_key(|o| o.seed);
    Ok(outcomes)
}

struct Series<'a> {
    program: &'a OsStr,
    directory: &'a Path,
    clock: Env,
    /// When progress was last told.
    told: Mutex<Duration>,
}

impl Series<'_> {
    fn tell_progress(&self, outcomes: &[Outcome], seeds: usize) {
        let (now, mut told) = (self.clock.monotonic(), self.told.lock());
        if now - *told >= PROGRESS_INTERVAL {
            *told = now;
            let failed: Vec<_> = outcomes.iter().filter(|o| !o.holds).map(|o| o.seed).collect();
            eprintln!("{} of {seeds} seeds played in {} s, failed: {failed:?}", outcomes.len(), now.as_secs());
        }
    }

    fn play(&self, seed: u64) -> Outcome {
        let (path, bootstrapped) = (self.directory.join(seed.to_string()), self.directory.join("bootstrapped.json"));
        let ended = self.run(seed, &bootstrapped, &path);
        let mut text = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::remove_file(&path).ok();
        let holds = match ended {
            Ok(Some(status)) => {
                // Killed from outside it could not speak for itself.
                if status.code().is_none() {
                    text.push_str(&format!("seed {seed} ended by {status}\n"));
                }
                status.success()
            }
            Ok(None) => {
                text.push_str(&format!("seed {seed} did not end within {} s\n", SEED_TIMEOUT.as_secs()));
                false
            }
            Err(error) => {
                text.push_str(&format!("seed {seed} did not start: {error}\n"));
                false
            }
        };
        Outcome { seed, holds, text }
    }

    /// `None` when it took too long.
    fn run(&self, seed: u64, bootstrapped: &Path, output: &Path) -> io::Result<Option<ExitStatus>> {
        let output = File::create(output)?;
        let mut command = Command::new(self.program);
        command.arg("play").arg(seed.to_string()).arg(bootstrapped).stdout(output.try_clone()?).stderr(output);
        let (mut process, started) = (command.spawn()?, self.clock.monotonic());
        loop {
            if let Some(status) = process.try_wait()? {
                return Ok(Some(status));
            }
            if self.clock.monotonic() - started > SEED_TIMEOUT {
                process.kill()?;
                process.wait()?;
                return Ok(None);
            }
            std::thread::sleep(SEED_POLL_INTERVAL);
        }
    }
}
