//! Plugins that are off by default, against a whole server with their settings in a file.

use http::Method;
use serde_json::{Value, json};

use super::{
    tests::{CONFIGMAPS, Fixture, PODS, config_map, configured, fixture, pod},
    webhook_tests::{MUTATING, VALIDATING, for_all},
};

/// A server with `plugins` on and `settings` (YAML) for them.
async fn with(plugins: &[&str], settings: &str) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("admission.yaml");
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n";
    std::fs::write(&file, format!("{head}{settings}")).unwrap();
    configured(|config| {
        config.enable_admission_plugins = plugins.iter().map(|p| p.to_string()).collect();
        config.admission_control_config_file = Some(file);
    })
    .await
}

fn event(name: &str, of: &str) -> Value {
    json!({ "metadata": { "name": name, "namespace": "default" }, "source": { "component": "c" },
        "involvedObject": { "kind": "Pod", "name": of, "namespace": "default" } })
}

const EVENTS: &str = "/api/v1/namespaces/default/events";

#[tokio::test]
async fn events_are_limited() {
    let limits = "- name: EventRateLimit\n  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n\
        \x20   kind: Configuration\n    limits:\n    - {type: SourceAndObject, qps: 1, burst: 2, cacheSize: 10}\n";
    let f = with(&["EventRateLimit"], limits).await;
    let mut refused = 0;
    for n in 0..50 {
        let (code, answer, _) = f.admin(Method::POST, EVENTS, event(&format!("a{n}"), "p")).await;
        if code == 429 {
            assert_eq!(answer["message"], "limit reached on type SourceAndObject for key cPoddefaultp");
            refused += 1;
        }
    }
    assert!(refused > 0, "fifty at once are more than two");
    f.ok(Method::POST, EVENTS, event("other", "q")).await;
    f.ok(Method::POST, CONFIGMAPS, config_map("free")).await;
}

#[tokio::test]
async fn namespaces_are_made_for_what_is_created_in_them() {
    let f = fixture(&["NamespaceAutoProvision", "NamespaceExists"]).await;
    let path = "/api/v1/namespaces/new/configmaps";
    let (code, ..) = f.admin(Method::POST, &format!("{path}?dryRun=All"), config_map("a")).await;
    assert_eq!(code, 404, "a dry run makes nothing");
    f.ok(Method::POST, path, config_map("a")).await;
    let made = f.ok(Method::GET, "/api/v1/namespaces/new", Value::Null).await;
    assert_eq!(made["status"]["phase"], "Active");
}

#[tokio::test]
async fn pods_go_where_their_namespace_says() {
    let settings = "- name: PodNodeSelector\n  configuration:\n    podNodeSelectorPluginConfig:\n\
        \x20     clusterDefaultNodeSelector: zone=a\n      narrow: zone=a,disk=ssd\n";
    let f = with(&["PodNodeSelector"], settings).await;
    let made = f.ok(Method::POST, PODS, pod("default", json!({}))).await;
    assert_eq!(made["spec"]["nodeSelector"], json!({ "zone": "a" }));
    let mut other = pod("other", json!({}));
    other["spec"]["nodeSelector"] = json!({ "zone": "b" });
    let words = "pods \"other\" is forbidden: pod node label selector conflicts with its namespace node label selector";
    assert_eq!(f.refused(403, PODS, other).await, words);
    for (name, annotations) in
        [("narrow", json!({})), ("own", json!({ "scheduler.alpha.kubernetes.io/node-selector": "disk=hdd" }))]
    {
        let namespace = json!({ "metadata": { "name": name, "annotations": annotations } });
        f.ok(Method::POST, "/api/v1/namespaces", namespace).await;
        let account = json!({ "metadata": { "name": "default" } });
        f.ok(Method::POST, &format!("/api/v1/namespaces/{name}/serviceaccounts"), account).await;
    }
    let made = f.ok(Method::POST, "/api/v1/namespaces/own/pods", pod("p", json!({}))).await;
    assert_eq!(made["spec"]["nodeSelector"], json!({ "disk": "hdd" }));
    let mut wide = pod("wide", json!({}));
    wide["spec"]["nodeSelector"] = json!({ "gpu": "yes" });
    let words = "pods \"wide\" is forbidden: pod node label selector labels conflict with its namespace whitelist";
    assert_eq!(f.refused(403, "/api/v1/namespaces/narrow/pods", wide).await, words);
}

