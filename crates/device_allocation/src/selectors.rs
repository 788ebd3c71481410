//! Compiled selectors, by their source.
//! Made once for every claim and class that says the same; `inventory` keeps what each found on a slice's devices.
//! Bounded: beyond the limit all are compiled anew.

use std::{collections::HashMap, sync::Arc};

use cel::{CelError, device::DeviceSelector};
use parking_lot::Mutex;

const SELECTORS_MAX: usize = 256;

pub struct Selector {
    /// Never used for another one.
    pub id: u64,
    pub compiled: Result<DeviceSelector, CelError>,
}

#[derive(Default)]
struct Compiled {
    by_source: HashMap<String, Arc<Selector>>,
    made: u64,
}

#[derive(Default)]
pub struct Selectors(Mutex<Compiled>);

impl Selectors {
    pub fn get(&self, source: &str) -> Arc<Selector> {
        let mut compiled = self.0.lock();
        if let Some(known) = compiled.by_source.get(source) {
            return known.clone();
        }
        if compiled.by_source.len() >= SELECTORS_MAX {
            compiled.by_source.clear();
        }
        compiled.made += 1;
        let selector = Arc::new(Selector { id: compiled.made, compiled: DeviceSelector::compile(source) });
        compiled.by_source.insert(source.to_string(), selector.clone());
        selector
    }
}
