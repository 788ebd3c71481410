//! The server itself: its configuration, its listener, the path of a request through it, and its health.
//! Started by `minke`, `sim` and tests.

pub mod component_health;
pub mod config;
pub mod health;

pub(crate) mod config_document;
pub(crate) mod listener;
pub(crate) mod loopback;
pub(crate) mod pipeline;
pub(crate) mod reload;
mod reload_events;
mod startup;
pub(crate) mod write_health;
