//! Who gets in and what they may do, as flags with upstream's names.
//! Part of the flags of every command that serves the API; read by `server`.
//! A file that can't be used stops the start; what it holds is never shown.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use apiserver::config;
use clap::{Args, builder::BoolishValueParser};

use super::{audit_flags::AuditFlags, authentication_flags::AuthenticationFlags, feature_flags::FeatureFlags};

/// Extra headers of a front proxy, and the names of the others, as every cluster has them.
const USER_HEADER: &str = "X-Remote-User";
const UID_HEADER: &str = "X-Remote-Uid";
const GROUP_HEADER: &str = "X-Remote-Group";
const EXTRA_PREFIX: &str = "X-Remote-Extra-";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Security")]
pub struct Security {
    /// Authorities of client certificates that are believed besides the cluster's own, as PEM
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Static tokens, one `token,user,uid[,"group,group"]` per line
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Static passwords, one `password,user,uid[,"group,group"]` per line
    #[arg(long, value_name = "FILE")]
    basic_auth_file: Option<PathBuf>,
    /// Kubeconfig of a service that is asked whose token a request shows
    #[arg(long, value_name = "FILE")]
    authentication_token_webhook_config_file: Option<PathBuf>,
    /// How long that service's answers are believed
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    authentication_token_webhook_cache_ttl: Duration,
    /// Let requests without credentials through as system:anonymous [default: true]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true,
        value_parser = BoolishValueParser::new())]
    anonymous_auth: Option<bool>,
    /// Who decides what a user may do, in this order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny
    /// [default: Node,RBAC]
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    authorization_mode: Vec<String>,
    /// Who decides what a user may do (AuthorizationConfiguration); read again when it changes
    #[arg(long, value_name = "FILE")]
    authorization_config: Option<PathBuf>,
    /// Policies of the mode ABAC, one per line
    #[arg(long, value_name = "FILE")]
    authorization_policy_file: Option<PathBuf>,
    /// Kubeconfig of the service that the mode Webhook asks
    #[arg(long, value_name = "FILE")]
    authorization_webhook_config_file: Option<PathBuf>,
    /// How long a yes of that service is believed
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// How long a no of that service is believed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    authorization_webhook_cache_unauthorized_ttl: Duration,
    /// Authorities of proxies that name the user of a request in headers, as PEM
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names such a proxy may have [default: any]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    /// Headers that hold the user
    #[arg(long, value_name = "HEADERS", default_value = USER_HEADER, value_delimiter = ',')]
    requestheader_username_headers: Vec<String>,
    /// Headers that hold the user's uid
    #[arg(long, value_name = "HEADERS", default_value = UID_HEADER, value_delimiter = ',')]
    requestheader_uid_headers: Vec<String>,
    /// Headers that hold the user's groups
    #[arg(long, value_name = "HEADERS", default_value = GROUP_HEADER, value_delimiter = ',')]
    requestheader_group_headers: Vec<String>,
    /// How headers with more about the user begin
    #[arg(long, value_name = "PREFIXES", default_value = EXTRA_PREFIX, value_delimiter = ',')]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Admission plugins to turn on besides those that are on
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins to turn off
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// Settings of single admission plugins (AdmissionConfiguration)
    #[arg(long, value_name = "FILE")]
    admission_control_config_file: Option<PathBuf>,
    /// Divide the two limits below among priority levels, and queue what comes beyond them
    #[arg(long, value_name = "BOOL", default_value = "true", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    enable_priority_and_fairness: bool,
    /// How many requests that only read are served at once; 0: any number
    #[arg(long, value_name = "N", default_value_t = 400)]
    max_requests_inflight: usize,
    /// How many requests that write are served at once; 0: any number
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_mutating_requests_inflight: usize,
    /// How long a request may take that is not a watch or the like
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    request_timeout: Duration,
    /// How many seconds a watch lasts at least, unless it asks for less
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    min_request_timeout: u64,
    /// How many requests a client may have under way on one HTTP/2 connection; 0: 250
    #[arg(long, value_name = "N", default_value_t = 1000)]
    http2_max_streams_per_connection: u32,
    /// Groups, versions and resources to serve or to hide, as api/beta=false,apps/v1=true
    #[arg(long, value_name = "CONFIG", default_value = "", hide_default_value = true, value_parser = runtime_config)]
    runtime_config: config::RuntimeConfig,
    #[command(flatten)]
    pub features: FeatureFlags,
    #[command(flatten)]
    pub authentication: AuthenticationFlags,
    #[command(flatten)]
    audit: AuditFlags,
}

