//! The client and the supervisor against a real containerd in a temporary directory.
//! One containerd at a time, ended with all its containers even when a step fails early.

mod support;

use std::{collections::HashMap, time::Duration};

use cri::{RemoteRuntime, Runtime, RuntimeEvent, containerd::Containerd, v1};
use futures::StreamExt;

/// How long a busy machine may take for what must happen.
const PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE_SECONDS: i64 = 120;

fn sandbox_config(name: &str) -> v1::PodSandboxConfig {
    let host = v1::NamespaceOption {
        network: v1::NamespaceMode::Node as i32,
        pid: v1::NamespaceMode::Container as i32,
        ..Default::default()
    };
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.into(),
            uid: name.into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        labels: HashMap::from([("io.kubernetes.pod.uid".into(), name.into())]),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("/minke-cri-test/{name}"),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(host),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn run_container(runtime: &RemoteRuntime, sandbox: &str, command: &[&str]) -> String {
    let config = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: support::IMAGE.into(), ..Default::default() }),
        command: command.iter().map(|word| word.to_string()).collect(),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: sandbox_config("x").linux.unwrap().security_context.unwrap().namespace_options,
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let id = runtime.create_container(sandbox, config, sandbox_config("life")).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    id
}

fn kill(pid: i32) {
    let status = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_survive_containerd_and_its_supervisor() {
    if !support::possible() {
        return;
    }
    let dir = tempfile::Builder::new().prefix("mk").tempdir().unwrap();
    let containerd = support::start(dir.path()).await;
    let runtime = RemoteRuntime::new(&containerd.socket().to_string_lossy(), None);
    assert_eq!(runtime.version().await.unwrap().runtime_name, "containerd");

    let sandbox = runtime.run_pod_sandbox(sandbox_config("life"), "").await.unwrap();
    let keeper = run_container(&runtime, &sandbox, &["sleep", "1000"]).await;
    let result = runtime.exec_sync(&keeper, vec!["echo".into(), "hello".into()], PATIENCE_SECONDS).await.unwrap();
    assert_eq!((result.exit_code, result.stdout.as_slice()), (0, b"hello\n".as_slice()));

    // An exit is told, an exec's end is not.
    let mut events = runtime.events().await.unwrap();
    runtime.exec_sync(&keeper, vec!["true".into()], PATIENCE_SECONDS).await.unwrap();
    let short = {
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "short".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: support::IMAGE.into(), ..Default::default() }),
            command: vec!["sh".into(), "-c".into(), "exit 3".into()],
            ..Default::default()
        };
        let id = runtime.create_container(&sandbox, config, sandbox_config("life")).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        id
    };
    loop {
        let event = env::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
        match event {
            RuntimeEvent::Exited { id } if id == short => break,
            RuntimeEvent::Exited { id } => panic!("unexpected exit of {id}"),
            _ => {}
        }
    }

    // containerd is killed: the supervisor brings it back over the same containers.
    let first = containerd.pid();
    kill(first);
    // What happened before that may still be told.
    let ended = async { while let Some(Ok(_)) = events.next().await {} };
    env::timeout(PATIENCE, ended).await.expect("the events end with containerd");
    let status = loop {
        match runtime.container_status(&keeper, false).await {
            Ok(answer) => break answer.status.unwrap(),
            Err(_) => env::sleep(Duration::from_millis(50)).await,
        }
    };
    assert_eq!(status.state(), v1::ContainerState::ContainerRunning);
    let replaced = async {
        while containerd.pid() == first {
            env::sleep(Duration::from_millis(50)).await;
        }
    };
    env::timeout(PATIENCE, replaced).await.expect("another process answers");

    // We are killed (supervision ends without a stop): the next start adopts the living containerd.
    let second = containerd.pid();
    drop(containerd);
    let containerd = Containerd::start(support::config(dir.path()), env::Env::real()).await.unwrap();
    assert!(containerd.adopted());
    assert_eq!(containerd.pid(), second);

    assert_eq!(cri::remove_all(&runtime).await.unwrap(), 1);
    assert!(runtime.list_containers(None).await.unwrap().is_empty());
    containerd.stop().await;
    // It has ended; this process, its first parent, may still have to collect it.
    let stat = std::fs::read_to_string(format!("/proc/{second}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    // Nobody is left who would start it again (that would take 50 ms).
    env::sleep(Duration::from_millis(500)).await;
    assert!(!dir.path().join("s/containerd.pid").exists());
    // Empty by now: only the parent that runc made for the sandbox is left.
    for entry in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let _ = std::fs::remove_dir(entry.path().join("minke-cri-test/life"));
        let _ = std::fs::remove_dir(entry.path().join("minke-cri-test"));
    }
}
