//! The runner: watches policies, pods and namespaces, applies what the pure core says, repairs what others break.
//! Puts `policy_index`, `render` and `elements` to work; answers `pod_claims`.
//! Invariant: one transaction at a time (type: `sync` has the one `&mut Enforcer`). A claim is answered when what it asks
//! for is in the kernel: `answer_claims` follows the transaction.

use std::{path::PathBuf, time::Duration};

use client::{EventRecorder, InformerFactory, ObjectChange, ObjectRef, ObjectSubscription, read_once};
use env::Env;
use futures::future::BoxFuture;
use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    networking::v1::NetworkPolicy,
};
use metrics::Metrics;
use netfilter::{Family, Nft, NftError, NftEvent, NftMonitor, TableRepair, set_elements::ElementWriter};
use tokio_util::sync::CancellationToken;

use crate::{
    changes::Changes,
    claim_files::ClaimFiles,
    elements,
    model::{PodInfo, PolicyInfo},
    pod_claims::{Claim, Covered, PodClaims},
    policy_index::PolicyIndex,
    policy_metrics::{FAILURES, ISOLATED, POLICIES, REPAIRS, SYNC_DURATION},
    render,
};

pub struct NetworkPolicyConfig {
    pub node_name: String,
    /// The name of our nftables tables, in families ip and ip6.
    pub table: String,
    pub claims: PodClaims,
    /// Where claims are kept, for the process after this one.
    pub claims_directory: PathBuf,
    pub metrics: Metrics,
}

/// Takes all rules away. Stopping does not: rules stay while the agent restarts.
pub async fn remove(table: &str) -> Result<(), NftError> {
    Nft::default().apply([render::delete_tables(table)]).await
}

/// Nobody waits for what is removed.
const REMOVALS_DELAY: Duration = Duration::from_secs(1);

/// Runs until `shutdown`. Needs the right to change the network of the namespace it is in.
pub fn run(
    config: NetworkPolicyConfig,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), NftError>> {
    Box::pin(run_until(config, informers, env, shutdown))
}