fn runtime_config(text: &str) -> Result<config::RuntimeConfig, String> {
    config::RuntimeConfig::parse(text.split(','))
}

/// Who decides unless a flag says otherwise.
const USUAL_MODES: [&str; 2] = ["Node", "RBAC"];
/// What upstream's HTTP/2 server allows when it is not told.
const GO_STREAMS_PER_CONNECTION: u32 = 250;

/// As Go writes them: `90s`, `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| "write it as 30s or 5m".to_string())?;
    Duration::try_from(parsed).map_err(|_| "it may not be negative".into())
}

impl Security {
    pub fn names_client_authorities(&self) -> bool {
        self.client_ca_file.is_some()
    }

    /// Completes what an API server is told. The files it names are read where they are used.
    pub fn apply(&self, config: &mut config::Config) -> Result<()> {
        if let Some(path) = &self.client_ca_file {
            certificates(path, "--client-ca-file")?;
            config.client_ca_file = Some(path.clone());
        }
        self.authentication(&mut config.authentication)?;
        self.authentication.apply(config)?;
        if self.anonymous_auth.is_some() && self.authentication.configures_anonymous()? {
            bail!(
                "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in \
                 authentication configuration file"
            );
        }
        config.anonymous_auth = self.anonymous_auth.unwrap_or(true);
        config.feature_gates = self.features.feature_gates.clone();
        config.runtime_config = self.runtime_config.clone();
        self.authorization(config)?;
        config.enable_admission_plugins.extend(self.enable_admission_plugins.iter().cloned());
        config.disable_admission_plugins.extend(self.disable_admission_plugins.iter().cloned());
        config.audit = self.audit.options()?;
        config.admission_control_config_file = self.admission_control_config_file.clone();
        config.limits.priority_and_fairness = self.enable_priority_and_fairness;
        config.limits.requests_in_flight = unlimited(self.max_requests_inflight);
        config.limits.mutating_requests_in_flight = unlimited(self.max_mutating_requests_inflight);
        if self.request_timeout.is_zero() {
            bail!("--request-timeout can not be zero");
        }
        config.limits.request_timeout = self.request_timeout;
        config.limits.min_watch = Duration::from_secs(self.min_request_timeout);
        config.limits.connections.streams_per_connection = match self.http2_max_streams_per_connection {
            0 => GO_STREAMS_PER_CONNECTION,
            streams => streams,
        };
        Ok(())
    }

    fn authentication(&self, authentication: &mut config::Authentication) -> Result<()> {
        authentication.token_file = self.token_auth_file.clone();
        authentication.password_file = self.basic_auth_file.clone();
        let ttl = self.authentication_token_webhook_cache_ttl;
        authentication.webhook = self.authentication_token_webhook_config_file.as_ref().map(|path| config::Webhook {
            kubeconfig: path.clone(),
            allowed_for: ttl,
            refused_for: ttl,
        });
        authentication.request_header = match &self.requestheader_client_ca_file {
            None if !self.requestheader_allowed_names.is_empty() => {
                bail!("--requestheader-allowed-names needs --requestheader-client-ca-file")
            }
            None => None,
            Some(path) => Some(config::RequestHeader {
                // Read where it is used, and again when it changes.
                ca_pem: certificates(path, "--requestheader-client-ca-file").map(|_| Vec::new())?,
                ca_file: Some(path.clone()),
                allowed_names: self.requestheader_allowed_names.clone(),
                username_headers: self.requestheader_username_headers.clone(),
                uid_headers: self.requestheader_uid_headers.clone(),
                group_headers: self.requestheader_group_headers.clone(),
                extra_header_prefixes: self.requestheader_extra_headers_prefix.clone(),
            }),
        };
        Ok(())
    }

