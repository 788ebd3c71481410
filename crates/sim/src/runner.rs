//! Plays seeds: a workload under faults, then quiet, then the checks.
//! Called by `tests/seeds.rs` and by `main`; one thread and one runtime per seed.
//! Invariant: nothing but the seed decides what happens.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{Faults, Simulation, Violation, checks, determinism, workload::Workload};

const NODES: usize = 3;
/// Simulated time for everything to come true after the faults have ended.
const PATIENCE_SECONDS: u64 = 3600;
const LOOK_EVERY_SECONDS: u64 = 20;
/// A cluster that has settled changes nothing for this long.
const QUIET_SECONDS: u64 = 120;

/// A run in which everything held: two of the same seed are equal.
#[derive(Debug, PartialEq, Eq)]
pub struct Played {
    /// Changes that were committed, heartbeats and Events left out.
    pub changes: u64,
    /// Simulated.
    pub milliseconds: u128,
    pub log: Vec<String>,
}

/// What a seed found.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub violations: Vec<Violation>,
    pub log: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} fails:", self.seed)?;
        self.violations.iter().try_for_each(|v| writeln!(f, "  {}", v.0))?;
        writeln!(f, "what was done:")?;
        self.log.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// One thread, paused time.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime")
}

/// Plays one seed on a thread of its own.
pub fn run_seed(seed: u64) -> Result<Played, Failure> {
    let play = move || {
        determinism::fix(seed);
        runtime().block_on(play(seed))
    };
    let thread = std::thread::Builder::new().name(format!("seed {seed}")).stack_size(16 << 20).spawn(play);
    thread.expect("a thread").join().unwrap_or_else(|_| {
        let text = "the run panicked; see above".to_string();
        Err(Failure { seed, violations: vec![Violation(text)], log: Vec::new() })
    })
}

/// Plays `count` seeds from `first` on all cores; returns the failures in order of seeds.
pub fn run_many(first: u64, count: u64) -> Vec<Failure> {
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    if let Err(failure) = run_seed(seed) {
                        eprintln!("{failure}");
                        failures.lock().push(failure);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner();
    failures.sort_by_key(|f: &Failure| f.seed);
    failures
}

async fn play(seed: u64) -> Result<Played, Failure> {
    let mut simulation = Simulation::start(seed, NODES).await;
    let (env, world, dial) = (simulation.env.clone(), simulation.world.clone(), simulation.dial.clone());
    env.sleep(Duration::from_secs(2)).await;
    let mut workload = Workload::new(&mut simulation);
    let fail = |violations: Vec<Violation>, log: &[String]| Err(Failure { seed, violations, log: log.to_vec() });
    if let Err(error) = workload.prepare().await {
        return fail(vec![Violation(format!("nothing can be declared: {error}"))], &workload.log);
    }
    // A third of the runs has accidents only, so that the strict checks are not always excused.
    let faults = if seed.is_multiple_of(3) { Faults::default() } else { Faults::drawn(&env) };
    workload.log.push(format!("{faults:?}"));
    dial.set(faults);
    let steps = 10 + env.random_u64() % 20;
    for _ in 0..steps {
        workload.step().await;
        let found = world.lock().take_violations();
        if !found.is_empty() {
            return fail(found, &workload.log);
        }
    }
    let mut log = std::mem::take(&mut workload.log);
    simulation.heal().await;
    env.sleep(Duration::from_secs(60)).await;
    let mut workload = Workload::new(&mut simulation);
    let possible = workload.make_possible().await;
    log.append(&mut workload.log);
    if let Err(error) = possible {
        return fail(vec![Violation(format!("the healed server refuses: {error}"))], &log);
    }
    let healed = env.monotonic();
    loop {
        env.sleep(Duration::from_secs(LOOK_EVERY_SECONDS)).await;
        let mut found = world.lock().take_violations();
        if !found.is_empty() {
            return fail(found, &log);
        }
        match checks::violations(&simulation.admin).await {
            Ok(open) => found = open,
            Err(error) => found.push(Violation(format!("the healed server refuses: {error}"))),
        }
        if found.is_empty() {
            break;
        }
        if env.monotonic() - healed > Duration::from_secs(PATIENCE_SECONDS) {
            return fail(found, &log);
        }
    }
    // Statuses may still be catching up with what the check saw.
    env.sleep(Duration::from_secs(LOOK_EVERY_SECONDS)).await;
    let before = world.lock().changes;
    env.sleep(Duration::from_secs(QUIET_SECONDS)).await;
    let changes = world.lock().changes - before;
    match changes {
        0 => Ok(Played { changes: before, milliseconds: env.monotonic().as_millis(), log }),
        _ => fail(vec![Violation(format!("{changes} changes although nothing was asked"))], &log),
    }
}
