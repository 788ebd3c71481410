//! Why a PersistentVolumeClaim is not bound.
//! Neighbours: `pending` asks for the claims of a pod.
//! A claim that only waits for its first pod is not wrong.

use serde_json::Value;

use super::{Inquiry, Verdict, clause, namespace_flag, with_reason};
use crate::{
    describe::fields::{list, name, namespace, quantity, string, strings, text, truth},
    object_reader::{ObjectReader, Query},
};

async fn class_of<R: ObjectReader>(inquiry: &Inquiry<'_, R>, claim: &Value) -> Option<Value> {
    let class = string(&claim["spec"]["storageClassName"]);
    if class.is_empty() {
        return None;
    }
    inquiry.reader.read(Query::get("storage.k8s.io/v1", "storageclasses", "", class)).await.ok()?.pop()
}

/// Whether binding waits until a pod that uses the claim is scheduled, and nothing has failed.
pub async fn waits_for_consumer<R: ObjectReader>(inquiry: &Inquiry<'_, R>, claim: &Value) -> bool {
    let class = class_of(inquiry, claim).await;
    let waits = class.is_some_and(|class| string(&class["volumeBindingMode"]) == "WaitForFirstConsumer");
    waits && with_reason(&inquiry.events(claim).await, &["ProvisioningFailed"]).is_empty()
}

pub async fn explain<R: ObjectReader>(inquiry: &Inquiry<'_, R>, claim: &Value) -> Verdict {
    match string(&claim["status"]["phase"]) {
        "Bound" => Verdict::fine(
            "Bound",
            format!("Nothing is wrong: it is bound to volume {}.", text(&claim["spec"]["volumeName"])),
        ),
        "Lost" => {
            let volume = text(&claim["spec"]["volumeName"]);
            Verdict::wrong("Lost", format!("Its volume {volume} no longer exists, and the data with it."))
                .try_command("kubectl get pv")
        }
        _ => unbound(inquiry, claim).await,
    }
}

async fn unbound<R: ObjectReader>(inquiry: &Inquiry<'_, R>, claim: &Value) -> Verdict {
    let spec = &claim["spec"];
    let events = inquiry.events(claim).await;
    let volume = string(&spec["volumeName"]);
    if !volume.is_empty() {
        return wanted_volume(inquiry, claim, volume).await;
    }
    let failed = with_reason(&events, &["ProvisioningFailed"]);
    let no_class = |event: &Value| {
        let message = string(&event["message"]);
        message.contains("storageclass") && message.contains("not found")
    };
    if let Some(first) = failed.first().filter(|event| !no_class(event)) {
        let cause = format!("The provisioner cannot make a volume for it: {}.", clause(string(&first["message"])));
        return Verdict::wrong("ProvisioningFailed", cause).with_events(failed, inquiry.now).try_command(format!(
            "kubectl describe pvc {}{}",
            name(claim),
            namespace_flag(claim)
        ));
    }
    let class_name = string(&spec["storageClassName"]);
    let Some(class) = class_of(inquiry, claim).await else {
        return without_class(inquiry, claim, class_name).await;
    };
    if string(&class["volumeBindingMode"]) == "WaitForFirstConsumer" {
        return first_consumer(inquiry, claim, class_name).await;
    }
    let provisioner = text(&class["provisioner"]);
    if provisioner == "kubernetes.io/no-provisioner" {
        return matching_volume(inquiry, claim, class_name).await;
    }
    Verdict::wrong(
        "Provisioning",
        format!("It waits for the provisioner {provisioner} of class {class_name}, which has not answered."),
    )
    .with_events(events.iter().take(2), inquiry.now)
    .try_command(format!("kubectl get pods -A | grep -i {}", provisioner.rsplit('/').next().unwrap_or_default()))
}

async fn wanted_volume<R: ObjectReader>(inquiry: &Inquiry<'_, R>, claim: &Value, volume: &str) -> Verdict {
    let found = inquiry.reader.read(Query::get("v1", "persistentvolumes", "", volume)).await;
    let Some(found) = found.ok().and_then(|mut found| found.pop()) else {
        return Verdict::wrong(
            "VolumeMissing",
            format!("It asks for the volume {volume}, and there is no such volume."),
        )
        .because(format!("spec.volumeName: {volume}"))
        .try_command("kubectl get pv");
    };
    let taken = &found["spec"]["claimRef"];
    let is_ours = string(&taken["namespace"]) == namespace(claim) && string(&taken["name"]) == name(claim);
    if taken.is_object() && !is_ours {
        let owner = format!("{}/{}", text(&taken["namespace"]), text(&taken["name"]));
        return Verdict::wrong(
            "VolumeTaken",
            format!("It asks for the volume {volume}, which belongs to the claim {owner}."),
        )
        .because(format!("spec.claimRef of the volume: {owner}"))
        .try_command(format!("kubectl get pvc -n {} {}", text(&taken["namespace"]), text(&taken["name"])));
    }
    let phase = text(&found["status"]["phase"]);
    Verdict::wrong(
        "Binding",
        format!("It asks for the volume {volume}, which is {phase}; they are not bound to each other yet."),
    )
    .try_command(format!("kubectl describe pv {volume}"))
}

