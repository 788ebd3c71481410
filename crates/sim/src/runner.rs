//! Plays seeds: a workload under faults, then quiet, then the checks.
//! Called by `main`, in a process of its own for each seed (`series`).
//! Nothing but the seed decides what happens. What a process makes only once (tables, time zones) would shift the order
//! of a later run's hash maps, so there is no later run.

use std::{
    fmt,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::{
    Bootstrapped, Faults, Simulation, Topology, Violation, checkers,
    clients::watch_client::untold_for,
    determinism,
    workload::{Extra, Workload},
};

const NODES: usize = 3;
const REGISTER_CLIENTS: usize = 3;
/// Simulated time for everything to come true after the faults have ended.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(3600);
const CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// A cluster that has settled changes nothing for this long.
const QUIET_PERIOD: Duration = Duration::from_secs(120);

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
pub fn play_here(seed: u64, bootstrapped: &Path) -> Outcome {
    let bootstrapped = Bootstrapped::read(bootstrapped).expect("what the parent wrote");
    // A task that panics ends alone; nobody else would hear of it.
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        print(panic);
    }));
    let play = move || {
        determinism::fix(seed);
        runtime().block_on(play(seed, &bootstrapped))
    };
    let thread = std::thread::Builder::new().name(format!("seed {seed}")).stack_size(16 << 20).spawn(play);
    match thread.expect("a thread").join() {
        Ok(Ok(Played { log, .. })) if PANICS.load(Ordering::Relaxed) > 0 => {
            let failure = Failure { seed, violations: vec![Violation("a task panicked; see above".into())], log };
            Outcome { seed, holds: false, text: failure.to_string() }
        }
        Ok(Ok(Played { changes, milliseconds, log })) => {
            let end = format!("seed {seed} holds: {changes} changes in {} s", milliseconds / 1000);
            Outcome { seed, holds: true, text: log.into_iter().chain([end]).map(|line| line + "\n").collect() }
        }
        Ok(Err(failure)) => Outcome { seed, holds: false, text: failure.to_string() },
        Err(_) => Outcome { seed, holds: false, text: format!("seed {seed} panicked; see above\n") },
    }
}

/// What a run has done so far.
struct Run<'a> {
    seed: u64,
    simulation: &'a Simulation,
    log: Vec<String>,
}

impl Run<'_> {
    fn fail<T>(&mut self, violations: Vec<Violation>) -> Result<T, Failure> {
        Err(Failure { seed: self.seed, violations, log: std::mem::take(&mut self.log) })
    }

    /// What any checker has found.
    fn check(&mut self) -> Result<(), Failure> {
        let found = self.simulation.oracle.take_violations();
        if found.is_empty() { Ok(()) } else { self.fail(found) }
    }

    /// Until everything that was declared is true, or time is up; then says what was waited for.
    async fn converge(&mut self) -> Result<(), Failure> {
        let env = &self.simulation.env;
        let healed = env.monotonic();
        loop {
            env.sleep(CHECK_INTERVAL).await;
            self.check()?;
            let open = match checkers::convergence::violations(&self.simulation.admin).await {
                Ok(open) => open,
                Err(error) => vec![Violation(format!("the healed server refuses: {error}"))],
            };
            if open.is_empty() {
                return Ok(());
            }
            if env.monotonic() - healed > CONVERGENCE_TIMEOUT {
                return self.fail(open);
            }
        }
    }
}

async fn play(seed: u64, bootstrapped: &Bootstrapped) -> Result<Played, Failure> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let mut draw = |limit: u64| {
        let drawn = random % limit;
        random /= limit;
        drawn as usize
    };
    let topology = Topology { nodes: NODES, api_servers: 1 + draw(3), candidates: 1 + draw(2) };
    let mut simulation = Simulation::start(seed, topology, bootstrapped).await;
    let env = simulation.env.clone();
    env.sleep(Duration::from_secs(2)).await;
    let views = simulation.start_watch_clients();
    // A third of the runs has accidents only, so that the strict checks are not always excused.
    let strict = seed.is_multiple_of(3);
    let extra = Extra::of(seed);
    let mut log = vec![format!("{topology:?}")];
    let mut workload = Workload::new(&mut simulation, strict, extra);
    if let Err(error) = workload.prepare().await {
        let violations = vec![Violation(format!("nothing can be declared: {error}"))];
        return Err(Failure { seed, violations, log: std::mem::take(&mut workload.log) });
    }
    let faults = if strict { Faults::default() } else { Faults::drawn(&env) };
    workload.log.push(format!("{faults:?}"));
    log.append(&mut workload.log);
    simulation.network.injector.set(faults);
    let registers = simulation.start_register_clients(REGISTER_CLIENTS);
    let steps = 10 + env.random_u64() % 20;
    for _ in 0..steps {
        let mut workload = Workload::new(&mut simulation, strict, extra);
        workload.step().await;
        log.append(&mut workload.log);
        let found = simulation.oracle.take_violations();
        if !found.is_empty() {
            return Err(Failure { seed, violations: found, log });
        }
    }
    simulation.heal().await;
    registers.crash();
    env.sleep(Duration::from_secs(60)).await;
    let mut workload = Workload::new(&mut simulation, strict, extra);
    let possible = workload.make_possible().await;
    log.append(&mut workload.log);
    let mut run = Run { seed, simulation: &simulation, log };
    if let Err(error) = possible {
        return run.fail(vec![Violation(format!("the healed server refuses: {error}"))]);
    }
    let found = simulation.registers.lock().violations();
    if !found.is_empty() {
        return run.fail(found);
    }
    run.converge().await?;
    // Statuses may still be catching up with what the check saw.
    env.sleep(CHECK_INTERVAL).await;
    let changes = || simulation.oracle.world.lock().changes;
    let before = changes();
    env.sleep(QUIET_PERIOD).await;
    if changes() != before {
        let text = format!("{} changes although nothing was asked", changes() - before);
        return run.fail(vec![Violation(text)]);
    }
    let untold = untold_for(CHECK_INTERVAL, &env, &views).await;
    if !untold.is_empty() {
        return run.fail(untold);
    }
    run.check()?;
    Ok(Played { changes: before, milliseconds: env.monotonic().as_millis(), log: run.log })
}
