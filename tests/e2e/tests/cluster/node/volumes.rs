//! Volumes: configMap, secret, downwardAPI, projected, emptyDir, hostPath, claims; modes, owners, subPaths, updates.

use super::{apply, phase, reads, says};
use crate::kubectl;

const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: map}
data: {data-1: value-1, data-2: value-2, deep: inside}
binaryData: {dump.bin: 3q3A3g==}
---
apiVersion: v1
kind: Secret
metadata: {name: hush}
stringData: {data-1: secret-1, data-2: secret-2}
---
";

#[test]
fn files_have_their_content_and_modes() {
    let ns = kubectl().namespace("files");
    apply(
        &ns,
        &format!(
            "{OBJECTS}
apiVersion: v1
kind: Pod
metadata: {{name: files, labels: {{tier: front}}, annotations: {{build: two}}}}
spec:
  restartPolicy: Never
  volumes:
  - {{name: map, configMap: {{name: map}}}}
  - {{name: moded, configMap: {{name: map, defaultMode: 0400}}}}
  - {{name: mapped, configMap: {{name: map, items: [{{key: data-2, path: path/to/two, mode: 0440}}]}}}}
  - {{name: hush, secret: {{secretName: hush, defaultMode: 0400}}}}
  - {{name: hush-again, secret: {{secretName: hush, items: [{{key: data-1, path: new, mode: 0444}}]}}}}
  - {{name: none, configMap: {{name: nowhere, optional: true}}}}
  - name: about
    downwardAPI:
      defaultMode: 0444
      items:
      - {{path: name, fieldRef: {{fieldPath: metadata.name}}}}
      - {{path: labels, fieldRef: {{fieldPath: metadata.labels}}, mode: 0400}}
      - {{path: annotations, fieldRef: {{fieldPath: 'metadata.annotations[''build'']'}}}}
      - {{path: cpu, resourceFieldRef: {{containerName: c, resource: limits.cpu, divisor: 1m}}}}
      - {{path: memory, resourceFieldRef: {{containerName: c, resource: requests.memory}}}}
  - name: all
    projected:
      sources:
      - configMap: {{name: map, items: [{{key: data-1, path: map/one}}]}}
      - secret: {{name: hush, items: [{{key: data-1, path: hush/one}}]}}
      - downwardAPI: {{items: [{{path: about/name, fieldRef: {{fieldPath: metadata.name}}}}]}}
      - serviceAccountToken: {{path: token, audience: someone}}
  - name: all-moded
    projected:
      defaultMode: 0400
      sources:
      - configMap: {{name: map, items: [{{key: data-2, path: map/two, mode: 0440}}]}}
      - secret: {{name: hush, items: [{{key: data-2, path: hush/two, mode: 0444}}]}}
      - downwardAPI:
          items:
          - {{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}
          - {{path: cpu, resourceFieldRef: {{containerName: c, resource: requests.cpu, divisor: 1m}}, mode: 0444}}
          - {{path: memory, resourceFieldRef: {{containerName: c, resource: limits.memory}}}}
  - {{name: disk, emptyDir: {{}}}}
  - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}
  containers:
  - name: c
    image: IMAGE
    resources: {{limits: {{cpu: 250m, memory: 64Mi}}, requests: {{memory: 32Mi}}}}
    volumeMounts:
    - {{name: map, mountPath: /map}}
    - {{name: moded, mountPath: /moded}}
    - {{name: mapped, mountPath: /mapped}}
    - {{name: hush, mountPath: /hush}}
    - {{name: hush-again, mountPath: /hush-again}}
    - {{name: none, mountPath: /none}}
    - {{name: about, mountPath: /about}}
    - {{name: all, mountPath: /all}}
    - {{name: all-moded, mountPath: /moded-all}}
    - {{name: disk, mountPath: /disk}}
    - {{name: memory, mountPath: /memory}}
    - {{name: map, mountPath: /one, subPath: deep}}
    - {{name: map, mountPath: /etc/hostname, subPath: data-1}}
    command:
    - sh
    - -c
    - |
      mode() {{ stat -L -c %a $1; }}
      cat /map/data-1; echo; mode /map/data-1; busybox od -An -tx1 /map/dump.bin | tr -d ' '
      mode /moded/data-1; cat /mapped/path/to/two; echo; mode /mapped/path/to/two; ls /mapped
      cat /hush/data-2; echo; mode /hush/data-2; cat /hush-again/new; echo; mode /hush-again/new
      ls /none | wc -l
      cat /about/name; echo; mode /about/name; cat /about/labels; echo; mode /about/labels
      cat /about/annotations; echo; cat /about/cpu; echo; cat /about/memory; echo
      cat /all/map/one /all/hush/one /all/about/name; echo; test -s /all/token && echo token
      for file in map/two hush/two labels cpu memory; do cat /moded-all/$file; echo; mode /moded-all/$file; done
      mode /disk; mode /memory; busybox df /memory | grep -c tmpfs
      for place in /disk /memory; do for mode in 644 666 777; do
        echo x > $place/$mode; busybox chmod $mode $place/$mode; mode $place/$mode; done; done
      cat /one; echo; cat /etc/hostname; echo; touch /map/new 2>/dev/null || echo read-only
"
        ),
    );
    let expected = "value-1|644|deadc0de|400|value-2|440|path|secret-2|400|secret-1|444|0|files|444|tier=\"front\"|400|\
        two|250|33554432|value-1secret-1files|token|\
        value-2|440|secret-2|444|tier=\"front\"|400|250|444|67108864|400|777|1777|1|644|666|777|644|666|777|inside|value-1|read-only";
    says(&ns, "files", &expected.split('|').collect::<Vec<_>>());
}

