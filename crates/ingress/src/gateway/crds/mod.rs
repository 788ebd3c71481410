//! The kinds of the Gateway API as CustomResourceDefinitions, for clusters that have none.
//! Installed by `install`; written in the words of `schema`.
//! Pure (tidy: `pure_files`). Fields, limits and defaults are those of the standard channel, without what is not acted on
//! (`spec.tls` and `allowedListeners` of Gateways, external authentication, retries, session persistence).

mod install;
mod schema;

pub use install::install;
use serde_json::{Value, json};

use self::schema::{
    at_least_one, choice, conditions, controller_name, default, dns_name, group, header_name, hostname, integer, kind,
    label_selector, list, map, name, namespace, object, pattern, pending, port, precise_hostname, rules, section, set,
    string, with,
};
use super::types::GROUP;

/// The release that the definitions follow.
const BUNDLE_VERSION: &str = "v1.6.1";

struct Definition {
    kind: &'static str,
    plural: &'static str,
    short_name: Option<&'static str>,
    is_namespaced: bool,
    /// The first is stored.
    versions: &'static [&'static str],
    columns: Vec<Value>,
    spec: Value,
    status: Option<Value>,
}

pub fn all() -> Vec<Value> {
    let definitions =
        [gateway_class(), gateway(), http_route(), grpc_route(), tls_route(), reference_grant(), backend_tls_policy()];
    definitions.into_iter().map(definition).collect()
}

fn column(name: &str, path: &str) -> Value {
    json!({ "name": name, "type": "string", "jsonPath": path })
}

fn definition(of: Definition) -> Value {
    let mut columns = of.columns;
    columns.push(json!({ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" }));
    let mut fields = json!({
        "apiVersion": { "type": "string" }, "kind": { "type": "string" }, "metadata": { "type": "object" },
        "spec!": of.spec,
    });
    let mut subresources = json!({});
    if let (Some(status), Value::Object(fields)) = (of.status, &mut fields) {
        fields.insert("status".into(), status);
        subresources = json!({ "status": {} });
    }
    let schema = object(fields);
    let version = |name: &&str| {
        json!({
            "name": name, "served": true, "storage": *name == of.versions[0], "subresources": subresources,
            "additionalPrinterColumns": columns, "schema": { "openAPIV3Schema": schema },
        })
    };
    let versions: Vec<Value> = of.versions.iter().map(version).collect();
    let mut names = json!({
        "kind": of.kind, "listKind": format!("{}List", of.kind), "plural": of.plural,
        "singular": of.kind.to_lowercase(), "categories": ["gateway-api"],
    });
    if let Some(short) = of.short_name {
        names = with(names, json!({ "shortNames": [short] }));
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{GROUP}", of.plural),
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/4530",
                "gateway.networking.k8s.io/bundle-version": BUNDLE_VERSION,
                "gateway.networking.k8s.io/channel": "standard",
            },
        },
        "spec": {
            "group": GROUP, "names": names, "versions": versions,
            "scope": if of.is_namespaced { "Namespaced" } else { "Cluster" },
        },
    })
}

fn gateway_class() -> Definition {
    let parameters = object(json!({ "group!": group(), "kind!": kind(), "name!": name(), "namespace": namespace() }));
    let unchanged = rules(controller_name(), &[("self == oldSelf", "the controller of a class can't be changed")]);
    let status = object(json!({
        "conditions": default(conditions(), pending(&["Accepted"])),
        "supportedFeatures": map(object(json!({ "name!": { "type": "string" } })), 64, "name"),
    }));
    Definition {
        kind: "GatewayClass",
        plural: "gatewayclasses",
        short_name: Some("gc"),
        is_namespaced: false,
        versions: &["v1", "v1beta1"],
        columns: vec![
            column("Controller", ".spec.controllerName"),
            column("Accepted", ".status.conditions[?(@.type==\"Accepted\")].status"),
        ],
        spec: object(json!({
            "controllerName!": unchanged, "description": string(0, 64), "parametersRef": parameters,
        })),
        status: Some(default(status, json!({ "conditions": pending(&["Accepted"]) }))),
    }
}

