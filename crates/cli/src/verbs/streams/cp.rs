//! `kubectl cp`: files to and from containers, as tar streams through `exec`.
//! A row of `verbs::ROOT`.
//! Nothing is ever written outside the destination, whatever the other side's tar says.

use std::{
    cell::RefCell,
    io::{Read, Write},
    path::{Component, Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::unix::pipe,
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

/// That wait to be printed while an archive is unpacked.
const WARNINGS_MAX: usize = 64;

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
    if pod.is_empty() {
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
    stdin: Option<pipe::Receiver>,
    stdout: &mut (dyn AsyncWrite + Unpin),
) -> Result<()> {
    // What tar complains of while it packs is printed like any other output.
    let is_download = stdin.is_none();
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
    // The server knows which containers there are.
    let container = match matches.opt("container") {
        Some(named) => named.to_string(),
        None => choose(session, &pod, "", false)?,
    };
    let remote =
        Remote { pod: &pod, container: &container, subresource: "exec", command, stdin: stdin.is_some(), tty: false };
    let (socket, protocol) = channels::open(session, &path(&remote), PROTOCOLS).await?;
    let complaint = RefCell::new(Vec::new());
    let streams = Streams {
        stdin: stdin.map(|pipe| Box::pin(pipe) as Pin<Box<dyn AsyncRead>>),
        stdout,
        stderr: &mut |bytes| complaint.borrow_mut().extend_from_slice(bytes),
        sizes: None,
    };
    let code = channels::carry(socket, &protocol, streams).await?;
    let complaint = complaint.into_inner();
    match is_download {
        true => session.output.bytes(&complaint),
        false if complaint.is_empty() => {}
        false => session.output.error_bytes(&complaint),
    }
    match code {
        0 => Ok(()),
        code => {
            session.output.warn(&format!("command terminated with exit code {code}"));
            Err(Failure::Exit(code))
        }
    }
}

/// A pipe: one end for a thread that packs or unpacks, one for the connection. What is in it is all that is held.
fn pipe_to_thread() -> Result<(pipe::Sender, std::fs::File)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((sender, std::fs::File::from(receiver.into_blocking_fd()?)))
}

fn pipe_from_thread() -> Result<(std::fs::File, pipe::Receiver)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((std::fs::File::from(sender.into_blocking_fd()?), receiver))
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
    if execute(&silent, matches, destination, &test, None, &mut tokio::io::sink()).await.is_ok() {
        target = target.join(local.file_name().unwrap_or_default());
    }
    let inside = target.file_name().map(PathBuf::from).unwrap_or_else(|| PathBuf::from("."));
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
    let (into, archive) = pipe_from_thread()?;
    let owned = local.to_path_buf();
    let packing = env::spawn_blocking(move || pack(&owned, &inside, into));
    let executed = execute(session, matches, destination, &command, Some(archive), &mut tokio::io::sink()).await;
    let packed = ended(packing.await)?.map_err(|e| Failure::message(format!("{source}: {e}")));
    // Who unpacks no more ends the packing too, and knows why.
    executed.and(packed)
}

fn ended<T>(joined: std::result::Result<T, impl std::fmt::Display>) -> Result<T> {
    joined.map_err(|panicked| Failure::message(format!("tar: {panicked}")))
}

fn pack(local: &Path, inside: &Path, into: impl Write) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(into);
    archive.follow_symlinks(false);
    match local.is_dir() {
        true => archive.append_dir_all(inside, local)?,
        false => archive.append_path_with_name(local, inside)?,
    }
    archive.into_inner()?.flush()
}

/// Counts what goes through.
struct Counted<'a> {
    into: &'a mut pipe::Sender,
    bytes: u64,
}

impl AsyncWrite for Counted<'_> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut *self.into).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            self.bytes += *count as u64;
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.into).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.into).poll_shutdown(context)
    }
}

/// The tar stream from the container; with `--retries` a broken one is taken up where it ended.
async fn read_archive(session: &Session, matches: &Matches, source: &Place, into: &mut pipe::Sender) -> Result<()> {
    let retries = matches.int("retries");
    let mut archive = Counted { into, bytes: 0 };
    for attempt in 1.. {
        let command = tar_command(&source.path, retries != 0, archive.bytes);
        let read = execute(session, matches, source, &command, None, &mut archive).await;
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
                session.output.line(&format!("Resuming copy at {} bytes, retry {attempt}/{retries}", archive.bytes))
            }
        }
    }
    Ok(())
}

/// Through a shell only where it must be possible to begin in the middle.
fn tar_command(path: &str, resumable: bool, read: u64) -> Vec<String> {
    if !resumable {
        return ["tar", "cf", "-", path].map(str::to_string).to_vec();
    }
    let script = format!("tar cf - '{}' | tail -c+{}", path.replace('\'', r"'\''"), read + 1);
    ["sh", "-c", &script].map(str::to_string).to_vec()
}

