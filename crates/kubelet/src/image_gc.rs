//! Removes unused images when the disk they are on gets full.
//! Run by `housekeeping`.
//! Invariant: never removes an image that a container uses, that is pinned, or that is the sandbox's.

use std::collections::HashSet;

use cri::v1;

use crate::pod_workers::PodWorkers;

pub async fn collect(workers: &PodWorkers) {
    let shared = &workers.shared;
    let runtime = &shared.runtime.runtime;
    let Ok(info) = runtime.image_fs_info().await else { return };
    let place = info.image_filesystems.first().and_then(|fs| fs.fs_id.as_ref()).map(|id| id.mountpoint.clone());
    let Some(Ok(fs)) = place.map(|place| nix::sys::statvfs::statvfs(place.as_str())) else { return };
    let (total, free) = (fs.blocks() * fs.fragment_size(), fs.blocks_available() * fs.fragment_size());
    let wanted = to_free(total, free, shared.config.image_gc_high_percent, shared.config.image_gc_low_percent);
    if wanted == 0 {
        return;
    }
    let (Ok(images), Ok(containers)) = (runtime.list_images(None).await, runtime.list_containers(None).await) else {
        return;
    };
    let used: HashSet<String> = containers
        .into_iter()
        .flat_map(|c| [c.image_ref, c.image.map(|i| i.image).unwrap_or_default()])
        .chain([shared.config.sandbox_image.clone()])
        .collect();
    let mut freed = 0;
    for image in unused(images, &used) {
        if freed >= wanted {
            break;
        }
        let spec = v1::ImageSpec { image: image.id.clone(), ..Default::default() };
        match runtime.remove_image(spec).await {
            Ok(()) => freed += image.size,
            Err(error) => tracing::warn!(image = image.id, %error, "failed to remove an image"),
        }
    }
    if freed < wanted {
        let about = client::reference(&*shared.node.lock());
        let message = format!(
            "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found \
             {freed} bytes eligible to free."
        );
        shared.recorder.warning(&about, "FreeDiskSpaceFailed", message);
    }
}

/// Bytes to free so that usage falls to the lower mark, once it has passed the higher one.
fn to_free(total: u64, free: u64, high_percent: u8, low_percent: u8) -> u64 {
    if total == 0 || (total - free) * 100 / total < u64::from(high_percent) {
        return 0;
    }
    let target = total * (100 - u64::from(low_percent.min(100))) / 100;
    target.saturating_sub(free)
}

/// The largest first: fewest removals.
fn unused(images: Vec<v1::Image>, used: &HashSet<String>) -> Vec<v1::Image> {
    let names = |image: &v1::Image| -> Vec<String> {
        [&image.repo_tags[..], &image.repo_digests[..], std::slice::from_ref(&image.id)].concat()
    };
    let mut list: Vec<v1::Image> =
        images.into_iter().filter(|i| !i.pinned && !names(i).iter().any(|name| used.contains(name))).collect();
    list.sort_by_key(|image| std::cmp::Reverse(image.size));
    list
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
}
