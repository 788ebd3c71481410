//! The flags that every command takes.
//! Read by `lib` before anything else; used by `kubeconfig` and `rest`.
//! A table only.

use super::{Flag, boolean, int, list, string};

pub const GLOBAL: &[Flag] = &[
    string("as", "", "User name to act as"),
    list("as-group", "Group to act as; may be repeated"),
    string("as-uid", "", "UID to act as"),
    list("as-user-extra", "Extra attribute to act with, as key=value; may be repeated"),
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
    boolean("match-server-version", "false", "Refuse a server of another version"),
    string("namespace", "", "Namespace of the request").short('n'),
    string("password", "", "Password of basic authentication"),
    string("request-timeout", "0", "How long one request may take; 0 is for ever"),
    string("server", "", "Address and port of the API server").short('s'),
    string("tls-server-name", "", "Name the server's certificate is checked for"),
    string("token", "", "Bearer token"),
    string("user", "", "Name of the kubeconfig user to use"),
    string("username", "", "User name of basic authentication"),
    int("v", "0", "How much is logged").short('v'),
    boolean("warnings-as-errors", "false", "End with an exit code other than 0 after a warning from the server"),
];
