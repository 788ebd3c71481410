//! `minke image`: the images on the cluster's nodes on this machine.
//! Over CRI where that can, else containerd's own client (`images`).
//! What is asked for every node is done on every node, or says on which it failed.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use cri::{Runtime, v1::ImageSpec};

use crate::{
    cluster::instance::Instance,
    commands::{images, report::Display},
    flags::{DataDirectory, Image},
};

/// A containerd of the cluster: of which node, and its socket.
type NodeRuntime = (String, PathBuf);

pub async fn run(command: Image) -> Result<()> {
    match command {
        Image::Import { data, files } => import(&data, &files).await,
        Image::Ls { data } => list(&data).await,
        Image::Rm { data, images } => remove(&data, &images).await,
        Image::Pull { data, images } => pull(&data, &images).await,
        Image::Push { data, image, target } => push(&data, &image, target.as_deref()).await,
        Image::Save { data, output, images } => save(&data, &output, &images).await,
    }
}

/// The sockets of every containerd of the cluster on this machine. A stopped node has none.
fn runtimes(data: &DataDirectory) -> Result<Vec<NodeRuntime>> {
    let instance: Instance = data.instance();
    let own = ("this machine".to_string(), instance.containerd_socket());
    let others = instance.nodes().into_iter().map(|(name, node)| (format!("node {name}"), node.containerd_socket()));
    let found: Vec<_> = std::iter::once(own).chain(others).filter(|(_, socket)| socket.exists()).collect();
    if found.is_empty() {
        bail!("no cluster runs in {}: start it with `minke up`", data.path.display());
    }
    Ok(found)
}

fn connect(socket: &std::path::Path) -> cri::RemoteRuntime {
    cri::RemoteRuntime::new(&socket.display().to_string(), None)
}

async fn import(data: &DataDirectory, files: &[PathBuf]) -> Result<()> {
    let runtimes = runtimes(data)?;
    let display = Display::new("importing");
    for file in files {
        let (archive, _kept) = images::plain(file)?;
        let mut names = Vec::new();
        for (node, socket) in &runtimes {
            display.waiting(&format!("importing {} into {node}", file.display()));
            names = images::import(socket, &archive).await.with_context(|| format!("on {node}"))?;
        }
        if names.is_empty() {
            bail!("{} holds no image for this machine", file.display());
        }
        for name in names {
            println!("{name}");
        }
    }
    display.finish();
    Ok(())
}

async fn list(data: &DataDirectory) -> Result<()> {
    let runtimes = runtimes(data)?;
    for (node, socket) in &runtimes {
        if runtimes.len() > 1 {
            println!("{node}:");
        }
        images::list(socket).await.with_context(|| format!("{node} does not answer"))?;
    }
    Ok(())
}

async fn remove(data: &DataDirectory, names: &[String]) -> Result<()> {
    let runtimes = runtimes(data)?;
    for name in names {
        let spec = ImageSpec { image: name.clone(), ..ImageSpec::default() };
        let mut removed = 0;
        for (node, socket) in &runtimes {
            let runtime = connect(socket);
            let found = runtime.image_status(spec.clone()).await.with_context(|| format!("{node} does not answer"))?;
            let Some(found) = found else { continue };
            let full = full_reference(name);
            let is_tag = found.repo_tags.contains(&full);
            if !is_tag && !is_id_or_digest(name, &full, &found.id, &found.repo_digests) {
                // The runtime still finds it by a name that has just gone: the image is somebody else's by now.
                continue;
            }
            // An image with other names only loses this one; the last takes the image along.
            let done = match is_tag && found.repo_tags.len() > 1 {
                true => images::untag(socket, &full).await,
                false => {
                    let by_id = ImageSpec { image: found.id, ..ImageSpec::default() };
                    runtime.remove_image(by_id).await.map_err(anyhow::Error::from)
                }
            };
            done.with_context(|| format!("failed to remove {name} from {node}"))?;
            removed += 1;
        }
        match removed {
            0 => bail!("no node has an image {name}: `minke image ls` lists them"),
            _ => println!("{name} removed"),
        }
    }
    Ok(())
}

