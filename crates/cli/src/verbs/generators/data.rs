//! `create configmap`, `create secret`, `create namespace`, `create serviceaccount`.
//! Subcommands of `create`.
//! Files are read here, never on the server.

use super::{MANAGER, create, given_namespace, name};
use crate::{
    command::Command,
    failure::Result,
    flags::{Flag, Matches, array, boolean, string},
    generate::{
        config::{self, DataSources, Registry},
        source_files::Disk,
    },
    printers::{PRINT, operation::DRY_RUN},
    run,
    session::Session,
    verbs::change::{VALIDATE, create::SAVE_CONFIG},
};

const SOURCES: &[Flag] = &[
    boolean("append-hash", "false", "Append a hash of the content to the name"),
    array("from-env-file", "File with lines of KEY=value"),
    array("from-file", "File, or directory of files, as KEY=path or path"),
    array("from-literal", "KEY=value"),
];
const TYPE: &[Flag] = &[string("type", "", "Type of the secret")];
const REGISTRY: &[Flag] = &[
    boolean("append-hash", "false", "Append a hash of the content to the name"),
    string("docker-email", "", "Email for the registry"),
    string("docker-password", "", "Password for the registry"),
    string("docker-server", "https://index.docker.io/v1/", "Address of the registry"),
    string("docker-username", "", "User name for the registry"),
    array("from-file", "File with a Docker configuration"),
];
const TLS: &[Flag] = &[
    boolean("append-hash", "false", "Append a hash of the content to the name"),
    string("cert", "", "File with the certificate, in PEM"),
    string("key", "", "File with the key of the certificate"),
];

pub static CONFIG_MAP: Command = Command {
    name: "configmap",
    aliases: &["cm"],
    usage: "NAME [--from-file=[key=]source] [--from-literal=key1=value1] [--dry-run=server|client|none] [options]",
    about: "Create a config map from a local file, directory or literal value",
    flags: &[SOURCES, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(config_map),
};

pub static SECRET: Command = Command {
    name: "secret",
    aliases: &[],
    usage: "(docker-registry | generic | tls) [options]",
    about: "Create a secret using a specified subcommand",
    flags: &[],
    commands: &[&DOCKER_REGISTRY, &GENERIC, &TLS_SECRET],
    run: None,
};

static GENERIC: Command = Command {
    name: "generic",
    aliases: &[],
    usage: "NAME [--type=string] [--from-file=[key=]source] [--from-literal=key1=value1] [--dry-run=server|client|none] [options]",
    about: "Create a secret from a local file, directory, or literal value",
    flags: &[SOURCES, TYPE, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(generic),
};

static DOCKER_REGISTRY: Command = Command {
    name: "docker-registry",
    aliases: &[],
    usage: "NAME --docker-username=user --docker-password=password --docker-email=email [--docker-server=string] [--from-file=[key=]source] [--dry-run=server|client|none] [options]",
    about: "Create a secret for use with a Docker registry",
    flags: &[REGISTRY, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(docker_registry),
};

static TLS_SECRET: Command = Command {
    name: "tls",
    aliases: &[],
    usage: "NAME --cert=path/to/cert/file --key=path/to/key/file [--dry-run=server|client|none] [options]",
    about: "Create a TLS secret",
    flags: &[TLS, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(tls),
};

pub static NAMESPACE: Command = Command {
    name: "namespace",
    aliases: &["ns"],
    usage: "NAME [--dry-run=server|client|none] [options]",
    about: "Create a namespace with the specified name",
    flags: &[MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(namespace),
};

pub static SERVICE_ACCOUNT: Command = Command {
    name: "serviceaccount",
    aliases: &["sa"],
    usage: "NAME [--dry-run=server|client|none] [options]",
    about: "Create a service account with the specified name",
    flags: &[MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(service_account),
};

fn sources(matches: &Matches) -> DataSources {
    DataSources {
        literals: matches.list("from-literal"),
        files: matches.list("from-file"),
        env_files: matches.list("from-env-file"),
    }
}

async fn config_map(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let made = config::config_map(name, namespace.as_deref(), &sources(matches), matches.bool("append-hash"), &Disk);
    create(session, matches, made).await
}

async fn generic(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let (kind, hashed) = (matches.str("type"), matches.bool("append-hash"));
    create(session, matches, config::generic_secret(name, namespace.as_deref(), kind, &sources(matches), hashed, &Disk))
        .await
}

async fn docker_registry(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let registry = Registry {
        server: matches.str("docker-server"),
        username: matches.str("docker-username"),
        password: matches.str("docker-password"),
        email: matches.str("docker-email"),
    };
    let (files, hashed) = (matches.list("from-file"), matches.bool("append-hash"));
    create(session, matches, config::registry_secret(name, namespace.as_deref(), &registry, &files, hashed, &Disk))
        .await
}

async fn tls(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let pair = (matches.str("cert"), matches.str("key"));
    let check = |certificate: &[u8], key: &[u8]| client::certified_key(certificate, key).map(drop);
    create(
        session,
        matches,
        config::tls_secret(name, namespace.as_deref(), pair, matches.bool("append-hash"), &Disk, check),
    )
    .await
}

async fn namespace(session: &Session, matches: &Matches) -> Result<()> {
    create(session, matches, Ok(config::namespace(name(matches)?))).await
}

async fn service_account(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    create(session, matches, Ok(config::service_account(name, namespace.as_deref()))).await
}
