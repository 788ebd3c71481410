//! Certificates of pods: for each source of a projected volume that wants one a PodCertificateRequest is made, its answer
//! waited for, and another made when it is time to refresh.
//! Asked by `certificates`; a signer's answer wakes the pod.
//! A certificate that a pod has stays until there is a newer one, or a signer denies it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api::{ApiError, WatchKind, kinds, pem};
use client::{Client, EventRecorder, ListParams};
use env::{Backoff, Env};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec},
        core::v1::{Node, Pod, PodCertificateProjection, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use metrics::{Family, Metrics};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use super::pod_key::{KeyError, PodKey};
use crate::pod::{pod_spec, pod_wakes::PodWakes};

static STATES: Family = Family::gauge(
    "kubelet_podcertificate_states",
    &["signer_name", "state"],
    "Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.",
);

/// For a signer that answers at once, so that the pod need not be tried twice.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Requests of many pods are not all renewed at the same moment.
const REFRESH_JITTER_SECONDS_MAX: u64 = 300;
/// A refresh that has not come so long after its time is told about.
const REFRESH_OVERDUE: SignedDuration = SignedDuration::from_secs(600);
const LATENESS_CHECK_INTERVAL: Duration = Duration::from_secs(60);
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("credential bundle is not issued yet")]
    NotIssued,
    #[error("PodCertificateRequest was permanently {how}: reason={reason:?} message={message:?}")]
    Refused { how: &'static str, reason: String, message: String },
}

/// A private key with the certificates that belong to it, both as PEM.
#[derive(Debug, Clone, PartialEq)]
pub struct Credential {
    pub key: String,
    pub chain: String,
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    NotIssued,
    Fresh { credential: Credential, refresh_at: Timestamp, not_after: Timestamp },
    Refused { condition: &'static str, reason: String, message: String },
}

impl State {
    /// As the metric names it.
    fn label(&self, now: Timestamp) -> &'static str {
        match self {
            Self::NotIssued => "not_yet_issued",
            Self::Fresh { not_after, .. } if now > *not_after => "expired",
            Self::Fresh { refresh_at, .. } if now.duration_since(*refresh_at) > REFRESH_OVERDUE => {
                "overdue_for_refresh"
            }
            Self::Fresh { .. } => "fresh",
            Self::Refused { condition: "Denied", .. } => "denied",
            Self::Refused { .. } => "failed",
        }
    }

    fn credential(&self) -> Result<Credential, CertificateError> {
        match self {
            Self::NotIssued => Err(CertificateError::NotIssued),
            Self::Fresh { credential, .. } => Ok(credential.clone()),
            Self::Refused { condition, reason, message } => {
                let how = if *condition == "Denied" { "denied" } else { "failed" };
                Err(CertificateError::Refused { how, reason: reason.clone(), message: message.clone() })
            }
        }
    }
}

/// What became of a request; `None` while nobody has answered it. `key` is the one that it was made with.
fn outcome(request: &PodCertificateRequest, key: &str, jitter: Duration) -> Option<State> {
    let status = request.status.as_ref()?;
    let ends = ["Issued", "Denied", "Failed"];
    let condition = status.conditions.iter().flatten().find(|c| ends.contains(&c.type_.as_str()))?;
    if condition.type_ != "Issued" {
        let kind = if condition.type_ == "Denied" { "Denied" } else { "Failed" };
        let (reason, message) = (condition.reason.clone(), condition.message.clone());
        return Some(State::Refused { condition: kind, reason, message });
    }
    // What stands between and before the certificates is no business of the pod's.
    let blocks = pem::blocks(status.certificate_chain.as_deref().unwrap_or_default());
    let chain = blocks.iter().map(|block| pem::encode("CERTIFICATE", &block.content)).collect();
    Some(State::Fresh {
        credential: Credential { key: key.to_string(), chain },
        refresh_at: status.begin_refresh_at.as_ref()?.0.checked_add(jitter).unwrap_or(Timestamp::MAX),
        not_after: status.not_after.as_ref()?.0,
    })
}

/// A source of a volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    pod_uid: String,
    volume: String,
    index: usize,
}

