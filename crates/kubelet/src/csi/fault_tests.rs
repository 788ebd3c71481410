//! Drivers that hang, crash in the middle, change their mind, lie about numbers, or have no room: what is left and told.

use std::{path::PathBuf, sync::Arc};

use env::Env;
use serde_json::{Value, json};
use tonic::Code;

use super::{
    csi_node,
    messages::{NodeGetInfoResponse, NodeGetVolumeStatsResponse, VolumeUsage, capability, unit},
    registration::CsiPluginHandler,
    test_driver::NAME,
    tests::{Fixture, api, eventually, mount, pod, request, volume},
};

const SOCKET: &str = "csi.sock";

fn unattached() -> Value {
    json!({"attachRequired": false})
}

#[tokio::test]
async fn a_driver_that_crashes_in_the_middle_finds_its_volume_again() {
    for method in ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"] {
        let f = Fixture::new(&[capability::STAGE_UNSTAGE_VOLUME], unattached());
        let socket = f.directory.path().join(SOCKET);
        let process = f.driver.serve_apart(&socket);
        let manager = f.manager();
        manager.register(NAME, &socket.to_string_lossy()).unwrap();
        let is_mount = !method.contains("Un");
        if !is_mount {
            mount(&manager, "one").await.unwrap();
        }
        f.driver.fail(method, &[None]);
        let work = async {
            match is_mount {
                true => mount(&manager, "one").await.map(drop),
                false => manager.unmount_pod("one").await,
            }
        };
        let crash = async {
            eventually("the driver is asked", || f.driver.0.lock().calls.iter().any(|call| call == method)).await;
            process.shutdown_background();
        };
        let (failed, ()) = tokio::join!(work, crash);
        let error = failed.unwrap_err().to_string();
        assert!(error.contains("rpc error: code = "), "{method}: {error}");
        let data = f.root().join("plugins/kubernetes.io/csi").join(NAME);
        assert!(data.exists(), "{method}: what may be staged is remembered");

        // Back at the same address: whoever asks again gets there, and everything goes in the end.
        let again = f.driver.serve_apart(&socket);
        if is_mount {
            mount(&manager, "one").await.unwrap();
            let state = f.driver.0.lock();
            assert_eq!((state.staged.len(), state.published.len()), (1, 1), "{method}");
        }
        manager.unmount_pod("one").await.unwrap();
        {
            let state = f.driver.0.lock();
            assert!(state.staged.is_empty() && state.published.is_empty(), "{method}");
        }
        assert!(!f.pod_dir("one").join("pv").exists() && manager.volumes_in_use().is_empty(), "{method}");
        again.shutdown_background();
    }
}

#[tokio::test]
async fn pods_that_come_at_once_share_one_staging() {
    let f = Fixture::new(&[capability::STAGE_UNSTAGE_VOLUME], unattached());
    let (manager, _driver) = f.serving();
    let (one, two, three) = tokio::join!(mount(&manager, "one"), mount(&manager, "two"), mount(&manager, "three"));
    for done in [one, two, three] {
        done.unwrap();
    }
    assert_eq!(f.driver.0.lock().staged.len(), 1);
    assert_eq!(f.driver.0.lock().published.len(), 3);
    f.driver.calls();
    let (one, two, three) =
        tokio::join!(manager.unmount_pod("one"), manager.unmount_pod("two"), manager.unmount_pod("three"));
    for done in [one, two, three] {
        done.unwrap();
    }
    let calls = f.driver.calls();
    assert_eq!(calls.iter().filter(|call| *call == "NodeUnstageVolume").count(), 1, "{calls:?}");
    assert_eq!(calls.last().map(String::as_str), Some("NodeUnstageVolume"), "only after the last one: {calls:?}");
}

#[tokio::test]
async fn what_was_staged_is_unstaged_also_by_a_driver_that_denies_it() {
    let f = Fixture::new(&[capability::STAGE_UNSTAGE_VOLUME], unattached());
    let (manager, _driver) = f.serving();
    mount(&manager, "one").await.unwrap();
    f.driver.0.lock().capabilities.clear();
    manager.unmount_pod("one").await.unwrap();
    assert!(f.driver.0.lock().staged.is_empty());
}

