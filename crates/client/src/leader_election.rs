//! One leader among several processes, by a Lease.
//! Used by controllers and scheduler when more than one server runs.
//! Invariant: the work stops before the lease can pass to another (test: `leadership_passes_on_and_is_never_shared`).

use std::{future::Future, time::Duration};

use ::api::ApiError;
use env::Env;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use tokio_util::sync::CancellationToken;

use crate::Client;

/// For giving the lease back at the end; a server that does not answer keeps nobody from ending.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub struct LeaderElection {
    pub namespace: String,
    pub name: String,
    /// Unique per process.
    pub identity: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl LeaderElection {
    /// Upstream's timings.
    pub fn new(name: &str, identity: String) -> Self {
        Self {
            namespace: "kube-system".into(),
            name: name.into(),
            identity,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Waits to become the leader, runs `work`, and returns when `work` ends (`Ok`) or leadership is lost (`Err`).
pub async fn run_as_leader<T>(
    election: &LeaderElection,
    client: &Client,
    env: &Env,
    work: impl Future<Output = T>,
) -> Result<T, ApiError> {
    let mut seen = ObservedRecord::default();
    let acquired = acquire(election, client, env, &mut seen).await;
    tracing::info!(lease = election.name, identity = election.identity, "became leader");
    tokio::select! {
        biased;
        output = work => Ok(output),
        error = renew(election, client, env, &mut seen, acquired) => Err(error),
    }
}

/// Tries until the lease is ours, and returns since when: from before it was asked for. An answer that took longer than
/// we may go without renewal counts for nothing: others may hold the lease by now.
async fn acquire(election: &LeaderElection, client: &Client, env: &Env, seen: &mut ObservedRecord) -> Duration {
    loop {
        let asked = env.monotonic();
        let ours = attempt(election, client, env, seen).await.unwrap_or(false);
        if ours && env.monotonic() - asked < election.renew_deadline {
            return asked;
        }
        env.sleep(jittered(env, election.retry_period)).await;
    }
}

/// Runs `start` whenever this process leads, each time with a token that ends with the term, until `shutdown`.
pub async fn lead<F: Future<Output = ()>>(
    election: &LeaderElection,
    client: &Client,
    env: &Env,
    shutdown: &CancellationToken,
    start: impl Fn(CancellationToken) -> F,
) {
    while !shutdown.is_cancelled() {
        let term = shutdown.child_token();
        // Whatever the work has started on its own ends with the term too.
        let end_of_term = term.clone().drop_guard();
        let led = run_as_leader(election, client, env, async { start(term).await });
        let ended = tokio::select! {
            biased;
            ended = led => Some(ended),
            () = shutdown.cancelled() => None,
        };
        // Whatever was under way ends first: the next leader may begin as soon as the lease is free.
        drop(end_of_term);
        if shutdown.is_cancelled() {
            return release(election, client, env).await;
        }
        if let Some(Err(error)) = ended {
            tracing::warn!(lease = election.name, %error, "no longer the leader");
        }
    }
}

/// Gives the lease back, if it is ours, so that the next leader need not wait until it expires. As upstream writes it.
async fn release(election: &LeaderElection, client: &Client, env: &Env) {
    let leases = client.namespaced::<Lease>(&election.namespace);
    let giving = async {
        let Some(mut lease) = leases.find(&election.name).await? else { return Ok(()) };
        let spec = lease.spec.take().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(election.identity.as_str()) {
            return Ok(());
        }
        let now = MicroTime(env.now());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: spec.lease_transitions,
            ..LeaseSpec::default()
        });
        leases.replace(&election.name, &lease).await.map(drop)
    };
    match env.timeout(RELEASE_TIMEOUT, giving).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(lease = election.name, %error, "failed to release the lease"),
        None => tracing::warn!(lease = election.name, "failed to release the lease in time"),
    }
}

/// Renews until it no longer can. Others count the lease from when they see it, which is after the request was sent and
/// may be long before we get the answer: so a renewal counts from before its request.
async fn renew(
    election: &LeaderElection,
    client: &Client,
    env: &Env,
    seen: &mut ObservedRecord,
    mut renewed: Duration,
) -> ApiError {
    let left = |renewed: Duration| election.renew_deadline.saturating_sub(env.monotonic() - renewed);
    loop {
        // After a slow answer little time is left: half of it is for the next request.
        env.sleep(election.retry_period.min(left(renewed) / 2)).await;
        let asked = env.monotonic();
        match env.timeout(left(renewed), attempt(election, client, env, seen)).await {
            Some(Ok(true)) => renewed = asked,
            Some(Ok(false)) => return ApiError::internal(format!("lost the lease {}", election.name)),
            Some(Err(error)) if env.monotonic() - renewed >= election.renew_deadline => return error,
            Some(Err(_)) => {}
            None => return ApiError::internal(format!("couldn't renew the lease {} in time", election.name)),
        }
    }
}

/// Another holder's last renewal as we saw it: its clock is not ours.
#[derive(Default)]
struct ObservedRecord {
    spec: Option<LeaseSpec>,
    at: Duration,
}

/// Whether the lease is ours now; `false` when another holds it. A conflict says neither: whoever touched the lease may
/// have left it with us, so it is an error like others, to be tried again while there is time.
async fn attempt(
    election: &LeaderElection,
    client: &Client,
    env: &Env,
    seen: &mut ObservedRecord,
) -> Result<bool, ApiError> {
    let leases = client.namespaced::<Lease>(&election.namespace);
    let Some(mut lease) = leases.find(&election.name).await? else {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(election.name.clone()),
                namespace: Some(election.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(held(election, env.now(), None)),
        };
        leases.create(&lease).await?;
        return Ok(true);
    };
    if seen.spec != lease.spec {
        *seen = ObservedRecord { spec: lease.spec.clone(), at: env.monotonic() };
    }
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.clone().unwrap_or_default();
    let mine = holder == election.identity;
    // Its holder says for how long: candidates may be set up differently.
    let lease_duration = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let lease_duration = lease_duration.map_or(election.lease_duration, Duration::from_secs);
    let expired = env.monotonic() - seen.at > lease_duration;
    if !mine && !holder.is_empty() && !expired {
        return Ok(false);
    }
    lease.spec = Some(held(election, env.now(), Some((spec, mine))));
    leases.replace(&election.name, &lease).await.map(|_| true)
}

fn held(election: &LeaderElection, now: Timestamp, before: Option<(LeaseSpec, bool)>) -> LeaseSpec {
    let taken_over = matches!(before, Some((_, false)));
    let (old, mine) = before.unwrap_or_default();
    let now = MicroTime(now);
    LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: Some(election.lease_duration.as_secs() as i32),
        acquire_time: if mine { old.acquire_time } else { Some(now.clone()) },
        renew_time: Some(now),
        lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(taken_over)),
        ..LeaseSpec::default()
    }
}

fn jittered(env: &Env, period: Duration) -> Duration {
    period.mul_f64(1.0 + 0.2 * env.random_fraction())
}

#[cfg(test)]
#[path = "leader_election_tests.rs"]
mod tests;