fn address(value: &str) -> Value {
    let kinds = format!("^Hostname|IPAddress|NamedAddress|{}\\/[A-Za-z0-9\\/\\-._~%!$&'()*+,;=:]+$", dns_name());
    let kind = default(pattern(string(1, 253), &kinds), json!("IPAddress"));
    object(json!({ "type": kind, value: string(0, 253) }))
}

fn route_kind() -> Value {
    object(json!({ "group": default(group(), json!(GROUP)), "kind!": kind() }))
}

fn gateway() -> Definition {
    let from = default(choice(&["All", "Selector", "Same"]), json!("Same"));
    let namespaces = object(json!({ "from": from, "selector": label_selector() }));
    let allowed_routes = object(json!({
        "namespaces": default(namespaces, json!({ "from": "Same" })),
        "kinds": list(route_kind(), 8),
    }));
    let certificate = object(json!({
        "group": default(group(), json!("")), "kind": default(kind(), json!("Secret")), "name!": name(),
        "namespace": namespace(),
    }));
    let options = json!({ "type": "object", "maxProperties": 16, "additionalProperties": string(0, 4096) });
    let tls = object(json!({
        "mode": default(choice(&["Terminate", "Passthrough"]), json!("Terminate")),
        "certificateRefs": list(certificate, 64),
        "options": options,
    }));
    let tls = rules(
        tls,
        &[(
            "self.mode != 'Terminate' || (has(self.certificateRefs) && size(self.certificateRefs) > 0) || (has(self.options) && size(self.options) > 0)",
            "TLS that ends here needs certificateRefs or options",
        )],
    );
    let protocol = "^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\\/[A-Za-z0-9]+$";
    let listener = object(json!({
        "name!": section(), "hostname": hostname(), "port!": port(), "protocol!": pattern(string(1, 255), protocol),
        "tls": tls, "allowedRoutes": default(allowed_routes, json!({ "namespaces": { "from": "Same" } })),
    }));
    let listeners = rules(
        at_least_one(map(listener, 64, "name")),
        &[
            ("self.all(l, !(l.protocol in ['HTTP', 'TCP', 'UDP']) || !has(l.tls))", "only HTTPS and TLS have tls"),
            (
                "self.all(l, l.protocol != 'HTTPS' || !has(l.tls) || l.tls.mode == 'Terminate')",
                "HTTPS ends at the Gateway",
            ),
            ("self.all(l, l.protocol != 'TLS' || has(l.tls))", "protocol TLS needs tls"),
            ("self.all(l, !(l.protocol in ['TCP', 'UDP']) || !has(l.hostname))", "TCP and UDP have no hostname"),
            (
                "self.all(a, self.exists_one(b, a.port == b.port && a.protocol == b.protocol && (has(a.hostname) && has(b.hostname) ? a.hostname == b.hostname : !has(a.hostname) && !has(b.hostname))))",
                "port, protocol and hostname of each listener have to be unique",
            ),
        ],
    );
    let parameters = object(json!({ "group!": group(), "kind!": kind(), "name!": name() }));
    let strings =
        |maximum: usize| json!({ "type": "object", "maxProperties": maximum, "additionalProperties": string(0, 4096) });
    let infrastructure =
        object(json!({ "labels": strings(8), "annotations": strings(16), "parametersRef": parameters }));
    let listener_status = object(json!({
        "name!": section(), "attachedRoutes!": { "type": "integer", "format": "int32" },
        "supportedKinds": list(route_kind(), 8), "conditions!": conditions(),
    }));
    let waiting = pending(&["Accepted", "Programmed"]);
    let status = object(json!({
        "addresses": list(address("value!"), 16),
        "conditions": default(conditions(), waiting.clone()),
        "listeners": map(listener_status, 64, "name"),
    }));
    Definition {
        kind: "Gateway",
        plural: "gateways",
        short_name: Some("gtw"),
        is_namespaced: true,
        versions: &["v1", "v1beta1"],
        columns: vec![
            column("Class", ".spec.gatewayClassName"),
            column("Address", ".status.addresses[*].value"),
            column("Programmed", ".status.conditions[?(@.type==\"Programmed\")].status"),
        ],
        spec: object(json!({
            "gatewayClassName!": name(), "listeners!": listeners, "addresses": list(address("value"), 16),
            "infrastructure": infrastructure,
        })),
        status: Some(default(status, json!({ "conditions": waiting }))),
    }
}

