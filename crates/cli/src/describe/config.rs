//! Describes ConfigMaps, Secrets and ServiceAccounts.
//! Neighbours: `sections`.
//! A Secret shows how long its values are, never what they hold, but for service account tokens as upstream.

use base64::Engine;
use serde_json::Value;

use super::{
    Context, Related,
    fields::{list, members, string, text},
    sections::{labels_and_annotations, name_and_namespace},
    writer::{Writer, put},
};

fn decoded(value: &Value) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(string(value)).unwrap_or_default()
}

pub fn config_map(w: &mut Writer, map: &Value, _: &Related, _: &Context) -> Result<(), String> {
    name_and_namespace(w, map);
    labels_and_annotations(w, map);
    w.write(0, "\nData\n====\n");
    for (key, value) in members(&map["data"]) {
        put!(w, 0, "{key}:\n----\n{}\n\n", text(value));
    }
    w.write(0, "\nBinaryData\n====\n");
    for (key, value) in members(&map["binaryData"]) {
        put!(w, 0, "{key}: {} bytes\n", decoded(value).len());
    }
    w.write(0, "\n");
    Ok(())
}

pub fn secret(w: &mut Writer, secret: &Value, _: &Related, _: &Context) -> Result<(), String> {
    name_and_namespace(w, secret);
    labels_and_annotations(w, secret);
    put!(w, 0, "\nType:\t{}\n", text(&secret["type"]));
    w.write(0, "\nData\n====\n");
    for (key, value) in members(&secret["data"]) {
        let value = decoded(value);
        if key == "token" && string(&secret["type"]) == "kubernetes.io/service-account-token" {
            put!(w, 0, "{key}:\t{}\n", String::from_utf8_lossy(&value));
        } else {
            put!(w, 0, "{key}:\t{} bytes\n", value.len());
        }
    }
    Ok(())
}

pub fn service_account(w: &mut Writer, account: &Value, _: &Related, _: &Context) -> Result<(), String> {
    name_and_namespace(w, account);
    labels_and_annotations(w, account);
    let names: Vec<String> = list(&account["imagePullSecrets"]).iter().map(|secret| text(&secret["name"])).collect();
    if names.is_empty() {
        w.write(0, "Image pull secrets:\t<none>\n");
    }
    for (i, name) in names.iter().enumerate() {
        let title = if i == 0 { "Image pull secrets:" } else { "                   " };
        put!(w, 0, "{title}\t{name}\n");
    }
    Ok(())
}
