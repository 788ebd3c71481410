//! What drivers publish: ResourceSlices by pool and by node.
//! Fed by the scheduler with every slice; asked by `search` for the pools of a node.
//! Only the latest generation of a pool counts. Slices whose devices have nodes of their own are left out, and devices
//! that consume counters or have binding conditions can't be had: both belong to features that are off.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use api::placement::term_selects;
use cel::device::{Attribute, Device as SelectableDevice};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice, ResourceSliceSpec};
use parking_lot::Mutex;

use crate::{DeviceId, NodeView, PoolId, selectors::Selector};

/// Selectors whose findings are kept with a slice; beyond this all are evaluated anew.
const VERDICTS_MAX: usize = 32;

/// What a selector says of a device; an error is not about the device's being meant or not.
type Verdict = Result<bool, Arc<str>>;

pub struct Slice {
    object: Arc<ResourceSlice>,
    pub pool: PoolId,
    pub ids: Vec<DeviceId>,
    verdicts: Mutex<HashMap<u64, Vec<Option<Verdict>>>>,
}

impl Slice {
    fn new(object: Arc<ResourceSlice>) -> Self {
        let spec = &object.spec;
        let pool = PoolId { driver: spec.driver.as_str().into(), pool: spec.pool.name.as_str().into() };
        let id = |device: &Device| DeviceId { pool: pool.clone(), device: device.name.as_str().into() };
        let ids = spec.devices.iter().flatten().map(id).collect();
        Self { pool, ids, verdicts: Mutex::default(), object }
    }

    pub fn spec(&self) -> &ResourceSliceSpec {
        &self.object.spec
    }

    pub fn devices(&self) -> &[Device] {
        self.object.spec.devices.as_deref().unwrap_or_default()
    }

    /// Whether a selector means the device. Evaluated once as long as the slice stays as it is.
    pub fn selects(&self, selector: &Selector, at: usize) -> Verdict {
        let known = self.verdicts.lock().get(&selector.id).and_then(|verdicts| verdicts[at].clone());
        if let Some(known) = known {
            return known;
        }
        let verdict = match &selector.compiled {
            Err(why) => Err(format!("CEL compile error: {why}").into()),
            Ok(compiled) => {
                let device = selectable(&self.pool.driver, &self.devices()[at]);
                let found = device.and_then(|device| compiled.matches(&device).map_err(|why| why.to_string()));
                found.map_err(|why| format!("CEL runtime error: {why}").into())
            }
        };
        let mut verdicts = self.verdicts.lock();
        if verdicts.len() >= VERDICTS_MAX && !verdicts.contains_key(&selector.id) {
            verdicts.clear();
        }
        verdicts.entry(selector.id).or_insert_with(|| vec![None; self.ids.len()])[at] = Some(verdict.clone());
        verdict
    }

    fn is_for_several_nodes(&self) -> bool {
        node_name(self.spec()).is_none()
    }

    fn is_on(&self, node: NodeView<'_>) -> bool {
        let spec = self.spec();
        match (node_name(spec), &spec.node_selector) {
            (Some(name), _) => name == node.name,
            _ if spec.all_nodes == Some(true) => true,
            (None, Some(selector)) => {
                selector.node_selector_terms.iter().any(|term| term_selects(term, node.name, node.labels))
            }
            (None, None) => false,
        }
    }
}

fn node_name(spec: &ResourceSliceSpec) -> Option<&str> {
    spec.node_name.as_deref().filter(|name| !name.is_empty())
}

pub fn attribute(attribute: &DeviceAttribute) -> Option<Attribute<'_>> {
    let number = attribute.int.map(Attribute::Int);
    let truth = || attribute.bool.map(Attribute::Bool);
    let text = || attribute.string.as_deref().map(Attribute::String);
    let version = || attribute.version.as_deref().map(Attribute::Version);
    number.or_else(truth).or_else(text).or_else(version)
}

fn selectable<'a>(driver: &'a str, device: &'a Device) -> Result<SelectableDevice<'a>, String> {
    let attributes = device.attributes.iter().flatten().map(|(name, value)| {
        let value = attribute(value).ok_or_else(|| format!("attribute {name}: unsupported attribute value"))?;
        Ok((name.as_str(), value))
    });
    let capacity = device.capacity.iter().flatten().map(|(name, capacity)| (name.as_str(), capacity.value.0.as_str()));
    Ok(SelectableDevice {
        driver,
        attributes: attributes.collect::<Result<_, String>>()?,
        capacity: capacity.collect(),
    })
}

/// Whether a device can be had at all.
pub fn is_allocatable(device: &Device) -> bool {
    let is_empty = |list: Option<usize>| list.is_none_or(|length| length == 0);
    is_empty(device.consumes_counters.as_ref().map(Vec::len))
        && is_empty(device.binding_conditions.as_ref().map(Vec::len))
}

