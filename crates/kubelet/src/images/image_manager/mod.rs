//! Makes images present: pull policies, credentials, parallel pulls without duplicates, back-off, Events.
//! Called by `runtime_manager` before a container is created; `image_gc` removes what is unused.
//! A present image costs no call to the runtime; the cache is dropped whenever the runtime says that images changed.

pub mod credential_provider;
mod credentials;
mod error;
pub(crate) mod in_flight;
pub mod pull_records;
mod reference;

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::printing::go_duration;
use client::{EventRecorder, ObjectRef};
use credential_provider::CredentialProviders;
use credentials::Credential;
use cri::{Runtime, v1};
use env::Env;
pub use error::ImageError;
use in_flight::InFlightKeys;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use metrics::Metrics;
use parking_lot::Mutex;
use pull_records::PullRecords;
use tokio::sync::Semaphore;

use crate::{
    node::{
        node_metrics::{IMAGE_PULL_DURATION, image_size},
        pod_metrics::ENSURED_IMAGES,
    },
    pod::{pod_spec, pod_start::Pulls},
    runtime::{backoff::Backoff, container_config::security::ImageUser},
};

/// Upstream's back-off of failed pulls.
const BACKOFF_INITIAL: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// A present image.
#[derive(Debug, Clone, PartialEq)]
pub struct PresentImage {
    pub id: String,
    pub user: ImageUser,
    pub size: u64,
}

/// For whom an image is wanted.
#[derive(Debug, Clone, Copy)]
pub struct PodIdentity<'a> {
    pub uid: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// Empty for pods that have none.
    pub service_account: &'a str,
}

impl<'a> PodIdentity<'a> {
    pub fn new(pod: &'a Pod) -> Self {
        Self {
            uid: pod_spec::uid(pod),
            namespace: pod_spec::namespace(pod),
            name: pod_spec::name(pod),
            service_account: pod_spec::spec(pod).service_account_name.as_deref().unwrap_or_default(),
        }
    }
}

/// How many pulls may begin: a number per second, and some more at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullRate {
    pub per_second: u32,
    pub burst: u32,
}

pub struct ImageManager {
    runtime: Arc<dyn Runtime>,
    env: Env,
    recorder: EventRecorder,
    metrics: Metrics,
    present: Mutex<HashMap<String, PresentImage>>,
    /// Images that are being pulled: others wait for one instead of pulling it too.
    pulling: InFlightKeys,
    slots: Semaphore,
    backoff: Backoff,
    last_errors: Mutex<HashMap<String, String>>,
    failed_at: Mutex<HashMap<String, Duration>>,
    pulls: Pulls,
    records: PullRecords,
    providers: Option<CredentialProviders>,
    throttle: Option<PullThrottle>,
}

/// Pulls that may begin now, as of some moment.
struct PullThrottle {
    rate: PullRate,
    left: Mutex<(f64, Duration)>,
}

impl PullThrottle {
    fn try_accept(&self, now: Duration) -> bool {
        let mut left = self.left.lock();
        let refilled = now.saturating_sub(left.1).as_secs_f64() * f64::from(self.rate.per_second);
        *left = ((left.0 + refilled).min(f64::from(self.rate.burst)), now);
        let accepted = left.0 >= 1.0;
        if accepted {
            left.0 -= 1.0;
        }
        accepted
    }
}

impl ImageManager {
    pub fn new(
        runtime: Arc<dyn Runtime>,
        env: Env,
        recorder: EventRecorder,
        max_parallel_pulls: usize,
        metrics: Metrics,
    ) -> Self {
        Self {
            runtime,
            env,
            recorder,
            metrics,
            present: Mutex::default(),
            pulling: InFlightKeys::default(),
            slots: Semaphore::new(max_parallel_pulls.max(1)),
            backoff: Backoff::new(BACKOFF_INITIAL, BACKOFF_MAX),
            last_errors: Mutex::default(),
            failed_at: Mutex::default(),
            pulls: Pulls::default(),
            records: PullRecords::default(),
            providers: None,
            throttle: None,
        }
    }

    /// Programs that know more credentials than the pods' secrets.
    pub fn with_providers(self, providers: CredentialProviders) -> Self {
        Self { providers: Some(providers), ..self }
    }

    pub fn with_rate(self, rate: Option<PullRate>) -> Self {
        let throttle =
            rate.map(|rate| PullThrottle { rate, left: Mutex::new((f64::from(rate.burst), self.env.monotonic())) });
        Self { throttle, ..self }
    }

    pub fn with_records(self, records: PullRecords) -> Self {
        Self { records, ..self }
    }

