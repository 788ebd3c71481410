//! One target per decoder and patcher: each is given its corpus, then bent copies of it, and must neither panic, nor
//! answer with an error of its own, nor write half of something.
//! `FUZZ_RUNS` and `FUZZ_SEED` ask for more than the short run of every test; a failing input belongs into the corpus.
//! Invariant: the same seed gives the same inputs.

mod bend;
mod pure;
mod server;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use bend::Bender;

type Target = fn(&[u8]);

/// Each with the directory of its corpus.
const TARGETS: &[(&str, Target)] = &[
    ("json", pure::json),
    ("yaml", pure::yaml),
    ("protobuf", pure::protobuf),
    ("json_patch", pure::json_patch),
    ("merge_patch", pure::merge_patch),
    ("strategic_merge_patch", pure::strategic_merge_patch),
    ("apply", pure::apply),
    ("managed_fields", pure::managed_fields),
    ("label_selector", pure::label_selector),
    ("field_selector", pure::field_selector),
    ("quantity", pure::quantity),
    ("cel", pure::cel),
    ("policy_file", pure::policy_file),
    ("token_file", pure::token_file),
    ("create", server::create),
    ("patch", server::patch),
    ("delete_options", server::delete_options),
    ("continue_token", server::continue_token),
    ("query", server::query),
    ("accept", server::accept),
    ("definition", server::definition),
    ("path", server::path),
    ("credentials", server::credentials),
];

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn run(name: &str, target: Target, runs: u64, seed: u64) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut files: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{name} has no corpus");
    let corpus: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
    let attempt = |input: &[u8], what: &str| {
        if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
            panic!("{name} fails on {what} (FUZZ_SEED={seed}): {:?}", String::from_utf8_lossy(input));
        }
    };
    for (file, input) in files.iter().zip(&corpus) {
        attempt(input, &file.display().to_string());
    }
    let mut bender = Bender::new(seed, name);
    for _ in 0..runs {
        attempt(&bender.next(&corpus), "a bent input");
    }
}

#[test]
fn no_input_breaks_anything() {
    let (runs, seed) = (number("FUZZ_RUNS", 120), number("FUZZ_SEED", 0));
    println!("FUZZ_RUNS={runs} FUZZ_SEED={seed}");
    for (name, target) in TARGETS {
        run(name, *target, runs, seed);
    }
}
