//! The certificate authorities that this machine believes, where nobody names another.
//! Used by every client of TLS: `client`, `cli`, webhooks of `apiserver`, manifests of `kubelet`, backends of `ingress`.
//! They are read once, and only if somebody needs them.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use rustls_pki_types::{CertificateDer, pem::PemObject};

/// Where distributions keep them; the first that is there. The list, and the variables, are those of upstream's runtime.
const FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// All of these.
const DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

pub fn certificates() -> &'static [CertificateDer<'static>] {
    static CERTIFICATES: LazyLock<Vec<CertificateDer<'static>>> = LazyLock::new(|| {
        let named = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
        let files = named("SSL_CERT_FILE").map_or(FILES.map(PathBuf::from).to_vec(), |file| vec![file.into()]);
        let split = |list: String| list.split(':').map(PathBuf::from).collect();
        let directories = named("SSL_CERT_DIR").map_or(DIRECTORIES.map(PathBuf::from).to_vec(), split);
        read(&files, &directories)
    });
    &CERTIFICATES
}

/// What can't be read is not believed, and no reason to do without the rest.
fn read(files: &[PathBuf], directories: &[PathBuf]) -> Vec<CertificateDer<'static>> {
    let listed = |directory: &PathBuf| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let read = |path: &Path| std::fs::read(path).ok();
    let first = files.iter().find_map(|file| read(file));
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for pem in first.into_iter().chain(directories.iter().flat_map(listed).filter_map(|path| read(&path))) {
        for certificate in CertificateDer::pem_slice_iter(&pem).flatten() {
            // The files of a directory are often the parts of the bundle, and links to each other.
            if seen.insert(certificate.to_vec()) {
                found.push(certificate);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};

    use super::*;

    fn authority(name: &str) -> String {
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, name);
        ca.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn the_systems_authorities_are_read_from_the_first_file_and_all_directories() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(authority);
        for directory in ["one", "two"] {
            std::fs::create_dir(path(directory)).unwrap();
        }
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (name, text) in [
            ("bundle.pem", format!("{a}\n{broken}\n{b}")),
            ("second.pem", d),
            ("one/a.pem", a.clone()),
            ("one/README", "no certificate".into()),
            ("two/c.pem", c),
        ] {
            std::fs::write(path(name), text).unwrap();
        }
        std::os::unix::fs::symlink("a.pem", path("one/hash.0")).unwrap();
        let check = |files: &[&str], directories: &[&str], expected: usize| {
            let [files, directories] =
                [files, directories].map(|names| names.iter().map(|name| path(name)).collect::<Vec<_>>());
            assert_eq!(read(&files, &directories).len(), expected, "{files:?} {directories:?}");
        };
        // Whoever uses them passes over the broken one.
        check(&["absent.pem", "bundle.pem", "second.pem"], &[], 3);
        check(&["absent.pem"], &["one", "absent", "two"], 2);
        check(&["bundle.pem"], &["one", "two"], 4);
        check(&[], &[], 0);
    }
}
