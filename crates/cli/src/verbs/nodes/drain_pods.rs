//! Which pods of a node must go, and which of them stand in the way.
//! Used by `drain`.
//! Pure: decides from the pod, whether its DaemonSet exists, and the flags.

use serde_json::Value;

#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    pub force: bool,
    pub ignore_daemonsets: bool,
    pub delete_emptydir_data: bool,
    /// Pods that have been terminating for longer are left alone; 0 is never.
    pub skip_wait_for_delete_seconds: i64,
}

#[derive(Debug, PartialEq)]
pub enum Verdict {
    Go,
    /// Goes, with a warning.
    GoWithWarning(&'static str),
    Stay,
    /// Stays, with a warning.
    StayWithWarning(&'static str),
    /// Nothing is drained because of it.
    Blocks(&'static str),
}

pub const UNMANAGED: &str = "cannot delete Pods that declare no controller (use --force to override)";
pub const UNMANAGED_WARNING: &str = "deleting Pods that declare no controller";
pub const DAEMON_SET: &str = "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)";
pub const DAEMON_SET_WARNING: &str = "ignoring DaemonSet-managed Pods";
pub const LOCAL: &str = "cannot delete Pods with local storage (use --delete-emptydir-data to override)";
pub const LOCAL_WARNING: &str = "deleting Pods with local storage";
const MIRROR: &str = "kubernetes.io/config.mirror";

fn finished(pod: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default())
}

fn controller(pod: &Value) -> Option<&Value> {
    pod["metadata"]["ownerReferences"].as_array()?.iter().find(|o| o["controller"] == true)
}

pub fn verdict(pod: &Value, daemon_set_exists: bool, rules: Rules, now_seconds: i64) -> Verdict {
    if let Some(since) = pod["metadata"]["deletionTimestamp"].as_str() {
        let since = since.parse::<jiff::Timestamp>().map_or(now_seconds, |t| t.as_second());
        let skip = rules.skip_wait_for_delete_seconds;
        if skip > 0 && now_seconds - since > skip {
            return Verdict::Stay;
        }
    }
    if controller(pod).is_some_and(|o| o["kind"] == "DaemonSet") && !finished(pod) {
        return match (daemon_set_exists, rules.ignore_daemonsets) {
            (true, true) => Verdict::StayWithWarning(DAEMON_SET_WARNING),
            (true, false) => Verdict::Blocks(DAEMON_SET),
            (false, _) if rules.force => Verdict::GoWithWarning(UNMANAGED_WARNING),
            (false, _) => Verdict::Blocks(UNMANAGED),
        };
    }
    if pod["metadata"]["annotations"][MIRROR].is_string() {
        return Verdict::Stay;
    }
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let local = volumes.into_iter().any(|v| v["emptyDir"].is_object()) && !finished(pod);
    if local && !rules.delete_emptydir_data {
        return Verdict::Blocks(LOCAL);
    }
    if !finished(pod) && controller(pod).is_none() {
        return match rules.force {
            true => Verdict::GoWithWarning(UNMANAGED_WARNING),
            false => Verdict::Blocks(UNMANAGED),
        };
    }
    match local {
        true => Verdict::GoWithWarning(LOCAL_WARNING),
        false => Verdict::Go,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_go_stay_or_block() {
        let owned = |kind: &str| json!({"metadata": {"ownerReferences": [{"controller": true, "kind": kind}]}});
        let forced = Rules { force: true, ..Rules::default() };
        let ignoring = Rules { ignore_daemonsets: true, ..Rules::default() };
        let check = |pod: &Value, exists: bool, rules: Rules, wanted: Verdict| {
            assert_eq!(verdict(pod, exists, rules, 0), wanted, "{pod}");
        };
        check(&owned("ReplicaSet"), false, Rules::default(), Verdict::Go);
        check(&owned("DaemonSet"), true, Rules::default(), Verdict::Blocks(DAEMON_SET));
        check(&owned("DaemonSet"), true, ignoring, Verdict::StayWithWarning(DAEMON_SET_WARNING));
        check(&json!({}), false, Rules::default(), Verdict::Blocks(UNMANAGED));
        check(&json!({}), false, forced, Verdict::GoWithWarning(UNMANAGED_WARNING));
        check(&json!({"status": {"phase": "Succeeded"}}), false, Rules::default(), Verdict::Go);
        check(&json!({"metadata": {"annotations": {MIRROR: "x"}}}), false, Rules::default(), Verdict::Stay);
        let mut local = owned("ReplicaSet");
        local["spec"]["volumes"] = json!([{"emptyDir": {}}]);
        check(&local, false, Rules::default(), Verdict::Blocks(LOCAL));
    }
}
