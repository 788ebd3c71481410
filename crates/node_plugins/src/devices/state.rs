//! What devices there are and which of them a container gets: the bookkeeping of device plugins.
//! Kept by `manager`, which asks the plugins.
//! Invariant: pure; what is being asked for at a plugin is reserved, so that nobody else gets it meanwhile (tidy:
//! `pure_files`).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};

use super::{
    checkpoint::Checkpoint,
    messages::{ContainerAllocateResponse, Device, DevicePluginOptions, HEALTHY, UNHEALTHY},
    pod_devices::{ContainerAllocation, PodDevices, WITHOUT_NUMA_NODE},
};

/// How long a resource is shown after its plugin has gone.
pub const ENDPOINT_STOP_GRACE_PERIOD: Duration = Duration::from_secs(5 * 60);

pub type DeviceIds = BTreeSet<String>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    #[error("pod {uid:?} container {container:?} changed request for resource {resource:?} from {from} to {to}")]
    Changed { uid: String, container: String, resource: String, from: usize, to: usize },
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    #[error("requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}")]
    Unavailable { resource: String, requested: usize, available: usize },
    #[error("unexpectedly allocated less resources than required. Requested: {required}, Got: {got}")]
    TooFew { required: usize, got: usize },
    #[error("endpoint {0} has been stopped")]
    EndpointStopped(String),
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    PreferredAllocation(String),
    #[error("no containers return in allocation response of {0}")]
    NoContainers(String),
    #[error("{0}")]
    Allocate(String),
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(String),
    #[error("no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}")]
    NotAllocated { uid: String, container: String, resource: String },
    #[error("failed to write checkpoint file \"kubelet_internal_checkpoint\": {0}")]
    Checkpoint(String),
}

#[derive(Debug, Clone, PartialEq)]
struct DeviceInfo {
    healthy: bool,
    numa_nodes: Vec<i64>,
}

#[derive(Debug, Default)]
struct Resource {
    devices: BTreeMap<String, DeviceInfo>,
    options: DevicePluginOptions,
    /// Of the plugin that is connected.
    registration: Option<u64>,
    stopped_at: Option<Duration>,
}

impl Resource {
    fn healthy(&self) -> DeviceIds {
        self.devices.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id.clone()).collect()
    }
}

/// One container's request for one resource.
#[derive(Debug, Clone)]
pub struct DeviceRequest<'a> {
    pub uid: &'a str,
    pub container: &'a str,
    pub resource: &'a str,
    pub required: usize,
    /// What init containers of the same pod had and no other container of it has now.
    pub reusable: DeviceIds,
    /// The NUMA nodes that the topology manager wants; `None` where it does not care.
    pub affinity: Option<&'a BTreeSet<i64>>,
}

#[derive(Debug, PartialEq)]
pub enum Choice {
    /// The container has what it needs.
    Nothing,
    /// The plugin is to say first which ones it prefers.
    Ask {
        available: DeviceIds,
        must_include: DeviceIds,
        size: usize,
    },
    Devices(DeviceIds),
}

/// What the node's status says of devices.
#[derive(Debug, Default, PartialEq)]
pub struct DeviceCapacity {
    pub capacity: BTreeMap<String, usize>,
    pub allocatable: BTreeMap<String, usize>,
}

#[derive(Debug, Default)]
pub struct DeviceState {
    resources: BTreeMap<String, Resource>,
    /// Resources that were shown once and whose plugins have gone for good.
    removed: BTreeSet<String>,
    pub pods: PodDevices,
    /// By resource: what is being asked for at a plugin.
    reserved: BTreeMap<String, DeviceIds>,
}

impl DeviceState {
    /// Resources have no devices until their plugins are back.
    pub fn restored(checkpoint: Checkpoint, now: Duration) -> Self {
        let stopped = |_| Resource { stopped_at: Some(now), ..Resource::default() };
        let resources = checkpoint.registered.into_iter().map(|(name, ids)| (name, stopped(ids))).collect();
        Self { resources, pods: checkpoint.pods, ..Self::default() }
    }

