//! What lies between components and API servers: HTTP/2 over pipes that delay, cut and lose, several servers to choose from,
//! and faults drawn from the seed.
//! `Simulation` wraps a component's transport as `audit(faults(endpoints(http | in_process)))`.
//! Nothing here happens that a real network, balancer or overloaded server could not do.

pub mod audit;
pub mod endpoints;
pub mod faults;
pub mod http;
pub mod in_process;
pub mod pipe;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{ApiError, Reason};
use faults::FaultInjector;
use tokio::sync::watch;

/// As `client::https`: how long a connection is tried for.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// As `client::https`: after a ping that nobody answers a connection is given up.
pub const PING_TIMEOUT: Duration = Duration::from_secs(45);

const UNREACHABLE: &str = "couldn't reach the API server";

/// As the HTTPS transport says it.
pub fn unreachable(why: &str) -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, format!("{UNREACHABLE}: {why}"))
}

/// Whether the request, or its answer, was lost on the way.
pub fn is_unreachable(error: &ApiError) -> bool {
    error.reason == Reason::ServiceUnavailable && error.message.starts_with(UNREACHABLE)
}

/// The links between clients, by name, and servers, by number.
#[derive(Clone)]
pub struct Network {
    pub injector: FaultInjector,
    cut: Arc<watch::Sender<BTreeSet<(String, usize)>>>,
}

impl Default for Network {
    fn default() -> Self {
        Self { injector: FaultInjector::default(), cut: Arc::new(watch::Sender::new(BTreeSet::new())) }
    }
}

impl Network {
    /// Bytes between the two are lost from now on.
    pub fn cut(&self, client: &str, server: usize) {
        self.cut.send_if_modified(|cut| cut.insert((client.to_string(), server)));
    }

    pub fn mend(&self, client: &str, server: usize) {
        self.cut.send_if_modified(|cut| cut.remove(&(client.to_string(), server)));
    }

    pub fn mend_all(&self) {
        self.cut.send_modify(BTreeSet::clear);
    }

    pub fn is_cut(&self, client: &str, server: usize) -> bool {
        self.cut.borrow().contains(&(client.to_string(), server))
    }

    async fn mended(&self, client: &str, server: usize) {
        let mut cut = self.cut.subscribe();
        // The sender lives as long as the network.
        cut.wait_for(|cut| !cut.contains(&(client.to_string(), server))).await.ok();
    }
}
