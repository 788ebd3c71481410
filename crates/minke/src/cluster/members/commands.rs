//! `minke node|server|etcd ls|stop|start|cut|heal`: looks at the members of a cluster on this machine, and disturbs them.
//! Called by `commands`; what is done to a member is in `mod.rs`.
//! One table for all kinds.

use anyhow::Result;
use env::Env;

use crate::{
    cluster::{
        instance::Instance,
        members::{self, Kind, Member, switch},
        preflight, process,
    },
    control_plane::join_token,
    flags::{self, MemberCommand},
};

pub fn run(kind: Kind, command: &MemberCommand) -> Result<()> {
    preflight::root()?;
    let found = |flags: &flags::NamedMember| -> Result<Member> {
        let member = Member::new(&flags.data.instance(), kind, &flags.name);
        member.record().map(|_| member)
    };
    match command {
        MemberCommand::Ls { data } => return list(kind, &data.instance()),
        MemberCommand::Stop(flags) => {
            found(flags)?.power_off()?;
            println!("{} {} stopped", kind.command(), flags.name);
        }
        MemberCommand::Start(flags) => {
            let member = found(flags)?;
            crate::runtime()?.block_on(async {
                // A node that never finished joining needs a token that is still good.
                if kind == Kind::Node
                    && let Err(error) = join_token::refresh(&flags.data.instance(), &Env::real()).await
                {
                    tracing::warn!(error = format!("{error:#}"), "the token could not be renewed");
                }
                member.start().await
            })?;
            println!("{} {} runs", kind.command(), flags.name);
        }
        MemberCommand::Cut(flags) => {
            switch::ip(&["link", "set", &found(flags)?.instance.cable(), "down"], "")?;
        }
        MemberCommand::Heal(flags) => {
            switch::ip(&["link", "set", &found(flags)?.instance.cable(), "up"], "")?;
        }
    }
    Ok(())
}

fn list(kind: Kind, cluster: &Instance) -> Result<()> {
    println!("{:<24} {:<16} {:<10} {:<8} DATA", "NAME", "ADDRESS", "STATE", "PROCESS");
    let row = |name: &str, address: &str, state: &str, pid: Option<i32>, instance: &Instance| {
        let pid = pid.map(|p| p.to_string()).unwrap_or_default();
        println!("{name:<24} {address:<16} {state:<10} {pid:<8} {}", instance.data.display());
    };
    // Servers and etcd are members, or part of the one process that is on this machine itself.
    if kind == Kind::Node || members::of_kind(cluster, kind).is_empty() && kind == Kind::Server {
        let pid = process::running(cluster)?;
        row("(this machine)", "", if pid.is_some() { "running" } else { "stopped" }, pid, cluster);
    }
    for (member, state) in members::states(cluster).into_iter().filter(|(member, _)| member.kind == kind) {
        let state = state?;
        row(&member.name, &state.address.to_string(), state.text, state.pid, &member.instance);
    }
    Ok(())
}