    /// An image was removed.
    pub fn forget_image(&self, id: &str) {
        self.records.forget(id);
    }

    /// The runtime said that images changed.
    pub fn invalidate(&self) {
        self.present.lock().clear();
    }

    async fn lookup(&self, image: &str) -> Result<Option<PresentImage>, cri::Error> {
        if let Some(found) = self.present.lock().get(image) {
            return Ok(Some(found.clone()));
        }
        let answer = self.runtime.image_status(v1::ImageSpec { image: image.into(), ..Default::default() }).await?;
        let found = answer.map(|image| PresentImage {
            id: image.id,
            user: ImageUser { uid: image.uid.map(|uid| uid.value), username: image.username },
            size: image.size,
        });
        if let Some(found) = &found {
            self.present.lock().insert(image.into(), found.clone());
        }
        Ok(found)
    }

    /// Makes the container's image present, or says why the container must wait.
    pub async fn ensure(
        &self,
        about: &ObjectRef,
        pod: PodIdentity<'_>,
        container: &Container,
        pull_secrets: &[Arc<Secret>],
    ) -> Result<PresentImage, ImageError> {
        let named = container.image.as_deref().unwrap_or_default();
        let told = |error: ImageError| {
            self.recorder.warning(about, error.event_reason(), error.to_string());
            error
        };
        let image = reference::with_default_tag(named)
            .map_err(|cause| told(ImageError::InvalidImageName { image: named.into(), cause }))?;
        let present = self
            .lookup(&image)
            .await
            .map_err(|error| told(ImageError::Inspect { image: image.clone(), error: error.to_string() }))?;
        let policy = container.image_pull_policy.as_deref().unwrap_or(reference::default_policy(&image));
        let is_present = present.is_some();
        let mut credentials = credentials::matching(&image, pull_secrets);
        let present = self.accessible(about, pod, &image, policy, present, &mut credentials).await;
        let is_pulled = policy == "Always" || present.is_none();
        let words = [policy.to_lowercase(), is_present.to_string(), is_pulled.to_string()];
        self.metrics.count(&ENSURED_IMAGES, &words.each_ref().map(String::as_str));
        match (policy, present) {
            ("Never", None) => Err(told(ImageError::NeverPull { image: named.into() })),
            ("IfNotPresent" | "Never", Some(found)) => {
                let message =
                    format!("Container image {named:?} already present on machine and can be accessed by the pod");
                self.recorder.normal(about, "Pulled", message);
                Ok(found)
            }
            (policy, _) => {
                let began = self.env.monotonic();
                let pulled = self.pull(about, pod.uid, named, &image, policy, credentials).await;
                self.pulls.note(pod.uid, began, self.env.monotonic());
                pulled
            }
        }
    }

    /// The present image, if the pod may have it. Programs are asked for credentials only where some are needed.
    async fn accessible(
        &self,
        about: &ObjectRef,
        pod: PodIdentity<'_>,
        image: &str,
        policy: &str,
        present: Option<PresentImage>,
        credentials: &mut Vec<Credential>,
    ) -> Option<PresentImage> {
        let may = |found: &PresentImage, known: &[Credential]| !self.records.must_pull(image, &found.id, known);
        if policy != "Always" && present.as_ref().is_some_and(|found| may(found, credentials)) {
            return present;
        }
        if let Some(providers) = self.providers.as_ref().filter(|_| policy != "Never" || present.is_some()) {
            let (more, problems) = providers.credentials(image, &pod).await;
            credentials.extend(more);
            for problem in problems {
                self.recorder.warning(about, "FailedCredentialProvider", problem);
            }
        }
        present.filter(|found| may(found, credentials))
    }

