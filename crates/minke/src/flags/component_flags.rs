//! What the controller manager and the scheduler have in common when they run alone, under upstream's names: the way to the
//! API server, the port, the election.
//! Part of both commands' flags; used by `commands`.
//! Files are read where they are used, and what they hold is never shown.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Args, builder::BoolishValueParser};
use client::LeaderElection;
use env::Env;
use parking_lot::RwLock;
use rustls::{server::ResolvesServerCert, sign::CertifiedKey};
use serve::TlsOptions;
use tokio_util::sync::CancellationToken;

use super::security_flags::duration;
use crate::certificates::{kubeconfigs::Source, pki::Current};

/// Certificates from files are looked at this often; who renews them need not tell us.
const REREAD_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default, Args)]
pub struct ConnectionFlags {
    /// Credentials for the API server [default: those of the pod this runs in]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, in place of the kubeconfig's
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
}

impl ConnectionFlags {
    pub fn source(&self) -> Source {
        Source { kubeconfig: self.kubeconfig.clone(), master: self.master.clone() }
    }
}

/// The certificate of a server that files hold, and which TLS it speaks.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsFlags {
    /// Serving certificate, as PEM; read again when it changes [default: one of its own making]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Cipher suites of TLS 1.2 to offer [default: all that are any good]
    #[arg(long, value_name = "SUITES", value_delimiter = ',')]
    tls_cipher_suites: Vec<String>,
    /// VersionTLS12 or VersionTLS13
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    tls_min_version: String,
}

impl TlsFlags {
    pub fn options(&self) -> Result<TlsOptions> {
        TlsOptions::parse(self.tls_cipher_suites.clone(), &self.tls_min_version).map_err(anyhow::Error::msg)
    }

    /// Whether a certificate is given.
    pub fn is_given(&self) -> bool {
        self.tls_cert_file.is_some()
    }

    pub fn certificate(&self, env: &Env, shutdown: &CancellationToken) -> Result<Option<Arc<dyn ResolvesServerCert>>> {
        let (Some(chain), Some(key)) = (&self.tls_cert_file, &self.tls_private_key_file) else { return Ok(None) };
        Ok(Some(Arc::new(follow_certificate(chain, key, env, shutdown)?)))
    }
}

/// A certificate and its key from files, read again when they change.
pub fn follow_certificate(chain: &Path, key: &Path, env: &Env, shutdown: &CancellationToken) -> Result<Current> {
    let (chain, key) = (chain.to_path_buf(), key.to_path_buf());
    let read = move || -> Result<CertifiedKey> {
        let pem = |path: &Path| std::fs::read(path).with_context(|| format!("failed to read {}", path.display()));
        let certified = client::certified_key(&pem(&chain)?, &pem(&key)?).map_err(anyhow::Error::msg);
        let certified = certified.with_context(|| format!("{} or its key can't be used", chain.display()))?;
        match certified.keys_match() {
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
                bail!("{} is not the key of {}", key.display(), chain.display())
            }
            _ => Ok(certified),
        }
    };
    let current = Current(Arc::new(RwLock::new(Arc::new(read()?))));
    let (kept, env, shutdown) = (current.clone(), env.clone(), shutdown.clone());
    env.clone().spawn(async move {
        while shutdown.run_until_cancelled(env.sleep(REREAD_INTERVAL)).await.is_some() {
            match read() {
                Ok(found) if found.cert != kept.0.read().cert => *kept.0.write() = Arc::new(found),
                Ok(_) => {}
                Err(error) => tracing::warn!(error = format!("{error:#}"), "the certificate from before is kept"),
            }
        }
    });
    Ok(current)
}

#[derive(Debug, Clone, Args)]
pub struct PortFlags {
    /// Where health (for everybody) and metrics (for those who may get /metrics) answer over HTTPS
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Authorities of the certificates by which clients are known there [default: those of the API server]
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Credentials to ask an API server with who a caller is [default: --kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Credentials to ask an API server with what a caller may [default: --kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Paths that are for everybody; one that ends in /* stands for all below it
    #[arg(long, value_name = "PATHS", value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    pub authorization_always_allow_paths: Vec<String>,
    #[command(flatten)]
    pub tls: TlsFlags,
}

#[derive(Debug, Clone, Args)]
pub struct LeaderElectionFlags {
    /// Whether to wait for the Lease that only one of several holds [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new())]
    pub leader_elect: Option<bool>,
    #[command(flatten)]
    pub times: LeaderElectionTimes,
    /// Name of the Lease [default: that of the component]
    #[arg(long, value_name = "NAME")]
    pub leader_elect_resource_name: Option<String>,
    /// Its namespace [default: kube-system]
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_resource_namespace: Option<String>,
}

// No doc comment: clap would show it as --help.
#[derive(Debug, Clone, Args)]
pub struct LeaderElectionTimes {
    /// How long others wait for a leader that renews nothing [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub leader_elect_lease_duration: Option<Duration>,
    /// How long a leader tries to renew before it stops [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub leader_elect_renew_deadline: Option<Duration>,
    /// How often it is tried [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub leader_elect_retry_period: Option<Duration>,
}

impl LeaderElectionFlags {
    /// Lays the flags over what counts without them, and checks what comes of it as upstream does.
    pub fn apply(&self, election: &mut LeaderElection) -> Result<()> {
        for (flag, field) in [
            (&self.leader_elect_resource_name, &mut election.name),
            (&self.leader_elect_resource_namespace, &mut election.namespace),
        ] {
            if let Some(text) = flag {
                field.clone_from(text);
            }
        }
        self.times.apply(election)
    }
}

impl LeaderElectionTimes {
    /// The same for the durations alone.
    pub fn apply(&self, election: &mut LeaderElection) -> Result<()> {
        for (flag, field) in [
            (self.leader_elect_lease_duration, &mut election.lease_duration),
            (self.leader_elect_renew_deadline, &mut election.renew_deadline),
            (self.leader_elect_retry_period, &mut election.retry_period),
        ] {
            *field = flag.unwrap_or(*field);
        }
        if election.lease_duration <= election.renew_deadline {
            bail!("leaseDuration must be greater than renewDeadline");
        }
        if election.renew_deadline <= election.retry_period.mul_f64(JITTER_FACTOR) {
            bail!("renewDeadline must be greater than retryPeriod*JitterFactor");
        }
        if election.lease_duration < Duration::from_secs(1) || election.retry_period.is_zero() {
            bail!("leaseDuration must be at least one second, and retryPeriod greater than zero");
        }
        Ok(())
    }
}

/// By which retries differ from each other at most.
const JITTER_FACTOR: f64 = 1.2;
