//! Controllers beside what judges their writes: admission policies and webhooks.
//! Run by the cluster of `main`.

mod policies;
mod webhook;