    pub fn checkpoint(&self) -> Checkpoint {
        let healthy = |resource: &Resource| resource.healthy().into_iter().collect();
        let registered = self.resources.iter().map(|(name, found)| (name.clone(), healthy(found))).collect();
        Checkpoint { pods: self.pods.clone(), registered }
    }

    pub fn connected(&mut self, resource: &str, registration: u64, options: DevicePluginOptions) {
        self.removed.remove(resource);
        let found = self.resources.entry(resource.into()).or_default();
        (found.registration, found.stopped_at, found.options) = (Some(registration), None, options);
    }

    /// What the plugin says its devices are now. Returns the pods that have one whose health is another; `None` when
    /// another plugin has taken its place.
    pub fn updated(&mut self, resource: &str, registration: u64, devices: Vec<Device>) -> Option<BTreeSet<String>> {
        let found = self.resources.get_mut(resource).filter(|r| r.registration == Some(registration))?;
        let info = |device: Device| {
            let numa_nodes = device.topology.iter().flat_map(|t| t.nodes.iter().map(|node| node.id)).collect();
            (device.id, DeviceInfo { healthy: device.health == HEALTHY, numa_nodes })
        };
        let now: BTreeMap<String, DeviceInfo> = devices.into_iter().map(info).collect();
        let before = std::mem::replace(&mut found.devices, now);
        let is_as_before = |(id, device): &(&String, &DeviceInfo)| {
            before.get(*id).is_some_and(|before| before.healthy == device.healthy)
        };
        let changed = found.devices.iter().filter(|device| !is_as_before(device)).map(|(id, _)| id.clone()).collect();
        Some(self.users_of(resource, &changed))
    }

    /// Its devices can't be given to anybody any more. Returns the pods that have one; `None` when another plugin has
    /// taken its place.
    pub fn disconnected(&mut self, resource: &str, registration: u64, now: Duration) -> Option<BTreeSet<String>> {
        let found = self.resources.get_mut(resource).filter(|r| r.registration == Some(registration))?;
        let healthy = found.healthy();
        found.devices.values_mut().for_each(|device| device.healthy = false);
        (found.registration, found.stopped_at) = (None, Some(now));
        Some(self.users_of(resource, &healthy))
    }

    fn users_of(&self, resource: &str, ids: &DeviceIds) -> BTreeSet<String> {
        let has = |found: &ContainerAllocation| found.devices.values().flatten().any(|id| ids.contains(id));
        let users = self.pods.iter().filter(|(_, _, name, found)| *name == resource && has(found));
        users.map(|(uid, ..)| uid.to_string()).collect()
    }

    /// How the devices of a container are, by resource. One that its plugin has not told of yet is taken for healthy.
    pub fn health(&self, uid: &str, container: &str) -> Vec<ResourceStatus> {
        let of = |(resource, found): (&String, &ContainerAllocation)| {
            let devices = self.resources.get(resource).map(|found| &found.devices);
            let one = |id: String| {
                let is_healthy = devices.and_then(|devices| devices.get(&id)).is_none_or(|device| device.healthy);
                let health = if is_healthy { HEALTHY } else { UNHEALTHY };
                ResourceHealth { health: Some(health.into()), resource_id: id }
            };
            let resources = found.device_ids().into_iter().map(one).collect();
            ResourceStatus { name: resource.clone(), resources: Some(resources) }
        };
        self.pods.container(uid, container).into_iter().flatten().map(of).collect()
    }

    /// Forgets resources whose plugins have been gone for long. True when there were any.
    pub fn expire(&mut self, now: Duration) -> bool {
        let is_over = |found: &Resource| found.stopped_at.is_some_and(|at| now - at > ENDPOINT_STOP_GRACE_PERIOD);
        let over: Vec<String> =
            self.resources.iter().filter(|(_, found)| is_over(found)).map(|(name, _)| name.clone()).collect();
        for name in &over {
            self.resources.remove(name);
            self.removed.insert(name.clone());
        }
        !over.is_empty()
    }

    pub fn capacity(&self) -> DeviceCapacity {
        let mut shown = DeviceCapacity::default();
        for (name, found) in &self.resources {
            shown.capacity.insert(name.clone(), found.devices.len());
            shown.allocatable.insert(name.clone(), found.devices.values().filter(|device| device.healthy).count());
        }
        for name in &self.removed {
            shown.capacity.insert(name.clone(), 0);
            shown.allocatable.insert(name.clone(), 0);
        }
        shown
    }

