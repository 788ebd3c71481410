//! Who came in and who may do what: upstream's metrics of authentication and authorization.
//! Told by `pipeline` and `authz::Chain`; shown by `Metrics::render`.
//! Users never become labels, but the few whose names are the same in every cluster.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::metrics::{Histogram, Text};
use parking_lot::Mutex;

use crate::authz::Decision;

/// From a millisecond, each twice the one before.
const BUCKETS_SECONDS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
const AUTHENTICATIONS: [&str; 3] = ["success", "failure", "error"];
const AUTHORIZATIONS: [&str; 3] = ["allowed", "denied", "no-opinion"];
const USERS: [&str; 7] =
    ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default", "email_id", "other"];

/// What came of looking for a request's sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authentication {
    Success,
    /// Nothing was shown, and that does not do.
    Failure,
    /// What was shown is wrong.
    Error,
}

pub struct Access {
    authentications: [Histogram; AUTHENTICATIONS.len()],
    users: [AtomicU64; USERS.len()],
    authorizations: [Histogram; AUTHORIZATIONS.len()],
}

impl Default for Access {
    fn default() -> Self {
        Self {
            authentications: std::array::from_fn(|_| Histogram::seconds(BUCKETS_SECONDS)),
            users: Default::default(),
            authorizations: std::array::from_fn(|_| Histogram::seconds(BUCKETS_SECONDS)),
        }
    }
}

fn known_user(name: &str) -> usize {
    let word = if USERS[..5].contains(&name) {
        name
    } else if name.contains('@') {
        "email_id"
    } else {
        "other"
    };
    USERS.iter().position(|user| *user == word).unwrap_or(USERS.len() - 1)
}

impl Access {
    pub fn authenticated(&self, result: Authentication, user: &str, took: Duration) {
        self.authentications[result as usize].observe(took.as_secs_f64());
        if result == Authentication::Success {
            self.users[known_user(user)].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn authorized(&self, decision: &Decision, took: Duration) {
        let result = match decision {
            Decision::Allow(_) => 0,
            Decision::Deny(_) => 1,
            Decision::NoOpinion(_) => 2,
        };
        self.authorizations[result].observe(took.as_secs_f64());
    }

    pub fn render(&self, out: &mut Text) {
        let mut family = out.family("authenticated_user_requests", "counter", "Requests, by their senders' names.");
        for (user, count) in USERS.iter().zip(&self.users) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                family.sample(&[("username", user)], count);
            }
        }
        let shown =
            |out: &mut Text, names: [&'static str; 2], help: [&'static str; 2], results: &[(&str, &Histogram)]| {
                let mut family = out.family(names[0], "counter", help[0]);
                for (result, histogram) in results {
                    family.sample(&[("result", result)], histogram.count());
                }
                let mut family = out.family(names[1], "histogram", help[1]);
                for (result, histogram) in results {
                    histogram.show(&mut family, &[("result", result)]);
                }
            };
        let seen: Vec<_> =
            AUTHENTICATIONS.into_iter().zip(&self.authentications).filter(|(_, h)| h.count() > 0).collect();
        let help = ["Requests whose sender was looked for.", "How long that took."];
        shown(out, ["authentication_attempts", "authentication_duration_seconds"], help, &seen);
        let seen: Vec<_> =
            AUTHORIZATIONS.into_iter().zip(&self.authorizations).filter(|(_, h)| h.count() > 0).collect();
        let help = ["Requests that were judged.", "How long that took."];
        shown(out, ["authorization_attempts_total", "authorization_duration_seconds"], help, &seen);
    }
}

/// What one authorizer has allowed and denied.
#[derive(Default)]
pub struct DecisionCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl DecisionCounts {
    pub fn count(&self, decision: &Decision) {
        match decision {
            Decision::Allow(_) => self.allowed.fetch_add(1, Ordering::Relaxed),
            Decision::Deny(_) => self.denied.fetch_add(1, Ordering::Relaxed),
            Decision::NoOpinion(_) => 0,
        };
    }
}

/// Of every authorizer by type and name, also of those that a configuration no longer has.
#[derive(Default)]
pub struct Decisions(Mutex<BTreeMap<(String, String), Arc<DecisionCounts>>>);

impl Decisions {
    pub fn of(&self, kind: &str, name: &str) -> Arc<DecisionCounts> {
        self.0.lock().entry((kind.to_string(), name.to_string())).or_default().clone()
    }

    pub fn render(&self, out: &mut Text) {
        let help = "Decisions of each authorizer.";
        let mut family = out.family("apiserver_authorization_decisions_total", "counter", help);
        for ((kind, name), counts) in self.0.lock().iter() {
            for (decision, count) in [("allowed", &counts.allowed), ("denied", &counts.denied)] {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    family.sample(&[("decision", decision), ("name", name), ("type", kind)], count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_counted_without_their_names() {
        let check = |name: &str, label: &str| {
            let (access, mut out) = (Access::default(), Text::default());
            access.authenticated(Authentication::Success, name, Duration::from_millis(3));
            access.authenticated(Authentication::Error, name, Duration::from_millis(3));
            access.authorized(&Decision::Allow(String::new()), Duration::from_millis(1));
            access.render(&mut out);
            let page = out.finish();
            for line in [
                format!("authenticated_user_requests{{username=\"{label}\"}} 1"),
                "authentication_attempts{result=\"success\"} 1".into(),
                "authentication_attempts{result=\"error\"} 1".into(),
                "authentication_duration_seconds_count{result=\"error\"} 1".into(),
                "authorization_attempts_total{result=\"allowed\"} 1".into(),
            ] {
                assert!(page.lines().any(|found| found == line), "{line}\n{page}");
            }
        };
        check("admin", "admin");
        check("kubelet", "kubelet");
        check("ada@example.com", "email_id");
        check("system:node:a", "other");
    }

    #[test]
    fn decisions_outlive_a_configuration() {
        let (decisions, mut out) = (Decisions::default(), Text::default());
        decisions.of("RBAC", "rbac").count(&Decision::Allow(String::new()));
        decisions.of("RBAC", "rbac").count(&Decision::NoOpinion(String::new()));
        decisions.of("Webhook", "w").count(&Decision::Deny(String::new()));
        decisions.of("Node", "node");
        decisions.render(&mut out);
        let page = out.finish();
        let found: Vec<_> =
            page.lines().filter_map(|l| l.strip_prefix("apiserver_authorization_decisions_total")).collect();
        assert_eq!(
            found,
            [
                "{decision=\"allowed\",name=\"rbac\",type=\"RBAC\"} 1",
                "{decision=\"denied\",name=\"w\",type=\"Webhook\"} 1"
            ]
        );
    }
}
