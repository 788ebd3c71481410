//! Our kubectl against stock kubectl 1.35: the same command lines on the same cluster, output and exit code compared.
//! Ages, times and identities are made equal first; everything else must be.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use e2e::{Kubectl, minke};

use crate::kubectl;

/// Each program runs them in a namespace of its own, so a line may change what later ones look at.
const LINES: &[&str] = &[
    "get pods",
    "get deploy",
    "get nodes",
    "get nodes -o wide",
    "get cm",
    "get cm conf",
    "get cm conf -o yaml",
    "get cm conf -o json",
    "get cm conf -o kyaml",
    "get cm conf -o name",
    "get cm conf -o jsonpath={.data}",
    "get cm conf -o jsonpath={.data.absent}",
    "get cm conf -o go-template={{.metadata.name}}",
    "get cm conf -o custom-columns=N:.metadata.name,V:.data.a",
    "get cm conf -o bogus",
    "get cm conf --show-labels",
    "get cm conf -L team",
    "get cm --no-headers",
    "get cm --sort-by=.metadata.name",
    "get cm --sort-by=.metadata.creationTimestamp",
    "get cm -l team=blue",
    "get cm -l team=green",
    "get cm --field-selector=metadata.name=conf",
    "get cm,svc",
    "get cm/conf svc/front",
    "get cm conf nope",
    "get cm nope --ignore-not-found",
    "get svc front -o yaml",
    "get svc -o wide",
    "get ns default -o name",
    "get foo",
    "get foo.example.com",
    "get deploy.v1.apps",
    "get deployments.apps web",
    "get deploy web -o jsonpath={.spec.replicas}",
    "get all",
    "get",
    "get --nope",
    "get cm -x",
    "get --raw /healthz",
    "get --raw /nope",
    "get pods nope",
    "get pods a/b c",
    "describe cm conf",
    "describe svc front",
    "describe cm nope",
    "api-versions",
    "api-resources",
    "api-resources -o wide",
    "api-resources -o name --namespaced=false",
    "api-resources --sort-by=nope",
    "auth can-i get pods",
    "auth can-i get pods --as=nobody",
    "auth whoami",
    "version -o nope",
    "cluster-info",
    "apply -f FILE --dry-run=client",
    "apply -f FILE --dry-run=server",
    "apply -f FILE",
    "apply -f nope.yaml",
    "apply",
    "apply view-last-applied cm conf",
    "create -f FILE",
    "create -f FILE --dry-run=client -o name",
    "create configmap x --from-literal=a=b --dry-run=client -o yaml",
    "create configmap conf --from-literal=a=b",
    "create configmap",
    "create deployment d --image=nginx --dry-run=client -o yaml",
    "create deployment d",
    "create role r --verb=get --resource=pods --dry-run=client -o yaml",
    "create rolebinding r --role=r --user=u --dry-run=client -o yaml",
    "create job j --image=busybox --dry-run=client -o yaml",
    "create service nodeport s --tcp=80:8080 --dry-run=client -o yaml",
    "create token nope",
    "run p --image=nginx --dry-run=client -o yaml",
    "run p",
    "expose deploy web --port=80 --dry-run=client -o yaml",
    "autoscale deploy web --max=3 --dry-run=client",
    "set image deploy/web c=example.test/other --dry-run=server",
    "set env deploy/web --list",
    "set env deploy/web A=b --dry-run=client -o name",
    "set resources deploy web --limits=cpu=1 --dry-run=server",
    "explain configmaps",
    "explain pods.spec.containers.image",
    "explain nope",
    "debug",
    "completion",
    "diff -f FILE",
    "label cm conf team=red",
    "label cm conf team=blue --overwrite",
    "label cm conf team=blue",
    "label cm conf team",
    "label cm conf --list",
    "annotate cm conf note=one --overwrite",
    "annotate cm conf note-",
    "patch cm conf -p {\"data\":{\"a\":\"b\"}}",
    "patch cm conf --type=json -p [{\"op\":\"test\",\"path\":\"/data/a\",\"value\":\"nope\"}]",
    "patch cm conf",
    "patch cm conf -p x --type=bogus",
    "scale deploy web --replicas=0",
    "scale deploy web --replicas=1 --current-replicas=5",
    "scale deploy web",
    "rollout status deploy/web",
    "rollout history deploy/web",
    "rollout pause deploy/web",
    "rollout pause deploy/web",
    "rollout resume deploy/web",
    "rollout resume deploy/web",
    "rollout status cm/conf",
    "wait --for=jsonpath={.data.a}=b cm/conf",
    "wait --for=condition=Available deploy/web",
    "wait --for=delete cm/nope",
    "wait --for=nonsense cm/conf",
    "delete cm nope",
    "delete cm nope --ignore-not-found",
    "delete cm conf --dry-run=client",
    "delete cm conf --dry-run=server -o name",
    "delete cm",
    "delete cm --all --selector=a=b",
    "logs",
    "logs nope",
    "exec nope -- ls",
    "exec",
    "cordon nope",
    "taint node nope a=b:NoSchedule",
    "config view",
    "config current-context",
    "config get-contexts",
    "config get-clusters",
    "config get-users",
    "config use-context nope",
    "events --for cm/conf",
    "certificate approve",
    // Read and generated only: nothing below changes the cluster.
    "get cm conf -o jsonpath",
    "get cm conf -o jsonpath-as-json={.data}",
    "get cm conf -o jsonpath-as-json={.metadata.labels.team}",
    "get cm conf --template={{.data.a}}",
    "get cm conf -o go-template",
    "get cm conf -o custom-columns=N:.metadata.name,V:.data.absent",
    "get cm conf -o custom-columns=N",
    "get cm conf -o custom-columns",
    "get cm -l team -o custom-columns=NAME:.metadata.name,TEAM:.metadata.labels.team --no-headers",
    "get cm conf -o wide",
    "get cm conf -L team,absent",
    "get cm conf --show-kind",
    "get cm -l team=green --no-headers",
    "get cm -l team --sort-by=.data.a",
    "get cm -l team=blue conf",
    "get cm --field-selector=metadata.name!=conf -l team",
    "get cm --field-selector=data.a=b",
    "get cm --field-selector=nope",
    "get cm,svc -o name",
    "get cm/conf svc/front -o name",
    "get cm/conf svc/front -o yaml",
    "get cm/conf conf",
    "get cm conf conf",
    "get cm nope --ignore-not-found -o yaml",
    "get cm nope -o yaml",
    "get cm -l team=blue -o json",
    "get cm -l team=green -o yaml",
    "get cm -l team=green -o json",
    "get cm -l team=green -o name",
    "get cm -A -l team=nobody",
    "get cm conf -A",
    "get cm conf --watch=false --chunk-size=1",
    "get cm -l team --chunk-size=1 -o name",
    "get cm --limit=1",
    "get svc front -o jsonpath={.spec.ports[0].port}",
    "get foo/bar",
    "get configmap/",
    "get /conf",
    "get deploy.v1.nope",
    "get deploy web --subresource=scale",
    "get deploy web --subresource=scale -o jsonpath={.spec.replicas}",
    "get deploy web --subresource=status -o name",
    "get deploy web --subresource=nope",
    "get deploy --subresource=scale",
    "get deploy -l app --show-kind",
    "get rs -l app=web --no-headers -o custom-columns=R:.spec.replicas",
    "get cm -o",
    "get cm --sort-by",
    "get --raw /healthz cm",
    "get --raw /api/v1/namespaces/default/configmaps/nope",
    "get --raw nope",
    "get -f FILE",
    "get -f FILE -o name",
    "get -f FILE cm",
    "get pods a/b/c",
    "get pods,nope",
    "get cm,",
    "get ,cm",
    "get cm conf --output-watch-events",
    "get cm --server-print=false -l team",
    "get crd nope.example.com",
    "get clusterroles view -o jsonpath={.aggregationRule}",
    "describe cm/conf",
    "describe cm conf nope",
    "describe cm con",
    "describe cm -l team=nobody",
    "describe",
    "describe foo",
    "describe cm conf --show-events=false",
    "api-versions nope",
    "api-resources --api-group=apps",
    "api-resources --api-group=apps --no-headers",
    "api-resources --verbs=list,get --namespaced -o name",
    "api-resources --categories=all -o name",
    "api-resources --sort-by=kind --api-group=batch",
    "api-resources --sort-by=name --api-group=",
    "api-resources -o nope",
    "api-resources nope",
    "auth can-i get pods --as=nobody -q",
    "auth can-i get pods/log --as=nobody",
    "auth can-i get pods --subresource=log",
    "auth can-i get foo",
    "auth can-i get nodes",
    "auth can-i get /healthz",
    "auth can-i get /healthz --subresource=log",
    "auth can-i list deployments.apps/web",
    "auth can-i get pods --list",
    "auth can-i get",
    "auth can-i",
    "auth whoami -o yaml",
    "auth whoami -o jsonpath={.status.userInfo.username}",
    "auth whoami --as=nobody --as-group=a --as-group=b --as-uid=7",
    "auth whoami --as-group=a",
    "auth nope",
    "explain configmaps --recursive",
    "explain cm.data",
    "explain pods.spec.containers.securityContext",
    "explain deploy.spec.strategy --recursive",
    "explain deploy.spec.strategy.rollingUpdate.maxSurge",
    "explain cronjobs --api-version=batch/v1",
    "explain cronjobs --api-version=batch/v1beta1",
    "explain pods.spec.nope",
    "explain pods.nope.deeper",
    "explain",
    "explain pods services",
    "explain pods --output=nope",
    "explain hpa.spec.metrics",
    "create configmap x --from-literal=a --dry-run=client",
    "create configmap x --from-literal=a=1 --from-literal=a=2 --dry-run=client",
    "create configmap x --from-literal=a=b --append-hash --dry-run=client -o name",
    "create configmap x --dry-run=client -o yaml",
    "create configmap X_y --dry-run=client -o name",
    "create configmap a b",
    "create secret generic s --from-literal=a=b --dry-run=client -o yaml",
    "create secret generic s --from-literal=a=b --type=example.test/sort --dry-run=client -o yaml",
    "create secret docker-registry s --dry-run=client",
    "create secret tls s --dry-run=client",
    "create secret nope",
    "create deployment d --image=nginx --replicas=3 --port=80 --dry-run=client -o yaml",
    "create deployment d --image=nginx --image=r.test:5000/busybox:1 --dry-run=client -o yaml",
    "create deployment d --image=a --image=b --dry-run=client -- sh",
    "create deployment d --image=nginx --replicas=-1 --dry-run=client",
    "create job j --image=busybox --dry-run=client -o yaml -- date -u",
    "create job j --from=cronjob/nope --dry-run=client",
    "create job j --from=pod/nope --dry-run=client",
    "create job j --image=a --from=cronjob/b --dry-run=client",
    "create job j",
    "create cronjob c --image=busybox --dry-run=client",
    "create service clusterip s --tcp=80:8080 --dry-run=client -o yaml",
    "create service clusterip s --clusterip=None --dry-run=client -o yaml",
    "create service clusterip s --clusterip=None --tcp=80 --dry-run=client -o yaml",
    "create service clusterip s --dry-run=client",
    "create service clusterip s --tcp=a:b --dry-run=client",
    "create service clusterip s --tcp=80:70000 --dry-run=client",
    "create service nodeport s --tcp=80:8080 --node-port=30080 --dry-run=client -o yaml",
    "create service nodeport s --tcp=80 --node-port=99999 --dry-run=client",
    "create service loadbalancer s --tcp=80:web --dry-run=client -o yaml",
    "create service externalname s --external-name=a.test --dry-run=client -o yaml",
    "create service externalname s --external-name=a.test --tcp=80 --dry-run=client -o yaml",
    "create service externalname s --dry-run=client",
    "create ingress i --rule=a.test/=svc:80 --dry-run=client -o yaml",
    "create ingress i --default-backend=svc:80 --dry-run=client -o yaml",
    "create ingress i --rule=nonsense --dry-run=client",
    "create ingress i --dry-run=client",
    "create role r --verb=get,list --resource=pods,deployments.apps --resource-name=a --dry-run=client -o yaml",
    "create role r --verb=get --resource=pods/log --dry-run=client -o yaml",
    "create role r --verb=nope --resource=pods --dry-run=client -o yaml",
    "create role r --verb=get --resource=nope --dry-run=client",
    "create role r --resource=pods --dry-run=client",
    "create role r --verb=get --dry-run=client",
    "create clusterrole r --verb=get --resource=nodes --dry-run=client -o yaml",
    "create clusterrole r --verb=get --non-resource-url=/logs/* --dry-run=client -o yaml",
    "create clusterrole r --aggregation-rule=a=b,c=d --dry-run=client -o yaml",
    "create clusterrole r --verb=list --non-resource-url=logs --dry-run=client",
    "create rolebinding r --clusterrole=r --group=g --serviceaccount=ns:sa --dry-run=client -o yaml",
    "create rolebinding r --role=r --serviceaccount=sa --dry-run=client",
    "create rolebinding r --role=r --clusterrole=c --user=u --dry-run=client",
    "create rolebinding r --user=u --dry-run=client",
    "create clusterrolebinding r --clusterrole=r --user=u --user=v --dry-run=client -o yaml",
    "create clusterrolebinding r --user=u --dry-run=client",
    "create quota q --hard=pods=1,cpu=1 --dry-run=client -o yaml",
    "create quota q --hard=pods=1 --scopes=BestEffort --dry-run=client -o yaml",
    "create quota q --hard=pods --dry-run=client",
    "create quota q --hard=pods=x --dry-run=client",
    "create poddisruptionbudget p --selector=a=b --min-available=1 --dry-run=client -o yaml",
    "create pdb p --selector=a=b --max-unavailable=50% --dry-run=client -o yaml",
    "create pdb p --min-available=1 --dry-run=client",
    "create pdb p --selector=a=b --dry-run=client",
    "create pdb p --selector=a=b --min-available=1 --max-unavailable=1 --dry-run=client",
    "create priorityclass p --value=10 --description=d --dry-run=client -o yaml",
    "create priorityclass p --value=10 --global-default --preemption-policy=Never --dry-run=client -o yaml",
    "create priorityclass p --value=x --dry-run=client",
    "create namespace n --dry-run=client -o yaml",
    "create namespace",
    "create serviceaccount s --dry-run=client -o yaml",
    "create serviceaccount s --dry-run=client -o name",
    "create nope",
    "create",
    "create -f FILE --dry-run=nope",
    "create -f FILE -f FILE --dry-run=client",
    "create -f FILE --raw /api --edit",
    "create -f FILE extra",
    "create --raw /api -f FILE -f FILE",
    "run p --image=nginx --port=80 --env=A=b --labels=x=y --dry-run=client -o yaml",
    "run p --image=nginx --restart=Never --dry-run=client -o yaml -- arg1 arg2",
    "run p --image=nginx --expose --dry-run=client",
    "run p --image=nginx --port=80 --expose --dry-run=client -o yaml",
    "run p --image=nginx --overrides=nonsense --dry-run=client",
    "run p --image=nginx --rm --dry-run=client",
    "run p --image=nginx --rm",
    "run p --image=nginx --privileged --annotations=a=b --image-pull-policy=Never --dry-run=client -o yaml",
    "run p --image=nginx --env=nope --dry-run=client",
    "run p --image=nginx --quiet --dry-run=client -o name",
    "run --image=nginx",
    "run P_x --image=nginx --dry-run=client -o name",
    "expose deploy web --port=80,443 --dry-run=client -o yaml",
    "expose deploy web --port=80 --cluster-ip=None --dry-run=client -o yaml",
    "expose deploy web --dry-run=client",
    "expose deploy web --port=80 --type=Nope --dry-run=client",
    "expose cm conf --port=80 --dry-run=client",
    "expose deploy nope --port=80",
    "expose",
    "autoscale deploy web --min=2 --max=3 --cpu=70% --dry-run=client -o yaml",
    "autoscale deploy web --max=3 --cpu=500m --memory=50% --dry-run=client -o yaml",
    "autoscale deploy web --max=3 --cpu-percent=70 --dry-run=client -o yaml",
    "autoscale deploy web --min=4 --max=3 --dry-run=client",
    "autoscale deploy web --dry-run=client",
    "autoscale deploy web --max=3 --cpu=x --dry-run=client",
    "autoscale cm conf --max=3 --dry-run=client",
    "autoscale",
    "set image deploy/web nope=example.test/other --dry-run=client",
    "set image deploy/web",
    "set env deploy/web --from=configmap/conf --dry-run=client -o jsonpath={.spec.template.spec.containers[0].env}",
    "set env deploy/web --containers=nope A=b --dry-run=client",
    "set env deploy/web --list --resolve",
    "set env deploy/web",
    "set env cm/conf A=b --dry-run=client",
    "set env deploy/web A --dry-run=client",
    "set resources deploy web --limits=cpu=x --dry-run=client",
    "set resources deploy web --limits=cpu --dry-run=client",
    "set resources deploy web",
    "set selector svc front app=other --dry-run=client -o jsonpath={.spec.selector}",
    "set selector --local -f FILE app=other -o name",
    "set selector deploy web a=b --dry-run=client",
    "set serviceaccount deploy web robot --dry-run=client -o jsonpath={.spec.template.spec.serviceAccountName}",
    "set serviceaccount deploy web --dry-run=client",
    "set subject rolebinding nope --user=u --dry-run=client",
    "set nope",
    "label cm conf a=b --dry-run=client",
    "label cm conf a=b --dry-run=client -o yaml",
    "label cm conf a=b a- --dry-run=client",
    "label cm a=b",
    "label cm --all",
    "label",
    "annotate cm conf a=b --dry-run=client",
    "annotate cm conf note --dry-run=client",
    "annotate cm conf a=b a- --dry-run=client",
    "annotate cm --all",
    "annotate",
    "patch",
    "scale deploy web --replicas=2 --dry-run=client",
    "scale deploy web --replicas=-1",
    "scale cm conf --replicas=1",
    "scale deploy nope --replicas=1",
    "scale --replicas=1",
    "scale",
    "taint node nope a=b:Nope",
    "taint node nope a",
    "taint node nope",
    "taint nodes --all a=b:NoSchedule a-",
    "taint cm conf a=b:NoSchedule",
    "taint",
    "cordon",
    "cordon a b",
    "cordon --selector=",
    "drain --selector=",
    "uncordon nope",
    "certificate approve nope",
    "certificate deny nope",
    "auth reconcile",
    "auth reconcile -f FILE --dry-run=client",
    "debug nope",
    "debug nope --image=busybox",
    "debug nope --copy-to=x",
    "debug nope --image=busybox --target=x --copy-to=y",
    "debug node/nope --image=busybox",
    "completion nope",
    "completion bash zsh",
    "delete",
    "delete cm conf --all",
    "delete cm conf --dry-run=client -o name",
    "delete cm conf --dry-run=client -o yaml",
    "delete cm conf svc/front",
    "delete cm/conf svc/front --dry-run=client",
    "delete cm -l team=blue --dry-run=client",
    "delete cm --field-selector=metadata.name=conf --dry-run=client",
    "delete -f FILE --dry-run=client",
    "delete cm conf --grace-period=0 --dry-run=client",
    "delete cm conf --force --grace-period=5 --dry-run=client",
    "delete cm conf --now --grace-period=5 --dry-run=client",
    "delete cm conf --cascade=nope",
    "delete cm conf --cascade=false --dry-run=client",
    "delete cm conf --wait=maybe",
    "delete nope x",
    "delete nope/x",
    "delete cm/conf extra",
    "delete --raw /api -f FILE",
    "replace",
    "replace -f FILE --dry-run=client",
    "replace -f FILE --dry-run=client -o name",
    "replace -f FILE --grace-period=3",
    "replace cm",
    "apply -f FILE --dry-run=client -o name",
    "apply -f FILE --force-conflicts",
    "apply -f FILE --server-side --dry-run=client",
    "apply -f FILE --server-side --force",
    "apply -f FILE --subresource=status",
    "apply -f FILE extra",
    "plugin nope",
    "rollout history deploy/web",
    "rollout history deploy/web --revision=9",
    "rollout history deploy/web --template={{.metadata.name}}",
    "rollout undo deploy/web --to-revision=9",
    "wait cm/conf --for=created",
    "wait cm/conf --for=create",
    "wait cm --for=create -l team=blue",
    "wait cm --for=create -l team=nobody --timeout=1s",
    "wait cm/nope --for=create --timeout=1s",
    "wait cm/conf --for=jsonpath={.data.a}=b=c",
    "wait cm/conf --for=jsonpath={.data.a}=",
    "debug web --image=i --profile=nope",
    "debug web --image=i --image-pull-policy=nope",
    "debug web --image=UPPER",
    "debug web --copy-to=x -- ls",
    "debug web --copy-to=x --set-image=*=UPPER",
    "debug web --image=i --attach=true --copy-to=x --replace --target=y",
    "debug deploy/web --image=i --profile=general",
    "config view --minify --context=nope",
    "config set nope.x y",
    "label cm conf =x",
    "annotate cm conf =x",
    "auth can-i nope pods",
    "set selector svc front app=web --resource-version=1",
    "set env -f - -",
    "port-forward nope 17001:80",
    "get pods.nope",
    "get cm -s https://127.0.0.1:99999",
    "get cm -s https://127.0.0.1:1",
    "alpha kuberc view --kuberc=/nothere",
    "get cm --kuberc=/nothere",
    "get cm --kuberc=",
];

