//! `kubectl cp`: files to and from containers, as tar streams through `exec`.
//! A row of `verbs::ROOT`.
//! Nothing is ever written outside the destination, whatever the other side's tar says.

use std::{
    cell::RefCell,
    path::{Component, Path, PathBuf},
};

use super::{
    channels::{self, Streams},
    containers::{choose, pod},
    exec::{PROTOCOLS, Remote, path},
};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, int, string},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    string("container", "", "Container of the pod").short('c'),
    boolean("no-preserve", "false", "Do not keep owners and permissions in the container"),
    int(
        "retries",
        "0",
        "How often a broken copy from a container is tried again; 0 is never, a negative number for ever",
    ),
];

pub static COMMAND: Command = Command {
    name: "cp",
    aliases: &[],
    usage: "<file-spec-src> <file-spec-dest> [options]",
    about: "Copy files and directories to and from containers",
    flags: &[FLAGS],
    commands: &[],
    run: run!(cp),
};

#[derive(Debug, PartialEq)]
struct Place {
    namespace: String,
    pod: String,
    path: String,
}

fn place(text: &str) -> Result<Place> {
    let Some((pod, path)) = text.split_once(':').filter(|(pod, _)| !pod.starts_with(['.', '/'])) else {
        return Ok(Place { namespace: String::new(), pod: String::new(), path: text.to_string() });
    };
    let (namespace, pod) = match pod.split('/').collect::<Vec<_>>().as_slice() {
        [pod] => (String::new(), pod.to_string()),
        [namespace, pod] => (namespace.to_string(), pod.to_string()),
        _ => return Err(Failure::message("filespec must match the canonical format: [[namespace/]pod:]file/path")),
    };
    if pod.is_empty() || path.is_empty() {
        return Err(Failure::message("filespec must match the canonical format: [[namespace/]pod:]file/path"));
    }
    Ok(Place { namespace, pod, path: path.to_string() })
}

async fn cp(session: &Session, matches: &Matches) -> Result<()> {
    let [source, destination] = matches.args.as_slice() else {
        return Err(Failure::message("source and destination are required"));
    };
    let (source, destination) = (place(source)?, place(destination)?);
    match (source.pod.is_empty(), destination.pod.is_empty()) {
        (false, false) => Err(Failure::message("one of src or dest must be a local file specification")),
        (true, true) => Err(Failure::message("one of src or dest must be a remote file specification")),
        _ if source.path.is_empty() || destination.path.is_empty() => {
            Err(Failure::message("filepath can not be empty"))
        }
        (true, false) => upload(session, matches, &source.path, &destination).await,
        (false, true) => download(session, matches, &source, &destination.path).await,
    }
}

/// Runs a command in the container; what it printed on standard error, if it failed.
async fn execute(
    session: &Session,
    matches: &Matches,
    at: &Place,
    command: &[String],
    stdin: Option<Vec<u8>>,
    stdout: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let mut selected = crate::resource::Selection::of(session, matches)?;
    if !at.namespace.is_empty() {
        selected.namespace = at.namespace.clone();
    }
    let pod = match at.namespace.is_empty() {
        true => pod(session, std::slice::from_ref(&at.pod), std::time::Duration::from_secs(60)).await?,
        false => {
            let path = format!("/api/v1/namespaces/{}/pods/{}", at.namespace, at.pod);
            session.rest().await?.get(path).value().await?
        }
    };
    let container = choose(session, &pod, matches.str("container"), false)?;
    let remote =
        Remote { pod: &pod, container: &container, subresource: "exec", command, stdin: stdin.is_some(), tty: false };
    let (socket, protocol) = channels::open(session, &path(&remote), PROTOCOLS).await?;
    let complaint = RefCell::new(Vec::new());
    let streams = Streams {
        stdin: stdin.map(|bytes| Box::pin(std::io::Cursor::new(bytes)) as std::pin::Pin<Box<dyn tokio::io::AsyncRead>>),
        stdout,
        stderr: &mut |bytes| complaint.borrow_mut().extend_from_slice(bytes),
        sizes: None,
    };
    let code = channels::carry(socket, &protocol, streams).await?;
    let complaint = complaint.into_inner();
    if !complaint.is_empty() {
        session.output.error_bytes(&complaint);
    }
    match code {
        0 => Ok(()),
        code => {
            session.output.warn(&format!("command terminated with exit code {code}"));
            Err(Failure::Exit(code))
        }
    }
}