    /// Whether devices of this name are or were given out here.
    pub fn is_device_plugin_resource(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.pods.has_resource(resource)
    }

    pub fn options(&self, resource: &str) -> DevicePluginOptions {
        self.resources.get(resource).map(|found| found.options).unwrap_or_default()
    }

    /// Healthy devices that nobody has and that nobody is being given.
    pub fn available(&self, resource: &str) -> DeviceIds {
        let in_use = self.pods.in_use(resource);
        let reserved = self.reserved.get(resource);
        let is_free = |id: &String| !in_use.contains(id) && !reserved.is_some_and(|ids| ids.contains(id));
        let mut available = self.resources.get(resource).map(Resource::healthy).unwrap_or_default();
        available.retain(is_free);
        available
    }

    /// All devices of a resource with the NUMA nodes they are near to.
    pub fn devices(&self, resource: &str) -> impl Iterator<Item = (&str, &[i64])> {
        let found = self.resources.get(resource).into_iter();
        found.flat_map(|found| found.devices.iter().map(|(id, device)| (&**id, device.numa_nodes.as_slice())))
    }

    /// What the containers before this one leave to it: init containers run one after the other.
    pub fn reusable(&self, pod: &Pod, container: &str, resource: &str) -> DeviceIds {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let had = |other: &str| self.pods.devices(uid, other, resource).unwrap_or_default();
        Self::reusable_by(pod, container, had)
    }

    /// The same where `had` says which devices a container before this one has.
    pub fn reusable_by(pod: &Pod, container: &str, had: impl Fn(&str) -> DeviceIds) -> DeviceIds {
        let mut reusable = DeviceIds::new();
        let Some(spec) = &pod.spec else { return reusable };
        let init = spec.init_containers.iter().flatten().map(|c| (c, c.restart_policy.as_deref() != Some("Always")));
        for (other, ends) in init.chain(spec.containers.iter().map(|c| (c, false))) {
            if other.name == container {
                break;
            }
            let devices = had(&other.name);
            match ends {
                true => reusable.extend(devices),
                false => reusable.retain(|id| !devices.contains(id)),
            }
        }
        reusable
    }

    /// Which devices a container gets. `preferred` is the plugin's answer, where it was asked.
    pub fn choose(&self, request: &DeviceRequest, preferred: Option<&DeviceIds>) -> Result<Choice, AllocationError> {
        let DeviceRequest { uid, container, resource, required, .. } = *request;
        let had = self.pods.devices(uid, container, resource);
        if let Some(had) = had.as_ref().filter(|had| had.len() != required) {
            return Err(AllocationError::Changed {
                uid: uid.into(),
                container: container.into(),
                resource: resource.into(),
                from: had.len(),
                to: required,
            });
        }
        let found = self.resources.get(resource).ok_or_else(|| AllocationError::Unregistered(resource.into()))?;
        let healthy = found.healthy();
        if healthy.is_empty() {
            return Err(AllocationError::NoneHealthy(resource.into()));
        }
        if !had.iter().flatten().all(|id| healthy.contains(id)) {
            return Err(AllocationError::NoLongerHealthy(resource.into()));
        }
        if had.is_some() || required == 0 {
            return Ok(Choice::Nothing);
        }
        let mut chosen = DeviceIds::new();
        let take = |chosen: &mut DeviceIds, from: &DeviceIds| {
            for id in from {
                if chosen.len() < required {
                    chosen.insert(id.clone());
                }
            }
            chosen.len() == required
        };
        let reusable = request.reusable.intersection(&healthy).cloned().collect();
        if take(&mut chosen, &reusable) {
            return Ok(Choice::Devices(chosen));
        }
        let needed = required - chosen.len();
        let available = self.available(resource);
        if available.len() < needed {
            let (resource, available) = (resource.into(), available.len());
            return Err(AllocationError::Unavailable { resource, requested: needed, available });
        }
        let near = found.by_affinity(&available, request.affinity);
        let from = match needed < near.aligned.len() {
            true => near.aligned.clone(),
            false => {
                if take(&mut chosen, &near.aligned) {
                    return Ok(Choice::Devices(chosen));
                }
                available
            }
        };
        match preferred {
            None if found.options.get_preferred_allocation_available => {
                let available = from.union(&chosen).cloned().collect();
                return Ok(Choice::Ask { available, must_include: chosen, size: required });
            }
            preferred => {
                let preferred = preferred.into_iter().flatten().filter(|id| from.contains(*id)).cloned().collect();
                for ids in [&preferred, &near.aligned, &near.unaligned, &near.without_topology] {
                    if take(&mut chosen, ids) {
                        return Ok(Choice::Devices(chosen));
                    }
                }
            }
        }
        Err(AllocationError::TooFew { required, got: chosen.len() })
    }

