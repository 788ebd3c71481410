//! Describes the sources of volumes, of pods and of PersistentVolumes.
//! Used by `pod` and `storage`.
//! One row per source; a source without a row reads `<unknown>`.

use api::kinds::access_modes;
use serde_json::Value;

use super::{
    fields::{go_list, list, members, number, quantity, string, text, text_or, truth},
    is_empty,
    sections::{annotations, labels, shorten},
    writer::{Writer, put},
};

/// How a field is shown.
#[derive(Clone, Copy)]
enum Show {
    Text,
    Truth,
    Number,
    /// A list as Go prints it.
    List,
    /// A list joined by commas.
    Joined,
    /// A text, or this when it is absent.
    Or(&'static str),
    /// A reference to a Secret, as Go prints a pointer to one.
    Reference,
    Quantity,
    Map,
}

struct Source {
    field: &'static str,
    kind: &'static str,
    rows: &'static [(&'static str, &'static str, Show)],
}

const ISCSI: &[(&str, &str, Show)] = &[
    ("TargetPortal:", "targetPortal", Show::Text),
    ("IQN:", "iqn", Show::Text),
    ("Lun:", "lun", Show::Number),
    ("ISCSIInterface", "iscsiInterface", Show::Text),
    ("FSType:", "fsType", Show::Text),
    ("ReadOnly:", "readOnly", Show::Truth),
    ("Portals:", "portals", Show::List),
    ("DiscoveryCHAPAuth:", "chapAuthDiscovery", Show::Truth),
    ("SessionCHAPAuth:", "chapAuthSession", Show::Truth),
    ("SecretRef:", "secretRef", Show::Reference),
    ("InitiatorName:", "initiatorName", Show::Or("<none>")),
];
const DISK: [(&str, &str, Show); 2] = [("FSType:", "fsType", Show::Text), ("ReadOnly:", "readOnly", Show::Truth)];

const SOURCES: &[Source] = &[
    Source {
        field: "hostPath",
        kind: "HostPath (bare host directory volume)",
        rows: &[("Path:", "path", Show::Text), ("HostPathType:", "type", Show::Or("<none>"))],
    },
    Source {
        field: "emptyDir",
        kind: "EmptyDir (a temporary directory that shares a pod's lifetime)",
        rows: &[("Medium:", "medium", Show::Text), ("SizeLimit:", "sizeLimit", Show::Quantity)],
    },
    Source {
        field: "gcePersistentDisk",
        kind: "GCEPersistentDisk (a Persistent Disk resource in Google Compute Engine)",
        rows: &[
            ("PDName:", "pdName", Show::Text),
            ("FSType:", "fsType", Show::Text),
            ("Partition:", "partition", Show::Number),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "awsElasticBlockStore",
        kind: "AWSElasticBlockStore (a Persistent Disk resource in AWS)",
        rows: &[
            ("VolumeID:", "volumeID", Show::Text),
            ("FSType:", "fsType", Show::Text),
            ("Partition:", "partition", Show::Number),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "gitRepo",
        kind: "GitRepo (a volume that is pulled from git when the pod is created)",
        rows: &[("Repository:", "repository", Show::Text), ("Revision:", "revision", Show::Text)],
    },
    Source {
        field: "secret",
        kind: "Secret (a volume populated by a Secret)",
        rows: &[("SecretName:", "secretName", Show::Text), ("Optional:", "optional", Show::Truth)],
    },
    Source {
        field: "configMap",
        kind: "ConfigMap (a volume populated by a ConfigMap)",
        rows: &[("Name:", "name", Show::Text), ("Optional:", "optional", Show::Truth)],
    },
    Source {
        field: "nfs",
        kind: "NFS (an NFS mount that lasts the lifetime of a pod)",
        rows: &[
            ("Server:", "server", Show::Text),
            ("Path:", "path", Show::Text),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "iscsi",
        kind: "ISCSI (an ISCSI Disk resource that is attached to a kubelet's host machine and then exposed to the pod)",
        rows: ISCSI,
    },
    Source {
        field: "glusterfs",
        kind: "Glusterfs (a Glusterfs mount on the host that shares a pod's lifetime)",
        rows: &[
            ("EndpointsName:", "endpoints", Show::Text),
            ("Path:", "path", Show::Text),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "persistentVolumeClaim",
        kind: "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        rows: &[("ClaimName:", "claimName", Show::Text), ("ReadOnly:", "readOnly", Show::Truth)],
    },
    Source {
        field: "rbd",
        kind: "RBD (a Rados Block Device mount on the host that shares a pod's lifetime)",
        rows: &[
            ("CephMonitors:", "monitors", Show::List),
            ("RBDImage:", "image", Show::Text),
            ("FSType:", "fsType", Show::Text),
            ("RBDPool:", "pool", Show::Text),
            ("RadosUser:", "user", Show::Text),
            ("Keyring:", "keyring", Show::Text),
            ("SecretRef:", "secretRef", Show::Reference),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "quobyte",
        kind: "Quobyte (a Quobyte mount on the host that shares a pod's lifetime)",
        rows: &[
            ("Registry:", "registry", Show::Text),
            ("Volume:", "volume", Show::Text),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "azureDisk",
        kind: "AzureDisk (an Azure Data Disk mount on the host and bind mount to the pod)",
        rows: &[
            ("DiskName:", "diskName", Show::Text),
            ("DiskURI:", "diskURI", Show::Text),
            ("Kind: ", "kind", Show::Text),
            ("FSType:", "fsType", Show::Text),
            ("CachingMode:", "cachingMode", Show::Text),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "vsphereVolume",
        kind: "vSphereVolume (a Persistent Disk resource in vSphere)",
        rows: &[
            ("VolumePath:", "volumePath", Show::Text),
            ("FSType:", "fsType", Show::Text),
            ("StoragePolicyName:", "storagePolicyName", Show::Text),
        ],
    },
    Source {
        field: "cinder",
        kind: "Cinder (a Persistent Disk resource in OpenStack)",
        rows: &[("VolumeID:", "volumeID", Show::Text), DISK[0], DISK[1], ("SecretRef:", "secretRef", Show::Reference)],
    },
    Source {
        field: "photonPersistentDisk",
        kind: "PhotonPersistentDisk (a Persistent Disk resource in photon platform)",
        rows: &[("PdID:", "pdID", Show::Text), ("FSType:", "fsType", Show::Text)],
    },
    Source {
        field: "portworxVolume",
        kind: "PortworxVolume (a Portworx Volume resource)",
        rows: &[("VolumeID:", "volumeID", Show::Text)],
    },
    Source {
        field: "scaleIO",
        kind: "ScaleIO (a persistent volume backed by a block device in ScaleIO)",
        rows: &[
            ("Gateway:", "gateway", Show::Text),
            ("System:", "system", Show::Text),
            ("Protection Domain:", "protectionDomain", Show::Text),
            ("Storage Pool:", "storagePool", Show::Text),
            ("Storage Mode:", "storageMode", Show::Text),
            ("VolumeName:", "volumeName", Show::Text),
            DISK[0],
            DISK[1],
        ],
    },
    Source {
        field: "local",
        kind: "LocalVolume (a persistent volume backed by local storage on a node)",
        rows: &[("Path:", "path", Show::Text)],
    },
    Source {
        field: "cephfs",
        kind: "CephFS (a CephFS mount on the host that shares a pod's lifetime)",
        rows: &[
            ("Monitors:", "monitors", Show::List),
            ("Path:", "path", Show::Text),
            ("User:", "user", Show::Text),
            ("SecretFile:", "secretFile", Show::Text),
            ("SecretRef:", "secretRef", Show::Reference),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "storageos",
        kind: "StorageOS (a StorageOS Persistent Disk resource)",
        rows: &[
            ("VolumeName:", "volumeName", Show::Text),
            ("VolumeNamespace:", "volumeNamespace", Show::Text),
            DISK[0],
            DISK[1],
        ],
    },
    Source {
        field: "fc",
        kind: "FC (a Fibre Channel disk)",
        rows: &[("TargetWWNs:", "targetWWNs", Show::Joined), ("LUN:", "lun", Show::Or("<none>")), DISK[0], DISK[1]],
    },
    Source {
        field: "azureFile",
        kind: "AzureFile (an Azure File Service mount on the host and bind mount to the pod)",
        rows: &[
            ("SecretName:", "secretName", Show::Text),
            ("ShareName:", "shareName", Show::Text),
            ("ReadOnly:", "readOnly", Show::Truth),
        ],
    },
    Source {
        field: "flexVolume",
        kind: "FlexVolume (a generic volume resource that is provisioned/attached using an exec based plugin)",
        rows: &[
            ("Driver:", "driver", Show::Text),
            ("FSType:", "fsType", Show::Text),
            ("SecretRef:", "secretRef", Show::Reference),
            ("ReadOnly:", "readOnly", Show::Truth),
            ("Options:", "options", Show::Map),
        ],
    },
    Source {
        field: "flocker",
        kind: "Flocker (a Flocker volume mounted by the Flocker agent)",
        rows: &[("DatasetName:", "datasetName", Show::Text), ("DatasetUUID:", "datasetUUID", Show::Text)],
    },
    Source {
        field: "image",
        kind: "Image (a container image or OCI artifact)",
        rows: &[("Reference:", "reference", Show::Text), ("PullPolicy:", "pullPolicy", Show::Text)],
    },
];

fn shown(value: &Value, show: Show) -> String {
    match show {
        Show::Text => text(value),
        Show::Truth => truth(value).to_string(),
        Show::Number => number(value).to_string(),
        Show::List => go_list(value),
        Show::Joined => list(value).iter().map(text).collect::<Vec<_>>().join(", "),
        Show::Or(otherwise) => text_or(value, otherwise),
        Show::Reference if !value.is_object() => "nil".to_string(),
        Show::Reference => match value["namespace"].as_str() {
            Some(namespace) => format!("&SecretReference{{Name:{},Namespace:{namespace},}}", text(&value["name"])),
            None => format!("&LocalObjectReference{{Name:{},}}", text(&value["name"])),
        },
        Show::Quantity if quantity(value) == "0" => "<unset>".to_string(),
        Show::Quantity => quantity(value),
        Show::Map => super::fields::go_map(value),
    }
}

/// Writes the source that a volume has. `persistent` sources hold what a cluster-wide volume adds.
pub fn source(w: &mut Writer, volume: &Value, persistent: bool) {
    if let Some(found) = SOURCES.iter().find(|source| volume[source.field].is_object()) {
        let fields = &volume[found.field];
        let mut lines = format!("Type:\t{}\n", found.kind);
        for (i, (title, field, show)) in found.rows.iter().enumerate() {
            lines.push_str(&format!("    {title}\t{}\n", shown(&fields[*field], *show)));
            let added = match (found.field, i) {
                ("glusterfs", 0) => vec![("EndpointsNamespace:", text_or(&fields["endpointsNamespace"], "<unset>"))],
                ("azureFile", 0) => vec![("SecretNamespace:", text(&fields["secretNamespace"]))],
                ("scaleIO", 5) => vec![
                    ("SecretName:", text(&fields["secretRef"]["name"])),
                    ("SecretNamespace:", text(&fields["secretRef"]["namespace"])),
                ],
                _ => Vec::new(),
            };
            for (title, value) in added.into_iter().filter(|_| persistent) {
                lines.push_str(&format!("    {title}\t{value}\n"));
            }
        }
        w.write(2, &lines);
    } else if volume["csi"].is_object() {
        csi(w, &volume["csi"], persistent);
    } else if volume["projected"].is_object() {
        projected(w, &volume["projected"]);
    } else if volume["downwardAPI"].is_object() {
        w.write(2, "Type:\tDownwardAPI (a volume populated by information about the pod)\n    Items:\n");
        for item in list(&volume["downwardAPI"]["items"]) {
            for field in [&item["fieldRef"]["fieldPath"], &item["resourceFieldRef"]["resource"]] {
                if !field.is_null() {
                    put!(w, 3, "{} -> {}\n", text(field), text(&item["path"]));
                }
            }
        }
    } else if volume["ephemeral"].is_object() {
        w.write(
            2,
            "Type:\tEphemeralVolume (an inline specification for a volume that gets created and deleted with the pod)\n",
        );
        if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
            w.nested(2, |w| claim(w, &volume["ephemeral"]["volumeClaimTemplate"], None));
        }
    } else {
        w.write(1, "<unknown>\n");
    }
}

fn csi(w: &mut Writer, csi: &Value, persistent: bool) {
    let handle = match persistent {
        true => format!("    VolumeHandle:\t{}\n", text(&csi["volumeHandle"])),
        false => String::new(),
    };
    let (driver, kind, read_only) = (text(&csi["driver"]), text(&csi["fsType"]), truth(&csi["readOnly"]));
    put!(
        w,
        2,
        "Type:\tCSI (a Container Storage Interface (CSI) volume source)\n    Driver:\t{driver}\n    \
         FSType:\t{kind}\n{handle}    ReadOnly:\t{read_only}\n"
    );
    w.write(2, "VolumeAttributes:\t");
    let mut attributes = members(&csi["volumeAttributes"]).peekable();
    if attributes.peek().is_none() {
        w.write(0, "<none>\n");
    }
    for (i, (key, value)) in attributes.enumerate() {
        if i > 0 {
            w.write(2, "");
            w.write(2, "\t");
        }
        put!(w, 2, "{}\n", shorten(&format!("{key}={}", text(value)), 140));
    }
}

fn projected(w: &mut Writer, projected: &Value) {
    w.write(2, "Type:\tProjected (a volume that contains injected data from multiple sources)\n");
    for source in list(&projected["sources"]) {
        let named = |w: &mut Writer, title: &str, reference: &Value| {
            let (name, optional) = (text(&reference["name"]), truth(&reference["optional"]));
            put!(w, 2, "{title}:\t{name}\n    Optional:\t{optional}\n");
        };
        if source["secret"].is_object() {
            named(w, "SecretName", &source["secret"]);
        } else if source["downwardAPI"].is_object() {
            w.write(2, "DownwardAPI:\ttrue\n");
        } else if source["configMap"].is_object() {
            named(w, "ConfigMapName", &source["configMap"]);
        } else if source["serviceAccountToken"].is_object() {
            let seconds = number(&source["serviceAccountToken"]["expirationSeconds"]);
            put!(w, 2, "TokenExpirationSeconds:\t{seconds}\n");
        }
    }
}

pub fn volumes(w: &mut Writer, volumes: &Value, space: &str) {
    if is_empty(volumes) {
        put!(w, 0, "{space}Volumes:\t<none>\n");
        return;
    }
    put!(w, 0, "{space}Volumes:\n");
    let indent = if space.is_empty() { "" } else { " " };
    for volume in list(volumes) {
        put!(w, 1, "{indent}{}:\n", text(&volume["name"]));
        source(w, volume, false);
    }
}

/// A claim, or with no status the template of one.
pub fn claim(w: &mut Writer, claim: &Value, status: Option<&str>) {
    let (meta, spec) = (&claim["metadata"], &claim["spec"]);
    if status.is_some() {
        super::sections::name_and_namespace(w, claim);
    }
    put!(w, 0, "StorageClass:\t{}\n", storage_class(claim));
    if let Some(status) = status {
        put!(w, 0, "Status:\t{status}\n");
    }
    put!(w, 0, "Volume:\t{}\n", text(&spec["volumeName"]));
    labels(w, "Labels", &meta["labels"]);
    annotations(w, "Annotations", &meta["annotations"]);
    if status.is_some() {
        put!(w, 0, "Finalizers:\t{}\n", go_list(&meta["finalizers"]));
    }
    let (mut capacity, mut modes) = (String::new(), String::new());
    if !string(&spec["volumeName"]).is_empty() {
        modes = access_modes(&claim["status"]["accessModes"]);
        capacity = quantity(&claim["status"]["capacity"]["storage"]);
    }
    put!(w, 0, "Capacity:\t{capacity}\n");
    put!(w, 0, "Access Modes:\t{modes}\n");
    if !spec["volumeMode"].is_null() {
        put!(w, 0, "VolumeMode:\t{}\n", text(&spec["volumeMode"]));
    }
    let data_source = &spec["dataSource"];
    if data_source.is_object() {
        w.write(0, "DataSource:\n");
        for (title, field) in [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name")] {
            if field != "apiGroup" || !data_source[field].is_null() {
                put!(w, 1, "{title}:\t{}\n", text(&data_source[field]));
            }
        }
    }
}

/// The class of a claim or volume, by its old annotation first.
pub fn storage_class(object: &Value) -> String {
    let annotation = &object["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"];
    if annotation.is_null() { text(&object["spec"]["storageClassName"]) } else { text(annotation) }
}
