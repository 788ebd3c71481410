//! Makes objects age: what nobody has read for a while goes back to being bytes only; what is read once never stays.
//! The sweep runs once in every process that runs for long; the forms themselves are `api::object_forms`.

use ::api::{
    Object,
    object_forms::{SWEEP_INTERVAL, sweep},
};
use env::Env;
use serde::de::DeserializeOwned;

/// Never ends.
pub async fn sweep_object_forms(env: Env) {
    loop {
        env.sleep(SWEEP_INTERVAL).await;
        sweep();
    }
}

/// The object for whoever keeps only what it needs of it: the whole does not stay in memory.
pub fn read_once<K: DeserializeOwned + Clone + Send + Sync + 'static>(object: &Object) -> Option<K> {
    // What can't be read as it is gets a second, more patient look.
    let read = serde_json::from_slice(object.json()).or_else(|_| object.typed::<K>().map(|object| (*object).clone()));
    read.inspect_err(|error| tracing::error!(%error, "skipping an object that can't be read")).ok()
}