    fn authorization(&self, config: &mut config::Config) -> Result<()> {
        if self.authorization_config.is_some() {
            if !self.authorization_mode.is_empty() || self.authorization_webhook_config_file.is_some() {
                bail!(
                    "--authorization-config can not be specified when --authorization-mode or \
                     --authorization-webhook-* flags are defined"
                );
            }
            config.authorization.config_file = self.authorization_config.clone();
            config.authorization.policy_file = self.authorization_policy_file.clone();
            return Ok(());
        }
        let usual = || USUAL_MODES.map(str::to_string).to_vec();
        let modes = if self.authorization_mode.is_empty() { usual() } else { self.authorization_mode.clone() };
        let has = |mode: &str| modes.iter().any(|m| m == mode);
        if let Some(twice) = modes.iter().enumerate().find(|(n, mode)| modes[..*n].contains(mode)) {
            bail!("authorization-mode {:?} has mode specified more than once", twice.1);
        }
        if self.authorization_policy_file.is_some() && !has("ABAC") {
            bail!("cannot specify --authorization-policy-file without mode ABAC");
        }
        if self.authorization_webhook_config_file.is_some() && !has("Webhook") {
            bail!("cannot specify --authorization-webhook-config-file without mode Webhook");
        }
        config.authorization_modes = modes;
        config.authorization.policy_file = self.authorization_policy_file.clone();
        config.authorization.webhook = self.authorization_webhook_config_file.as_ref().map(|path| config::Webhook {
            kubeconfig: path.clone(),
            allowed_for: self.authorization_webhook_cache_authorized_ttl,
            refused_for: self.authorization_webhook_cache_unauthorized_ttl,
        });
        Ok(())
    }
}

fn unlimited(limit: usize) -> usize {
    if limit == 0 { tokio::sync::Semaphore::MAX_PERMITS } else { limit }
}

