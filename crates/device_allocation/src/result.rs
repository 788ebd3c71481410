//! What a search found, as a claim's status says it: devices, the configuration that is for them, and where they are.
//! Made by `search`.

use k8s_openapi::api::{
    core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
    resource::v1::{
        AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
    },
};

use crate::{
    AllocationError, DeviceId,
    inventory::Slice,
    request::{Alternative, ClaimRequests},
};

/// One device of a claim.
pub struct Found<'a> {
    pub alternative: &'a Alternative,
    pub slice: &'a Slice,
    pub device: &'a DeviceId,
}

/// `chosen` has the alternative of each request.
pub fn allocation_result(
    requests: &ClaimRequests,
    chosen: &[usize],
    found: &[Found<'_>],
) -> Result<AllocationResult, AllocationError> {
    let results = found.iter().map(|found| DeviceRequestAllocationResult {
        request: found.alternative.name.clone(),
        driver: found.device.pool.driver.to_string(),
        pool: found.device.pool.pool.to_string(),
        device: found.device.device.to_string(),
        admin_access: found.alternative.admin_access.then_some(true),
        ..DeviceRequestAllocationResult::default()
    });
    let devices = DeviceAllocationResult {
        results: Some(results.collect()),
        config: Some(configuration(requests, chosen)).filter(|config| !config.is_empty()),
    };
    Ok(AllocationResult {
        devices: Some(devices),
        node_selector: node_selector(requests, found)?,
        ..Default::default()
    })
}

/// Of the classes first, each once for all requests of that class; then what the claim says itself.
fn configuration(requests: &ClaimRequests, chosen: &[usize]) -> Vec<DeviceAllocationConfiguration> {
    let mut all: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut of_classes: Vec<(&Option<String>, std::ops::Range<usize>)> = Vec::new();
    let taken = || requests.requests.iter().zip(chosen).map(|(request, at)| (request, &request.alternatives[*at]));
    for (_, alternative) in taken() {
        let class = &alternative.class.metadata.name;
        if let Some((_, range)) = of_classes.iter().find(|(known, _)| *known == class) {
            for config in &mut all[range.clone()] {
                config.requests.get_or_insert_default().push(alternative.name.clone());
            }
            continue;
        }
        let begin = all.len();
        all.extend(alternative.class.spec.config.iter().flatten().map(|config| DeviceAllocationConfiguration {
            source: "FromClass".into(),
            requests: Some(vec![alternative.name.clone()]),
            opaque: config.opaque.clone(),
        }));
        of_classes.push((class, begin..all.len()));
    }
    let devices = requests.claim.spec.devices.iter();
    for config in devices.flat_map(|devices| devices.config.iter().flatten()) {
        let named = config.requests.as_deref().unwrap_or_default();
        let is_for = |name: &String| named.contains(name);
        let times = match named.is_empty() {
            true => 1,
            false => taken().filter(|(request, one)| is_for(&request.name) || is_for(&one.name)).count(),
        };
        let copy = DeviceAllocationConfiguration {
            source: "FromClaim".into(),
            requests: config.requests.clone(),
            opaque: config.opaque.clone(),
        };
        all.extend(std::iter::repeat_n(copy, times));
    }
    all
}

/// Nothing for devices that can be had everywhere.
fn node_selector(requests: &ClaimRequests, found: &[Found<'_>]) -> Result<Option<NodeSelector>, AllocationError> {
    let selector = |term: NodeSelectorTerm| Some(NodeSelector { node_selector_terms: vec![term] });
    let (mut fields, mut expressions) = (Vec::new(), Vec::new());
    for spec in found.iter().map(|found| found.slice.spec()) {
        if let Some(node) = &spec.node_name {
            // One device is local to its node; so is the claim.
            let name = NodeSelectorRequirement {
                key: "metadata.name".into(),
                operator: "In".into(),
                values: Some(vec![node.clone()]),
            };
            return Ok(selector(NodeSelectorTerm { match_fields: Some(vec![name]), match_expressions: None }));
        }
        match spec.node_selector.as_ref().map(|selector| selector.node_selector_terms.as_slice()) {
            None | Some([]) => {}
            Some([term]) => {
                add(&mut fields, term.match_fields.as_deref());
                add(&mut expressions, term.match_expressions.as_deref());
            }
            Some(terms) => {
                let claim = requests.claim.metadata.name.as_deref().unwrap_or_default();
                let what = format!("unsupported ResourceSlice.NodeSelector with {} terms", terms.len());
                return Err(AllocationError::Broken(format!("create NodeSelector for claim {claim}: {what}")));
            }
        }
    }
    let list = |list: Vec<NodeSelectorRequirement>| Some(list).filter(|list| !list.is_empty());
    let term = NodeSelectorTerm { match_fields: list(fields), match_expressions: list(expressions) };
    Ok(if term == NodeSelectorTerm::default() { None } else { selector(term) })
}

fn add(to: &mut Vec<NodeSelectorRequirement>, from: Option<&[NodeSelectorRequirement]>) {
    let same = |a: &NodeSelectorRequirement, b: &NodeSelectorRequirement| {
        let sorted = |r: &NodeSelectorRequirement| {
            let mut values = r.values.clone().unwrap_or_default();
            values.sort();
            values.dedup();
            values
        };
        a.key == b.key && a.operator == b.operator && sorted(a) == sorted(b)
    };
    for requirement in from.unwrap_or_default() {
        if !to.iter().any(|known| same(known, requirement)) {
            to.push(requirement.clone());
        }
    }
}
