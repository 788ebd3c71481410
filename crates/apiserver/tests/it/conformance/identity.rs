//! The conformance texts of `[sig-auth]`, about identity and permission.
//! Part of the table in `mod`.
//! A row names a test that exists.

use testkit::conformance::Row;

pub const TEXTS: &[Row] = &[
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

const ACCOUNTS: &str = "crates/apiserver/src/admission/service_account.rs";
const AUTHENTICATION: &str = "crates/apiserver/src/authn/tests.rs";
const EVERY: &str = "crates/apiserver/tests/it/every_kind.rs";
const KUBECTL: &str = "crates/apiserver/tests/it/kubectl.rs";
const CONTROLLERS: &str = "crates/controllers/tests/cluster/guards.rs";
const E2E: &str = "tests/e2e/tests/cluster/access.rs";