fn parent_reference() -> Value {
    object(json!({
        "group": default(group(), json!(GROUP)), "kind": default(kind(), json!("Gateway")), "namespace": namespace(),
        "name!": name(), "sectionName": section(), "port": port(),
    }))
}

fn parent_references() -> Value {
    let same = "a.group == b.group && a.kind == b.kind && a.name == b.name && (has(a.__namespace__) ? a.__namespace__ : '') == (has(b.__namespace__) ? b.__namespace__ : '') && (has(a.sectionName) ? a.sectionName : '') == (has(b.sectionName) ? b.sectionName : '') && (has(a.port) ? a.port : 0) == (has(b.port) ? b.port : 0)";
    rules(
        list(parent_reference(), 32),
        &[(
            &format!("self.all(a, self.exists_one(b, {same}))"),
            "references to one parent have to differ in sectionName or port",
        )],
    )
}

fn route_status() -> Option<Value> {
    let parent = object(json!({
        "parentRef!": parent_reference(), "controllerName!": controller_name(), "conditions!": conditions(),
    }));
    Some(object(json!({ "parents!": list(parent, 32) })))
}

const NEEDS_PORT: (&str, &str) =
    ("size(self.group) > 0 || self.kind != 'Service' || has(self.port)", "a Service needs a port");

fn backend_fields() -> Value {
    json!({
        "group": default(group(), json!("")), "kind": default(kind(), json!("Service")), "name!": name(),
        "namespace": namespace(), "port": port(),
    })
}

fn backend_reference(filters: Option<Value>) -> Value {
    let weight = default(integer(0, Some(1_000_000)), json!(1));
    let mut fields = with(backend_fields(), json!({ "weight": weight }));
    if let Some(filters) = filters {
        fields = with(fields, json!({ "filters": filters }));
    }
    rules(object(fields), &[NEEDS_PORT])
}

fn header_modifier() -> Value {
    let header = || object(json!({ "name!": header_name(), "value!": string(1, 4096) }));
    object(json!({
        "set": map(header(), 16, "name"), "add": map(header(), 16, "name"),
        "remove": set(json!({ "type": "string", "maxLength": 256 }), 16),
    }))
}

fn mirror() -> Value {
    let fraction = object(json!({
        "numerator!": integer(0, None), "denominator": default(integer(1, None), json!(100)),
    }));
    let fraction =
        rules(fraction, &[("self.numerator <= self.denominator", "numerator can't be more than denominator")]);
    let mirror = object(json!({
        "backendRef!": rules(object(backend_fields()), &[NEEDS_PORT]), "percent": integer(0, Some(100)),
        "fraction": fraction,
    }));
    rules(mirror, &[("!(has(self.percent) && has(self.fraction))", "percent and fraction exclude each other")])
}

fn path_modifier() -> Value {
    let modifier = object(json!({
        "type!": choice(&["ReplaceFullPath", "ReplacePrefixMatch"]), "replaceFullPath": string(0, 1024),
        "replacePrefixMatch": string(0, 1024),
    }));
    rules(
        modifier,
        &[
            ("has(self.replaceFullPath) == (self.type == 'ReplaceFullPath')", "replaceFullPath goes with its type"),
            (
                "has(self.replacePrefixMatch) == (self.type == 'ReplacePrefixMatch')",
                "replacePrefixMatch goes with its type",
            ),
        ],
    )
}

