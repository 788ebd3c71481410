//! Copies of requests for backends whose answers nobody waits for.
//! Called by `proxy` before a request is forwarded.
//! Invariant: a copy never holds its request up (type: copies of bodies go through a bounded channel that nobody waits
//! for; one that falls behind ends), and there are at most `MIRRORED_REQUESTS_MAX` at once.

use std::{sync::Arc, time::Duration};

use http::Request;

use super::{Proxy, body::RequestBody, copy_head};
use crate::filters::Filters;

pub const MIRRORED_REQUESTS_MAX: usize = 1024;
const MIRROR_TIMEOUT: Duration = Duration::from_secs(60);

impl Proxy {
    /// Sends a copy of `request` wherever `filters` want one; its body goes along as it is sent.
    pub(super) fn mirror(self: &Arc<Self>, filters: &Filters, request: &mut Request<RequestBody>) {
        for mirror in filters.mirrors.iter().filter(|mirror| mirror.takes()) {
            let Ok(permit) = self.mirror_permits.clone().try_acquire_owned() else {
                tracing::debug!("too many mirrored requests are under way");
                return;
            };
            let copy = copy_head(request).map(|_| request.body_mut().copy());
            let (proxy, backend) = (self.clone(), mirror.backend.clone());
            self.env.spawn(async move {
                let mut no_log = None;
                let sent = proxy.forward(&backend, copy, None, &mut no_log);
                if let Some(Err(failure)) = proxy.env.timeout(MIRROR_TIMEOUT, sent).await {
                    tracing::debug!(?failure, "a mirrored request failed");
                }
                drop(permit);
            });
        }
    }
}
