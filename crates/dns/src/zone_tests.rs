//! Questions and answers as data.

use serde_json::{Value, json};

use super::*;
use crate::index::PodRecords;

fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local", 5, PodRecords::Insecure).unwrap();
    zone.set_server_addresses(vec!["10.96.0.10".parse().unwrap()]);
    zone.apply_namespace("empty");
    let service = |zone: &mut Zone, key: &str, spec: Value| {
        let object = json!({ "metadata": {}, "spec": spec });
        zone.apply_service(key, &serde_json::from_value(object).unwrap());
    };
    service(
        &mut zone,
        "d/web",
        json!({
            "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP" }],
        }),
    );
    service(&mut zone, "d/db", json!({ "clusterIP": "None", "ports": [{ "name": "sql", "port": 5432 }] }));
    service(&mut zone, "d/void", json!({ "clusterIP": "None" }));
    service(&mut zone, "d/ext", json!({ "type": "ExternalName", "externalName": "example.com" }));
    let slice = json!({
        "metadata": { "labels": { "kubernetes.io/service-name": "db" } },
        "addressType": "IPv4",
        "ports": [{ "name": "sql", "port": 5433, "protocol": "TCP" }],
        "endpoints": [
            { "addresses": ["10.244.0.2"], "hostname": "db-0" },
            { "addresses": ["10.244.0.3"] },
            { "addresses": ["10.244.0.4"], "hostname": "db-2", "conditions": { "ready": false } },
        ],
    });
    zone.apply_endpoint_slice("d/db-x", &serde_json::from_value(slice).unwrap());
    let slice = json!({
        "metadata": { "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": [
            { "addresses": ["10.244.0.20"], "hostname": "Pod-0" },
            { "addresses": ["10.244.0.21"] },
            { "addresses": ["10.244.0.22"], "hostname": "pod-2", "conditions": { "ready": false } },
        ],
    });
    zone.apply_endpoint_slice("d/web-x", &serde_json::from_value(slice).unwrap());
    zone
}

fn text(record: &Record) -> String {
    let data = match &record.data {
        RData::A(ip) => ip.to_string(),
        RData::AAAA(ip) => ip.to_string(),
        RData::SRV(srv) => format!("{} {} {} {}", srv.priority, srv.weight, srv.port, srv.target),
        RData::PTR(name) => name.0.to_string(),
        RData::NS(name) => name.0.to_string(),
        RData::TXT(text) => text.to_string(),
        RData::CNAME(name) => name.0.to_string(),
        other => format!("{:?}", other.record_type()),
    };
    format!("{:?} {data}", record.record_type())
}

fn describe(zone: &Zone, name: &str, kind: RecordType) -> String {
    match zone.answer(&Name::from_ascii(name).unwrap(), kind) {
        Answer::NotOurs => "not ours".into(),
        Answer::NoData(_) => "nodata".into(),
        Answer::NxDomain(_) => "nxdomain".into(),
        Answer::Alias { target, .. } => format!("alias {target}"),
        Answer::Records { answers, .. } => answers.iter().map(text).collect::<Vec<_>>().join(", "),
    }
}

