//! VerticalPodAutoscalers as both sides read them: admission, which gives new pods what is recommended, and the
//! controller, which recommends and updates running ones.
//! The kinds are custom resources (`autoscaling.k8s.io/v1`), so objects are JSON here.
//! A recommendation is never applied beyond what the container's policy allows.

use serde_json::{Value, json};

use crate::{
    pod_resources::{Amounts, amounts_from_value},
    quantity::{Format, Quantity},
};

pub const GROUP: &str = "autoscaling.k8s.io";
pub const VERSION: &str = "v1";
pub const KIND: &str = "VerticalPodAutoscaler";
pub const PLURAL: &str = "verticalpodautoscalers";
pub const CHECKPOINT_KIND: &str = "VerticalPodAutoscalerCheckpoint";
pub const CHECKPOINT_PLURAL: &str = "verticalpodautoscalercheckpoints";
/// On pods that admission changed: what, and for which containers.
pub const UPDATES_ANNOTATION: &str = "vpaUpdates";
pub const OBSERVED_ANNOTATION: &str = "vpaObservedContainers";
const RESOURCES: [&str; 2] = ["cpu", "memory"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateMode {
    /// Only recommends.
    Off,
    /// Only new pods.
    Initial,
    /// Running pods by eviction.
    Recreate,
    /// Running pods in place; by eviction where that can't be.
    InPlaceOrRecreate,
}

pub fn update_mode(autoscaler: &Value) -> UpdateMode {
    match autoscaler["spec"]["updatePolicy"]["updateMode"].as_str() {
        Some("Off") => UpdateMode::Off,
        Some("Initial") => UpdateMode::Initial,
        Some("Recreate") => UpdateMode::Recreate,
        // `Auto` is whatever disturbs least.
        _ => UpdateMode::InPlaceOrRecreate,
    }
}

/// Whether it is about what this owner controls.
pub fn targets(autoscaler: &Value, api_version: &str, kind: &str, name: &str) -> bool {
    let target = &autoscaler["spec"]["targetRef"];
    let group = |version: &str| version.split_once('/').map_or(String::new(), |(group, _)| group.to_string());
    target["kind"] == kind
        && target["name"] == name
        && group(target["apiVersion"].as_str().unwrap_or_default()) == group(api_version)
}

/// The container's own policy, or that of all (`*`).
fn policy<'a>(autoscaler: &'a Value, container: &str) -> Option<&'a Value> {
    let policies = autoscaler["spec"]["resourcePolicy"]["containerPolicies"].as_array()?;
    let named = |name: &str| policies.iter().find(|policy| policy["containerName"] == name);
    named(container).or_else(|| named("*"))
}

pub fn is_off(autoscaler: &Value, container: &str) -> bool {
    policy(autoscaler, container).is_some_and(|policy| policy["mode"] == "Off")
}

fn controls(autoscaler: &Value, container: &str, resource: &str) -> bool {
    let listed = policy(autoscaler, container).and_then(|policy| policy["controlledResources"].as_array());
    RESOURCES.contains(&resource) && listed.is_none_or(|listed| listed.iter().any(|name| name == resource))
}

/// Amounts within the least and the most that the policy allows, of the resources that it leaves to the autoscaler.
pub fn within_policy(autoscaler: &Value, container: &str, amounts: &Amounts) -> Amounts {
    let bound = |name: &str| policy(autoscaler, container).map(|policy| amounts_from_value(&policy[name]));
    let (least, most) = (bound("minAllowed").unwrap_or_default(), bound("maxAllowed").unwrap_or_default());
    let mut allowed = Amounts::new();
    for (resource, amount) in amounts.iter().filter(|(resource, _)| controls(autoscaler, container, resource)) {
        let mut amount = amount.clone();
        if let Some(least) = least.get(resource).filter(|least| **least > amount) {
            amount = least.clone();
        }
        if let Some(most) = most.get(resource).filter(|most| **most < amount) {
            amount = most.clone();
        }
        allowed.insert(resource.clone(), amount);
    }
    allowed
}

/// One of `target`, `lowerBound`, `upperBound` of a container's recommendation.
pub fn recommended(autoscaler: &Value, container: &str, which: &str) -> Option<Amounts> {
    let all = autoscaler["status"]["recommendation"]["containerRecommendations"].as_array()?;
    let own = all.iter().find(|own| own["containerName"] == container)?;
    (!is_off(autoscaler, container)).then(|| within_policy(autoscaler, container, &amounts_from_value(&own[which])))
}

