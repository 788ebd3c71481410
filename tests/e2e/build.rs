//! Compiles the program of the test image as a static binary.

use std::{env, path::PathBuf, process::Command};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let source = "src/programs/net.rs";
    println!("cargo::rerun-if-changed={source}");
    let status = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "bin", "--target", &target])
        .args(["-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols", "-C", "relocation-model=static"])
        .args(["-C", "target-feature=+crt-static"])
        .arg("-o")
        .arg(out.join("net"))
        .arg(source)
        .status()
        .expect("failed to run rustc");
    assert!(status.success(), "failed to compile {source}");
}
