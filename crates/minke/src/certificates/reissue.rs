//! Issues the cluster's certificates again, each with the names it has.
//! Called by `minke certs renew`; at its start and at two thirds of their lives the cluster does it by itself (`pki`).
//! Authorities stay, and so does what another machine's cluster has signed.

use std::{fs, path::Path};

use anyhow::Result;

use crate::certificates::{
    authorities::Authority,
    pki::{Leaf, Pki, address, signed_by},
};

const AUTHORITIES: [Authority; 3] = [Authority::Cluster, Authority::KubeletServing, Authority::FrontProxy];

/// Returns the names of those that were issued.
pub fn reissue_all(directory: &Path, pki: &Pki) -> Result<Vec<String>> {
    let mut issued = Vec::new();
    let entries = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "crt")).collect();
    files.sort();
    for path in files {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_string();
        let is_authority = AUTHORITIES.iter().any(|authority| authority.file() == name);
        if is_authority || !path.with_extension("key").exists() {
            continue;
        }
        if let Some(leaf) = leaf(&name, &fs::read(&path)?, pki)? {
            pki.replace(&leaf)?;
            issued.push(name);
        }
    }
    Ok(issued)
}

/// What the certificate was issued as, if it was by one of the cluster's authorities.
fn leaf(name: &str, pem: &[u8], pki: &Pki) -> Result<Option<Leaf>> {
    let Some(der) = client::certificates(pem).ok().and_then(|chain| chain.into_iter().next()) else { return Ok(None) };
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&der) else { return Ok(None) };
    let mut signer = None;
    for authority in AUTHORITIES {
        if signed_by(&der, &pki.authority_pem(authority)?) {
            signer = Some(authority);
        }
    }
    let Some(authority) = signer.filter(|_| !certificate.is_ca()) else { return Ok(None) };
    let text = |value: Option<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
        value.and_then(|value| value.as_str().ok()).map(str::to_string)
    };
    let mut leaf = Leaf {
        name: name.to_string(),
        authority,
        common_name: text(certificate.subject().iter_common_name().next()).unwrap_or_default(),
        organization: text(certificate.subject().iter_organization().next()),
        ..Leaf::default()
    };
    for name in certificate.subject_alternative_name().ok().flatten().iter().flat_map(|e| &e.value.general_names) {
        match name {
            x509_parser::extensions::GeneralName::DNSName(name) => leaf.dns_names.push(name.to_string()),
            x509_parser::extensions::GeneralName::IPAddress(bytes) => leaf.addresses.extend(address(bytes)),
            _ => {}
        }
    }
    if let Some(usage) = certificate.extended_key_usage().ok().flatten() {
        (leaf.server, leaf.client) = (usage.value.server_auth, usage.value.client_auth);
    }
    Ok(Some(leaf))
}

#[cfg(test)]
mod tests {
    use env::Env;

    use super::*;

    #[tokio::test]
    async fn certificates_come_again_with_the_names_they_had() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Env::real()).unwrap();
        let server = Leaf {
            name: "apiserver".into(),
            common_name: "kube-apiserver".into(),
            dns_names: vec!["kubernetes".into()],
            addresses: vec!["10.96.0.1".parse().unwrap(), "::1".parse().unwrap()],
            server: true,
            ..Leaf::default()
        };
        let front = Leaf { authority: Authority::FrontProxy, ..Leaf::client("front", "front-proxy-client", Some("g")) };
        let before = [&server, &front].map(|leaf| pki.leaf(leaf).unwrap().certificate);
        // One that another cluster signed, as a node that joined it has.
        let other = tempfile::tempdir().unwrap();
        let foreign = Pki::open(other.path(), Env::real()).unwrap();
        let kept = foreign.leaf(&Leaf::client("kubelet-client", "system:node:n", None)).unwrap();
        fs::write(directory.path().join("kubelet-client.crt"), &kept.certificate).unwrap();
        fs::write(directory.path().join("kubelet-client.key"), &kept.key).unwrap();
        let ca = fs::read(directory.path().join("ca.crt")).unwrap();

        assert_eq!(reissue_all(directory.path(), &pki).unwrap(), ["apiserver", "front"]);
        // Good for the same leaf, so nothing else is issued in its place; and yet not the one of before.
        let after = [&server, &front].map(|leaf| pki.leaf(leaf).unwrap().certificate);
        let on_disk = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(after, [on_disk("apiserver.crt"), on_disk("front.crt")]);
        assert!(before.iter().zip(&after).all(|(old, new)| old != new));
        assert_eq!(on_disk("kubelet-client.crt"), kept.certificate);
        assert_eq!(fs::read(directory.path().join("ca.crt")).unwrap(), ca);
    }
}
