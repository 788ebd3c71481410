//! The pod lifecycle event generator: tells which pods to look at because something happened in the runtime.
//! Fed by the runtime's events and by a slow relist; read by `sync_loop`.
//! Never starts or stops a container, and carries no news beyond a pod's UID.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cri::{Runtime, RuntimeEvent, v1};
use env::Env;
use futures::StreamExt;
use metrics::Metrics;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    images::image_manager::ImageManager,
    node::node_metrics::{RELIST_DURATION, RELIST_INTERVAL, RELIST_SEEN},
    pod::pod_wakes::PodWakes,
    runtime::{container_config::POD_UID, container_exits::ContainerExits},
};

/// Where the runtime has no events at all, this is how often it is asked.
const RELIST_INTERVAL_WITHOUT_EVENTS: Duration = Duration::from_secs(1);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

/// What one pod has, as far as a relist tells: ids and states.
type Seen = HashMap<String, i32>;

pub struct Pleg {
    runtime: Arc<dyn Runtime>,
    env: Env,
    images: Arc<ImageManager>,
    relist_interval: Duration,
    wakes: PodWakes,
    exits: ContainerExits,
    metrics: Metrics,
    /// Told when the runtime answers again after it did not.
    pub back: Arc<Notify>,
    /// Pod UID by container or sandbox id.
    owners: Mutex<HashMap<String, String>>,
    last: Mutex<HashMap<String, Seen>>,
    /// Monotonic time of the last successful look at the runtime; health checks read it.
    healthy_at: Mutex<Duration>,
}

impl Pleg {
    pub fn new(
        runtime: Arc<dyn Runtime>,
        env: Env,
        images: Arc<ImageManager>,
        relist_interval: Duration,
        wakes: PodWakes,
        exits: ContainerExits,
        metrics: Metrics,
    ) -> Self {
        let healthy_at = Mutex::new(env.monotonic());
        Self {
            runtime,
            env,
            images,
            relist_interval,
            wakes,
            exits,
            metrics,
            back: Arc::new(Notify::new()),
            owners: Mutex::default(),
            last: Mutex::default(),
            healthy_at,
        }
    }

    /// How long ago the runtime last answered.
    pub fn silence(&self) -> Duration {
        self.env.monotonic().saturating_sub(*self.healthy_at.lock())
    }

