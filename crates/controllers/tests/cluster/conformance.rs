//! Which test of ours covers which of the official conformance texts about workloads and scheduling.
//! Checked by `testkit`; `make test-reference` compares the first column with the published list.
//! A row names a test that exists.

use testkit::conformance::{self, Group, Row};

const APPS: &[Row] = &[
    (
        "ControllerRevision should manage the lifecycle of a ControllerRevision",
        ENDPOINTS,
        "revisions_are_objects_like_others",
    ),
    ("CronJob should not schedule jobs when suspended", JOBS, "cron_jobs_overlap_as_their_policy_allows"),
    ("CronJob should not schedule new jobs when ForbidConcurrent", JOBS, "cron_jobs_overlap_as_their_policy_allows"),
    ("CronJob should replace jobs when ReplaceConcurrent", JOBS, "cron_jobs_overlap_as_their_policy_allows"),
    ("CronJob should schedule multiple jobs concurrently", JOBS, "cron_jobs_overlap_as_their_policy_allows"),
    ("CronJob should support CronJob API operations", EVERY, "every_verb_on_every_kind_in_every_format"),
    ("Daemon set should list and delete a collection of DaemonSets", ENDPOINTS, "collections_go_together"),
    ("Daemon set should retry creating failed daemon pods", SETS, "daemons_that_go_or_fail_come_back"),
    ("Daemon set should rollback without unnecessary restarts", SETS, "a_rollback_restarts_no_daemon_without_need"),
    ("Daemon set should run and stop complex daemon", SETS, "daemons_follow_the_labels_of_nodes"),
    ("Daemon set should run and stop simple daemon", SETS, "daemons_that_go_or_fail_come_back"),
    (
        "Daemon set should update pod when spec was updated and update strategy is RollingUpdate",
        WORKLOADS,
        "daemon_sets_cover_nodes_and_update",
    ),
    ("Daemon set should verify changes to a daemon set status", ENDPOINTS, "statuses_are_written_by_themselves"),
    ("Deployment Deployment should have a working scale subresource", ENDPOINTS, "scale_subresources_work"),
    (
        "Deployment RecreateDeployment should delete old pods and create new ones",
        ROLLOUTS,
        "recreation_never_mixes_versions",
    ),
    (
        "Deployment RollingUpdateDeployment should delete old pods and create new ones",
        MAIN,
        "a_deployment_rolls_out_is_served_and_goes",
    ),
    ("Deployment deployment should delete old replica sets", ROLLOUTS, "old_sets_go_and_rollouts_can_be_undone"),
    (
        "Deployment deployment should support proportional scaling",
        DEPLOYMENT_PLAN,
        "scaling_in_a_rollout_is_proportional",
    ),
    ("Deployment deployment should support rollover", ROLLOUTS, "a_rollout_is_overtaken_by_the_next"),
    ("Deployment should run the lifecycle of a Deployment", MAIN, "a_deployment_rolls_out_is_served_and_goes"),
    ("Deployment should validate Deployment Status endpoints", ENDPOINTS, "statuses_are_written_by_themselves"),
    (
        "DisruptionController Listing PodDisruptionBudgets for all namespaces should list and delete a collection of PodDisruptionBudgets",
        ENDPOINTS,
        "budgets_are_listed_over_all_namespaces",
    ),
    (
        "DisruptionController should block an eviction until the PDB is updated to allow it",
        ROLLOUTS,
        "evictions_wait_for_their_budget",
    ),
    ("DisruptionController should create a PodDisruptionBudget", GUARDS, "budgets_and_quotas_follow_the_pods"),
    (
        "DisruptionController should observe PodDisruptionBudget status updated",
        GUARDS,
        "budgets_and_quotas_follow_the_pods",
    ),
    (
        "DisruptionController should update/patch PodDisruptionBudget status",
        ENDPOINTS,
        "statuses_are_written_by_themselves",
    ),
    (
        "Job should adopt matching orphans and release non-matching pods",
        WORKLOADS,
        "jobs_adopt_their_orphans_and_release_strangers",
    ),
    (
        "Job should allow to use a pod failure policy to ignore failure matching on DisruptionTarget condition",
        JOBS,
        "a_disrupted_pod_is_no_failure_when_the_policy_says_so",
    ),
    ("Job should allow to use the pod failure policy on exit code to fail the job early", JOB_PLAN, "policies"),
    ("Job should apply changes to a job status", ENDPOINTS, "statuses_are_written_by_themselves"),
    (
        "Job should create pods for an Indexed job with completion indexes and specified hostname",
        JOBS,
        "indexed_pods_know_their_number_and_have_names",
    ),
    ("Job should delete a job", WORKLOADS, "jobs_complete_fail_and_expire"),
    (
        "Job should execute all indexes despite some failing when using backoffLimitPerIndex",
        JOB_PLAN,
        "indexes_fail_alone",
    ),
    ("Job should manage the lifecycle of a job", JOBS, "jobs_are_suspended_resumed_and_go_with_their_pods"),
    (
        "Job should mark indexes as failed when the FailIndex action is matched in podFailurePolicy",
        JOB_PLAN,
        "a_policy_fails_one_index",
    ),
    (
        "Job should run a job to completion when tasks sometimes fail and are locally restarted",
        JOBS,
        "restarts_on_the_node_are_no_failures",
    ),
    (
        "Job should terminate job execution when the number of failed indexes exceeds maxFailedIndexes",
        JOB_PLAN,
        "too_many_failed_indexes_end_the_job",
    ),
    ("Job with successPolicy should succeeded when all indexes succeeded", JOB_PLAN, "success_policies"),
    (
        "Job with successPolicy succeededCount rule should succeeded even when some indexes remain pending",
        JOB_PLAN,
        "success_policies",
    ),
    (
        "Job with successPolicy succeededIndexes rule should succeeded even when some indexes remain pending",
        JOB_PLAN,
        "success_policies",
    ),
    ("ReplicaSet Replace and Patch tests", ROLLOUTS, "replication_controllers_and_replica_sets_are_changed_and_go"),
    ("ReplicaSet Replicaset should have a working scale subresource", ENDPOINTS, "scale_subresources_work"),
    (
        "ReplicaSet should adopt matching pods on creation and release no longer matching pods",
        ROLLOUTS,
        "matching_pods_are_adopted_and_others_released",
    ),
    ("ReplicaSet should list and delete a collection of ReplicaSets", ENDPOINTS, "collections_go_together"),
    (
        "ReplicaSet should serve a basic image on each replica with a public image",
        JOURNEY,
        "a_deployment_from_apply_to_delete",
    ),
    ("ReplicaSet should validate Replicaset Status endpoints", ENDPOINTS, "statuses_are_written_by_themselves"),
    (
        "ReplicationController should adopt matching pods on creation",
        ROLLOUTS,
        "matching_pods_are_adopted_and_others_released",
    ),
    ("ReplicationController should get and update a ReplicationController scale", ENDPOINTS, "scale_subresources_work"),
    (
        "ReplicationController should release no longer matching pods",
        ROLLOUTS,
        "matching_pods_are_adopted_and_others_released",
    ),
    (
        "ReplicationController should serve a basic image on each replica with a public image",
        KINDS,
        "every_workload_kind_by_kubectl",
    ),
    (
        "ReplicationController should surface a failure condition on a common issue like exceeded quota",
        ROLLOUTS,
        "a_quota_shows_in_the_conditions_and_goes",
    ),
    (
        "ReplicationController should test the lifecycle of a ReplicationController",
        ROLLOUTS,
        "replication_controllers_and_replica_sets_are_changed_and_go",
    ),
    (
        "StatefulSet Basic StatefulSet functionality Burst scaling should run to completion even with unhealthy pods",
        SETS,
        "parallel_stateful_sets_scale_whoever_is_sick",
    ),
    (
        "StatefulSet Basic StatefulSet functionality Scaling should happen in predictable order and halt if any stateful pod is unhealthy",
        SETS,
        "stateful_sets_scale_in_order_and_halt_at_a_sick_pod",
    ),
    (
        "StatefulSet Basic StatefulSet functionality Should recreate evicted statefulset",
        SETS,
        "a_stateful_pod_that_failed_is_made_again",
    ),
    (
        "StatefulSet Basic StatefulSet functionality should have a working scale subresource",
        ENDPOINTS,
        "scale_subresources_work",
    ),
    (
        "StatefulSet Basic StatefulSet functionality should list, patch and delete a collection of StatefulSets",
        ENDPOINTS,
        "collections_go_together",
    ),
    (
        "StatefulSet Basic StatefulSet functionality should perform canary updates and phased rolling updates of template modifications",
        SETS,
        "stateful_sets_update_in_phases_and_go_back",
    ),
    (
        "StatefulSet Basic StatefulSet functionality should perform rolling updates and roll backs of template modifications",
        SETS,
        "stateful_sets_update_in_phases_and_go_back",
    ),
    (
        "StatefulSet Basic StatefulSet functionality should validate Statefulset Status endpoints",
        ENDPOINTS,
        "statuses_are_written_by_themselves",
    ),
];

