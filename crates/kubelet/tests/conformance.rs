//! Which test of ours covers which of the official conformance texts about nodes, networks and volumes.
//! `make test-reference` compares the first column with the published list.
//! Invariant: a row names a test that exists.

use std::{fs, path::Path};

/// The texts of `[sig-node]` without their marks, and where each is covered: file and test.
const NODES: &[(&str, &str, &str)] = &[
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

/// The texts of `[sig-network]` without their marks, and where each is covered: file and test.
const NETWORKS: &[(&str, &str, &str)] = &[
    (
        "API Server should have Endpoints and EndpointSlices pointing to API Server",
        KINDS,
        "the_api_server_is_a_service_too",
    ),
    ("API Server should provide secure master service", KINDS, "the_api_server_is_a_service_too"),
    ("DNS should provide /etc/hosts entries for the cluster", NAMES, "names_of_services_and_pods"),
    ("DNS should provide DNS for ExternalName services", NAMES, "names_of_services_and_pods"),
    ("DNS should provide DNS for pods for Hostname", NAMES, "names_of_services_and_pods"),
    ("DNS should provide DNS for pods for Subdomain", NAMES, "names_of_services_and_pods"),
    ("DNS should provide DNS for services", NAMES, "names_of_services_and_pods"),
    ("DNS should provide DNS for the cluster", NAMES, "names_of_services_and_pods"),
    ("DNS should resolve DNS of partial qualified names for services", NAMES, "names_of_services_and_pods"),
    ("DNS should support configurable pod DNS nameservers", NAMES, "resolvers_are_configured_as_pods_ask"),
    (
        "EndpointSlice should create Endpoints and EndpointSlices for Pods matching a Service",
        KINDS,
        "endpoints_and_slices_follow_pods",
    ),
    (
        "EndpointSlice should create and delete EndpointSlices for a Service with a selector that matches no pods",
        KINDS,
        "endpoints_and_slices_follow_pods",
    ),
    (
        "EndpointSlice should support a Service with multiple endpoint IPs specified in multiple EndpointSlices",
        SERVICES,
        "slices_and_endpoints_that_people_write_are_followed",
    ),
    (
        "EndpointSlice should support a Service with multiple ports specified in multiple EndpointSlices",
        SERVICES,
        "slices_and_endpoints_that_people_write_are_followed",
    ),
    (
        "EndpointSlice should support creating EndpointSlice API operations",
        KINDS,
        "every_operation_on_the_kinds_of_the_network",
    ),
    (
        "EndpointSliceMirroring should mirror a custom Endpoints resource through create update and delete",
        SERVICES,
        "slices_and_endpoints_that_people_write_are_followed",
    ),
    ("Endpoints should test the lifecycle of an Endpoint", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "EndpointsController should create Endpoints for Pods matching a Service",
        KINDS,
        "endpoints_and_slices_follow_pods",
    ),
    (
        "EndpointsController should create and delete Endpoints for a Service with a selector that matches no pods",
        KINDS,
        "endpoints_and_slices_follow_pods",
    ),
    (
        "HostPort validates that there is no conflict between pods with same hostPort but different hostIP and protocol",
        SERVICES,
        "host_ports_differ_by_address_and_protocol",
    ),
    (
        "Ingress API should support creating Ingress API operations",
        KINDS,
        "every_operation_on_the_kinds_of_the_network",
    ),
    (
        "IngressClass API should support creating IngressClass API operations",
        KINDS,
        "every_operation_on_the_kinds_of_the_network",
    ),
    (
        "Networking Granular Checks: Pods should function for intra-pod communication: http",
        SERVICES,
        "pods_and_nodes_reach_pods_over_tcp_and_udp",
    ),
    (
        "Networking Granular Checks: Pods should function for intra-pod communication: udp",
        SERVICES,
        "pods_and_nodes_reach_pods_over_tcp_and_udp",
    ),
    (
        "Networking Granular Checks: Pods should function for node-pod communication: http",
        SERVICES,
        "pods_and_nodes_reach_pods_over_tcp_and_udp",
    ),
    (
        "Networking Granular Checks: Pods should function for node-pod communication: udp",
        SERVICES,
        "pods_and_nodes_reach_pods_over_tcp_and_udp",
    ),
    (
        "Proxy version v1 A set of valid responses are returned for both pod and service Proxy",
        API_PROXY,
        "every_method_is_passed_on",
    ),
    (
        "Proxy version v1 A set of valid responses are returned for both pod and service ProxyWithPath",
        API_PROXY,
        "every_method_is_passed_on",
    ),
    (
        "Proxy version v1 should proxy through a service and a pod",
        KINDS,
        "pods_services_and_nodes_are_reached_through_the_api_server",
    ),
    ("Service endpoints latency should not be very high", KINDS, "endpoints_and_slices_follow_pods"),
    (
        "ServiceCIDR and IPAddress API should support IPAddress API operations",
        KINDS,
        "every_operation_on_the_kinds_of_the_network",
    ),
    (
        "ServiceCIDR and IPAddress API should support ServiceCIDR API operations",
        KINDS,
        "every_operation_on_the_kinds_of_the_network",
    ),
    (
        "Services should be able to change the type from ClusterIP to ExternalName",
        SERVICES,
        "services_balance_map_ports_and_change_their_type",
    ),
    (
        "Services should be able to change the type from ExternalName to ClusterIP",
        SERVICES,
        "services_balance_map_ports_and_change_their_type",
    ),
    (
        "Services should be able to change the type from ExternalName to NodePort",
        SERVICES,
        "services_balance_map_ports_and_change_their_type",
    ),
    (
        "Services should be able to change the type from NodePort to ExternalName",
        SERVICES,
        "services_balance_map_ports_and_change_their_type",
    ),
    ("Services should be able to create a functioning NodePort service", NETWORK, "a_node_port_is_reached_on_the_node"),
    (
        "Services should be able to switch session affinity for NodePort service",
        SERVICES,
        "session_affinity_is_switched_on_and_off",
    ),
    (
        "Services should be able to switch session affinity for service with type clusterIP",
        SERVICES,
        "session_affinity_is_switched_on_and_off",
    ),
    ("Services should complete a service status lifecycle", KINDS, "every_operation_on_the_kinds_of_the_network"),
    ("Services should delete a collection of services", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "Services should find a service from listing all namespaces",
        KINDS,
        "every_operation_on_the_kinds_of_the_network",
    ),
    (
        "Services should have session affinity work for NodePort service",
        SERVICES,
        "session_affinity_is_switched_on_and_off",
    ),
    (
        "Services should have session affinity work for service with type clusterIP",
        SERVICES,
        "session_affinity_is_switched_on_and_off",
    ),
    ("Services should serve a basic endpoint from pods", SERVICES, "services_balance_map_ports_and_change_their_type"),
    ("Services should serve endpoints on same port and different protocols", KINDS, "one_port_for_two_protocols"),
    (
        "Services should serve multiport endpoints from pods",
        SERVICES,
        "services_balance_map_ports_and_change_their_type",
    ),
];

/// The texts of `[sig-storage]` without their marks, and where each is covered: file and test.
const STORAGE: &[(&str, &str, &str)] = &[
    (
        "CSIInlineVolumes should run through the lifecycle of a CSIDriver",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    ("CSIInlineVolumes should support CSIVolumeSource in Pod API", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "CSINodes CSI Conformance should run through the lifecycle of a csinode",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    (
        "CSIStorageCapacity should support CSIStorageCapacities API operations",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    ("ConfigMap binary data should be reflected in volume", VOLUMES, "files_have_their_content_and_modes"),
    ("ConfigMap optional updates should be reflected in volume", VOLUMES, "updates_appear_in_running_pods"),
    ("ConfigMap should be consumable from pods in volume", VOLUMES, "files_have_their_content_and_modes"),
    (
        "ConfigMap should be consumable from pods in volume as non-root",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "ConfigMap should be consumable from pods in volume with defaultMode set",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    ("ConfigMap should be consumable from pods in volume with mappings", VOLUMES, "files_have_their_content_and_modes"),
    (
        "ConfigMap should be consumable from pods in volume with mappings and Item mode set",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "ConfigMap should be consumable from pods in volume with mappings as non-root",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "ConfigMap should be consumable in multiple volumes in the same pod",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    ("ConfigMap should be immutable if `immutable` field is set", CONFIG_MAP, "validation"),
    ("ConfigMap updates should be reflected in volume", VOLUMES, "updates_appear_in_running_pods"),
    ("Downward API volume should provide container's cpu limit", VOLUMES, "files_have_their_content_and_modes"),
    ("Downward API volume should provide container's cpu request", VOLUMES, "files_have_their_content_and_modes"),
    ("Downward API volume should provide container's memory limit", VOLUMES, "files_have_their_content_and_modes"),
    ("Downward API volume should provide container's memory request", VOLUMES, "files_have_their_content_and_modes"),
    (
        "Downward API volume should provide node allocatable (cpu) as default cpu limit if the limit is not set",
        ENVIRONMENT,
        "limits_default_to_what_the_node_has",
    ),
    (
        "Downward API volume should provide node allocatable (memory) as default memory limit if the limit is not set",
        ENVIRONMENT,
        "limits_default_to_what_the_node_has",
    ),
    ("Downward API volume should provide podname only", VOLUMES, "files_have_their_content_and_modes"),
    ("Downward API volume should set DefaultMode on files", VOLUMES, "files_have_their_content_and_modes"),
    ("Downward API volume should set mode on item file", VOLUMES, "files_have_their_content_and_modes"),
    ("Downward API volume should update annotations on modification", VOLUMES, "updates_appear_in_running_pods"),
    ("Downward API volume should update labels on modification", VOLUMES, "updates_appear_in_running_pods"),
    (
        "EmptyDir volumes pod should support shared volumes between containers",
        VOLUMES,
        "volumes_are_shared_between_containers_and_outlive_them",
    ),
    (
        "EmptyDir volumes should support (non-root,0644,default)",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "EmptyDir volumes should support (non-root,0644,tmpfs)",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "EmptyDir volumes should support (non-root,0666,default)",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "EmptyDir volumes should support (non-root,0666,tmpfs)",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "EmptyDir volumes should support (non-root,0777,default)",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "EmptyDir volumes should support (non-root,0777,tmpfs)",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    ("EmptyDir volumes should support (root,0644,default)", VOLUMES, "files_have_their_content_and_modes"),
    ("EmptyDir volumes should support (root,0644,tmpfs)", VOLUMES, "files_have_their_content_and_modes"),
    ("EmptyDir volumes should support (root,0666,default)", VOLUMES, "files_have_their_content_and_modes"),
    ("EmptyDir volumes should support (root,0666,tmpfs)", VOLUMES, "files_have_their_content_and_modes"),
    ("EmptyDir volumes should support (root,0777,default)", VOLUMES, "files_have_their_content_and_modes"),
    ("EmptyDir volumes should support (root,0777,tmpfs)", VOLUMES, "files_have_their_content_and_modes"),
    (
        "EmptyDir volumes volume on default medium should have the correct mode",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    ("EmptyDir volumes volume on tmpfs should have the correct mode", VOLUMES, "files_have_their_content_and_modes"),
    (
        "EmptyDir wrapper volumes should not cause race condition when used for configmaps",
        VOLUMES,
        "many_volumes_at_once",
    ),
    ("EmptyDir wrapper volumes should not conflict", VOLUMES, "files_have_their_content_and_modes"),
    (
        "PersistentVolumes CSI Conformance should apply changes to a pv/pvc status",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    (
        "PersistentVolumes CSI Conformance should run through the lifecycle of a PV and a PVC",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    (
        "Projected combined should project all components that make up the projection API",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    ("Projected configMap optional updates should be reflected in volume", VOLUMES, "updates_appear_in_running_pods"),
    ("Projected configMap should be consumable from pods in volume", VOLUMES, "files_have_their_content_and_modes"),
    (
        "Projected configMap should be consumable from pods in volume as non-root",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "Projected configMap should be consumable from pods in volume with defaultMode set",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "Projected configMap should be consumable from pods in volume with mappings",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "Projected configMap should be consumable from pods in volume with mappings and Item mode set",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "Projected configMap should be consumable from pods in volume with mappings as non-root",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "Projected configMap should be consumable in multiple volumes in the same pod",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    ("Projected configMap updates should be reflected in volume", VOLUMES, "updates_appear_in_running_pods"),
    ("Projected downwardAPI should provide container's cpu limit", VOLUMES, "files_have_their_content_and_modes"),
    ("Projected downwardAPI should provide container's cpu request", VOLUMES, "files_have_their_content_and_modes"),
    ("Projected downwardAPI should provide container's memory limit", VOLUMES, "files_have_their_content_and_modes"),
    ("Projected downwardAPI should provide container's memory request", VOLUMES, "files_have_their_content_and_modes"),
    (
        "Projected downwardAPI should provide node allocatable (cpu) as default cpu limit if the limit is not set",
        ENVIRONMENT,
        "limits_default_to_what_the_node_has",
    ),
    (
        "Projected downwardAPI should provide node allocatable (memory) as default memory limit if the limit is not set",
        ENVIRONMENT,
        "limits_default_to_what_the_node_has",
    ),
    ("Projected downwardAPI should provide podname only", VOLUMES, "files_have_their_content_and_modes"),
    ("Projected downwardAPI should set DefaultMode on files", VOLUMES, "files_have_their_content_and_modes"),
    ("Projected downwardAPI should set mode on item file", VOLUMES, "files_have_their_content_and_modes"),
    ("Projected downwardAPI should update annotations on modification", VOLUMES, "updates_appear_in_running_pods"),
    ("Projected downwardAPI should update labels on modification", VOLUMES, "updates_appear_in_running_pods"),
    ("Projected secret optional updates should be reflected in volume", VOLUMES, "updates_appear_in_running_pods"),
    ("Projected secret should be consumable from pods in volume", VOLUMES, "files_have_their_content_and_modes"),
    (
        "Projected secret should be consumable from pods in volume as non-root with defaultMode and fsGroup set",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "Projected secret should be consumable from pods in volume with defaultMode set",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "Projected secret should be consumable from pods in volume with mappings",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "Projected secret should be consumable from pods in volume with mappings and Item Mode set",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "Projected secret should be consumable in multiple volumes in a pod",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    ("Secrets optional updates should be reflected in volume", VOLUMES, "updates_appear_in_running_pods"),
    (
        "Secrets should be able to mount in a volume regardless of a different secret existing with same name in different namespace",
        LIFE,
        "secrets_are_those_of_the_pods_own_namespace",
    ),
    ("Secrets should be consumable from pods in volume", VOLUMES, "files_have_their_content_and_modes"),
    (
        "Secrets should be consumable from pods in volume as non-root with defaultMode and fsGroup set",
        VOLUMES,
        "files_belong_to_the_group_and_may_be_read_by_others_than_root",
    ),
    (
        "Secrets should be consumable from pods in volume with defaultMode set",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    ("Secrets should be consumable from pods in volume with mappings", VOLUMES, "files_have_their_content_and_modes"),
    (
        "Secrets should be consumable from pods in volume with mappings and Item Mode set",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    ("Secrets should be consumable in multiple volumes in a pod", VOLUMES, "files_have_their_content_and_modes"),
    ("Secrets should be immutable if `immutable` field is set", CONFIG_MAP, "validation"),
    (
        "StorageClasses CSI Conformance should run through the lifecycle of a StorageClass",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    (
        "Subpath Atomic writer volumes should support subpaths with configmap pod",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "Subpath Atomic writer volumes should support subpaths with configmap pod with mountPath of existing file",
        VOLUMES,
        "files_have_their_content_and_modes",
    ),
    (
        "Subpath Atomic writer volumes should support subpaths with downward pod",
        VOLUMES,
        "sub_paths_are_expanded_and_stay_inside",
    ),
    (
        "Subpath Atomic writer volumes should support subpaths with projected pod",
        VOLUMES,
        "sub_paths_are_expanded_and_stay_inside",
    ),
    (
        "Subpath Atomic writer volumes should support subpaths with secret pod",
        VOLUMES,
        "sub_paths_are_expanded_and_stay_inside",
    ),
    (
        "VolumeAttachment Conformance should apply changes to a volumeattachment status",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    (
        "VolumeAttachment Conformance should run through the lifecycle of a VolumeAttachment",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    (
        "VolumeAttributesClass should run through the lifecycle of a VolumeAttributesClass",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
];

const API_PROXY: &str = "crates/apiserver/tests/it/proxy.rs";
const CONFIG_MAP: &str = "crates/api/src/kinds/config_map.rs";
const ENVIRONMENT: &str = "tests/e2e/tests/cluster/node/environment.rs";
const EVERY: &str = "crates/apiserver/tests/it/every_kind.rs";
const FAULTS: &str = "tests/e2e/tests/cluster/node/faults.rs";
const JOURNEY: &str = "tests/e2e/tests/cluster/journey.rs";
const KINDS: &str = "tests/e2e/tests/cluster/network_kinds.rs";
const LIFE: &str = "crates/kubelet/tests/faults/life.rs";
const LIFECYCLE: &str = "tests/e2e/tests/cluster/node/lifecycle.rs";
const NAMES: &str = "tests/e2e/tests/cluster/names.rs";
const NETWORK: &str = "tests/e2e/tests/cluster/network.rs";
const NODE: &str = "crates/kubelet/tests/node/main.rs";
const POD_UPDATE: &str = "crates/api/src/kinds/pod_update.rs";
const PROBES: &str = "tests/e2e/tests/cluster/node/probes.rs";
const SECURITY: &str = "tests/e2e/tests/cluster/node/security.rs";
const SERVICES: &str = "tests/e2e/tests/cluster/services.rs";
const SUBRESOURCES: &str = "crates/apiserver/tests/it/subresources.rs";
const TAINTS: &str = "crates/controllers/src/node/taint_eviction.rs";
const VOLUMES: &str = "tests/e2e/tests/cluster/node/volumes.rs";
const WEBSOCKET: &str = "crates/kubelet/src/server/websocket.rs";

/// Marks that say how upstream runs a text, not what it asks.
fn plain(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, marked)) = rest.split_once('[') {
        plain.push_str(before);
        rest = marked.split_once(']').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_tests_exist() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for (text, file, test) in [NODES, NETWORKS, STORAGE].concat() {
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(source.contains(&format!("fn {test}(")), "{text}: {file} has no {test}");
    }
}

#[test]
#[ignore = "needs MINKE_REFERENCE; run by make test-reference"]
fn the_published_texts_are_covered() {
    let reference = std::env::var("MINKE_REFERENCE").expect("MINKE_REFERENCE names a checkout of the published API");
    let list = fs::read_to_string(Path::new(&reference).join("conformance.yaml")).unwrap();
    // Long names are folded over lines that begin with more spaces.
    let list = list.replace("\n    ", " ");
    let names = list.lines().filter_map(|line| line.trim().strip_prefix("codename: '"));
    let names: Vec<String> = names.map(|name| name.trim_end_matches('\'').replace("''", "'")).collect();
    for (group, covered) in [("[sig-node] ", NODES), ("[sig-network] ", NETWORKS), ("[sig-storage] ", STORAGE)] {
        let texts: Vec<String> = names.iter().filter_map(|name| name.strip_prefix(group)).map(plain).collect();
        for text in &texts {
            assert!(covered.iter().any(|(known, ..)| known == text), "{group}{text}");
        }
        assert_eq!(texts.len(), covered.len(), "{group}");
    }
}
