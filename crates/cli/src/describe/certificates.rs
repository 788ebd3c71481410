//! Describes a CertificateSigningRequest.
//! Neighbours: `x509_parser` reads the request.
//! A request that cannot be parsed is an error, as upstream's.

use base64::Engine;
use serde_json::Value;
use x509_parser::{
    certification_request::X509CertificationRequest,
    extensions::{GeneralName, ParsedExtension},
    oid_registry::Oid,
    prelude::FromDer,
    x509::X509Name,
};

use super::{
    Context, Related,
    fields::{format_labels, list, name, number, rfc1123, string, text},
    writer::{Writer, put},
};

pub fn describe(w: &mut Writer, csr: &Value, _: &Related, context: &Context) -> Result<(), String> {
    let (meta, spec) = (&csr["metadata"], &csr["spec"]);
    let der =
        request_der(string(&spec["request"])).ok_or("Error parsing CSR: PEM block type must be CERTIFICATE REQUEST")?;
    let (_, request) =
        X509CertificationRequest::from_der(&der).map_err(|error| format!("Error parsing CSR: {error}"))?;
    put!(w, 0, "Name:\t{}\n", name(csr));
    put!(w, 0, "Labels:\t{}\n", format_labels(&meta["labels"]));
    put!(w, 0, "Annotations:\t{}\n", format_labels(&meta["annotations"]));
    put!(w, 0, "CreationTimestamp:\t{}\n", rfc1123(&meta["creationTimestamp"], &context.zone));
    put!(w, 0, "Requesting User:\t{}\n", text(&spec["username"]));
    if !string(&spec["signerName"]).is_empty() {
        put!(w, 0, "Signer:\t{}\n", string(&spec["signerName"]));
    }
    if !spec["expirationSeconds"].is_null() {
        let duration = api::printing::human_duration(number(&spec["expirationSeconds"]));
        put!(w, 0, "Requested Duration:\t{duration}\n");
    }
    put!(w, 0, "Status:\t{}\n", status(csr));
    subject(w, &request.certification_request_info.subject);
    alternative_names(w, &request);
    Ok(())
}

fn request_der(encoded: &str) -> Option<Vec<u8>> {
    let engine = base64::engine::general_purpose::STANDARD;
    let pem = String::from_utf8(engine.decode(encoded).ok()?).ok()?;
    let begin = "-----BEGIN CERTIFICATE REQUEST-----";
    let body = pem.split_once(begin)?.1.split_once("-----END")?.0;
    engine.decode(body.split_whitespace().collect::<String>()).ok()
}

fn status(csr: &Value) -> String {
    let has =
        |kind: &str| list(&csr["status"]["conditions"]).iter().any(|condition| string(&condition["type"]) == kind);
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_string();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !string(&csr["status"]["certificate"]).is_empty() {
        status.push_str(",Issued");
    }
    status
}

fn values(name: &X509Name, id: &[u64]) -> Vec<String> {
    let Ok(id) = Oid::from(id) else { return Vec::new() };
    name.iter_by_oid(&id).filter_map(|attribute| attribute.as_str().ok().map(str::to_string)).collect()
}

fn value_list(w: &mut Writer, title: &str, values: Vec<String>) {
    if !values.is_empty() {
        put!(w, 0, "\t{title}:\t{}\n", values.join("\n\t\t"));
    }
}

fn subject(w: &mut Writer, subject: &X509Name) {
    w.write(0, "Subject:\n");
    for (title, id) in [("Common Name", 3), ("Serial Number", 5)] {
        put!(w, 0, "\t{title}:\t{}\n", values(subject, &[2, 5, 4, id]).pop().unwrap_or_default());
    }
    let lists = [
        ("Organization", 10),
        ("Organizational Unit", 11),
        ("Country", 6),
        ("Locality", 7),
        ("Province", 8),
        ("StreetAddress", 9),
        ("PostalCode", 17),
    ];
    for (title, id) in lists {
        value_list(w, title, values(subject, &[2, 5, 4, id]));
    }
}

fn alternative_names(w: &mut Writer, request: &X509CertificationRequest) {
    let mut names: [(&str, Vec<String>); 4] =
        [("DNS Names", vec![]), ("Email Addresses", vec![]), ("URIs", vec![]), ("IP Addresses", vec![])];
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(given) = extension else { continue };
        for name in &given.general_names {
            match name {
                GeneralName::DNSName(name) => names[0].1.push(name.to_string()),
                GeneralName::RFC822Name(name) => names[1].1.push(name.to_string()),
                GeneralName::URI(uri) => names[2].1.push(uri.to_string()),
                GeneralName::IPAddress(bytes) => names[3].1.extend(address(bytes)),
                _ => {}
            }
        }
    }
    if names.iter().any(|(_, listed)| !listed.is_empty()) {
        w.write(0, "Subject Alternative Names:\n");
    }
    for (title, listed) in names {
        value_list(w, title, listed);
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::Ipv4Addr::from(four).to_string());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|sixteen| std::net::Ipv6Addr::from(sixteen).to_string())
}
