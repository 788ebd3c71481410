//! The PyPI `kubernetes` client, which is not ours and not kubectl.

use std::process::Command;

use e2e::{BUSYBOX, Cluster};

use crate::kubectl;

#[test]
fn the_python_client_works() {
    let ns = kubectl().namespace("python");
    let python = std::env::var("MINKE_E2E_PYTHON").expect("use tests/e2e/run");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/client.py");
    let output = Command::new(python)
        .arg(script)
        .arg(Cluster::shared().data.join("admin.kubeconfig"))
        .args([&ns.name, BUSYBOX])
        .output()
        .expect("python runs");
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}
