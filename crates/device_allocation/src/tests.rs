//! The allocator as tables: slices, classes and claims in, devices or a refusal out.

use std::{cell::Cell, collections::BTreeMap, sync::Arc};

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

use crate::{AllocatedDevices, AllocationError, Allocator, ClaimRequests, Inventory, NodeView, Selectors};

const DRIVER: &str = "gpu.example.com";

/// A slice of node `n1` unless `more` says otherwise.
fn slice(pool: &str, devices: Value, more: Value) -> Value {
    let pool = json!({ "name": pool, "generation": 1, "resourceSliceCount": 1 });
    let mut spec = json!({ "driver": DRIVER, "pool": pool, "nodeName": "n1", "devices": devices });
    merge(&mut spec, more);
    json!({ "metadata": {}, "spec": spec })
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn device(name: &str, model: &str, index: i64) -> Value {
    json!({ "name": name, "attributes": { "model": { "string": model }, "index": { "int": index } },
        "capacity": { "memory": { "value": format!("{index}Gi") } } })
}

fn exactly(name: &str, more: Value) -> Value {
    let mut exactly = json!({ "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1 });
    merge(&mut exactly, more);
    json!({ "name": name, "exactly": exactly })
}

fn selecting(expression: &str) -> Value {
    json!([{ "cel": { "expression": expression } }])
}

fn claim(devices: Value) -> Value {
    json!({ "metadata": { "namespace": "default", "name": "claim", "uid": "u" }, "spec": { "devices": devices } })
}

#[derive(Default)]
struct World {
    inventory: Inventory,
    allocated: AllocatedDevices,
    selectors: Selectors,
    classes: BTreeMap<String, Value>,
}

impl World {
    fn new(slices: &[Value]) -> Self {
        let mut world = Self::default();
        world.classes.insert("gpu".into(), json!({}));
        for (at, slice) in slices.iter().enumerate() {
            world.set_slice(&format!("s{at}"), slice);
        }
        world
    }

    fn set_slice(&mut self, name: &str, slice: &Value) {
        let slice: ResourceSlice = serde_json::from_value(slice.clone()).unwrap();
        self.inventory.set(name, Arc::new(slice));
    }

    fn requests(&self, claim: &Value) -> Result<ClaimRequests, AllocationError> {
        let claim: ResourceClaim = serde_json::from_value(claim.clone()).unwrap();
        let class = |name: &str| {
            let spec = self.classes.get(name)?;
            let class = json!({ "metadata": { "name": name }, "spec": spec });
            Some(Arc::new(serde_json::from_value::<DeviceClass>(class).unwrap()))
        };
        ClaimRequests::new(Arc::new(claim), class, &self.selectors)
    }

    fn allocate_on(&self, node: &str, claims: &[Value]) -> Result<Vec<AllocationResult>, AllocationError> {
        let claims = claims.iter().map(|claim| self.requests(claim)).collect::<Result<Vec<_>, _>>()?;
        let labels = BTreeMap::from([("zone".to_string(), "a".to_string())]);
        let allocator = Allocator { inventory: &self.inventory, allocated: &self.allocated, is_over: &|| false };
        allocator.allocate(NodeView { name: node, labels: &labels }, &claims)
    }

    fn allocate(&self, claims: &[Value]) -> Result<Vec<AllocationResult>, AllocationError> {
        self.allocate_on("n1", claims)
    }
}

/// `request=device`, claims apart by a bar.
fn shown(found: Result<Vec<AllocationResult>, AllocationError>) -> String {
    let results = |allocation: &AllocationResult| {
        let results = allocation.devices.iter().flat_map(|d| d.results.iter().flatten());
        let each = results.map(|r| {
            let admin = if r.admin_access == Some(true) { "*" } else { "" };
            format!("{}={}{admin}", r.request, r.device)
        });
        each.collect::<Vec<_>>().join(" ")
    };
    match found {
        Ok(allocations) => allocations.iter().map(results).collect::<Vec<_>>().join(" | "),
        Err(why) => why.to_string(),
    }
}

fn three() -> Value {
    json!([device("a", "x", 1), device("b", "y", 2), device("c", "x", 3)])
}

#[test]
fn requests_get_devices() {
    let check = |devices: Value, expected: &str| {
        let world = World::new(&[slice("p", three(), json!({}))]);
        assert_eq!(shown(world.allocate(&[claim(devices.clone())])), expected, "{devices}");
    };
    let request = |more: Value| json!({ "requests": [exactly("r", more)] });
    let none = "cannot allocate all claims";
    check(request(json!({})), "r=a");
    check(request(json!({ "count": 3 })), "r=a r=b r=c");
    check(request(json!({ "count": 4 })), none);
    check(request(json!({ "allocationMode": "All", "count": null })), "r=a r=b r=c");
    check(json!({ "requests": [exactly("r", json!({})), exactly("q", json!({ "count": 2 }))] }), "r=a q=b q=c");
    check(json!({ "requests": [exactly("r", json!({})), exactly("q", json!({ "allocationMode": "All" }))] }), none);
    let of_driver = |rest: &str| format!("device.attributes['{DRIVER}'].{rest}");
    check(request(json!({ "selectors": selecting(&of_driver("model == 'y'")) })), "r=b");
    check(request(json!({ "selectors": selecting("device.driver == 'other'") })), none);
    let memory = format!("device.capacity['{DRIVER}'].memory.compareTo(quantity('2Gi')) > 0");
    check(request(json!({ "selectors": selecting(&memory) })), "r=c");
    check(request(json!({ "allocationMode": "All", "selectors": selecting(&of_driver("model == 'x'")) })), "r=a r=c");
    // The first choice is taken back where it leaves nothing for the second request.
    let picky = exactly("q", json!({ "selectors": selecting(&of_driver("index == 1")) }));
    check(json!({ "requests": [exactly("r", json!({})), picky] }), "r=b q=a");
    check(request(json!({ "deviceClassName": "none" })), "request r: device class none does not exist");
    check(request(json!({ "allocationMode": "Some" })), "claim default/claim, request r: unsupported count mode Some");
    check(json!({ "requests": [{ "name": "r" }] }), "resource claim default/claim, request r: unknown request type");
    check(
        request(json!({ "selectors": [{}] })),
        "claim default/claim, request r, selector #0: CEL expression empty (unsupported selector type?)",
    );
    check(
        request(json!({ "count": 33 })),
        "claim default/claim: number of requested devices 33 exceeds the claim limit of 32",
    );
}

#[test]
fn alternatives_are_tried_in_order() {
    let sub = |name: &str, more: Value| {
        let mut sub = json!({ "name": name, "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1 });
        merge(&mut sub, more);
        sub
    };
    let check = |alternatives: Value, expected: &str| {
        let mut world = World::new(&[slice("p", three(), json!({}))]);
        world.classes.insert("other".into(), json!({ "selectors": selecting("device.driver == 'other'") }));
        let devices = json!({ "requests": [{ "name": "r", "firstAvailable": alternatives }] });
        assert_eq!(shown(world.allocate(&[claim(devices)])), expected, "{alternatives}");
    };
    check(json!([sub("one", json!({})), sub("two", json!({ "count": 2 }))]), "r/one=a");
    check(json!([sub("one", json!({ "count": 4 })), sub("two", json!({ "count": 2 }))]), "r/two=a r/two=b");
    check(json!([sub("one", json!({ "deviceClassName": "other" })), sub("two", json!({}))]), "r/two=a");
    check(json!([sub("one", json!({ "deviceClassName": "other" }))]), "cannot allocate all claims");
    check(json!([sub("one", json!({ "deviceClassName": "none" }))]), "request r/one: device class none does not exist");
}

#[test]
fn constraints_hold_among_devices() {
    let check = |devices: Value, constraints: Value, expected: &str| {
        let world = World::new(&[slice("p", devices, json!({}))]);
        let requests = json!([exactly("r", json!({})), exactly("q", json!({}))]);
        let claim = claim(json!({ "requests": requests, "constraints": constraints }));
        assert_eq!(shown(world.allocate(&[claim])), expected, "{constraints}");
    };
    let same = |name: &str| json!([{ "matchAttribute": format!("{DRIVER}/{name}") }]);
    check(three(), same("model"), "r=a q=c");
    check(three(), same("index"), "cannot allocate all claims");
    check(three(), same("none"), "cannot allocate all claims");
    check(three(), json!([{ "matchAttribute": "other.example.com/model" }]), "cannot allocate all claims");
    check(three(), json!([{ "requests": ["r"], "matchAttribute": format!("{DRIVER}/index") }]), "r=a q=b");
    let unset = "claim default/claim, constraint #0: empty constraint (unsupported constraint type?)";
    check(three(), json!([{ "requests": ["r"] }]), unset);
    let numbered = |name: &str, attribute: Value| json!({ "name": name, "attributes": { "model": attribute } });
    let mixed = json!([numbered("a", json!({ "int": 1 })), numbered("b", json!({ "string": "1" }))]);
    check(mixed, same("model"), "cannot allocate all claims");
    let versions = json!([numbered("a", json!({ "version": "1.0.0" })), numbered("b", json!({ "version": "1.0.0" }))]);
    check(versions, same("model"), "r=a q=b");
    let world = World::new(&[slice("p", three(), json!({}))]);
    let all = exactly("r", json!({ "allocationMode": "All" }));
    let all = claim(json!({ "requests": [all], "constraints": same("model") }));
    let why = "cannot add device gpu.example.com/p/b because a claim constraint would not be satisfied";
    assert_eq!(shown(world.allocate(&[all])), format!("claim default/claim, request r: {why}"));
}

#[test]
fn a_device_is_given_once() {
    let mut world = World::new(&[slice("p", three(), json!({}))]);
    let one = || claim(json!({ "requests": [exactly("r", json!({}))] }));
    let admin = |more: Value| {
        let mut more = more;
        more["adminAccess"] = json!(true);
        claim(json!({ "requests": [exactly("r", more)] }))
    };
    assert_eq!(shown(world.allocate(&[one(), one()])), "r=a | r=b");
    assert_eq!(shown(world.allocate(&[one(), one(), one(), one()])), "cannot allocate all claims");
    let first = world.allocate(&[one()]).unwrap().remove(0);
    world.allocated.add(&first);
    assert_eq!(shown(world.allocate(&[one(), one()])), "r=b | r=c");
    // Administrators see what others use, and keep it from nobody.
    let seen = world.allocate(&[admin(json!({ "allocationMode": "All" }))]).unwrap();
    assert_eq!(shown(Ok(seen.clone())), "r=a* r=b* r=c*");
    world.allocated.add(&seen[0]);
    assert_eq!(shown(world.allocate(&[one(), admin(json!({}))])), "r=b | r=a*");
    assert_eq!(shown(world.allocate(&[admin(json!({ "count": 4 }))])), "cannot allocate all claims");
    world.allocated.remove(&seen[0]);
    world.allocated.remove(&first);
    assert!(world.allocated.is_empty());
    assert_eq!(shown(world.allocate(&[one()])), "r=a");
}

#[test]
fn pools_are_seen_from_their_nodes() {
    let check = |slices: &[Value], mode: &str, expected: &str| {
        let world = World::new(slices);
        let claim = claim(json!({ "requests": [exactly("r", json!({ "allocationMode": mode }))] }));
        assert_eq!(shown(world.allocate(&[claim])), expected, "{slices:?}");
    };
    let one = |name: &str| json!([device(name, "x", 1)]);
    let none = "cannot allocate all claims";
    let of = |more: Value| slice("p", one("a"), more);
    let zone = |zone: &str| {
        let expression = json!({ "key": "zone", "operator": "In", "values": [zone] });
        json!({ "nodeName": null, "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [expression] }] } })
    };
    let pool = |more: Value| json!({ "pool": more });
    check(&[of(json!({}))], "ExactCount", "r=a");
    check(&[of(json!({ "nodeName": "n2" }))], "ExactCount", none);
    check(&[of(json!({ "nodeName": null, "allNodes": true }))], "ExactCount", "r=a");
    check(&[of(zone("a"))], "ExactCount", "r=a");
    check(&[of(zone("b"))], "ExactCount", none);
    check(&[of(json!({ "nodeName": null, "perDeviceNodeSelection": true }))], "ExactCount", none);
    // Incomplete: nothing is taken, and who wants all has to wait.
    let incomplete = of(pool(json!({ "resourceSliceCount": 2 })));
    check(std::slice::from_ref(&incomplete), "ExactCount", none);
    let updated =
        "claim default/claim, request r: asks for all devices, but resource pool gpu.example.com/p is currently";
    check(std::slice::from_ref(&incomplete), "All", &format!("{updated} being updated"));
    check(&[incomplete.clone(), slice("q", one("b"), json!({}))], "ExactCount", "r=b");
    // The latest generation replaces the others, even where it is not for this node.
    let newer = slice("p", one("b"), pool(json!({ "generation": 2 })));
    check(&[of(json!({})), newer.clone()], "ExactCount", "r=b");
    let mut elsewhere = newer;
    elsewhere["spec"]["nodeName"] = json!("n2");
    check(&[of(json!({})), elsewhere], "ExactCount", none);
    // Slices for other nodes make a pool complete.
    let mut rest = slice("p", one("b"), pool(json!({ "resourceSliceCount": 2 })));
    rest["spec"]["nodeName"] = json!("n2");
    check(&[incomplete, rest], "All", "r=a");
    let twice = slice("p", json!([device("a", "x", 1), device("a", "x", 2)]), json!({}));
    check(std::slice::from_ref(&twice), "ExactCount", "invalid resource pools were encountered");
    check(&[twice], "All", &format!("{updated} invalid"));
    // What belongs to features that are off can't be had.
    let mut counting = device("a", "x", 1);
    counting["consumesCounters"] = json!([{ "counterSet": "s", "counters": {} }]);
    let mut conditional = device("b", "x", 1);
    conditional["bindingConditions"] = json!(["ready"]);
    check(&[slice("p", json!([counting, conditional, device("c", "x", 1)]), json!({}))], "ExactCount", "r=c");
}

#[test]
fn slices_come_and_go() {
    let mut world = World::new(&[slice("p", three(), json!({})), slice("q", json!([device("d", "x", 4)]), json!({}))]);
    let all = || claim(json!({ "requests": [exactly("r", json!({ "allocationMode": "All" }))] }));
    assert_eq!(shown(world.allocate(&[all()])), "r=a r=b r=c r=d");
    world.set_slice("s0", &slice("p", json!([device("e", "x", 5)]), json!({})));
    assert_eq!(shown(world.allocate(&[all()])), "r=e r=d");
    world.set_slice("s1", &slice("q", three(), json!({ "nodeName": "n2" })));
    assert_eq!(shown(world.allocate(&[all()])), "r=e");
    assert_eq!(shown(world.allocate_on("n2", &[all()])), "r=a r=b r=c");
    world.inventory.remove("s0");
    world.inventory.remove("s1");
    assert!(world.inventory.is_empty());
    assert_eq!(shown(world.allocate(&[all()])), "cannot allocate all claims");
}

#[test]
fn broken_selectors_are_told() {
    let check = |class: &str, expression: &str, expected: &str| {
        let mut world = World::new(&[slice("p", three(), json!({}))]);
        world.classes.insert("gpu".into(), json!({ "selectors": selecting(class) }));
        let claim = claim(json!({ "requests": [exactly("r", json!({ "selectors": selecting(expression) }))] }));
        let found = shown(world.allocate(&[claim]));
        assert!(found.starts_with(expected), "{class} {expression}: {found}");
    };
    check("true", "true", "r=a");
    check("device.driver == 'none'", "device.none", "cannot allocate all claims");
    check("true", "device.none", "claim default/claim: selector #0: CEL compile error: ");
    check("device.none", "true", "class gpu: selector #0: CEL compile error: ");
    check("device.attributes['x'].none == 1", "true", "class gpu: selector #0: CEL runtime error: ");
    // Fails on some devices only: as soon as one of those is looked at.
    let some = format!("device.attributes['{DRIVER}'].index == 1 || device.attributes['{DRIVER}'].none == 1");
    check("true", &some, "r=a");
    let later = format!("device.attributes['{DRIVER}'].index == 2 || device.attributes['{DRIVER}'].none == 1");
    check("true", &later, "claim default/claim: selector #0: CEL runtime error: ");
    let items = vec!["1"; 40].join(",");
    let costly = (0..4).fold("true".to_string(), |inner, at| format!("[{items}].all(v{at}, {inner})"));
    let limit = "claim default/claim: selector #0: CEL runtime error: operation cancelled: actual cost limit exceeded";
    check("true", &costly, limit);
}

#[test]
fn results_carry_configuration_and_nodes() {
    let opaque = |parameters: &str| json!({ "opaque": { "driver": DRIVER, "parameters": { "kind": parameters } } });
    let mut world = World::new(&[slice("p", three(), json!({}))]);
    world.classes.insert("gpu".into(), json!({ "config": [opaque("class")] }));
    let mut named = opaque("named");
    named["requests"] = json!(["r"]);
    let mut other = opaque("other");
    other["requests"] = json!(["s"]);
    let sub = json!({ "name": "one", "deviceClassName": "gpu", "count": 1, "allocationMode": "ExactCount" });
    let requests = json!([exactly("r", json!({})), { "name": "s", "firstAvailable": [sub] }]);
    let claims = [claim(json!({ "requests": requests, "config": [opaque("all"), named, other] }))];
    let found = serde_json::to_value(world.allocate(&claims).unwrap().remove(0)).unwrap();
    let config =
        found["devices"]["config"].as_array().unwrap().iter().map(|c| {
            format!("{} {} {}", c["source"], c["requests"], c["opaque"]["parameters"]["kind"]).replace('"', "")
        });
    assert_eq!(
        config.collect::<Vec<_>>(),
        ["FromClass [r,s/one] class", "FromClaim null all", "FromClaim [r] named", "FromClaim [s] other"]
    );
    let field = json!({ "key": "metadata.name", "operator": "In", "values": ["n1"] });
    assert_eq!(found["nodeSelector"], json!({ "nodeSelectorTerms": [{ "matchFields": [field] }] }));

    let expression = json!({ "key": "zone", "operator": "In", "values": ["a"] });
    let selector = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
    let zonal = slice("p", three(), json!({ "nodeName": null, "nodeSelector": selector }));
    let everywhere = slice("q", json!([device("d", "x", 1)]), json!({ "nodeName": null, "allNodes": true }));
    let world = World::new(&[zonal, everywhere]);
    let asking = |count: i64, index: i64| {
        let expression = format!("device.attributes['{DRIVER}'].index >= {index}");
        let more = json!({ "count": count, "selectors": selecting(&expression) });
        claim(json!({ "requests": [exactly("r", more)] }))
    };
    let found = serde_json::to_value(world.allocate(&[asking(4, 0)]).unwrap().remove(0)).unwrap();
    assert_eq!(found["nodeSelector"], selector);
    let only = claim(json!({ "requests": [exactly("r", json!({ "selectors": selecting("device.driver != ''") }))] }));
    let world = World::new(&[slice("q", three(), json!({ "nodeName": null, "allNodes": true }))]);
    assert_eq!(world.allocate(&[only]).unwrap()[0].node_selector, None);
}

#[test]
fn a_search_ends_when_its_time_is_over() {
    let devices: Vec<Value> = (0..64).map(|at| device(&format!("d{at}"), &format!("m{}", at % 8), at)).collect();
    let world = World::new(&[slice("p", json!(devices), json!({}))]);
    let requests: Vec<Value> = (0..12).map(|at| exactly(&format!("r{at}"), json!({}))).collect();
    let constraints = json!([{ "matchAttribute": format!("{DRIVER}/model") }]);
    let claim = world.requests(&claim(json!({ "requests": requests, "constraints": constraints }))).unwrap();
    let asked = Cell::new(0);
    let is_over = || {
        asked.set(asked.get() + 1);
        asked.get() > 3
    };
    let allocator = Allocator { inventory: &world.inventory, allocated: &world.allocated, is_over: &is_over };
    let found = allocator.allocate(NodeView { name: "n1", labels: &BTreeMap::new() }, &[claim]);
    assert_eq!(found, Err(AllocationError::TimedOut));
    assert_eq!(asked.get(), 4);
}

/// Whoever may write a claim may have thousands of expressions evaluated before the first device is taken.
#[test]
fn an_author_of_many_selectors_does_not_keep_the_scheduler() {
    let devices: Vec<Value> = (0..64).map(|at| device(&format!("d{at}"), "m", at)).collect();
    let world = World::new(&[slice("p", json!(devices), json!({}))]);
    let no_device = selecting("device.driver == 'none'");
    for more in [json!({ "selectors": no_device }), json!({ "selectors": no_device, "allocationMode": "All" })] {
        let claim = world.requests(&claim(json!({ "requests": [exactly("r", more.clone())] }))).unwrap();
        let asked = Cell::new(0);
        let is_over = || {
            asked.set(asked.get() + 1);
            asked.get() > 3
        };
        let allocator = Allocator { inventory: &world.inventory, allocated: &world.allocated, is_over: &is_over };
        let found = allocator.allocate(NodeView { name: "n1", labels: &BTreeMap::new() }, &[claim]);
        assert_eq!((found, asked.get()), (Err(AllocationError::TimedOut), 4), "{more}");
    }
}
