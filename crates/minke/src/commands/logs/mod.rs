//! `minke logs`: the cluster's log, all of it or one component's lines.
//! Reads the file that `up` writes, or asks systemd's journal where minke is a service.
//! Shows lines as they are, and changes nothing.

mod follower;

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use self::follower::Follower;
use crate::{
    cluster::{instance::Instance, preflight},
    flags::{self, config_file::nearest},
};

const UNIT: &str = "minke.service";
/// What is read of a file at once, from its end.
const CHUNK_BYTES: u64 = 64 << 10;

/// What people call a part, and the modules whose lines are its own.
const COMPONENTS: &[(&str, &[&str])] = &[
    ("apiserver", &["apiserver", "serve"]),
    ("store", &["store"]),
    ("controllers", &["controllers"]),
    ("scheduler", &["scheduler", "device_allocation"]),
    ("kubelet", &["kubelet", "cri", "cadvisor", "node_plugins", "resource_managers"]),
    ("proxy", &["proxy"]),
    ("network-policy", &["network_policy"]),
    ("network", &["cni", "netfilter", "minke::network"]),
    ("dns", &["dns"]),
    ("ingress", &["ingress"]),
    ("registry", &["registry", "minke::control_plane::registry", "minke::node::registry"]),
    ("minke", &["minke"]),
];
/// Has a file of its own.
const CONTAINERD: &str = "containerd";

pub fn run(flags: &flags::Logs) -> Result<()> {
    preflight::root()?;
    let cluster = flags.data.instance();
    let instance = match &flags.node {
        None => cluster,
        Some(name) if cluster.node(name).data.exists() => cluster.node(name),
        Some(name) => bail!("there is no node {name} on this machine: `minke node ls` lists them"),
    };
    let filter = Filter::of(flags.component.as_deref())?;
    let tail = usize::try_from(flags.tail).unwrap_or(usize::MAX);
    match source(&instance, flags.component.as_deref())? {
        Source::File(path) => show_file(&path, &filter, tail, flags.follow),
        Source::Journal => show_journal(&filter, tail, flags.follow),
    }
}

enum Source {
    File(PathBuf),
    Journal,
}

fn source(instance: &Instance, component: Option<&str>) -> Result<Source> {
    if component == Some(CONTAINERD) {
        let file = instance.containerd_root().join("containerd.log");
        return match file.exists() {
            true => Ok(Source::File(file)),
            false => bail!("there is no {}: no containerd of ours has run there", file.display()),
        };
    }
    let file = instance.log_file();
    let is_default = instance.data == Path::new(crate::cluster::instance::DEFAULT_DATA_DIRECTORY);
    if is_default && service_runs() {
        return Ok(Source::Journal);
    }
    match file.exists() {
        true => Ok(Source::File(file)),
        false => bail!(
            "there is no log in {}: start a cluster with `minke up`, or name another --data-dir",
            instance.data.display()
        ),
    }
}

fn service_runs() -> bool {
    let asked = Command::new("systemctl").args(["is-active", "--quiet", UNIT]).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Which lines are shown.
struct Filter(Option<&'static [&'static str]>);

impl Filter {
    fn of(component: Option<&str>) -> Result<Self> {
        match component {
            None | Some(CONTAINERD) => Ok(Self(None)),
            Some(wanted) => match COMPONENTS.iter().find(|(name, _)| *name == wanted) {
                Some((_, modules)) => Ok(Self(Some(modules))),
                None => {
                    let names: Vec<&str> = COMPONENTS.iter().map(|(name, _)| *name).chain([CONTAINERD]).collect();
                    let meant = nearest(wanted, names.iter().copied()).map(|name| format!("; did you mean {name:?}?"));
                    bail!(
                        "there is no component {wanted:?}: choose of {}{}",
                        names.join(", "),
                        meant.unwrap_or_default()
                    )
                }
            },
        }
    }

    fn shows(&self, line: &str) -> bool {
        let Some(modules) = self.0 else { return true };
        let Some(target) = target(line) else { return false };
        // The most special name decides: `minke::network` is not `minke`'s.
        let length = |names: &[&str]| {
            let of =
                |name: &&str| target == *name || target.strip_prefix(*name).is_some_and(|rest| rest.starts_with("::"));
            names.iter().filter(|name| of(name)).map(|name| name.len()).max()
        };
        let own = length(modules);
        own.is_some() && COMPONENTS.iter().all(|(_, others)| length(others) <= own)
    }
}

/// The module that wrote a line, in either form: `TIME LEVEL module: text`, or JSON with `logger`.
fn target(line: &str) -> Option<&str> {
    if line.starts_with('{') {
        return line.split_once("\"logger\":\"")?.1.split('"').next();
    }
    let mut words = line.split_whitespace();
    let levels = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];
    words.by_ref().take(8).find(|word| levels.contains(&without_colour(word)))?;
    // Spans, such as `request{…}:`, stand before the module.
    let mut targets = words.filter_map(|word| without_colour(word).strip_suffix(':'));
    targets.find(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':'))
}

fn without_colour(word: &str) -> &str {
    let word = word.rsplit_once('m').filter(|(head, _)| head.starts_with('\x1b')).map_or(word, |(_, rest)| rest);
    word.split('\x1b').next().unwrap_or(word)
}

