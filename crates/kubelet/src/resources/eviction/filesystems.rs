//! Which file systems the node's disk signals speak of: what is freed and who is counted when one of them is short.
//! Part of `eviction`.
//! Invariant: pure. Containers' writable layers are on the node's or on the images' file system; their thresholds are
//! that one's (tidy: `pure_files`).

use super::thresholds::{Signal, Threshold};

/// How the runtime has laid out its disks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystems {
    /// Images are elsewhere than the node's own files.
    pub dedicated_images: bool,
    /// Writable layers are elsewhere than images.
    pub split_layers: bool,
}

/// What of nobody's use is removed before a pod has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaim {
    pub containers: bool,
    pub images: bool,
}

/// What of a pod counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub layers: bool,
    pub logs_and_volumes: bool,
}

impl FileSystems {
    /// By the devices of the node's files, of images and of writable layers.
    pub fn of_devices(node: Option<u64>, images: Option<u64>, layers: Option<u64>) -> Self {
        let differs = |a: Option<u64>, b: Option<u64>| a.zip(b).is_some_and(|(a, b)| a != b);
        Self { dedicated_images: differs(node, images), split_layers: differs(images, layers) }
    }

    /// Whether writable layers are on the node's own file system.
    fn layers_on_node(self) -> bool {
        self.dedicated_images == self.split_layers
    }

    /// Those of containerfs follow from those of the file system it is on; others are left out.
    pub fn thresholds(self, configured: &[Threshold]) -> Vec<Threshold> {
        let derived = configured.iter().filter_map(|threshold| {
            let signal = match (threshold.signal, self.layers_on_node()) {
                (Signal::NodeFs, true) | (Signal::ImageFs, false) => Signal::ContainerFs,
                (Signal::NodeFsInodes, true) | (Signal::ImageFsInodes, false) => Signal::ContainerFsInodes,
                _ => return None,
            };
            Some(Threshold { signal, ..*threshold })
        });
        let own = |t: &&Threshold| !matches!(t.signal, Signal::ContainerFs | Signal::ContainerFsInodes);
        let mut all: Vec<Threshold> = configured.iter().filter(own).copied().chain(derived).collect();
        all.sort_by_key(|threshold| (threshold.signal, threshold.grace));
        all
    }

    pub fn reclaim(self, signal: Signal) -> Reclaim {
        let (node, images) = (
            matches!(signal, Signal::NodeFs | Signal::NodeFsInodes),
            matches!(signal, Signal::ImageFs | Signal::ImageFsInodes),
        );
        let layers = matches!(signal, Signal::ContainerFs | Signal::ContainerFsInodes);
        match (self.dedicated_images, self.split_layers) {
            _ if !(node || images || layers) => Reclaim { containers: false, images: false },
            (true, false) => Reclaim { containers: !node, images: !node },
            (true, true) => Reclaim { containers: !images, images },
            (false, _) => Reclaim { containers: true, images: true },
        }
    }

    pub fn counted(self, signal: Signal) -> Counted {
        let node = matches!(signal, Signal::NodeFs | Signal::NodeFsInodes);
        let images = matches!(signal, Signal::ImageFs | Signal::ImageFsInodes);
        match (self.dedicated_images, self.split_layers) {
            (true, false) => Counted { layers: !node, logs_and_volumes: node },
            (true, true) => Counted { layers: !images, logs_and_volumes: !images },
            (false, _) => Counted { layers: true, logs_and_volumes: true },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::resources::eviction::thresholds::Amount;

    #[test]
    fn what_is_short_decides_what_is_freed() {
        use Signal::{ContainerFs, ImageFs, NodeFs};
        // Containers, images, layers, logs and volumes.
        let check = |devices: [u64; 3], signal: Signal, expected: [bool; 4]| {
            let [node, images, layers] = devices.map(Some);
            let systems = FileSystems::of_devices(node, images, layers);
            let (reclaim, counted) = (systems.reclaim(signal), systems.counted(signal));
            let found = [reclaim.containers, reclaim.images, counted.layers, counted.logs_and_volumes];
            assert_eq!(found, expected, "{devices:?} {signal:?}");
        };
        for signal in [NodeFs, ImageFs, ContainerFs] {
            check([1, 1, 1], signal, [true; 4]);
        }
        check([1, 2, 2], NodeFs, [false, false, false, true]);
        check([1, 2, 2], ImageFs, [true, true, true, false]);
        check([1, 2, 2], ContainerFs, [true, true, true, false]);
        check([1, 2, 1], NodeFs, [true, false, true, true]);
        check([1, 2, 1], ImageFs, [false, true, false, false]);
        check([1, 2, 1], ContainerFs, [true, false, true, true]);
        let memory = FileSystems::default().reclaim(Signal::Memory);
        assert_eq!(memory, Reclaim { containers: false, images: false });
    }

    #[test]
    fn layers_have_the_thresholds_of_their_disk() {
        let of =
            |signal, least| Threshold { signal, least: Amount::Absolute(least), grace: Duration::ZERO, reclaim: None };
        let configured = [of(Signal::NodeFs, 1), of(Signal::ImageFs, 2), of(Signal::ContainerFs, 9)];
        let check = |devices: [u64; 3], expected: i64| {
            let [node, images, layers] = devices.map(Some);
            let found = FileSystems::of_devices(node, images, layers).thresholds(&configured);
            let layers: Vec<_> = found.iter().filter(|t| t.signal == Signal::ContainerFs).map(|t| t.least).collect();
            assert_eq!((found.len(), layers), (3, vec![Amount::Absolute(expected)]), "{devices:?}");
        };
        check([1, 1, 1], 1);
        check([1, 2, 2], 2);
        check([1, 2, 1], 1);
    }
}
