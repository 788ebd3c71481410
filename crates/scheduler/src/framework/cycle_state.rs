//! What plugins remember about one pod from Reserve until it is bound or given up, each under a type of its own.
//! Held by `scheduler` for every pod in flight. PreFilter and PreScore need none: their state is the `NodeFilter` and
//! `NodeScorer` that they lead to.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
};

#[derive(Default)]
pub struct CycleState(HashMap<TypeId, Box<dyn Any + Send>>);

impl CycleState {
    pub fn write<T: Any + Send>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    pub fn read<T: Any + Send>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    pub fn delete<T: Any + Send>(&mut self) -> Option<T> {
        self.0.remove(&TypeId::of::<T>())?.downcast().ok().map(|value| *value)
    }
}
