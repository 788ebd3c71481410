//! Objects from flags against what kubectl 1.35 prints with `--dry-run=client -o json`.

use serde_json::{Value, json};

use super::{
    config::{self, DataSources, Registry},
    environment_list,
    expose::{self, Expose},
    ingress::{self, Ingress},
    policy::{self, Autoscale},
    rbac::{self, ClusterRole, ResourceName, Subjects},
    service::{self, Service},
    set,
    source_files::fake::MapFiles,
    workloads::{self, Deployment, Run},
};

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

fn check(made: Result<Value, String>, expected: &str) {
    let expected: Value = serde_json::from_str(expected).unwrap();
    assert_eq!(made.unwrap(), expected);
}

fn refused(made: Result<Value, String>, expected: &str) {
    assert_eq!(made.unwrap_err(), expected);
}

#[test]
fn workloads_from_flags() {
    let images = words(&["nginx:1", "r.io/a/redis@sha256:aaaa"]);
    let deployment = Deployment { name: "web", images: &images, replicas: Some(3), ..Deployment::default() };
    check(
        workloads::deployment(&deployment),
        r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","labels":{"app":"web"}},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"nginx","image":"nginx:1","resources":{}},{"name":"redis","image":"r.io/a/redis@sha256:aaaa","resources":{}}]}},"strategy":{}},"status":{}}"#,
    );
    let command = words(&["sh"]);
    refused(
        workloads::deployment(&Deployment { command: &command, ..deployment }),
        "cannot specify multiple --image options and command",
    );
    let date = words(&["date"]);
    check(
        workloads::job("j", None, "busybox", &date),
        r#"{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"j"},"spec":{"template":{"metadata":{},"spec":{"containers":[{"name":"j","image":"busybox","command":["date"],"resources":{}}],"restartPolicy":"Never"}}},"status":{}}"#,
    );
    refused(workloads::job("j", None, "", &[]), "either --image or --from must be specified");
    check(
        Ok(workloads::cron_job("c", None, ("busybox", "* * * * *", "Never"), &date)),
        r#"{"kind":"CronJob","apiVersion":"batch/v1","metadata":{"name":"c"},"spec":{"schedule":"* * * * *","jobTemplate":{"metadata":{"name":"c"},"spec":{"template":{"metadata":{},"spec":{"containers":[{"name":"c","image":"busybox","command":["date"],"resources":{}}],"restartPolicy":"Never"}}}}},"status":{}}"#,
    );
    let env = words(&["A=1"]);
    let run = Run {
        name: "p",
        image: "nginx",
        port: "80",
        env: &env,
        labels: "a=b,c=d",
        restart: "Never",
        command: true,
        arguments: &command,
        ..Run::default()
    };
    check(
        workloads::pod(&run),
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","labels":{"a":"b","c":"d"}},"spec":{"containers":[{"name":"p","image":"nginx","command":["sh"],"ports":[{"containerPort":80}],"env":[{"name":"A","value":"1"}],"resources":{}}],"restartPolicy":"Never","dnsPolicy":"ClusterFirst"},"status":{}}"#,
    );
    let bad = words(&["bad"]);
    refused(workloads::pod(&Run { env: &bad, ..run }), "invalid env: bad");
    refused(
        workloads::pod(&Run { name: "p", image: "bad image", ..Run::default() }),
        "Invalid image name \"bad image\": invalid reference format",
    );
    refused(
        workloads::pod(&Run { name: "p", image: "i", restart: "Sometimes", ..Run::default() }),
        "invalid restart policy: Sometimes",
    );
}

#[test]
fn image_references() {
    for image in ["nginx", "a/b:1", "localhost:5000/a_b/c.d:V1", "r.io/x@sha256:0123456789abcdef0123456789abcdef"] {
        assert!(workloads::is_image_reference(image), "{image}");
    }
    for image in ["", "Nginx", "a b", "a:", "a//b", "a@sha256:1", "-a"] {
        assert!(!workloads::is_image_reference(image), "{image}");
    }
}

