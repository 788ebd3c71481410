//! What happens to the cluster that nobody declared: nodes, processes, servers, links, clocks and the store.
//! Steps of `Workload`.
//! Everything comes back by itself; `Simulation::heal` waits for it.

use std::time::Duration;

use client::Patch;
use jiff::SignedDuration;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::DeleteOptions};
use serde_json::json;

use super::{Result, Workload};
use crate::Simulation;

impl Workload<'_> {
    pub(super) async fn accident(&mut self, step: &str) -> Result {
        let node = self.below(self.simulation.node_count() as u64) as usize;
        let name = Simulation::node_name(node);
        let nodes = self.api::<Node>(None);
        self.note(format!("{step} {name}"));
        match step {
            "cordon" => {
                let cordon = json!({ "spec": { "unschedulable": self.below(2) == 0 } });
                nodes.patch(&name, &Patch::Merge(cordon)).await.map(drop)
            }
            "taint" => {
                let taints = match self.below(2) {
                    0 => json!([{ "key": "sim", "effect": self.one(&["NoSchedule", "NoExecute"]) }]),
                    _ => json!([]),
                };
                // Those of the system go too, and come back: that is an accident as well.
                nodes.patch(&name, &Patch::Merge(json!({ "spec": { "taints": taints } }))).await.map(drop)
            }
            "node down" => {
                let seconds = self.one(&[5, 30, 70, 400]);
                self.note(format!("  for {seconds} s"));
                self.simulation.stop_node(node, seconds);
                Ok(())
            }
            "node deleted" => nodes.delete(&name, &DeleteOptions::default()).await,
            "clock jumps" => {
                let seconds = self.one(&[-30, -2, 2, 30, 90, 3700]);
                self.note(format!("  by {seconds} s"));
                self.simulation.env.jump(SignedDuration::from_secs(seconds));
                Ok(())
            }
            _ => {
                self.fail_over(step).await;
                Ok(())
            }
        }
    }

    /// What happens to processes and to what is between them.
    async fn fail_over(&mut self, step: &str) {
        let (number, seconds) = (self.below(64) as usize, 1 + self.below(20));
        let text = match step {
            "controllers crash" => {
                self.simulation.crash_manager(number, seconds);
                format!("manager {number} for {seconds} s")
            }
            "scheduler crashes" => {
                self.simulation.crash_scheduler(number, seconds);
                format!("scheduler {number} for {seconds} s")
            }
            "change over" => self.simulation.change_over(number),
            "partition" if !self.strict => {
                let server = (self.below(2) == 0).then(|| self.below(8) as usize);
                let seconds = self.one(&[3, 20, 70]);
                format!("{} for {seconds} s", self.simulation.partition(number, server, seconds))
            }
            "backup" if !self.strict => {
                self.simulation.back_up().await;
                "taken".to_string()
            }
            "restore" if !self.strict => match self.simulation.restore(seconds).await {
                true => format!("servers are back in {seconds} s"),
                false => "there is no backup".to_string(),
            },
            "server crashes" => {
                self.simulation.crash_server(number, seconds / 2);
                format!("server {number} for {} s", seconds / 2)
            }
            _ => return,
        };
        self.note(format!("  {text}"));
        if step == "restore" {
            // Backups are restored while nobody deploys.
            self.simulation.env.sleep(Duration::from_secs(seconds)).await;
        }
    }
}
