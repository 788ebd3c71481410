//! Where objects are kept, as flags: the embedded store, or an etcd under upstream's names.
//! Part of the flags of every command that serves the API; opened by `server`.
//! A file that can't be used stops the start; what it holds is never shown.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use apiserver::{
    config::{Config, EncryptionProviders},
    storage::StorageMediaType,
};
use clap::{Args, builder::BoolishValueParser};
use env::Env;
use store::{EtcdStore, EtcdTls, KeySpace, Store};

use crate::cluster::{file_modes, instance::Instance, members::etcd};

/// What the API server's own keys begin with: upstream's default.
const USUAL_PREFIX: &str = "/registry";

#[derive(Debug, Clone, Args)]
pub struct StoreFlags {
    /// Where objects are kept: `embedded`, or `etcd=URL[,URL…]`
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    store: String,
    /// etcd servers that keep the objects, as http[s]://HOST:PORT
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// Authorities of the etcd servers' certificates, as PEM
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// Certificate to show to the etcd servers, as PEM
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Key of that certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// What every key in etcd begins with, so that several clusters can share one
    #[arg(long, value_name = "PREFIX", default_value = USUAL_PREFIX)]
    etcd_prefix: String,
    /// How built-in objects are written: application/vnd.kubernetes.protobuf (the default in etcd) or application/json
    /// (the default in the embedded store); both are read
    #[arg(long, value_name = "TYPE", value_parser = StorageMediaType::parse)]
    storage_media_type: Option<StorageMediaType>,
    /// How objects are encrypted in the store (EncryptionConfiguration)
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Read that file again when it changes
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    encryption_provider_config_automatic_reload: bool,
}

/// What the flags say.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Embedded,
    Etcd { servers: Vec<String>, prefix: String },
}

impl StoreFlags {
    /// As if they were typed.
    pub fn of_etcd(access: &etcd::Access) -> Self {
        Self {
            store: "embedded".into(),
            etcd_servers: access.urls.clone(),
            etcd_cafile: Some(access.ca.clone()),
            etcd_certfile: Some(access.certificate.clone()),
            etcd_keyfile: Some(access.key.clone()),
            etcd_prefix: USUAL_PREFIX.into(),
            storage_media_type: None,
            encryption_provider_config: None,
            encryption_provider_config_automatic_reload: false,
        }
    }

    /// Whether other servers may use the same store.
    pub fn is_shared(&self) -> bool {
        self.store != "embedded" || !self.etcd_servers.is_empty()
    }

    /// Servers in network namespaces of their own have a loopback of their own.
    pub fn check_reachable_from_elsewhere(&self) -> Result<()> {
        let Place::Etcd { servers, .. } = self.place()? else { return Ok(()) };
        let host = |url: &str| {
            let authority = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/').to_string();
            let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host).to_string();
            host.trim_matches(['[', ']']).to_string()
        };
        let is_loopback = |host: &str| {
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        match servers.iter().find(|url| is_loopback(&host(url))) {
            Some(url) => bail!(
                "{url} is another machine's own for servers elsewhere, or in network namespaces: have etcd listen on an \
                 address that they reach, and name that with --etcd-servers"
            ),
            None => Ok(()),
        }
    }

