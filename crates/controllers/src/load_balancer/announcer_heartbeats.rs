//! Which nodes that announce addresses are still heard of: they renew their Lease twice a second while they do.
//! Fed by the controller from Leases; `proxy` has the other half (`layer2_heartbeat.rs`).
//! Silence is measured on our own clock, from the last change we saw. Pure but for a lock.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use parking_lot::Mutex;

/// On the Lease of a node that announces addresses. Others are judged by their Node's condition alone.
pub const ANNOTATION: &str = "minke.io/layer2-heartbeat";
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Four beats; with the neighbours told, an address is elsewhere within three seconds.
const SILENCE_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// Not one that beats.
    Unknown,
    /// Silent after this long, if nothing more is heard.
    Alive(Duration),
    /// Its Lease as it was last seen.
    Silent(Option<MicroTime>),
    Lost,
}

#[derive(Default)]
pub struct AnnouncerHeartbeats(Mutex<HashMap<String, Beat>>);

struct Beat {
    renewed: Option<MicroTime>,
    heard: Duration,
    lost: bool,
}

/// What a Lease says that its node renewed last; `None` if the node does not beat.
fn renewed(lease: &Lease) -> Option<Option<MicroTime>> {
    lease.metadata.annotations.as_ref()?.get(ANNOTATION)?;
    Some(lease.spec.as_ref().and_then(|spec| spec.renew_time.clone()))
}

impl AnnouncerHeartbeats {
    /// Whether Services have to be looked at again: a node has begun to beat, or is back.
    pub fn hear(&self, node: &str, lease: Option<&Lease>, now: Duration) -> bool {
        let mut all = self.0.lock();
        let Some(renewed) = lease.and_then(renewed) else { return all.remove(node).is_some_and(|beat| beat.lost) };
        match all.get_mut(node) {
            Some(beat) if beat.renewed == renewed => false,
            Some(beat) => std::mem::replace(beat, Beat { renewed, heard: now, lost: false }).lost,
            None => all.insert(node.to_owned(), Beat { renewed, heard: now, lost: false }).is_none(),
        }
    }

    pub fn look(&self, node: &str, now: Duration) -> Heartbeat {
        let all = self.0.lock();
        let Some(beat) = all.get(node) else { return Heartbeat::Unknown };
        let left = (beat.heard + SILENCE_MAX).saturating_sub(now);
        match (beat.lost, left.is_zero()) {
            (true, _) => Heartbeat::Lost,
            (false, true) => Heartbeat::Silent(beat.renewed.clone()),
            (false, false) => Heartbeat::Alive(left),
        }
    }

    /// Nothing was heard, and the server itself knows of nothing newer.
    pub fn give_up(&self, node: &str) {
        if let Some(beat) = self.0.lock().get_mut(node) {
            beat.lost = true;
        }
    }

    pub fn is_lost(&self, node: &str) -> bool {
        self.0.lock().get(node).is_some_and(|beat| beat.lost)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn silence_is_counted_from_the_last_beat_heard() {
        let lease = |second: u8, beats: bool| -> Lease {
            let annotations = if beats { json!({ ANNOTATION: "" }) } else { json!({}) };
            let spec = json!({ "renewTime": format!("2026-01-01T00:00:{second:02}.000000Z") });
            serde_json::from_value(json!({ "metadata": { "annotations": annotations }, "spec": spec })).unwrap()
        };
        let at = Duration::from_millis;
        let beats = AnnouncerHeartbeats::default();
        assert!(!beats.hear("n", Some(&lease(0, false)), at(0)));
        assert_eq!(beats.look("n", at(9_000)), Heartbeat::Unknown);
        assert!(beats.hear("n", Some(&lease(1, true)), at(10_000)), "begins");
        assert!(!beats.hear("n", Some(&lease(2, true)), at(10_500)));
        assert!(!beats.hear("n", Some(&lease(2, true)), at(11_500)), "written, but not renewed");
        assert_eq!(beats.look("n", at(11_500)), Heartbeat::Alive(at(1_000)));
        assert!(matches!(beats.look("n", at(12_500)), Heartbeat::Silent(_)));
        beats.give_up("n");
        assert!(beats.is_lost("n"));
        assert!(beats.hear("n", Some(&lease(3, true)), at(20_000)), "is back");
        assert!(!beats.is_lost("n"));
        assert!(!beats.hear("n", Some(&lease(3, false)), at(20_500)), "announces nothing any more");
        assert_eq!(beats.look("n", at(90_000)), Heartbeat::Unknown);
    }
}
