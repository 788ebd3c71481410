//! What a pod asks for: the sum over its containers, as quotas and limit ranges count it.
//! Used by `limit_ranger` and `resource_quota`.
//! Invariant: pure.

use std::collections::BTreeMap;

use serde_json::Value;

use api::quantity::Quantity;

pub type Amounts = BTreeMap<String, Quantity>;

/// The quantities of a `requests` or `limits`; what cannot be read is for validation to refuse.
pub fn amounts(value: &Value) -> Amounts {
    let entries = value.as_object().into_iter().flatten();
    entries
        .filter_map(|(name, amount)| {
            let text = amount.as_str().map(str::to_string).unwrap_or_else(|| amount.to_string());
            Some((name.clone(), Quantity::parse(&text).ok()?))
        })
        .collect()
}

pub fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match sum.get_mut(name) {
            Some(known) => known.add(amount),
            None => drop(sum.insert(name.clone(), amount.clone())),
        }
    }
}

fn raise(most: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if most.get(name).is_none_or(|known| known < amount) {
            most.insert(name.clone(), amount.clone());
        }
    }
}

/// The `requests` or `limits` of a whole pod: init containers run one after the other, sidecars stay.
pub fn pod_total(spec: &Value, which: &str) -> Amounts {
    let list = |name: &str| spec[name].as_array().cloned().unwrap_or_default();
    let of = |container: &Value| amounts(&container["resources"][which]);
    let mut running = Amounts::new();
    list("containers").iter().for_each(|c| add(&mut running, &of(c)));
    let (mut sidecars, mut highest) = (Amounts::new(), Amounts::new());
    for container in list("initContainers") {
        let own = of(&container);
        if container["restartPolicy"] == "Always" {
            add(&mut running, &own);
            add(&mut sidecars, &own);
            raise(&mut highest, &sidecars);
        } else {
            let mut together = own;
            add(&mut together, &sidecars);
            raise(&mut highest, &together);
        }
    }
    raise(&mut running, &highest);
    raise(&mut running, &amounts(&spec["resources"][which]));
    let mut overhead = amounts(&spec["overhead"]);
    if which == "limits" {
        // Overhead raises a limit that is there; it does not make one.
        overhead.retain(|name, _| running.contains_key(name));
    }
    add(&mut running, &overhead);
    running
}
