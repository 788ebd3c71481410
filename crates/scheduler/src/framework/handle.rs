//! What plugins act with: the API server, events, time, and the pods that wait at Permit.
//! Made by `scheduler`; given to PostFilter, PreBind and Bind.

use client::Client;
use env::Env;

use super::WaitingPods;
use crate::reports::Reports;

#[derive(Clone)]
pub struct Handle {
    pub client: Client,
    pub env: Env,
    pub reports: Reports,
    pub waiting_pods: WaitingPods,
}
