//! How components talk to the API server: typed requests, shared informers, work queues, events, leader election.
//! The transport is a seam: HTTPS to another process, or a call into the API server of this one.
//! Invariant: no component reaches the store or another component except through here (tidy: `dependencies`).

mod any_certificate;
mod api;
mod change_queue;
mod connections;
mod delegated;
mod events;
mod https;
mod informer;
mod kubeconfig;
mod leader_election;
mod object_forms;
mod queue_metrics;
mod rate_limit;
mod server_list;
mod service_account_transport;
mod streaming_transport;
mod transport;
mod work_queue;

use kubeconfig::{exec_identity, exec_plugin};

pub use any_certificate::AnyCertificate;
pub use api::{Api, ListParams, Patch, percent_encode};
pub use change_queue::{ObjectChange, ObjectSubscription};
pub use connections::{COMMAND_LINE, Connections, Route};
pub use delegated::{User, bearer_token};
pub use events::{EventRecorder, EventType, ObjectRef, reference};
pub use exec_identity::ExecIdentity;
pub use exec_plugin::{ExecCredential, ExecError, ExecPlugin};
pub use https::{HttpsConfig, HttpsTransport, Identity, Reachability};
pub use informer::{Change, Indexer, Informer, InformerFactory, ObjectInformer, Subscription};
pub use kubeconfig::{
    KubeconfigError, POD_CREDENTIALS, certificates, certified_key, from_kubeconfig, in_cluster, kubeconfig_yaml,
};
pub use leader_election::{LeaderElection, RELEASE_TIMEOUT, lead, run_as_leader};
pub use object_forms::{read_once, sweep_object_forms};
pub use rate_limit::RequestRate;
pub use server_list::ServerList;
pub use service_account_transport::ServiceAccountTransport;
pub use streaming_transport::StreamingTransport;
pub use transport::{Client, ObjectList, Transport, WatchStream, may_have_happened};
pub use work_queue::WorkQueue;
