//! What a ResourceClaim asks for, read once: requests with their alternatives, classes, selectors and constraints.
//! Made by the scheduler for each claim that has no devices yet; searched for by `search`.
//! A claim that can't be read is refused here, in upstream's words.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::{DeviceClass, DeviceSelector, ResourceClaim};

use crate::{AllocationError, Selectors, selectors::Selector};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Exactly(usize),
    All,
}

/// One selector, and who wrote it.
pub struct SelectorOf {
    pub selector: Arc<Selector>,
    /// `class gpu: selector #0`.
    pub label: String,
}

/// One way to satisfy a request.
pub struct Alternative {
    /// Of the request, or of the alternative after its request's.
    pub name: String,
    pub class: Arc<DeviceClass>,
    pub selectors: Vec<SelectorOf>,
    pub amount: Amount,
    pub admin_access: bool,
}

pub struct Request {
    pub name: String,
    /// In the order of preference; one only for a request without a list.
    pub alternatives: Vec<Alternative>,
}

/// Devices of these requests (all, if none is named) have the same value of an attribute.
pub struct MatchAttribute {
    pub requests: Vec<String>,
    pub attribute: String,
}

impl MatchAttribute {
    pub fn is_about(&self, request: &Request, alternative: &Alternative) -> bool {
        self.requests.is_empty() || self.requests.iter().any(|name| *name == request.name || *name == alternative.name)
    }
}

pub struct ClaimRequests {
    pub claim: Arc<ResourceClaim>,
    /// `namespace/name`.
    pub key: String,
    pub requests: Vec<Request>,
    pub constraints: Vec<MatchAttribute>,
}

/// What requests and their alternatives share.
struct Wanted<'a> {
    class: &'a str,
    mode: Option<&'a str>,
    count: Option<i64>,
    selectors: &'a [DeviceSelector],
    admin_access: bool,
}

impl ClaimRequests {
    pub fn new(
        claim: Arc<ResourceClaim>,
        class: impl Fn(&str) -> Option<Arc<DeviceClass>>,
        selectors: &Selectors,
    ) -> Result<Self, AllocationError> {
        let metadata = &claim.metadata;
        let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
        let key = format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default());
        let broken = |text: String| AllocationError::Broken(text);
        let alternative = |name: String, wanted: Wanted<'_>| {
            let class = class(wanted.class)
                .ok_or_else(|| broken(format!("request {name}: device class {} does not exist", wanted.class)))?;
            let mut all = Vec::new();
            let class_name = class.metadata.name.as_deref().unwrap_or_default();
            let of_class = class.spec.selectors.iter().flatten().map(|s| (s, format!("class {class_name}")));
            let of_claim = wanted.selectors.iter().map(|s| (s, format!("claim {key}")));
            for (owned, at) in [of_class.collect::<Vec<_>>(), of_claim.collect()]
                .into_iter()
                .flat_map(|of| of.into_iter().enumerate().map(|(at, owned)| (owned, at)))
            {
                let (selector, owner) = owned;
                let Some(cel) = &selector.cel else {
                    let what = "CEL expression empty (unsupported selector type?)";
                    return Err(broken(format!("claim {key}, request {name}, selector #{at}: {what}")));
                };
                let label = format!("{owner}: selector #{at}");
                all.push(SelectorOf { selector: selectors.get(&cel.expression), label });
            }
            let amount = match wanted.mode.unwrap_or("ExactCount") {
                "ExactCount" => match usize::try_from(wanted.count.unwrap_or(1)) {
                    Ok(count) => Amount::Exactly(count),
                    Err(_) => return Err(broken(format!("claim {key}, request {name}: exact count is too large"))),
                },
                "All" => Amount::All,
                mode => return Err(broken(format!("claim {key}, request {name}: unsupported count mode {mode}"))),
            };
            Ok(Alternative { name, class, selectors: all, amount, admin_access: wanted.admin_access })
        };
        let mut requests = Vec::new();
        let devices = claim.spec.devices.as_ref();
        for request in devices.iter().flat_map(|devices| devices.requests.iter().flatten()) {
            let listed = request.first_available.as_deref().unwrap_or_default();
            let alternatives = if let Some(exactly) = &request.exactly {
                let wanted = Wanted {
                    class: &exactly.device_class_name,
                    mode: exactly.allocation_mode.as_deref(),
                    count: exactly.count,
                    selectors: exactly.selectors.as_deref().unwrap_or_default(),
                    admin_access: exactly.admin_access.unwrap_or(false),
                };
                vec![alternative(request.name.clone(), wanted)?]
            } else if !listed.is_empty() {
                let each = listed.iter().map(|one| {
                    let wanted = Wanted {
                        class: &one.device_class_name,
                        mode: one.allocation_mode.as_deref(),
                        count: one.count,
                        selectors: one.selectors.as_deref().unwrap_or_default(),
                        admin_access: false,
                    };
                    alternative(format!("{}/{}", request.name, one.name), wanted)
                });
                each.collect::<Result<_, _>>()?
            } else {
                let text = format!("resource claim {key}, request {}: unknown request type", request.name);
                return Err(broken(text));
            };
            requests.push(Request { name: request.name.clone(), alternatives });
        }
        let mut constraints = Vec::new();
        for (at, constraint) in devices.iter().flat_map(|d| d.constraints.iter().flatten()).enumerate() {
            let Some(attribute) = &constraint.match_attribute else {
                let what = "empty constraint (unsupported constraint type?)";
                return Err(broken(format!("claim {key}, constraint #{at}: {what}")));
            };
            let requests = constraint.requests.clone().unwrap_or_default();
            constraints.push(MatchAttribute { requests, attribute: attribute.clone() });
        }
        Ok(Self { key, requests, constraints, claim: claim.clone() })
    }
}
