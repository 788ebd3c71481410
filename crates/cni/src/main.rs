//! The plugin as a program of its own, for tests that must not wait for the whole binary.
//! Nothing but a call of `cni::main`.

fn main() {
    std::process::exit(cni::main());
}