#[derive(Default)]
struct PoolSlices {
    /// By generation, then by name.
    generations: BTreeMap<i64, BTreeMap<String, Arc<Slice>>>,
    /// Whether a device of the latest generation has the name of another.
    has_duplicates: OnceLock<bool>,
}

impl PoolSlices {
    fn latest(&self) -> impl Iterator<Item = &Arc<Slice>> {
        self.generations.last_key_value().into_iter().flat_map(|(_, slices)| slices.values())
    }

    fn has_duplicates(&self) -> bool {
        *self.has_duplicates.get_or_init(|| has_duplicates(self.latest()))
    }
}

fn has_duplicates<'a>(slices: impl Iterator<Item = &'a Arc<Slice>>) -> bool {
    let mut seen = HashSet::new();
    slices.flat_map(|slice| &slice.ids).any(|id| !seen.insert(&id.device))
}

/// A pool as one node sees it.
pub struct Pool<'a> {
    pub id: &'a PoolId,
    pub slices: Vec<&'a Arc<Slice>>,
    /// Its driver is about to publish more.
    pub is_incomplete: bool,
    /// Names that are not unique.
    pub is_invalid: bool,
}

#[derive(Default)]
pub struct Inventory {
    /// By their names: what is to be taken out when one changes.
    slices: HashMap<String, Arc<Slice>>,
    pools: BTreeMap<PoolId, PoolSlices>,
    of_node: HashMap<String, BTreeMap<PoolId, usize>>,
    for_several_nodes: BTreeMap<PoolId, usize>,
}

fn count(counts: &mut BTreeMap<PoolId, usize>, pool: &PoolId) {
    *counts.entry(pool.clone()).or_default() += 1;
}

fn discount(counts: &mut BTreeMap<PoolId, usize>, pool: &PoolId) {
    if let Some(left) = counts.get_mut(pool) {
        *left -= 1;
        if *left == 0 {
            counts.remove(pool);
        }
    }
}

impl Inventory {
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// A slice as it is now.
    pub fn set(&mut self, name: &str, object: Arc<ResourceSlice>) {
        self.remove(name);
        if object.spec.per_device_node_selection.is_some() {
            return;
        }
        let slice = Arc::new(Slice::new(object));
        match node_name(slice.spec()) {
            Some(node) => count(self.of_node.entry(node.to_string()).or_default(), &slice.pool),
            None => count(&mut self.for_several_nodes, &slice.pool),
        }
        let pool = self.pools.entry(slice.pool.clone()).or_default();
        pool.has_duplicates = OnceLock::new();
        let generation = slice.spec().pool.generation;
        pool.generations.entry(generation).or_default().insert(name.to_string(), slice.clone());
        self.slices.insert(name.to_string(), slice);
    }

    pub fn remove(&mut self, name: &str) {
        let Some(slice) = self.slices.remove(name) else { return };
        if slice.is_for_several_nodes() {
            discount(&mut self.for_several_nodes, &slice.pool);
        } else if let Some(node) = node_name(slice.spec())
            && let Some(counts) = self.of_node.get_mut(node)
        {
            discount(counts, &slice.pool);
            if counts.is_empty() {
                self.of_node.remove(node);
            }
        }
        let Some(pool) = self.pools.get_mut(&slice.pool) else { return };
        pool.has_duplicates = OnceLock::new();
        let generation = slice.spec().pool.generation;
        if let Some(slices) = pool.generations.get_mut(&generation) {
            slices.remove(name);
            if slices.is_empty() {
                pool.generations.remove(&generation);
            }
        }
        if pool.generations.is_empty() {
            self.pools.remove(&slice.pool);
        }
    }

    /// The pools with devices that can be reached from the node, in the order of their names.
    pub fn pools_on(&self, node: NodeView<'_>) -> Vec<Pool<'_>> {
        let local = self.of_node.get(node.name).into_iter().flat_map(BTreeMap::keys);
        let ids: BTreeSet<&PoolId> = local.chain(self.for_several_nodes.keys()).collect();
        let pools = ids.into_iter().filter_map(|id| self.pools.get_key_value(id));
        let seen = pools.filter_map(|(id, pool)| {
            let slices: Vec<_> = pool.latest().filter(|slice| slice.is_on(node)).collect();
            let wanted = slices.first()?.spec().pool.resource_slice_count;
            let is_incomplete = pool.latest().count() as i64 != wanted;
            let is_invalid = pool.has_duplicates() && has_duplicates(slices.iter().copied());
            Some(Pool { id, slices, is_incomplete, is_invalid })
        });
        seen.collect()
    }
}
