//! Makes objects age: what nobody has read for a while goes back to being bytes only.
//! Runs once in every process that runs for long; the forms themselves are `api::object_forms`.

use ::api::object_forms::{SWEEP_INTERVAL, sweep};
use env::Env;

/// Never ends.
pub async fn sweep_object_forms(env: Env) {
    loop {
        env.sleep(SWEEP_INTERVAL).await;
        sweep();
    }
}
