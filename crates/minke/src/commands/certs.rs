//! `minke certs`: which certificates there are and when they end, and issuing them again.
//! Over `certificates::inventory` and `certificates::reissue`.
//! Authorities are looked at only.

use anyhow::{Result, bail};
use env::Env;

use crate::{
    certificates::{inventory, kubeconfigs, pki::Pki, reissue},
    cluster::{instance::Instance, preflight, process},
    flags::{Certs, Look, OutputForm},
};

pub fn run(command: Certs) -> Result<()> {
    match command {
        Certs::Ls(look) => list(&look),
        Certs::Renew { data } => renew(&data.instance()),
    }
}

fn list(look: &Look) -> Result<()> {
    preflight::root()?;
    let instance = look.data.instance();
    let found = inventory::list(&instance, &Env::real());
    if found.is_empty() {
        bail!(
            "no certificates in {}: start a cluster with `minke up`, or name another --data-dir",
            instance.data.display()
        );
    }
    if look.output == OutputForm::Json {
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(());
    }
    println!("{:<34} {:<34} {:<22} {:<20} {:>9}", "CERTIFICATE", "SUBJECT", "ISSUER", "ENDS", "DAYS LEFT");
    for certificate in &found {
        let file = certificate.file.strip_prefix(&instance.data).unwrap_or(&certificate.file);
        println!(
            "{:<34} {:<34} {:<22} {:<20} {:>9}",
            file.display().to_string(),
            certificate.subject,
            certificate.issuer,
            certificate.not_after.to_string(),
            certificate.days_left
        );
    }
    for warning in found.iter().filter_map(inventory::Found::warning) {
        eprintln!("warning: {warning}");
    }
    Ok(())
}

fn renew(instance: &Instance) -> Result<()> {
    preflight::root()?;
    if !instance.pki().join("ca.key").exists() {
        bail!(
            "{} has no authority of its own, as a node that joined a cluster elsewhere: it renews its certificate with \
             that cluster while it runs",
            instance.data.display()
        );
    }
    let env = Env::real();
    let pki = Pki::open(&instance.pki(), env.clone())?;
    for name in reissue::reissue_all(&instance.pki(), &pki)? {
        println!("✓ {name} issued");
    }
    let written = kubeconfigs::rewrite(instance, &pki, &env)?;
    println!("✓ {written} kubeconfigs written");
    if process::running(instance)?.is_some() {
        println!(
            "the running cluster takes them up within 12 hours, or when it is started again: `systemctl restart minke` where it is \
             a service, else end its process and `minke up` (containers go on)"
        );
    }
    Ok(())
}