#[tokio::test]
async fn stats_are_the_drivers_and_a_driver_that_hangs_or_lies_spoils_none() {
    let f = Fixture::new(&[capability::GET_VOLUME_STATS], unattached());
    let (manager, _driver) = f.serving();
    let uids = ["one".to_string(), "two".to_string()];
    mount(&manager, "one").await.unwrap();
    let other =
        request(&pod("two"), volume(json!({"csi": {"driver": "gone.example.com", "volumeHandle": "x"}}))).volume;
    assert!(manager.mount(&request(&pod("two"), other)).await.is_err());
    let usage = |unit, total| VolumeUsage { available: total - 3, total, used: 3, unit };
    f.driver.0.lock().stats = NodeGetVolumeStatsResponse {
        usage: vec![usage(unit::BYTES, 100), usage(unit::INODES, 10), usage(7, 5)],
        volume_condition: None,
    };
    f.driver.fail("NodeGetVolumeStats", &[None]);
    let path: PathBuf = f.pod_dir("one").join("pv/mount");
    let hung = manager.volume_stats(&uids).await;
    assert_eq!(hung.get(&path), Some(&None), "nothing is made up");

    // A new process has nothing in mind.
    let (manager, _again) = f.serving();
    let told = manager.volume_stats(&uids).await;
    let stats = told[&path].clone().unwrap();
    assert_eq!((stats.disk.bytes, stats.disk.bytes_free, stats.used.bytes), (100, 97, 3));
    assert_eq!((stats.disk.inodes, stats.used.inodes, stats.is_new, stats.condition), (10, 3, true, None));
    f.driver.calls();
    assert!(!manager.volume_stats(&uids).await[&path].clone().unwrap().is_new);
    assert!(f.driver.calls().is_empty(), "not asked again within the period");
    f.driver.0.lock().capabilities.clear();
    let (manager, _more) = f.serving();
    assert_eq!(manager.volume_stats(&uids).await.get(&path), Some(&None), "it can't tell");
}

#[tokio::test]
async fn a_driver_that_has_no_room_is_asked_again_how_much_it_has() {
    let f = Fixture::new(&[], json!({"nodeAllocatableUpdatePeriodSeconds": 600}));
    let node = json!({"metadata": {"name": "n", "uid": "u", "labels": {}, "annotations": {}}});
    f.objects.lock().insert("/api/v1/nodes/n".into(), node);
    let (manager, _driver) = f.serving();
    let csi = Arc::new(manager);
    let client = api(&f.objects);
    let info = NodeGetInfoResponse { node_id: "node-id".into(), max_volumes_per_node: 7, accessible_topology: None };
    csi_node::install(&client, "n", NAME, &info).await.unwrap();
    let handler = CsiPluginHandler { client, env: Env::real(), node_name: "n".into(), csi: csi.clone() };
    let running = env::spawn(Arc::new(handler).run_allocatable_updates());
    f.driver.0.lock().volumes_max = 3;
    let place = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", volume(json!({})).device().attachment("n"));
    let error = json!({"message": "too many volumes", "errorCode": Code::ResourceExhausted as i32});
    let attachment = json!({"metadata": {"name": "a"},
        "spec": {"attacher": NAME, "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
        "status": {"attached": false, "attachError": error}});
    f.objects.lock().insert(place, attachment);
    let error = mount(&csi, "one").await.unwrap_err().to_string();
    assert!(error.contains("too many volumes"), "{error}");
    let count = || f.objects.lock()["/apis/storage.k8s.io/v1/csinodes/n"]["spec"]["drivers"][0]["allocatable"].clone();
    eventually("the CSINode object says it", || count() == json!({"count": 3})).await;
    running.abort();
}

#[tokio::test]
async fn a_driver_that_is_gone_keeps_the_volumes_of_no_other() {
    let f = Fixture::new(&[capability::STAGE_UNSTAGE_VOLUME], unattached());
    let (manager, _driver) = f.serving();
    let (gone, socket) = ("gone.example.com", f.directory.path().join(SOCKET));
    manager.register(gone, &socket.to_string_lossy()).unwrap();
    let mut other = volume(json!({"csi": {"driver": gone, "volumeHandle": "x"}}));
    other.spec_name = "a".into();
    let attachment = other.device().attachment("n");
    let attached = json!({"metadata": {"name": attachment}, "status": {"attached": true},
        "spec": {"attacher": gone, "nodeName": "n", "source": {"persistentVolumeName": "a"}}});
    f.objects.lock().insert(format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}"), attached);
    manager.mount(&request(&pod("one"), other)).await.unwrap();
    mount(&manager, "one").await.unwrap();
    manager.unregister(gone);
    for _ in 0..2 {
        let error = manager.unmount_pod("one").await.unwrap_err().to_string();
        assert!(error.contains("driver name gone.example.com not found in the list of registered"), "{error}");
        let there = ["a", "pv"].map(|name| f.pod_dir("one").join(name).exists());
        assert_eq!(there, [true, false], "the other driver's volume is gone");
        assert_eq!(f.driver.0.lock().staged.len(), 1);
    }
    manager.register(gone, &socket.to_string_lossy()).unwrap();
    manager.unmount_pod("one").await.unwrap();
    assert!(f.driver.0.lock().staged.is_empty() && !f.pod_dir("one").join("a").exists());
    assert!(manager.volumes_in_use().is_empty());
}