/// Type and field of each filter; the field has to be there exactly when the type says so.
const HTTP_FILTERS: &[(&str, &str)] = &[
    ("RequestHeaderModifier", "requestHeaderModifier"),
    ("ResponseHeaderModifier", "responseHeaderModifier"),
    ("RequestMirror", "requestMirror"),
    ("RequestRedirect", "requestRedirect"),
    ("URLRewrite", "urlRewrite"),
    ("ExtensionRef", "extensionRef"),
    ("CORS", "cors"),
];

fn filters(known: &[(&str, &str)], fields: Value) -> Value {
    let kinds: Vec<&str> = known.iter().map(|(kind, _)| *kind).collect();
    let fit: Vec<(String, String)> = known
        .iter()
        .map(|(kind, field)| {
            (format!("has(self.{field}) == (self.type == '{kind}')"), format!("{field} goes with its type"))
        })
        .collect();
    let fit: Vec<(&str, &str)> = fit.iter().map(|(rule, message)| (rule.as_str(), message.as_str())).collect();
    let filter = rules(object(with(fields, json!({ "type!": choice(&kinds) }))), &fit);
    let once: Vec<(String, String)> = kinds
        .iter()
        .filter(|kind| !["RequestMirror", "ExtensionRef"].contains(kind))
        .map(|kind| {
            (format!("self.filter(f, f.type == '{kind}').size() <= 1"), format!("{kind} can be there only once"))
        })
        .collect();
    let mut once: Vec<(&str, &str)> = once.iter().map(|(rule, message)| (rule.as_str(), message.as_str())).collect();
    if kinds.contains(&"URLRewrite") {
        let rule = "!(self.exists(f, f.type == 'RequestRedirect') && self.exists(f, f.type == 'URLRewrite'))";
        once.push((rule, "a request can't be redirected and rewritten"));
    }
    rules(list(filter, 16), &once)
}

fn extension() -> Value {
    object(json!({ "group!": group(), "kind!": kind(), "name!": name() }))
}

fn http_filters() -> Value {
    let redirect = object(json!({
        "scheme": choice(&["http", "https"]), "hostname": precise_hostname(), "path": path_modifier(), "port": port(),
        "statusCode": { "type": "integer", "default": 302, "enum": [301, 302, 303, 307, 308] },
    }));
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*"];
    let alone = |list: Value| rules(list, &[("!('*' in self) || self.size() == 1", "a star stands alone")]);
    let origin = "(^\\*$)|(^(http(s)?):\\/\\/(((\\*\\.)?([a-zA-Z0-9\\-]+\\.)*[a-zA-Z0-9-]+|\\*)(:([0-9]{1,5}))?)$)";
    let cors = object(json!({
        "allowOrigins": alone(set(pattern(string(1, 253), origin), 64)),
        "allowMethods": alone(set(choice(&methods), 9)),
        "allowHeaders": alone(set(header_name(), 64)),
        "exposeHeaders": set(header_name(), 64),
        "allowCredentials": { "type": "boolean" },
        "maxAge": default(integer(1, None), json!(5)),
    }));
    filters(
        HTTP_FILTERS,
        json!({
            "requestHeaderModifier": header_modifier(), "responseHeaderModifier": header_modifier(),
            "requestMirror": mirror(), "requestRedirect": redirect,
            "urlRewrite": object(json!({ "hostname": precise_hostname(), "path": path_modifier() })),
            "extensionRef": extension(), "cors": cors,
        }),
    )
}

fn value_matches(value_bytes: usize) -> Value {
    let kind = default(choice(&["Exact", "RegularExpression"]), json!("Exact"));
    map(object(json!({ "type": kind, "name!": header_name(), "value!": string(1, value_bytes) })), 16, "name")
}

