//! Which test of ours covers which of the official conformance texts about identity, permission and admission.
//! `make test-reference` compares the first column with the published list.
//! Invariant: a row names a test that exists.

use std::{fs, path::Path};

/// The text after its group, and where it is covered: file and test.
const COVERED: &[(&str, &str, &str)] = &[
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
        ADMISSION,
        "broken_expressions_are_not_stored",
    ),
    (
        "AdmissionWebhook should reject validating webhook configurations with invalid match conditions",
        ADMISSION,
        "broken_expressions_are_not_stored",
    ),
    (
        "AdmissionWebhook should unconditionally reject operations on fail closed webhook",
        WEBHOOKS,
        "what_cannot_be_called_fails_closed",
    ),
    (
        "ValidatingAdmissionPolicy should allow expressions to refer variables.",
        ADMISSION,
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
    ("ValidatingAdmissionPolicy should validate against a Deployment", ADMISSION, "policies_decide_by_expressions"),
    ("Certificates API should support CSR API operations", EVERY, "every_verb_on_every_kind_in_every_format"),
    (
        "ServiceAccounts ServiceAccountIssuerDiscovery should support OIDC discovery of service account issuer",
        AUTHENTICATION,
        "service_account_tokens_and_their_forgeries",
    ),
    (
        "ServiceAccounts should allow opting out of API token automount",
        ACCOUNTS,
        "tokens_are_mounted_unless_someone_opts_out",
    ),
    (
        "ServiceAccounts should create a serviceAccountToken and ensure a successful TokenReview",
        AUTHENTICATION,
        "service_account_tokens_and_their_forgeries",
    ),
    (
        "ServiceAccounts should guarantee kube-root-ca.crt exist in any namespace",
        CONTROLLERS,
        "the_ca_is_in_every_namespace_whatever_people_do",
    ),
    ("ServiceAccounts should mount an API token into pods", E2E, "a_pod_calls_the_api_with_its_token"),
    ("ServiceAccounts should mount projected service account token", E2E, "a_pod_calls_the_api_with_its_token"),
    (
        "ServiceAccounts should run through the lifecycle of a ServiceAccount",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    ("ServiceAccounts should update a ServiceAccount", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("SubjectReview should support SubjectReview API operations", KUBECTL, "kubectl_asks_who_may_do_what"),
];

const ADMISSION: &str = "crates/apiserver/src/admission/tests.rs";
const WEBHOOKS: &str = "crates/apiserver/src/admission/webhook_tests.rs";
const ACCOUNTS: &str = "crates/apiserver/src/admission/service_account.rs";
const AUTHENTICATION: &str = "crates/apiserver/src/authn/tests.rs";
const EVERY: &str = "crates/apiserver/tests/it/every_kind.rs";
const KUBECTL: &str = "crates/apiserver/tests/it/kubectl.rs";
const CONTROLLERS: &str = "crates/controllers/tests/cluster/guards.rs";
const E2E: &str = "tests/e2e/tests/cluster/access.rs";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn the_tests_exist() {
    for (text, file, test) in COVERED {
        let source = fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(source.contains(&format!("fn {test}(")), "{text}: {file} has no {test}");
    }
}

/// Every published text about who may do what is in the table.
#[test]
#[ignore = "needs MINKE_REFERENCE; run by make test-reference"]
fn the_published_texts_are_covered() {
    let reference = std::env::var("MINKE_REFERENCE").expect("MINKE_REFERENCE names a checkout of the published API");
    let list = fs::read_to_string(Path::new(&reference).join("conformance.yaml")).unwrap();
    // Long names are folded over lines that begin with more spaces.
    let list = list.replace("\n    ", " ");
    let names = list.lines().filter_map(|l| l.trim().strip_prefix("codename: '"));
    let mut found = 0;
    for name in names.map(|n| n.trim_end_matches('\'').replace("''", "'")) {
        let admission = name.starts_with("[sig-api-machinery]") && name.contains("Admission");
        if !name.starts_with("[sig-auth]") && !admission {
            continue;
        }
        found += 1;
        let plain = name.replace(" [Privileged:ClusterAdmin]", "").replace(" [Conformance]", "");
        let text = plain.split_once("] ").map_or(plain.as_str(), |(_, text)| text).trim();
        assert!(COVERED.iter().any(|(covered, ..)| *covered == text), "{text}");
    }
    assert_eq!(found, COVERED.len());
}