async fn without_class<R: ObjectReader>(inquiry: &Inquiry<'_, R>, claim: &Value, class: &str) -> Verdict {
    let classes = inquiry.reader.read(Query::list("storage.k8s.io/v1", "storageclasses", "")).await.unwrap_or_default();
    let names: Vec<&str> = classes.iter().map(name).collect();
    let shown = if names.is_empty() { "none".to_string() } else { names.join(", ") };
    if !class.is_empty() {
        return Verdict::wrong(
            "ClassMissing",
            format!("It asks for the storage class {class}, and there is no such class."),
        )
        .because(format!("storage classes of the cluster: {shown}"))
        .try_command("kubectl get storageclass");
    }
    if claim["spec"]["storageClassName"].is_string() {
        return matching_volume(inquiry, claim, "").await;
    }
    let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let is_default = |class: &&Value| marks.iter().any(|mark| class["metadata"]["annotations"][*mark] == "true");
    match classes.iter().find(is_default) {
        Some(class) => {
            let cause =
                format!("It names no storage class; the default class {} is about to be given to it.", name(class));
            Verdict::fine("ClassPending", cause)
        }
        None => Verdict::wrong(
            "NoDefaultClass",
            "It names no storage class, and the cluster has no default one, so nobody makes a volume for it.",
        )
        .because(format!("storage classes of the cluster: {shown}"))
        .try_command("kubectl get storageclass"),
    }
}

async fn first_consumer<R: ObjectReader>(inquiry: &Inquiry<'_, R>, claim: &Value, class: &str) -> Verdict {
    let pods = inquiry.reader.read(Query::list("v1", "pods", namespace(claim))).await.unwrap_or_default();
    let uses = |pod: &&Value| {
        list(&pod["spec"]["volumes"]).iter().any(|v| string(&v["persistentVolumeClaim"]["claimName"]) == name(claim))
    };
    let evidence = format!("storage class {class} has volumeBindingMode WaitForFirstConsumer");
    match pods.iter().find(uses) {
        None => Verdict::fine(
            "WaitForFirstConsumer",
            format!(
                "It is bound when a pod that uses it is scheduled; no pod in namespace {} uses it.",
                namespace(claim)
            ),
        )
        .because(evidence),
        Some(pod) => {
            let cause = format!("It is bound when pod {} is scheduled, and that pod has no node yet.", name(pod));
            Verdict::wrong("WaitForFirstConsumer", cause).because(evidence).try_command(format!(
                "minke why pod/{}{}",
                name(pod),
                namespace_flag(claim)
            ))
        }
    }
}

/// Volumes made by hand: what each lacks.
async fn matching_volume<R: ObjectReader>(inquiry: &Inquiry<'_, R>, claim: &Value, class: &str) -> Verdict {
    let volumes = inquiry.reader.read(Query::list("v1", "persistentvolumes", "")).await.unwrap_or_default();
    let wanted = &claim["spec"]["resources"]["requests"]["storage"];
    let modes = strings(&claim["spec"]["accessModes"]);
    let lacks = |volume: &Value| {
        let spec = &volume["spec"];
        if string(&spec["storageClassName"]) != class {
            return format!("is of class {:?}", string(&spec["storageClassName"]));
        }
        if spec["claimRef"].is_object() {
            return format!(
                "belongs to claim {}/{}",
                text(&spec["claimRef"]["namespace"]),
                text(&spec["claimRef"]["name"])
            );
        }
        let amount =
            |value: &Value| api::quantity::Quantity::from_value(value).map_or(0.0, |quantity| quantity.as_f64());
        if amount(&spec["capacity"]["storage"]) < amount(wanted) {
            return format!("has {}, less than {}", quantity(&spec["capacity"]["storage"]), quantity(wanted));
        }
        let has = strings(&spec["accessModes"]);
        match modes.iter().find(|mode| !has.contains(mode)) {
            Some(mode) => format!("does not offer {mode}"),
            None if truth(&volume["metadata"]["deletionTimestamp"]) => "is being deleted".to_string(),
            None => "does not fit its selector or volume mode".to_string(),
        }
    };
    let cause = match volumes.is_empty() {
        true => "Its class makes no volumes by itself, and the cluster has none.".to_string(),
        false => format!(
            "Its class makes no volumes by itself, and none of the {} volumes of the cluster fits.",
            volumes.len()
        ),
    };
    let mut verdict = Verdict::wrong("NoMatchingVolume", cause);
    for volume in volumes.iter().take(5) {
        verdict = verdict.because(format!("volume {} {}", name(volume), lacks(volume)));
    }
    verdict.try_command("kubectl get pv")
}
