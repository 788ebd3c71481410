//! Clients that do nothing but look closely: what they are told goes to the checkers.
//! Started by `runner` beside the workload.
//! Each goes through the API like anybody else, and decides nothing for the cluster.

pub mod register_client;
pub mod registers;
pub mod watch_client;