    async fn pull(
        &self,
        about: &ObjectRef,
        pod_uid: &str,
        named: &str,
        image: &str,
        policy: &str,
        credentials: Vec<Credential>,
    ) -> Result<PresentImage, ImageError> {
        let key = format!("{pod_uid}_{image}");
        if let Some(wait) = self.waiting(&key) {
            let back_off = |last| ImageError::BackOff { image: named.into(), last };
            // The Event is counted by its message, which stays the same whatever failed last.
            let event = back_off(None);
            self.recorder.normal(about, event.event_reason(), event.to_string());
            tracing::debug!(image, ?wait, "pulling waits");
            return Err(back_off(self.last_errors.lock().get(&key).cloned()));
        }
        self.recorder.normal(about, "Pulling", format!("Pulling image {named:?}"));
        let began = self.env.monotonic();
        let in_flight = self.pulling.enter(image).await;
        // Whoever was before us may have pulled it for us.
        if policy != "Always"
            && let Ok(Some(found)) = self.lookup(image).await
            && !self.records.must_pull(image, &found.id, &credentials)
        {
            self.recorder.normal(about, "Pulled", self.success(named, began, began, found.size));
            return Ok(found);
        }
        let slot = self.slots.acquire().await;
        let pulls_since = self.env.monotonic();
        let result = self.try_credentials(image, &credentials).await;
        drop(slot);
        let error = match result {
            Ok(credential) => {
                self.present.lock().remove(image);
                match self.lookup(image).await {
                    Ok(Some(found)) => {
                        self.records.pulled(image, &found.id, credential);
                        self.backoff.reset(&key);
                        self.last_errors.lock().remove(&key);
                        let took = self.env.monotonic().saturating_sub(pulls_since).as_secs_f64();
                        self.metrics.observe(&IMAGE_PULL_DURATION, &[image_size(found.size)], took);
                        self.recorder.normal(about, "Pulled", self.success(named, pulls_since, began, found.size));
                        return Ok(found);
                    }
                    Ok(None) => "the image is not there after it was pulled".to_string(),
                    Err(error) => error.to_string(),
                }
            }
            Err(error) => error::without_unknown_code(&error.to_string()),
        };
        self.records.failed(image);
        drop(in_flight);
        let now = self.env.monotonic();
        self.backoff.next(&key, now, now);
        self.failed_at.lock().insert(key.clone(), now);
        let failure = ImageError::from_pull(named, &error);
        let message = format!("Failed to pull image {named:?}: {error}");
        self.recorder.warning(about, failure.event_reason(), message);
        self.last_errors.lock().insert(key, format!("{}: {failure}", failure.reason()));
        Err(failure)
    }

    /// The credential that served, if one was needed.
    async fn try_credentials<'a>(
        &self,
        image: &str,
        credentials: &'a [Credential],
    ) -> Result<Option<&'a Credential>, cri::Error> {
        let accepted = |throttle: &PullThrottle| throttle.try_accept(self.env.monotonic());
        if !self.throttle.as_ref().is_none_or(accepted) {
            return Err(cri::Error::Other("pull QPS exceeded".into()));
        }
        self.records.begin(image).map_err(|error| {
            cri::Error::Other(format!("failed to record image pull intent for container image {image:?}: {error}"))
        })?;
        let mut last = None;
        let none = credentials.is_empty().then_some(None);
        for credential in credentials.iter().map(Some).chain(none) {
            let spec = v1::ImageSpec { image: image.into(), ..Default::default() };
            match self.runtime.pull_image(spec, credential.map(|c| c.auth.clone()), None).await {
                Ok(_) => return Ok(credential),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| cri::Error::Other("there was nothing to try".into())))
    }

    fn success(&self, image: &str, pulls_since: Duration, began: Duration, size: u64) -> String {
        let now = self.env.monotonic();
        format!(
            "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {size} bytes.",
            go_duration(now.saturating_sub(pulls_since)),
            go_duration(now.saturating_sub(began))
        )
    }

    /// How long until the pod may try again, for the worker's next wake-up.
    pub fn retry_in(&self, pod_uid: &str, container: &Container) -> Option<Duration> {
        let image = reference::with_default_tag(container.image.as_deref()?).ok()?;
        self.waiting(&format!("{pod_uid}_{image}"))
    }

    fn waiting(&self, key: &str) -> Option<Duration> {
        let failed = *self.failed_at.lock().get(key)?;
        self.backoff.remaining(key, failed, self.env.monotonic()).map(|(left, _)| left)
    }

    /// How long the pod has waited for images.
    pub fn pulling_time(&self, pod_uid: &str) -> Duration {
        self.pulls.total(pod_uid)
    }

    /// The pod is gone.
    pub fn forget(&self, pod_uid: &str) {
        let prefix = format!("{pod_uid}_");
        self.backoff.forget(&prefix);
        self.pulls.forget(pod_uid);
        self.last_errors.lock().retain(|key, _| !key.starts_with(&prefix));
        self.failed_at.lock().retain(|key, _| !key.starts_with(&prefix));
    }
}

#[cfg(test)]
mod tests {
    use cri::fake::FakeRuntime;
    use serde_json::json;

    use super::*;
    use crate::test_api::UnreachableApi;

    const POD: PodIdentity<'static> = PodIdentity { uid: "uid", namespace: "n", name: "p", service_account: "" };

