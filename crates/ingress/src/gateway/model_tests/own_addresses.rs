//! Gateways that each have an address of their own, as where there is a pool.
//! Part of `model_tests`.

use super::*;

/// With a pool of addresses.
#[test]
fn gateways_with_addresses_of_their_own_are_apart() {
    let http = || json!([http_listener("http", None)]);
    let tls = json!([{ "name": "tls", "port": 80, "protocol": "TLS", "tls": { "mode": "Passthrough" } }]);
    let to = |gateway: &str, service: &str| {
        let parents = json!([{ "name": gateway, "namespace": "n" }]);
        let rules = json!([{ "backendRefs": backend(service) }]);
        http_route(&format!("n/{service}"), 5, json!({ "parentRefs": parents, "rules": rules }))
    };
    let asks = |key: &str, created: u32, address: &str| -> Arc<Gateway> {
        let spec = json!({ "gatewayClassName": "minke", "listeners": http(), "addresses": [{ "value": address }] });
        read(key, created, spec)
    };
    let snapshot = GatewaySnapshot {
        classes: vec![class()],
        gateways: vec![
            gateway("n/g", 1, http()),
            gateway("n/h", 2, http()),
            gateway("n/other", 3, tls),
            gateway("n/taken", 4, http()),
            asks("n/wants", 5, "192.0.2.9"),
        ],
        http_routes: vec![to("g", "a"), to("h", "b")],
        ..GatewaySnapshot::default()
    };
    let own = |ips: &[&str]| GatewayAddresses::Own(ips.iter().map(|ip| ip.parse().unwrap()).collect());
    let own_addresses = BTreeMap::from([
        ("n/g".to_string(), own(&["192.0.2.1"])),
        ("n/h".to_string(), own(&[])),
        ("n/other".to_string(), own(&["192.0.2.3"])),
        ("n/taken".to_string(), GatewayAddresses::Taken),
        ("n/wants".to_string(), own(&["192.0.2.5"])),
    ]);
    let mut world = World { own_addresses, ..World::default() };
    let built = build(&snapshot, &["10.0.0.1".parse().unwrap()], &mut world);
    assert_eq!(goes_to(&built, 10_080, "GET x/").as_deref(), Some("a"));
    assert_eq!(goes_to(&built, 20_080, "GET x/").as_deref(), Some("b"), "one host and port, two Gateways");
    assert_eq!(built.balancers["n/h"].ports, BTreeMap::from([(80, 20_080)]));
    assert_eq!(built.balancers["n/wants"].requested, Some("192.0.2.9".parse().unwrap()));
    for (key, expected, addresses) in [
        ("n/g", "Accepted=T/Accepted Programmed=T/Programmed", 1),
        ("n/h", "Accepted=T/Accepted Programmed=F/AddressNotAssigned", 0),
        ("n/other", "Accepted=T/Accepted Programmed=T/Programmed", 1),
        ("n/taken", "Accepted=T/Accepted Programmed=F/AddressNotAssigned", 0),
        ("n/wants", "Accepted=T/Accepted Programmed=F/AddressNotUsable", 1),
    ] {
        let status = &built.statuses.gateways[key];
        assert_eq!(show(&status.conditions), expected, "{key}");
        assert_eq!(status.addresses.as_ref().map(Vec::len), Some(addresses), "{key}");
    }
}
