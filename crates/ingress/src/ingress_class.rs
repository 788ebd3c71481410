//! The IngressClass of ours: made once, then the user's.
//! Called by `run` at start; asked by `controller` which Ingresses are ours.
//! Invariant: a class that is there is never changed (test: `the_class_is_made_once_and_default_if_no_other_is`).

use std::time::Duration;

use api::ApiError;
use client::{Client, ListParams};
use env::{Backoff, Env};
use k8s_openapi::{
    api::networking::v1::{Ingress, IngressClass, IngressClassSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// What our classes name as their controller.
pub const CONTROLLER: &str = "minke.io/ingress";
pub const NAME: &str = "minke";
const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// How classes were named before there were any.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// Makes the class, however often it takes.
pub async fn ensure(client: &Client, env: &Env) {
    let mut backoff = RETRY_BACKOFF;
    while let Err(error) = create(client).await {
        tracing::warn!(%error, "failed to make the IngressClass; will try again");
        env.sleep(backoff.next_delay()).await;
    }
}

async fn create(client: &Client) -> Result<(), ApiError> {
    let classes = client.api::<IngressClass>();
    let present = classes.list(&ListParams::default()).await?.items;
    if present.iter().any(|class| class.metadata.name.as_deref() == Some(NAME)) {
        return Ok(());
    }
    let annotations = (!present.iter().any(is_default)).then(|| [(IS_DEFAULT.into(), "true".into())].into());
    let class = IngressClass {
        metadata: ObjectMeta { name: Some(NAME.into()), annotations, ..ObjectMeta::default() },
        spec: Some(IngressClassSpec { controller: Some(CONTROLLER.into()), parameters: None }),
    };
    match classes.create(&class).await {
        Err(error) if error.code == 409 => Ok(()),
        created => created.map(drop),
    }
}

fn is_default(class: &IngressClass) -> bool {
    class.metadata.annotations.iter().flatten().any(|(name, value)| name == IS_DEFAULT && value == "true")
}

/// The class that an Ingress names.
pub fn of_ingress(ingress: &Ingress) -> Option<&str> {
    let annotations = ingress.metadata.annotations.as_ref();
    let annotated = annotations.and_then(|annotations| annotations.get(CLASS_ANNOTATION));
    let named = ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_ref());
    named.or(annotated).map(String::as_str)
}

pub fn is_ours(class: &IngressClass) -> bool {
    class.spec.as_ref().and_then(|spec| spec.controller.as_deref()) == Some(CONTROLLER)
}
