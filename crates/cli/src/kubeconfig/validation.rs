//! What a kubeconfig's user and cluster contradict themselves in, or lack.
//! Asked by `resolve` before a connection is made; the words are client-go's.
//! Reads nothing but whether files can be opened.

use std::fs::File;

use serde_json::Value;

use super::{Entry, resolve_beside, schema::MODE_IS_OPTIONAL};
use crate::failure::{Failure, Result, go_error};

/// Refuses what the user or the cluster has wrong: one problem by itself, several as a list.
pub fn usable(user: &Entry, cluster: &Entry) -> Result<()> {
    let mut problems = of_user(user);
    problems.extend(of_cluster(cluster));
    match problems.as_slice() {
        [] => Ok(()),
        [one] => Err(Failure::message(one.clone())),
        many => Err(Failure::Plain(format!("Error in configuration: \n* {}", many.join("\n* ")))),
    }
}

fn text<'a>(entry: &'a Entry, field: &str) -> &'a str {
    entry.value[field].as_str().unwrap_or_default()
}

/// Why the file that a field names can't be read.
fn unreadable(entry: &Entry, field: &str, what: &str) -> Option<String> {
    let path = Some(text(entry, field)).filter(|path| !path.is_empty())?;
    let path = resolve_beside(entry, path);
    let error = File::open(&path).err()?;
    Some(format!("unable to read {what} {path} for {} due to open {path}: {}", entry.name, go_error(&error)))
}

fn of_user(user: &Entry) -> Vec<String> {
    let name = &user.name;
    let has = |field: &str| !text(user, field).is_empty();
    let mut problems = Vec::new();
    if has("client-certificate") || has("client-certificate-data") {
        if has("client-certificate") && has("client-certificate-data") {
            problems.push(format!(
                "client-cert-data and client-cert are both specified for {name}. client-cert-data will override."
            ));
        }
        if has("client-key") && has("client-key-data") {
            problems.push(format!(
                "client-key-data and client-key are both specified for {name}; client-key-data will override"
            ));
        }
        if !has("client-key") && !has("client-key-data") {
            problems.push(format!(
                "client-key-data or client-key must be specified for {name} to use the clientCert authentication method."
            ));
        }
        problems.extend(unreadable(user, "client-certificate", "client-cert"));
        problems.extend(unreadable(user, "client-key", "client-key"));
    }
    if user.value["exec"].is_object() {
        problems.extend(of_plugin(user));
    }
    let token = has("token").then_some("token");
    let basic = (has("username") || has("password")).then_some("basicAuth");
    if let (Some(token), Some(basic)) = (token, basic) {
        problems.push(format!(
            "more than one authentication method found for {name}; found [{token} {basic}], only one is allowed"
        ));
    }
    problems
}

fn of_plugin(user: &Entry) -> Vec<String> {
    let (name, exec) = (&user.name, &user.value["exec"]);
    let text = |field: &str| exec[field].as_str().unwrap_or_default();
    let mut problems = Vec::new();
    if user.value["auth-provider"].is_object() {
        problems.push(format!("authProvider cannot be provided in combination with an exec plugin for {name}"));
    }
    let must = |what: &str| format!("{what} must be specified for {name} to use exec authentication plugin");
    for field in ["command", "apiVersion"] {
        if text(field).is_empty() {
            problems.push(must(field));
        }
    }
    let nameless = |pair: &&Value| pair["name"].as_str().unwrap_or_default().is_empty();
    let environment = exec["env"].as_array().into_iter().flatten();
    problems.extend(environment.filter(nameless).map(|_| must("env variable name")));
    match text("interactiveMode") {
        // The older versions have a mode for that.
        "" if MODE_IS_OPTIONAL.contains(&text("apiVersion")) => {}
        "" => problems.push(must("interactiveMode")),
        "Never" | "IfAvailable" | "Always" => {}
        mode => problems.push(format!("invalid interactiveMode for {name}: {mode:?}")),
    }
    problems
}

fn of_cluster(cluster: &Entry) -> Vec<String> {
    let name = &cluster.name;
    let mut problems = Vec::new();
    let proxy = text(cluster, "proxy-url");
    if !proxy.is_empty()
        && let Err(why) = proxy_problem(proxy)
    {
        problems.push(format!("invalid 'proxy-url' {proxy:?} for cluster {name:?}: {why}"));
    }
    if !text(cluster, "certificate-authority").is_empty() && !text(cluster, "certificate-authority-data").is_empty() {
        problems.push(format!(
            "certificate-authority-data and certificate-authority are both specified for {name}. certificate-authority-data will override."
        ));
    }
    problems.extend(unreadable(cluster, "certificate-authority", "certificate-authority"));
    problems
}

fn proxy_problem(url: &str) -> std::result::Result<(), String> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "http" | "https" | "socks5" => match client::Route::new(Some(url), None) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("could not parse: {url}")),
        },
        other => Err(format!("unsupported scheme {other:?}, must be http, https, or socks5")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(name: &str, value: Value) -> Entry {
        Entry { name: name.into(), value, file: "/nothere/config".into() }
    }

    /// Against what kubectl 1.35 says of the same files.
    #[test]
    fn what_contradicts_itself_is_said() {
        let check = |user: Value, cluster: Value, wanted: &[&str]| {
            let (user, cluster) = (entry("u", user), entry("c", cluster));
            let problems = [of_user(&user), of_cluster(&cluster)].concat();
            assert_eq!(problems, wanted, "{user:?} {cluster:?}");
            assert_eq!(usable(&user, &cluster).is_ok(), wanted.is_empty());
        };
        let server = || json!({"server": "https://a.test"});
        check(json!({"token": "a"}), server(), &[]);
        check(
            json!({"token": "a", "username": "b"}),
            server(),
            &["more than one authentication method found for u; found [token basicAuth], only one is allowed"],
        );
        check(
            json!({"client-certificate": "c.crt", "client-key": "c.key"}),
            server(),
            &[
                "unable to read client-cert /nothere/c.crt for u due to open /nothere/c.crt: no such file or directory",
                "unable to read client-key /nothere/c.key for u due to open /nothere/c.key: no such file or directory",
            ],
        );
        check(
            json!({"client-certificate-data": "YQ=="}),
            server(),
            &["client-key-data or client-key must be specified for u to use the clientCert authentication method."],
        );
        check(
            json!({"exec": {}}),
            server(),
            &[
                "command must be specified for u to use exec authentication plugin",
                "apiVersion must be specified for u to use exec authentication plugin",
                "interactiveMode must be specified for u to use exec authentication plugin",
            ],
        );
        let exec = |mode: &str| json!({"exec": {"command": "a", "apiVersion": "v7", "interactiveMode": mode}});
        check(exec("Sometimes"), server(), &["invalid interactiveMode for u: \"Sometimes\""]);
        check(exec("Never"), server(), &[]);
        let proxy = |url: &str| json!({"server": "https://a.test", "proxy-url": url});
        check(
            json!({}),
            proxy("nope:::"),
            &[
                "invalid 'proxy-url' \"nope:::\" for cluster \"c\": unsupported scheme \"nope\", must be http, https, or socks5",
            ],
        );
        check(
            json!({}),
            proxy("http://a b"),
            &["invalid 'proxy-url' \"http://a b\" for cluster \"c\": could not parse: http://a b"],
        );
        check(json!({}), proxy("socks5://127.0.0.1:2"), &[]);
        check(
            json!({}),
            json!({"certificate-authority": "ca.crt"}),
            &[
                "unable to read certificate-authority /nothere/ca.crt for c due to open /nothere/ca.crt: no such file or directory",
            ],
        );
    }
}
