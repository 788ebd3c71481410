//! Further servers of a cluster on one etcd: what a server hands over to another (`minke server join-command`), and how
//! that takes it (`minke server --join`).
//! The keys of the cluster lie for two hours in a Secret, encrypted with a key that is in the printed command alone; who
//! fetches them knows the server by its authority's fingerprint, and is known by a token that may read this one Secret.
//! No key, and no token, is ever on a command line.

use std::{collections::BTreeMap, fs, io::Write as _, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use clap::Parser;
use client::{Client, HttpsConfig, HttpsTransport, Identity};
use env::Env;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::Secret,
        rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    certificates::{cluster_keys, pki::write_private},
    cluster::{file_modes, instance::Instance, preflight, ranges},
    control_plane::join_token::{NAMESPACE, fingerprint, random, secret_name},
    flags::{self, passed_on},
    node::join,
};

/// As kubeadm's for the same.
const LIFETIME: Duration = Duration::from_secs(2 * 3600);
/// What a token may be that reads the keys.
const GROUP: &str = "system:bootstrappers:minke:servers";
/// 32 characters of 5 bits each, and more than enough.
const KEY_CHARACTERS: usize = 52;
/// Each server's own.
const OWN_FLAGS: &[&str] = &[
    "data-dir",
    "advertise-address",
    "bind-address",
    "registry",
    "registry-port",
    "join",
    "token",
    "token-file",
    "ca-file",
    "ca-hash",
    "netns",
    "host-name",
    "config",
    "pod-cidr",
    "service-cidr",
];
/// Written, not read: what a server has in there is its own.
const OUTPUT_FLAGS: &[&str] = &["audit-log-path"];
const FILE_BYTES_MAX: u64 = 128 << 10;
/// Below the data directory: what the server was handed over.
const DIRECTORY: &str = "joined";
const FLAGS_FILE: &str = "server-flags.json";

/// What one server hands over to another.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Handover {
    keys: Vec<(String, String)>,
    /// As `--name=value`.
    flags: Vec<String>,
    /// What the files hold that flags name, by flag.
    files: Vec<(String, String)>,
}

/// Written by every server, for `print_command`.
pub fn keep_flags(instance: &Instance) -> Result<()> {
    let mut flags = passed_on::typed("server", OWN_FLAGS)?;
    let typed: Vec<&str> = flags.iter().map(|flag| passed_on::name(flag)).collect();
    // Those that came with the handover were not typed.
    let kept: Vec<String> =
        handed_over(instance)?.into_iter().filter(|f| !typed.contains(&passed_on::name(f))).collect();
    flags.extend(kept.into_iter().filter(|flag| !OWN_FLAGS.contains(&passed_on::name(flag))));
    write_private(&instance.data.join(FLAGS_FILE), &serde_json::to_string(&flags)?)
}

impl Handover {
    fn of(instance: &Instance) -> Result<Self> {
        let told = || format!("no `minke server` was started in {}", instance.data.display());
        let text = fs::read_to_string(instance.data.join(FLAGS_FILE)).with_context(told)?;
        let (mut flags, mut files) = (serde_json::from_str::<Vec<String>>(&text)?, Vec::new());
        let parsed = parse(&flags)?;
        if !parsed.server.store.is_shared() {
            bail!(
                "this server keeps its objects in the embedded store, which others can't share: start it with --store \
                 etcd=URL (`minke store migrate` moves the objects)"
            );
        }
        parsed.server.store.check_reachable_from_elsewhere().context("other machines can't use this server's etcd")?;
        flags.retain(|flag| {
            let Some((name, value)) = flag.split_once('=') else { return true };
            let (path, name) = (Path::new(value), passed_on::name(name));
            let is_read = passed_on::names_path("server", name) && !OUTPUT_FLAGS.contains(&name);
            let is_file = path.metadata().is_ok_and(|found| found.is_file() && found.len() <= FILE_BYTES_MAX);
            match (is_read && is_file).then(|| fs::read_to_string(path)) {
                Some(Ok(text)) => {
                    files.push((name.to_string(), text));
                    false
                }
                _ => true,
            }
        });
        if let Some(kept) = ranges::kept(instance) {
            for (flag, ranges) in [("pod-cidr", kept.pods), ("service-cidr", kept.services)] {
                let list: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                flags.push(format!("--{flag}={}", list.join(",")));
            }
        }
        Ok(Self { keys: cluster_keys::read(&instance.pki())?, flags, files })
    }