fn route(kind: &'static str, plural: &'static str, versions: &'static [&'static str], spec: Value) -> Definition {
    Definition {
        kind,
        plural,
        short_name: None,
        is_namespaced: true,
        versions,
        columns: vec![column("Hostnames", ".spec.hostnames")],
        spec,
        status: route_status(),
    }
}

fn http_route() -> Definition {
    let any_path = json!({ "type": "PathPrefix", "value": "/" });
    let path = object(json!({
        "type": default(choice(&["Exact", "PathPrefix", "RegularExpression"]), json!("PathPrefix")),
        "value": default(string(0, 1024), json!("/")),
    }));
    let path = rules(
        path,
        &[
            ("self.type == 'RegularExpression' || self.value.startsWith('/')", "a path begins with a slash"),
            (
                "self.type == 'RegularExpression' || !self.value.matches(r\"\"\"//|/\\./|/\\.\\./|%2[fF]|#|/\\.\\.?$\"\"\")",
                "a path has no empty, '.' or '..' elements, no escaped slash and no '#'",
            ),
            (
                "self.type == 'RegularExpression' || self.value.matches(r\"\"\"^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$\"\"\")",
                "a path has only characters that paths may have",
            ),
        ],
    );
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    let one = object(json!({
        "path": default(path, any_path.clone()), "headers": value_matches(4096), "queryParams": value_matches(1024),
        "method": choice(&methods),
    }));
    let time = || json!({ "type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$" });
    let timeouts = rules(
        object(json!({ "request": time(), "backendRequest": time() })),
        &[(
            "!(has(self.request) && has(self.backendRequest) && duration(self.request) != duration('0s') && duration(self.backendRequest) > duration(self.request))",
            "backendRequest can't be longer than request",
        )],
    );
    let rule = object(json!({
        "name": section(), "matches": default(list(one, 64), json!([{ "path": any_path }])),
        "filters": http_filters(), "backendRefs": list(backend_reference(Some(http_filters())), 16),
        "timeouts": timeouts,
    }));
    let default_rules = json!([{ "matches": [{ "path": any_path }] }]);
    let spec = object(json!({
        "parentRefs": parent_references(), "hostnames": list(hostname(), 16),
        "rules": default(at_least_one(list(rule, 16)), default_rules),
    }));
    route("HTTPRoute", "httproutes", &["v1", "v1beta1"], spec)
}

