//! The flags of the kubelet as pflag reads them.
//! A table of `upstream`; what they do is in `kubelet_flags`, whose own table has them with their fields.

use std::sync::LazyLock;

use super::{Component, Form, Meaning, Row, shared};
use crate::flags::kubelet_flags::fields;

#[derive(Debug, Clone)]
pub struct Kubelet;

/// Those that are neither fields nor settings of one value.
const OWN: &[Row] = &[
    ("bootstrap-kubeconfig", Form::Text, Meaning::Acts),
    ("config", Form::Text, Meaning::Acts),
    ("config-dir", Form::Text, Meaning::Acts),
    ("exit-on-lock-contention", Form::Flag, Meaning::Acts),
    ("hostname-override", Form::Text, Meaning::Acts),
    ("image-credential-provider-bin-dir", Form::Text, Meaning::Acts),
    ("image-credential-provider-config", Form::Text, Meaning::Acts),
    ("kubeconfig", Form::Text, Meaning::Acts),
    ("lock-file", Form::Text, Meaning::Acts),
    ("maximum-dead-containers", Form::Number, Meaning::Acts),
    ("maximum-dead-containers-per-container", Form::Number, Meaning::Acts),
    ("minimum-container-ttl-duration", Form::Duration, Meaning::Acts),
    ("node-ip", Form::Text, Meaning::Acts),
    ("node-labels", Form::Map, Meaning::Acts),
    ("root-dir", Form::Text, Meaning::Acts),
];

static FIELDS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let form = |form: fields::Form| match form {
        fields::Form::Flag => Form::Flag,
        fields::Form::Number => Form::Number,
        fields::Form::List => Form::List,
        fields::Form::Gates => Form::Gates,
        fields::Form::Map | fields::Form::Thresholds | fields::Form::Headers | fields::Form::Taints => Form::Map,
        fields::Form::Text | fields::Form::ReservedMemory => Form::Text,
    };
    fields::all().map(|(flag, of, _)| (flag, form(of), Meaning::Acts)).collect()
});

impl Component for Kubelet {
    fn tables() -> Vec<&'static [Row]> {
        vec![OWN, FIELDS.as_slice(), shared::LOGS]
    }

    /// An empty path or threshold turns its feature off.
    fn empty_is_absent() -> bool {
        false
    }
}
