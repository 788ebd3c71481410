//! PEM: the blocks of a text, and a block as text.
//! Used by kinds that hold certificates and by whoever hands such texts on.
//! What stands between blocks is skipped, and so is a block that can't be read, as Go's decoder does.

use base64::{Engine, engine::general_purpose::STANDARD};

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
const LINE_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// `CERTIFICATE`, `PRIVATE KEY`, …
    pub label: String,
    /// Whether lines like `Proc-Type: …` stand before the content.
    pub has_headers: bool,
    pub content: Vec<u8>,
}

/// All that can be read.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim_end).peekable();
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(DASHES)) else { continue };
        let (mut body, mut has_headers, mut ended) = (String::new(), false, false);
        while let Some(line) = lines.next_if(|line| !line.starts_with(BEGIN)) {
            if let Some(rest) = line.strip_prefix(END) {
                ended = rest.strip_suffix(DASHES) == Some(label);
                break;
            }
            match body.is_empty() && line.contains(':') {
                true => has_headers = true,
                false => body.push_str(line.trim()),
            }
        }
        if let (true, Ok(content)) = (ended, STANDARD.decode(body)) {
            found.push(Block { label: label.to_string(), has_headers, content });
        }
    }
    found
}

/// One block as text.
pub fn encode(label: &str, content: &[u8]) -> String {
    let body = STANDARD.encode(content);
    let lines = body.as_bytes().chunks(LINE_BYTES).map(String::from_utf8_lossy);
    let mut text = format!("{BEGIN}{label}{DASHES}\n");
    lines.for_each(|line| text.extend([&*line, "\n"]));
    text.push_str(&format!("{END}{label}{DASHES}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_among_other_text() {
        let check = |text: &str, expected: &[(&str, bool, usize)]| {
            let found = blocks(text);
            let found: Vec<_> = found.iter().map(|b| (b.label.as_str(), b.has_headers, b.content.len())).collect();
            assert_eq!(found, expected, "{text}");
        };
        let one = encode("CERTIFICATE", &[7; 100]);
        check("", &[]);
        check(&one, &[("CERTIFICATE", false, 100)]);
        check(&format!("words\n{one}more words\n{one}"), &[("CERTIFICATE", false, 100), ("CERTIFICATE", false, 100)]);
        check(&one.replace('\n', "\r\n"), &[("CERTIFICATE", false, 100)]);
        let headers = one.replacen("-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1);
        check(&headers, &[("CERTIFICATE", true, 100)]);
        // Not ended, ended otherwise, not base 64: the next one is still found.
        check(&format!("-----BEGIN CERTIFICATE-----\nAAAA\n{one}"), &[("CERTIFICATE", false, 100)]);
        let other = "-----BEGIN A-----\nAAAA\n-----END B-----\n";
        check(&format!("{other}{one}"), &[("CERTIFICATE", false, 100)]);
        check(&format!("-----BEGIN A-----\n???\n-----END A-----\n{one}"), &[("CERTIFICATE", false, 100)]);
        assert_eq!(blocks(&one)[0].content, [7; 100]);
        assert!(one.lines().all(|line| line.len() <= 64));
    }
}
