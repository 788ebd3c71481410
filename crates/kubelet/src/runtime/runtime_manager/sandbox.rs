//! Makes a pod's control group, log directory and sandbox.
//! Part of `runtime_manager`.
//! Every failure is a `SandboxError`, which knows the reason of its Event.

use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Notify;

use super::{RuntimeManager, SandboxError, host_dns};
use crate::{
    node::{
        node_metrics::{CGROUP_DURATION, STARTED_PODS, STARTED_PODS_ERRORS},
        pod_metrics::{USER_NAMESPACED_PODS, USER_NAMESPACED_PODS_ERRORS},
    },
    pod::pod_spec,
    runtime::{
        container_config::{
            self, SandboxInput,
            network_files::{self, ClusterDns},
        },
        user_namespaces::{self, UserNamespaceError},
    },
};

impl RuntimeManager {
    /// The configuration from which a pod's sandbox was or will be made.
    pub fn sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<v1::PodSandboxConfig, SandboxError> {
        let file = Some(&self.config.resolv_conf).filter(|file| !file.as_os_str().is_empty());
        // Also for a pod that takes nothing from it: other kubelets start none without this file.
        let host = file.map(|file| host_dns::read(file)).transpose()?;
        let cluster = ClusterDns {
            servers: self.config.cluster_dns.iter().map(ToString::to_string).collect(),
            domain: self.config.cluster_domain.clone(),
        };
        let (dns, warnings) = network_files::dns(pod, host.as_ref(), &cluster, &self.config.node_ips);
        for warning in warnings {
            self.recorder.warning(&client::reference(pod), "DNSConfigForming", warning);
        }
        let users = self.users(pod)?;
        let mut config = container_config::sandbox(SandboxInput {
            pod,
            attempt,
            dns,
            cluster_domain: &self.config.cluster_domain,
            cgroup_parent: self.cgroups.cgroup_parent(pod),
            log_root: &self.config.pod_logs_dir(),
            owner: &self.config.root_dir,
        })
        .map_err(|error| SandboxError::Config(error.to_string()))?;
        let resources = config.linux.as_mut().and_then(|linux| linux.resources.as_mut());
        if let Some(resources) = resources.filter(|_| self.managers.lifts_quota(pod)) {
            resources.cpu_quota = -1;
        }
        let mut context = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
        if let Some(context) = context.as_mut().filter(|_| self.config.sandbox_guards_itself) {
            let profile_type = v1::security_profile::ProfileType::Unconfined.into();
            context.seccomp = Some(v1::SecurityProfile { profile_type, localhost_ref: String::new() });
        }
        if let (Some(users), Some(options)) = (users, context.and_then(|c| c.namespace_options.as_mut())) {
            options.userns_options = Some(user_namespaces::options(&users));
        }
        Ok(config)
    }

    /// The pod's own range of users, if it is to have one.
    pub(super) fn users(&self, pod: &Pod) -> Result<Option<Vec<v1::IdMapping>>, UserNamespaceError> {
        user_namespaces::wanted(pod).then(|| self.user_namespaces.allocate(pod)).transpose()
    }

    /// Says what a pod asks for that its handler can't do.
    pub fn check_handler(&self, pod: &Pod, handler: &str) -> Result<(), SandboxError> {
        if !user_namespaces::wanted(pod) {
            return Ok(());
        }
        Ok(self.features.check_user_namespaces(handler)?)
    }

    /// Makes the pod's control group, log directory and sandbox. Tells `began` once the runtime limiter lets it.
    pub async fn create_sandbox(
        &self,
        pod: &Pod,
        config: &v1::PodSandboxConfig,
        handler: &str,
        began: &Notify,
    ) -> Result<String, SandboxError> {
        self.metrics.count(&STARTED_PODS, &[]);
        let has_users = user_namespaces::wanted(pod);
        if has_users {
            self.metrics.count(&USER_NAMESPACED_PODS, &[]);
        }
        let create = async {
            began.notify_one();
            let logs = config.log_directory.clone();
            let make =
                move || std::fs::create_dir_all(&logs).map_err(|error| format!("failed to create {logs}: {error}"));
            self.files.run(config.log_directory.clone(), make).await.map_err(SandboxError::LogDirectory)?;
            let began = self.env.monotonic();
            let uid = || pod_spec::uid(pod).to_string();
            if self.managers.lifts_quota(pod) {
                self.cgroups.lift_quota(pod_spec::uid(pod));
            }
            self.cgroups.create_pod(pod).map_err(|error| SandboxError::Cgroup { uid: uid(), error })?;
            self.metrics.observe(&CGROUP_DURATION, &["create"], (self.env.monotonic() - began).as_secs_f64());
            Ok(self.runtime.run_pod_sandbox(config.clone(), handler).await?)
        };
        // Pods that have theirs already get their containers first.
        let made = self.starts.run_last(create).await;
        made.inspect_err(|_| {
            self.metrics.count(&STARTED_PODS_ERRORS, &[]);
            if has_users {
                self.metrics.count(&USER_NAMESPACED_PODS_ERRORS, &[]);
            }
        })
    }
}
