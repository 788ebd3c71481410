//! How long work on volumes takes, by upstream's names of plugins and operations.
//! Used by `volume_manager` and by the mounter of CSI drivers.

use std::time::Duration;

use env::Env;
use metrics::Metrics;

use crate::node::node_metrics::STORAGE_DURATION;

pub fn observe(metrics: &Metrics, env: &Env, plugin: &str, operation: &str, began: Duration, is_ok: bool) {
    let status = if is_ok { "success" } else { "fail-unknown" };
    let took = env.monotonic().saturating_sub(began).as_secs_f64();
    metrics.observe(&STORAGE_DURATION, &[plugin, operation, status, "false"], took);
}
