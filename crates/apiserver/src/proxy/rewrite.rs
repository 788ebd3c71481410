//! Answers of proxied servers made to work under the proxy's path: links in HTML, and redirects.
//! Used by `streaming` for the `proxy` subresources; facts as in upstream's proxy transport.
//! Only link attributes and `Location` change; every other byte stays as the server sent it.

use std::io::{Read, Write};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

/// Which attributes of which elements hold an address.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// What is inside these is text up to their own end tag.
const RAW_TEXT: &[&str] = &["script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"];

/// Where the proxied server is, seen from the client and from here.
#[derive(Debug, Clone, Default)]
pub struct Rewriter {
    /// The path up to and with `/proxy`.
    pub prefix: String,
    /// `host:port` of the server as we reach it.
    pub backend: String,
    /// The host the client asked for.
    pub requested: String,
}

impl Rewriter {
    /// One address: prefixed when it is a path on the same host, else as it is.
    pub fn url(&self, url: &str) -> String {
        let (origin, rest) = split_origin(url);
        let same = origin.is_empty() || self.is_same(origin);
        if !same || !rest.starts_with('/') {
            return url.to_string();
        }
        // A full address stays one only where it names what the client asked for.
        let kept = if host_of(origin) == self.requested { origin } else { "" };
        let within = rest.strip_prefix(self.prefix.as_str()).is_some_and(|r| r.is_empty() || r.starts_with(['/', '?']));
        match within {
            true => format!("{kept}{rest}"),
            false => format!("{kept}{}{rest}", self.prefix),
        }
    }

    fn is_same(&self, origin: &str) -> bool {
        let host = host_of(origin);
        host == self.backend || host == self.requested
    }

    /// A page in the encoding it came in; `None` where that is one we do not read.
    pub fn page(&self, encoding: &str, body: &[u8], limit: u64) -> std::io::Result<Option<Vec<u8>>> {
        match encoding {
            "" | "identity" => Ok(Some(self.html(body))),
            "gzip" => {
                let mut plain = Vec::new();
                GzDecoder::new(body).take(limit + 1).read_to_end(&mut plain)?;
                if plain.len() as u64 > limit {
                    return Ok(None);
                }
                let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
                packed.write_all(&self.html(&plain))?;
                packed.finish().map(Some)
            }
            _ => Ok(None),
        }
    }

    fn html(&self, page: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(page.len() + 256);
        let mut at = 0;
        while let Some(open) = find(&page[at..], b"<").map(|n| at + n) {
            out.extend_from_slice(&page[at..open]);
            at = open;
            if page[at..].starts_with(b"<!--") {
                let end = find(&page[at..], b"-->").map_or(page.len(), |n| at + n + 3);
                out.extend_from_slice(&page[at..end]);
                at = end;
                continue;
            }
            let name = tag_name(&page[at + 1..]);
            if name.is_empty() {
                out.push(b'<');
                at += 1;
                continue;
            }
            let links = LINKS.iter().find(|(tag, _)| *tag == name).map_or(&[] as &[&str], |(_, links)| links);
            out.extend_from_slice(&page[at..at + 1 + name.len()]);
            at = self.attributes(page, at + 1 + name.len(), links, &mut out);
            if RAW_TEXT.contains(&name.as_str()) {
                let end = end_of_text(&page[at..], &name).map_or(page.len(), |n| at + n);
                out.extend_from_slice(&page[at..end]);
                at = end;
            }
        }
        out.extend_from_slice(&page[at..]);
        out
    }

    /// Copies the attributes of a tag, with links rewritten; says where the tag ends.
    fn attributes(&self, page: &[u8], mut at: usize, links: &[&str], out: &mut Vec<u8>) -> usize {
        while at < page.len() {
            let byte = page[at];
            if byte == b'>' {
                out.push(byte);
                return at + 1;
            }
            if byte.is_ascii_whitespace() || byte == b'/' {
                out.push(byte);
                at += 1;
                continue;
            }
            let start = at;
            at += 1;
            while at < page.len() && !matches!(page[at], b'=' | b'>' | b'/') && !page[at].is_ascii_whitespace() {
                at += 1;
            }
            let name = String::from_utf8_lossy(&page[start..at]).to_ascii_lowercase();
            let mut value = at;
            while value < page.len() && page[value].is_ascii_whitespace() {
                value += 1;
            }
            if page.get(value) != Some(&b'=') {
                out.extend_from_slice(&page[start..at]);
                continue;
            }
            value += 1;
            while value < page.len() && page[value].is_ascii_whitespace() {
                value += 1;
            }
            let (from, to, end) = match page.get(value) {
                Some(&quote @ (b'"' | b'\'')) => {
                    let to = find(&page[value + 1..], &[quote]).map_or(page.len(), |n| value + 1 + n);
                    (value + 1, to, (to + 1).min(page.len()))
                }
                _ => {
                    let plain = |b: &u8| *b == b'>' || b.is_ascii_whitespace();
                    let to = page[value..].iter().position(plain).map_or(page.len(), |n| value + n);
                    (value, to, to)
                }
            };
            out.extend_from_slice(&page[start..from]);
            match std::str::from_utf8(&page[from..to]) {
                Ok(url) if links.contains(&name.as_str()) => out.extend_from_slice(self.url(url).as_bytes()),
                _ => out.extend_from_slice(&page[from..to]),
            }
            out.extend_from_slice(&page[to..end]);
            at = end;
        }
        at
    }
}

