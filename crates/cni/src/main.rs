//! The plugin as a program of its own, for tests that must not wait for the whole binary.
//! Invariant: nothing but a call of `cni::main`.

fn main() {
    std::process::exit(cni::main());
}
