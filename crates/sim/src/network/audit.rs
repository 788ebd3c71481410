//! Looks at what a component asks and is answered: whether it leads while it writes, and whether it may do what it does.
//! The outermost transport of every component; reports to the `Oracle`.
//! Changes nothing on the way.

use std::sync::Arc;

use api::{ApiError, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use client::{ListParams, ObjectList, Transport, WatchStream};
use http::{Request, Response, StatusCode};

use crate::checkers::{Violation, leadership::Candidate, oracle::Oracle};

pub struct Audit {
    pub inner: Arc<dyn Transport>,
    pub oracle: Arc<Oracle>,
    pub user: String,
    /// Where several run of which one leads.
    pub candidate: Option<Candidate>,
}

/// Refusals that say something about the object and not about the user.
const ADMISSION: &[&str] = &["because it is being terminated", "exceeded quota", "error looking up service account"];
/// What a node is told that does not know yet that its pod was never scheduled in the restored store.
const AFTER_RESTORE: &str = "can only update pod status for pods with spec.nodeName set to itself";

impl Audit {
    /// The authorizer and NodeRestriction refuse only what a component of ours should not have asked.
    fn check(&self, what: &str, error: &ApiError) {
        let outdated = error.message.contains(AFTER_RESTORE) && self.oracle.was_just_restored();
        if error.code == 403 && !outdated && !ADMISSION.iter().any(|known| error.message.contains(known)) {
            self.oracle.report(Violation(format!("{} may not {what}: {}", self.user, error.message)));
        }
    }
}

#[async_trait]
impl Transport for Audit {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let (method, path) = (request.method().as_str().to_string(), request.uri().path().to_string());
        if let Some(candidate) = &self.candidate {
            self.oracle.check_leader(candidate, &method, &path);
        }
        let answer = self.inner.send(request).await;
        if let Ok(refused) = answer.as_ref()
            && refused.status() == StatusCode::FORBIDDEN
        {
            self.check(&format!("{method} {path}"), &ApiError::from_status(403, refused.body()));
        }
        answer
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let answer = self.inner.list(resource, namespace, params).await;
        answer.inspect_err(|error| self.check(&format!("list {}", resource.plural), error))
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let answer = self.inner.watch(resource, namespace, params, resource_version).await;
        answer.inspect_err(|error| self.check(&format!("watch {}", resource.plural), error))
    }
}