#[test]
fn files_belong_to_the_group_and_may_be_read_by_others_than_root() {
    let ns = kubectl().namespace("owner");
    apply(
        &ns,
        &format!(
            "{OBJECTS}
apiVersion: v1
kind: Pod
metadata: {{name: owner}}
spec:
  restartPolicy: Never
  securityContext: {{runAsUser: 1000, runAsGroup: 2000, fsGroup: 3000, supplementalGroups: [4000]}}
  volumes:
  - {{name: map, configMap: {{name: map}}}}
  - {{name: mapped, configMap: {{name: map, items: [{{key: data-2, path: path/to/two}}]}}}}
  - {{name: hush, secret: {{secretName: hush, defaultMode: 0440}}}}
  - {{name: all, projected: {{defaultMode: 0440, sources: [{{secret: {{name: hush}}}}, {{configMap: {{name: map, items: [{{key: deep, path: deep}}]}}}}]}}}}
  - {{name: disk, emptyDir: {{}}}}
  - {{name: memory, emptyDir: {{medium: Memory}}}}
  containers:
  - name: c
    image: IMAGE
    volumeMounts:
    - {{name: map, mountPath: /map}}
    - {{name: mapped, mountPath: /mapped}}
    - {{name: hush, mountPath: /hush}}
    - {{name: all, mountPath: /all}}
    - {{name: disk, mountPath: /disk}}
    - {{name: memory, mountPath: /memory}}
    command:
    - sh
    - -c
    - |
      id -u; id -g; id -G | tr ' ' ,
      cat /map/data-1; echo; cat /hush/data-1; echo; stat -L -c '%g %a' /hush/data-1
      cat /mapped/path/to/two; echo; cat /all/data-2 /all/deep; echo; stat -L -c '%g %a' /all/data-2
      for place in /disk /memory; do
        echo x > $place/own && stat -c '%u %g' $place/own; stat -c '%g' $place
        for mode in 644 666 777; do echo x > $place/$mode; busybox chmod $mode $place/$mode; stat -c %a $place/$mode; done
      done
"
        ),
    );
    let modes = "1000 3000|3000|644|666|777";
    let expected =
        format!("1000|2000|2000,3000,4000|value-1|secret-1|3000 440|value-2|secret-2inside|3000 440|{modes}|{modes}");
    says(&ns, "owner", &expected.split('|').collect::<Vec<_>>());
}

