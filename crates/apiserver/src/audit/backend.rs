//! Where events go: the log file and the webhook, at once or in batches.
//! Fed by `audit`; made from `options`.
//! In a blocking mode an event is with its backend before the request goes on; in batches a full buffer loses events, and
//! says so in the log and in `apiserver_audit_error_total`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use env::Env;

use super::{
    AuditMetrics,
    event::{Event, event_list},
    log_file::LogFile,
    options::{Audit as Options, BatchOptions, TruncateOptions},
    policy::{Level, Stage},
};
use crate::transport::webhook_client::{self, Endpoint};

const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);
const WEBHOOK_ATTEMPTS_MAX: u32 = 5;
const BACKOFF_FACTOR: f64 = 1.5;
const BACKOFF_JITTER: f64 = 0.2;
/// Batches on their way to a webhook at once; beyond that the buffer fills.
const BATCHES_UNDER_WAY_MAX: usize = 64;
/// How long a server that ends waits for what is still to be delivered.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

enum Target {
    Log { file: LogFile, is_legacy: bool },
    Webhook { endpoint: Box<Endpoint>, initial_backoff: Duration },
}

/// What delivers, shared with the task of a batching backend.
struct Delivery {
    target: Target,
    truncate: TruncateOptions,
    metrics: Arc<AuditMetrics>,
    env: Env,
}

enum Mode {
    Blocking { strict: bool },
    Batch(Batching),
}

struct Batching {
    buffer: mpsc::Sender<Bytes>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

pub struct Backend {
    delivery: Arc<Delivery>,
    mode: Mode,
}

/// What became of an event: whether the request may go on, or what is to be waited for to know.
pub enum Submitted {
    Done(bool),
    Under(BoxFuture<'static, bool>),
}

/// Those that are configured.
pub fn backends(options: &Options, metrics: &Arc<AuditMetrics>, env: &Env) -> Result<Vec<Backend>, String> {
    let mut found = Vec::new();
    if let Some(path) = &options.log.path {
        let log = &options.log;
        let target = Target::Log { file: LogFile::open(log, path, env)?, is_legacy: log.format == "legacy" };
        found.push(Backend::new(target, &log.batch, &log.truncate, metrics, env));
    }
    if let Some(path) = &options.webhook.config_file {
        let webhook = &options.webhook;
        let endpoint = webhook_client::from_kubeconfig(path).map_err(|e| format!("initializing audit webhook: {e}"))?;
        let target = Target::Webhook { endpoint: Box::new(endpoint), initial_backoff: webhook.initial_backoff };
        found.push(Backend::new(target, &webhook.batch, &webhook.truncate, metrics, env));
    }
    Ok(found)
}

impl Backend {
    fn new(
        target: Target,
        batch: &BatchOptions,
        truncate: &TruncateOptions,
        metrics: &Arc<AuditMetrics>,
        env: &Env,
    ) -> Self {
        let (truncate, metrics) = (truncate.clone(), metrics.clone());
        let delivery = Arc::new(Delivery { target, truncate, metrics, env: env.clone() });
        let mode = match batch.mode.as_str() {
            "batch" => Mode::Batch(Batching::start(&delivery, batch)),
            mode => Mode::Blocking { strict: mode == "blocking-strict" },
        };
        Self { delivery, mode }
    }

    /// `json`: the event as a line, if any backend has made it already.
    pub fn submit(&self, event: &Event, stage: Stage, at: Timestamp, json: &mut Option<Bytes>) -> Submitted {
        let Some(line) = self.delivery.line(event, stage, at, json) else { return Submitted::Done(true) };
        match &self.mode {
            Mode::Batch(batching) => {
                if batching.buffer.try_send(line).is_err() {
                    self.delivery.failed("buffered", "audit buffer queue blocked", 1);
                }
                Submitted::Done(true)
            }
            Mode::Blocking { strict } => match &self.delivery.target {
                Target::Log { .. } => Submitted::Done(self.delivery.write(&[line]) || !strict),
                Target::Webhook { .. } => {
                    let (delivery, strict) = (self.delivery.clone(), *strict);
                    Submitted::Under(Box::pin(async move { delivery.post(vec![line]).await || !strict }))
                }
            },
        }
    }

    /// Delivers what is buffered; nothing comes after it.
    pub async fn close(&self) {
        let Mode::Batch(batching) = &self.mode else { return };
        batching.stop.cancel();
        let task = batching.task.lock().take();
        if let Some(task) = task
            && self.delivery.env.timeout(DRAIN_TIMEOUT, task).await.is_none()
        {
            tracing::error!("the audit backend did not take everything in time");
        }
    }
}

impl Delivery {
    /// The event as the target takes it; nothing if it is too large even without its objects.
    fn line(&self, event: &Event, stage: Stage, at: Timestamp, json: &mut Option<Bytes>) -> Option<Bytes> {
        if let Target::Log { is_legacy: true, .. } = self.target {
            return Some(event.legacy_line(stage));
        }
        let mut line = json.get_or_insert_with(|| event.json(stage, at)).clone();
        if !self.truncate.enabled {
            return Some(line);
        }
        if line.len() > self.truncate.max_event_bytes && event.level >= Level::Request {
            line = event.truncated_json(stage, at);
        }
        if line.len() > self.truncate.max_event_bytes {
            self.failed("truncate", "event is too large even after truncating", 1);
            return None;
        }
        Some(line)
    }

