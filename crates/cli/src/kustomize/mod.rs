//! `kustomize`: objects from a kustomization and what it builds upon.
//! Start at `build`. `directory` reads kustomizations, `generators` makes ConfigMaps and Secrets, `transformers` changes
//! names, labels, namespaces, images and counts, `patches` and `replacements` change fields, `references` follows renames.
//! Files are read only below the kustomization that names them; nothing is fetched; Helm charts are refused.

mod directory;
mod field_paths;
mod generators;
mod patches;
mod references;
mod replacements;
mod sort_order;
#[cfg(test)]
mod tests;
mod transformers;

use serde_json::Value;

pub use self::directory::clean as clean_path;
use crate::generate::{name_hash::hash_of_contents, source_files::SourceFiles};

/// An object on its way through the kustomizations.
#[derive(Debug, Clone)]
pub struct Resource {
    pub object: Value,
    /// Names it had, oldest first; references to any of them mean this object.
    pub former_names: Vec<String>,
    pub needs_hash: bool,
}

impl Resource {
    pub fn new(object: Value) -> Self {
        Self { object, former_names: Vec::new(), needs_hash: false }
    }

    pub fn kind(&self) -> &str {
        self.object["kind"].as_str().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.object["metadata"]["namespace"].as_str().unwrap_or_default()
    }

    pub fn group_version(&self) -> (&str, &str) {
        let api_version = self.object["apiVersion"].as_str().unwrap_or_default();
        api_version.split_once('/').unwrap_or(("", api_version))
    }

    /// Whether it has or had this name.
    pub fn is_named(&self, name: &str) -> bool {
        self.name() == name || self.former_names.iter().any(|former| former == name)
    }

    pub fn rename(&mut self, name: String) {
        if name != self.name() {
            self.former_names.push(self.name().to_string());
            self.object["metadata"]["name"] = name.into();
        }
    }
}

/// What a kustomization makes, in the order in which it is printed, and what is said besides.
#[derive(Debug)]
pub struct Built {
    pub objects: Vec<Value>,
    pub warnings: Vec<String>,
}

/// Builds the kustomization of a directory.
pub fn build(path: &str, files: &impl SourceFiles) -> Result<Built, String> {
    let mut warnings = Vec::new();
    let mut resources = directory::load(path, files, &mut Vec::new(), &mut warnings)?;
    for resource in &mut resources {
        if resource.needs_hash {
            let name = format!("{}-{}", resource.name(), hash_of_contents(&resource.object));
            resource.rename(name);
        }
    }
    references::follow_renames(&mut resources);
    sort_order::SortOrder::of(&directory::sort_options(path, files)?)?.sort(&mut resources);
    warnings.dedup();
    Ok(Built { objects: resources.into_iter().map(|resource| resource.object).collect(), warnings })
}