#[test]
fn updates_appear_in_running_pods() {
    let ns = kubectl().namespace("updates");
    apply(
        &ns,
        &format!(
            "{OBJECTS}
apiVersion: v1
kind: Pod
metadata: {{name: follower, labels: {{tier: front}}}}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {{name: map, configMap: {{name: map}}}}
  - {{name: hush, secret: {{secretName: hush}}}}
  - {{name: late, configMap: {{name: late, optional: true}}}}
  - {{name: late-secret, secret: {{secretName: late, optional: true}}}}
  - {{name: about, downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}}}
  - name: all
    projected: {{sources: [{{configMap: {{name: map}}}}, {{configMap: {{name: late, optional: true}}}}]}}
  containers:
  - name: c
    image: IMAGE
    command: [sleep, '1000']
    volumeMounts:
    - {{name: map, mountPath: /map}}
    - {{name: hush, mountPath: /hush}}
    - {{name: late, mountPath: /late}}
    - {{name: late-secret, mountPath: /late-secret}}
    - {{name: about, mountPath: /about}}
    - {{name: all, mountPath: /all}}
"
        ),
    );
    phase(&ns, "follower", "Running");
    ns.run(&["patch", "configmap", "map", "-p", r#"{"data":{"data-1":"changed"}}"#]);
    ns.run(&["patch", "secret", "hush", "-p", r#"{"stringData":{"data-1":"changed"}}"#]);
    ns.run(&["label", "pod", "follower", "--overwrite", "tier=back"]);
    ns.run(&["create", "configmap", "late", "--from-literal=new=here"]);
    ns.run(&["create", "secret", "generic", "late", "--from-literal=new=here"]);
    for (path, text) in [
        ("/map/data-1", "changed"),
        ("/all/data-1", "changed"),
        ("/hush/data-1", "changed"),
        ("/about/labels", "tier=\"back\""),
        ("/late/new", "here"),
        ("/all/new", "here"),
        ("/late-secret/new", "here"),
    ] {
        reads(&ns, "follower", path, text);
    }
    ns.run(&["delete", "configmap", "late"]);
    e2e::eventually("the optional file goes again", || {
        // `ls` fails when the file goes while it looks.
        let found = ns.try_run(&["exec", "follower", "--", "ls", "/late"], "");
        if found.ok && found.stdout.trim().is_empty() { Ok(()) } else { Err(found) }
    });
}

#[test]
fn volumes_are_shared_between_containers_and_outlive_them() {
    let ns = kubectl().namespace("shared");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  restartPolicy: Never
  volumes:
  - {name: work, emptyDir: {}}
  initContainers:
  - {name: first, image: IMAGE, command: [sh, -c, 'echo from-init > /w/a'], volumeMounts: [{name: work, mountPath: /w}]}
  containers:
  - name: writer
    image: IMAGE
    command: [sh, -c, 'echo from-writer > /w/b']
    volumeMounts: [{name: work, mountPath: /w}]
  - name: reader
    image: IMAGE
    command: [sh, -c, 'while ! test -s /w/b; do sleep 0.1; done; cat /w/a /w/b']
    volumeMounts: [{name: work, mountPath: /w}]
",
    );
    phase(&ns, "shared", "Succeeded");
    assert_eq!(ns.run(&["logs", "shared", "-c", "reader"]), "from-init\nfrom-writer\n");
}

#[test]
fn claims_and_host_paths() {
    let ns = kubectl().namespace("claims");
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("seen"), "from the host\n").expect("written");
    let volume = format!("{}-volume", ns.name);
    let host = directory.path().display();
    ns.apply(&format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {volume}}}
spec:
  capacity: {{storage: 1Mi}}
  accessModes: [ReadWriteOnce]
  storageClassName: manual-{volume}
  persistentVolumeReclaimPolicy: Retain
  hostPath: {{path: {host}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: claim}}
spec:
  storageClassName: manual-{volume}
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 1Mi}}}}
"
    ));
    apply(
        &ns,
        &format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: claims}}