struct Record {
    signer: String,
    state: watch::Receiver<State>,
    issuing: JoinHandle<()>,
}

pub struct PodCertificateManager {
    client: Client,
    env: Env,
    node_name: String,
    recorder: EventRecorder,
    metrics: Metrics,
    wakes: PodWakes,
    records: Mutex<HashMap<Key, Record>>,
}

impl PodCertificateManager {
    pub fn new(
        client: Client,
        env: Env,
        node_name: String,
        recorder: EventRecorder,
        metrics: Metrics,
        wakes: PodWakes,
    ) -> Self {
        Self { client, env, node_name, recorder, metrics, wakes, records: Mutex::default() }
    }

    /// The newest credential of a source; asks for the first one.
    pub async fn get(
        self: &Arc<Self>,
        pod: &Pod,
        volume: &str,
        index: usize,
        source: &PodCertificateProjection,
    ) -> Result<Credential, CertificateError> {
        let (mut state, is_new) = self.register(pod, volume, index, source);
        if is_new {
            let answered = state.wait_for(|state| *state != State::NotIssued);
            let _ = self.env.timeout(FIRST_ANSWER_TIMEOUT, answered).await;
        }
        self.count();
        state.borrow().credential()
    }

    fn register(
        self: &Arc<Self>,
        pod: &Pod,
        volume: &str,
        index: usize,
        source: &PodCertificateProjection,
    ) -> (watch::Receiver<State>, bool) {
        let key = Key { pod_uid: pod_spec::uid(pod).into(), volume: volume.into(), index };
        let mut records = self.records.lock();
        let mut is_new = false;
        let record = records.entry(key).or_insert_with(|| {
            is_new = true;
            let (sender, state) = watch::channel(State::NotIssued);
            let issuer = Issuer {
                client: self.client.clone(),
                env: self.env.clone(),
                node_name: self.node_name.clone(),
                recorder: self.recorder.clone(),
                wakes: self.wakes.clone(),
                pod: pod.clone(),
                source: source.clone(),
                state: sender,
            };
            Record { signer: source.signer_name.clone(), state, issuing: self.env.spawn(issuer.run()) }
        });
        (record.state.clone(), is_new)
    }

    /// How many sources are how far.
    fn count(&self) {
        let now = self.env.now();
        let mut counts: BTreeMap<(String, &str), u32> = BTreeMap::new();
        for record in self.records.lock().values() {
            *counts.entry((record.signer.clone(), record.state.borrow().label(now))).or_default() += 1;
        }
        self.metrics.retain(&STATES, |_| false);
        for ((signer, state), count) in counts {
            self.metrics.set(&STATES, &[&signer, state], f64::from(count));
        }
    }

    pub fn forget(&self, uid: &str) {
        self.records.lock().retain(|key, record| {
            if key.pod_uid == uid {
                record.issuing.abort();
            }
            key.pod_uid != uid
        });
        self.count();
    }
}

impl Drop for PodCertificateManager {
    fn drop(&mut self) {
        self.records.lock().values().for_each(|record| record.issuing.abort());
    }
}

/// Keeps one source supplied for as long as its pod lives.
struct Issuer {
    client: Client,
    env: Env,
    node_name: String,
    recorder: EventRecorder,
    wakes: PodWakes,
    pod: Pod,
    source: PodCertificateProjection,
    state: watch::Sender<State>,
}

/// Which warnings about a late refresh were given.
#[derive(Default)]
struct Lateness {
    overdue: bool,
    expired: bool,
}