    #[test]
    fn pulls_beyond_the_rate_are_refused() {
        let rate = PullRate { per_second: 2, burst: 3 };
        let throttle = PullThrottle { rate, left: Mutex::new((3.0, Duration::ZERO)) };
        for (millis, expected) in [(0, true), (0, true), (0, true), (0, false), (500, true), (600, false), (5000, true)]
        {
            assert_eq!(throttle.try_accept(Duration::from_millis(millis)), expected, "at {millis}");
        }
    }

    /// An image that one pod pulled with its secret is not for others that have none.
    #[tokio::test]
    async fn images_pulled_with_a_secret_are_pulled_again_for_others() {
        let runtime = Arc::new(FakeRuntime::default());
        runtime.add_pullable("r.example/private:1", 1);
        runtime.add_image("r.example/preloaded:1", 1);
        let env = Env::real();
        let recorder = EventRecorder::new(client::Client::new(UnreachableApi), env.clone(), "kubelet", "node");
        let images = ImageManager::new(runtime.clone(), env, recorder, 1, Metrics::default());
        let secret = |uid: &str, password: &str| {
            let config = json!({"auths": {"r.example": {"username": "u", "password": password}}}).to_string();
            let data = k8s_openapi::ByteString(config.into_bytes());
            let mut secret = Secret { data: Some([(".dockerconfigjson".into(), data)].into()), ..Default::default() };
            secret.metadata.uid = Some(uid.into());
            Arc::new(secret)
        };
        let pulls = || runtime.calls().iter().filter(|call| call.starts_with("pull_image")).count();
        let check = async |image: &str, policy: &str, secrets: &[Arc<Secret>], refused: bool, expected: usize| {
            let container =
                Container { image: Some(image.into()), image_pull_policy: Some(policy.into()), ..Container::default() };
            let found = images.ensure(&ObjectRef::default(), POD, &container, secrets).await;
            assert_eq!((found.is_err(), pulls()), (refused, expected), "{image} {policy} {secrets:?}");
        };
        check("r.example/preloaded:1", "IfNotPresent", &[], false, 0).await;
        check("r.example/private:1", "IfNotPresent", &[secret("a", "x")], false, 1).await;
        check("r.example/private:1", "IfNotPresent", &[secret("a", "x")], false, 1).await;
        check("r.example/private:1", "IfNotPresent", &[secret("b", "x")], false, 1).await;
        check("r.example/private:1", "IfNotPresent", &[secret("c", "y")], false, 2).await;
        check("r.example/private:1", "Never", &[], true, 2).await;
        // The registry lets it be had without a secret, so everyone may have it.
        check("r.example/private:1", "IfNotPresent", &[], false, 3).await;
        check("r.example/private:1", "Never", &[], false, 3).await;
    }

    /// What the runtime says is said once, and again while the next try waits.
    #[tokio::test]
    async fn pods_show_the_words_of_the_runtime() {
        let env = Env::real();
        let recorder = EventRecorder::new(client::Client::new(UnreachableApi), env.clone(), "kubelet", "node");
        let runtime = Arc::new(FakeRuntime::default());
        let images = ImageManager::new(runtime.clone(), env, recorder, 1, Metrics::default());
        for (number, (error, reason, message)) in [
            ("rpc error: code = NotFound desc = no", "ErrImagePull", "rpc error: code = NotFound desc = no"),
            ("rpc error: code = Unknown desc = no", "ErrImagePull", "no"),
            (
                "rpc error: code = Unknown desc = RegistryUnavailable: no route",
                "RegistryUnavailable",
                "image pull failed for r.example/a:2 because the registry is unavailable: no route",
            ),
            (
                "rpc error: code = Unknown desc = SignatureValidationFailed: not signed",
                "SignatureValidationFailed",
                "image pull failed for r.example/a:3 because the signature validation failed: not signed",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            runtime.fail_next("pull_image", cri::Error::Other(error.into()));
            let image = format!("r.example/a:{number}");
            let container = Container { image: Some(image.clone()), ..Container::default() };
            let next = format!("Back-off pulling image {image:?}: {reason}: {message}");
            for (reason, message) in [(reason, message), ("ImagePullBackOff", next.as_str())] {
                let waiting = images.ensure(&ObjectRef::default(), POD, &container, &[]).await.unwrap_err();
                assert_eq!((waiting.reason(), waiting.to_string().as_str()), (reason, message));
            }
        }
    }

    #[test]
    fn durations_look_like_gos() {
        let check = |millis, expected: &str| assert_eq!(go_duration(Duration::from_millis(millis)), expected);
        check(0, "0s");
        check(87, "87ms");
        check(1234, "1.234s");
        check(2000, "2s");
        check(123_500, "2m3.5s");
        check(3_600_000, "1h0m0s");
    }
}