#[test]
fn services_from_flags() {
    let tcp = words(&["80:8080", "443"]);
    let cluster_ip = Service { name: "svc", kind: "ClusterIP", tcp: &tcp, ..Service::default() };
    check(
        service::service(&cluster_ip),
        r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"svc","labels":{"app":"svc"}},"spec":{"ports":[{"name":"80-8080","protocol":"TCP","port":80,"targetPort":8080},{"name":"443","protocol":"TCP","port":443,"targetPort":443}],"selector":{"app":"svc"},"type":"ClusterIP"},"status":{"loadBalancer":{}}}"#,
    );
    let node_port = words(&["80:http"]);
    check(
        service::service(&Service { kind: "NodePort", tcp: &node_port, node_port: 30000, ..cluster_ip }),
        r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"svc","labels":{"app":"svc"}},"spec":{"ports":[{"name":"80-http","protocol":"TCP","port":80,"targetPort":"http","nodePort":30000}],"selector":{"app":"svc"},"type":"NodePort"},"status":{"loadBalancer":{}}}"#,
    );
    refused(
        service::service(&Service { name: "svc", kind: "ClusterIP", ..Service::default() }),
        "at least one tcp port specifier must be provided",
    );
    let wide = words(&["80:99999"]);
    refused(
        service::service(&Service { name: "svc", kind: "ClusterIP", tcp: &wide, ..Service::default() }),
        "must be between 1 and 65535, inclusive",
    );
    let pod: Value = json!({ "kind": "Pod", "metadata": { "name": "full", "labels": { "app": "web", "b": "2" } } });
    check(
        expose::service(&Expose { port: "5", protocol: "UDP", ..Expose::default() }, &pod),
        r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"full","labels":{"app":"web","b":"2"}},"spec":{"ports":[{"protocol":"UDP","port":5,"targetPort":5}],"selector":{"app":"web","b":"2"}},"status":{"loadBalancer":{}}}"#,
    );
    refused(expose::service(&Expose::default(), &pod), "couldn't find port via --port flag or introspection");
    let selective = json!({ "kind": "Deployment", "spec": { "selector": { "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["b", "a"] }] } } });
    refused(
        expose::service(&Expose::default(), &selective),
        "couldn't retrieve selectors via --selector flag or introspection: couldn't convert expressions - \"[{Key:tier Operator:In Values:[b a]}]\" to map-based selector format",
    );
    let rules = words(&["a.b/p*=svc:80,tls=t", "/x=svc:http"]);
    let annotations = words(&["a=b"]);
    let ingress = Ingress {
        name: "i",
        class: "c",
        rules: &rules,
        default_backend: "d:1",
        annotations: &annotations,
        ..Ingress::default()
    };
    check(
        ingress::ingress(&ingress),
        r#"{"kind":"Ingress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"i","annotations":{"a":"b"}},"spec":{"ingressClassName":"c","defaultBackend":{"service":{"name":"d","port":{"number":1}}},"tls":[{"hosts":["a.b"],"secretName":"t"}],"rules":[{"host":"a.b","http":{"paths":[{"path":"/p","pathType":"Prefix","backend":{"service":{"name":"svc","port":{"number":80}}}}]}},{"http":{"paths":[{"path":"/x","pathType":"Exact","backend":{"service":{"name":"svc","port":{"name":"http"}}}}]}}]},"status":{"loadBalancer":{}}}"#,
    );
    let bad = words(&["bad"]);
    refused(
        ingress::ingress(&Ingress { name: "i", rules: &bad, ..Ingress::default() }),
        "rule bad is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]",
    );
}

#[test]
fn data_from_flags() {
    let mut files = MapFiles::new(&[("env.txt", "k1=v1\n# c\nk2=v 2\n"), ("d/a.txt", "A"), ("x", "cert")]);
    files.0.insert("d/bin".to_string(), vec![0xff, 0xfe]);
    let literals = |given: &[&str]| DataSources { literals: words(given), ..DataSources::default() };
    let map = |sources: DataSources, hashed| config::config_map("cm", None, &sources, hashed, &files);
    check(
        map(literals(&["a=1", "b=x=y"]), false),
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"cm"},"data":{"a":"1","b":"x=y"}}"#,
    );
    check(
        map(literals(&["a=1"]), true),
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"cm-9hfg4tdfc6"},"data":{"a":"1"}}"#,
    );
    let env = DataSources { env_files: words(&["env.txt"]), ..DataSources::default() };
    check(
        map(env.clone(), false),
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"cm"},"data":{"k1":"v1","k2":"v 2"}}"#,
    );
    let both = DataSources { files: words(&["d", "k=x"]), ..DataSources::default() };
    check(
        map(both, false),
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"cm"},"data":{"a.txt":"A","k":"cert"},"binaryData":{"bin":"//4="}}"#,
    );
    refused(map(literals(&["a"]), false), "invalid literal source a, expected key=value");
    refused(
        map(literals(&["a=1", "a=2"]), false),
        "cannot add key \"a\", another key by that name already exists in Data for ConfigMap \"cm\"",
    );
    refused(
        map(DataSources { literals: words(&["a=1"]), ..env }, false),
        "from-env-file cannot be combined with from-file or from-literal",
    );
    refused(
        map(DataSources { files: words(&["nope"]), ..DataSources::default() }, false),
        "error reading nope: no such file or directory",
    );
    let secret = |kind: &str, hashed| config::generic_secret("s", None, kind, &literals(&["a=1"]), hashed, &files);
    check(
        secret("my/type", false),
        r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"},"data":{"a":"MQ=="},"type":"my/type"}"#,
    );
    check(
        secret("", true),
        r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s-gtkfk5m49d"},"data":{"a":"MQ=="}}"#,
    );
    let registry = Registry { server: "https://index.docker.io/v1/", username: "u", password: "p", email: "e" };
    check(
        config::registry_secret("s", None, &registry, &[], false, &files),
        r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"},"data":{".dockerconfigjson":"eyJhdXRocyI6eyJodHRwczovL2luZGV4LmRvY2tlci5pby92MS8iOnsidXNlcm5hbWUiOiJ1IiwicGFzc3dvcmQiOiJwIiwiZW1haWwiOiJlIiwiYXV0aCI6ImRUcHcifX19"},"type":"kubernetes.io/dockerconfigjson"}"#,
    );
}

