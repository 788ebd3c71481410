//! The same rules for machines without nftables: whole tables by `iptables-restore`, in upstream's chains.
//! Used by `run` in the place of `nftables/`; the text is `render`'s (pure).
//! Every write has everything, so cost grows with the number of Services: nftables is the better choice where there is one.

mod render;

use std::collections::BTreeSet;

use netfilter::NftError;

use self::render::{BASE_JUMPS, OWN_PREFIX, Rendered, render};
use crate::{
    model::{NodeConfig, State},
    pod_routes::{PodRoutesError, run_command},
    rules::Family,
};

/// What is in the kernel of one family.
#[derive(Default)]
pub struct IptablesTables {
    /// Of the nat table; those that nobody names any more are deleted.
    chains: [Option<BTreeSet<String>>; 2],
    /// What was written last: the same is not written again.
    written: [String; 2],
}

/// Without IPv6 there is nothing of it to write.
fn families() -> impl Iterator<Item = (usize, Family)> {
    let has_ipv6 = std::path::Path::new("/proc/sys/net/ipv6").exists();
    Family::ALL.into_iter().enumerate().filter(move |(_, family)| *family == Family::V4 || has_ipv6)
}

/// The three programs of a family: for one rule, for what is there, for whole tables.
struct Tools {
    one: &'static str,
    save: &'static str,
    restore: &'static str,
}

fn tools(family: Family) -> Tools {
    match family {
        Family::V4 => Tools { one: "iptables", save: "iptables-save", restore: "iptables-restore" },
        Family::V6 => Tools { one: "ip6tables", save: "ip6tables-save", restore: "ip6tables-restore" },
    }
}

impl IptablesTables {
    /// Brings the kernel to what the state says; with `full` also what others may have taken away.
    pub async fn write(&mut self, state: &State, config: &NodeConfig, full: bool) -> Result<(), NftError> {
        for (index, family) in families() {
            let known = match self.chains[index].take().filter(|_| !full) {
                Some(known) => known,
                None => own_chains(&run(tools(family).save, &["-t", "nat"], "").await?),
            };
            let Rendered { text, chains } = render(family, state, config, &known);
            if full || self.written[index] != text {
                run(tools(family).restore, &["-w", "5", "--noflush"], &text).await?;
                self.written[index] = text;
            }
            if full {
                ensure_jumps(family).await?;
            }
            self.chains[index] = Some(chains);
        }
        Ok(())
    }
}

/// Takes all rules away; what is not there is fine.
pub async fn remove() -> Result<(), NftError> {
    for (_, family) in families() {
        for (table, chain, target) in BASE_JUMPS {
            // Not there is as good.
            let arguments = [&["-w", "5", "-t", *table, "-D", *chain][..], *target].concat();
            let _ = run(tools(family).one, &arguments, "").await;
        }
        for table in ["nat", "filter"] {
            let known = own_chains(&run(tools(family).save, &["-t", table], "").await?);
            let flushed = known.iter().map(|chain| format!(":{chain} - [0:0]\n"));
            let deleted = known.iter().map(|chain| format!("-X {chain}\n"));
            let lines: String = flushed.chain(deleted).collect();
            run(tools(family).restore, &["-w", "5", "--noflush"], &format!("*{table}\n{lines}COMMIT\n")).await?;
        }
    }
    Ok(())
}

/// The first rules of the kernel's own chains; somebody else's firewall may have come before or after.
async fn ensure_jumps(family: Family) -> Result<(), NftError> {
    let tool = tools(family).one;
    for (table, chain, target) in BASE_JUMPS {
        let rule = |verb: &'static str| [&["-w", "5", "-t", *table, verb, *chain][..], *target].concat();
        if run(tool, &rule("-C"), "").await.is_err() {
            run(tool, &rule("-I"), "").await?;
        }
    }
    Ok(())
}

fn own_chains(saved: &str) -> BTreeSet<String> {
    let names = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    names.filter(|name| name.starts_with(OWN_PREFIX)).map(str::to_owned).collect()
}

async fn run(program: &'static str, arguments: &[&str], input: &str) -> Result<String, NftError> {
    let done = run_command(program, arguments, input).await;
    done.map_err(|error| match error {
        PodRoutesError::Start(_, error) => {
            NftError::Refused(format!("failed to run {program} (apt-get install -y iptables): {error}"))
        }
        PodRoutesError::Refused(_, said) => NftError::Refused(format!("{program} {}: {said}", arguments.join(" "))),
    })
}
