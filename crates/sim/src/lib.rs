//! The whole control plane under simulated time, with nodes that only pretend to run pods and faults drawn from a seed.
//! Real API servers, controllers and schedulers over one memory store, all in one thread; played by `runner`.
//! The same seed gives the same run, alone or among others; a failing seed becomes a test.

pub mod checkers;
pub mod clients;
pub mod cluster;
pub mod determinism;
mod facts;
pub mod network;
mod runner;
mod series;
mod simulation;
mod workload;

pub use checkers::{Violation, convergence::violations};
pub use cluster::bootstrapped::Bootstrapped;
pub use network::faults::{FaultInjector, Faults};
pub use runner::{Outcome, play_here};
pub use series::play_all;
pub use simulation::{Simulation, Topology};

const START: &str = "2026-01-01T00:00:00Z";
