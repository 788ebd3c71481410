//! `--feature-gates`, which every component has.
//! Part of the flags of every command that runs one.
//! A name nobody knows is refused before anything starts.

use api::feature_gates::FeatureGates;
use clap::Args;
use metrics::{Family, Metrics};

static FEATURE_ENABLED: Family = Family::gauge(
    "kubernetes_feature_enabled",
    &["name", "stage"],
    "This metric records the data about the stage and enablement of a k8s feature.",
);

#[derive(Debug, Clone, Args)]
pub struct FeatureFlags {
    /// Features to turn on or off, as NAME=true,NAME=false
    #[arg(long, value_name = "GATES", default_value = "", hide_default_value = true, value_parser = parse)]
    pub feature_gates: FeatureGates,
}

fn parse(text: &str) -> Result<FeatureGates, String> {
    FeatureGates::parse(text.split(','))
}

impl FeatureFlags {
    /// Shows which are on.
    pub fn show(&self, metrics: &Metrics) {
        for (gate, on) in self.feature_gates.all() {
            metrics.set(&FEATURE_ENABLED, &[gate.name, gate.stage.label()], f64::from(u8::from(on)));
        }
    }
}
