//! A rolling update under load drops nothing: an endpoint is out of the rules before its server is told to stop.

use std::net::SocketAddr;

use e2e::{Load, eventually, http_get};

use crate::{kubectl, web};

#[test]
fn a_rolling_update_under_load_drops_nothing() {
    let ns = kubectl().namespace("rollout");
    // The server of `web` ends at once when it is told to: whoever still reaches it then is refused.
    ns.apply(&web("web", 10));
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    let address = ns.run(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let address: SocketAddr = format!("{address}:80").parse().expect("an address");
    eventually("the Service answers", || http_get(address).map_err(|e| e.to_string()));

    let load = Load::start(address);
    load.let_pass(100);
    ns.run(&["set", "env", "deployment/web", "VERSION=2"]);
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    // The last of the old ones end after the rollout counts as done.
    eventually("the old pods are gone", || {
        let pods = ns.run(&["get", "pods", "-o", "name"]).lines().count();
        if pods == 10 { Ok(()) } else { Err(pods) }
    });
    load.let_pass(100);
    let outcome = load.finish();
    assert!(
        outcome.failures.is_empty(),
        "{} of {} failed: {:?}",
        outcome.failures.len(),
        outcome.requests,
        outcome.failures
    );
    assert!(outcome.requests > 300, "{outcome:?}");
}
