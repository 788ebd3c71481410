//! The conformance texts of `[sig-api-machinery]` except those about admission.
//! Part of the table in `mod`.
//! A row names a test that exists.

use testkit::conformance::Row;

pub const TEXTS: &[Row] = &[
    (
        "API priority and fairness should support FlowSchema API operations",
        FLOW,
        "every_operation_on_schemas_and_levels",
    ),
    (
        "API priority and fairness should support PriorityLevelConfiguration API operations",
        FLOW,
        "every_operation_on_schemas_and_levels",
    ),
    ("AggregatedDiscovery should support aggregated discovery interface", DISCOVERY, "both_forms_say_the_same"),
    (
        "AggregatedDiscovery should support aggregated discovery interface for CRDs",
        DISCOVERY,
        "custom_resources_are_in_both_forms_and_leave_them",
    ),
    (
        "AggregatedDiscovery should support raw aggregated discovery endpoint Accept headers",
        DISCOVERY,
        "both_forms_say_the_same",
    ),
    (
        "AggregatedDiscovery should support raw aggregated discovery request for CRDs",
        DISCOVERY,
        "custom_resources_are_in_both_forms_and_leave_them",
    ),
    (
        "Aggregator Should be able to support the 1.17 Sample API Server using the current Aggregator",
        OLD_EXTENSION,
        "a_server_of_1_17_is_served",
    ),
    (
        "CustomResourceConversionWebhook should be able to convert a non homogeneous list of CRs",
        CONVERSION,
        "a_list_of_objects_stored_in_different_versions_is_of_one",
    ),
    (
        "CustomResourceConversionWebhook should be able to convert from CR v1 to CR v2",
        CONVERSION,
        "objects_are_read_in_the_other_version",
    ),
    (
        "CustomResourceDefinition Watch CustomResourceDefinition Watch watch on custom resource definition objects",
        DEFINITIONS,
        "definitions_and_their_objects_are_watched",
    ),
    (
        "CustomResourceDefinition resources Simple CustomResourceDefinition creating/deleting custom resource definition objects works",
        DEFINITIONS,
        "definitions_are_selected_and_removed_together",
    ),
    (
        "CustomResourceDefinition resources Simple CustomResourceDefinition getting/updating/patching custom resource definition status sub-resource works",
        DEFINITIONS,
        "the_status_of_a_definition_is_read_updated_and_patched",
    ),
    (
        "CustomResourceDefinition resources Simple CustomResourceDefinition listing custom resource definition objects works",
        DEFINITIONS,
        "definitions_are_selected_and_removed_together",
    ),
    (
        "CustomResourceDefinition resources custom resource defaulting for requests and from storage works",
        DEFINITIONS,
        "defaults_come_with_requests_and_from_storage",
    ),
    (
        "CustomResourceDefinition resources should include custom resource definition resources in discovery documents",
        DISCOVERY,
        "both_forms_say_the_same",
    ),
    (
        "CustomResourceFieldSelectors CustomResourceFieldSelectors MUST list and watch custom resources matching the field selector",
        CONVERSION,
        "fields_select_in_lists_and_watches_of_every_version",
    ),
    (
        "CustomResourcePublishOpenAPI removes definition from spec when one version gets changed to not be served",
        PUBLISHED,
        "schemas_follow_the_versions_of_their_definition",
    ),
    (
        "CustomResourcePublishOpenAPI updates the published spec when one version gets renamed",
        PUBLISHED,
        "schemas_follow_the_versions_of_their_definition",
    ),
    (
        "CustomResourcePublishOpenAPI works for CRD preserving unknown fields at the schema root",
        KUBECTL_CUSTOM,
        "kubectl_accepts_what_a_schema_leaves_open",
    ),
    (
        "CustomResourcePublishOpenAPI works for CRD preserving unknown fields in an embedded object",
        KUBECTL_CUSTOM,
        "kubectl_accepts_what_a_schema_leaves_open",
    ),
    (
        "CustomResourcePublishOpenAPI works for CRD with validation schema",
        KUBECTL_CUSTOM,
        "kubectl_refuses_and_explains_by_the_schema",
    ),
    (
        "CustomResourcePublishOpenAPI works for CRD without validation schema",
        KUBECTL_CUSTOM,
        "kubectl_accepts_what_a_schema_leaves_open",
    ),
    (
        "CustomResourcePublishOpenAPI works for multiple CRDs of different groups",
        PUBLISHED,
        "schemas_come_and_go_with_their_definitions",
    ),
    (
        "CustomResourcePublishOpenAPI works for multiple CRDs of same group and version but different kinds",
        PUBLISHED,
        "schemas_come_and_go_with_their_definitions",
    ),
    (
        "CustomResourcePublishOpenAPI works for multiple CRDs of same group but different versions",
        PUBLISHED,
        "schemas_come_and_go_with_their_definitions",
    ),
    (
        "Discovery should locate the groupVersion and a resource within each APIGroup",
        DISCOVERY,
        "both_forms_say_the_same",
    ),
    ("Discovery should validate PreferredVersion for each APIGroup", DISCOVERY, "every_group_prefers_a_version_it_has"),
    (
        "FieldValidation should create/apply a CR with unknown fields for CRD with no validation schema",
        VALIDATION,
        "custom_objects_are_read_strictly",
    ),
    (
        "FieldValidation should create/apply a valid CR for CRD with validation schema",
        VALIDATION,
        "custom_objects_are_read_strictly",
    ),
    (
        "FieldValidation should create/apply an invalid CR with extra properties for CRD with validation schema",
        VALIDATION,
        "custom_objects_are_read_strictly",
    ),
    (
        "FieldValidation should detect duplicates in a CR when preserving unknown fields",
        VALIDATION,
        "fields_said_twice_are_refused_also_where_unknown_ones_are_kept",
    ),
    (
        "FieldValidation should detect unknown and duplicate fields of a typed object",
        VALIDATION,
        "built_in_objects_are_read_strictly",
    ),
    (
        "FieldValidation should detect unknown metadata fields in both the root and embedded object of a CR",
        VALIDATION,
        "metadata_holds_nothing_unknown_at_the_root_or_inside",
    ),
    (
        "FieldValidation should detect unknown metadata fields of a typed object",
        VALIDATION,
        "built_in_objects_are_read_strictly",
    ),
    (
        "Garbage collector should delete RS created by deployment when not orphaning",
        MAIN,
        "a_deployment_rolls_out_is_served_and_goes",
    ),
    (
        "Garbage collector should delete pods created by rc when not orphaning",
        COLLECTING,
        "pods_go_with_their_controller_or_stay_as_asked",
    ),
    (
        "Garbage collector should keep the rc around until all its pods are deleted if the deleteOptions says so",
        COLLECTING,
        "an_owner_waits_for_those_that_go_before_it",
    ),
    ("Garbage collector should not be blocked by dependency circle", BAD_INPUT, "owners_that_loop"),
    (
        "Garbage collector should not delete dependents that have both valid owner and owner that's waiting for dependents to be deleted",
        COLLECTING,
        "a_second_owner_that_stays_keeps_what_both_own",
    ),
    (
        "Garbage collector should orphan RS created by deployment when deleteOptions.PropagationPolicy is Orphan",
        MAIN,
        "foreground_and_orphan_deletions",
    ),
    (
        "Garbage collector should orphan pods created by rc if delete options say so",
        COLLECTING,
        "pods_go_with_their_controller_or_stay_as_asked",
    ),
    ("Namespaces should apply a finalizer to a Namespace", NAMESPACES, "finalizers_are_added_and_removed"),
    ("Namespaces should apply an update to a Namespace", NAMESPACES, "labels_are_patched_and_updated"),
    ("Namespaces should apply changes to a namespace status", NAMESPACES, "the_status_is_patched_and_updated"),
    (
        "Namespaces should ensure that all pods are removed when a namespace is deleted",
        EMPTIED,
        "nothing_outlives_its_namespace",
    ),
    (
        "Namespaces should ensure that all services are removed when a namespace is deleted",
        EMPTIED,
        "nothing_outlives_its_namespace",
    ),
    ("Namespaces should patch a Namespace", NAMESPACES, "labels_are_patched_and_updated"),
    ("OrderedNamespaceDeletion namespace deletion should delete pod first", EMPTIED, "pods_go_before_what_they_use"),
    ("ResourceQuota should apply changes to a resourcequota status", QUOTAS, "the_status_is_written_and_comes_back"),
    ("ResourceQuota should be able to update and delete ResourceQuota.", QUOTAS, "quotas_are_changed_listed_and_go"),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a configMap.",
        QUOTAS,
        "objects_are_counted_from_their_making_to_their_end",
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a pod.",
        QUOTAS,
        "what_a_pod_asks_for_is_charged_and_given_back",
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a replica set.",
        QUOTAS,
        "objects_are_counted_from_their_making_to_their_end",
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a replication controller.",
        QUOTAS,
        "objects_are_counted_from_their_making_to_their_end",
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a secret.",
        QUOTAS,
        "objects_are_counted_from_their_making_to_their_end",
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a service.",
        QUOTAS,
        "objects_are_counted_from_their_making_to_their_end",
    ),
    (
        "ResourceQuota should create a ResourceQuota and ensure its status is promptly calculated.",
        QUOTAS,
        "objects_are_counted_from_their_making_to_their_end",
    ),
    ("ResourceQuota should manage the lifecycle of a ResourceQuota", QUOTAS, "quotas_are_changed_listed_and_go"),
    ("ResourceQuota should verify ResourceQuota with best effort scope.", QUOTAS, "scopes_tell_pods_apart"),
    ("ResourceQuota should verify ResourceQuota with terminating scopes.", QUOTAS, "scopes_tell_pods_apart"),
    (
        "Servers with support for API chunking should return chunks of results for list calls",
        PAGES,
        "pages_add_up_to_the_whole",
    ),
    (
        "Servers with support for API chunking should support continue listing from the last key if the original version has been compacted away, though the list is inconsistent",
        PAGES,
        "pages_of_a_forgotten_moment_go_on_with_the_present",
    ),
    (
        "Servers with support for Table transformation should return a 406 for a backend which does not implement metadata",
        DISCOVERY,
        "what_has_no_metadata_is_no_table",
    ),
    (
        "Watchers should be able to restart watching from the last resource version observed by the previous watch",
        WATCHES,
        "a_watch_goes_on_where_another_ended",
    ),
    (
        "Watchers should be able to start watching from a specific resource version",
        WATCHES,
        "a_watch_goes_on_where_another_ended",
    ),
    (
        "Watchers should observe add, update, and delete watch notifications on configmaps",
        WATCHES,
        "each_watcher_hears_of_what_it_selects",
    ),
    (
        "Watchers should observe an object deletion if it stops meeting the requirements of the selector",
        WATCHES,
        "selectors_turn_changes_into_comings_and_goings",
    ),
    (
        "Watchers should receive events on concurrent watches in same order",
        WATCHES,
        "watches_begun_at_any_moment_see_the_same_order",
    ),
    ("server version should find the server version", DISCOVERY, "the_version_is_two_numbers"),
];

