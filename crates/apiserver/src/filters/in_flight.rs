//! How many requests are handled at once, and how many bytes of their bodies are held.
//! Asked by `pipeline`; the limits are `--max-requests-inflight` and `--max-mutating-requests-inflight`. Without
//! `--enable-priority-and-fairness=false` they are those of `flow_control`, and only bodies are limited here.
//! Heartbeats of nodes and leader election find a place that nobody else can take.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use api::{ApiError, Verb};

use crate::{
    flow_control::too_many,
    request::{call::Call, request_info::RequestInfo},
    server::config::Limits,
};

/// Upstream's priority levels node-high and leader-election have 50 of 245 shares.
const RESERVED_SHARE: usize = 5;

/// Places of which one in `RESERVED_SHARE` is kept for those who keep the cluster together.
struct Places {
    all: usize,
    common: Semaphore,
    reserved: Semaphore,
}

impl Places {
    fn new(all: usize) -> Self {
        let reserved = all / RESERVED_SHARE;
        Self { all, common: Semaphore::new(all - reserved), reserved: Semaphore::new(reserved) }
    }

    fn take(&self, is_vital: bool) -> Option<SemaphorePermit<'_>> {
        let common = self.common.try_acquire().ok();
        common.or_else(|| self.reserved.try_acquire().ok().filter(|_| is_vital))
    }

    fn in_use(&self) -> usize {
        self.all.saturating_sub(self.common.available_permits() + self.reserved.available_permits())
    }
}

pub struct InFlight {
    reads: Places,
    writes: Places,
    body_bytes: Places,
    /// Reads and writes that are limited elsewhere.
    counted: [AtomicUsize; 2],
}

/// A request that is limited elsewhere; counted until it is dropped.
pub struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Held while a request is handled; `None` for those that are not limited.
pub type Seat<'a> = Option<SemaphorePermit<'a>>;

impl InFlight {
    pub fn new(limits: &Limits) -> Self {
        Self {
            reads: Places::new(limits.requests_in_flight),
            writes: Places::new(limits.mutating_requests_in_flight),
            body_bytes: Places::new(limits.body_bytes_in_flight),
            counted: Default::default(),
        }
    }

    pub fn count(&self, call: &Call) -> Counted<'_> {
        let count = &self.counted[usize::from(call.info.is_mutating())];
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }

    /// A place to be handled in. Long-running requests are counted apart; the process's own, administrators' and probes
    /// are not limited, as upstream's priority level `exempt`.
    pub fn admit(&self, call: &Call) -> Result<Seat<'_>, ApiError> {
        if call.info.is_long_running() || is_exempt(call) {
            return Ok(None);
        }
        let places = if call.info.is_mutating() { &self.writes } else { &self.reads };
        places.take(is_vital(call)).map(Some).ok_or_else(too_many)
    }

    /// What the bodies of `call` and all others may hold together.
    pub fn body_budget<'a>(&'a self, call: &Call) -> BodyBudget<'a> {
        let bytes = &self.body_bytes;
        match (is_exempt(call), is_vital(call)) {
            (true, _) => BodyBudget(Vec::new()),
            (_, false) => BodyBudget(vec![(&bytes.common, None)]),
            (_, true) => BodyBudget(vec![(&bytes.common, None), (&bytes.reserved, None)]),
        }
    }

    /// Reads and writes that are being handled.
    pub fn in_use(&self) -> [usize; 2] {
        let counted = |kind: usize| self.counted[kind].load(Ordering::Relaxed);
        [self.reads.in_use() + counted(0), self.writes.in_use() + counted(1)]
    }
}

/// The bytes of one body, from where they may come; none of them: without limit. Given back when it is dropped, that is
/// when the request has been handled.
pub struct BodyBudget<'a>(Vec<(&'a Semaphore, Option<SemaphorePermit<'a>>)>);

impl BodyBudget<'_> {
    /// Counts bytes that have arrived: what a client only announces holds nothing.
    pub fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        let count = u32::try_from(bytes).map_err(|_| too_many())?;
        for (from, held) in &mut self.0 {
            let Ok(taken) = from.try_acquire_many(count) else { continue };
            match held {
                Some(held) => held.merge(taken),
                None => *held = Some(taken),
            }
            return Ok(());
        }
        if self.0.is_empty() { Ok(()) } else { Err(too_many()) }
    }
}

fn is_exempt(call: &Call) -> bool {
    let probes = ["/healthz", "/readyz", "/livez"];
    call.in_process || call.user.in_group("system:masters") || probes.contains(&call.info.path.as_str())
}

/// What upstream's flow schemas `system-node-high` and `system-leader-election` match.
fn is_vital(call: &Call) -> bool {
    let (user, info) = (&call.user, &call.info);
    if user.in_group("system:nodes") {
        return is_lease(info) || (info.group.is_empty() && info.resource == "nodes");
    }
    let elects = ["system:kube-controller-manager", "system:kube-scheduler"].contains(&user.name.as_str())
        || user.in_group("system:serviceaccounts:kube-system");
    elects && is_lease(info) && matches!(info.verb, Verb::Get | Verb::Create | Verb::Update)
}

fn is_lease(info: &RequestInfo) -> bool {
    info.group == "coordination.k8s.io" && info.resource == "leases" && !info.namespace.is_empty()
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
