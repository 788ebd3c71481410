//! Who may say who a client is, as flags with upstream's names: OpenID Connect issuers and ServiceAccount keys.
//! Part of `security_flags`.
//! A file that can't be used stops the start; what it holds is never shown.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use apiserver::{
    authn::{
        oidc::{
            ALGORITHMS,
            configuration::{
                AuthenticationConfiguration, ClaimMappings, ClaimValidationRule, Issuer, JwtAuthenticator,
                PrefixedClaimOrExpression,
            },
        },
        service_account,
    },
    config,
};
use clap::{Args, builder::BoolishValueParser};

use super::security_flags::duration;

const HOUR: Duration = Duration::from_secs(3600);
const EXPIRATION_MAX: Duration = Duration::from_secs(1 << 32);

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Authentication")]
pub struct AuthenticationFlags {
    /// Issuers of tokens and anonymous requests (AuthenticationConfiguration); read again when it changes
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// URL of an OpenID Connect issuer, https only
    #[arg(long, value_name = "URL")]
    oidc_issuer_url: Option<String>,
    /// What a token of that issuer must be for
    #[arg(long, value_name = "ID")]
    oidc_client_id: Option<String>,
    /// Authorities of that issuer's certificate, as PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,
    /// Claim that names the user [default: sub]
    #[arg(long, value_name = "CLAIM")]
    oidc_username_claim: Option<String>,
    /// Goes before every user name; `-` for nothing [default: the issuer and a #, unless the claim is email]
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    oidc_username_prefix: Option<String>,
    /// Claim that holds the groups
    #[arg(long, value_name = "CLAIM")]
    oidc_groups_claim: Option<String>,
    /// Goes before every group
    #[arg(long, value_name = "PREFIX")]
    oidc_groups_prefix: Option<String>,
    /// How tokens may be signed [default: RS256]
    #[arg(long, value_name = "ALGORITHMS", value_delimiter = ',')]
    oidc_signing_algs: Vec<String>,
    /// A claim that tokens must have with this value; may be given several times
    #[arg(long, value_name = "CLAIM=VALUE")]
    oidc_required_claim: Vec<String>,
    /// Believe tokens of Secrets of type bootstrap.kubernetes.io/token, with which nodes join
    #[arg(long, value_name = "BOOL", default_value = "true", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    enable_bootstrap_token_auth: bool,
    /// Issuer of ServiceAccount tokens, an https URL; further ones are believed too
    /// [default: https://kubernetes.default.svc.cluster.local]
    #[arg(long, value_name = "URL")]
    service_account_issuer: Vec<String>,
    /// Keys that verify ServiceAccount tokens besides the one that signs them, as PEM; may be given several times
    #[arg(long, value_name = "FILE")]
    service_account_key_file: Vec<PathBuf>,
    /// Key that signs ServiceAccount tokens, as PEM [default: the cluster's own]
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// How long a ServiceAccount token may be asked for
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    service_account_max_token_expiration: Option<Duration>,
    /// Let the tokens of pods live on for a year, for clients that never read them again
    #[arg(long, value_name = "BOOL", default_value = "true", default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    service_account_extend_token_expiration: bool,
    /// Where others find the keys of ServiceAccount tokens, an https URL [default: below the issuer]
    #[arg(long, value_name = "URL")]
    service_account_jwks_uri: Option<String>,
    /// What a token must be good for to be shown to this API server [default: the issuers]
    #[arg(long, value_name = "AUDIENCES", value_delimiter = ',')]
    api_audiences: Vec<String>,
}

impl AuthenticationFlags {
    pub fn apply(&self, config: &mut config::Config) -> Result<()> {
        config.authentication.bootstrap_tokens = self.enable_bootstrap_token_auth;
        self.service_accounts(&mut config.service_accounts)?;
        config.authentication.oidc = match (&self.authentication_config, self.oidc()?) {
            (Some(_), Some(_)) => bail!("authentication-config file and oidc-* flags are mutually exclusive"),
            (Some(path), None) => Some(config::Oidc::File(path.clone())),
            (None, flags) => flags,
        };
        Ok(())
    }

    /// Whether the file says something of anonymous requests, which then no flag may.
    pub fn configures_anonymous(&self) -> Result<bool> {
        let Some(path) = &self.authentication_config else { return Ok(false) };
        Ok(AuthenticationConfiguration::load(path).map_err(anyhow::Error::msg)?.anonymous.is_some())
    }