#[tokio::test]
async fn pods_tolerate_what_their_namespace_allows() {
    let settings = "- name: PodTolerationRestriction\n  configuration:\n\
        \x20   apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1\n    kind: Configuration\n\
        \x20   default: [{key: spot, operator: Exists}]\n\
        \x20   whitelist: [{key: spot, operator: Exists}, {key: node.kubernetes.io/memory-pressure, operator: Exists},\n\
        \x20     {key: node.kubernetes.io/not-ready, operator: Exists}, {key: node.kubernetes.io/unreachable, operator: Exists}]\n";
    let f = with(&["PodTolerationRestriction"], settings).await;
    let made = f.ok(Method::POST, PODS, pod("a", json!({ "requests": { "cpu": "1" } }))).await;
    let tolerations = made["spec"]["tolerations"].as_array().unwrap();
    let keys: Vec<_> = tolerations.iter().map(|t| t["key"].as_str().unwrap()).collect();
    assert!(keys.contains(&"spot") && keys.contains(&"node.kubernetes.io/memory-pressure"), "{keys:?}");
    let mut other = pod("b", json!({}));
    other["spec"]["tolerations"] = json!([{ "key": "gpu", "operator": "Exists" }]);
    let words = f.refused(403, PODS, other).await;
    assert!(words.contains("conflict with its cluster whitelist"), "{words}");
}