    /// Tells an API server how to encrypt what it stores.
    pub fn apply(&self, config: &mut Config) -> Result<()> {
        config.storage_media_type = self.storage_media_type;
        let automatic_reload = self.encryption_provider_config_automatic_reload;
        config.encryption_providers = match &self.encryption_provider_config {
            Some(file) => Some(EncryptionProviders { file: file.clone(), automatic_reload }),
            None if automatic_reload => {
                bail!("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
            }
            None => None,
        };
        Ok(())
    }

    fn place(&self) -> Result<Place> {
        let servers = match self.store.split_once('=').unwrap_or((&self.store, "")) {
            ("embedded", "") => self.etcd_servers.clone(),
            ("etcd", urls) if !urls.is_empty() && self.etcd_servers.is_empty() => {
                urls.split(',').map(str::to_string).collect()
            }
            ("etcd", _) if !self.etcd_servers.is_empty() => bail!("give either --store etcd= or --etcd-servers"),
            _ => bail!("--store {} is not known: use `embedded` or `etcd=URL`", self.store),
        };
        if servers.is_empty() {
            let files = [&self.etcd_cafile, &self.etcd_certfile, &self.etcd_keyfile];
            if files.iter().any(|file| file.is_some()) || self.etcd_prefix != USUAL_PREFIX {
                bail!("flags for etcd need --etcd-servers");
            }
            return Ok(Place::Embedded);
        }
        if let Some(plain) = servers.iter().find(|server| !server.starts_with("https://"))
            && (self.etcd_cafile.is_some() || self.etcd_certfile.is_some())
        {
            bail!("{plain} is not https://: --etcd-cafile and --etcd-certfile would have no effect");
        }
        let prefix = match self.etcd_prefix.trim_end_matches('/') {
            "" => String::new(),
            other if other.starts_with('/') => other.to_string(),
            other => format!("/{other}"),
        };
        Ok(Place::Etcd { servers, prefix })
    }

    /// None where the servers are spoken to in the clear.
    fn tls(&self, servers: &[String]) -> Result<Option<EtcdTls>> {
        if !servers.iter().any(|server| server.starts_with("https://")) {
            return Ok(None);
        }
        let ca = self.etcd_cafile.as_deref().context("https:// servers need --etcd-cafile")?;
        let identity = match (&self.etcd_certfile, &self.etcd_keyfile) {
            (Some(certificate), Some(key)) => {
                Some((read(certificate, "--etcd-certfile")?, read(key, "--etcd-keyfile")?))
            }
            _ => None,
        };
        if let Some((certificate, key)) = &identity {
            let pair = client::certified_key(certificate, key).map_err(anyhow::Error::msg);
            pair.context("--etcd-certfile and --etcd-keyfile can't be used")?;
        }
        Ok(Some(EtcdTls { ca: read(ca, "--etcd-cafile")?, identity, server_name: None }))
    }

    pub async fn open(&self, instance: &Instance, env: &Env) -> Result<Arc<dyn Store>> {
        match self.place()? {
            Place::Embedded => {
                file_modes::private_directory(&instance.store())?;
                Ok(Arc::new(store::EmbeddedStore::open(instance.store(), env.clone())?))
            }
            Place::Etcd { servers, prefix } => self.connect(&servers, &prefix, env).await,
        }
    }

    /// The etcd that the flags name.
    pub async fn open_etcd(&self, env: &Env) -> Result<Arc<dyn Store>> {
        if self.encryption_provider_config.is_some() {
            bail!("encrypted values are copied as they are: --encryption-provider-config would have no effect");
        }
        match self.place()? {
            Place::Embedded => bail!("say which etcd: --etcd-servers"),
            Place::Etcd { servers, prefix } => self.connect(&servers, &prefix, env).await,
        }
    }

    async fn connect(&self, servers: &[String], prefix: &str, env: &Env) -> Result<Arc<dyn Store>> {
        let unreachable = || format!("etcd at {} can't be reached", servers.join(","));
        let tls = self.tls(servers)?;
        let keys = KeySpace::rooted(USUAL_PREFIX, prefix);
        let etcd = EtcdStore::connect(servers, keys, tls.clone(), env.clone()).await.with_context(unreachable)?;
        // Older versions put their whole keys below the prefix.
        let older = format!("{USUAL_PREFIX}{USUAL_PREFIX}/");
        if prefix == USUAL_PREFIX || etcd.count(&older, &store::prefix_end(&older)).await? == 0 {
            return Ok(Arc::new(etcd));
        }
        tracing::warn!(below = format!("{prefix}{USUAL_PREFIX}/"), "using the keys of an older version");
        Ok(Arc::new(EtcdStore::connect(servers, prefix, tls, env.clone()).await.with_context(unreachable)?))
    }
}

fn read(path: &Path, flag: &str) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("failed to read {flag} {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::certificates::pki::{Leaf, Pki};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreFlags,
    }

    fn parse(line: &str) -> Result<StoreFlags> {
        Ok(Line::try_parse_from(std::iter::once("minke").chain(line.split_whitespace()))?.store)
    }