    fn service_accounts(&self, accounts: &mut config::ServiceAccounts) -> Result<()> {
        for issuer in &self.service_account_issuer {
            if issuer.is_empty() || (issuer.contains(':') && issuer.parse::<http::Uri>().is_err()) {
                bail!("--service-account-issuer {issuer:?} is not a URL");
            }
        }
        if let Some((first, others)) = self.service_account_issuer.split_first() {
            accounts.issuer = first.clone();
            accounts.former_issuers = others.to_vec();
            accounts.audiences = self.service_account_issuer.clone();
        }
        if !self.api_audiences.is_empty() {
            accounts.audiences = self.api_audiences.clone();
        }
        if let Some(path) = &self.service_account_signing_key_file {
            // What was signed before stays good.
            if !accounts.signing_key_pem.is_empty() {
                let own = service_account::public_keys_pem(accounts.signing_key_pem.as_bytes());
                accounts.verification_keys_pem.extend(own.map_err(anyhow::Error::msg)?);
            }
            accounts.signing_key_pem = self.signing_key()?.unwrap_or_default();
            let readable = service_account::public_keys_pem(accounts.signing_key_pem.as_bytes());
            readable.map_err(|e| anyhow::anyhow!("--service-account-signing-key-file {}: {e}", path.display()))?;
        }
        for path in &self.service_account_key_file {
            let text = fs::read(path)
                .with_context(|| format!("failed to read --service-account-key-file {}", path.display()))?;
            let keys = service_account::public_keys_pem(&text);
            let keys = keys.map_err(|e| anyhow::anyhow!("--service-account-key-file {}: {e}", path.display()))?;
            accounts.verification_keys_pem.extend(keys);
        }
        if let Some(longest) = self.service_account_max_token_expiration {
            if !(HOUR..=EXPIRATION_MAX).contains(&longest) {
                bail!("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds");
            }
            accounts.max_token_expiration = longest;
        }
        accounts.extend_token_expiration = self.service_account_extend_token_expiration;
        if let Some(uri) = &self.service_account_jwks_uri {
            if uri.parse::<http::Uri>().ok().and_then(|uri| uri.scheme_str().map(|s| s == "https")) != Some(true) {
                bail!("service-account-jwks-uri requires https scheme, parsed as: {uri}");
            }
            accounts.jwks_uri = Some(uri.clone());
        }
        Ok(())
    }

    /// The key that signs tokens, if it is not the cluster's own.
    pub fn signing_key(&self) -> Result<Option<String>> {
        let Some(path) = &self.service_account_signing_key_file else { return Ok(None) };
        let text = fs::read_to_string(path)
            .with_context(|| format!("failed to read --service-account-signing-key-file {}", path.display()))?;
        Ok(Some(text))
    }

    fn oidc(&self) -> Result<Option<config::Oidc>> {
        let (Some(url), Some(client)) = (&self.oidc_issuer_url, &self.oidc_client_id) else {
            let others = [
                &self.oidc_issuer_url,
                &self.oidc_client_id,
                &self.oidc_username_claim,
                &self.oidc_username_prefix,
                &self.oidc_groups_claim,
                &self.oidc_groups_prefix,
            ];
            let any = others.iter().any(|flag| flag.is_some())
                || self.oidc_ca_file.is_some()
                || !self.oidc_signing_algs.is_empty()
                || !self.oidc_required_claim.is_empty();
            if any {
                bail!("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set");
            }
            return Ok(None);
        };
        let claim = self.oidc_username_claim.clone().unwrap_or_else(|| "sub".into());
        let prefix = match self.oidc_username_prefix.as_deref().unwrap_or_default() {
            "" if claim != "email" => format!("{url}#"),
            "-" => String::new(),
            prefix => prefix.to_string(),
        };
        let groups = self.oidc_groups_claim.clone().map(|claim| PrefixedClaimOrExpression {
            claim,
            prefix: Some(self.oidc_groups_prefix.clone().unwrap_or_default()),
            ..PrefixedClaimOrExpression::default()
        });
        let certificate_authority = match &self.oidc_ca_file {
            None => String::new(),
            Some(path) => {
                fs::read_to_string(path).with_context(|| format!("failed to read --oidc-ca-file {}", path.display()))?
            }
        };
        let mut rules = Vec::new();
        for claim in &self.oidc_required_claim {
            let Some((claim, value)) = claim.split_once('=') else {
                bail!("malformed pair, expect string=string: --oidc-required-claim {claim}");
            };
            let (claim, required_value) = (claim.trim().to_string(), value.trim().to_string());
            rules.push(ClaimValidationRule { claim, required_value, ..ClaimValidationRule::default() });
        }
        let mut signing_algs = self.oidc_signing_algs.clone();
        if signing_algs.is_empty() {
            signing_algs.push("RS256".into());
        }
        if let Some(unknown) = signing_algs.iter().find(|alg| !ALGORITHMS.iter().any(|(known, _)| known == alg)) {
            let known: Vec<_> = ALGORITHMS.iter().map(|(name, _)| *name).collect();
            bail!("--oidc-signing-algs {unknown} is not supported: use {}", known.join(", "));
        }
        let authenticator = JwtAuthenticator {
            issuer: Issuer {
                url: url.clone(),
                audiences: vec![client.clone()],
                certificate_authority,
                ..Issuer::default()
            },
            claim_validation_rules: rules,
            claim_mappings: ClaimMappings {
                username: PrefixedClaimOrExpression {
                    claim,
                    prefix: Some(prefix),
                    ..PrefixedClaimOrExpression::default()
                },
                groups: groups.unwrap_or_default(),
                ..ClaimMappings::default()
            },
            ..JwtAuthenticator::default()
        };
        Ok(Some(config::Oidc::Flags { authenticator: Box::new(authenticator), signing_algs }))
    }
}
