//! The path within an image that is mounted, which CRI has since 1.33 and the published types used here have not.
//! Set by `kubelet`'s mounts; `remote` writes it where runtimes look for it.
//! Until then it is with the image's annotations, of which no runtime ever hears.

use prost::Message;

use crate::v1;

const ANNOTATION: &str = "minke.io/image-sub-path";

/// Mounts this of the image in place of its root. Without an image it means nothing.
pub fn set(mount: &mut v1::Mount, sub_path: &str) {
    if let Some(image) = &mut mount.image {
        image.annotations.insert(ANNOTATION.into(), sub_path.into());
    }
}

/// What `set` said.
pub fn get(mount: &v1::Mount) -> Option<&str> {
    mount.image.as_ref()?.annotations.get(ANNOTATION).map(String::as_str)
}

/// The request with what the published type lacks.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    /// A `ContainerConfig`.
    #[prost(bytes = "vec", tag = "2")]
    pub config: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<v1::PodSandboxConfig>,
}

/// The part of a `ContainerConfig` that is written here.
#[derive(Clone, PartialEq, Message)]
struct Mounts {
    #[prost(bytes = "vec", repeated, tag = "7")]
    mounts: Vec<Vec<u8>>,
}

/// The part of a `Mount` that the published type lacks.
#[derive(Clone, PartialEq, Message)]
struct SubPath {
    #[prost(string, tag = "10")]
    image_sub_path: String,
}

/// Fields of a message may come in any order, so those that are missing follow.
pub(crate) fn encode(mut config: v1::ContainerConfig) -> Vec<u8> {
    let encode_mount = |mut mount: v1::Mount| {
        let image_sub_path = get(&mount).unwrap_or_default().to_string();
        if let Some(image) = &mut mount.image {
            image.annotations.remove(ANNOTATION);
        }
        [mount.encode_to_vec(), SubPath { image_sub_path }.encode_to_vec()].concat()
    };
    let mounts = std::mem::take(&mut config.mounts).into_iter().map(encode_mount).collect();
    [config.encode_to_vec(), Mounts { mounts }.encode_to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_reads_the_path_and_everything_else_as_before() {
        let plain = v1::Mount { container_path: "/plain".into(), host_path: "/h".into(), ..v1::Mount::default() };
        let image = v1::ImageSpec { image: "sha256:1".into(), ..v1::ImageSpec::default() };
        let whole = v1::Mount { container_path: "/whole".into(), image: Some(image), ..v1::Mount::default() };
        let mut part = v1::Mount { container_path: "/part".into(), ..whole.clone() };
        set(&mut part, "etc/x");
        assert_eq!((get(&whole), get(&part)), (None, Some("etc/x")));
        let config = v1::ContainerConfig {
            command: vec!["c".into()],
            log_path: "l".into(),
            mounts: vec![plain.clone(), part, whole.clone()],
            ..v1::ContainerConfig::default()
        };
        let written = encode(config.clone());
        let part = v1::Mount { container_path: "/part".into(), ..whole.clone() };
        let expected = v1::ContainerConfig { mounts: vec![plain, part, whole], ..config };
        assert_eq!(v1::ContainerConfig::decode(written.as_slice()).unwrap(), expected);
        let mounts = Mounts::decode(written.as_slice()).unwrap().mounts;
        let paths: Vec<String> =
            mounts.iter().map(|mount| SubPath::decode(mount.as_slice()).unwrap().image_sub_path).collect();
        assert_eq!(paths, ["", "etc/x", ""]);
    }
}
