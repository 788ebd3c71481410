//! Digests: the names of what is stored.
//! Used by everything here. Only SHA-256, as every client sends it.

use std::{
    fmt, fs,
    io::{self, Read},
    path::Path,
};

use sha2::{Digest as _, Sha256};

const HEX_CHARS: usize = 64;

/// `sha256:` and 64 hexadecimal digits, in small letters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

impl Digest {
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let is_good = hex.len() == HEX_CHARS && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_good.then(|| Self(text.to_string()))
    }

    pub fn hex(&self) -> &str {
        &self.0["sha256:".len()..]
    }

    pub fn of_hex(hex: &str) -> Option<Self> {
        Self::parse(&format!("sha256:{hex}"))
    }

    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self::of_hash(&Sha256::digest(bytes))
    }

    pub fn of_file(path: &Path) -> io::Result<Self> {
        let (mut file, mut hash) = (fs::File::open(path)?, Sha256::new());
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Self::of_hash(&hash.finalize())),
                read => hash.update(&buffer[..read]),
            }
        }
    }

    fn of_hash(hash: &[u8]) -> Self {
        Self(format!("sha256:{}", hash.iter().map(|b| format!("{b:02x}")).collect::<String>()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
