//! `bandwidth`: holds a pod's link, which an earlier plugin of the list made, to rates.
//! Called by `mod`; the token buckets are `crate::bandwidth`.
//! The limits go with the interfaces, so DEL has nothing to do.

use serde_json::Value;

use super::{Configuration, port_mapping::previous_result};
use crate::{
    Request,
    link::{Link, Links},
    netns,
    types::Error,
};

pub async fn run(request: &Request, conf: &Configuration) -> Result<Option<Value>, Error> {
    if request.command != "ADD" {
        return Ok(None);
    }
    let previous = previous_result(conf)?;
    let bandwidth = conf.bandwidth()?;
    if bandwidth.ingress_rate > 0 || bandwidth.egress_rate > 0 {
        let namespace = netns::open(&request.netns)?
            .ok_or_else(|| Error::new(3, format!("network namespace {} does not exist", request.netns)))?;
        let host = host_end(request, &namespace).await?;
        bandwidth.limit(&host.name, &request.ifname, &namespace)?;
    }
    Ok(Some(previous.clone()))
}

/// The other end of the pod's link.
pub async fn host_end(request: &Request, namespace: &std::fs::File) -> Result<Link, Error> {
    let inside = netns::within(namespace, Links::open)?;
    let pod = inside.expect(&request.ifname).await?;
    let all = Links::open()?.all().await?;
    let other = all.into_iter().find(|link| Some(link.index) == pod.peer);
    other.ok_or_else(|| Error::internal(format!("{} has no other end on this node", request.ifname)))
}
