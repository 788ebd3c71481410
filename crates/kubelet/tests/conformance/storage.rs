//! The conformance texts of `[sig-storage]`, about volumes.
//! Part of the table in `main`.
//! A row names a test that exists.

use testkit::conformance::Row;

pub const TEXTS: &[Row] = &[
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

const CONFIG_MAP: &str = "crates/api/src/kinds/core/config_map.rs";
const ENVIRONMENT: &str = "tests/e2e/tests/cluster/node/environment.rs";
const EVERY: &str = "crates/apiserver/tests/it/every_kind.rs";
const LIFE: &str = "crates/kubelet/tests/faults/life.rs";
const VOLUMES: &str = "tests/e2e/tests/cluster/node/volumes.rs";
