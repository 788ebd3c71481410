//! Which devices containers get, as data.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{
    messages::{Device, DevicePluginOptions, NumaNode, TopologyInfo},
    state::{AllocationError, Choice, DeviceIds, DeviceRequest, DeviceState, ENDPOINT_STOP_GRACE_PERIOD},
};

const RESOURCE: &str = "example.com/widget";
const NOW: Duration = Duration::from_secs(1000);

fn ids(text: &str) -> DeviceIds {
    text.split_whitespace().map(String::from).collect()
}

/// `a` is healthy, `!a` is not, `a@1` is near to NUMA node 1.
fn devices(text: &str) -> Vec<Device> {
    let one = |text: &str| {
        let health = if text.starts_with('!') { "Unhealthy" } else { "Healthy" };
        let (id, node) = text.trim_start_matches('!').split_once('@').unwrap_or((text.trim_start_matches('!'), ""));
        let topology = node.parse().ok().map(|id| TopologyInfo { nodes: vec![NumaNode { id }] });
        Device { id: id.into(), health: health.into(), topology }
    };
    text.split_whitespace().map(one).collect()
}

fn with(text: &str, asks: bool) -> DeviceState {
    let mut state = DeviceState::default();
    let options = DevicePluginOptions { get_preferred_allocation_available: asks, ..Default::default() };
    state.connected(RESOURCE, 1, options);
    state.updated(RESOURCE, 1, devices(text)).unwrap();
    state
}

fn request<'a>(uid: &'a str, container: &'a str, required: usize) -> DeviceRequest<'a> {
    DeviceRequest { uid, container, resource: RESOURCE, required, reusable: DeviceIds::new(), affinity: None }
}

fn give(state: &mut DeviceState, request: &DeviceRequest) -> DeviceIds {
    match state.choose(request, None) {
        Ok(Choice::Devices(chosen)) => {
            state.allocated(request, &chosen, Default::default());
            chosen
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_container_gets_free_healthy_devices() {
    let check = |all: &str, taken: usize, reserved: &str, required: usize, expected: Result<&str, AllocationError>| {
        let mut state = with(all, false);
        if taken > 0 {
            give(&mut state, &request("other", "main", taken));
        }
        state.reserve(RESOURCE, &ids(reserved));
        let expected = expected.map(|text| if text.is_empty() { Choice::Nothing } else { Choice::Devices(ids(text)) });
        assert_eq!(state.choose(&request("pod", "main", required), None), expected, "{all} {taken} {reserved}");
    };
    let short = |requested, available| AllocationError::Unavailable { resource: RESOURCE.into(), requested, available };
    check("a b", 0, "", 1, Ok("a"));
    check("a b", 0, "", 0, Ok(""));
    check("a b", 1, "", 1, Ok("b"));
    check("!a b", 0, "", 1, Ok("b"));
    check("a b", 1, "b", 1, Err(short(1, 0)));
    check("a b !c", 0, "", 3, Err(short(3, 2)));
    check("!a", 0, "", 1, Err(AllocationError::NoneHealthy(RESOURCE.into())));
    let unknown = DeviceState::default().choose(&request("pod", "main", 1), None);
    assert_eq!(unknown, Err(AllocationError::Unregistered(RESOURCE.into())));
}

#[test]
fn what_a_container_has_stays_its_own() {
    let mut state = with("a b", false);
    assert_eq!(give(&mut state, &request("pod", "main", 1)), ids("a"));
    assert_eq!(state.choose(&request("pod", "main", 1), None), Ok(Choice::Nothing));
    let changed = state.choose(&request("pod", "main", 2), None).unwrap_err().to_string();
    assert_eq!(
        changed,
        "pod \"pod\" container \"main\" changed request for resource \"example.com/widget\" from 1 to 2"
    );
    // It vanished while the container had it.
    state.updated(RESOURCE, 1, devices("b")).unwrap();
    let gone = state.choose(&request("pod", "main", 1), None);
    assert_eq!(gone, Err(AllocationError::NoLongerHealthy(RESOURCE.into())));
    assert!(state.pods.remove_pod("pod"));
    assert_eq!(give(&mut state, &request("next", "main", 1)), ids("b"));
}

#[test]
fn the_plugin_says_what_it_prefers() {
    let state = with("a b c", true);
    let asked = Choice::Ask { available: ids("a b c"), must_include: ids(""), size: 2 };
    assert_eq!(state.choose(&request("pod", "main", 2), None), Ok(asked));
    let check = |preferred: &str, expected: &str| {
        let found = state.choose(&request("pod", "main", 2), Some(&ids(preferred)));
        assert_eq!(found, Ok(Choice::Devices(ids(expected))), "{preferred}");
    };
    check("c b", "b c");
    // Too few, or some that are not to be had.
    check("c", "a c");
    check("x y", "a b");
}

#[test]
fn devices_near_to_the_wanted_nodes_come_first() {
    let state = with("a@0 b@1 c@1 d", false);
    let check = |wanted: &[i64], required: usize, expected: &str| {
        let wanted: BTreeSet<i64> = wanted.iter().copied().collect();
        let request = DeviceRequest { affinity: Some(&wanted), ..request("pod", "main", required) };
        assert_eq!(state.choose(&request, None), Ok(Choice::Devices(ids(expected))), "{wanted:?} {required}");
    };
    check(&[1], 1, "b");
    check(&[1], 2, "b c");
    check(&[1], 3, "a b c");
    check(&[1], 4, "a b c d");
    check(&[0, 1], 3, "a b c");
}

#[test]
fn init_containers_leave_their_devices_to_later_ones() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "pod"}, "spec": {
        "initContainers": [{"name": "first"}, {"name": "sidecar", "restartPolicy": "Always"}, {"name": "last"}],
        "containers": [{"name": "main"}, {"name": "other"}]}}))
    .unwrap();
    let mut state = with("a b c", false);
    let mut check = |container: &str, required: usize, expected: &str| {
        let reusable = state.reusable(&pod, container, RESOURCE);
        let request = DeviceRequest { reusable, ..request("pod", container, required) };
        assert_eq!(give(&mut state, &request), ids(expected), "{container}");
    };
    check("first", 1, "a");
    check("sidecar", 1, "a");
    check("last", 2, "b c");
    check("main", 1, "b");
    check("other", 1, "c");
}

