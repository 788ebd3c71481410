//! The conformance texts of `[sig-network]`, about networks: Services, names, endpoints.
//! Part of the table in `main`.
//! A row names a test that exists.

use testkit::conformance::Row;

pub const TEXTS: &[Row] = &[
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

const API_PROXY: &str = "crates/apiserver/tests/it/proxy.rs";
const EVERY: &str = "crates/apiserver/tests/it/every_kind.rs";
const KINDS: &str = "tests/e2e/tests/cluster/network_kinds.rs";
const NAMES: &str = "tests/e2e/tests/cluster/names.rs";
const NETWORK: &str = "tests/e2e/tests/cluster/network.rs";
const SERVICES: &str = "tests/e2e/tests/cluster/services.rs";