fn show_file(path: &Path, filter: &Filter, tail: usize, follow: bool) -> Result<()> {
    let failed = || format!("can't read {}", path.display());
    let mut follower = Follower::open(path).with_context(failed)?;
    let (lines, end) = last_lines(follower.file(), filter, tail).with_context(failed)?;
    follower.skip_to(end);
    let mut out = std::io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    if !follow {
        return Ok(());
    }
    loop {
        follower.read(|line| if filter.shows(line) { writeln!(out, "{line}") } else { Ok(()) }).with_context(failed)?;
        out.flush()?;
        follower.wait().with_context(failed)?;
    }
}

/// The last lines that the filter shows, and where the file ended behind a whole line. Reads no more of it than it needs.
fn last_lines(file: &mut File, filter: &Filter, wanted: usize) -> std::io::Result<(Vec<String>, u64)> {
    let end = file.seek(SeekFrom::End(0))?;
    let (mut start, mut bytes, mut found) = (end, Vec::new(), Vec::new());
    while start > 0 && found.len() < wanted {
        let length = CHUNK_BYTES.min(start);
        start -= length;
        file.seek(SeekFrom::Start(start))?;
        let mut chunk = vec![0; length as usize];
        file.read_exact(&mut chunk)?;
        chunk.append(&mut bytes);
        bytes = chunk;
        // What stands before the first line's end may be the rest of a line.
        let whole =
            if start == 0 { 0 } else { bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |at| at + 1) };
        let text = String::from_utf8_lossy(&bytes[whole..]).into_owned();
        let lines = text.lines().filter(|line| filter.shows(line)).map(str::to_string);
        let mut earlier: Vec<String> = lines.collect();
        earlier.append(&mut found);
        found = earlier;
        bytes.truncate(whole);
    }
    let skipped = found.len().saturating_sub(wanted);
    Ok((found.split_off(skipped), end))
}

fn show_journal(filter: &Filter, tail: usize, follow: bool) -> Result<()> {
    let mut command = Command::new("journalctl");
    command.args(["--unit", UNIT, "--output", "cat", "--no-pager"]).stdin(Stdio::null());
    if follow {
        command.arg("--follow");
    }
    // A filter takes its lines from all of them.
    if filter.0.is_none() && tail < usize::MAX {
        command.args(["--lines", &tail.to_string()]);
    } else if follow {
        command.arg("--lines=all");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("failed to run journalctl: install systemd's")?;
    let stdout = child.stdout.take().context("journalctl has no output")?;
    let mut kept = std::collections::VecDeque::new();
    let mut out = std::io::stdout().lock();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        if !filter.shows(&line) {
            continue;
        }
        if follow {
            writeln!(out, "{line}")?;
        } else {
            kept.push_back(line);
            if kept.len() > tail {
                kept.pop_front();
            }
        }
    }
    for line in kept {
        writeln!(out, "{line}")?;
    }
    match child.wait()? {
        status if status.success() => Ok(()),
        status => bail!("journalctl failed ({status}): ask it yourself with `journalctl -u {UNIT}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 6] = [
        "2026-11-18T13:29:13.000001Z  INFO kubelet::pod: a pod",
        "2026-11-18T13:29:13.000002Z  WARN request{audit_id=\"x: y\" path=/api}: apiserver::server: slow",
        "2026-11-18T13:29:13.000003Z  INFO minke::network::dns_service: serving",
        "2026-11-18T13:29:13.000004Z ERROR minke::commands::up: stopped: why",
        "{\"ts\":1,\"level\":\"info\",\"logger\":\"proxy::rules\",\"msg\":\"x\"}",
        "no line of ours",
    ];

    #[test]
    fn lines_are_their_components() {
        let shown = |component: Option<&str>| -> Vec<usize> {
            let filter = Filter::of(component).unwrap();
            (0..LINES.len()).filter(|n| filter.shows(LINES[*n])).collect()
        };
        assert_eq!(shown(None), [0, 1, 2, 3, 4, 5]);
        assert_eq!(shown(Some("kubelet")), [0]);
        assert_eq!(shown(Some("apiserver")), [1]);
        assert_eq!(shown(Some("network")), [2]);
        assert_eq!(shown(Some("minke")), [3]);
        assert_eq!(shown(Some("proxy")), [4]);
        let error = Filter::of(Some("kublet")).err().unwrap().to_string();
        assert!(error.contains("did you mean \"kubelet\"?"), "{error}");
    }

    #[test]
    fn the_last_lines_of_a_long_file_are_found_from_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        for n in 0..5000 {
            writeln!(file, "2026-11-18T13:29:13Z  INFO {}: line {n}", if n % 100 == 0 { "dns" } else { "kubelet" })
                .unwrap();
        }
        let check = |component: Option<&str>, wanted: usize, expected: &[usize]| {
            let mut file = file.try_clone().unwrap();
            let (lines, end) = last_lines(&mut file, &Filter::of(component).unwrap(), wanted).unwrap();
            let numbers: Vec<usize> = lines.iter().map(|l| l.rsplit(' ').next().unwrap().parse().unwrap()).collect();
            assert_eq!(numbers, expected);
            assert_eq!(end, file.metadata().unwrap().len());
        };
        check(None, 3, &[4997, 4998, 4999]);
        check(Some("dns"), 2, &[4800, 4900]);
        check(Some("dns"), 0, &[]);
        check(None, usize::MAX, &(0..5000).collect::<Vec<_>>());
        check(Some("ingress"), 5, &[]);
    }
}
