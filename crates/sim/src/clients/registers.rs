//! A few clients that read and write the same few ConfigMaps through several API servers at once.
//! Each is a `RegisterClient`; `checkers::history` judges what they were told.
//! Nobody else writes these objects.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::Client;
use env::Env;
use parking_lot::Mutex;
use store::Record;

use super::register_client::{RegisterClient, stored_value};
use crate::checkers::{history::History, linearizability::Value};

pub const NAMESPACE: &str = "free";
const OBJECTS: [&str; 2] = ["register-a", "register-b"];
const PAUSE_MILLISECONDS_MAX: u64 = 8000;

/// Goes on until the part of the world that `env` is ends.
pub fn start(client: Client, env: &Env, history: Arc<Mutex<History>>) {
    let mut register = RegisterClient::new(client, env.clone(), history, NAMESPACE);
    let time = env.clone();
    env.spawn(async move {
        loop {
            let object = OBJECTS[(time.random_u64() % OBJECTS.len() as u64) as usize];
            // Refusals are part of the history too.
            register.call(object).await.ok();
            time.sleep(Duration::from_millis(time.random_u64() % PAUSE_MILLISECONDS_MAX)).await;
        }
    });
}

/// The values that a backup holds.
pub fn values(records: &[Record]) -> BTreeMap<String, Value> {
    let key = |name: &str| format!("/registry/configmaps/{NAMESPACE}/{name}");
    let value = |name: &str| stored_value(&records.iter().find(|record| record.key == key(name))?.value);
    OBJECTS.iter().filter_map(|name| Some((name.to_string(), value(name)?))).collect()
}
