//! Makes inputs that are almost right out of inputs that are.

#[path = "../../../api/tests/words/mod.rs"]
mod words;

use env::Env;
use words::WORDS;

pub struct Bender {
    chance: Env,
}

impl Bender {
    pub fn new(seed: u64, name: &str) -> Self {
        let own = name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        Self { chance: Env::simulated(jiff::Timestamp::UNIX_EPOCH, own) }
    }

    fn below(&self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.chance.random_u64() % limit as u64) as usize }
    }

    pub fn next(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = corpus[self.below(corpus.len())].clone();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(40)).min(bytes.len());
            match self.below(7) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 => bytes.truncate(at),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
                4 => {
                    let other = &corpus[self.below(corpus.len())];
                    let from = self.below(other.len());
                    let to = (from + 1 + self.below(60)).min(other.len());
                    bytes.splice(at..at, other[from..to].iter().copied());
                }
                _ => drop(bytes.splice(at..at, WORDS[self.below(WORDS.len())].bytes())),
            }
        }
        bytes
    }
}