    fn failed(&self, plugin: &'static str, error: &str, events: usize) {
        self.metrics.failed(plugin, events as u64);
        tracing::error!(plugin, error, events, "failed to record audit events");
    }

    fn write(&self, lines: &[Bytes]) -> bool {
        let Target::Log { file, .. } = &self.target else { return true };
        let written = match lines {
            [line] => file.write(line),
            lines => file.write(&lines.concat()),
        };
        if let Err(error) = &written {
            self.failed("log", &error.to_string(), lines.len());
        }
        written.is_ok()
    }

    /// Tries again whatever the failure was: hardly any is a reason to lose a record.
    async fn post(&self, events: Vec<Bytes>) -> bool {
        let Target::Webhook { endpoint, initial_backoff } = &self.target else { return true };
        let list = event_list(&events);
        let mut delay = *initial_backoff;
        for attempt in 1.. {
            let error = match endpoint.send(&self.env, WEBHOOK_TIMEOUT, list.clone()).await {
                Ok(_) => return true,
                Err(error) => error,
            };
            if attempt == WEBHOOK_ATTEMPTS_MAX {
                self.failed("webhook", &error, events.len());
                break;
            }
            self.env.sleep(delay.mul_f64(1.0 + BACKOFF_JITTER * self.env.random_fraction())).await;
            delay = delay.mul_f64(BACKOFF_FACTOR);
        }
        false
    }

    /// In pieces that are not too large.
    fn batches(&self, events: Vec<Bytes>) -> Vec<Vec<Bytes>> {
        let mut batches: Vec<(usize, Vec<Bytes>)> = Vec::new();
        for event in events {
            match batches.last_mut() {
                Some((bytes, batch))
                    if !self.truncate.enabled || *bytes + event.len() <= self.truncate.max_batch_bytes =>
                {
                    *bytes += event.len();
                    batch.push(event);
                }
                _ => batches.push((event.len(), vec![event])),
            }
        }
        batches.into_iter().map(|(_, batch)| batch).collect()
    }
}

impl Batching {
    fn start(delivery: &Arc<Delivery>, options: &BatchOptions) -> Self {
        let (buffer, events) = mpsc::channel(options.buffer_size);
        let stop = CancellationToken::new();
        let run = run(delivery.clone(), events, options.clone(), stop.clone());
        let task = Mutex::new(Some(delivery.env.spawn(run)));
        Self { buffer, stop, task }
    }
}

/// Collects batches and delivers them until it is told to stop, and then what is left.
async fn run(
    delivery: Arc<Delivery>,
    mut events: mpsc::Receiver<Bytes>,
    options: BatchOptions,
    stop: CancellationToken,
) {
    let under_way = Arc::new(Semaphore::new(BATCHES_UNDER_WAY_MAX));
    let mut throttle = Throttle::new(&options);
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            received = events.recv_many(&mut batch, options.max_size) => if received == 0 { break },
            () = stop.cancelled() => break,
        }
        // From the first event on, so that an idle server wakes nobody.
        let full = async {
            while batch.len() < options.max_size {
                let missing = options.max_size - batch.len();
                if events.recv_many(&mut batch, missing).await == 0 {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            _ = delivery.env.timeout(options.max_wait, full) => {}
            () = stop.cancelled() => {}
        }
        delivery.env.sleep(throttle.take(delivery.env.monotonic())).await;
        deliver(&delivery, &under_way, batch).await;
    }
    events.close();
    let mut rest = Vec::new();
    while events.recv_many(&mut rest, options.max_size).await > 0 {
        deliver(&delivery, &under_way, std::mem::take(&mut rest)).await;
    }
    // All of them back: everything is delivered.
    let _ = under_way.acquire_many(BATCHES_UNDER_WAY_MAX as u32).await;
}

async fn deliver(delivery: &Arc<Delivery>, under_way: &Arc<Semaphore>, events: Vec<Bytes>) {
    if let Target::Log { .. } = delivery.target {
        delivery.write(&events);
        return;
    }
    for batch in delivery.batches(events) {
        let Ok(place) = under_way.clone().acquire_owned().await else { return };
        let delivery = delivery.clone();
        delivery.env.clone().spawn(async move {
            delivery.post(batch).await;
            drop(place);
        });
    }
}

/// So many batches a second on the average, and so many at once.
struct Throttle {
    per_second: Option<f64>,
    burst: f64,
    tokens: f64,
    at: Duration,
}

impl Throttle {
    fn new(options: &BatchOptions) -> Self {
        let burst = options.throttle_burst as f64;
        Self { per_second: options.throttle.then_some(options.throttle_qps), burst, tokens: burst, at: Duration::ZERO }
    }

    /// How long the next batch has to wait.
    fn take(&mut self, now: Duration) -> Duration {
        let Some(per_second) = self.per_second else { return Duration::ZERO };
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * per_second).min(self.burst) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.tokens / per_second).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_throttled() {
        let mut throttle = Throttle::new(&BatchOptions { throttle_burst: 2, ..BatchOptions::WEBHOOK });
        let mut check = |now_ms: u64, wait_ms: u64| {
            let wait = throttle.take(Duration::from_millis(now_ms));
            assert_eq!(wait.as_millis() as u64, wait_ms, "at {now_ms}");
        };
        check(0, 0);
        check(0, 0);
        check(0, 100);
        check(100, 100);
        check(1000, 0);
    }
}
