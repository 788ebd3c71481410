//! Verbs that talk to containers: logs, exec, attach, cp, port-forward, proxy.
//! Rows of `verbs::ROOT`; `channels` speaks the remote command protocol, `containers` finds pods and containers.
//! The terminal is always given back as it was.

pub mod attach;
pub mod channels;
pub mod containers;
pub mod cp;
pub mod debug;
pub mod exec;
pub mod logs;
pub mod port_forward;
pub mod proxy;
