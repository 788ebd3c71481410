//! `make sim`: plays many seeds on all cores and says which failed.
//! The work is in the library; `tests/seeds.rs` plays a few of the same seeds.
//! Invariant: ends with an error when any seed failed.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let (count, first) = match (arguments.next(), arguments.next()) {
        (Some(Ok(count)), None) => (count, 0),
        (Some(Ok(count)), Some(Ok(first))) => (count, first),
        _ => {
            eprintln!("usage: sim COUNT [FIRST]");
            return ExitCode::from(2);
        }
    };
    if count == 1 {
        return play(first);
    }
    let failures = sim::run_many(first, count);
    let failed: Vec<_> = failures.iter().map(|f| f.seed).collect();
    println!("{} of {count} seeds from {first} hold", count - failed.len() as u64);
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}; play one again with `sim 1 SEED`");
    ExitCode::FAILURE
}

/// One seed, with all that was done.
fn play(seed: u64) -> ExitCode {
    match sim::run_seed(seed) {
        Ok(played) => {
            played.log.iter().for_each(|line| println!("{line}"));
            println!("seed {seed} holds: {} changes in {} s", played.changes, played.milliseconds / 1000);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