    /// Keeps devices from others while the plugin is asked.
    pub fn reserve(&mut self, resource: &str, devices: &DeviceIds) {
        self.reserved.entry(resource.into()).or_default().extend(devices.iter().cloned());
    }

    pub fn unreserve(&mut self, resource: &str, devices: &DeviceIds) {
        if let Some(reserved) = self.reserved.get_mut(resource) {
            reserved.retain(|id| !devices.contains(id));
            if reserved.is_empty() {
                self.reserved.remove(resource);
            }
        }
    }

    /// The plugin has given the devices.
    pub fn allocated(&mut self, request: &DeviceRequest, ids: &DeviceIds, response: ContainerAllocateResponse) {
        let found = self.resources.get(request.resource);
        let mut devices = BTreeMap::<i64, Vec<String>>::new();
        for id in ids {
            let near = found.and_then(|found| found.devices.get(id)).map(|device| device.numa_nodes.as_slice());
            for node in near.filter(|nodes| !nodes.is_empty()).unwrap_or(&[WITHOUT_NUMA_NODE]) {
                devices.entry(*node).or_default().push(id.clone());
            }
        }
        let allocation = ContainerAllocation { devices, response };
        self.pods.insert(request.uid, request.container, request.resource, allocation);
    }

    /// Healthy devices by resource, with their NUMA nodes.
    pub fn allocatable_devices(&self) -> impl Iterator<Item = (&str, &str, &[i64])> {
        self.resources.iter().flat_map(|(name, found)| {
            let healthy = found.devices.iter().filter(|(_, device)| device.healthy);
            healthy.map(move |(id, device)| (&**name, &**id, device.numa_nodes.as_slice()))
        })
    }

    /// How many devices of each resource are with pods.
    pub fn allocated_counts(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::<String, DeviceIds>::new();
        for (_, _, resource, allocation) in self.pods.iter() {
            all.entry(resource.into()).or_default().extend(allocation.device_ids());
        }
        all.into_iter().map(|(resource, ids)| (resource, ids.len())).collect()
    }
}

struct ByAffinity {
    aligned: DeviceIds,
    unaligned: DeviceIds,
    without_topology: DeviceIds,
}

impl Resource {
    fn by_affinity(&self, available: &DeviceIds, affinity: Option<&BTreeSet<i64>>) -> ByAffinity {
        let has_topology = self.devices.values().any(|device| !device.numa_nodes.is_empty());
        let mut result =
            ByAffinity { aligned: DeviceIds::new(), unaligned: DeviceIds::new(), without_topology: DeviceIds::new() };
        for id in available {
            let nodes = self.devices.get(id).map(|device| device.numa_nodes.as_slice()).unwrap_or_default();
            let place = match affinity.filter(|_| has_topology && !nodes.is_empty()) {
                None => &mut result.without_topology,
                Some(wanted) if nodes.iter().any(|node| wanted.contains(node)) => &mut result.aligned,
                Some(_) => &mut result.unaligned,
            };
            place.insert(id.clone());
        }
        result
    }
}

/// How many devices of each resource with a domain a container may have: such resources can't be overcommitted, so
/// that its limits say it.
pub fn device_limits(container: &Container) -> impl Iterator<Item = (&str, usize)> {
    let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    limits.filter(|(name, _)| name.contains('/')).filter_map(|(name, quantity)| {
        let value = api::quantity::value(quantity)?;
        Some((name.as_str(), usize::try_from(value).unwrap_or(0)))
    })
}
