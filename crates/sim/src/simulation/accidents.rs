//! What can happen to a simulated cluster: crashes, cut links, changes of server, a restored backup.
//! Called by the workload's accidents; `heal` ends them all.
//! Whatever goes down comes back by itself, and `heal` waits for it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use store::{MemoryStore, Store};

use super::{Backup, Process, Simulation, simulated_store};
use crate::{Faults, checkers::oracle, clients::registers, cluster::api_server::ApiServerProcess};

/// How far apart two restores are at least.
const RESTORE_INTERVAL_MS: u64 = 60_000;

impl Simulation {
    /// Ends a process, puts a fresh part of the world in its place, and starts that after a while.
    fn restart<S: FnOnce() + Send + 'static>(&self, process: &Process, seconds: u64, start: impl FnOnce() -> S) {
        process.env.lock().crash();
        *process.env.lock() = self.env.part();
        let (start, part, time) = (start(), process.env.lock().clone(), self.env.clone());
        // In the part itself: a second crash takes back the first return.
        let back = part.spawn(async move {
            time.sleep(Duration::from_secs(seconds)).await;
            start();
        });
        self.recovery.lock().push(back);
    }

    pub fn stop_node(&self, number: usize, seconds: u64) {
        self.restart(&self.nodes[number], seconds, || self.start_node(number));
    }

    pub fn crash_manager(&self, number: usize, seconds: u64) {
        let number = number % self.managers.len();
        self.restart(&self.managers[number], seconds, || self.start_manager(number));
    }

    pub fn crash_scheduler(&self, number: usize, seconds: u64) {
        let number = number % self.schedulers.len();
        self.restart(&self.schedulers[number], seconds, || self.start_scheduler(number));
    }

    pub fn crash_server(&self, number: usize, seconds: u64) {
        let server = self.servers[number % self.servers.len()].clone();
        if server.is_up() {
            server.crash();
            self.start_server_in(server, seconds);
        }
    }

    fn start_server_in(&self, server: Arc<ApiServerProcess>, seconds: u64) {
        let env = self.env.clone();
        let back = self.env.spawn(async move {
            env.sleep(Duration::from_secs(seconds)).await;
            server.start().await;
        });
        self.recovery.lock().push(back);
    }

    /// Some process goes to another server with what it asks next; its watches stay where they are.
    pub fn change_over(&self, number: usize) -> String {
        let process = self.processes().nth(number % self.processes().count()).expect("there are processes");
        process.endpoint.fetch_add(1, Ordering::Relaxed);
        process.name.clone()
    }

    /// Cuts some process off from one server, or from all of them, for a while.
    pub fn partition(&self, number: usize, server: Option<usize>, seconds: u64) -> String {
        let process = self.processes().nth(number % self.processes().count()).expect("there are processes");
        let all = 0..self.servers.len();
        let cut: Vec<usize> = server.map_or(all.collect(), |server| vec![server % self.servers.len()]);
        cut.iter().for_each(|server| self.network.cut(&process.name, *server));
        self.oracle.disturb_everything();
        let (name, env, network, oracle) =
            (process.name.clone(), self.env.clone(), self.network.clone(), self.oracle.clone());
        let back = self.env.spawn(async move {
            env.sleep(Duration::from_secs(seconds)).await;
            cut.iter().for_each(|server| network.mend(&name, *server));
            oracle.disturb_everything();
        });
        self.recovery.lock().push(back);
        format!("{} from servers {server:?}", process.name)
    }

    pub async fn back_up(&self) {
        let store = self.store.lock().clone();
        let (records, revision) = oracle::snapshot(&*store).await;
        let deadlines = store.deadlines("/", &store::prefix_end("/")).await.expect("the store is in memory");
        *self.backup.lock() = Some(Backup { records, deadlines, revision });
    }

    /// All servers stop, and start again on the store as it was backed up. Whether there was a backup.
    pub async fn restore(&self, seconds: u64) -> bool {
        let Some(backup) = self.backup.lock().clone() else { return false };
        self.servers.iter().for_each(|server| server.crash());
        self.registers.lock().restore(registers::values(&backup.records));
        let Backup { records, deadlines, revision } = backup;
        let memory =
            Arc::new(MemoryStore::restored(self.env.clone(), records, deadlines, revision, self.restore_clock()));
        self.oracle.begin_epoch(&*memory).await;
        let store = simulated_store(&memory, &self.env, &self.network);
        *self.store.lock() = memory;
        for server in &self.servers {
            server.replace_store(store.clone());
            self.start_server_in(server.clone(), seconds);
        }
        true
    }

    /// Nodes' clocks jump, also back; whoever restores has one that does not, or revisions would be given out twice.
    fn restore_clock(&self) -> u64 {
        let wall_ms = self.env.now().as_millisecond().max(0) as u64;
        let last_ms = self.restored_ms.fetch_max(wall_ms, Ordering::Relaxed);
        if wall_ms > last_ms {
            return wall_ms;
        }
        self.restored_ms.fetch_add(RESTORE_INTERVAL_MS, Ordering::Relaxed) + RESTORE_INTERVAL_MS
    }

    /// No more faults; returns when everything that was down is back.
    pub async fn heal(&self) {
        self.network.injector.set(Faults::default());
        self.network.mend_all();
        let back = std::mem::take(&mut *self.recovery.lock());
        for task in back {
            // Taken back by a later crash, whose own return is in the list too.
            task.await.ok();
        }
    }
}