/// What a container's `resources` become. Limits keep their distance from the requests, unless only those are left to
/// the autoscaler; then a request stays below its limit.
pub fn updated_resources(autoscaler: &Value, container: &Value) -> Option<Value> {
    let name = container["name"].as_str().unwrap_or_default();
    let target = recommended(autoscaler, name, "target").filter(|target| !target.is_empty())?;
    let (requests, limits) = (
        amounts_from_value(&container["resources"]["requests"]),
        amounts_from_value(&container["resources"]["limits"]),
    );
    let requests_only = policy(autoscaler, name).is_some_and(|policy| policy["controlledValues"] == "RequestsOnly");
    let mut resources = container["resources"].clone();
    if !resources.is_object() {
        resources = json!({});
    }
    for (resource, wanted) in &target {
        let mut request = wanted.clone();
        if let Some(limit) = limits.get(resource) {
            if requests_only {
                request = request.min(limit.clone());
            } else {
                let before = requests.get(resource).unwrap_or(limit);
                resources["limits"][resource] = scaled(limit, before, &request).canonical().into();
            }
        }
        resources["requests"][resource] = request.canonical().into();
    }
    (resources != container["resources"]).then_some(resources)
}

/// `limit` changed as much as the request was.
fn scaled(limit: &Quantity, before: &Quantity, after: &Quantity) -> Quantity {
    if before.is_zero() || limit == before {
        return after.clone();
    }
    let milli = limit.milli_value() as f64 * (after.milli_value() as f64 / before.milli_value() as f64);
    match limit.format() {
        // Of what is counted in bytes nobody wants thousandths.
        Format::BinarySI => Quantity::new((milli / 1000.0).ceil() as i64, Format::BinarySI),
        format => Quantity::from_milli(milli.ceil() as i64, format),
    }
}

/// Gives a new pod what is recommended, and notes what was changed. `false`: nothing was.
pub fn apply(autoscaler: &Value, pod: &mut Value) -> bool {
    let name = autoscaler["metadata"]["name"].as_str().unwrap_or_default();
    let (mut changes, mut observed) = (Vec::new(), Vec::new());
    let Some(containers) = pod["spec"]["containers"].as_array_mut() else { return false };
    for (at, container) in containers.iter_mut().enumerate() {
        observed.push(container["name"].as_str().unwrap_or_default().to_string());
        if let Some(resources) = updated_resources(autoscaler, container) {
            let changed = |part: &str, what: &str| {
                let (new, old) = (&resources[part], &container["resources"][part]);
                let changed = RESOURCES.into_iter().filter(|resource| new[*resource] != old[*resource]);
                changed.map(|resource| format!("{resource} {what}")).collect::<Vec<_>>()
            };
            let words = [changed("requests", "request"), changed("limits", "limit")].concat().join(", ");
            changes.push(format!("container {at}: {words}"));
            container["resources"] = resources;
        }
    }
    if changes.is_empty() {
        return false;
    }
    let annotations = &mut pod["metadata"]["annotations"];
    annotations[UPDATES_ANNOTATION] = format!("Pod resources updated by {name}: {}", changes.join("; ")).into();
    annotations[OBSERVED_ANNOTATION] = observed.join(", ").into();
    true
}