fn certificates(path: &Path, flag: &str) -> Result<Vec<u8>> {
    let pem = fs::read(path).with_context(|| format!("failed to read {flag} {}", path.display()))?;
    match client::certificates(&pem) {
        Ok(found) if !found.is_empty() => Ok(pem),
        _ => bail!("{flag} {} holds no certificate in PEM", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        security: Security,
    }

    fn parse(line: &str) -> Result<config::Config> {
        let words = std::iter::once("minke").chain(line.split_whitespace());
        let mut config = config::Config::in_process(String::new());
        config.client_ca_pem = b"ours".to_vec();
        Line::try_parse_from(words)?.security.apply(&mut config)?;
        Ok(config)
    }

    fn check(line: &str, show: impl Fn(&config::Config) -> String, expected: &str) {
        match parse(line) {
            Ok(config) => assert_eq!(show(&config), expected, "{line}"),
            Err(error) => panic!("{line}: {error:#}"),
        }
    }

    #[test]
    fn flags_become_a_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let authority = rcgen::generate_simple_self_signed(["proxy".to_string()]).unwrap().cert.pem();
        let ca = directory.path().join("ca.pem");
        fs::write(&ca, &authority).unwrap();
        let ca = ca.display();

        let modes = |c: &config::Config| c.authorization_modes.join(" ");
        check("", modes, "Node RBAC");
        check("--authorization-mode=RBAC,AlwaysDeny", modes, "RBAC AlwaysDeny");
        check("", |c| format!("{} {:?}", c.anonymous_auth, c.authentication.password_file), "true None");
        check("--anonymous-auth=false", |c| c.anonymous_auth.to_string(), "false");
        check("--anonymous-auth", |c| c.anonymous_auth.to_string(), "true");
        let files =
            |c: &config::Config| format!("{:?} {:?}", c.authentication.token_file, c.authentication.password_file);
        check("--token-auth-file=t --basic-auth-file=p", files, "Some(\"t\") Some(\"p\")");
        let webhook = |w: &Option<config::Webhook>| {
            w.as_ref().map(|w| format!("{} {:?} {:?}", w.kubeconfig.display(), w.allowed_for, w.refused_for))
        };
        check(
            "--authentication-token-webhook-config-file=k",
            |c| webhook(&c.authentication.webhook).unwrap_or_default(),
            "k 120s 120s",
        );
        check(
            "--authorization-mode=Webhook --authorization-webhook-config-file=k \
             --authorization-webhook-cache-authorized-ttl=1m30s",
            |c| webhook(&c.authorization.webhook).unwrap_or_default(),
            "k 90s 30s",
        );
        check(
            "--authentication-token-webhook-config-file=k --authentication-token-webhook-cache-ttl=5s",
            |c| webhook(&c.authentication.webhook).unwrap_or_default(),
            "k 5s 5s",
        );
        check(
            "--authorization-mode=Webhook --authorization-webhook-config-file=k \
             --authorization-webhook-cache-unauthorized-ttl=7s",
            |c| webhook(&c.authorization.webhook).unwrap_or_default(),
            "k 300s 7s",
        );
        let settings = |c: &config::Config| format!("{:?}", c.admission_control_config_file);
        check("--admission-control-config-file=/a", settings, "Some(\"/a\")");
        check(
            "--authorization-mode=ABAC --authorization-policy-file=p",
            |c| format!("{:?}", c.authorization.policy_file),
            "Some(\"p\")",
        );
        let trusted = |c: &config::Config| String::from_utf8_lossy(&c.client_authorities_pem()).into_owned();
        check(&format!("--client-ca-file={ca}"), trusted, &format!("ours\n{authority}"));
        let proxy = |c: &config::Config| match &c.authentication.request_header {
            Some(r) => format!("{:?} {:?} {:?}", r.allowed_names, r.username_headers, r.extra_header_prefixes),
            None => "none".into(),
        };
        check("", proxy, "none");
        check(
            &format!("--requestheader-client-ca-file={ca} --requestheader-allowed-names=a,b"),
            proxy,
            r#"["a", "b"] ["X-Remote-User"] ["X-Remote-Extra-"]"#,
        );
        check(
            &format!("--requestheader-client-ca-file={ca} --requestheader-uid-headers=X-Uid,X-Other-Uid"),
            |c| format!("{:?}", c.authentication.request_header.as_ref().map(|r| &r.uid_headers)),
            r#"Some(["X-Uid", "X-Other-Uid"])"#,
        );
        let plugins =
            |c: &config::Config| format!("{:?} {:?}", c.enable_admission_plugins, c.disable_admission_plugins);
        check(
            "--enable-admission-plugins=AlwaysPullImages --disable-admission-plugins=PodSecurity,Priority",
            plugins,
            r#"["NodeRestriction", "AlwaysPullImages"] ["PodSecurity", "Priority"]"#,
        );
        let limits = |c: &config::Config| {
            let unlimited = c.limits.requests_in_flight == tokio::sync::Semaphore::MAX_PERMITS;
            format!("{unlimited} {} {}", c.limits.mutating_requests_in_flight, c.limits.priority_and_fairness)
        };
        check("--max-requests-inflight=0 --max-mutating-requests-inflight=7", limits, "true 7 true");
        check("--enable-priority-and-fairness=false", limits, "false 200 false");
        let times = |c: &config::Config| {
            let limits = &c.limits;
            let streams = limits.connections.streams_per_connection;
            format!("{:?} {:?} {streams}", limits.request_timeout, limits.min_watch)
        };
        check("", times, "60s 1800s 1000");
        let line = "--request-timeout=1m30s --min-request-timeout=7 --http2-max-streams-per-connection=9";
        check(line, times, "90s 7s 9");
        check("--http2-max-streams-per-connection=0", times, "60s 1800s 250");
        let tokens = |c: &config::Config| format!("{} {:?}", c.service_accounts.issuer, c.service_accounts.audiences);
        check("--service-account-issuer=https://i", tokens, r#"https://i ["https://i"]"#);
        check("--service-account-issuer=https://i --api-audiences=a,b", tokens, r#"https://i ["a", "b"]"#);
        let line = "--service-account-issuer=https://i --service-account-issuer=https://j";
        check(line, |c| c.service_accounts.issuers().join(" "), "https://i https://j");
        check(line, tokens, r#"https://i ["https://i", "https://j"]"#);
        let key = |name: &str| {
            let path = directory.path().join(name);
            fs::write(&path, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
            path.display().to_string()
        };
        let keys = |c: &config::Config| {
            let accounts = &c.service_accounts;
            format!(
                "{} {:?} {}",
                accounts.verification_keys_pem.len(),
                accounts.jwks_uri,
                accounts.extend_token_expiration
            )
        };
        check("", keys, "0 None true");
        let line = format!("--service-account-key-file={} --service-account-key-file={}", key("a"), key("b"));
        check(&line, keys, "2 None true");
        let line = "--service-account-jwks-uri=https://k/keys --service-account-extend-token-expiration=false";
        check(line, keys, "0 Some(\"https://k/keys\") false");
        let signed = format!("--service-account-signing-key-file={}", key("c"));
        check(&signed, |c| c.service_accounts.signing_key_pem.contains("PRIVATE KEY").to_string(), "true");
        let longest = |c: &config::Config| format!("{:?}", c.service_accounts.max_token_expiration);
        check("--service-account-max-token-expiration=2h", longest, "7200s");
        check("--enable-bootstrap-token-auth=false", |c| c.authentication.bootstrap_tokens.to_string(), "false");
        let oidc = |c: &config::Config| match &c.authentication.oidc {
            None => "none".to_string(),
            Some(config::Oidc::File(path)) => path.display().to_string(),
            Some(config::Oidc::Flags { authenticator: a, signing_algs }) => {
                let (m, i) = (&a.claim_mappings, &a.issuer);
                let rules: Vec<_> =
                    a.claim_validation_rules.iter().map(|r| format!("{}={}", r.claim, r.required_value)).collect();
                format!(
                    "{} {:?} {} {:?} {:?} {:?} {rules:?} {signing_algs:?}",
                    i.url, i.audiences, m.username.claim, m.username.prefix, m.groups.claim, m.groups.prefix
                )
            }
        };
        let gates = |c: &config::Config| c.feature_gates.enabled("Initializers").to_string();
        check("", gates, "false");
        check("--feature-gates=Initializers=true,AllBeta=true", gates, "true");
        let runtime = |c: &config::Config| format!("{:?}", c.runtime_config);
        check(
            "--runtime-config=api/all=false,api/v1=true",
            runtime,
            r#"RuntimeConfig({"api/all": false, "api/v1": true})"#,
        );
        check("", oidc, "none");
        check("--authentication-config=/none", oidc, "/none");
        let usual = "--oidc-issuer-url=https://i --oidc-client-id=c";
        check(usual, oidc, r#"https://i ["c"] sub Some("https://i#") "" None [] ["RS256"]"#);
        check(
            &format!(
                "{usual} --oidc-username-claim=email --oidc-groups-claim=g --oidc-groups-prefix=p: \
                 --oidc-required-claim=a=b --oidc-signing-algs=ES256,RS256"
            ),
            oidc,
            r#"https://i ["c"] email Some("") "g" Some("p:") ["a=b"] ["ES256", "RS256"]"#,
        );
        check(
            &format!("{usual} --oidc-ca-file={ca}"),
            |c| match &c.authentication.oidc {
                Some(config::Oidc::Flags { authenticator, .. }) => authenticator.issuer.certificate_authority.clone(),
                other => format!("{}", other.is_some()),
            },
            &authority,
        );
        check(
            &format!("{usual} --oidc-username-prefix=-"),
            oidc,
            r#"https://i ["c"] sub Some("") "" None [] ["RS256"]"#,
        );
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        let cases = [
            ("--authorization-policy-file=p", "without mode ABAC"),
            ("--authorization-webhook-config-file=k", "without mode Webhook"),
            ("--authorization-mode=RBAC,RBAC", "more than once"),
            ("--requestheader-allowed-names=a", "needs --requestheader-client-ca-file"),
            ("--client-ca-file=/nowhere/ca.pem", "failed to read --client-ca-file"),
            ("--client-ca-file=Cargo.toml", "holds no certificate"),
            ("--authorization-webhook-cache-authorized-ttl=soon", "write it as"),
            ("--service-account-issuer=https:// x", "unexpected argument"),
            ("--request-timeout=0s", "can not be zero"),
            ("--feature-gates=None=true", "unrecognized feature gate: None"),
            ("--runtime-config=nothing/v1=true", "unknown api groups nothing"),
            ("--oidc-issuer-url=https://i", "must be specified together"),
            ("--oidc-groups-claim=g", "must be specified together"),
            ("--oidc-issuer-url=https://i --oidc-client-id=c --oidc-signing-algs=HS256", "is not supported: use RS256"),
            ("--oidc-issuer-url=https://i --oidc-client-id=c --oidc-required-claim=a", "malformed pair"),
            ("--oidc-issuer-url=https://i --oidc-client-id=c --authentication-config=f", "mutually exclusive"),
            ("--authorization-config=f --authorization-mode=RBAC", "--authorization-config can not be specified"),
            ("--service-account-max-token-expiration=1m", "between 1 hour and 2^32 seconds"),
            ("--service-account-jwks-uri=http://k", "requires https scheme"),
            ("--service-account-key-file=Cargo.toml", "does not contain any valid RSA or ECDSA public keys"),
            ("--service-account-signing-key-file=/none", "failed to read --service-account-signing-key-file"),
        ];
        for (line, expected) in cases {
            let error = parse(line).err().map(|e| format!("{e:#}")).unwrap_or_default();
            assert!(error.contains(expected), "{line}: {error:?}");
        }
    }
}
