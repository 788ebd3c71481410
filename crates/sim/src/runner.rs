//! Plays seeds: a workload under faults, then quiet, then the checks.
//! Called by `tests/seeds.rs` and by `main`; a process of its own for each seed.
//! Invariant: nothing but the seed decides what happens. What a process makes only once (tables, time zones) would
//! shift the order of a later run's hash maps, so there is no later run.

use std::{
    ffi::OsStr,
    fmt,
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{Faults, Primed, Simulation, Violation, checks, determinism, workload::Workload};

const NODES: usize = 3;
/// Simulated time for everything to come true after the faults have ended.
const PATIENCE_SECONDS: u64 = 3600;
const LOOK_EVERY_SECONDS: u64 = 20;
/// A cluster that has settled changes nothing for this long.
const QUIET_SECONDS: u64 = 120;

/// A run in which everything held.
struct Played {
    /// Changes that were committed, heartbeats and Events left out.
    changes: u64,
    /// Simulated.
    milliseconds: u128,
    log: Vec<String>,
}

/// What a seed found.
struct Failure {
    seed: u64,
    violations: Vec<Violation>,
    log: Vec<String>,
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

/// What the process of a seed ended with.
pub struct Outcome {
    pub seed: u64,
    pub holds: bool,
    /// Everything that was done, and what was found.
    pub text: String,
}

/// Plays one seed in this process, which plays no other.
pub fn play_here(seed: u64, primed: &Path) -> Outcome {
    let primed = Primed::read(primed).expect("what the parent wrote");
    let play = move || {
        determinism::fix(seed);
        runtime().block_on(play(seed, &primed))
    };
    let thread = std::thread::Builder::new().name(format!("seed {seed}")).stack_size(16 << 20).spawn(play);
    match thread.expect("a thread").join() {
        Ok(Ok(Played { changes, milliseconds, log })) => {
            let end = format!("seed {seed} holds: {changes} changes in {} s", milliseconds / 1000);
            Outcome { seed, holds: true, text: log.into_iter().chain([end]).map(|line| line + "\n").collect() }
        }
        Ok(Err(failure)) => Outcome { seed, holds: false, text: failure.to_string() },
        Err(_) => Outcome { seed, holds: false, text: format!("seed {seed} panicked; see above\n") },
    }
}

/// Plays each seed by `program play SEED FILE`, as many at once as there are cores; in the order of the seeds.
pub fn play_all(program: &OsStr, seeds: &[u64]) -> std::io::Result<Vec<Outcome>> {
    let directory = std::env::temp_dir().join(format!("minke-sim-{}", env::Env::real().uuid()));
    std::fs::create_dir_all(&directory)?;
    let primed = directory.join("primed.json");
    Primed::make().write(&primed)?;
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..cores.min(seeds.len()) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = play_apart(program, *seed, &primed);
                    outcomes.lock().push(outcome);
                }
            });
        }
    });
    std::fs::remove_dir_all(&directory)?;
    let mut outcomes = outcomes.into_inner();
    outcomes.sort_by_key(|o| o.seed);
    Ok(outcomes)
}

fn play_apart(program: &OsStr, seed: u64, primed: &Path) -> Outcome {
    match Command::new(program).arg("play").arg(seed.to_string()).arg(primed).output() {
        Ok(output) => {
            let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            let mut text = said.concat();
            // Killed from outside it could not speak for itself.
            if output.status.code().is_none() {
                text.push_str(&format!("seed {seed} ended by {}\n", output.status));
            }
            Outcome { seed, holds: output.status.success(), text }
        }
        Err(error) => Outcome { seed, holds: false, text: format!("seed {seed} did not start: {error}\n") },
    }
}

async fn play(seed: u64, primed: &Primed) -> Result<Played, Failure> {
    let mut simulation = Simulation::start(seed, NODES, primed).await;
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