    fn write(&self, instance: &Instance) -> Result<()> {
        let directory = instance.data.join(DIRECTORY);
        file_modes::private_directory(&directory)?;
        let mut flags = self.flags.clone();
        for (place, (flag, text)) in self.files.iter().enumerate() {
            let file = Path::new(flag).file_name().and_then(|name| name.to_str()).context("a flag without a name")?;
            // A flag may name several.
            let path = match self.files[..place].iter().filter(|(other, _)| other == flag).count() {
                0 => directory.join(file),
                earlier => directory.join(format!("{file}-{}", earlier + 1)),
            };
            write_private(&path, text)?;
            flags.push(format!("--{flag}={}", path.display()));
        }
        file_modes::private_directory(&instance.pki())?;
        cluster_keys::write(&instance.pki(), &self.keys)?;
        // Last: what is here was handed over whole.
        write_private(&directory.join(FLAGS_FILE), &serde_json::to_string(&flags)?)
    }

    fn seal(&self, id: &str, key: &str) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        cipher(key)?
            .seal_in_place_append_tag(nonce(), Aad::from(id.as_bytes()), &mut bytes)
            .map_err(|_| anyhow::anyhow!("failed to encrypt what is handed over"))?;
        Ok(bytes)
    }

    fn open(id: &str, key: &str, mut bytes: Vec<u8>) -> Result<Self> {
        let open =
            cipher(key)?.open_in_place(nonce(), Aad::from(id.as_bytes()), &mut bytes).map(|plain| plain.to_vec());
        let plain = open.ok().context("what the server handed over can't be decrypted with this token")?;
        Ok(serde_json::from_slice(&plain)?)
    }
}

fn cipher(key: &str) -> Result<LessSafeKey> {
    let key = Sha256::digest(key.as_bytes());
    let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| anyhow::anyhow!("AES-256-GCM is not usable"))?;
    Ok(LessSafeKey::new(key))
}

