//! Removes unused images when the disk they are on gets full.
//! Run by `pod_cleanup`; `eviction` asks for it before it ends a pod.
//! Never removes an image that a container uses, that is pinned, that is the sandbox's, or that has only just come.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use cri::v1;
use parking_lot::Mutex;

use crate::{files::disk::Disk, node::pod_metrics::IMAGES_COLLECTED, pod::pod_workers::PodWorkers};

const FOR_SPACE: &str = "space";
const FOR_AGE: &str = "age";

/// When an image was first seen and last in use, on the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    first: Duration,
    used: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum ImageGcError {
    #[error(transparent)]
    Runtime(#[from] cri::Error),
    #[error(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {total} used). Failed to free \
         sufficient space by deleting unused images (freed {freed_bytes} bytes). Investigate disk usage, as it could be \
         used by active images, logs, volumes, or other data."
    )]
    TooFull { used_percent: u64, total: String, freed_bytes: u64 },
}

impl ImageGcError {
    pub fn event_reason(&self) -> &'static str {
        "ImageGCFailed"
    }
}

#[derive(Default)]
pub struct ImageGc {
    seen: Mutex<HashMap<String, Seen>>,
}

impl ImageGc {
    /// Frees what brings usage back below the marks, if it has passed them.
    pub async fn collect(&self, workers: &PodWorkers) -> Result<(), ImageGcError> {
        let shared = &workers.shared;
        let runtime = &shared.runtime.runtime;
        let unused = self.detect_images(workers).await?;
        let config = &shared.config;
        let unused = match config.image_max_age {
            Some(age) => self.remove_older(workers, unused, age).await,
            None => unused,
        };
        let info = runtime.image_fs_info().await?;
        let place = info.image_filesystems.first().and_then(|fs| fs.fs_id.as_ref()).map(|id| id.mountpoint.clone());
        // A runtime that does not say where images are leaves nothing to measure.
        let Some(disk) = place.and_then(|place| Disk::measure(place.as_ref())) else { return Ok(()) };
        let wanted = to_free(disk.bytes, disk.bytes_free, config.image_gc_high_percent, config.image_gc_low_percent);
        if wanted == 0 {
            return Ok(());
        }
        let freed = remove(workers, unused, wanted, FOR_SPACE).await;
        if freed >= wanted {
            return Ok(());
        }
        let error = too_full(disk.bytes, disk.bytes_free, freed);
        shared.recorder.warning(&client::reference(&*shared.node.lock()), "FreeDiskSpaceFailed", error.to_string());
        Err(error)
    }

    /// Removes those unused for longer than `age`; the rest is left to the marks.
    async fn remove_older(&self, workers: &PodWorkers, unused: Vec<v1::Image>, age: Duration) -> Vec<v1::Image> {
        let now = workers.shared.env.monotonic();
        let (old, rest): (Vec<_>, Vec<_>) = {
            let seen = self.seen.lock();
            let since = |image: &v1::Image| seen.get(&image.id).map_or(now, |s| s.used.max(s.first));
            unused.into_iter().partition(|image| now.saturating_sub(since(image)) > age)
        };
        remove(workers, old, u64::MAX, FOR_AGE).await;
        rest
    }

    /// Frees all it can; the number of bytes.
    pub async fn remove_all_unused(&self, workers: &PodWorkers) -> u64 {
        match self.detect_images(workers).await {
            Ok(unused) => remove(workers, unused, u64::MAX, FOR_SPACE).await,
            Err(_) => 0,
        }
    }

    /// Notes which images there are and are in use; those that may go, in the order of going.
    async fn detect_images(&self, workers: &PodWorkers) -> cri::Result<Vec<v1::Image>> {
        let shared = &workers.shared;
        let runtime = &shared.runtime.runtime;
        let (images, containers) = tokio::try_join!(runtime.list_images(None), runtime.list_containers(None))?;
        let used: HashSet<String> = containers
            .into_iter()
            .flat_map(|c| [c.image_ref, c.image_id, c.image.map(|i| i.image).unwrap_or_default()])
            .chain([shared.config.sandbox_image.clone()])
            .filter(|name| !name.is_empty())
            .collect();
        Ok(unused(images, &used, &mut self.seen.lock(), shared.env.monotonic(), shared.config.image_min_age))
    }
}