const MANIFEST: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: conf, labels: {team: blue}}
data: {a: b}
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: web}, clusterIP: None, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: example.test/none}]}
";

const SHARED_RETRIES: usize = 5;

pub fn stock() -> PathBuf {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/kubectl-1.35");
    assert!(clients.exists(), "stock kubectl is missing: tools/install test");
    clients
}

/// Runs a line; its exit code and everything it printed, with what may differ made equal.
fn run(kubectl: &Kubectl, line: &str, file: &str) -> String {
    let words: Vec<&str> = line.split(' ').map(|word| if word == "FILE" { file } else { word }).collect();
    let output = kubectl.command(&words).stdin(Stdio::null()).output().expect("kubectl runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("exit {:?}\n{}{}", output.status.code(), same(&text(&output.stdout)), same(&text(&output.stderr)))
}

/// Without ages, times, versions of objects, and how far columns stand apart because of them.
fn same(text: &str) -> String {
    let is_age = |word: &str| {
        word.ends_with(['s', 'm', 'h', 'd'])
            && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
            && word.starts_with(|c: char| c.is_ascii_digit())
    };
    let is_time = |word: &str| {
        let word = word.trim_matches(['"', ',', '\'']);
        word.len() >= 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T'
    };
    let is_uid = |word: &str| word.len() >= 36 && word.matches('-').count() == 4 && !word.contains('/');
    let lines = text.lines().filter(|line| !line.contains("memcache.go") && !line.contains("resourceVersion"));
    // The other program's name, and diff's temporary files.
    let lines =
        lines.filter(|line| !line.starts_with("--- ") && !line.starts_with("+++ ") && !line.starts_with("diff "));
    let line = |line: &str| -> String {
        let line = line.replace("kubectl-1.35", "kubectl");
        let words = line
            .split_whitespace()
            .map(|word| if is_age(word) || is_time(word) || is_uid(word) { "AGE" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    lines.map(|l| format!("{}\n", line(l))).collect()
}

#[test]
fn command_lines_end_as_with_stock_kubectl() {
    let folder = tempfile::tempdir().expect("a directory");
    let link = folder.path().join("kubectl");
    std::os::unix::fs::symlink(std::fs::canonicalize(minke()).expect("minke"), &link).expect("a link");
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, MANIFEST).expect("a file");
    let file = file.display().to_string();
    let (ours, stocks) = (kubectl().namespace("ours"), kubectl().namespace("stock"));
    for ns in [&ours, &stocks] {
        ns.run(&["wait", "--for=create", "configmap/kube-root-ca.crt"]);
    }
    // Times of creation have seconds: what the namespaces came with is older than what follows, in both.
    std::thread::sleep(Duration::from_millis(1100));
    for ns in [&ours, &stocks] {
        ns.run(&["apply", "-f", &file]);
        ns.run(&["rollout", "status", "deploy/web"]);
    }
    let mut different = Vec::new();
    for line in LINES {
        let both = || {
            let found = run(&ours.with_program(&link), line, &file).replace(&ours.name, "NS");
            (found, run(&stocks.with_program(&stock()), line, &file).replace(&stocks.name, "NS"))
        };
        let (mut found, mut wanted) = both();
        // What belongs to the whole cluster may have changed from one to the other: other tests run beside this one.
        for _ in 0..SHARED_RETRIES {
            if found == wanted || !["get nodes", "api-"].iter().any(|shared| line.starts_with(shared)) {
                break;
            }
            (found, wanted) = both();
        }
        if found != wanted {
            different.push(format!("== kubectl {line}\n-- ours\n{found}-- stock\n{wanted}"));
        }
    }
    assert!(different.is_empty(), "{} of {} lines differ\n{}", different.len(), LINES.len(), different.join("\n"));
}
