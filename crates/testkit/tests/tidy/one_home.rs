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
