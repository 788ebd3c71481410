//! `minke support-bundle`: what somebody needs who is to help, in one archive.
//! Gathers what `status`, `doctor` and the logs say, and the objects that are no Secrets; `redaction` goes over all of it.
//! Invariant: nothing is written that has not gone through `Redaction` (type: `Bundle::add`).

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use api::{Resource, Verb};
use client::{Client, HttpsTransport, from_kubeconfig};
use env::Env;
use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

use crate::{
    cluster::{file_modes, instance::Instance, members, preflight},
    commands::{machine_checks, redaction::Redaction, report::Display, status},
    flags,
};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Of the end of each log.
const LOG_BYTES_MAX: u64 = 8 << 20;

/// Kinds that hold secrets, and those where people put some without saying so.
const LEFT_OUT: &[&str] = &["secrets", "configmaps"];
const PAGES: &[(&str, &str)] =
    &[("readyz.txt", "/readyz?verbose"), ("version.json", "/version"), ("metrics.txt", "/metrics")];
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ip", &["address"]),
    ("ip", &["route", "show", "table", "all"]),
    ("nft", &["list", "ruleset"]),
    ("df", &["-h"]),
    ("ps", &["-eo", "pid,ppid,rss,etime,comm"]),
    ("uname", &["-a"]),
];
const FILES: &[&str] = &[
    "/etc/os-release",
    "/proc/meminfo",
    "/proc/mounts",
    "/proc/cmdline",
    "/etc/resolv.conf",
    "/etc/minke/config.yaml",
];

pub async fn run(flags: &flags::SupportBundle) -> Result<()> {
    preflight::root()?;
    let env = Env::real();
    let stamp = env.now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let path = flags.file.clone().unwrap_or_else(|| PathBuf::from(format!("minke-support-{stamp}.tar.gz")));
    let display = Display::new("gathering");
    let archive = gather(&flags.data.instance(), &env, &display).await?;
    display.finish();
    write(&path, &archive, flags.file.is_some())?;
    println!(
        "wrote {} ({}): no secret is known to be in it, but look through it before you send it",
        path.display(),
        status::bytes(archive.len() as u64)
    );
    Ok(())
}

/// A file that somebody else has made is only written where it was named: others may write to the directory we are in.
fn write(path: &Path, archive: &[u8], is_named: bool) -> Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut options = fs::OpenOptions::new();
    options.write(true).mode(file_modes::PRIVATE_FILE_MODE);
    match is_named {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let written = options.open(path).and_then(|mut file| {
        if file.metadata()?.is_file() {
            file.set_permissions(fs::Permissions::from_mode(file_modes::PRIVATE_FILE_MODE))?;
        }
        file.write_all(archive)
    });
    written.with_context(|| format!("can't write {}: name another file", path.display()))
}

/// The archive under way: everything that comes in is gone over.
struct Bundle {
    tar: tar::Builder<GzEncoder<Vec<u8>>>,
    redaction: Redaction,
    seconds: u64,
}

impl Bundle {
    fn add(&mut self, name: &str, content: &str) -> Result<()> {
        let content = self.redaction.text(content);
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_mtime(self.seconds);
        header.set_size(content.len() as u64);
        self.tar.append_data(&mut header, format!("minke-support/{name}"), content.as_bytes())?;
        Ok(())
    }

    fn add_object(&mut self, name: &str, mut object: Value) -> Result<()> {
        Redaction::object(&mut object);
        self.add(name, &serde_json::to_string_pretty(&object)?)
    }
}

pub async fn gather(instance: &Instance, env: &Env, display: &Display) -> Result<Vec<u8>> {
    let client = from_kubeconfig(&instance.admin_kubeconfig(), "minke-support-bundle").ok();
    let client = client.and_then(|connection| HttpsTransport::new(connection).ok()).map(Client::new);
    let mut redaction = Redaction::of_data_directory(&instance.data);
    if let Some(client) = &client
        && let Ok(secrets) = get(client, "/api/v1/secrets", env).await
    {
        redaction.learn_secrets(&serde_json::from_str(&secrets).unwrap_or_default());
    }
    let tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let seconds = u64::try_from(env.now().as_second()).unwrap_or(0);
    let mut bundle = Bundle { tar, redaction, seconds };
    display.waiting("gathering what this machine says");
    bundle.add("status.json", &serde_json::to_string_pretty(&status::gather(instance, env).await)?)?;
    bundle.add("doctor.json", &serde_json::to_string_pretty(&machine_checks::all(instance, env).await)?)?;
    for path in FILES {
        if let Ok(text) = fs::read_to_string(path) {
            bundle.add(&format!("machine{path}"), &text)?;
        }
    }
    for (program, arguments) in PROGRAMS {
        let ran = tokio::process::Command::new(program).args(*arguments).output().await;
        let text = match ran {
            Ok(output) => {
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
            }
            Err(error) => error.to_string(),
        };
        let words: Vec<&str> = std::iter::once(*program).chain(arguments.iter().copied()).collect();
        bundle.add(&format!("machine/{}.txt", words.join("-").replace([' ', ',', '/'], "-")), &text)?;
    }
    display.waiting("gathering logs");
    for (name, path) in logs(instance) {
        bundle.add(&format!("logs/{name}"), &end_of(&path))?;
    }
    if let Some(client) = &client {
        display.waiting("gathering objects");
        for (name, path) in object_lists() {
            match get(client, &path, env).await.map(|text| serde_json::from_str::<Value>(&text)) {
                Ok(Ok(object)) => bundle.add_object(&format!("objects/{name}.json"), object)?,
                Ok(Err(error)) => bundle.add(&format!("objects/{name}.error"), &error.to_string())?,
                Err(error) => bundle.add(&format!("objects/{name}.error"), &format!("{error:#}"))?,
            }
        }
        for (name, path) in PAGES {
            let text = get(client, path, env).await.unwrap_or_else(|error| format!("{error:#}"));
            bundle.add(name, &text)?;
        }
    }
    Ok(bundle.tar.into_inner()?.finish()?)
}

