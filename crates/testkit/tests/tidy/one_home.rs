//! One home for each rule that used to stand in several places.

use crate::sources::{Source, all, check};

/// What gives a second home away, where the first is, and who may still have one.
struct Home {
    noun: &'static str,
    home: &'static str,
    signs: &'static [&'static str],
    allowed: &'static [(&'static str, &'static str)],
}

const HOMES: &[Home] = &[
    Home {
        noun: "exponential back-off",
        home: "crates/env/src/backoff.rs",
        signs: &["saturating_mul(1 <<", "* 2).min("],
        allowed: &[(
            "crates/controllers/src/common/pod_control.rs",
            "a number of pods, not a delay: upstream's slow start",
        )],
    },
    Home {
        noun: "the netfilter codec",
        home: "crates/netfilter/",
        signs: &["NetlinkNetFilter", "fn attributes(mut bytes"],
        allowed: &[],
    },
    Home {
        noun: "what Go takes for a duration or a truth",
        home: "crates/api/src/codec/scalar.rs",
        signs: &["(\"ms\", ", "\"ms\" =>", "\"TRUE\" | \"True\""],
        allowed: &[("crates/ingress/src/gateway/rules.rs", "the Gateway API's own durations, which are fewer")],
    },
    Home {
        noun: "the claim of a pod's volume",
        home: "crates/api/src/storage/volume_claims.rs",
        signs: &["(&volume.persistent_volume_claim, &volume.ephemeral)"],
        allowed: &[],
    },
    Home {
        noun: "the names of CSI volumes and plugins",
        home: "crates/api/src/storage/csi.rs",
        signs: &["\"kubernetes.io/csi:{", "\"kubernetes.io/csi/{"],
        allowed: &[],
    },
    Home {
        noun: "a custom resource as clients know it",
        home: "crates/api/src/kinds/mod.rs",
        signs: &["Verb::RESOURCE.to_vec()"],
        allowed: &[],
    },
    Home {
        noun: "percent-encoding",
        home: "crates/client/src/api.rs",
        signs: &["%{byte:02X}"],
        allowed: &[(
            "crates/cli/src/template/go_template/functions.rs",
            "Go's `urlquery`, which leaves other signs alone",
        )],
    },
    Home {
        noun: "where systems keep the authorities that they trust",
        home: "crates/env/src/system_roots.rs",
        signs: &["ca-bundle.crt"],
        allowed: &[],
    },
    Home {
        noun: "the time of the boot",
        home: "crates/metrics/src/process.rs",
        signs: &["strip_prefix(\"btime "],
        allowed: &[],
    },
    Home { noun: "Prometheus' text form", home: "crates/metrics/", signs: &["# TYPE {", "\"_bucket\""], allowed: &[] },
];

#[test]
fn every_rule_has_one_home() {
    let files = all();
    for Home { noun, home, signs, allowed } in HOMES {
        let shows = |file: &Source| file.code().any(|(_, line)| signs.iter().any(|sign| line.contains(sign)));
        assert!(files.iter().any(|file| file.path.starts_with(home) && shows(file)), "{home} has {noun}");
        let elsewhere = files.iter().filter(|file| !file.path.starts_with(home) && !file.is_test() && shows(file));
        check(&format!("{noun} is at {home}"), elsewhere.map(|file| file.path.clone()), allowed);
    }
}