    pub async fn run(self: Arc<Self>) {
        let mut with_events = true;
        loop {
            let mut events = self.runtime.events().await.ok();
            // Whatever happened while nobody listened.
            self.images.invalidate();
            if self.relist().await {
                self.back.notify_one();
            }
            let mut relisted_at = self.env.monotonic();
            loop {
                let interval = if with_events { self.relist_interval } else { RELIST_INTERVAL_WITHOUT_EVENTS };
                // Counted from the last look: on a busy node events never leave a whole interval between them.
                let wait = (relisted_at + interval).saturating_sub(self.env.monotonic());
                let next = async {
                    match &mut events {
                        Some(stream) => stream.next().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    // The relist comes first when it is due, however many events are waiting.
                    biased;
                    () = self.env.sleep(wait) => {
                        self.relist().await;
                        relisted_at = self.env.monotonic();
                    }
                    event = next => match event {
                        Some(Ok(event)) => self.handle(event).await,
                        Some(Err(cri::Error::Unimplemented(_))) => {
                            with_events = false;
                            events = None;
                        }
                        Some(Err(_)) | None => break,
                    },
                }
            }
            self.env.sleep(RECONNECT_INTERVAL).await;
        }
    }

    async fn handle(self: &Arc<Self>, event: RuntimeEvent) {
        match event {
            RuntimeEvent::ImagesChanged => self.images.invalidate(),
            RuntimeEvent::Exited { id } => {
                // The runtime tells of an exit before its own status shows it, so this waits; others must not.
                let pleg = self.clone();
                self.env.spawn(async move { pleg.settle(&id).await });
            }
            // We started it ourselves and know.
            RuntimeEvent::Started { .. } => {}
            RuntimeEvent::OutOfMemory { id } | RuntimeEvent::Deleted { id } => {
                if let Some(uid) = self.owners.lock().get(&id) {
                    self.wakes.wake(uid);
                }
            }
        }
    }

    /// Waits until the runtime's status of an exited container or sandbox says so, then wakes its pod.
    async fn settle(&self, id: &str) {
        let mut delay = Duration::from_millis(1);
        for _ in 0..12 {
            if let Ok(answer) = self.runtime.container_status(id, false).await {
                let status = answer.status.unwrap_or_default();
                // "Created" is what one shows that ended while it was being started.
                let ended = [v1::ContainerState::ContainerExited, v1::ContainerState::ContainerUnknown];
                if ended.contains(&status.state()) {
                    self.exits.announce(id);
                    return self.wake_owner(&status.labels);
                }
            } else {
                let Ok(answer) = self.runtime.pod_sandbox_status(id, false).await else { return };
                let status = answer.status.unwrap_or_default();
                if status.state() == v1::PodSandboxState::SandboxNotready {
                    return self.wake_owner(&status.labels);
                }
            }
            self.env.sleep(delay).await;
            delay *= 2;
        }
        self.relist().await;
    }

    fn wake_owner(&self, labels: &HashMap<String, String>) {
        if let Some(uid) = labels.get(POD_UID) {
            self.wakes.wake(uid);
        }
    }

    /// Compares all there is with what there was.
    /// `false`: the runtime did not answer.
    pub async fn relist(&self) -> bool {
        let began = self.env.monotonic();
        let lists = tokio::try_join!(self.runtime.list_pod_sandboxes(None), self.runtime.list_containers(None));
        let (sandboxes, containers) = match lists {
            Ok(lists) => lists,
            Err(error) => {
                tracing::warn!(%error, "failed to list containers");
                return false;
            }
        };
        let ended = self.env.monotonic();
        let before = std::mem::replace(&mut *self.healthy_at.lock(), ended);
        self.metrics.observe(&RELIST_DURATION, &[], (ended - began).as_secs_f64());
        self.metrics.observe(&RELIST_INTERVAL, &[], ended.saturating_sub(before).as_secs_f64());
        self.metrics.set(&RELIST_SEEN, &[], self.env.now().as_second() as f64);
        let mut now: HashMap<String, Seen> = HashMap::new();
        let mut owners = HashMap::new();
        let all = sandboxes
            .into_iter()
            .map(|s| (s.labels, s.id, s.state))
            .chain(containers.into_iter().map(|c| (c.labels, c.id, c.state)));
        for (labels, id, state) in all {
            let Some(uid) = labels.get(POD_UID) else { continue };
            owners.insert(id.clone(), uid.clone());
            now.entry(uid.clone()).or_default().insert(id, state);
        }
        let mut last = self.last.lock();
        let uids: HashSet<&String> = last.keys().chain(now.keys()).collect();
        for uid in uids {
            if last.get(uid) == now.get(uid) {
                continue;
            }
            self.wakes.wake(uid);
            let after = now.get(uid);
            for (id, state) in last.get(uid).into_iter().flatten() {
                if after.and_then(|seen| seen.get(id)) != Some(state) {
                    self.exits.announce(id);
                }
            }
        }
        *last = now;
        *self.owners.lock() = owners;
        true
    }
}

#[cfg(test)]
mod tests {
    use client::{Client, EventRecorder};
    use cri::fake::FakeRuntime;

    use super::*;
    use crate::test_api::UnreachableApi;

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_events_does_not_put_off_the_relist() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let runtime = Arc::new(FakeRuntime::default());
        let recorder = EventRecorder::new(Client::new(UnreachableApi), env.clone(), "kubelet", "n");
        let images = Arc::new(ImageManager::new(runtime.clone(), env.clone(), recorder, 1, Metrics::default()));
        let wakes = PodWakes::default();
        let (minute, metrics) = (Duration::from_secs(60), Metrics::default());
        let pleg = Arc::new(Pleg::new(
            runtime.clone(),
            env.clone(),
            images,
            minute,
            wakes,
            ContainerExits::default(),
            metrics,
        ));
        let task = env.spawn(pleg.clone().run());
        for _ in 0..30 {
            env.sleep(Duration::from_secs(10)).await;
            runtime.exit("none", 0);
        }
        assert!(pleg.silence() <= Duration::from_secs(60), "{:?}", pleg.silence());
        task.abort();
    }
}
