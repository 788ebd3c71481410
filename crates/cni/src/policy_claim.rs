//! Tells the node's NetworkPolicy enforcement which addresses a pod gets, and waits until its rules cover them.
//! Used by ADD: no container of the pod has started yet, so none of its packets comes before the rules.
//! Invariant: without the enforcement's word there is no network (test: `a_pod_waits_for_its_policies`).

use std::{
    io::{Read, Write},
    net::IpAddr,
    os::unix::net::UnixStream,
    time::Duration,
};

use serde_json::json;

use crate::{
    Request,
    types::{Error, NetConf},
};

/// For a pod whose labels the enforcement does not know yet; the runtime asks again after a failure.
const COVERED_TIMEOUT: Duration = Duration::from_secs(20);

/// Sent, and not answered yet.
pub struct PolicyClaim(Option<UnixStream>);

impl PolicyClaim {
    /// Nothing to wait for where nobody enforces policies, or the runtime names no pod.
    pub fn send(request: &Request, conf: &NetConf, addresses: &[IpAddr]) -> Result<Self, Error> {
        let Some(socket) = &conf.policy_socket else { return Ok(Self(None)) };
        let (Some(namespace), Some(name)) = (request.argument("K8S_POD_NAMESPACE"), request.argument("K8S_POD_NAME"))
        else {
            return Ok(Self(None));
        };
        let uid = request.argument("K8S_POD_UID").unwrap_or_default();
        let claim = json!({ "namespace": namespace, "name": name, "uid": uid, "ips": addresses });
        let send = || {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(COVERED_TIMEOUT))?;
            stream.write_all(format!("{claim}\n").as_bytes())?;
            Ok(stream)
        };
        let failed = |error: std::io::Error| {
            Error::io(format!("failed to reach the enforcement of NetworkPolicies at {}: {error}", socket.display()))
        };
        send().map(|stream| Self(Some(stream))).map_err(failed)
    }

    /// Returns once the rules cover the pod.
    pub fn wait(self) -> Result<(), Error> {
        let Some(mut stream) = self.0 else { return Ok(()) };
        let mut said = String::new();
        match stream.read_to_string(&mut said) {
            Ok(_) if said == "covered\n" => Ok(()),
            Ok(_) if !said.is_empty() => {
                Err(Error::io(format!("NetworkPolicies do not cover the pod: {}", said.trim())))
            }
            _ => Err(Error::io("NetworkPolicies do not cover the pod yet: its rules are not written")),
        }
    }
}