/// `reason` is the metrics' word for why they go.
async fn remove(workers: &PodWorkers, unused: Vec<v1::Image>, wanted: u64, reason: &str) -> u64 {
    let mut freed = 0;
    for image in unused {
        if freed >= wanted {
            break;
        }
        tracing::info!(image = image.id, names = ?image.repo_tags, "removing an unused image");
        let spec = v1::ImageSpec { image: image.id.clone(), ..Default::default() };
        match workers.shared.runtime.runtime.remove_image(spec).await {
            Ok(()) => {
                workers.shared.images.forget_image(&image.id);
                workers.shared.metrics.count(&IMAGES_COLLECTED, &[reason]);
                freed += image.size;
            }
            Err(error) => tracing::warn!(image = image.id, %error, "failed to remove an image"),
        }
    }
    if freed > 0 {
        workers.shared.images.invalidate();
    }
    freed
}

fn too_full(total: u64, free: u64, freed_bytes: u64) -> ImageGcError {
    ImageGcError::TooFull { used_percent: 100 - free * 100 / total.max(1), total: in_units(total), freed_bytes }
}

fn in_units(bytes: u64) -> String {
    let size = bytes as f64;
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >= 1 << shift);
    unit.map_or_else(|| format!("{bytes} B"), |(name, shift)| format!("{:.1} {name}", size / (1u64 << shift) as f64))
}

/// Bytes to free so that usage falls to the lower mark, once it has passed the higher one.
fn to_free(total: u64, free: u64, high_percent: u8, low_percent: u8) -> u64 {
    if total == 0 || (total - free) * 100 / total < u64::from(high_percent) {
        return 0;
    }
    let target = total * (100 - u64::from(low_percent.min(100))) / 100;
    target.saturating_sub(free)
}

/// The longest unused first, and among equals the one that came first.
fn unused(
    images: Vec<v1::Image>,
    used: &HashSet<String>,
    seen: &mut HashMap<String, Seen>,
    now: Duration,
    youngest: Duration,
) -> Vec<v1::Image> {
    let present: HashSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
    seen.retain(|id, _| present.contains(id.as_str()));
    let mut list = Vec::new();
    for image in images {
        let names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
        let in_use = names.into_iter().any(|name| used.contains(name));
        let entry = seen.entry(image.id.clone()).or_insert(Seen { first: now, used: Duration::ZERO });
        if in_use {
            entry.used = now;
        } else if !image.pinned && now - entry.first >= youngest {
            list.push((entry.used, entry.first, image));
        }
    }
    list.sort_by_key(|(used, first, image)| (*used, *first, std::cmp::Reverse(image.size)));
    list.into_iter().map(|(_, _, image)| image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_freed_below_the_mark() {
        let check = |total, free, expected| assert_eq!(to_free(total, free, 85, 80), expected, "{total} {free}");
        check(1000, 500, 0);
        check(1000, 160, 0);
        check(1000, 150, 50);
        check(1000, 0, 200);
        check(0, 0, 0);
    }

    #[test]
    fn a_disk_that_stays_full_is_told_of_in_units() {
        assert!(too_full(10 << 30, 1 << 30, 7).to_string().starts_with(
            "Insufficient free disk space on the node's image filesystem (90% of 10.0 GiB used). Failed to free \
             sufficient space by deleting unused images (freed 7 bytes). "
        ));
        for (bytes, expected) in [(12, "12 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")] {
            assert_eq!(in_units(bytes), expected);
        }
    }

    #[test]
    fn images_go_in_the_order_of_their_last_use() {
        let image = |id: &str, size, pinned| v1::Image {
            id: id.into(),
            repo_tags: vec![format!("{id}:1")],
            size,
            pinned,
            ..Default::default()
        };
        let mut seen = HashMap::new();
        let mut check = |seconds, used: &[&str], expected: &[&str]| {
            let images = vec![image("a", 1, false), image("b", 2, false), image("c", 3, false), image("p", 9, true)];
            let used = used.iter().map(ToString::to_string).collect();
            let list = unused(images, &used, &mut seen, Duration::from_secs(seconds), Duration::from_secs(120));
            assert_eq!(list.iter().map(|i| i.id.as_str()).collect::<Vec<_>>(), expected, "at {seconds}");
        };
        // Too young, whoever uses it.
        check(10, &["b:1"], &[]);
        check(200, &["a:1"], &["c", "b"]);
        check(300, &[], &["c", "b", "a"]);
        check(400, &["c"], &["b", "a"]);
    }
}
