//! Keeps over a restart what pods were granted and what of it is in effect: their status may be behind, or behind what
//! is asked for now.
//! Used by `allocation_manager`, which says for whom.
//! A file that is torn or a stranger's is as good as none, and is never written in place.

use std::{collections::BTreeMap, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::resources::allocation::Allocation;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeptAllocation {
    pub granted: Allocation,
    /// By container, as far as it was put into effect since it was first kept.
    pub in_effect: Allocation,
}

/// By the pods' UIDs.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    pods: BTreeMap<String, KeptAllocation>,
}

pub fn load(file: &Path) -> BTreeMap<String, KeptAllocation> {
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %file.display(), %error, "failed to read what pods were granted");
            }
            return BTreeMap::new();
        }
    };
    serde_json::from_slice::<State>(&text).map(|state| state.pods).unwrap_or_else(|error| {
        tracing::warn!(file = %file.display(), %error, "what pods were granted is taken from their status");
        BTreeMap::new()
    })
}

pub fn save(file: &Path, pods: BTreeMap<String, KeptAllocation>) -> io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(&State { pods })?)?;
    std::fs::rename(new, file)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_whole_file_of_our_own_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("granted_resources");
        let resources = |cpu: &str| serde_json::from_value(json!({"requests": {"cpu": cpu}})).unwrap();
        let of = |cpu: &str| Allocation::from([("a".to_string(), resources(cpu))]);
        let pods = BTreeMap::from([("uid".to_string(), KeptAllocation { granted: of("2"), in_effect: of("1") })]);
        assert!(load(&file).is_empty());
        save(&file, BTreeMap::new()).unwrap();
        save(&file, pods.clone()).unwrap();
        assert_eq!(load(&file), pods);
        let whole = std::fs::read_to_string(&file).unwrap();
        for text in ["", &whole[..whole.len() / 2], r#"{"data":"{}","checksum":7}"#, r#"{"pods":{"uid":7}}"#] {
            std::fs::write(&file, text).unwrap();
            assert!(load(&file).is_empty(), "{text}");
        }
    }
}