spec:
  restartPolicy: Never
  volumes:
  - {{name: claimed, persistentVolumeClaim: {{claimName: claim}}}}
  - {{name: host, hostPath: {{path: {host}, type: Directory}}}}
  - {{name: made, hostPath: {{path: {host}/made, type: DirectoryOrCreate}}}}
  containers:
  - name: c
    image: IMAGE
    env: [{{name: PLACE, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    volumeMounts:
    - {{name: claimed, mountPath: /claimed}}
    - {{name: host, mountPath: /host, readOnly: true}}
    - {{name: made, mountPath: /made}}
    - {{name: claimed, mountPath: /own, subPathExpr: $(PLACE)}}
    command: [sh, -c, 'cat /claimed/seen /host/seen; touch /made/x /own/y; touch /host/z 2>/dev/null || echo read-only']
"
        ),
    );
    says(&ns, "claims", &["from the host", "from the host", "read-only"]);
    assert!(directory.path().join("made/x").exists() && directory.path().join("claims/y").exists());
    apply(
        &ns,
        &format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: wrong}}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {{name: host, hostPath: {{path: {host}/seen, type: Directory}}}}
  containers:
  - {{name: c, image: IMAGE, volumeMounts: [{{name: host, mountPath: /host}}]}}
"
        ),
    );
    super::faults::event(&ns, "wrong", "FailedMount", "hostPath type check failed");
    ns.run(&["delete", "pod", "wrong", "claims", "--timeout=180s"]);
    ns.run(&["delete", "pvc", "claim", "--timeout=180s"]);
    ns.run(&["delete", "pv", &volume, "--timeout=180s"]);
}

/// Fifty maps in fifty volumes of every pod, several pods at once.
#[test]
fn many_volumes_at_once() {
    let ns = kubectl().namespace("many");
    let maps: String = (0..50)
        .map(|n| {
            format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{n}}}\ndata: {{key: value-{n}}}\n")
        })
        .collect();
    ns.apply(&maps);
    let volumes: String = (0..50).map(|n| format!("      - {{name: v{n}, configMap: {{name: map-{n}}}}}\n")).collect();
    let mounts: String = (0..50).map(|n| format!("        - {{name: v{n}, mountPath: /maps/{n}}}\n")).collect();
    apply(
        &ns,
        &format!(
            "
apiVersion: v1
kind: ReplicationController
metadata: {{name: many}}
spec:
  replicas: 5
  selector: {{app: many}}
  template:
    metadata: {{labels: {{app: many}}}}
    spec:
      terminationGracePeriodSeconds: 0
      volumes:
{volumes}
      containers:
      - name: c
        image: IMAGE
        command: [sh, -c, 'for f in /maps/*/key; do cat $f; echo; done | wc -l; sleep 1000']
        volumeMounts:
{mounts}
"
        ),
    );
    e2e::eventually("five pods run", || {
        let found = ns.json(&["get", "rc", "many"])["status"]["readyReplicas"].clone();
        if found == 5 { Ok(()) } else { Err(found) }
    });
    e2e::eventually("every pod has every map", || {
        let logs = ns.run(&["logs", "-l", "app=many"]);
        if logs.lines().collect::<Vec<_>>() == ["50"; 5] { Ok(()) } else { Err(logs) }
    });
}