const FLOW: &str = "crates/apiserver/tests/it/flow_control.rs";
const DISCOVERY: &str = "crates/apiserver/tests/it/discovery.rs";
const OLD_EXTENSION: &str = "crates/apiserver/tests/it/old_extension.rs";
const CONVERSION: &str = "crates/apiserver/tests/it/conversion.rs";
const DEFINITIONS: &str = "crates/apiserver/tests/it/definitions.rs";
const PUBLISHED: &str = "crates/apiserver/tests/it/published.rs";
const KUBECTL_CUSTOM: &str = "crates/apiserver/tests/it/kubectl_custom.rs";
const VALIDATION: &str = "crates/apiserver/tests/it/field_validation.rs";
const NAMESPACES: &str = "crates/apiserver/tests/it/namespaces.rs";
const PAGES: &str = "crates/apiserver/tests/it/pages.rs";
const WATCHES: &str = "crates/apiserver/tests/it/watches.rs";
const MAIN: &str = "crates/controllers/tests/cluster/main.rs";
const BAD_INPUT: &str = "crates/controllers/tests/cluster/bad_input.rs";
const COLLECTING: &str = "crates/controllers/tests/cluster/collecting.rs";
const EMPTIED: &str = "crates/controllers/tests/cluster/namespaces.rs";
const QUOTAS: &str = "crates/controllers/tests/cluster/quotas.rs";