async fn run_until(
    config: NetworkPolicyConfig,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> Result<(), NftError> {
    let client = informers.client().clone();
    let recorder = EventRecorder::new(client, env.clone(), "network-policy", &config.node_name);
    let (policies, pods, namespaces) =
        (informers.informer::<NetworkPolicy>(), informers.informer::<Pod>(), informers.informer::<Namespace>());
    let synced = async { tokio::join!(policies.synced(), pods.synced(), namespaces.synced()) };
    tokio::select! {
        _ = synced => {}
        () = shutdown.cancelled() => return Ok(()),
    }
    let elements = ElementWriter::open()?;
    let nft = Nft::with_port_id(elements.port_id()?);
    let monitor = NftMonitor::open(&config.table, nft.clone())?;
    let claim_files = ClaimFiles::open(&config.claims_directory)
        .map_err(|error| NftError::Refused(format!("failed to use {}: {error}", config.claims_directory.display())))?;
    let mut index = PolicyIndex::default();
    for claim in claim_files.load() {
        let pod = pods.get(&claim.key()).and_then(|pod| PodInfo::read(&pod, &config.node_name));
        // What a pod that is gone had says nothing of who has it now.
        if pod.is_some_and(|pod| claim.uid.is_empty() || *pod.uid == *claim.uid) {
            index.claim(&claim.key(), &claim.uid, &claim.ips);
        } else if let Err(error) = claim_files.forget(&claim.key()) {
            tracing::warn!(%error, pod = claim.key(), "failed to forget the addresses of a pod that is gone");
        }
    }
    let enforcer = Enforcer {
        config,
        recorder,
        env,
        nft,
        elements,
        index,
        claim_files,
        waiting: Vec::new(),
        removals: String::new(),
        removals_due: None,
        repair: TableRepair::default(),
    };
    let watched = [namespaces.objects(), pods.objects(), policies.objects()].map(|objects| objects.subscribe());
    enforcer.run(watched, monitor, shutdown).await;
    Ok(())
}

struct Enforcer {
    config: NetworkPolicyConfig,
    recorder: EventRecorder,
    env: Env,
    nft: Nft,
    elements: ElementWriter,
    index: PolicyIndex,
    claim_files: ClaimFiles,
    /// Claims that are not covered yet; never more than `PodClaims` takes.
    waiting: Vec<(Claim, Covered)>,
    /// Of chains and sets that nothing names any more; names never come back.
    removals: String,
    removals_due: Option<Duration>,
    repair: TableRepair,
}

impl Enforcer {
    async fn run(
        mut self,
        [mut namespaces, mut pods, mut policies]: [ObjectSubscription; 3],
        mut monitor: NftMonitor,
        shutdown: CancellationToken,
    ) {
        loop {
            // Everything that is already here goes into one transaction.
            while let Some(change) = namespaces.try_next() {
                self.namespace(&change);
            }
            while let Some(change) = policies.try_next() {
                self.policy(&change);
            }
            while let Some(change) = pods.try_next() {
                self.pod(&change);
            }
            while let Ok(claim) = self.config.claims.receiver.try_recv() {
                self.claim(claim);
            }
            let now = self.env.monotonic();
            if self.repair.retry_in(now).is_none() {
                self.sync(&mut monitor).await;
            }
            let now = self.env.monotonic();
            let until = self.repair.retry_in(now);
            let removals = self.removals_due.map(|at| at.saturating_sub(now));
            tokio::select! {
                change = namespaces.next() => match change {
                    Some(change) => self.namespace(&change),
                    None => return,
                },
                change = policies.next() => match change {
                    Some(change) => self.policy(&change),
                    None => return,
                },
                change = pods.next() => match change {
                    Some(change) => self.pod(&change),
                    None => return,
                },
                Some(claim) = self.config.claims.receiver.recv() => self.claim(claim),
                event = monitor.next(), if self.repair.is_watching() => self.nft_event(event).await,
                () = self.env.sleep(until.unwrap_or_default()), if until.is_some() => self.repair.retry_now(),
                () = self.env.sleep(removals.unwrap_or_default()), if removals.is_some() => self.remove_unused().await,
                () = shutdown.cancelled() => return,
            }
        }
    }

    fn namespace(&mut self, change: &ObjectChange) {
        let namespace = change.new.as_deref().and_then(read_once::<Namespace>);
        let labels = namespace.map(|namespace| namespace.metadata.labels.unwrap_or_default());
        self.index.apply_namespace(&change.key, labels);
    }

    fn policy(&mut self, change: &ObjectChange) {
        let policy = change.new.as_deref().and_then(read_once::<NetworkPolicy>);
        self.index.apply_policy(&change.key, policy.as_ref().and_then(PolicyInfo::read));
    }

    fn pod(&mut self, change: &ObjectChange) {
        let pod = change.new.as_deref().and_then(read_once::<Pod>);
        let info = pod.as_ref().and_then(|pod| PodInfo::read(pod, &self.config.node_name));
        let was_claimed = self.index.is_claimed(&change.key);
        self.index.apply_pod(&change.key, info);
        if was_claimed
            && !self.index.is_claimed(&change.key)
            && let Err(error) = self.claim_files.forget(&change.key)
        {
            tracing::warn!(%error, pod = change.key, "failed to forget the addresses of a pod that is gone");
        }
    }

    fn claim(&mut self, (claim, covered): (Claim, Covered)) {
        self.index.claim(&claim.key(), &claim.uid, &claim.ips);
        if let Err(error) = self.claim_files.keep(&claim) {
            // The rules of now have it; only an agent that starts before the pod's status says it would not.
            tracing::warn!(%error, pod = claim.key(), "failed to keep the addresses of a pod");
        }
        self.waiting.push((claim, covered));
    }

    async fn nft_event(&mut self, event: std::io::Result<NftEvent>) {
        let find = self.elements.find_chain(Family::V4.number(), &self.config.table, render::FORWARD);
        match self.repair.is_needed_after(event, find, &self.env).await {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(table = %self.config.table, "somebody else changed our nftables rules; writing them anew");
                self.config.metrics.count(&REPAIRS, &[]);
            }
            Err(error) => {
                tracing::error!(%error, "failed to read nftables notifications; foreign changes will go unnoticed");
            }
        }
    }

    /// Brings the kernel to what the index says.
    async fn sync(&mut self, monitor: &mut NftMonitor) {
        let began = self.env.monotonic();
        let changes = self.index.take_changes();
        let mut kind = None;
        if !changes.is_empty() && !self.repair.is_full_needed() {
            let only_elements = changes.sets.is_empty() && changes.chains.is_empty();
            match self.write(&changes).await {
                Ok(()) => kind = Some(if only_elements { "elements" } else { "incremental" }),
                Err(error) => {
                    tracing::warn!(%error, "an incremental change was refused; writing all rules anew");
                    self.config.metrics.count(&FAILURES, &[]);
                    self.repair.require_full();
                }
            }
        }
        if self.repair.is_full_needed() {
            let text = render::full_tables(&self.index.everything(), &self.config.table);
            let find = self.elements.find_chain(Family::V4.number(), &self.config.table, render::FORWARD);
            if let Err(error) = self.repair.write(monitor, self.nft.apply([text]), find, &self.env).await {
                self.report(&error);
                return;
            }
            (self.removals, self.removals_due) = (String::new(), None);
            kind = Some("full");
        }
        if let Some(kind) = kind {
            let took = self.env.monotonic() - began;
            self.config.metrics.observe(&SYNC_DURATION, &[kind], took.as_secs_f64());
            self.config.metrics.set(&POLICIES, &[], self.index.policies() as f64);
            self.config.metrics.set(&ISOLATED, &[], self.index.isolated_addresses() as f64);
            tracing::debug!(kind, ?took, "wrote the rules of NetworkPolicies");
        }
        self.answer_claims();
    }

    /// The elements of a small change are one batch to the kernel, after what they begin to name is there: `nft` would first
    /// read all that are there. What they no longer name does no harm and goes a little later.
    async fn write(&mut self, changes: &Changes) -> Result<(), NftError> {
        let table = self.config.table.clone();
        if !elements::are_few(changes) {
            return self.nft.apply([render::transaction(changes, &table)]).await;
        }
        let additions = render::additions(changes, &table);
        if !additions.is_empty() {
            self.nft.apply([additions]).await?;
        }
        let written = self.elements.apply(&table, elements::lists(changes).into_iter()).await;
        written.map_err(|error| NftError::Refused(error.to_string()))?;
        self.removals.push_str(&render::removals(changes, &table));
        if !self.removals.is_empty() && self.removals_due.is_none() {
            self.removals_due = Some(self.env.monotonic() + REMOVALS_DELAY);
        }
        Ok(())
    }

    async fn remove_unused(&mut self) {
        self.removals_due = None;
        let text = std::mem::take(&mut self.removals);
        if let Err(error) = self.nft.apply([text]).await {
            tracing::warn!(%error, "failed to remove unused chains and sets; writing all rules anew");
            self.config.metrics.count(&FAILURES, &[]);
            self.repair.require_full();
        }
    }

    fn report(&self, error: &NftError) {
        tracing::error!(%error, "failed to write the rules of NetworkPolicies; will try again");
        self.config.metrics.count(&FAILURES, &[]);
        let node = ObjectRef {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(self.config.node_name.clone()),
            // Where `kubectl describe node` looks for them.
            uid: Some(self.config.node_name.clone()),
            ..ObjectRef::default()
        };
        let message = format!("{error}: policies stay as they were, and no pod with a network of its own starts");
        self.recorder.warning(&node, "FailedToEnforceNetworkPolicy", message);
    }

    fn answer_claims(&mut self) {
        for (claim, covered) in std::mem::take(&mut self.waiting) {
            if self.index.covers(&claim.key(), &claim.uid) {
                let _ = covered.send(());
            } else if !covered.is_closed() {
                self.waiting.push((claim, covered));
            }
        }
    }
}