/// Every kind of the table that is kept and may leave, by its name, with the path of its list in the first version.
fn object_lists() -> BTreeMap<String, String> {
    let is_wanted = |resource: &Resource| {
        resource.stored() && resource.supports(&Verb::List) && !LEFT_OUT.contains(&resource.plural.as_str())
    };
    let mut found = BTreeMap::new();
    for resource in api::kinds::builtin().iter().filter(|resource| is_wanted(resource)) {
        found.entry(resource.group_resource()).or_insert_with(|| resource.path(None, None));
    }
    found
}

async fn get(client: &Client, path: &str, env: &Env) -> Result<String> {
    let request = http::Request::get(path).body(bytes::Bytes::new())?;
    let answer = env.timeout(ANSWER_TIMEOUT, client.request(request)).await;
    let answer = answer.with_context(|| format!("no answer within {ANSWER_TIMEOUT:?}"))??;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Those of the cluster and of its further members on this machine.
fn logs(instance: &Instance) -> Vec<(String, PathBuf)> {
    let of = |prefix: &str, instance: &Instance| {
        let containerd = instance.containerd_root().join("containerd.log");
        [(format!("{prefix}minke.log"), instance.log_file()), (format!("{prefix}containerd.log"), containerd)]
    };
    let own = of("", instance).into_iter();
    let members = members::all(instance).into_iter().flat_map(|member| {
        let place = member.instance.data.strip_prefix(&instance.data).unwrap_or(Path::new(&member.name));
        of(&format!("{}/", place.display()), &member.instance)
    });
    own.chain(members).filter(|(_, path)| path.exists()).collect()
}

fn end_of(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_or_else(|error| error.to_string(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::pki::{Leaf, Pki};

    /// Every file of the archive by its name.
    fn unpack(archive: &[u8]) -> BTreeMap<String, String> {
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(archive));
        let entries = tar.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (name, text)
        });
        entries.collect()
    }

    #[test]
    fn nobody_else_reads_the_archive_or_says_where_it_goes() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        let [aim, link, open] = ["aim", "link", "open"].map(|name| directory.path().join(name));
        symlink(&aim, &link).unwrap();
        assert!(write(&link, b"x", false).is_err() && !aim.exists());
        fs::write(&open, "before").unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(write(&open, b"x", false).is_err());
        write(&open, b"x", true).unwrap();
        assert_eq!(fs::metadata(&open).unwrap().permissions().mode() & 0o777, 0o600);
        write(&aim, b"x", false).unwrap();
    }

    #[test]
    fn kinds_of_secrets_are_not_asked_for() {
        let lists = object_lists();
        assert_eq!(lists["deployments.apps"], "/apis/apps/v1/deployments");
        assert!(lists.contains_key("pods") && lists.len() > 30, "{lists:?}");
        assert!(!lists.values().any(|path| path.ends_with("/secrets") || path.ends_with("/configmaps")), "{lists:?}");
    }

    #[tokio::test]
    async fn planted_secrets_are_not_in_the_archive() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(directory.path());
        let env = Env::real();
        let pki = Pki::open(&instance.pki(), env.clone()).unwrap();
        let leaf = pki.leaf(&Leaf::client("admin", "kubernetes-admin", None)).unwrap();
        let signing = pki.service_account_key().unwrap();
        fs::write(instance.join_token(), "abcdef.0123456789abcdef\n").unwrap();
        let body = |pem: &str| pem.lines().nth(1).unwrap().to_string();
        let planted = [
            "abcdef.0123456789abcdef".to_string(),
            "zyxwvu.fedcba9876543210".to_string(),
            body(&leaf.key),
            body(&signing),
            body(pki.ca_key_pem()),
            "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJqYW5lIn0.c2lnbmF0dXJl".to_string(),
            "hunter2hunter2".to_string(),
            "c29tZSBiYXNpYyBwYXNzd29yZA==".to_string(),
            "abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrst".to_string(),
        ];
        let mut log = String::from("2026-11-18T13:29:13Z  INFO minke: all is well\n");
        log += &format!("join with {} or {}, a server with {}.{}\n", planted[0], planted[1], planted[1], planted[8]);
        log += &format!("key\n{}{}", leaf.key, signing);
        log += &format!("one line {}\n", pki.ca_key_pem().replace('\n', "\\n"));
        log += &format!(
            "Authorization: Bearer {}\npassword={}\nAuthorization: Basic {}\n",
            planted[5], planted[6], planted[7]
        );
        log += "2026-11-18T13:29:14Z  INFO minke: and goes on\n";
        fs::write(instance.log_file(), &log).unwrap();
        let server = instance.member("servers", "server-1");
        file_modes::private_directory(&server.data).unwrap();
        fs::write(server.log_file(), &log).unwrap();
        let archive = gather(&instance, &env, &Display::new("testing")).await.unwrap();
        let files = unpack(&archive);
        for log in ["minke.log", "servers/server-1/minke.log"] {
            let kept = &files[&format!("minke-support/logs/{log}")];
            assert!(kept.contains("all is well") && kept.contains("and goes on"), "{kept}");
        }
        assert!(files.contains_key("minke-support/status.json") && files.contains_key("minke-support/doctor.json"));
        for (name, text) in &files {
            for secret in &planted {
                assert!(!text.contains(secret.as_str()), "{name} has {secret}: {text}");
            }
            assert!(!text.contains("PRIVATE KEY"), "{name}");
        }
    }
}
