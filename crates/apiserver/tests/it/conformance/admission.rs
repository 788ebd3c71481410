//! The conformance texts of `[sig-api-machinery]` about admission: webhooks and policies.
//! Part of the table in `mod`.
//! A row names a test that exists.

use testkit::conformance::Row;

pub const TEXTS: &[Row] = &[
    (
        "AdmissionWebhook listing mutating webhooks should work",
        WEBHOOKS,
        "configurations_are_listed_and_removed_together",
    ),
    (
        "AdmissionWebhook listing validating webhooks should work",
        WEBHOOKS,
        "configurations_are_listed_and_removed_together",
    ),
    (
        "AdmissionWebhook patching/updating a mutating webhook should work",
        WEBHOOKS,
        "configurations_are_changed_while_they_work",
    ),
    (
        "AdmissionWebhook patching/updating a validating webhook should work",
        WEBHOOKS,
        "configurations_are_changed_while_they_work",
    ),
    (
        "AdmissionWebhook should be able to create and update mutating webhook configurations with match conditions",
        WEBHOOKS,
        "configurations_are_changed_while_they_work",
    ),
    (
        "AdmissionWebhook should be able to create and update validating webhook configurations with match conditions",
        WEBHOOKS,
        "configurations_are_changed_while_they_work",
    ),
    ("AdmissionWebhook should be able to deny attaching pod", WEBHOOKS, "attaching_is_refused"),
    (
        "AdmissionWebhook should be able to deny custom resource creation, update and deletion",
        WEBHOOKS,
        "custom_resources_and_their_definitions_are_refused",
    ),
    (
        "AdmissionWebhook should be able to deny pod and configmap creation",
        WEBHOOKS,
        "pods_and_config_maps_are_refused_however_they_come",
    ),
    ("AdmissionWebhook should deny crd creation", WEBHOOKS, "custom_resources_and_their_definitions_are_refused"),
    ("AdmissionWebhook should honor timeout", ADMISSION, "webhooks_that_hang_or_lie_are_survived"),
    (
        "AdmissionWebhook should include webhook resources in discovery documents",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    ("AdmissionWebhook should mutate configmap", WEBHOOKS, "webhooks_see_what_others_changed"),
    (
        "AdmissionWebhook should mutate custom resource with different stored version",
        WEBHOOKS,
        "custom_resources_are_changed_also_after_the_stored_version_did",
    ),
    (
        "AdmissionWebhook should mutate custom resource with pruning",
        ADMISSION,
        "what_webhooks_add_is_pruned_before_the_next_one_sees_it",
    ),
    (
        "AdmissionWebhook should mutate custom resource",
        WEBHOOKS,
        "custom_resources_are_changed_also_after_the_stored_version_did",
    ),
    ("AdmissionWebhook should mutate everything except 'skip-me' configmaps", ADMISSION, "webhooks_change_and_refuse"),
    (
        "AdmissionWebhook should mutate pod and apply defaults after mutation",
        WEBHOOKS,
        "what_webhooks_add_to_pods_is_completed",
    ),
    (
        "AdmissionWebhook should not be able to mutate or prevent deletion of webhook configuration objects",
        WEBHOOKS,
        "webhook_configurations_are_out_of_reach",
    ),
    (
        "AdmissionWebhook should reject mutating webhook configurations with invalid match conditions",
        POLICIES,
        "broken_expressions_are_not_stored",
    ),
    (
        "AdmissionWebhook should reject validating webhook configurations with invalid match conditions",
        POLICIES,
        "broken_expressions_are_not_stored",
    ),
    (
        "AdmissionWebhook should unconditionally reject operations on fail closed webhook",
        WEBHOOKS,
        "what_cannot_be_called_fails_closed",
    ),
    (
        "ValidatingAdmissionPolicy should allow expressions to refer variables.",
        POLICIES,
        "policies_decide_by_expressions",
    ),
    (
        "ValidatingAdmissionPolicy should support ValidatingAdmissionPolicy API operations",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    (
        "ValidatingAdmissionPolicy should support ValidatingAdmissionPolicyBinding API operations",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    ("ValidatingAdmissionPolicy should validate against a Deployment", POLICIES, "policies_decide_by_expressions"),
];

const ADMISSION: &str = "crates/apiserver/src/admission/tests.rs";
const POLICIES: &str = "crates/apiserver/src/admission/policy_tests.rs";
const WEBHOOKS: &str = "crates/apiserver/src/admission/webhook_tests.rs";
const EVERY: &str = "crates/apiserver/tests/it/every_kind.rs";
