//! What a simulated cluster is made of: API servers on one store, control plane processes, and nodes that only pretend.
//! Put together by `Simulation`.
//! Everything but the nodes, the store's disk and the network is the real thing.

pub mod api_server;
pub mod bootstrapped;
pub mod control_plane;
pub mod hollow_node;
pub mod simulated_store;
