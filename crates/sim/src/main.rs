//! `make sim`: plays many seeds on all cores and says which failed.
//! The work is in the library; `tests/seeds.rs` plays a few of the same seeds.
//! Ends with an error when any seed failed.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    match arguments.as_slice() {
        // How `many` plays each seed.
        ["play", seed, bootstrapped] => number(seed).map_or_else(usage, |seed| play(seed, bootstrapped)),
        [count] => number(count).map_or_else(usage, |count| many(count, 0)),
        [count, first] => number(count).zip(number(first)).map_or_else(usage, |(count, first)| many(count, first)),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: sim COUNT [FIRST]");
    ExitCode::from(2)
}

fn play(seed: u64, bootstrapped: &str) -> ExitCode {
    let outcome = sim::play_here(seed, bootstrapped.as_ref());
    print!("{}", outcome.text);
    if outcome.holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many(count: u64, first: u64) -> ExitCode {
    let seeds: Vec<u64> = (first..first + count).collect();
    let played = std::env::current_exe().and_then(|program| sim::play_all(program.as_os_str(), &seeds));
    let outcomes = match played {
        Ok(outcomes) => outcomes,
        Err(error) => {
            eprintln!("couldn't play: {error}");
            return ExitCode::FAILURE;
        }
    };
    // One that was asked for by itself tells everything.
    outcomes.iter().filter(|o| !o.holds || count == 1).for_each(|o| print!("{}", o.text));
    let failed: Vec<_> = outcomes.iter().filter(|o| !o.holds).map(|o| o.seed).collect();
    println!("{} of {count} seeds from {first} hold", count - failed.len() as u64);
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}; play one again with `sim 1 SEED`");
    ExitCode::FAILURE
}
