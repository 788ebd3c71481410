//! The packages that `tools/dist` makes: what is in them, that they come out the same twice, and what their scripts refuse.
//! A few lines that call the binary stand for it, so that nothing large is packed. Nothing is installed here.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pack(out: &Path, version: &str) {
    let stand_in = out.join("minke");
    fs::create_dir_all(out).unwrap();
    // The same bytes whichever directory it is in: what is packed is this text.
    fs::write(&stand_in, format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_minke"))).unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
    let done = Command::new(root().join("tools/dist"))
        .arg("pack")
        .envs([("MINKE_DIST_OFFLINE", "no"), ("MINKE_DIST_VERSION", version), ("SOURCE_DATE_EPOCH", "1700000000")])
        .env("MINKE_DIST_BINARY", &stand_in)
        .env("MINKE_DIST_OUT", out)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn dpkg_deb(arguments: &[&str], package: &Path) -> String {
    let done = Command::new("dpkg-deb").args(arguments).arg(package).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn packages_hold_everything_and_come_out_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    pack(&one, "1.2.3");
    pack(&two, "1.2.3");
    let sums = fs::read_to_string(one.join("SHA256SUMS")).unwrap();
    assert_eq!(sums, fs::read_to_string(two.join("SHA256SUMS")).unwrap());
    assert_eq!(sums.lines().count(), 3, "package, tarball and SBOM: {sums}");
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let package = one.join(format!("minke_1.2.3_{architecture}.deb"));
    let control = dpkg_deb(&["--field"], &package);
    assert!(
        control.contains("Version: 1.2.3\n") && control.contains("Depends: containerd | containerd.io, runc"),
        "{control}"
    );
    let listed = dpkg_deb(&["--contents"], &package);
    for file in [
        "./usr/bin/minke",
        "./etc/minke/config.yaml",
        "./usr/lib/systemd/system/minke.service",
        "./usr/share/man/man1/minke-support-bundle.1.gz",
        "./usr/share/bash-completion/completions/minke",
        "./usr/share/doc/minke/copyright",
        "./usr/share/doc/minke/sbom.cdx.json",
    ] {
        assert!(listed.lines().any(|line| line.ends_with(file)), "{file} in {listed}");
    }
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");
    let scripts = directory.path().join("scripts");
    let done = Command::new("dpkg-deb").arg("--control").arg(&package).arg(&scripts).output().unwrap();
    assert!(done.status.success());
    assert_eq!(fs::read_to_string(scripts.join("conffiles")).unwrap(), "/etc/minke/config.yaml\n");
    let preinst = |arguments: &[&str]| Command::new(scripts.join("preinst")).args(arguments).output().unwrap();
    assert!(preinst(&["upgrade", "1.2.2", "1.2.3"]).status.success());
    assert!(preinst(&["install"]).status.success());
    let refused: Output = preinst(&["upgrade", "1.10.0", "1.2.3"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && text.contains("minke 1.10.0, and this is 1.2.3") && text.contains("restore"),
        "{text}"
    );

    let bom: serde_json::Value = serde_json::from_slice(&fs::read(one.join("sbom.cdx.json")).unwrap()).unwrap();
    let components = bom["components"].as_array().unwrap();
    let find = |name: &str| components.iter().find(|component| component["name"] == name);
    let tokio = find("tokio").expect("tokio is in the binary");
    assert!(
        tokio["hashes"][0]["content"].as_str().is_some_and(|hash| hash.len() == 64) && tokio["licenses"].is_array()
    );
    assert!(find("proptest").is_none(), "only tests use it");
}
