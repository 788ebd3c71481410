//! Tells every node for how long it may use a Secret or ConfigMap before it asks again: the longer the more nodes there are.
//! Reads and annotates nodes.
//! Around the size at which the time changes it does not change back and forth.

use std::sync::Arc;

use async_trait::async_trait;
use client::{Informer, Patch};
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    common::meta::Object,
    runner::{Context, Controller, Outcome, Setup},
};

const TTL: &str = "node.alpha.kubernetes.io/ttl";

struct Step {
    /// Fewer nodes than this go back to the step before.
    least: usize,
    /// More nodes than this go on to the next.
    most: usize,
    seconds: u32,
}

const STEPS: [Step; 5] = [
    Step { least: 0, most: 100, seconds: 0 },
    Step { least: 90, most: 500, seconds: 15 },
    Step { least: 450, most: 1000, seconds: 30 },
    Step { least: 900, most: 2000, seconds: 60 },
    Step { least: 1800, most: usize::MAX, seconds: 300 },
];

/// The step for so many nodes, coming from the one before.
fn next(mut step: usize, nodes: usize) -> usize {
    while nodes > STEPS[step].most {
        step += 1;
    }
    while nodes < STEPS[step].least {
        step -= 1;
    }
    step
}

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let nodes = setup.informer::<Node>();
    setup.on_keys(&nodes);
    Arc::new(Ttl { context: setup.context.clone(), nodes, step: Mutex::new(0) })
}

struct Ttl {
    context: Context,
    nodes: Informer<Node>,
    step: Mutex<usize>,
}

#[async_trait]
impl Controller for Ttl {
    /// Other nodes follow a change of size when they next say that they live.
    async fn reconcile(&self, key: &str) -> Outcome {
        let seconds = {
            let mut step = self.step.lock();
            *step = next(*step, self.nodes.objects().len());
            STEPS[*step].seconds.to_string()
        };
        let Some(node) = self.nodes.get(key) else { return Ok(None) };
        if node.annotation(TTL) == Some(&seconds) {
            return Ok(None);
        }
        let patch = json!({ "metadata": { "uid": node.metadata.uid, "annotations": { TTL: seconds } } });
        match self.context.client.api::<Node>().patch(key, &Patch::Merge(patch)).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_follows_the_size_with_some_slack() {
        let mut step = 0;
        for (nodes, seconds) in [
            (0, 0),
            (100, 0),
            (101, 15),
            (90, 15),
            (89, 0),
            (500, 15),
            (501, 30),
            (450, 30),
            (449, 15),
            (1001, 60),
            (900, 60),
            (899, 30),
            (2001, 300),
            (1800, 300),
            (1799, 60),
            (50_000, 300),
            (0, 0),
        ] {
            step = next(step, nodes);
            assert_eq!(STEPS[step].seconds, seconds, "{nodes} nodes");
        }
    }
}
