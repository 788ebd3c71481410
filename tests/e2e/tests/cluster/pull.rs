//! Pulling from a real registry (Debian's docker-registry), with a pull secret.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use e2e::{Cluster, busybox_archive, eventually, free_port};

use crate::kubectl;

struct Registry {
    process: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A registry on loopback that wants a password, holding one image.
fn registry() -> Registry {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let htpasswd = Command::new("htpasswd")
        .args(["-Bbn", "whale", "krill"])
        .output()
        .expect("htpasswd is missing: apt-get install apache2-utils");
    fs::write(path("htpasswd"), htpasswd.stdout).expect("written");
    let port = free_port();
    let config = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: 127.0.0.1:{port}}}\nauth: {{htpasswd: {{realm: r, path: {}}}}}\n",
        path("data"),
        path("htpasswd")
    );
    fs::write(path("config.yml"), config).expect("written");
    let process = Command::new("docker-registry")
        .args(["serve", &path("config.yml")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("docker-registry is missing: apt-get install docker-registry");
    fs::write(path("image.tar"), busybox_archive("pushed/busybox:1")).expect("written");
    let registry = Registry { process, port, _directory: directory };
    eventually("the registry takes an image", || {
        let push = Command::new("skopeo")
            .args(["copy", "--insecure-policy", "--dest-tls-verify=false", "--dest-creds", "whale:krill"])
            .arg(format!("oci-archive:{}", registry._directory.path().join("image.tar").display()))
            .arg(format!("docker://127.0.0.1:{port}/busybox:1"))
            .output()
            .expect("skopeo is missing: apt-get install skopeo");
        if push.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&push.stderr).into_owned()) }
    });
    registry
}

#[test]
fn an_image_is_pulled_with_a_secret_and_not_without() {
    let registry = registry();
    let host = format!("127.0.0.1:{}", registry.port);
    let hosts = Cluster::shared().data.join("registries").join(&host);
    fs::create_dir_all(&hosts).expect("a directory");
    fs::write(hosts.join("hosts.toml"), format!("server = \"http://{host}\"\n[host.\"http://{host}\"]\n"))
        .expect("written");

    let ns = kubectl().namespace("pull");
    let pod = |name: &str, extra: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n{extra}  containers:\n  - {{name: c, image: '{host}/busybox:1', command: [sleep, '1000']}}\n"
        )
    };
    let refused = |name: &str| {
        ns.apply(&pod(name, ""));
        eventually("the pull is refused", || {
            let reason =
                ns.run(&["get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].state.waiting.reason}"]);
            if reason == "ErrImagePull" || reason == "ImagePullBackOff" { Ok(()) } else { Err(reason) }
        });
    };
    refused("without");
    ns.run(&[
        "create",
        "secret",
        "docker-registry",
        "registry",
        "--docker-server",
        &host,
        "--docker-username=whale",
        "--docker-password=krill",
    ]);
    ns.apply(&pod("with", "  imagePullSecrets: [{name: registry}]\n"));
    ns.run(&["wait", "--for=condition=Ready", "pod/with", "--timeout=180s"]);
    eventually("the pull is told", || {
        let events = ns.run(&["get", "events", "--field-selector", "involvedObject.name=with"]);
        if events.contains("Successfully pulled image") { Ok(()) } else { Err(events) }
    });
    // Now it is there, but still not for those who have no secret.
    refused("other");
    ns.run(&["delete", "pod", "with", "without", "other", "--grace-period=0", "--force"]);
}
