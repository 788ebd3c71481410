//! Files of one volume that would take each other's place: warned of, never refused.
//! Used by `warnings`.

use serde_json::Value;

use crate::kinds::common::access::{items, part, text};

/// A path in a volume and where it comes from.
#[derive(Clone, PartialEq)]
struct Entry {
    path: String,
    source: String,
}

impl Entry {
    fn shown(&self) -> String {
        match self.source.as_str() {
            "" => format!("{:?}", self.path),
            source => format!("{:?} ({source})", self.path),
        }
    }

    fn overlaps(&self, other: &Entry) -> bool {
        if self.path.is_empty() || other.path.is_empty() {
            return false;
        }
        let (own, others) = (format!("{}/", self.path), format!("{}/", other.path));
        own.starts_with(&others) || others.starts_with(&own)
    }
}

pub fn warnings(spec: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for volume in items(spec, "volumes") {
        let name = text(volume, "name");
        for (kind, field, title) in
            [("configMap", "name", "ConfigMap"), ("secret", "secretName", "Secret"), ("downwardAPI", "", "DownwardAPI")]
        {
            let Some(source) = part(volume, kind) else { continue };
            let described = match field {
                "" => title.to_string(),
                _ => format!("{title} {:?}", text(source, field)),
            };
            overlaps(&mut warnings, name, &described, entries(source, ""));
        }
        if let Some(projected) = part(volume, "projected") {
            let mut all = Vec::new();
            for source in items(projected, "sources") {
                if source.as_object().is_none_or(|fields| fields.values().all(Value::is_null)) {
                    warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
                    continue;
                }
                all.extend(projected_entries(source));
            }
            overlaps(&mut warnings, name, "Projected", all);
        }
    }
    warnings
}

fn overlaps(warnings: &mut Vec<String>, volume: &str, described: &str, entries: Vec<Entry>) {
    for (index, entry) in entries.iter().enumerate() {
        for other in entries[..index].iter().filter(|other| entry.overlaps(other)) {
            let what = format!("{} with {}", entry.shown(), other.shown());
            warnings.push(format!("volume {volume:?} ({described}): overlapping paths: {what}"));
        }
    }
}

fn entries(source: &Value, described: &str) -> Vec<Entry> {
    items(source, "items").iter().map(|item| entry(text(item, "path"), described)).collect()
}

fn entry(path: &str, source: &str) -> Entry {
    Entry { path: path.trim_end_matches('/').into(), source: source.into() }
}

fn projected_entries(source: &Value) -> Vec<Entry> {
    for (kind, title) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        if let Some(found) = part(source, kind).filter(|found| found.get("items").is_some()) {
            return entries(found, &format!("{title} {:?}", text(found, "name")));
        }
    }
    if let Some(found) = part(source, "downwardAPI").filter(|found| found.get("items").is_some()) {
        return entries(found, "DownwardAPI");
    }
    if let Some(found) = part(source, "serviceAccountToken") {
        return vec![entry(text(found, "path"), "ServiceAccountToken")];
    }
    if let Some(found) = part(source, "clusterTrustBundle") {
        let name = [text(found, "name"), text(found, "signerName")].into_iter().find(|n| !n.is_empty());
        let described = format!("ClusterTrustBundle {:?}", name.unwrap_or_default());
        return vec![entry(text(found, "path"), &described)];
    }
    Vec::new()
}
