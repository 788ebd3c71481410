//! What an operator says about auditing: the flags `--audit-*` as values, with upstream's defaults and checks.
//! Filled in by `minke` and by tests; used by `audit`.
//! Nothing here changes later.

use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, Default)]
pub struct Audit {
    /// `--audit-policy-file`. Without it nothing is recorded.
    pub policy_file: Option<PathBuf>,
    pub log: LogOptions,
    pub webhook: WebhookOptions,
}

#[derive(Debug, Clone)]
pub struct LogOptions {
    /// `-`: standard output.
    pub path: Option<PathBuf>,
    /// How many days old files are kept; 0: for ever.
    pub max_age_days: u32,
    /// How many old files are kept; 0: all.
    pub max_backups: usize,
    /// Beyond this, another file is begun; 0: 100.
    pub max_size_megabytes: u64,
    /// `json` or `legacy`.
    pub format: String,
    pub version: String,
    pub compress: bool,
    pub batch: BatchOptions,
    pub truncate: TruncateOptions,
}

#[derive(Debug, Clone)]
pub struct WebhookOptions {
    /// A kubeconfig.
    pub config_file: Option<PathBuf>,
    pub initial_backoff: Duration,
    pub version: String,
    pub batch: BatchOptions,
    pub truncate: TruncateOptions,
}

#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// `batch`, `blocking` or `blocking-strict`.
    pub mode: String,
    pub buffer_size: usize,
    pub max_size: usize,
    pub max_wait: Duration,
    pub throttle: bool,
    pub throttle_qps: f64,
    pub throttle_burst: usize,
}

#[derive(Debug, Clone)]
pub struct TruncateOptions {
    pub enabled: bool,
    pub max_batch_bytes: usize,
    pub max_event_bytes: usize,
}

const MODES: [&str; 3] = ["batch", "blocking", "blocking-strict"];
const FORMATS: [&str; 2] = ["legacy", "json"];
pub const VERSION: &str = "audit.k8s.io/v1";

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            path: None,
            max_age_days: 0,
            max_backups: 0,
            max_size_megabytes: 0,
            format: "json".into(),
            version: VERSION.into(),
            compress: false,
            batch: BatchOptions::LOG.of_mode("blocking"),
            truncate: TruncateOptions::default(),
        }
    }
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            config_file: None,
            initial_backoff: Duration::from_secs(10),
            version: VERSION.into(),
            batch: BatchOptions::WEBHOOK.of_mode("batch"),
            truncate: TruncateOptions::default(),
        }
    }
}

impl Default for TruncateOptions {
    fn default() -> Self {
        Self { enabled: false, max_batch_bytes: 10 << 20, max_event_bytes: 100 << 10 }
    }
}

impl BatchOptions {
    /// Of a file, which is written event by event.
    pub const LOG: Self = Self {
        mode: String::new(),
        buffer_size: 10_000,
        max_size: 1,
        max_wait: Duration::ZERO,
        throttle: false,
        throttle_qps: 0.0,
        throttle_burst: 0,
    };
    pub const WEBHOOK: Self = Self {
        mode: String::new(),
        buffer_size: 10_000,
        max_size: 400,
        max_wait: Duration::from_secs(30),
        throttle: true,
        throttle_qps: 10.0,
        throttle_burst: 15,
    };

    fn of_mode(self, mode: &str) -> Self {
        Self { mode: mode.into(), ..self }
    }

    fn check(&self, plugin: &str) -> Result<(), String> {
        if !MODES.contains(&self.mode.as_str()) {
            let allowed = MODES.join(",");
            return Err(format!("invalid audit {plugin} mode {}, allowed modes are {allowed:?}", self.mode));
        }
        let positive = |what: &str, value: f64| match value > 0.0 {
            true => Ok(()),
            false => Err(format!("invalid audit batch {plugin} {what} {value}, must be a positive number")),
        };
        if self.mode != "batch" {
            return Ok(());
        }
        positive("buffer size", self.buffer_size as f64)?;
        positive("max batch size", self.max_size as f64)?;
        if self.throttle {
            positive("throttle QPS", self.throttle_qps)?;
            positive("throttle burst", self.throttle_burst as f64)?;
        }
        Ok(())
    }
}

impl TruncateOptions {
    fn check(&self, plugin: &str) -> Result<(), String> {
        let (event, batch) = (self.max_event_bytes, self.max_batch_bytes);
        if event == 0 {
            return Err(format!("invalid audit truncate {plugin} max event size {event}, must be a positive number"));
        }
        if batch < event {
            return Err(format!(
                "invalid audit truncate {plugin} max batch size {batch}, must be greater than max event size ({event})"
            ));
        }
        Ok(())
    }
}

fn check_version(version: &str) -> Result<(), String> {
    match version == VERSION {
        true => Ok(()),
        false => Err(format!("invalid group version, allowed versions are [{VERSION:?}]")),
    }
}

impl Audit {
    /// In upstream's words; what is off is not looked at.
    pub fn check(&self) -> Result<(), String> {
        let log = &self.log;
        if log.path.is_some() {
            log.batch.check("log")?;
            log.truncate.check("log")?;
            check_version(&log.version)?;
            if !FORMATS.contains(&log.format.as_str()) {
                let allowed = FORMATS.join(",");
                return Err(format!("invalid audit log format {}, allowed formats are {allowed:?}", log.format));
            }
        }
        let webhook = &self.webhook;
        if webhook.config_file.is_some() {
            webhook.batch.check("webhook")?;
            webhook.truncate.check("webhook")?;
            check_version(&webhook.version)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_where_they_count() {
        let check = |change: &dyn Fn(&mut Audit), expected: Result<(), &str>| {
            let mut audit = Audit::default();
            audit.log.path = Some("-".into());
            audit.webhook.config_file = Some("k".into());
            change(&mut audit);
            assert_eq!(audit.check(), expected.map_err(str::to_string));
        };
        check(&|_| {}, Ok(()));
        let modes = "invalid audit log mode later, allowed modes are \"batch,blocking,blocking-strict\"";
        check(&|a| a.log.batch.mode = "later".into(), Err(modes));
        check(&|a| a.log.batch.buffer_size = 0, Ok(()));
        check(
            &|a| a.webhook.batch.buffer_size = 0,
            Err("invalid audit batch webhook buffer size 0, must be a positive number"),
        );
        check(
            &|a| a.webhook.batch.throttle_qps = -1.0,
            Err("invalid audit batch webhook throttle QPS -1, must be a positive number"),
        );
        check(
            &|a| a.log.truncate.max_batch_bytes = 7,
            Err("invalid audit truncate log max batch size 7, must be greater than max event size (102400)"),
        );
        let formats = "invalid audit log format xml, allowed formats are \"legacy,json\"";
        check(&|a| a.log.format = "xml".into(), Err(formats));
        check(
            &|a| {
                a.log.format = "xml".into();
                a.log.path = None;
            },
            Ok(()),
        );
        check(
            &|a| a.webhook.version = "audit.k8s.io/v2".into(),
            Err("invalid group version, allowed versions are [\"audit.k8s.io/v1\"]"),
        );
    }
}
