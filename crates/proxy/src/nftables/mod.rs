//! How the rules get into the kernel: whole tables through `nft`, single elements over netlink.
//! Used by `run`, with what `ruleset` says has changed.
//! Decides nothing about Services: that is `rules`.

pub mod elements;
pub mod render;
pub mod session_affinity;