async fn download(session: &Session, matches: &Matches, source: &Place, destination: &str) -> Result<()> {
    let base = PathBuf::from(source.path.trim_matches('/'));
    let mut target = PathBuf::from(destination);
    if target.is_dir() {
        target = target.join(base.file_name().unwrap_or_default());
    }
    let (mut into, archive) = pipe_to_thread()?;
    let (warn, mut warnings) = tokio::sync::mpsc::channel::<String>(WARNINGS_MAX);
    let unpacking = env::spawn_blocking(move || {
        let unpacked = unpack(&archive, &base, &target, &mut |warning| {
            // Nobody hears it who has gone.
            let _ = warn.blocking_send(warning);
        });
        // What fills the last block is read too, so that who writes is not cut off; not so after a failure.
        unpacked.and_then(|()| std::io::copy(&mut &archive, &mut std::io::sink()).map(drop))
    });
    let reading = async {
        let read = read_archive(session, matches, source, &mut into).await;
        drop(into);
        read
    };
    let telling = async {
        while let Some(warning) = warnings.recv().await {
            session.output.warn(&warning);
        }
    };
    let (read, unpacked, ()) = futures::future::join3(reading, unpacking, telling).await;
    // A disk that is full breaks the pipe: that is the cause, and the broken pipe is not.
    let unpacked = ended(unpacked)?;
    match (&read, &unpacked) {
        (Err(_), Err(cause)) if cause.kind() == std::io::ErrorKind::UnexpectedEof => read,
        (Err(Failure::Exit(_)), _) => read,
        (_, Err(_)) => Ok(unpacked?),
        _ => read,
    }
}

/// Writes what is in the archive below `target`.
fn unpack(archive: impl Read, base: &Path, target: &Path, warn: &mut dyn FnMut(String)) -> std::io::Result<()> {
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let inner = name.strip_prefix(base).or_else(|_| name.strip_prefix("/")).unwrap_or(&name).to_path_buf();
        if inner.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
            let name = name.display().to_string();
            warn(format!("warning: file {name:?} is outside target destination, skipping"));
            continue;
        }
        let place = if inner.as_os_str().is_empty() { target.to_path_buf() } else { target.join(&inner) };
        match entry.header().entry_type() {
            tar::EntryType::Directory => std::fs::create_dir_all(&place)?,
            tar::EntryType::Symlink | tar::EntryType::Link => {
                let (link, to) = (place.display().to_string(), entry.link_name()?.unwrap_or_default());
                warn(format!("warning: skipping symlink: {link:?} -> {:?}", to.display().to_string()));
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
    fn an_archive_is_unpacked_below_its_target_only() {
        let (from, to) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(from.path().join("inner")).expect("a directory");
        std::fs::write(from.path().join("inner/file"), "text").expect("a file");
        std::os::unix::fs::symlink("/etc/passwd", from.path().join("link")).expect("a link");
        let mut archive = Vec::new();
        pack(from.path(), Path::new("dir"), &mut archive).expect("packed");
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        let mut odd = tar::Builder::new(Vec::new());
        header.as_mut_bytes()[..8].copy_from_slice(b"../out\0\0");
        header.set_cksum();
        odd.append(&header, std::io::empty()).expect("packed");
        let odd = odd.into_inner().expect("packed");
        let mut warned = Vec::new();
        for bytes in [&archive, &odd] {
            let unpacked = unpack(&bytes[..], Path::new("dir"), &to.path().join("new"), &mut |w| warned.push(w));
            unpacked.expect("unpacked");
        }
        assert_eq!(std::fs::read_to_string(to.path().join("new/inner/file")).ok().as_deref(), Some("text"));
        assert!(!to.path().join("out").exists() && !to.path().join("new/link").exists());
        let place = to.path().join("new/link").display().to_string();
        let wanted = [
            format!("warning: skipping symlink: {place:?} -> \"/etc/passwd\""),
            "warning: file \"../out\" is outside target destination, skipping".to_string(),
        ];
        assert_eq!(warned, wanted);
    }

    #[test]
    fn a_broken_copy_is_taken_up_where_it_ended() {
        assert_eq!(tar_command("/a b", false, 7), ["tar", "cf", "-", "/a b"]);
        assert_eq!(tar_command("/a", true, 0), ["sh", "-c", "tar cf - '/a' | tail -c+1"]);
        assert_eq!(tar_command("/it's", true, 512), ["sh", "-c", r"tar cf - '/it'\''s' | tail -c+513"]);
    }
}
