//! 10,000 Services with 5 endpoints each: the first write, one change, and the memory they take.
//! Part of the packet tests because it needs a namespace to write into.
//! Invariant: limits are loose enough for an unoptimised build on a busy machine; the figures are printed.

use std::{process::Command, time::Duration};

use proxy::{NodeConfig, State, rules, service_rules, transaction};
use serde_json::{Value, json};

use crate::inside;

const SERVICES: usize = 10_000;

fn service(index: usize) -> Value {
    let ip = format!("10.{}.{}.{}", 100 + index / 62_500, index / 250 % 250, index % 250 + 1);
    json!({ "metadata": {}, "spec": { "clusterIP": ip, "ports": [{ "port": 80 }] } })
}

fn slice(index: usize, endpoints: usize) -> Value {
    let address = |last: usize| json!({ "addresses": [format!("10.{}.{}.{}", 200 + last, index / 250, index % 250)] });
    json!({
        "metadata": { "namespace": "d", "labels": { "kubernetes.io/service-name": format!("s{index}") } },
        "addressType": "IPv4", "ports": [{ "name": "", "port": 8080 }],
        "endpoints": (0..endpoints).map(address).collect::<Vec<_>>(),
    })
}

fn timed<T>(what: &str, limit: Duration, run: impl FnOnce() -> T) -> T {
    let env = env::Env::real();
    let result = run();
    let took = env.monotonic();
    println!("{what}: {took:?}");
    assert!(took < limit, "{what} took {took:?}");
    result
}

fn nft(text: String) {
    let file = std::env::temp_dir().join(format!("minke-test-scale-{}.nft", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = Command::new("nft").arg("-f").arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn ten_thousand_services() {
    crate::require_tools();
    let name = format!("minke-test-scale-{}", std::process::id());
    crate::shell(&format!("ip netns add {name}"));
    let outcome = inside(&name, || {
        let config = NodeConfig { node_name: "here".into(), ..NodeConfig::default() };
        let mut state = State::default();
        for index in 0..SERVICES {
            let parsed = serde_json::from_value(service(index)).unwrap();
            state.apply_service(&format!("d/s{index}"), Some(&parsed));
            let parsed = serde_json::from_value(slice(index, 5)).unwrap();
            state.apply_slice(&format!("d/s{index}-1"), Some(&parsed), &config);
        }
        let second = Duration::from_secs;
        let mut ruleset = timed("rules of 10,000 Services", second(10), || rules(&state, &config));
        let text = timed("as text", second(10), || proxy::full(&ruleset, &config, "mk-scale"));
        timed("first write", second(20), || nft(text));
        for endpoints in [4, 5, 6] {
            timed("one change", second(2), || {
                let parsed = serde_json::from_value(slice(77, endpoints)).unwrap();
                state.apply_slice("d/s77-1", Some(&parsed), &config);
                let new = service_rules("d/s77", &state, &config, ruleset.service("d/s77"));
                let changes = ruleset.replace("d/s77", new);
                nft(transaction(&changes, "mk-scale"));
            });
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!("{}", status.lines().find(|line| line.starts_with("VmRSS")).unwrap());
    })
    .join();
    crate::shell(&format!("ip netns del {name}"));
    outcome.unwrap();
}