/// The CustomResourceDefinitions of the kinds.
pub fn definitions() -> [Value; 2] {
    let quantities = json!({ "type": "object", "additionalProperties": {
        "anyOf": [{ "type": "integer" }, { "type": "string" }], "x-kubernetes-int-or-string": true } });
    let text = json!({ "type": "string" });
    let one_of = |values: &[&str]| json!({ "type": "string", "enum": values });
    let list = |items: Value| json!({ "type": "array", "items": items });
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    let policy = object(json!({
        "containerName": text, "mode": one_of(&["Auto", "Off"]), "minAllowed": quantities, "maxAllowed": quantities,
        "controlledResources": list(text.clone()), "controlledValues": one_of(&["RequestsAndLimits", "RequestsOnly"]),
    }));
    let target = json!({ "type": "object", "required": ["kind", "name"],
        "properties": { "apiVersion": text, "kind": text, "name": text } });
    let spec = json!({ "type": "object", "required": ["targetRef"], "properties": {
        "targetRef": target,
        "updatePolicy": object(json!({
            "updateMode": one_of(&["Off", "Initial", "Recreate", "InPlaceOrRecreate", "Auto"]),
            "minReplicas": { "type": "integer", "format": "int32", "minimum": 1 },
        })),
        "resourcePolicy": object(json!({ "containerPolicies": list(policy) })),
    } });
    let recommendation = object(json!({
        "containerName": text, "target": quantities, "lowerBound": quantities, "upperBound": quantities,
        "uncappedTarget": quantities,
    }));
    let condition = object(json!({ "type": text, "status": text, "reason": text, "message": text,
        "lastTransitionTime": { "type": "string", "format": "date-time" } }));
    let status = object(json!({
        "recommendation": object(json!({ "containerRecommendations": list(recommendation) })),
        "conditions": list(condition),
    }));
    let histogram = object(json!({
        "referenceTimestamp": { "type": "string", "format": "date-time", "nullable": true },
        "bucketWeights": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        "totalWeight": { "type": "number" },
    }));
    let time = json!({ "type": "string", "format": "date-time", "nullable": true });
    let checkpoint_status = object(json!({
        "version": text, "cpuHistogram": histogram, "memoryHistogram": histogram, "lastUpdateTime": time,
        "firstSampleStart": time, "lastSampleStart": time, "totalSamplesCount": { "type": "integer" },
    }));
    let checkpoint_spec = object(json!({ "vpaObjectName": text, "containerName": text }));
    let column = |name: &str, path: &str| json!({ "name": name, "type": "string", "jsonPath": path });
    let recommended = |what: &str| format!(".status.recommendation.containerRecommendations[0].target.{what}");
    let columns = json!([
        column("Mode", ".spec.updatePolicy.updateMode"),
        column("CPU", &recommended("cpu")),
        column("Mem", &recommended("memory")),
        column("Provided", ".status.conditions[?(@.type=='RecommendationProvided')].status"),
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ]);
    let definition = |kind: &str, plural: &str, short: &[&str], spec: Value, status: Value, columns: Value| {
        let singular = kind.to_lowercase();
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{GROUP}"), "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/63797" } },
            "spec": {
                "group": GROUP, "scope": "Namespaced",
                "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular,
                    "shortNames": short },
                "versions": [{
                    "name": VERSION, "served": true, "storage": true, "additionalPrinterColumns": columns,
                    "subresources": { "status": {} },
                    "schema": { "openAPIV3Schema": { "type": "object", "required": ["spec"], "properties": {
                        "apiVersion": { "type": "string" }, "kind": { "type": "string" },
                        "metadata": { "type": "object" }, "spec": spec, "status": status } } },
                }],
            },
        })
    };
    [
        definition(KIND, PLURAL, &["vpa"], spec, status, columns),
        definition(
            CHECKPOINT_KIND,
            CHECKPOINT_PLURAL,
            &["vpacheckpoint"],
            checkpoint_spec,
            checkpoint_status,
            json!([]),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn autoscaler(policy: Value) -> Value {
        json!({
            "metadata": { "name": "v" },
            "spec": { "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
                "resourcePolicy": { "containerPolicies": [policy] } },
            "status": { "recommendation": { "containerRecommendations": [
                { "containerName": "c", "target": { "cpu": "200m", "memory": "100Mi" } }] } },
        })
    }

    #[test]
    fn resources_follow_the_recommendation_within_the_policy() {
        let check = |policy: Value, resources: Value, expected: Value| {
            let container = json!({ "name": "c", "resources": resources });
            let found = updated_resources(&autoscaler(policy.clone()), &container).unwrap_or_default();
            assert_eq!(found, expected, "{policy} {resources}");
        };
        let all = || json!({ "containerName": "*" });
        let both = json!({ "requests": { "cpu": "200m", "memory": "100Mi" } });
        check(all(), json!({}), both.clone());
        check(all(), both, Value::Null);
        let limited =
            json!({ "requests": { "cpu": "100m", "memory": "50Mi" }, "limits": { "cpu": "300m", "memory": "50Mi" } });
        let doubled =
            json!({ "requests": { "cpu": "200m", "memory": "100Mi" }, "limits": { "cpu": "600m", "memory": "100Mi" } });
        check(all(), limited, doubled);
        let only = json!({ "containerName": "c", "controlledValues": "RequestsOnly", "controlledResources": ["cpu"] });
        let limits = json!({ "limits": { "cpu": "150m" } });
        check(only, limits, json!({ "requests": { "cpu": "150m" }, "limits": { "cpu": "150m" } }));
        let bounds =
            json!({ "containerName": "c", "minAllowed": { "cpu": "500m" }, "maxAllowed": { "memory": "64Mi" } });
        check(bounds, json!({}), json!({ "requests": { "cpu": "500m", "memory": "64Mi" } }));
        check(json!({ "containerName": "c", "mode": "Off" }), json!({}), Value::Null);
        // A policy of its own wins over that of all.
        check(
            json!({ "containerName": "other", "mode": "Off" }),
            json!({ "limits": { "cpu": "1" } }),
            json!({ "requests": { "cpu": "200m", "memory": "100Mi" }, "limits": { "cpu": "200m" } }),
        );
    }

    #[test]
    fn pods_say_what_was_changed() {
        let mut pod = json!({ "metadata": {}, "spec": { "containers": [{ "name": "c" }, { "name": "d" }] } });
        let autoscaler = autoscaler(json!({ "containerName": "*" }));
        assert!(apply(&autoscaler, &mut pod));
        assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], "200m");
        let annotations = &pod["metadata"]["annotations"];
        let words = "Pod resources updated by v: container 0: cpu request, memory request";
        assert_eq!(
            (annotations[UPDATES_ANNOTATION].as_str(), annotations[OBSERVED_ANNOTATION].as_str()),
            (Some(words), Some("c, d"))
        );
        assert!(!apply(&autoscaler, &mut pod));
        assert!(targets(&autoscaler, "apps/v1beta1", "Deployment", "web"));
        assert!(!targets(&autoscaler, "extensions/v1", "Deployment", "web"));
    }
}