#[test]
fn policies_and_roles_from_flags() {
    check(
        policy::quota("q", None, "cpu=1,pods=2", "BestEffort"),
        r#"{"kind":"ResourceQuota","apiVersion":"v1","metadata":{"name":"q"},"spec":{"hard":{"cpu":"1","pods":"2"},"scopes":["BestEffort"]},"status":{}}"#,
    );
    refused(policy::quota("q", None, "cpu", ""), "Invalid argument syntax cpu, expected <resource>=<value>");
    check(
        Ok(policy::priority_class("p", 5, true, "d", "Never")),
        r#"{"kind":"PriorityClass","apiVersion":"scheduling.k8s.io/v1","metadata":{"name":"p"},"value":5,"globalDefault":true,"description":"d","preemptionPolicy":"Never"}"#,
    );
    check(
        policy::pod_disruption_budget("p", None, "a=b", "50%", ""),
        r#"{"kind":"PodDisruptionBudget","apiVersion":"policy/v1","metadata":{"name":"p"},"spec":{"minAvailable":"50%","selector":{"matchLabels":{"a":"b"}}},"status":{"disruptionsAllowed":0,"currentHealthy":0,"desiredHealthy":0,"expectedPods":0}}"#,
    );
    refused(
        policy::pod_disruption_budget("p", None, "a=b", "", ""),
        "one of min-available or max-unavailable must be specified",
    );
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" } });
    let scaled = policy::autoscaler(
        &Autoscale { max: 5, min: 2, cpu: "80", memory: "1Gi", cpu_percent: -1, ..Autoscale::default() },
        &target,
    )
    .unwrap();
    assert_eq!(
        scaled["spec"]["metrics"],
        json!([
        { "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } } },
        { "type": "Resource", "resource": { "name": "memory", "target": { "type": "AverageValue", "averageValue": "1Gi" } } }])
    );
    refused(
        policy::autoscaler(&Autoscale { max: 5, min: 6, ..Autoscale::default() }, &target),
        "--max=MAXPODS must be larger or equal to --min=MINPODS, max: 5, min: 6",
    );
    let resource = |group: &str, resource: &str, sub: &str| ResourceName {
        group: group.into(),
        resource: resource.into(),
        subresource: sub.into(),
    };
    let resources = [resource("", "pods", ""), resource("apps", "deployments", "scale")];
    check(
        rbac::role("ro", None, &words(&["get", "list"]), &resources, &words(&["x"])),
        r#"{"kind":"Role","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"ro"},"rules":[{"verbs":["get","list"],"apiGroups":[""],"resources":["pods"],"resourceNames":["x"]},{"verbs":["get","list"],"apiGroups":["apps"],"resources":["deployments/scale"],"resourceNames":["x"]}]}"#,
    );
    let (verbs, urls) = (words(&["get"]), words(&["/healthz"]));
    check(
        rbac::cluster_role(&ClusterRole { name: "cr", verbs: &verbs, urls: &urls, ..ClusterRole::default() }),
        r#"{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"cr"},"rules":[{"verbs":["get"],"nonResourceURLs":["/healthz"]}]}"#,
    );
    let (users, groups, accounts) = (words(&["u"]), words(&["g"]), words(&["ns:sa"]));
    let subjects = Subjects { users: &users, groups: &groups, service_accounts: &accounts };
    check(
        rbac::role_binding("rb", None, ("c", ""), &subjects),
        r#"{"kind":"RoleBinding","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"rb"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"u"},{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"g"},{"kind":"ServiceAccount","name":"sa","namespace":"ns"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"c"}}"#,
    );
    refused(
        rbac::role_binding("rb", None, ("", ""), &subjects),
        "exactly one of clusterrole or role must be specified",
    );
    let bare = words(&["sa"]);
    refused(
        rbac::role_binding("rb", None, ("", "r"), &Subjects { service_accounts: &bare, ..Subjects::default() }),
        "serviceaccount must be <namespace>:<name>",
    );
}

#[test]
fn changes_to_objects() {
    let deployment = || {
        json!({ "kind": "Deployment", "metadata": { "name": "web" }, "spec": { "template": { "spec": { "containers": [
        { "name": "c", "image": "a", "env": [{ "name": "X", "value": "1" }] }, { "name": "d", "image": "b" }] } } } })
    };
    let pairs = |name: &str| vec![(name.to_string(), "new".to_string())];
    let mut all = deployment();
    assert!(set::image(&mut all, &pairs("*")).unwrap().is_empty());
    assert_eq!(all["spec"]["template"]["spec"]["containers"][1]["image"], "new");
    assert_eq!(set::image(&mut deployment(), &pairs("z")).unwrap(), ["z"]);
    let mut with_env = deployment();
    set::Environment::parse(&words(&["A=b", "X-"]), true).unwrap().apply(&mut with_env, "*").unwrap();
    let containers = &with_env["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["env"], json!([{ "name": "A", "value": "b" }]));
    assert_eq!(
        environment_list::list_environment(&mut deployment(), "Deployment web", "*", None).unwrap().text,
        "# Deployment web, container c\nX=1\n# Deployment web, container d\n"
    );
    let mut limited = deployment();
    set::resources(&mut limited, "c", "cpu=1,memory=1Gi", "cpu=500m").unwrap();
    assert_eq!(
        limited["spec"]["template"]["spec"]["containers"][0]["resources"],
        json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "500m" } })
    );
    let nothing = set::resources(&mut limited, "*", "", "").unwrap_err();
    assert_eq!(nothing, "you must specify an update to requests or limits (in the form of --requests/--limits)");
    let mut binding = json!({ "subjects": [{ "kind": "User", "name": "u" }] });
    let users = words(&["u", "w"]);
    assert!(set::subject(&mut binding, &Subjects { users: &users, ..Subjects::default() }).unwrap());
    assert_eq!(binding["subjects"].as_array().unwrap().len(), 2);
}
