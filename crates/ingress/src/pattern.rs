//! Regular expressions of routes: of a limited size, and at work on a request only for as long as that may take.
//! Made by `gateway/rules`, asked by `routes` and `request_match`.
//! Pure (tidy: `pure_files`). Whoever writes a route shares the proxy with everybody else: a request that would take its
//! patterns too long is refused, never taken for one that they do not match.

use std::cell::Cell;

use regex::Regex;

/// The program of a pattern is taken for as large as the first of these that it fits in. Larger ones would cost more
/// memory than a route is worth.
const PROGRAM_BYTES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// At worst each byte of a value is looked at in each state of a program, which takes about as much of it.
const STATE_BYTES: u64 = 64;
/// Of all patterns that one request is held against: a fraction of a second at worst.
const STEPS_PER_REQUEST_MAX: u64 = 32 << 20;

/// A pattern for the whole of a value.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    program_bytes: usize,
}

impl Pattern {
    pub fn new(text: &str) -> Result<Self, String> {
        let whole = format!("^(?:{text})$");
        let built = PROGRAM_BYTES.into_iter().find_map(|program_bytes| {
            let regex = regex::RegexBuilder::new(&whole).size_limit(program_bytes).build().ok()?;
            Some(Self { regex, program_bytes })
        });
        built.ok_or_else(|| format!("{text:?} is not a regular expression that can be used"))
    }

    pub fn program_bytes(&self) -> usize {
        self.program_bytes
    }

    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    pub fn takes(&self, value: &str, budget: &PatternBudget) -> bool {
        let states = self.program_bytes as u64 / STATE_BYTES;
        budget.spend(states.saturating_mul(value.len() as u64 + 1)) && self.regex.is_match(value)
    }
}

/// What the patterns that one request is held against may still cost together.
#[derive(Debug)]
pub struct PatternBudget {
    steps: Cell<u64>,
    is_spent: Cell<bool>,
}

impl Default for PatternBudget {
    fn default() -> Self {
        Self { steps: Cell::new(STEPS_PER_REQUEST_MAX), is_spent: Cell::new(false) }
    }
}

impl PatternBudget {
    fn spend(&self, steps: u64) -> bool {
        match self.steps.get().checked_sub(steps) {
            Some(left) => self.steps.set(left),
            None => self.is_spent.set(true),
        }
        !self.is_spent.get()
    }

    /// Whether there were patterns that were not asked any more: which route the request takes is not known then.
    pub fn is_spent(&self) -> bool {
        self.is_spent.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_are_none_or_too_large_are_refused() {
        assert!(Pattern::new("(").is_err());
        assert!(Pattern::new("((a{1000}){1000}){1000}").is_err());
        assert_eq!(Pattern::new("/v[0-9]+/.*").unwrap().program_bytes(), 4 << 10);
        assert!(Pattern::new("[ab]*a[ab]{500}").unwrap().program_bytes() > 4 << 10);
    }

    /// `[ab]*a[ab]{500}` has more states than a machine that keeps them can hold, so each byte takes all of them.
    #[test]
    fn a_route_with_a_costly_pattern_does_not_keep_the_proxy_busy() {
        let costly = Pattern::new("[ab]*a[ab]{500}").unwrap();
        let value = "ab".repeat(30_000);
        let budget = PatternBudget::default();
        let asked = (0..1000).take_while(|_| {
            costly.takes(&value, &budget);
            !budget.is_spent()
        });
        assert!(asked.count() < 16 && budget.is_spent());
        assert!(!Pattern::new("a").unwrap().takes("a", &budget), "nothing is asked any more");
        // What routes usually have is held against anything that a client can send.
        let (usual, budget) = (Pattern::new("/v[0-9]+/.*").unwrap(), PatternBudget::default());
        let path = format!("/v1/{}", "x".repeat(60_000));
        assert!((0..8).all(|_| usual.takes(&path, &budget)) && !budget.is_spent());
    }
}