#[test]
fn questions_and_answers() {
    use RecordType::{A, AAAA, NS, PTR, SOA, SRV, TXT};
    let zone = zone();
    let check = |name: &str, kind: RecordType, expected: &str| {
        assert_eq!(describe(&zone, name, kind), expected, "{name} {kind}");
    };
    check("web.d.svc.cluster.local.", A, "A 10.96.0.1");
    check("WEB.d.SVC.Cluster.local.", A, "A 10.96.0.1");
    check("web.d.svc.cluster.local.", AAAA, "AAAA fd00::1");
    check("web.d.svc.cluster.local.", TXT, "nodata");
    check("nobody.d.svc.cluster.local.", A, "nxdomain");
    check("web.nowhere.svc.cluster.local.", A, "nxdomain");
    check("x.web.d.svc.cluster.local.", A, "nxdomain");
    check("pod-0.web.d.svc.cluster.local.", A, "A 10.244.0.20");
    check("POD-0.web.d.svc.cluster.local.", A, "A 10.244.0.20");
    check("pod-0.web.d.svc.cluster.local.", AAAA, "nodata");
    check("10-244-0-21.web.d.svc.cluster.local.", A, "A 10.244.0.21");
    check("10-244-0-20.web.d.svc.cluster.local.", A, "nxdomain");
    check("pod-2.web.d.svc.cluster.local.", A, "nxdomain");
    check("_http._tcp.web.d.svc.cluster.local.", SRV, "SRV 0 100 80 web.d.svc.cluster.local.");
    check("_http._tcp.web.d.svc.cluster.local.", A, "nodata");
    check("_http._udp.web.d.svc.cluster.local.", SRV, "nxdomain");
    check("_tcp.web.d.svc.cluster.local.", SRV, "nodata");
    check("_sctp.web.d.svc.cluster.local.", SRV, "nxdomain");
    check(
        "web.d.svc.cluster.local.",
        SRV,
        "SRV 0 50 80 web.d.svc.cluster.local., SRV 0 50 53 web.d.svc.cluster.local.",
    );

    check("db.d.svc.cluster.local.", A, "A 10.244.0.3, A 10.244.0.2");
    check("db.d.svc.cluster.local.", AAAA, "nodata");
    check("db-0.db.d.svc.cluster.local.", A, "A 10.244.0.2");
    check("10-244-0-3.db.d.svc.cluster.local.", A, "A 10.244.0.3");
    check("db-2.db.d.svc.cluster.local.", A, "nxdomain");
    let sql = "SRV 0 50 5433 10-244-0-3.db.d.svc.cluster.local., SRV 0 50 5433 db-0.db.d.svc.cluster.local.";
    check("_sql._tcp.db.d.svc.cluster.local.", SRV, sql);
    check("void.d.svc.cluster.local.", A, "nxdomain");

    check("ext.d.svc.cluster.local.", A, "alias example.com.");
    check("x.ext.d.svc.cluster.local.", A, "nxdomain");

    check("1.0.96.10.in-addr.arpa.", PTR, "PTR web.d.svc.cluster.local.");
    check("2.0.244.10.in-addr.arpa.", PTR, "PTR db-0.db.d.svc.cluster.local.");
    check("1.0.96.10.in-addr.arpa.", A, "nodata");
    check("9.9.96.10.in-addr.arpa.", PTR, "not ours");
    let six = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.";
    check(six, PTR, "PTR web.d.svc.cluster.local.");

    check("10-244-0-9.d.pod.cluster.local.", A, "A 10.244.0.9");
    check("fd00--9.empty.pod.cluster.local.", AAAA, "AAAA fd00::9");
    check("10-244-0-9.d.pod.cluster.local.", AAAA, "nodata");
    check("10-244-0-9.nowhere.pod.cluster.local.", A, "nxdomain");
    check("web.d.pod.cluster.local.", A, "nxdomain");

    check("cluster.local.", SOA, "SOA SOA");
    check("cluster.local.", NS, "NS ns.dns.cluster.local.");
    check("ns.dns.cluster.local.", A, "A 10.96.0.10");
    check("cluster.local.", A, "nodata");
    check("svc.cluster.local.", A, "nodata");
    check("d.svc.cluster.local.", A, "nodata");
    check("empty.svc.cluster.local.", A, "nodata");
    check("nowhere.svc.cluster.local.", A, "nxdomain");
    check("dns-version.cluster.local.", TXT, "TXT 1.1.0");
    check("example.com.", A, "not ours");
    check("mycluster.local.", A, "not ours");
}

#[test]
fn what_is_deleted_is_gone() {
    let mut zone = zone();
    zone.delete_endpoint_slice("d/db-x");
    assert_eq!(describe(&zone, "db.d.svc.cluster.local.", RecordType::A), "nxdomain");
    assert_eq!(describe(&zone, "2.0.244.10.in-addr.arpa.", RecordType::PTR), "not ours");
    for name in ["web", "db", "void", "ext"] {
        zone.delete_service(&format!("d/{name}"));
    }
    assert_eq!(describe(&zone, "d.svc.cluster.local.", RecordType::A), "nxdomain");
    assert_eq!(describe(&zone, "1.0.96.10.in-addr.arpa.", RecordType::PTR), "not ours");
}

#[test]
fn verified_pod_records_follow_pods() {
    let mut zone = Zone::new("cluster.local", 5, PodRecords::Verified).unwrap();
    zone.apply_namespace("d");
    let pod = json!({ "metadata": {}, "status": { "podIPs": [{ "ip": "10.244.0.9" }], "phase": "Running" } });
    zone.apply_pod("d/p", &serde_json::from_value(pod).unwrap());
    assert_eq!(describe(&zone, "10-244-0-9.d.pod.cluster.local.", RecordType::A), "A 10.244.0.9");
    assert_eq!(describe(&zone, "10-244-0-8.d.pod.cluster.local.", RecordType::A), "nxdomain");
    zone.delete_pod("d/p");
    assert_eq!(describe(&zone, "10-244-0-9.d.pod.cluster.local.", RecordType::A), "nxdomain");
}