/// Whether the image was named by itself, not by a tag.
fn is_id_or_digest(name: &str, full: &str, id: &str, digests: &[String]) -> bool {
    const SHORT_ID_CHARS: usize = 12;
    let (wanted, id) = (name.trim_start_matches("sha256:"), id.trim_start_matches("sha256:"));
    (wanted.len() >= SHORT_ID_CHARS && id.starts_with(wanted)) || digests.iter().any(|digest| digest == full)
}

async fn pull(data: &DataDirectory, names: &[String]) -> Result<()> {
    let runtimes = runtimes(data)?;
    let display = Display::new("pulling");
    for name in names {
        for (node, socket) in &runtimes {
            display.waiting(&format!("pulling {name} onto {node}"));
            let spec = ImageSpec { image: name.clone(), ..ImageSpec::default() };
            connect(socket).pull_image(spec, None, None).await.with_context(|| {
                format!(
                    "failed to pull {name} onto {node}: is the name right, and can its registry be reached from here?"
                )
            })?;
        }
        println!("{}", full_reference(name));
    }
    display.finish();
    Ok(())
}

/// The first node that has it; most images are on the first.
async fn holder<'a>(runtimes: &'a [NodeRuntime], name: &str) -> Result<&'a NodeRuntime> {
    for runtime in runtimes {
        let spec = ImageSpec { image: name.to_string(), ..ImageSpec::default() };
        let found = connect(&runtime.1).image_status(spec).await;
        if found.with_context(|| format!("{} does not answer", runtime.0))?.is_some() {
            return Ok(runtime);
        }
    }
    bail!("no node has an image {name}: `minke image ls` lists them, `minke image import` and `pull` bring one")
}

async fn push(data: &DataDirectory, name: &str, target: Option<&str>) -> Result<()> {
    let runtimes = runtimes(data)?;
    let (_, socket) = holder(&runtimes, name).await?;
    let (local, remote) = (full_reference(name), full_reference(target.unwrap_or(name)));
    let display = Display::new("pushing");
    display.waiting(&format!("pushing {remote}"));
    images::push(socket, &data.instance().data.join("registries"), &local, &remote).await?;
    display.finish();
    println!("{remote}");
    Ok(())
}

async fn save(data: &DataDirectory, output: &std::path::Path, names: &[String]) -> Result<()> {
    let runtimes = runtimes(data)?;
    let (_, socket) = holder(&runtimes, &names[0]).await?;
    let references: Vec<String> = names.iter().map(|name| full_reference(name)).collect();
    let display = Display::new("saving");
    display.waiting(&format!("writing {}", output.display()));
    images::export(socket, output, &references).await?;
    display.finish();
    println!("{}", output.display());
    Ok(())
}

/// As containerd keeps it: with the registry, and a tag if it has neither tag nor digest.
fn full_reference(name: &str) -> String {
    let (first, rest) = name.split_once('/').unwrap_or((name, ""));
    let is_host = !rest.is_empty() && (first.contains(['.', ':']) || first == "localhost");
    let named = match (is_host, rest.is_empty()) {
        (true, _) => name.to_string(),
        (false, true) => format!("docker.io/library/{name}"),
        (false, false) => format!("docker.io/{name}"),
    };
    let last = named.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) { named } else { format!("{named}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_containerd_keeps_them() {
        let check = |name: &str, full: &str| assert_eq!(full_reference(name), full);
        check("busybox", "docker.io/library/busybox:latest");
        check("team/app:1", "docker.io/team/app:1");
        check("localhost:5000/app", "localhost:5000/app:latest");
        check("localhost/app:2", "localhost/app:2");
        check("minke.local/demo:1", "minke.local/demo:1");
        check("ghcr.io/a/b@sha256:0", "ghcr.io/a/b@sha256:0");
    }

    #[test]
    fn an_image_is_named_by_its_id_or_digest() {
        let (id, digest) = ("sha256:0123456789abcdef", "docker.io/library/a@sha256:77");
        let check = |name: &str, full: &str, expected: bool| {
            assert_eq!(is_id_or_digest(name, full, id, &[digest.to_string()]), expected, "{name}");
        };
        check("sha256:0123456789abcdef", "", true);
        check("0123456789ab", "", true);
        check("0123456789", "", false);
        check("a@sha256:77", digest, true);
        check("a:1", "docker.io/library/a:1", false);
    }
}
