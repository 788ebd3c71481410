//! How the processes of a simulation, and those who observe it, reach its API servers.
//! Wraps transports as `network` says; called when a process starts.
//! Only the workload's own client has no faults in between.

use std::sync::Arc;

use apiserver::authn::User;
use client::{Client, Transport};
use env::Env;

use super::{Process, Simulation};
use crate::{
    checkers::watches::Selection,
    clients::{
        registers,
        watch_client::{CurrentView, WatchClient},
    },
    cluster::{api_server::ApiServerProcess, control_plane::ADMINS},
    network::{
        audit::Audit, endpoints::Endpoints, faults::Faulty, http::HttpTransport, in_process::InProcessTransport,
        pipe::Link,
    },
    workload,
};

impl Simulation {
    /// The transports of a client to each server.
    fn transports(&self, user: &User, name: &str, remote: bool, env: &Env) -> Vec<Arc<dyn Transport>> {
        let transport = |(number, server): (usize, &Arc<ApiServerProcess>)| -> Arc<dyn Transport> {
            if !remote {
                let (server, user, groups) = (server.clone(), user.name.clone(), user.groups.clone());
                return Arc::new(InProcessTransport { server, user, groups });
            }
            let link =
                Link { network: self.network.clone(), client: name.to_string(), server: number, env: self.env.clone() };
            let mut user = user.clone();
            user.groups.push("system:authenticated".into());
            Arc::new(HttpTransport::new(server.clone(), user, env.clone(), link))
        };
        self.servers.iter().enumerate().map(transport).collect()
    }

    /// The client of a process, with everything in between.
    pub(super) fn client(&self, process: &Process, env: &Env) -> Client {
        let groups = process.group.iter().map(|group| group.to_string()).collect();
        let user = User { name: process.user.clone(), groups, ..User::default() };
        let servers = self.transports(&user, &process.name, process.remote, env);
        let (current, spread) = (process.endpoint.clone(), process.spread);
        let endpoints = Arc::new(Endpoints { servers, current, spread, env: env.clone() });
        let (injector, other_writer) = (self.network.injector.clone(), Some(self.admin.clone()));
        let faulty = Arc::new(Faulty { inner: endpoints, injector, other_writer, env: env.clone() });
        let (oracle, user, candidate) = (self.oracle.clone(), process.user.clone(), process.candidate.clone());
        Client::new(Audit { inner: faulty, oracle, user, candidate })
    }

    /// A client that looks at everything over HTTP, through any server, with faults.
    pub fn viewer(&self, name: &str, env: &Env) -> Client {
        let user = User { name: name.to_string(), groups: vec![ADMINS.to_string()], ..User::default() };
        let servers = self.transports(&user, name, true, env);
        let endpoints = Arc::new(Endpoints { servers, current: Arc::default(), spread: true, env: env.clone() });
        let injector = self.network.injector.clone();
        Client::new(Faulty { inner: endpoints, injector, other_writer: None, env: env.clone() })
    }

    /// Clients that watch every resource, and some of them by selections; where each of them is.
    pub fn start_watch_clients(&self) -> Vec<CurrentView> {
        // Versions before the first stable one are off.
        let stable = |resource: &api::Resource| !["alpha", "beta"].iter().any(|stage| resource.version.contains(stage));
        let watched = |resource: &&Arc<api::Resource>| {
            resource.stored() && resource.supports(&api::Verb::Watch) && stable(resource)
        };
        let everything = api::kinds::builtin().iter().filter(watched).map(|r| (r.clone(), Selection::default()));
        let some = workload::selections().into_iter().filter_map(|(group, version, plural, selection)| {
            Some((api::kinds::find(group, version, plural)?.clone(), selection))
        });
        let start = |(number, (resource, selection)): (usize, (Arc<api::Resource>, Selection))| {
            let view = CurrentView::default();
            let client = self.viewer(&format!("viewer-{}", number % 8), &self.env);
            let (env, oracle) = (self.env.clone(), self.oracle.clone());
            let watcher = WatchClient { client, env, oracle, resource, selection, view: view.clone() };
            self.env.spawn(watcher.run());
            view
        };
        everything.chain(some).enumerate().map(start).collect()
    }

    /// Clients that read and write a few objects at once, until the part of the world that is returned crashes.
    pub fn start_register_clients(&self, count: usize) -> Env {
        let part = self.env.part();
        for number in 0..count {
            let client = self.viewer(&format!("register-{number}"), &part);
            registers::start(client, &part, self.registers.clone());
        }
        part
    }
}

/// In process with all servers, without faults.
pub(super) fn admin(servers: &[Arc<ApiServerProcess>], env: &Env) -> Client {
    let transport = |server: &Arc<ApiServerProcess>| -> Arc<dyn Transport> {
        let (server, user, groups) = (server.clone(), "admin".to_string(), vec![ADMINS.to_string()]);
        Arc::new(InProcessTransport { server, user, groups })
    };
    let servers = servers.iter().map(transport).collect();
    Client::new(Endpoints { servers, current: Arc::default(), spread: false, env: env.clone() })
}
