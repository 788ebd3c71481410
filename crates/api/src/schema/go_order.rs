//! Where Go's source has fields in another order than the wire: Go prints them in that of its source.
//! Used where objects are shown in messages (`patch::shown`).

use super::{Field, Struct, wire_key};

/// Per type the fields that stand right after another one, as chains that begin with a field in its place; `^` is the
/// beginning of the type.
#[rustfmt::skip]
const CHAINS: &[(&str, &str)] = &[
    ("AllocatedDeviceStatus", "device shareID"),
    ("CertificateSigningRequestCondition", "type status"),
    ("CertificateSigningRequestSpec", "request signerName expirationSeconds usages"),
    ("ClusterTrustBundleProjection", "optional path"),
    ("ConfigMap", "metadata immutable"),
    ("Container", "ports envFrom, resources resizePolicy restartPolicy restartPolicyRules, volumeMounts volumeDevices, readinessProbe startupProbe, terminationMessagePath terminationMessagePolicy"),
    ("CronJobSpec", "schedule timeZone"),
    ("DeploymentCondition", "lastTransitionTime reason message"),
    ("DeploymentStatus", "updatedReplicas readyReplicas, unavailableReplicas terminatingReplicas"),
    ("EndpointAddress", "nodeName targetRef"),
    ("EndpointSlice", "metadata addressType"),
    ("HPAScalingRules", "^ stabilizationWindowSeconds"),
    ("HTTPIngressPath", "pathType backend"),
    ("ISCSIPersistentVolumeSource", "chapAuthSession secretRef"),
    ("ISCSIVolumeSource", "chapAuthSession secretRef"),
    ("IngressBackend", "service resource"),
    ("IngressSpec", "^ ingressClassName"),
    ("JobSpec", "activeDeadlineSeconds podFailurePolicy successPolicy backoffLimit backoffLimitPerIndex maxFailedIndexes"),
    ("JobStatus", "failed terminating, completedIndexes failedIndexes"),
    ("MetricSpec", "containerResource external"),
    ("MetricStatus", "containerResource external"),
    ("MutatingWebhook", "failurePolicy matchPolicy, namespaceSelector objectSelector"),
    ("NodeSpec", "podCIDR podCIDRs, configSource externalID"),
    ("OwnerReference", "^ apiVersion"),
    ("PersistentVolumeClaimSpec", "accessModes selector"),
    ("PodCondition", "type observedGeneration"),
    ("PodSecurityContext", "seLinuxOptions windowsOptions, runAsUser runAsGroup, supplementalGroups supplementalGroupsPolicy"),
    ("PodSpec", "volumes initContainers, containers ephemeralContainers, serviceAccount automountServiceAccountToken, hostIPC shareProcessNamespace"),
    ("PodStatus", "^ observedGeneration, reason nominatedNodeName, hostIP hostIPs, podIP podIPs, startTime initContainerStatuses"),
    ("ReplicaSetSpec", "replicas minReadySeconds"),
    ("ReplicaSetStatus", "terminatingReplicas observedGeneration conditions"),
    ("ReplicationControllerSpec", "replicas minReadySeconds"),
    ("ReplicationControllerStatus", "availableReplicas observedGeneration"),
    ("Secret", "metadata immutable, stringData type"),
    ("SecurityContext", "seLinuxOptions windowsOptions, runAsUser runAsGroup"),
    ("ServicePort", "protocol appProtocol"),
    ("ServiceSpec", "clusterIP clusterIPs, ipFamilies ipFamilyPolicy"),
    ("SubjectAccessReviewStatus", "allowed denied"),
    ("TokenRequestSpec", "expirationSeconds boundObjectRef"),
    ("TokenReviewStatus", "audiences error"),
    ("ValidatingWebhook", "failurePolicy matchPolicy, namespaceSelector objectSelector"),
    ("VolumeMount", "readOnly recursiveReadOnly"),
    ("WebhookClientConfig", "^ url"),
];

/// What fields of a type are sorted by to stand as Go prints them.
pub(crate) fn source_key(of: &Struct, field: &Field) -> ([u32; 3], usize) {
    let own = (wire_key(field), 0);
    let name = of.name.rsplit('.').next().unwrap_or_default();
    let Ok(row) = CHAINS.binary_search_by_key(&name, |(name, _)| name) else { return own };
    for chain in CHAINS[row].1.split(", ") {
        let mut links = chain.split(' ');
        let head = links.next().and_then(|head| of.field(head)).map_or([0; 3], wire_key);
        if let Some(at) = links.position(|link| link == field.name) {
            return (head, at + 1);
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_and_have_the_fields_of_their_chains() {
        assert!(CHAINS.is_sorted_by_key(|(name, _)| name));
        let schema = crate::schema::builtin();
        for (name, chains) in CHAINS {
            let named = |of: &&Struct| of.name.rsplit('.').next() == Some(name);
            for link in chains.split([' ', ',']).filter(|link| !link.is_empty() && *link != "^") {
                // Names come back in other groups, with other fields.
                assert!(schema.types.iter().filter(named).any(|of| of.field(link).is_some()), "{name} has no {link}");
            }
        }
        let id = schema.by_name["io.k8s.api.core.v1.Container"];
        let mut fields: Vec<&Field> = schema.get(id).fields.iter().collect();
        fields.sort_by_key(|field| source_key(schema.get(id), field));
        let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        let expected = "name image command args workingDir ports envFrom env resources resizePolicy restartPolicy \
                        restartPolicyRules volumeMounts volumeDevices livenessProbe readinessProbe startupProbe \
                        lifecycle terminationMessagePath terminationMessagePolicy imagePullPolicy securityContext \
                        stdin stdinOnce tty";
        assert_eq!(names.join(" "), expected);
    }
}
