//! Gives every target its corpus, then bent copies of it.
//! `FUZZ_RUNS` and `FUZZ_SEED` ask for more than the short run of every test; a failing input belongs into the corpus.
//! The same seed gives the same inputs.

mod bend;

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use bend::Bender;
use fuzz::{TARGETS, Target};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn run(name: &str, target: Target, runs: u64, seed: u64) {
    let directory = corpus().join(name);
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

/// `make fuzz` and `make test` run the same targets on the same corpus.
#[test]
fn every_target_has_a_corpus_and_a_binary() {
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    let entries = std::fs::read_dir(corpus()).unwrap();
    let directories: BTreeSet<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(directories, names);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let (_, binaries) = manifest.split_once("[[bin]]").unwrap();
    let named = binaries.lines().filter_map(|line| line.strip_prefix("name = "));
    let binaries: BTreeSet<String> = named.map(|name| name.trim_matches('"').to_string()).collect();
    assert_eq!(binaries, names);
}