#[test]
fn sub_paths_are_expanded_and_stay_inside() {
    let ns = kubectl().namespace("sub");
    apply(
        &ns,
        &format!(
            "{OBJECTS}
apiVersion: v1
kind: Pod
metadata: {{name: inside}}
spec:
  restartPolicy: Never
  volumes:
  - {{name: hush, secret: {{secretName: hush}}}}
  - {{name: about, downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}}
  - {{name: all, projected: {{sources: [{{configMap: {{name: map}}}}]}}}}
  - {{name: disk, emptyDir: {{}}}}
  containers:
  - name: c
    image: IMAGE
    env: [{{name: NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    volumeMounts:
    - {{name: hush, mountPath: /hush, subPath: data-1}}
    - {{name: about, mountPath: /about, subPath: name}}
    - {{name: all, mountPath: /all, subPath: data-2}}
    - {{name: disk, mountPath: /disk}}
    - {{name: disk, mountPath: /own, subPathExpr: a/$(NAME)}}
    command: [sh, -c, 'cat /hush; echo; cat /about; echo; cat /all; echo; touch /own/x; ls /disk/a/inside']
"
        ),
    );
    says(&ns, "inside", &["secret-1", "inside", "value-2", "x"]);
    for (name, value) in [("absolute", "/tmp"), ("outside", "..")] {
        apply(
            &ns,
            &format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 0, volumes: [{{name: v, \
                 emptyDir: {{}}}}], containers: [{{name: c, image: IMAGE, env: [{{name: PLACE, value: {value}}}], volumeMounts: \
                 [{{name: v, mountPath: /v, subPathExpr: $(PLACE)}}]}}]}}}}"
            ),
        );
        super::until(&ns, name, "is not started", |pod| {
            super::container(pod, "c")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        });
    }
    // What can't be expanded yet starts once it can.
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: later}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - name: c
    image: IMAGE
    command: [sleep, '1000']
    env: [{name: PLACE, valueFrom: {fieldRef: {fieldPath: 'metadata.annotations[''place'']'}}}]
    volumeMounts: [{name: v, mountPath: /v, subPathExpr: $(PLACE)/x}]
",
    );
    super::until(&ns, "later", "waits", |pod| {
        super::container(pod, "c")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    ns.run(&["annotate", "pod", "later", "place=somewhere"]);
    phase(&ns, "later", "Running");
    ns.run(&["delete", "pods", "absolute", "outside", "later", "--timeout=180s"]);
}

#[test]
fn a_claim_of_the_default_class_keeps_its_data_from_pod_to_pod_and_then_goes() {
    let ns = kubectl().namespace("default-class");
    ns.apply(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
",
    );
    let user = |name: &str, command: &str| {
        let text = format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  securityContext: {{runAsUser: 1000, fsGroup: 2000}}
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
  containers:
  - {{name: c, image: IMAGE, command: [sh, -c, '{command}'], volumeMounts: [{{name: data, mountPath: /data}}]}}
"
        );
        apply(&ns, &text);
    };
    user("writer", "echo written > /data/file; stat -c %g /data/file");
    says(&ns, "writer", &["2000"]);
    ns.run(&["delete", "pod", "writer"]);
    user("reader", "cat /data/file");
    says(&ns, "reader", &["written"]);
    let claim = ns.json(&["get", "pvc", "data"]);
    assert_eq!(claim["spec"]["storageClassName"], "minke-local");
    let name = claim["spec"]["volumeName"].as_str().unwrap().to_string();
    let volume = ns.json(&["get", "pv", &name]);
    let directory = std::path::PathBuf::from(volume["spec"]["local"]["path"].as_str().unwrap());
    assert_eq!(std::fs::read_to_string(directory.join("file")).unwrap(), "written\n");
    ns.run(&["delete", "pod", "reader"]);
    ns.run(&["delete", "pvc", "data"]);
    e2e::eventually("the volume and its directory are gone", || {
        let found = ns.try_run(&["get", "pv", &name], "");
        if !found.ok && !directory.exists() { Ok(()) } else { Err(found) }
    });
}
