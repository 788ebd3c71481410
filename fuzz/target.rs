//! Every binary of this package: the target of its own name.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fuzz::Target> = LazyLock::new(|| fuzz::target(env!("CARGO_BIN_NAME")));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (*TARGET)(bytes));
