//! What is recorded of requests and where it goes, as flags with upstream's names.
//! Part of the flags of every command that serves the API.
//! The files it names are read where they are used.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use apiserver::config::audit::{Audit, BatchOptions, LogOptions, TruncateOptions, WebhookOptions};
use clap::{Args, builder::BoolishValueParser};

use super::security_flags::duration;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Audit")]
pub struct AuditFlags {
    /// Which requests are recorded, and how much of them (audit.k8s.io/v1 Policy); nothing is without it
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// Record events in this file; "-": on standard output
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// How many days old audit logs are kept; 0: for ever
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    audit_log_maxage: u32,
    /// How many old audit logs are kept; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    audit_log_maxbackup: usize,
    /// How large an audit log may become before another is begun; 0: 100
    #[arg(long, value_name = "MEGABYTES", default_value_t = 0)]
    audit_log_maxsize: u64,
    /// Compress old audit logs with gzip
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    audit_log_compress: bool,
    /// How events are written: json or legacy
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    audit_log_format: String,
    /// API group and version of events in the log
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1")]
    audit_log_version: String,
    /// When events are written: batch, blocking or blocking-strict
    #[arg(long, value_name = "MODE", default_value = "blocking")]
    audit_log_mode: String,
    /// How many events wait to be written, in batch mode
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    audit_log_batch_buffer_size: usize,
    /// How many events are written at once, in batch mode
    #[arg(long, value_name = "N", default_value_t = 1)]
    audit_log_batch_max_size: usize,
    /// How long a batch waits to be full, in batch mode
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    audit_log_batch_max_wait: Duration,
    /// Limit how often batches are written
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    audit_log_batch_throttle_enable: bool,
    /// How many batches are written a second, on the average
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    audit_log_batch_throttle_qps: f64,
    /// How many batches are written at once after a pause
    #[arg(long, value_name = "N", default_value_t = 0)]
    audit_log_batch_throttle_burst: usize,
    /// Leave objects out of events that are too large
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    audit_log_truncate_enabled: bool,
    /// How large a batch may be
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    audit_log_truncate_max_batch_size: usize,
    /// How large an event may be
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    audit_log_truncate_max_event_size: usize,
    /// Kubeconfig of a service that events are sent to
    #[arg(long, value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// How long to wait after the first failure to send
    #[arg(long, alias = "audit-webhook-batch-initial-backoff", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    audit_webhook_initial_backoff: Duration,
    /// API group and version of events that are sent
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1")]
    audit_webhook_version: String,
    /// When events are sent: batch, blocking or blocking-strict
    #[arg(long, value_name = "MODE", default_value = "batch")]
    audit_webhook_mode: String,
    /// How many events wait to be sent, in batch mode
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    audit_webhook_batch_buffer_size: usize,
    /// How many events are sent at once, in batch mode
    #[arg(long, value_name = "N", default_value_t = 400)]
    audit_webhook_batch_max_size: usize,
    /// How long a batch waits to be full, in batch mode
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    audit_webhook_batch_max_wait: Duration,
    /// Limit how often batches are sent
    #[arg(long, value_name = "BOOL", default_value = "true", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    audit_webhook_batch_throttle_enable: bool,
    /// How many batches are sent a second, on the average
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    audit_webhook_batch_throttle_qps: f64,
    /// How many batches are sent at once after a pause
    #[arg(long, value_name = "N", default_value_t = 15)]
    audit_webhook_batch_throttle_burst: usize,
    /// Leave objects out of events that are too large to send
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    audit_webhook_truncate_enabled: bool,
    /// How large a batch that is sent may be
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    audit_webhook_truncate_max_batch_size: usize,
    /// How large an event that is sent may be
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    audit_webhook_truncate_max_event_size: usize,
}

impl AuditFlags {
    pub fn options(&self) -> Result<Audit> {
        let log = LogOptions {
            path: self.audit_log_path.clone(),
            max_age_days: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            max_size_megabytes: self.audit_log_maxsize,
            format: self.audit_log_format.clone(),
            version: self.audit_log_version.clone(),
            compress: self.audit_log_compress,
            batch: BatchOptions {
                mode: self.audit_log_mode.clone(),
                buffer_size: self.audit_log_batch_buffer_size,
                max_size: self.audit_log_batch_max_size,
                max_wait: self.audit_log_batch_max_wait,
                throttle: self.audit_log_batch_throttle_enable,
                throttle_qps: self.audit_log_batch_throttle_qps,
                throttle_burst: self.audit_log_batch_throttle_burst,
            },
            truncate: TruncateOptions {
                enabled: self.audit_log_truncate_enabled,
                max_batch_bytes: self.audit_log_truncate_max_batch_size,
                max_event_bytes: self.audit_log_truncate_max_event_size,
            },
        };
        let webhook = WebhookOptions {
            config_file: self.audit_webhook_config_file.clone(),
            initial_backoff: self.audit_webhook_initial_backoff,
            version: self.audit_webhook_version.clone(),
            batch: BatchOptions {
                mode: self.audit_webhook_mode.clone(),
                buffer_size: self.audit_webhook_batch_buffer_size,
                max_size: self.audit_webhook_batch_max_size,
                max_wait: self.audit_webhook_batch_max_wait,
                throttle: self.audit_webhook_batch_throttle_enable,
                throttle_qps: self.audit_webhook_batch_throttle_qps,
                throttle_burst: self.audit_webhook_batch_throttle_burst,
            },
            truncate: TruncateOptions {
                enabled: self.audit_webhook_truncate_enabled,
                max_batch_bytes: self.audit_webhook_truncate_max_batch_size,
                max_event_bytes: self.audit_webhook_truncate_max_event_size,
            },
        };
        let options = Audit { policy_file: self.audit_policy_file.clone(), log, webhook };
        options.check().map_err(anyhow::Error::msg)?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        audit: AuditFlags,
    }