#[tokio::test]
async fn small_refusals() {
    let f = fixture(&["LimitPodHardAntiAffinityTopology", "DenyServiceExternalIPs", "AlwaysAdmit"]).await;
    let mut spread = pod("p", json!({}));
    let term = |key: &str| json!([{ "topologyKey": key, "labelSelector": {} }]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    spread["spec"]["affinity"] = json!({ "podAntiAffinity": { required: term("zone") } });
    let words = "pods \"p\" is forbidden: affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only \
                 key kubernetes.io/hostname is allowed";
    assert_eq!(f.refused(403, PODS, spread.clone()).await, words);
    spread["spec"]["affinity"] = json!({ "podAntiAffinity": { required: term("kubernetes.io/hostname") } });
    f.ok(Method::POST, PODS, spread).await;
    let services = "/api/v1/namespaces/default/services";
    let mut service =
        json!({ "metadata": { "name": "s" }, "spec": { "ports": [{ "port": 80 }], "externalIPs": ["192.0.2.7"] } });
    let words = "services \"s\" is forbidden: Use of external IPs is denied by admission control";
    assert_eq!(f.refused(403, services, service.clone()).await, words);
    service["spec"].as_object_mut().unwrap().remove("externalIPs");
    f.ok(Method::POST, services, service).await;
}

#[tokio::test]
async fn a_server_that_denies_everything_starts() {
    let mut config = crate::Config::in_process(rcgen::KeyPair::generate().unwrap().serialize_pem());
    config.enable_admission_plugins = vec!["AlwaysDeny".into()];
    let env = env::Env::real();
    let store = std::sync::Arc::new(store::MemoryStore::new(env.clone()));
    let f = Fixture(crate::ApiServer::new(config, store, env).await.unwrap());
    let words = "configmaps \"a\" is forbidden: admission control is denying all modifications";
    assert_eq!(f.refused(403, CONFIGMAPS, config_map("a")).await, words);
    f.ok(Method::GET, CONFIGMAPS, Value::Null).await;
}

#[tokio::test]
async fn plugins_that_lack_their_settings_stop_the_start() {
    for (plugin, words) in [("EventRateLimit", "must not be empty"), ("ImagePolicyWebhook", "no config specified")] {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let mut config = crate::Config::in_process(key);
        config.enable_admission_plugins = vec![plugin.into()];
        let env = env::Env::real();
        let store = std::sync::Arc::new(store::MemoryStore::new(env.clone()));
        let error = crate::ApiServer::new(config, store, env).await.err().unwrap().to_string();
        assert!(error.contains(plugin) && error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn what_is_limited_needs_a_quota_that_covers_it() {
    let settings = "- name: ResourceQuota\n  configuration:\n    apiVersion: apiserver.config.k8s.io/v1\n\
        \x20   kind: ResourceQuotaConfiguration\n    limitedResources:\n    - resource: persistentvolumeclaims\n\
        \x20     matchContains: [.storageclass.storage.k8s.io/requests.storage]\n    - resource: pods\n\
        \x20     matchScopes: [{scopeName: PriorityClass, operator: In, values: [vital]}]\n";
    let f = with(&[], settings).await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let claim = |name: &str, class: &str| {
        json!({ "metadata": { "name": name }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": { "requests": { "storage": "1Gi" } } } })
    };
    let words = "persistentvolumeclaims \"a\" is forbidden: insufficient quota to consume: \
                 gold.storageclass.storage.k8s.io/requests.storage";
    assert_eq!(f.refused(403, claims, claim("a", "gold")).await, words);
    f.ok(Method::POST, claims, claim("b", "")).await;
    let class = json!({ "metadata": { "name": "vital" }, "value": 1000 });
    f.ok(Method::POST, "/apis/scheduling.k8s.io/v1/priorityclasses", class).await;
    let mut vital = pod("p", json!({}));
    vital["spec"]["priorityClassName"] = "vital".into();
    let words = "insufficient quota to match these scopes: [{PriorityClass In [vital]}]";
    assert_eq!(f.refused(500, PODS, vital.clone()).await, words);
    f.ok(Method::POST, PODS, pod("q", json!({}))).await;

    let limits = json!({ "gold.storageclass.storage.k8s.io/requests.storage": "10Gi" });
    let selector = json!({ "matchExpressions": [{ "scopeName": "PriorityClass", "operator": "Exists" }] });
    for (name, spec) in
        [("gold", json!({ "hard": limits })), ("vital", json!({ "hard": { "pods": "5" }, "scopeSelector": selector }))]
    {
        let made = f.ok(Method::POST, quotas, json!({ "metadata": { "name": name }, "spec": spec })).await;
        let mut counted = made.clone();
        counted["status"] = json!({ "hard": made["spec"]["hard"], "used": {} });
        f.ok(Method::PUT, &format!("{quotas}/{name}/status"), counted).await;
    }
    f.ok(Method::POST, claims, claim("a", "gold")).await;
    f.ok(Method::POST, PODS, vital).await;
}

#[tokio::test]
async fn webhooks_are_told_who_asks() {
    let allowed: super::tests::Answer = std::sync::Arc::new(|r| super::tests::review(r, json!({ "allowed": true })));
    let (port, ca, asked) = super::tests::webhook(allowed).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let users = json!([{ "name": format!("127.0.0.1:{port}"), "user": { "token": "of-the-server" } }]);
    std::fs::write(&file, json!({ "apiVersion": "v1", "kind": "Config", "users": users }).to_string()).unwrap();
    let configuration = json!({ "apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": file });
    let settings = format!("- name: ValidatingAdmissionWebhook\n  configuration: {configuration}\n");
    let f = with(&[], &settings).await;
    for kind in [MUTATING, VALIDATING] {
        f.register(kind, for_all("w", port, &ca, "", &["CREATE"], &["configmaps"])).await;
    }
    f.ok(Method::POST, CONFIGMAPS, config_map("a")).await;
    let shown: Vec<Value> = asked.lock().unwrap().iter().map(|review| review["authorization"].clone()).collect();
    assert_eq!(shown, [Value::Null, json!("Bearer of-the-server")], "only to those that the file is for");
}

#[tokio::test]
async fn a_service_outside_decides_about_images() {
    let answer: super::tests::Answer = std::sync::Arc::new(|review| {
        let containers = review["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let bad = containers.iter().any(|c| c["image"].as_str().is_some_and(|image| image.contains("bad")));
        let status =
            if bad { json!({ "allowed": false, "reason": "not this one" }) } else { json!({ "allowed": true }) };
        Some(json!({ "apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "status": status }))
    });
    let (port, ca, asked) = super::tests::webhook(answer).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let cluster = json!({ "server": format!("https://127.0.0.1:{port}/review"), "certificate-authority-data": ca });
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "c", "cluster": cluster }], "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
    });
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let policy = |default_allow: bool| {
        let policy = json!({ "kubeConfigFile": file, "retryBackoff": 1, "defaultAllow": default_allow });
        format!("- name: ImagePolicyWebhook\n  configuration: {}\n", json!({ "imagePolicy": policy }))
    };
    let f = with(&["ImagePolicyWebhook"], &policy(false)).await;
    let of = |name: &str, image: &str| {
        let mut object = pod(name, json!({}));
        object["spec"]["containers"][0]["image"] = image.into();
        object["metadata"]["annotations"] = json!({ "team.image-policy.k8s.io/ticket": "7", "other": "x" });
        object
    };
    f.ok(Method::POST, PODS, of("a", "good")).await;
    let words = "pods \"b\" is forbidden: image policy webhook backend denied one or more images: not this one";
    assert_eq!(f.refused(403, PODS, of("b", "bad:1")).await, words);
    // The same question is not asked again.
    f.ok(Method::POST, PODS, of("c", "good")).await;
    let questions: Vec<Value> = asked.lock().unwrap().iter().map(|review| review["spec"].clone()).collect();
    let question = |image: &str| {
        let annotations = json!({ "team.image-policy.k8s.io/ticket": "7" });
        json!({ "containers": [{ "image": image }], "namespace": "default", "annotations": annotations })
    };
    assert_eq!(questions, [question("good"), question("bad:1")]);
    // One that cannot be asked refuses, unless it is said otherwise.
    std::fs::write(&file, kubeconfig.to_string().replace(&port.to_string(), "1")).unwrap();
    let f = with(&["ImagePolicyWebhook"], &policy(false)).await;
    assert_eq!(f.admin(Method::POST, PODS, of("d", "good")).await.0, 403);
    let f = with(&["ImagePolicyWebhook"], &policy(true)).await;
    f.ok(Method::POST, PODS, of("e", "good")).await;
}