async fn upload(session: &Session, matches: &Matches, source: &str, destination: &Place) -> Result<()> {
    let local = Path::new(source);
    if !local.exists() {
        return Err(Failure::message(format!("{source} doesn't exist in local filesystem")));
    }
    let mut target = PathBuf::from(destination.path.trim_end_matches('/'));
    // A directory that is there takes the file under its own name.
    let test: Vec<String> = ["test", "-d", &destination.path].iter().map(|w| w.to_string()).collect();
    let quiet = crate::output::Output::to(std::io::sink(), std::io::sink());
    let silent = session.with_output(quiet);
    if execute(&silent, matches, destination, &test, None, &mut |_| {}).await.is_ok() {
        target = target.join(local.file_name().unwrap_or_default());
    }
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    let inside = target.file_name().map(PathBuf::from).unwrap_or_else(|| PathBuf::from("."));
    let packed = match local.is_dir() {
        true => archive.append_dir_all(&inside, local),
        false => archive.append_path_with_name(local, &inside),
    };
    packed.map_err(|e| Failure::message(format!("{source}: {e}")))?;
    let bytes = archive.into_inner()?;
    let folder = target.parent().map(|p| p.display().to_string()).filter(|p| !p.is_empty());
    let mut command: Vec<String> = match matches.bool("no-preserve") {
        true => {
            ["tar", "--no-same-permissions", "--no-same-owner", "-xmf", "-"].iter().map(|w| w.to_string()).collect()
        }
        false => ["tar", "-xmf", "-"].iter().map(|w| w.to_string()).collect(),
    };
    if let Some(folder) = folder {
        command.extend(["-C".to_string(), folder]);
    }
    execute(session, matches, destination, &command, Some(bytes), &mut |_| {}).await
}

/// The tar stream from the container; with `--retries` a broken one is taken up where it ended.
async fn read_archive(session: &Session, matches: &Matches, source: &Place) -> Result<Vec<u8>> {
    let retries = matches.int("retries");
    let mut archive = Vec::new();
    for attempt in 1.. {
        let command = tar_command(&source.path, retries != 0, archive.len());
        let take = &mut |bytes: &[u8]| archive.extend_from_slice(bytes);
        let read = execute(session, matches, source, &command, None, take).await;
        match read {
            Ok(()) => break,
            Err(failure @ Failure::Exit(_)) => return Err(failure),
            Err(failure) if retries >= 0 && attempt > retries => {
                if retries > 0 {
                    session.output.line(&format!("Dropping out copy after {retries} retries"));
                }
                return Err(failure);
            }
            Err(_) => {
                session.output.line(&format!("Resuming copy at {} bytes, retry {attempt}/{retries}", archive.len()))
            }
        }
    }
    Ok(archive)
}

/// Through a shell only where it must be possible to begin in the middle.
fn tar_command(path: &str, resumable: bool, read: usize) -> Vec<String> {
    if !resumable {
        return ["tar", "cf", "-", path].map(str::to_string).to_vec();
    }
    let script = format!("tar cf - '{}' | tail -c+{}", path.replace('\'', r"'\''"), read + 1);
    ["sh", "-c", &script].map(str::to_string).to_vec()
}

async fn download(session: &Session, matches: &Matches, source: &Place, destination: &str) -> Result<()> {
    let archive = read_archive(session, matches, source).await?;
    let base = source.path.trim_matches('/');
    let base = Path::new(base);
    let mut target = PathBuf::from(destination);
    if target.is_dir() {
        target = target.join(base.file_name().unwrap_or_default());
    }
    let mut archive = tar::Archive::new(archive.as_slice());
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let inner = name.strip_prefix(base).or_else(|_| name.strip_prefix("/")).unwrap_or(&name).to_path_buf();
        if inner.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
            session.output.warn(&format!(
                "warning: file {:?} is outside target destination, skipping",
                name.display().to_string()
            ));
            continue;
        }
        let place = if inner.as_os_str().is_empty() { target.clone() } else { target.join(&inner) };
        match entry.header().entry_type() {
            tar::EntryType::Directory => std::fs::create_dir_all(&place)?,
            tar::EntryType::Symlink | tar::EntryType::Link => {
                session.output.warn(&format!(
                    "warning: skipping symlink: {:?} -> {:?}",
                    place.display().to_string(),
                    entry.link_name()?.unwrap_or_default().display().to_string()
                ));
            }
            _ => {
                if let Some(folder) = place.parent() {
                    std::fs::create_dir_all(folder)?;
                }
                let mut file = std::fs::File::create(&place)?;
                std::io::copy(&mut entry, &mut file)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_local_or_in_a_pod() {
        let check = |text: &str, wanted: (&str, &str, &str)| {
            let found = place(text).unwrap_or_else(|e| panic!("{text}: {}", e.text()));
            assert_eq!((found.namespace.as_str(), found.pod.as_str(), found.path.as_str()), wanted, "{text}");
        };
        check("/tmp/x", ("", "", "/tmp/x"));
        check("web:/etc/hosts", ("", "web", "/etc/hosts"));
        check("ns/web:dir", ("ns", "web", "dir"));
        check("./a:b", ("", "", "./a:b"));
        assert!(place("a/b/c:d").is_err());
    }

    #[test]
    fn a_broken_copy_is_taken_up_where_it_ended() {
        assert_eq!(tar_command("/a b", false, 7), ["tar", "cf", "-", "/a b"]);
        assert_eq!(tar_command("/a", true, 0), ["sh", "-c", "tar cf - '/a' | tail -c+1"]);
        assert_eq!(tar_command("/it's", true, 512), ["sh", "-c", r"tar cf - '/it'\''s' | tail -c+513"]);
    }
}