/// `scheme://host` or `//host`, and what follows.
fn split_origin(url: &str) -> (&str, &str) {
    let start = match url.find("//") {
        Some(0) => 2,
        Some(n) if url[..n].ends_with(':') && !url[..n].contains('/') => n + 2,
        _ => return ("", url),
    };
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |n| start + n);
    url.split_at(end)
}

fn host_of(origin: &str) -> &str {
    origin.split_once("//").map_or("", |(_, host)| host)
}

fn tag_name(text: &[u8]) -> String {
    if !text.first().is_some_and(u8::is_ascii_alphabetic) {
        return String::new();
    }
    let end = text.iter().position(|b| matches!(b, b'>' | b'/') || b.is_ascii_whitespace()).unwrap_or(text.len());
    match text[..end].is_ascii() {
        true => String::from_utf8_lossy(&text[..end]).to_ascii_lowercase(),
        false => String::new(),
    }
}

fn end_of_text(text: &[u8], name: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(n) = find(&text[at..], b"</") {
        at += n;
        let rest = &text[at + 2..];
        if rest.len() >= name.len() && rest[..name.len()].eq_ignore_ascii_case(name.as_bytes()) {
            return Some(at);
        }
        at += 2;
    }
    None
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewriter() -> Rewriter {
        Rewriter { prefix: "/p/proxy".into(), backend: "10.0.0.9:80".into(), requested: "api:6443".into() }
    }

    #[test]
    fn links_stay_under_the_proxy() {
        for (page, expected) in [
            (r#"<a href="/x">t</a>"#, r#"<a href="/p/proxy/x">t</a>"#),
            ("<A class=b HREF = /x/ >t", "<A class=b HREF = /p/proxy/x/ >t"),
            (r#"<a href="/p/proxy/x">"#, r#"<a href="/p/proxy/x">"#),
            (r#"<a href="/p/proxyx">"#, r#"<a href="/p/proxy/p/proxyx">"#),
            (r#"<a href="x/y?u=//z/">"#, r#"<a href="x/y?u=//z/">"#),
            (r#"<img alt="/x" src='/x?a=1&amp;b=2'/>"#, r#"<img alt="/x" src='/p/proxy/x?a=1&amp;b=2'/>"#),
            (r#"<a href="http://10.0.0.9:80/x">"#, r#"<a href="/p/proxy/x">"#),
            (r#"<a href="https://api:6443/x">"#, r#"<a href="https://api:6443/p/proxy/x">"#),
            (r#"<a href="http://elsewhere/x">"#, r#"<a href="http://elsewhere/x">"#),
            (r#"<a href="//elsewhere/x">"#, r#"<a href="//elsewhere/x">"#),
            (r#"<p href="/x">"#, r#"<p href="/x">"#),
            (r#"<!-- <a href="/x"> -->"#, r#"<!-- <a href="/x"> -->"#),
            (r#"<script src="/s">'<a href="/x">'</script>"#, r#"<script src="/p/proxy/s">'<a href="/x">'</script>"#),
            ("a < b <", "a < b <"),
            (r#"<a href="/x"#, r#"<a href="/p/proxy/x"#),
            (r#"<video poster=/a src=/b>"#, r#"<video poster=/p/proxy/a src=/p/proxy/b>"#),
        ] {
            let found = rewriter().html(page.as_bytes());
            assert_eq!(String::from_utf8(found).unwrap(), expected, "{page}");
        }
    }

    #[test]
    fn packed_pages_stay_packed() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(b"<a href=/x>").unwrap();
        let packed = packed.finish().unwrap();
        let page = rewriter().page("gzip", &packed, 1000).unwrap().unwrap();
        let mut plain = String::new();
        GzDecoder::new(&page[..]).read_to_string(&mut plain).unwrap();
        assert_eq!(plain, "<a href=/p/proxy/x>");
        assert!(rewriter().page("br", b"x", 1000).unwrap().is_none());
        assert!(rewriter().page("gzip", &packed, 3).unwrap().is_none(), "unpacks to more than allowed");
        assert!(rewriter().page("gzip", b"not gzip", 1000).is_err());
    }
}
