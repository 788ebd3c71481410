//! The conformance texts of `[sig-cli]`, about kubectl, and those of two groups that have few: events and the cluster.
//! Part of the table in `mod`.
//! A row names a test that exists.

use testkit::conformance::Row;

pub const TEXTS: &[Row] = &[
    (
        "Kubectl client Guestbook application should create and stop a working application",
        GUESTBOOK,
        "an_application_of_several_tiers",
    ),
    (
        "Kubectl client Kubectl api-versions should check if v1 is in available api versions",
        COMMANDS,
        "kubectl_learns_about_the_server",
    ),
    (
        "Kubectl client Kubectl cluster-info should check if Kubernetes control plane services is included in cluster-info",
        COMMANDS,
        "kubectl_learns_about_the_server",
    ),
    (
        "Kubectl client Kubectl describe should check if kubectl describe prints relevant information for rc and pods",
        E2E,
        "a_controller_is_described_exposed_and_its_pods_annotated",
    ),
    (
        "Kubectl client Kubectl diff should check if kubectl diff finds a difference for Deployments",
        COMMANDS,
        "kubectl_diffs_and_tries_without_writing",
    ),
    (
        "Kubectl client Kubectl expose should create services for rc",
        E2E,
        "a_controller_is_described_exposed_and_its_pods_annotated",
    ),
    ("Kubectl client Kubectl label should update the label on a resource", E2E, "a_pod_is_run_labeled_and_replaced"),
    (
        "Kubectl client Kubectl patch should add annotations for pods in rc",
        E2E,
        "a_controller_is_described_exposed_and_its_pods_annotated",
    ),
    (
        "Kubectl client Kubectl replace should update a single-container pod's image",
        E2E,
        "a_pod_is_run_labeled_and_replaced",
    ),
    (
        "Kubectl client Kubectl run pod should create a pod from an image when restart is Never",
        E2E,
        "a_pod_is_run_labeled_and_replaced",
    ),
    (
        "Kubectl client Kubectl server-side dry-run should check if kubectl can dry-run update Pods",
        COMMANDS,
        "kubectl_diffs_and_tries_without_writing",
    ),
    ("Kubectl client Kubectl version should check is all data is printed", COMMANDS, "kubectl_learns_about_the_server"),
    (
        "Kubectl client Proxy server should support --unix-socket=/path",
        COMMANDS,
        "kubectl_proxies_at_any_port_or_socket",
    ),
    (
        "Kubectl client Proxy server should support proxy with --port 0",
        COMMANDS,
        "kubectl_proxies_at_any_port_or_socket",
    ),
    (
        "Kubectl client Update Demo should create and stop a replication controller",
        E2E,
        "a_controller_is_scaled_and_stopped",
    ),
    ("Kubectl client Update Demo should scale a replication controller", E2E, "a_controller_is_scaled_and_stopped"),
    ("Kubectl logs logs should be able to retrieve and filter logs", E2E, "logs_are_filtered"),
];

pub const EVENTS: &[Row] = &[
    ("Events API should delete a collection of events", EVENTS_IT, "events_go_together"),
    (
        "Events API should ensure that an event can be fetched, patched, deleted, and listed",
        EVENTS_IT,
        "an_event_is_found_patched_updated_and_deleted",
    ),
    ("Events should delete a collection of events", EVENTS_IT, "events_go_together"),
    ("Events should manage the lifecycle of an event", EVENTS_IT, "an_event_is_found_patched_updated_and_deleted"),
];

pub const ARCHITECTURE: &[Row] =
    &[("Conformance Tests should have at least two untainted nodes", SEVERAL_NODES, "three_nodes_with_routes")];

const COMMANDS: &str = "crates/apiserver/tests/it/kubectl_commands.rs";
const E2E: &str = "tests/e2e/tests/cluster/kubectl_client.rs";
const GUESTBOOK: &str = "tests/e2e/tests/cluster/guestbook.rs";
const EVENTS_IT: &str = "crates/apiserver/tests/it/events.rs";
const SEVERAL_NODES: &str = "tests/e2e/tests/lifecycle/several_nodes.rs";
