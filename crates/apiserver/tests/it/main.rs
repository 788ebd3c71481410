//! The API server as clients see it: requests through `ApiServer::handle` over a memory store, and stock kubectl.
//! Each module is one theme; `harness` is what they share.
//! Invariant: no sockets except in `kubectl`.

mod crd;
mod harness;
mod kubectl;
mod proxy;
mod reads;
mod restart;
mod subresources;
mod watches;
mod writes;
