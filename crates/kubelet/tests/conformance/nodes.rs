//! The conformance texts of `[sig-node]`, about a node: pods, containers, probes, hooks, security.
//! Part of the table in `main`.
//! A row names a test that exists.

use testkit::conformance::Row;

pub const TEXTS: &[Row] = &[
    (
        "ConfigMap should be consumable as environment variable names with various prefixes",
        ENVIRONMENT,
        "variables_from_everywhere",
    ),
    ("ConfigMap should be consumable via environment variable", ENVIRONMENT, "variables_from_everywhere"),
    ("ConfigMap should be consumable via the environment", ENVIRONMENT, "variables_from_everywhere"),
    ("ConfigMap should fail to create ConfigMap with empty key", CONFIG_MAP, "validation"),
    ("ConfigMap should run through a ConfigMap lifecycle", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("ConfigMap should update ConfigMap successfully", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "Container Lifecycle Hook when create a pod with lifecycle hook should execute poststart exec hook properly",
        LIFECYCLE,
        "hooks_run_when_they_should",
    ),
    (
        "Container Lifecycle Hook when create a pod with lifecycle hook should execute poststart http hook properly",
        LIFECYCLE,
        "hooks_run_when_they_should",
    ),
    (
        "Container Lifecycle Hook when create a pod with lifecycle hook should execute prestop exec hook properly",
        LIFECYCLE,
        "hooks_run_when_they_should",
    ),
    (
        "Container Lifecycle Hook when create a pod with lifecycle hook should execute prestop http hook properly",
        LIFECYCLE,
        "hooks_run_when_they_should",
    ),
    (
        "Container Runtime blackbox test on terminated container should report termination message as empty when pod succeeds and TerminationMessagePolicy FallbackToLogsOnError is set",
        LIFECYCLE,
        "containers_leave_a_message",
    ),
    (
        "Container Runtime blackbox test on terminated container should report termination message from file when pod succeeds and TerminationMessagePolicy FallbackToLogsOnError is set",
        LIFECYCLE,
        "containers_leave_a_message",
    ),
    (
        "Container Runtime blackbox test on terminated container should report termination message from log output if TerminationMessagePolicy FallbackToLogsOnError is set",
        LIFECYCLE,
        "containers_leave_a_message",
    ),
    (
        "Container Runtime blackbox test on terminated container should report termination message if TerminationMessagePath is set as non-root user and at a non-default path",
        LIFECYCLE,
        "containers_leave_a_message",
    ),
    (
        "Container Runtime blackbox test when starting a container that exits should run with the expected status",
        LIFECYCLE,
        "deadlines_restarts_and_debugging",
    ),
    (
        "Containers should be able to override the image's default arguments (container cmd)",
        ENVIRONMENT,
        "commands_override_the_image",
    ),
    (
        "Containers should be able to override the image's default command (container entrypoint)",
        ENVIRONMENT,
        "commands_override_the_image",
    ),
    (
        "Containers should be able to override the image's default command and arguments",
        ENVIRONMENT,
        "commands_override_the_image",
    ),
    (
        "Containers should use the image defaults if command and args are blank",
        ENVIRONMENT,
        "commands_override_the_image",
    ),
    (
        "Downward API should provide container's limits.cpu/memory and requests.cpu/memory as env vars",
        ENVIRONMENT,
        "variables_from_everywhere",
    ),
    (
        "Downward API should provide default limits.cpu/memory from node allocatable",
        ENVIRONMENT,
        "limits_default_to_what_the_node_has",
    ),
    ("Downward API should provide host IP as an env var", ENVIRONMENT, "variables_from_everywhere"),
    ("Downward API should provide hostIPs as an env var", ENVIRONMENT, "variables_from_everywhere"),
    ("Downward API should provide pod UID as env vars", ENVIRONMENT, "variables_from_everywhere"),
    (
        "Downward API should provide pod name, namespace and IP address as env vars",
        ENVIRONMENT,
        "variables_from_everywhere",
    ),
    (
        "Ephemeral Containers should update the ephemeral containers in an existing pod",
        POD_UPDATE,
        "ephemeral_containers_are_only_added",
    ),
    (
        "Ephemeral Containers will start an ephemeral container in an existing pod",
        LIFECYCLE,
        "deadlines_restarts_and_debugging",
    ),
    ("InitContainer should invoke init containers on a RestartAlways pod", NODE, "pods_live_and_end"),
    (
        "InitContainer should invoke init containers on a RestartNever pod",
        LIFECYCLE,
        "init_containers_come_first_and_sidecars_stay",
    ),
    (
        "InitContainer should not start app containers and fail the pod if init containers fail on a RestartNever pod",
        LIFECYCLE,
        "init_containers_come_first_and_sidecars_stay",
    ),
    (
        "InitContainer should not start app containers if init containers fail on a RestartAlways pod",
        LIFECYCLE,
        "init_containers_come_first_and_sidecars_stay",
    ),
    (
        "Kubelet when scheduling a busybox command in a pod should print the output to logs",
        JOURNEY,
        "logs_follow_what_the_container_says",
    ),
    (
        "Kubelet when scheduling a busybox command that always fails in a pod should be possible to delete",
        FAULTS,
        "broken_pods_say_why_and_go",
    ),
    (
        "Kubelet when scheduling a busybox command that always fails in a pod should have an terminated reason",
        LIFECYCLE,
        "deadlines_restarts_and_debugging",
    ),
    (
        "Kubelet when scheduling a read only busybox container should not write to root filesystem",
        SECURITY,
        "containers_run_as_they_are_told",
    ),
    (
        "Kubelet when scheduling an agnhost Pod with hostAliases should write entries to /etc/hosts",
        ENVIRONMENT,
        "names_of_hosts",
    ),
    (
        "KubeletManagedEtcHosts should test kubelet managed /etc/hosts file",
        ENVIRONMENT,
        "hosts_files_are_the_nodes_unless_the_pod_has_its_own",
    ),
    ("Lease lease API should be available", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("NoExecuteTaintManager Multiple Pods evicts pods with minTolerationSeconds", TAINTS, "deadlines"),
    ("NoExecuteTaintManager Single Pod removing taint cancels eviction", TAINTS, "deadlines"),
    ("Node Lifecycle should run through the lifecycle of a node", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "Pod InPlace Resize Container burstable pods - extended 6 containers - various operations performed (including adding limits and requests)",
        LIFE,
        "resources_of_several_containers_change_in_place",
    ),
    (
        "Pod InPlace Resize Container burstable pods - extended resize with equivalents",
        LIFE,
        "resources_of_several_containers_change_in_place",
    ),
    (
        "Pod InPlace Resize Container guaranteed pods with multiple containers 3 containers - increase cpu & mem on c1, c2, decrease cpu & mem on c3 - net increase",
        LIFE,
        "resources_of_several_containers_change_in_place",
    ),
    (
        "Pod InPlace Resize Container guaranteed pods with multiple containers 3 containers - increase cpu & mem on c1, decrease cpu & mem on c2, c3 - net decrease",
        LIFE,
        "resources_of_several_containers_change_in_place",
    ),
    (
        "Pod InPlace Resize Container guaranteed pods with multiple containers 3 containers - increase: CPU (c1,c3), memory (c2, c3) ; decrease: CPU (c2)",
        LIFE,
        "resources_of_several_containers_change_in_place",
    ),
    ("Pod InPlace Resize Container resize pod via the replace endpoint", LIFECYCLE, "resources_change_in_place"),
    ("PodTemplates should delete a collection of pod templates", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("PodTemplates should replace a pod template", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("PodTemplates should run the lifecycle of PodTemplates", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "Pods Extended (pod generation) Pod Generation custom-set generation on new pods and graceful delete",
        LIFECYCLE,
        "resources_change_in_place",
    ),
    (
        "Pods Extended (pod generation) Pod Generation issue 500 podspec updates and verify generation and observedGeneration eventually converge",
        LIFE,
        "the_newest_generation_is_told_however_many_there_are",
    ),
    (
        "Pods Extended (pod generation) Pod Generation pod generation should start at 1 and increment per update",
        LIFECYCLE,
        "resources_change_in_place",
    ),
    (
        "Pods Extended Pods Set QOS Class should be set on Pods with matching resource requests and limits for memory and cpu",
        LIFECYCLE,
        "classes_of_runtime_and_service",
    ),
    ("Pods should allow activeDeadlineSeconds to be updated", LIFECYCLE, "deadlines_restarts_and_debugging"),
    ("Pods should be submitted and removed", JOURNEY, "deletion_is_graceful_and_can_be_forced"),
    ("Pods should be updated", VOLUMES, "updates_appear_in_running_pods"),
    ("Pods should contain environment variables for services", ENVIRONMENT, "variables_from_everywhere"),
    ("Pods should delete a collection of pods", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("Pods should get a host IP", ENVIRONMENT, "variables_from_everywhere"),
    ("Pods should patch a pod status", SUBRESOURCES, "parts_of_a_pod_are_written_by_their_own_rules"),
    (
        "Pods should run through the lifecycle of Pods and PodStatus",
        SUBRESOURCES,
        "parts_of_a_pod_are_written_by_their_own_rules",
    ),
    ("Pods should support remote command execution over websockets", JOURNEY, "exec_with_a_terminal"),
    (
        "Pods should support retrieving logs from the container over websockets",
        WEBSOCKET,
        "a_stream_arrives_in_messages_and_ends_with_a_close",
    ),
    ("PreStop should call prestop when killing a pod", LIFECYCLE, "hooks_run_when_they_should"),
    (
        "Probing container should *not* be restarted with a /healthz http liveness probe",
        PROBES,
        "liveness_restarts_what_fails_and_leaves_the_rest",
    ),
    (
        "Probing container should *not* be restarted with a GRPC liveness probe",
        PROBES,
        "liveness_restarts_what_fails_and_leaves_the_rest",
    ),
    (
        "Probing container should *not* be restarted with a exec \"cat /tmp/health\" liveness probe",
        PROBES,
        "liveness_restarts_what_fails_and_leaves_the_rest",
    ),
    (
        "Probing container should *not* be restarted with a tcp:8080 liveness probe",
        PROBES,
        "liveness_restarts_what_fails_and_leaves_the_rest",
    ),
    (
        "Probing container should be restarted with a /healthz http liveness probe",
        PROBES,
        "liveness_restarts_what_fails_and_leaves_the_rest",
    ),
    (
        "Probing container should be restarted with a GRPC liveness probe",
        PROBES,
        "liveness_restarts_what_fails_and_leaves_the_rest",
    ),
    (
        "Probing container should be restarted with a exec \"cat /tmp/health\" liveness probe",
        PROBES,
        "liveness_restarts_what_fails_and_leaves_the_rest",
    ),
    ("Probing container should have monotonically increasing restart count", LIFE, "restarts_are_counted_one_by_one"),
    (
        "Probing container with readiness probe should not be ready before initial delay and never restart",
        PROBES,
        "readiness_waits_and_never_restarts",
    ),
    (
        "Probing container with readiness probe that fails should never be ready and never restart",
        PROBES,
        "readiness_waits_and_never_restarts",
    ),
    ("RuntimeClass should reject a Pod requesting a deleted RuntimeClass", LIFECYCLE, "classes_of_runtime_and_service"),
    (
        "RuntimeClass should reject a Pod requesting a non-existent RuntimeClass",
        LIFECYCLE,
        "classes_of_runtime_and_service",
    ),
    (
        "RuntimeClass should schedule a Pod requesting a RuntimeClass and initialize its Overhead",
        LIFECYCLE,
        "classes_of_runtime_and_service",
    ),
    (
        "RuntimeClass should schedule a Pod requesting a RuntimeClass without PodOverhead",
        LIFECYCLE,
        "classes_of_runtime_and_service",
    ),
    ("RuntimeClass should support RuntimeClasses API operations", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "Secrets should be consumable as environment variable names variable names with various prefixes",
        ENVIRONMENT,
        "variables_from_everywhere",
    ),
    ("Secrets should be consumable from pods in env vars", ENVIRONMENT, "variables_from_everywhere"),
    ("Secrets should be consumable via the environment", ENVIRONMENT, "variables_from_everywhere"),
    ("Secrets should fail to create secret due to empty secret key", CONFIG_MAP, "validation"),
    ("Secrets should patch a secret", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "Security Context When creating a container with runAsUser should run the container with uid 65534",
        SECURITY,
        "containers_run_as_they_are_told",
    ),
    (
        "Security Context When creating a pod with privileged should run the container as unprivileged when false",
        SECURITY,
        "containers_run_as_they_are_told",
    ),
    (
        "Security Context When creating a pod with readOnlyRootFilesystem should run the container with writable rootfs when readOnlyRootFilesystem=false",
        SECURITY,
        "containers_run_as_they_are_told",
    ),
    (
        "Security Context should support container.SecurityContext.RunAsUser And container.SecurityContext.RunAsGroup",
        SECURITY,
        "containers_run_as_they_are_told",
    ),
    (
        "Security Context should support pod.Spec.SecurityContext.RunAsUser And pod.Spec.SecurityContext.RunAsGroup",
        SECURITY,
        "containers_run_as_they_are_told",
    ),
    (
        "Security Context when creating containers with AllowPrivilegeEscalation should not allow privilege escalation when false",
        SECURITY,
        "containers_run_as_they_are_told",
    ),
    ("Sysctls should reject invalid sysctls", SECURITY, "what_a_node_does_not_allow_is_refused"),
    ("Sysctls should support sysctls", SECURITY, "containers_run_as_they_are_told"),
    ("Variable Expansion should allow composing env vars into new env vars", ENVIRONMENT, "variables_from_everywhere"),
    (
        "Variable Expansion should allow substituting values in a container's args",
        ENVIRONMENT,
        "variables_from_everywhere",
    ),
    (
        "Variable Expansion should allow substituting values in a container's command",
        ENVIRONMENT,
        "variables_from_everywhere",
    ),
    (
        "Variable Expansion should allow substituting values in a volume subpath",
        VOLUMES,
        "sub_paths_are_expanded_and_stay_inside",
    ),
    (
        "Variable Expansion should fail substituting values in a volume subpath with absolute path",
        VOLUMES,
        "sub_paths_are_expanded_and_stay_inside",
    ),
    (
        "Variable Expansion should fail substituting values in a volume subpath with backticks",
        VOLUMES,
        "sub_paths_are_expanded_and_stay_inside",
    ),
    (
        "Variable Expansion should succeed in writing subpaths in container",
        VOLUMES,
        "sub_paths_are_expanded_and_stay_inside",
    ),
    (
        "Variable Expansion should verify that a failing subpath expansion can be modified during the lifecycle of a container",
        VOLUMES,
        "sub_paths_are_expanded_and_stay_inside",
    ),
    ("CRUD Tests resource.k8s.io/v1 DeviceClass", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("CRUD Tests resource.k8s.io/v1 ResourceClaim", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("CRUD Tests resource.k8s.io/v1 ResourceClaimTemplate", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("CRUD Tests resource.k8s.io/v1 ResourceSlice", EVERY, "every_verb_on_every_kind_in_every_format"),
];

const CONFIG_MAP: &str = "crates/api/src/kinds/core/config_map.rs";
const ENVIRONMENT: &str = "tests/e2e/tests/cluster/node/environment.rs";
const EVERY: &str = "crates/apiserver/tests/it/every_kind.rs";
const FAULTS: &str = "tests/e2e/tests/cluster/node/faults.rs";
const JOURNEY: &str = "tests/e2e/tests/cluster/journey.rs";
const LIFE: &str = "crates/kubelet/tests/faults/life.rs";
const LIFECYCLE: &str = "tests/e2e/tests/cluster/node/lifecycle.rs";
const NODE: &str = "crates/kubelet/tests/node/main.rs";
const POD_UPDATE: &str = "crates/api/src/kinds/core/pod/update.rs";
const PROBES: &str = "tests/e2e/tests/cluster/node/probes.rs";
const SECURITY: &str = "tests/e2e/tests/cluster/node/security.rs";
const SUBRESOURCES: &str = "crates/apiserver/tests/it/subresources.rs";
const TAINTS: &str = "crates/controllers/src/node/taint_eviction.rs";
const VOLUMES: &str = "tests/e2e/tests/cluster/node/volumes.rs";
const WEBSOCKET: &str = "crates/kubelet/src/server/websocket.rs";