/// A key is used once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// What is handed over to a server, or was: none where it has not joined.
fn handed_over(instance: &Instance) -> Result<Vec<String>> {
    match fs::read_to_string(instance.data.join(DIRECTORY).join(FLAGS_FILE)) {
        Ok(text) => Ok(serde_json::from_str(&text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn parse(flags: &[String]) -> Result<flags::ServerCommand> {
    let words = ["minke", "server"].map(str::to_string);
    match flags::Flags::try_parse_from(words.iter().chain(flags))?.command {
        flags::Command::Server(server) => Ok(*server),
        _ => bail!("these are no flags of a server: {flags:?}"),
    }
}

/// What to type on another machine.
pub async fn print_command(instance: &Instance, env: &Env) -> Result<()> {
    let handover = Handover::of(instance)?;
    let connection = client::from_kubeconfig(&instance.admin_kubeconfig(), "minke-server")?;
    let client = Client::new(HttpsTransport::new(connection)?);
    let (id, secret, key) = (random(env, 6), random(env, 16), random(env, KEY_CHARACTERS));
    publish(&client, (&id, &secret), handover.seal(&id, &key)?, env).await.context("failed to prepare for joining")?;
    let ca = client::certificates(&fs::read(instance.pki().join("ca.crt"))?).map_err(anyhow::Error::msg)?;
    let hash = fingerprint(ca.first().context("pki/ca.crt is empty")?)?;
    let server = fs::read_to_string(instance.data.join("server-url")).unwrap_or_default();
    let server = server.trim();
    // By a pipe from the shell itself: it is in no process's arguments, not even under sudo.
    println!("echo {id}.{secret}.{key} | minke server --join {server} --token-file - --ca-hash {hash}");
    std::io::stdout().flush()?;
    Ok(())
}

/// The token, and what only it may read. All goes with the token, which ends by itself or is deleted.
async fn publish(client: &Client, (id, secret): (&str, &str), sealed: Vec<u8>, env: &Env) -> Result<()> {
    let expires = Timestamp::from_second((env.now() + LIFETIME).as_second())?.to_string();
    let data = [
        ("token-id", id),
        ("token-secret", secret),
        ("expiration", &expires),
        ("usage-bootstrap-authentication", "true"),
        ("auth-extra-groups", GROUP),
        ("description", "makes another machine a server of the cluster; delete this Secret to revoke it"),
    ];
    let data = data.map(|(key, value)| (key.to_string(), ByteString(value.as_bytes().to_vec())));
    let secrets = client.namespaced::<Secret>(NAMESPACE);
    let mut token = Secret { type_: Some("bootstrap.kubernetes.io/token".into()), ..Secret::default() };
    token.metadata = metadata(&secret_name(id), None);
    token.data = Some(data.into_iter().collect());
    let token = secrets.create(&token).await?;
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Secret".into(),
        name: secret_name(id),
        uid: token.metadata.uid.unwrap_or_default(),
        ..OwnerReference::default()
    };
    let name = handover_name(id);
    let metadata = || metadata(&name, Some(owner.clone()));
    let sealed: BTreeMap<String, ByteString> = [("sealed".to_string(), ByteString(sealed))].into();
    secrets.create(&Secret { metadata: metadata(), data: Some(sealed), ..Secret::default() }).await?;
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["secrets".into()]),
        resource_names: Some(vec![name.clone()]),
        verbs: vec!["get".into()],
        ..PolicyRule::default()
    };
    let role = Role { metadata: metadata(), rules: Some(vec![rule]) };
    client.namespaced::<Role>(NAMESPACE).create(&role).await?;
    // The token itself, and not whoever else may be of its group.
    let user = format!("system:bootstrap:{id}");
    let api_group = "rbac.authorization.k8s.io".to_string();
    let binding = RoleBinding {
        metadata: metadata(),
        role_ref: RoleRef { api_group: api_group.clone(), kind: "Role".into(), name: name.clone() },
        subjects: Some(vec![Subject { api_group: Some(api_group), kind: "User".into(), name: user, namespace: None }]),
    };
    client.namespaced::<RoleBinding>(NAMESPACE).create(&binding).await.map(drop)?;
    Ok(())
}

fn metadata(name: &str, owner: Option<OwnerReference>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_string()),
        namespace: Some(NAMESPACE.into()),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

fn handover_name(id: &str) -> String {
    format!("minke-server-join-{id}")
}

/// The flags to run with: those that were typed, and behind them those that were handed over, now or at an earlier start.
pub async fn settle(typed: flags::ServerCommand, env: &Env) -> Result<flags::ServerCommand> {
    let instance = typed.server.data.instance();
    if let Some(servers) = &typed.join_server
        && handed_over(&instance)?.is_empty()
    {
        preflight::data_directory(&instance.data)?;
        if instance.pki().join("ca.key").exists() {
            bail!(
                "{} has a cluster of its own: choose another --data-dir for the server that joins",
                instance.data.display()
            );
        }
        fetch(&typed, servers, env).await.context("failed to join the cluster")?.write(&instance)?;
    }
    let handed_over = handed_over(&instance)?;
    if handed_over.is_empty() {
        return Ok(typed);
    }
    let mut flags: Vec<String> = passed_on::typed("server", &[])?;
    let names: Vec<String> = flags.iter().map(|flag| passed_on::name(flag).to_string()).collect();
    flags.extend(handed_over.into_iter().filter(|flag| !names.iter().any(|name| name == passed_on::name(flag))));
    let settled = parse(&flags)?;
    Ok(flags::ServerCommand { join_server: typed.join_server, ..settled })
}

async fn fetch(typed: &flags::ServerCommand, servers: &str, env: &Env) -> Result<Handover> {
    let servers: Vec<String> = servers.split(',').map(|url| url.trim().trim_end_matches('/').to_string()).collect();
    let join = typed.join.clone();
    let token = env::spawn_blocking(move || join::token(&join, "server")).await??;
    let parts: Vec<&str> = token.split('.').collect();
    let [id, secret, key] = parts[..] else {
        bail!("this is no token of a server: `minke server join-command` on a server shows how to give one");
    };
    let ca_pem = match (&typed.join.ca_file, &typed.join.ca_hash) {
        (Some(file), _) => fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?,
        (None, Some(hash)) => join::fetch_from_any(&servers, hash)?,
        (None, None) => bail!("who signs for the cluster is not known: give --ca-hash or --ca-file"),
    };
    let bearer = std::sync::Arc::new(RwLock::new(format!("{id}.{secret}")));
    let transport = HttpsTransport::new(HttpsConfig {
        server: servers[0].clone(),
        ca: client::certificates(ca_pem.as_bytes()).map_err(anyhow::Error::msg)?,
        identity: Identity { bearer_token: Some(bearer), ..Identity::default() },
        user_agent: "minke-server".into(),
        ..HttpsConfig::default()
    })?;
    transport.servers().replace(&servers);
    let secrets = Client::new(transport);
    let secrets = secrets.namespaced::<Secret>(NAMESPACE);
    let answer = env.timeout(Duration::from_secs(30), secrets.get(&handover_name(id))).await;
    let found = match answer.with_context(|| format!("no answer from {}", servers.join(",")))? {
        Ok(found) => found,
        Err(error) if [401, 403, 404].contains(&error.code) => bail!(
            "the server does not accept our token ({}): it is good for two hours and until it is deleted; `minke server \
             join-command` on a server of the cluster shows one that is good",
            error.message
        ),
        Err(error) => return Err(error.into()),
    };
    let sealed = found.data.and_then(|mut data| data.remove("sealed")).context("the server handed nothing over")?;
    let handover = Handover::open(id, key, sealed.0)?;
    let (_, own) = handover.keys.iter().find(|(name, _)| name == "ca.crt").context("no authority was handed over")?;
    if own.trim() != ca_pem.trim() {
        bail!("what was handed over is of another cluster than the server that we asked");
    }
    Ok(handover)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover() -> Handover {
        let keys = cluster_keys::FILES.map(|name| (name.to_string(), format!("{name} text\n"))).to_vec();
        let files = vec![("etcd-cafile".to_string(), "PEM\n".to_string())];
        Handover { keys, flags: vec!["--etcd-servers=https://192.0.2.1:2379".into()], files }
    }

    #[test]
    fn only_the_token_opens_what_is_handed_over() {
        let sealed = handover().seal("abcdef", "key").unwrap();
        assert!(!String::from_utf8_lossy(&sealed).contains("text"));
        assert_eq!(Handover::open("abcdef", "key", sealed.clone()).unwrap(), handover());
        for (id, key) in [("abcdef", "other"), ("fedcba", "key")] {
            let refused = Handover::open(id, key, sealed.clone()).unwrap_err().to_string();
            assert!(refused.contains("can't be decrypted"), "{refused}");
        }
    }

    #[test]
    fn what_is_handed_over_is_kept_for_the_next_start() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(directory.path());
        handover().write(&instance).unwrap();
        let flags = handed_over(&instance).unwrap();
        let file = instance.data.join("joined/etcd-cafile");
        assert_eq!(
            flags,
            ["--etcd-servers=https://192.0.2.1:2379".to_string(), format!("--etcd-cafile={}", file.display())]
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "PEM\n");
        for path in [file, instance.pki().join("ca.key"), instance.pki().join("sa.key")] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
        assert!(parse(&flags).unwrap().server.store.is_shared());
    }

    #[test]
    fn a_server_hands_over_its_flags_with_their_files() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(&directory.path().join("data"));
        file_modes::private_directory(&instance.pki()).unwrap();
        cluster_keys::write(&instance.pki(), &handover().keys).unwrap();
        let file = directory.path().join("ca.pem");
        write_private(&file, "PEM\n").unwrap();
        let check = |flags: &[String], expected: Result<(), &str>| {
            fs::write(instance.data.join(FLAGS_FILE), serde_json::to_string(flags).unwrap()).unwrap();
            match (Handover::of(&instance), expected) {
                (Ok(found), Ok(())) => assert_eq!(found, handover()),
                (Err(error), Err(text)) => assert!(format!("{error:#}").contains(text), "{error:#}"),
                (found, expected) => panic!("{found:?}, expected {expected:?}"),
            }
        };
        let ca = format!("--etcd-cafile={}", file.display());
        check(&["--etcd-servers=https://192.0.2.1:2379".into(), ca.clone()], Ok(()));
        check(&[], Err("`minke store migrate`"));
        check(&["--etcd-servers=https://127.0.0.1:2379".into(), ca], Err("have etcd listen on an address"));
    }

    #[test]
    fn each_file_of_a_flag_travels_and_what_is_written_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (Instance::new(&directory.path().join("from")), Instance::new(&directory.path().join("to")));
        file_modes::private_directory(&from.pki()).unwrap();
        cluster_keys::write(&from.pki(), &handover().keys).unwrap();
        let file = |name: &str| {
            let path = directory.path().join(name);
            write_private(&path, &format!("{name} text\n")).unwrap();
            path.display().to_string()
        };
        let log = format!("--audit-log-path={}", file("audit.log"));
        let mut flags = vec!["--etcd-servers=https://192.0.2.1:2379".to_string(), log.clone()];
        flags.extend(["one", "two"].map(|name| format!("--service-account-key-file={}", file(name))));
        fs::write(from.data.join(FLAGS_FILE), serde_json::to_string(&flags).unwrap()).unwrap();
        let handed_over = Handover::of(&from).unwrap();
        assert!(handed_over.flags.contains(&log), "{handed_over:?}");
        handed_over.write(&to).unwrap();
        let found = super::handed_over(&to).unwrap();
        let keys = found.iter().filter_map(|flag| flag.strip_prefix("--service-account-key-file="));
        let keys: Vec<_> = keys.map(|path| fs::read_to_string(path).unwrap()).collect();
        assert_eq!(keys, ["one text\n", "two text\n"]);
    }

    #[test]
    fn names_of_files_stay_below_the_data_directory() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(&directory.path().join("data"));
        let files = vec![("../../outside".to_string(), "x".to_string())];
        Handover { keys: Vec::new(), flags: Vec::new(), files }.write(&instance).unwrap();
        let outside = directory.path().join("outside");
        assert!(!outside.exists() && instance.data.join("joined/outside").exists());
    }
}