#[derive(Debug, thiserror::Error)]
enum IssueError {
    #[error("while creating PodCertificateRequest: {0}")]
    Api(#[from] ApiError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("while generating keypair: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Issuer {
    async fn run(self) {
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        let mut lateness = Lateness::default();
        loop {
            let answer = match self.ask().await {
                Ok((key, name)) => self.answer(&key, &name, &mut lateness).await,
                Err(error) => {
                    tracing::warn!(pod = pod_spec::display(&self.pod), %error, "failed to ask for a certificate");
                    None
                }
            };
            // Nobody answered, or the request is gone: another one is made.
            let Some(answer) = answer else {
                self.warn_if_late(&mut lateness);
                self.env.sleep(backoff.next_delay()).await;
                continue;
            };
            (backoff, lateness) = (Backoff::new(RETRY_MIN, RETRY_MAX), Lateness::default());
            self.state.send_replace(answer.clone());
            self.wakes.wake(pod_spec::uid(&self.pod));
            match answer {
                State::Fresh { refresh_at, .. } => {
                    let left = refresh_at.duration_since(self.env.now());
                    self.env.sleep(Duration::try_from(left).unwrap_or_default()).await;
                }
                _ => return,
            }
        }
    }

    /// Makes a key and a request; gives the key and the request's name.
    async fn ask(&self) -> Result<(String, String), IssueError> {
        let (pod, source) = (&self.pod, &self.source);
        let (namespace, uid) = (pod_spec::namespace(pod), pod_spec::uid(pod).to_string());
        let account = pod_spec::spec(pod).service_account_name.clone().unwrap_or_default();
        let account_uid = self.client.namespaced::<ServiceAccount>(namespace).get(&account).await?.metadata.uid;
        let node_uid = self.client.api::<Node>().get(&self.node_name).await?.metadata.uid;
        let (key_type, of_pod) = (source.key_type.clone(), uid.clone());
        let key = env::spawn_blocking(move || PodKey::generate(&key_type, &of_pod)).await??;
        let owner = OwnerReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: pod_spec::name(pod).into(),
            uid: uid.clone(),
            ..OwnerReference::default()
        };
        let request = PodCertificateRequest {
            metadata: ObjectMeta {
                namespace: Some(namespace.into()),
                generate_name: Some("req-".into()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                signer_name: source.signer_name.clone(),
                pod_name: pod_spec::name(pod).into(),
                pod_uid: uid,
                service_account_name: account,
                service_account_uid: account_uid.unwrap_or_default(),
                node_name: self.node_name.clone(),
                node_uid: node_uid.unwrap_or_default(),
                max_expiration_seconds: source.max_expiration_seconds,
                pkix_public_key: ByteString(key.public_der),
                proof_of_possession: ByteString(key.proof),
                unverified_user_annotations: source.user_annotations.clone(),
            },
            status: None,
        };
        let made = self.client.namespaced::<PodCertificateRequest>(namespace).create(&request).await?;
        Ok((key.private_pem, made.metadata.name.unwrap_or_default()))
    }

    /// Waits until the request is answered; `None` when it is gone.
    async fn answer(&self, key: &str, name: &str, lateness: &mut Lateness) -> Option<State> {
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        loop {
            match self.watch(key, name, lateness).await {
                Ok(answer) => return answer,
                Err(error) => tracing::debug!(name, %error, "watching a PodCertificateRequest failed"),
            }
            self.env.sleep(backoff.next_delay()).await;
        }
    }

    async fn watch(&self, key: &str, name: &str, lateness: &mut Lateness) -> Result<Option<State>, ApiError> {
        let resource = kinds::resource_of::<PodCertificateRequest>();
        let namespace = Some(pod_spec::namespace(&self.pod));
        let params = ListParams::fields(format!("metadata.name={name},spec.nodeName={}", self.node_name));
        let transport = self.client.transport();
        let list = transport.list(resource, namespace, &params).await?;
        let Some(found) = list.objects.first() else { return Ok(None) };
        let request = found.typed::<PodCertificateRequest>()?;
        if let Some(answer) = self.read(key, &request) {
            return Ok(Some(answer));
        }
        let mut events = transport.watch(resource, namespace, &params, &list.resource_version).await?;
        loop {
            let Some(event) = self.env.timeout(LATENESS_CHECK_INTERVAL, events.next()).await else {
                self.warn_if_late(lateness);
                continue;
            };
            let Some(event) = event else { return Err(ApiError::internal("the watch ended")) };
            let event = event?;
            match event.kind {
                WatchKind::Added | WatchKind::Modified => {
                    let request = event.object.typed::<PodCertificateRequest>()?;
                    if let Some(answer) = self.read(key, &request) {
                        return Ok(Some(answer));
                    }
                }
                WatchKind::Deleted => return Ok(None),
                WatchKind::Bookmark => {}
            }
        }
    }

    fn read(&self, key: &str, request: &PodCertificateRequest) -> Option<State> {
        let jitter = Duration::from_secs(self.env.random_u64() % REFRESH_JITTER_SECONDS_MAX);
        let answer = outcome(request, key, jitter)?;
        if let State::Refused { condition, reason, message } = &answer {
            let name = request.metadata.name.as_deref().unwrap_or_default();
            let verb = if *condition == "Denied" { "was denied" } else { "failed" };
            let namespace = pod_spec::namespace(&self.pod);
            let text =
                format!("PodCertificateRequest {namespace}/{name} {verb}, reason={reason:?}, message={message:?}");
            self.recorder.warning(&client::reference(&self.pod), condition, text);
        }
        Some(answer)
    }

    fn warn_if_late(&self, lateness: &mut Lateness) {
        let (label, about) = (self.state.borrow().label(self.env.now()), client::reference(&self.pod));
        let late = matches!(label, "overdue_for_refresh" | "expired");
        if late && !std::mem::replace(&mut lateness.overdue, true) {
            self.recorder.warning(&about, "CertificateOverdueForRefresh", "PodCertificate refresh overdue");
        }
        if label == "expired" && !std::mem::replace(&mut lateness.expired, true) {
            self.recorder.warning(&about, "CertificateExpired", "PodCertificate expired");
        }
    }
}

#[cfg(test)]
#[path = "pod_certificates_tests.rs"]
mod life_tests;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn answers_are_read() {
        let issued = json!({
            "conditions": [{ "type": "Issued", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            "certificateChain": format!("# leaf\n{}{}", pem::encode("CERTIFICATE", b"leaf"), pem::encode("CERTIFICATE", b"root")),
            "notAfter": "2026-01-02T00:00:00Z", "beginRefreshAt": "2026-01-01T12:00:00Z",
        });
        let refused = |kind: &str| {
            let time = "2026-01-01T00:00:00Z";
            json!({ "conditions": [{ "type": kind, "status": "True", "reason": "No", "message": "m", "lastTransitionTime": time }] })
        };
        let check = |status: Value, at: &str, label: &str, credential: &str| {
            let request = json!({
                "metadata": { "name": "r" }, "status": status,
                "spec": {
                    "signerName": "x.io/x", "podName": "p", "podUID": "u", "serviceAccountName": "a", "serviceAccountUID": "b",
                    "nodeName": "n", "nodeUID": "c", "pkixPublicKey": "", "proofOfPossession": "",
                },
            });
            let request = serde_json::from_value(request).unwrap();
            let state = outcome(&request, "KEY", Duration::from_secs(60)).unwrap_or(State::NotIssued);
            assert_eq!(state.label(at.parse().unwrap()), label);
            let found = state.credential().map_or_else(|error| error.to_string(), |c| format!("{}{}", c.key, c.chain));
            assert_eq!(found, credential);
        };
        let chain = format!("KEY{}{}", pem::encode("CERTIFICATE", b"leaf"), pem::encode("CERTIFICATE", b"root"));
        check(issued.clone(), "2026-01-01T12:00:30Z", "fresh", &chain);
        check(issued.clone(), "2026-01-01T12:10:00Z", "fresh", &chain);
        check(issued.clone(), "2026-01-01T12:12:00Z", "overdue_for_refresh", &chain);
        check(issued, "2026-01-02T00:00:01Z", "expired", &chain);
        let words = |how: &str| format!("PodCertificateRequest was permanently {how}: reason=\"No\" message=\"m\"");
        check(refused("Denied"), "2026-01-01T00:00:00Z", "denied", &words("denied"));
        check(refused("Failed"), "2026-01-01T00:00:00Z", "failed", &words("failed"));
        check(json!({}), "2026-01-01T00:00:00Z", "not_yet_issued", "credential bundle is not issued yet");
    }
}
