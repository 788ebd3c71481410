//! The flags that every command takes.
//! Read by `lib` before anything else; used by `kubeconfig` and `rest`.
//! A table, and what of it is refused.

use super::{Flag, Matches, array, boolean, duration, int, string};
use crate::failure::{Failure, Result};

pub const GLOBAL: &[Flag] = &[
    string("as", "", "User name to act as"),
    array("as-group", "Group to act as; may be repeated"),
    string("as-uid", "", "UID to act as"),
    array("as-user-extra", "Extra attribute to act with, as key=value; may be repeated"),
    string("cache-dir", "", "Directory of the discovery cache"),
    string("certificate-authority", "", "File with the certificates that the server's is checked against"),
    string("client-certificate", "", "File with the client certificate"),
    string("client-key", "", "File with the key of the client certificate"),
    string("cluster", "", "Name of the kubeconfig cluster to use"),
    string("context", "", "Name of the kubeconfig context to use"),
    boolean("disable-compression", "false", "Do not ask for compressed answers"),
    boolean("insecure-skip-tls-verify", "false", "Do not check the server's certificate"),
    string("kubeconfig", "", "Kubeconfig file to use"),
    string("kuberc", "", "File with preferences: defaults of flags, and aliases"),
    duration("log-flush-frequency", "5s", "How long a logged line may wait; none does"),
    boolean("match-server-version", "false", "Refuse a server of another version"),
    string("namespace", "", "Namespace of the request").short('n'),
    string("password", "", "Password of basic authentication"),
    string("profile", "none", "Profile to capture; only none"),
    string("profile-output", "profile.pprof", "File the profile goes to"),
    string("request-timeout", "0", "How long one request may take; 0 is for ever"),
    string("server", "", "Address and port of the API server").short('s'),
    string("tls-server-name", "", "Name the server's certificate is checked for"),
    string("token", "", "Bearer token"),
    string("user", "", "Name of the kubeconfig user to use"),
    string("username", "", "User name of basic authentication"),
    int("v", "0", "How much is logged").short('v'),
    string("vmodule", "", "How much is logged of single files, as pattern=N; none has a level of its own"),
    boolean("warnings-as-errors", "false", "End with an exit code other than 0 after a warning from the server"),
];

/// What stock kubectl's own runtime would have to do.
pub fn unavailable(globals: &Matches) -> Result<()> {
    // `debug` has a profile of its own.
    let profile = if globals.shadowed.contains(&"profile") { "none" } else { globals.str("profile") };
    match (profile, globals.str("vmodule")) {
        ("none", "") => Ok(()),
        ("none", _) => Err(Failure::message("--vmodule is not available: use -v")),
        (profile @ ("cpu" | "heap" | "goroutine" | "threadcreate" | "block" | "mutex" | "trace"), _) => {
            Err(Failure::message(format!("--profile={profile} is not available: this program has no Go runtime")))
        }
        (profile, _) => Err(Failure::message(format!("unknown profile '{profile}'"))),
    }
}
