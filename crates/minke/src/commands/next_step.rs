//! What to do after an error that does not say so itself.
//! Asked by `main` for the last line of a command that failed.
//! Adds a line; the error stays as it is.

/// Words of errors that have said what to do.
const ADVICE: &[&str] = &[
    "`",
    "--",
    "install ",
    "choose ",
    "try again",
    "start it",
    "see ",
    "restore ",
    "mend ",
    "give ",
    "write it as",
    "did you mean",
    "apt-get",
];

pub fn of(command: &str, error: &str) -> Option<String> {
    // The reason is behind the last colon of the chain; advice may stand anywhere.
    if ADVICE.iter().any(|word| error.contains(word)) {
        return None;
    }
    Some(match command {
        "up" | "server" | "agent" | "apiserver" | "kubelet" | "proxy" | "ingress" | "controller-manager"
        | "scheduler" => {
            "see `minke logs` for what came before, and `minke doctor` for what this machine lacks".to_string()
        }
        "image" | "node" | "etcd" | "store" | "certs" => {
            "see `minke status` for whether the cluster is well".to_string()
        }
        "" => "see `minke --help`, and `minke doctor` for what this machine lacks".to_string(),
        other => format!("see `minke {other} --help`, and `minke doctor` for what this machine lacks"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_ends_in_something_to_do() {
        assert_eq!(of("up", "can't listen on 0.0.0.0:6443: choose another port with --port"), None);
        assert!(of("up", "the kubelet ended").unwrap().contains("minke doctor"));
        assert!(of("image", "node a does not answer").unwrap().contains("minke status"));
        assert!(of("down", "No such file or directory").unwrap().contains("minke down --help"));
    }
}