fn grpc_route() -> Definition {
    let filters = || {
        let known = ["RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "ExtensionRef"];
        let known: Vec<_> = HTTP_FILTERS.iter().filter(|(kind, _)| known.contains(kind)).copied().collect();
        filters(
            &known,
            json!({
                "requestHeaderModifier": header_modifier(), "responseHeaderModifier": header_modifier(),
                "requestMirror": mirror(), "extensionRef": extension(),
            }),
        )
    };
    let method = object(json!({
        "type": default(choice(&["Exact", "RegularExpression"]), json!("Exact")), "service": string(0, 1024),
        "method": string(0, 1024),
    }));
    let method = rules(
        method,
        &[
            ("has(self.service) || has(self.method)", "a method match names a service or a method"),
            (
                "self.type != 'Exact' || !has(self.service) || self.service.matches(r\"\"\"^(?i)\\.?[a-z_][a-z_0-9]*(\\.[a-z_][a-z_0-9]*)*$\"\"\")",
                "the service is not the name of one",
            ),
            (
                "self.type != 'Exact' || !has(self.method) || self.method.matches(r\"\"\"^[A-Za-z_][A-Za-z_0-9]*$\"\"\")",
                "the method is not the name of one",
            ),
        ],
    );
    let rule = object(json!({
        "name": section(), "matches": list(object(json!({ "method": method, "headers": value_matches(4096) })), 64),
        "filters": filters(), "backendRefs": list(backend_reference(Some(filters())), 16),
    }));
    let spec = object(json!({
        "parentRefs": parent_references(), "hostnames": list(hostname(), 16), "rules": list(rule, 16),
    }));
    route("GRPCRoute", "grpcroutes", &["v1"], spec)
}

fn tls_route() -> Definition {
    let rule = object(json!({
        "name": section(), "backendRefs!": at_least_one(list(backend_reference(None), 16)),
    }));
    let hosts =
        rules(at_least_one(list(hostname(), 1024)), &[("self.all(h, !isIP(h))", "a server name is no address")]);
    let spec = object(json!({
        "parentRefs": parent_references(), "hostnames!": hosts,
        "rules!": at_least_one(list(rule, 1)),
    }));
    route("TLSRoute", "tlsroutes", &["v1"], spec)
}

fn reference_grant() -> Definition {
    let from = object(json!({ "group!": group(), "kind!": kind(), "namespace!": namespace() }));
    let to = object(json!({ "group!": group(), "kind!": kind(), "name": name() }));
    Definition {
        kind: "ReferenceGrant",
        plural: "referencegrants",
        short_name: Some("refgrant"),
        is_namespaced: true,
        versions: &["v1beta1", "v1"],
        columns: Vec::new(),
        spec: object(json!({ "from!": at_least_one(list(from, 16)), "to!": at_least_one(list(to, 16)) })),
        status: None,
    }
}

fn backend_tls_policy() -> Definition {
    let target = object(json!({ "group!": group(), "kind!": kind(), "name!": name(), "sectionName": section() }));
    let targets = rules(
        at_least_one(list(target, 16)),
        &[(
            "self.all(a, self.exists_one(b, a.group == b.group && a.kind == b.kind && a.name == b.name && (has(a.sectionName) ? a.sectionName : '') == (has(b.sectionName) ? b.sectionName : '')))",
            "targets have to differ in sectionName",
        )],
    );
    let alternative = object(json!({
        "type!": choice(&["Hostname", "URI"]), "hostname": hostname(),
        "uri": pattern(string(1, 253), "^(([^:/?#]+):)(//([^/?#]*))([^?#]*)(\\?([^#]*))?(#(.*))?"),
    }));
    let alternative = rules(
        alternative,
        &[
            ("has(self.hostname) == (self.type == 'Hostname')", "hostname goes with its type"),
            ("has(self.uri) == (self.type == 'URI')", "uri goes with its type"),
        ],
    );
    let authority = object(json!({ "group!": group(), "kind!": kind(), "name!": name() }));
    let validation = object(json!({
        "caCertificateRefs": list(authority, 8), "wellKnownCACertificates": string(1, 253),
        "hostname!": precise_hostname(), "subjectAltNames": list(alternative, 5),
    }));
    let validation = rules(
        validation,
        &[(
            "(has(self.caCertificateRefs) && size(self.caCertificateRefs) > 0) != has(self.wellKnownCACertificates)",
            "either caCertificateRefs or wellKnownCACertificates has to be there",
        )],
    );
    let options = json!({ "type": "object", "maxProperties": 16, "additionalProperties": string(0, 4096) });
    let ancestor = object(json!({
        "ancestorRef!": parent_reference(), "controllerName!": controller_name(), "conditions!": conditions(),
    }));
    Definition {
        kind: "BackendTLSPolicy",
        plural: "backendtlspolicies",
        short_name: Some("btlspolicy"),
        is_namespaced: true,
        versions: &["v1"],
        columns: Vec::new(),
        spec: object(json!({ "targetRefs!": targets, "validation!": validation, "options": options })),
        status: Some(object(json!({ "ancestors!": list(ancestor, 16) }))),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

    use super::*;

    #[test]
    fn every_kind_that_is_followed_is_defined_with_a_stored_version() {
        let mut plurals = Vec::new();
        for value in all() {
            let definition: CustomResourceDefinition = serde_json::from_value(value).expect("a definition");
            let spec = definition.spec;
            assert_eq!(spec.versions.iter().filter(|version| version.storage).count(), 1, "{}", spec.names.plural);
            plurals.push(spec.names.plural);
        }
        assert_eq!(plurals, crate::gateway::objects::PLURALS);
    }
}
