//! Ownership of `replicas` as the scale subresource sees it, and back.
//! Used by `apiserver` on the scale endpoint of every kind that has one.
//! Only the path of the replicas ever moves.

use serde_json::Value;

use super::{
    managers::{Identity, Managers},
    set::Set,
};

const SCALE_VERSION: &str = "autoscaling/v1";
const REPLICAS_OF_SCALE: &str = "spec.replicas";

/// The entries of an object that own its replicas, as entries of a Scale. `replicas`: the dotted path in the object.
pub fn to_scale(parent: Option<&Value>, replicas: &str) -> Managers {
    let path: Vec<&str> = replicas.split('.').collect();
    let mut managers = Managers::parse(parent).unwrap_or_default();
    managers.0.retain(|manager| manager.set.has_fields(&path));
    for manager in &mut managers.0 {
        manager.api_version = SCALE_VERSION.into();
        manager.set = Set::of_paths(&[REPLICAS_OF_SCALE]);
    }
    managers
}

/// The entries of the object after a Scale with these entries was written.
pub fn from_scale(parent: Option<&Value>, scale: Option<&Value>, api_version: &str, replicas: &str) -> Managers {
    let path: Vec<&str> = replicas.split('.').collect();
    let moved = Set::of_paths(&[replicas]);
    let mut scale = Managers::parse(scale).unwrap_or_default();
    let mut result = Managers::default();
    for mut manager in Managers::parse(parent).unwrap_or_default().0 {
        // Who no longer owns the replicas of the Scale lost them. Its version is another there.
        if manager.set.has_fields(&path) {
            let same = |other: &Identity| Identity { api_version: manager.who.api_version.clone(), ..other.clone() };
            match scale.0.iter().position(|m| same(&m.who) == manager.who) {
                Some(at) => drop(scale.0.remove(at)),
                None => manager.set = manager.set.difference(&moved),
            }
        }
        if !manager.set.is_empty() {
            result.0.push(manager);
        }
    }
    let path_in_scale: Vec<&str> = REPLICAS_OF_SCALE.split('.').collect();
    for mut manager in scale.0 {
        if manager.set.has_fields(&path_in_scale) {
            manager.set = moved.clone();
            manager.api_version = api_version.into();
            if !manager.who.api_version.is_empty() {
                manager.who.api_version = api_version.into();
            }
            result.0.push(manager);
        }
    }
    result
}