    #[test]
    fn the_form_of_what_is_stored_can_be_chosen() {
        let check = |line: &str, expected: Result<Option<StorageMediaType>, &str>| {
            let found = parse(line).map(|flags| {
                let mut config = Config::in_process(String::new());
                flags.apply(&mut config).unwrap();
                config.storage_media_type
            });
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{line}"),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{line}: {error}"),
                (found, expected) => panic!("{line}: {found:?}, expected {expected:?}"),
            }
        };
        check("", Ok(None));
        check("--storage-media-type=application/json", Ok(Some(StorageMediaType::Json)));
        let protobuf = "--storage-media-type=application/vnd.kubernetes.protobuf";
        check(protobuf, Ok(Some(StorageMediaType::Protobuf)));
        check("--storage-media-type=application/yaml", Err("application/yaml"));
    }

    #[test]
    fn etcd_flags_have_upstreams_names() {
        let check = |line: &str, expected: Result<(&str, &str), &str>| {
            let found = parse(line).and_then(|flags| flags.place());
            match (found, expected) {
                (Ok(Place::Embedded), Ok(("", ""))) => {}
                (Ok(Place::Etcd { servers, prefix }), Ok((wanted, before))) => {
                    assert_eq!((servers.join(",").as_str(), prefix.as_str()), (wanted, before), "{line}");
                }
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{line}: {error}"),
                (found, expected) => panic!("{line}: {found:?}, expected {expected:?}"),
            }
        };
        check("", Ok(("", "")));
        check("--store etcd=http://a:2379,http://b:2379", Ok(("http://a:2379,http://b:2379", "/registry")));
        check("--etcd-servers http://a:2379,http://b:2379", Ok(("http://a:2379,http://b:2379", "/registry")));
        check("--etcd-servers http://a:2379 --etcd-prefix /registry/", Ok(("http://a:2379", "/registry")));
        check("--etcd-servers http://a:2379 --etcd-prefix second", Ok(("http://a:2379", "/second")));
        check("--store etcd=http://a:2379 --etcd-prefix /second/", Ok(("http://a:2379", "/second")));
        check("--store etcd=http://a:2379 --etcd-servers http://b:2379", Err("either"));
        check("--store paper", Err("use `embedded` or `etcd=URL`"));
        check("--etcd-prefix /second", Err("need --etcd-servers"));
        check("--etcd-servers http://a:2379 --etcd-cafile /ca", Err("would have no effect"));
        check("--etcd-servers https://a:2379 --etcd-certfile /c", Err("--etcd-keyfile"));
        assert!(parse("--etcd-servers http://a:2379").unwrap().is_shared() && !parse("").unwrap().is_shared());
    }

    #[test]
    fn encryption_flags_have_upstreams_names() {
        let check = |line: &str, expected: &str| {
            let mut config = Config::in_process(String::new());
            let shown = match parse(line).unwrap().apply(&mut config) {
                Ok(()) => format!("{:?}", config.encryption_providers.map(|p| (p.file, p.automatic_reload))),
                Err(error) => error.to_string(),
            };
            assert!(shown.contains(expected), "{line}: {shown}");
        };
        check("", "None");
        check("--encryption-provider-config f", "Some((\"f\", false))");
        check("--encryption-provider-config f --encryption-provider-config-automatic-reload", "Some((\"f\", true))");
        check("--encryption-provider-config-automatic-reload=true", "must be set with --encryption-provider-config");
    }

    #[test]
    fn etcd_over_tls_needs_files_that_can_be_used() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Env::real()).unwrap();
        pki.leaf(&Leaf::client("etcd", "etcd-client", None)).unwrap();
        let file = |name: &str| directory.path().join(name).display().to_string();
        let servers = ["https://a:2379".to_string()];
        let tls = |more: &str| parse(&format!("--etcd-servers https://a:2379 {more}")).unwrap().tls(&servers);
        let said = |more: &str| tls(more).map(drop).expect_err("an error").to_string();
        assert!(said("").contains("--etcd-cafile"));
        let ca = format!("--etcd-cafile {}", file("ca.crt"));
        assert!(tls(&ca).unwrap().unwrap().identity.is_none());
        let own = format!("{ca} --etcd-certfile {} --etcd-keyfile {}", file("etcd.crt"), file("etcd.key"));
        assert!(tls(&own).unwrap().unwrap().identity.is_some());
        let wrong = format!("{ca} --etcd-certfile {} --etcd-keyfile {}", file("etcd.crt"), file("etcd.crt"));
        assert!(said(&wrong).contains("can't be used"), "{}", said(&wrong));
        assert!(said(&format!("--etcd-cafile {}", file("none"))).contains("failed to read --etcd-cafile"));
    }
}