#[test]
fn a_plugin_that_has_gone_is_shown_for_a_while() {
    let mut state = with("a b !c", false);
    let check = |state: &DeviceState, expected: Option<(usize, usize)>| {
        let shown = state.capacity();
        let both = shown.capacity.get(RESOURCE).copied().zip(shown.allocatable.get(RESOURCE).copied());
        assert_eq!(both, expected);
    };
    check(&state, Some((3, 2)));
    // A plugin that came twice: what the older one says or does no longer counts.
    state.connected(RESOURCE, 2, Default::default());
    assert_eq!((state.updated(RESOURCE, 1, devices("a")), state.disconnected(RESOURCE, 1, NOW)), (None, None));
    check(&state, Some((3, 2)));
    state.disconnected(RESOURCE, 2, NOW).unwrap();
    check(&state, Some((3, 0)));
    assert!(!state.expire(NOW + ENDPOINT_STOP_GRACE_PERIOD));
    check(&state, Some((3, 0)));
    assert!(state.expire(NOW + ENDPOINT_STOP_GRACE_PERIOD + Duration::from_secs(1)));
    check(&state, Some((0, 0)));
    state.connected(RESOURCE, 3, Default::default());
    state.updated(RESOURCE, 3, devices("a")).unwrap();
    check(&state, Some((1, 1)));
}

#[test]
fn after_a_restart_pods_have_what_they_had() {
    let mut state = with("a b", false);
    give(&mut state, &request("pod", "main", 1));
    let mut state = DeviceState::restored(state.checkpoint(), NOW);
    assert_eq!(state.capacity().capacity, BTreeMap::from([(RESOURCE.to_string(), 0)]));
    assert!(state.is_device_plugin_resource(RESOURCE) && !state.is_device_plugin_resource("example.com/other"));
    assert_eq!(
        state.choose(&request("next", "main", 1), None),
        Err(AllocationError::NoneHealthy(RESOURCE.into())),
        "the plugin is not back"
    );
    state.connected(RESOURCE, 1, Default::default());
    state.updated(RESOURCE, 1, devices("a b")).unwrap();
    assert_eq!(state.choose(&request("pod", "main", 1), None), Ok(Choice::Nothing));
    assert_eq!(give(&mut state, &request("next", "main", 1)), ids("b"));
    assert_eq!(state.allocated_counts(), BTreeMap::from([(RESOURCE.to_string(), 2)]));
}

#[test]
fn pods_are_told_of_devices_that_fall_ill_or_recover() {
    let mut state = with("a b c", false);
    give(&mut state, &request("one", "main", 1));
    give(&mut state, &request("two", "main", 1));
    let mut check = |what: &str, users: &[&str], health: [&str; 2]| {
        let found = match what {
            "gone" => state.disconnected(RESOURCE, 1, NOW),
            said => state.updated(RESOURCE, 1, devices(said)),
        };
        assert!(found.unwrap().iter().eq(users), "{what}");
        let shown = ["one", "two"].map(|uid| {
            let statuses = state.health(uid, "main");
            assert_eq!((statuses.len(), &*statuses[0].name), (1, RESOURCE));
            let [device] = &statuses[0].resources.as_ref().unwrap()[..] else { panic!("{statuses:?}") };
            format!("{} {}", device.resource_id, device.health.as_ref().unwrap())
        });
        assert_eq!(shown, health, "{what}");
    };
    check("a b c", &[], ["a Healthy", "b Healthy"]);
    check("a !b !c", &["two"], ["a Healthy", "b Unhealthy"]);
    check("!a b", &["one", "two"], ["a Unhealthy", "b Healthy"]);
    check("a b", &["one"], ["a Healthy", "b Healthy"]);
    check("gone", &["one", "two"], ["a Unhealthy", "b Unhealthy"]);
    assert_eq!(state.health("three", "main"), []);
}
