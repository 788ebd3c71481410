//! `kubectl expose`: a Service for a workload, pod or other Service.
//! A row of `verbs::ROOT`; the object is made in `generate::expose`.
//! The selector and the ports come from the object where no flag names them.

use super::info_of;
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, string},
    generate::expose::{Expose, can_be_exposed, service},
    printers::{Operation, PRINT, operation::DRY_RUN},
    resource::{FILENAME, Selection, each},
    run,
    session::Session,
    verbs::change::{
        create::{SAVE_CONFIG, create_one},
        record::RECORD,
    },
};

const FLAGS: &[Flag] = &[
    string("cluster-ip", "", "Address of the service; None for a headless one"),
    string("external-ip", "", "Address outside the cluster"),
    string("labels", "", "Labels of the service").short('l'),
    string("load-balancer-ip", "", "Address of the load balancer"),
    string("name", "", "Name of the service; that of the object if empty"),
    string("overrides", "", "JSON that is merged into the service"),
    string("override-type", "merge", "json, merge or strategic"),
    string("port", "", "Port of the service"),
    string("protocol", "", "TCP, UDP or SCTP"),
    string("selector", "", "Labels of the pods"),
    string("session-affinity", "", "None or ClientIP"),
    string("target-port", "", "Port of the pods"),
    string("type", "", "ClusterIP, NodePort, LoadBalancer or ExternalName"),
    string("field-manager", "kubectl-expose", "Name of the field manager"),
];

pub static COMMAND: Command = Command {
    name: "expose",
    aliases: &[],
    usage: "(-f FILENAME | TYPE NAME) [--port=port] [--protocol=TCP|UDP|SCTP] [--target-port=number-or-name] [--name=name] [--external-ip=external-ip-of-service] [--type=type] [options]",
    about: "Take a replication controller, service, deployment or pod and expose it as a new Kubernetes service",
    flags: &[FLAGS, SAVE_CONFIG, PRINT, FILENAME, DRY_RUN, RECORD],
    commands: &[],
    run: run!(expose),
};

const NAME_CHARACTERS_MAX: usize = 63;

async fn expose(session: &Session, matches: &Matches) -> Result<()> {
    let mut selection = Selection::of(session, matches)?;
    selection.selector.clear();
    let (infos, failures) = selection.select(session).await?;
    each(infos, failures, async |info| {
        can_be_exposed(&info.resource.group, &info.resource.kind).map_err(Failure::Message)?;
        let namespace = super::given_namespace(session)?;
        // A name that was inherited is made to fit; one that was given is for the server to refuse.
        let inherited: String = info.name.chars().take(NAME_CHARACTERS_MAX).collect();
        let name = matches.opt("name").unwrap_or(&inherited);
        let made = service(
            &Expose {
                name,
                namespace: namespace.as_deref(),
                selector: matches.str("selector"),
                labels: matches.str("labels"),
                port: matches.str("port"),
                protocol: matches.str("protocol"),
                target_port: matches.str("target-port"),
                kind: matches.str("type"),
                external_ip: matches.str("external-ip"),
                load_balancer_ip: matches.str("load-balancer-ip"),
                cluster_ip: matches.str("cluster-ip"),
                session_affinity: matches.str("session-affinity"),
            },
            &info.object,
        );
        let mut operation = Operation::of(session, matches)?.typed().saying("exposed");
        let mut place = info_of(session, made.map_err(Failure::Message)?, operation.dry_run).await?;
        super::run::override_object(&mut place, matches)?;
        create_one(session, matches, &mut operation, place).await
    })
    .await
}
