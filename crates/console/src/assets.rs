//! The files of the page, one row each, with their tags and compressed forms made once.
//! Read by `lib`; what they hold is in `assets/`.
//! A file that has no row here is not served.

use std::{io::Write, sync::LazyLock};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use flate2::{Compression, write::GzEncoder};
use http::HeaderValue;
use sha2::{Digest, Sha256};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($name:literal $media_type:ident),* $(,)?) => {
        &[$(($name, $media_type, include_bytes!(concat!("../assets/", $name)))),*]
    };
}

const FILES: &[(&str, &str, &[u8])] = files![
    "index.html" HTML,
    "style.css" CSS,
    "icon.svg" SVG,
    "actions.js" SCRIPT,
    "api.js" SCRIPT,
    "charts.js" SCRIPT,
    "chooser.js" SCRIPT,
    "diff.js" SCRIPT,
    "dom.js" SCRIPT,
    "format.js" SCRIPT,
    "keyboard.js" SCRIPT,
    "list_page.js" SCRIPT,
    "live_table.js" SCRIPT,
    "logs.js" SCRIPT,
    "main.js" SCRIPT,
    "object_page.js" SCRIPT,
    "overview.js" SCRIPT,
    "problems.js" SCRIPT,
    "resources.js" SCRIPT,
    "session.js" SCRIPT,
    "sign_in.js" SCRIPT,
    "summary.js" SCRIPT,
    "table_model.js" SCRIPT,
    "table_view.js" SCRIPT,
    "terminal.js" SCRIPT,
    "timeline.js" SCRIPT,
    "topology.js" SCRIPT,
    "topology_model.js" SCRIPT,
    "vt.js" SCRIPT,
    "yaml.js" SCRIPT,
    "yaml_tab.js" SCRIPT,
];

pub struct Asset {
    pub name: &'static str,
    pub media_type: &'static str,
    pub content: &'static [u8],
    pub gzip: Vec<u8>,
    pub tag: HeaderValue,
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| FILES.iter().map(asset).collect());

fn asset((name, media_type, content): &(&'static str, &'static str, &'static [u8])) -> Asset {
    let hash = BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(content)[..12]);
    let tag = HeaderValue::try_from(format!("W/\"{hash}\"")).unwrap_or(HeaderValue::from_static("W/\"\""));
    Asset { name, media_type, content, gzip: compress(content), tag }
}

fn compress(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(content);
    written.and_then(|()| encoder.finish()).expect("writing to memory does not fail")
}

pub fn all() -> &'static [Asset] {
    &ASSETS
}

/// By its path below the root; the page itself has the empty one.
pub fn find(path: &str) -> Option<&'static Asset> {
    let name = if path.is_empty() { "index.html" } else { path };
    all().iter().find(|asset| asset.name == name)
}
