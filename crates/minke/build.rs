//! Compiles the programs of our own images as static binaries, so that `minke` carries them inside itself.

use std::{env, path::PathBuf, process::Command};

fn main() {
    // A program of this size holds a hundred thousand relocations: packed, they take a fortieth of the room.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let no_library = ["-C", "link-arg=-nostartfiles", "-C", "link-arg=-nostdlib", "-C", "link-arg=-static"];
    let static_library = ["-C", "target-feature=+crt-static", "-C", "lto=fat"];
    for (program, flags) in [("pause", &no_library[..]), ("demo", &static_library[..])] {
        let source = format!("src/programs/{program}.rs");
        println!("cargo::rerun-if-changed={source}");
        let status = Command::new(&rustc)
            .args(["--edition", "2024", "--crate-type", "bin", "--target", &target])
            .args(["-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols", "-C", "relocation-model=static"])
            .args(flags)
            .arg("-o")
            .arg(out.join(program))
            .arg(&source)
            .status()
            .expect("failed to run rustc");
        assert!(status.success(), "failed to compile {source}");
    }
}