const SCHEDULING_TEXTS: &[Row] = &[
    (
        "LimitRange should create a LimitRange with defaults and ensure pod has those defaults applied.",
        LIMITS,
        "gaps_are_filled_and_bounds_kept",
    ),
    (
        "LimitRange should list, patch and delete a LimitRange by collection",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    (
        "SchedulerPredicates validates resource limits of pods that are allowed to run",
        SCHEDULING,
        "pods_are_bound_and_the_others_say_why_not",
    ),
    (
        "SchedulerPredicates validates that NodeSelector is respected if matching",
        NODE_AFFINITY,
        "required_terms_and_selectors_filter",
    ),
    (
        "SchedulerPredicates validates that NodeSelector is respected if not matching",
        NODE_AFFINITY,
        "required_terms_and_selectors_filter",
    ),
    (
        "SchedulerPredicates validates that there exists conflict between pods with same hostPort and protocol but one using 0.0.0.0 hostIP",
        NODE_PORTS,
        "the_same_port_on_overlapping_addresses_conflicts",
    ),
    (
        "SchedulerPreemption PreemptionExecutionPath runs ReplicaSets to verify preemption running path",
        PREEMPTION,
        "important_replica_sets_take_the_place_of_others",
    ),
    (
        "SchedulerPreemption PriorityClass endpoints verify PriorityClass endpoints can be operated with different HTTP methods",
        EVERY,
        "every_verb_on_every_kind_in_every_format",
    ),
    ("SchedulerPreemption validates basic preemption works", SCHEDULING, "higher_priorities_make_room"),
    (
        "SchedulerPreemption validates lower priority pod preemption by critical pod",
        PREEMPTION,
        "critical_pods_take_the_place_of_others",
    ),
    (
        "SchedulerPreemption validates pod disruption condition is added to the preempted pod",
        PREEMPTION,
        "critical_pods_take_the_place_of_others",
    ),
];

const MAIN: &str = "crates/controllers/tests/cluster/main.rs";
const ENDPOINTS: &str = "crates/controllers/tests/cluster/endpoints.rs";
const GUARDS: &str = "crates/controllers/tests/cluster/guards.rs";
const JOBS: &str = "crates/controllers/tests/cluster/jobs.rs";
const ROLLOUTS: &str = "crates/controllers/tests/cluster/rollouts.rs";
const SETS: &str = "crates/controllers/tests/cluster/sets.rs";
const WORKLOADS: &str = "crates/controllers/tests/cluster/workloads.rs";
const DEPLOYMENT_PLAN: &str = "crates/controllers/src/deployment/plan_tests.rs";
const JOB_PLAN: &str = "crates/controllers/src/job/plan_tests.rs";
const SCHEDULING: &str = "crates/scheduler/tests/scheduling.rs";
const NODE_AFFINITY: &str = "crates/scheduler/src/plugins/node_affinity.rs";
const NODE_PORTS: &str = "crates/scheduler/src/plugins/node_ports.rs";
const PREEMPTION: &str = "crates/sim/tests/preemption.rs";
const LIMITS: &str = "crates/apiserver/src/admission/limit_ranger.rs";
const EVERY: &str = "crates/apiserver/tests/it/every_kind.rs";
const JOURNEY: &str = "tests/e2e/tests/cluster/journey.rs";
const KINDS: &str = "tests/e2e/tests/cluster/workloads.rs";

const GROUPS: &[Group<'_>] = &[("sig-apps", &[APPS]), ("sig-scheduling", &[SCHEDULING_TEXTS])];

#[test]
fn the_tests_exist() {
    conformance::tests_exist(GROUPS);
}

#[test]
#[ignore = "needs MINKE_REFERENCE; run by make test-reference"]
fn the_published_texts_are_covered() {
    conformance::published_texts_are_covered(GROUPS);
}
