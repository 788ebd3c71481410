//! Describes PodDisruptionBudgets and PriorityClasses.
//! Neighbours: `sections`.
//! Reads nothing but the object.

use serde_json::Value;

use super::{
    Context, Related,
    fields::{format_labels, format_selector, name, number, text, truth},
    sections::name_and_namespace,
    writer::{Writer, put},
};

pub fn pod_disruption_budget(w: &mut Writer, budget: &Value, _: &Related, _: &Context) -> Result<(), String> {
    let (spec, status) = (&budget["spec"], &budget["status"]);
    name_and_namespace(w, budget);
    if !spec["minAvailable"].is_null() {
        put!(w, 0, "Min available:\t{}\n", text(&spec["minAvailable"]));
    } else if !spec["maxUnavailable"].is_null() {
        put!(w, 0, "Max unavailable:\t{}\n", text(&spec["maxUnavailable"]));
    }
    let selector = if spec["selector"].is_null() { "<unset>".to_string() } else { format_selector(&spec["selector"]) };
    put!(w, 0, "Selector:\t{selector}\n");
    w.write(0, "Status:\n");
    let rows = [
        ("Allowed disruptions", "disruptionsAllowed"),
        ("Current", "currentHealthy"),
        ("Desired", "desiredHealthy"),
        ("Total", "expectedPods"),
    ];
    for (title, field) in rows {
        put!(w, 2, "{title}:\t{}\n", number(&status[field]));
    }
    Ok(())
}

pub fn priority_class(w: &mut Writer, class: &Value, _: &Related, _: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(class));
    put!(w, 0, "Value:\t{}\n", number(&class["value"]));
    put!(w, 0, "GlobalDefault:\t{}\n", truth(&class["globalDefault"]));
    put!(w, 0, "PreemptionPolicy:\t{}\n", text(&class["preemptionPolicy"]));
    put!(w, 0, "Description:\t{}\n", text(&class["description"]));
    put!(w, 0, "Annotations:\t{}\n", format_labels(&class["metadata"]["annotations"]));
    Ok(())
}