    #[test]
    fn flags_become_options() {
        let check = |line: &str, show: &dyn Fn(Audit) -> String, expected: &str| {
            let words = std::iter::once("minke").chain(line.split_whitespace());
            let options = Line::try_parse_from(words).map_err(anyhow::Error::from).and_then(|l| l.audit.options());
            assert_eq!(options.map_or_else(|e| e.to_string(), show), expected, "{line}");
        };
        // What is not said is as the library has it.
        check("", &|o| format!("{o:?}"), &format!("{:?}", Audit::default()));
        let log = "--audit-policy-file=p --audit-log-path=- --audit-log-maxage=3 --audit-log-maxbackup=4 \
                   --audit-log-maxsize=5 --audit-log-compress --audit-log-mode=batch --audit-log-batch-max-size=7";
        let show = |o: Audit| {
            let log = o.log;
            let (age, backups, size) = (log.max_age_days, log.max_backups, log.max_size_megabytes);
            format!("{:?} {:?} {age} {backups} {size} {} {}", o.policy_file, log.path, log.compress, log.batch.max_size)
        };
        check(log, &show, "Some(\"p\") Some(\"-\") 3 4 5 true 7");
        let webhook = "--audit-webhook-config-file=k --audit-webhook-batch-initial-backoff=2s \
                       --audit-webhook-truncate-enabled --audit-webhook-batch-throttle-enable=false";
        let show = |o: Audit| {
            let (webhook, enabled) = (&o.webhook, o.webhook.truncate.enabled);
            format!("{:?} {:?} {enabled} {}", webhook.config_file, webhook.initial_backoff, webhook.batch.throttle)
        };
        check(webhook, &show, "Some(\"k\") 2s true false");
        // Each of the rest, with a value of its own.
        type Show = fn(&Audit) -> (BatchOptions, TruncateOptions);
        let backends: [(&str, Show); 2] = [
            ("log", |o| (o.log.batch.clone(), o.log.truncate.clone())),
            ("webhook", |o| (o.webhook.batch.clone(), o.webhook.truncate.clone())),
        ];
        for (backend, batch) in backends {
            let line = format!(
                "--audit-{backend}-mode=batch --audit-{backend}-batch-buffer-size=11 --audit-{backend}-batch-max-size=7 \
                 --audit-{backend}-batch-max-wait=3s --audit-{backend}-batch-throttle-enable=true \
                 --audit-{backend}-batch-throttle-qps=1.5 --audit-{backend}-batch-throttle-burst=9 \
                 --audit-{backend}-truncate-enabled --audit-{backend}-truncate-max-batch-size=2000 \
                 --audit-{backend}-truncate-max-event-size=1000"
            );
            let show = |o: Audit| {
                let (b, t) = batch(&o);
                let throttle = format!("{} {} {}", b.throttle, b.throttle_qps, b.throttle_burst);
                let truncate = format!("{} {} {}", t.enabled, t.max_batch_bytes, t.max_event_bytes);
                format!("{} {} {} {:?} {throttle} {truncate}", b.mode, b.buffer_size, b.max_size, b.max_wait)
            };
            check(&line, &show, "batch 11 7 3s true 1.5 9 true 2000 1000");
        }
        let show = |o: Audit| format!("{} {} {:?}", o.log.version, o.webhook.version, o.webhook.initial_backoff);
        let versions = "--audit-log-version=audit.k8s.io/v1 --audit-webhook-version=audit.k8s.io/v1 \
                        --audit-webhook-initial-backoff=1s";
        check(versions, &show, "audit.k8s.io/v1 audit.k8s.io/v1 1s");
        let wrong = "--audit-log-path=- --audit-log-format=xml";
        check(wrong, &show, "invalid audit log format xml, allowed formats are \"legacy,json\"");
    }
}
