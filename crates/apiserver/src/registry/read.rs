//! `get` and `list`: reads from the watch cache, as fresh as was asked for; older pages from the store.
//! Part of `registry`.
//! All pages of one list show one moment.

use std::sync::Arc;

use base64::{
    DecodeError, Engine,
    alphabet::URL_SAFE,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
    prelude::BASE64_URL_SAFE_NO_PAD,
};
use http::StatusCode;
use serde_json::{Value, json};

use api::{
    ApiError, Object, Reason, Verb,
    field::{ErrorList, Path},
};
use store::{Range, Revision, StoreError};

use super::{Registry, Selection, initializers, object_reply};
use crate::{
    discovery::served::Served,
    handlers::respond::{ListReply, Reply},
    request::call::Call,
    storage,
    storage::watch_cache::{Entry, store_error, too_large},
};

/// How old an answer may be.
pub enum Freshness {
    /// As new as everything acknowledged so far.
    Newest,
    Any,
    NotOlderThan(Revision),
    Exact(Revision),
}

impl Freshness {
    pub fn from_call(call: &Call) -> Result<Self, ApiError> {
        let version = call.query.text("resourceVersion");
        let matching = call.query.text("resourceVersionMatch");
        let Some(version) = version else { return Ok(Freshness::Newest) };
        let number: Revision = version.parse().map_err(|_| {
            let why = format!(
                "resourceVersion: Invalid value: {version:?}: strconv.ParseUint: parsing {version:?}: invalid syntax"
            );
            match call.info.verb {
                // Upstream makes no kind of error of it.
                Verb::Watch => ApiError::new(Reason::Unknown, why),
                _ => ApiError::bad_request(format!("invalid resource version: {why}")),
            }
        })?;
        Ok(match (number, matching) {
            (0, _) => Freshness::Any,
            (n, Some("Exact")) => Freshness::Exact(n),
            // With a limit and no explicit match, upstream reads exactly there.
            (n, None) if call.query.number("limit")?.unwrap_or(0) > 0 => Freshness::Exact(n),
            (n, _) => Freshness::NotOlderThan(n),
        })
    }
}

/// Whether the options of a list go together.
fn check_options(call: &Call) -> Result<(), ApiError> {
    let [version, matching, token] =
        ["resourceVersion", "resourceVersionMatch", "continue"].map(|name| call.query.text(name));
    let mut errors = ErrorList::new();
    let path = Path::new("resourceVersionMatch");
    if let Some(matching) = matching {
        if version.is_none() {
            errors.forbidden(&path, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if token.is_some() {
            errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            errors.not_supported(&path, matching, &["Exact", "NotOlderThan", ""]);
        }
        if matching == "Exact" && version == Some("0") {
            errors.forbidden(&path, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if call.query.get("sendInitialEvents").is_some() {
        errors.forbidden(&Path::new("sendInitialEvents"), "sendInitialEvents is forbidden for list");
    }
    refuse(errors)
}

/// The same for a watch.
pub(super) fn check_watch_options(call: &Call) -> Result<(), ApiError> {
    let initial_events = call.query.get("sendInitialEvents").is_some();
    let matching = call.query.text("resourceVersionMatch");
    let mut errors = ErrorList::new();
    let path = Path::new("resourceVersionMatch");
    if initial_events && matching != Some("NotOlderThan") {
        errors.forbidden(&path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    }
    if let Some(matching) = matching {
        if !initial_events {
            let words = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.forbidden(&path, words);
        }
        if matching != "NotOlderThan" {
            errors.not_supported(&path, matching, &["NotOlderThan"]);
        }
        if call.query.text("continue").is_some() {
            errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
        }
    }
    refuse(errors)
}

fn refuse(errors: ErrorList) -> Result<(), ApiError> {
    match errors.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", errors)),
    }
}

/// What a continue token says: go on with `start` as things were at `revision`.
///
/// A token holds the key behind the list's own prefix, as upstream's: nobody can write one that begins before what they may
/// list (test: `a_token_leads_nowhere_but_into_its_own_list`).
struct Continue {
    /// `None`: as things are now, because that moment is no longer known.
    revision: Option<Revision>,
    /// With the prefix.
    start: String,
}

impl Continue {
    fn encode(&self, prefix: &str) -> String {
        let start = self.start.strip_prefix(prefix).unwrap_or_default();
        let token = json!({ "v": "meta.k8s.io/v1", "rv": self.revision.map_or(-1, |r| r as i64), "start": start });
        BASE64_URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(token: &str, prefix: &str) -> Result<Self, ApiError> {
        let wrong =
            |why: &str| ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = TOKEN_FORM.decode(token).map_err(|e| wrong(&base64_error(token, &e)))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(&json_error(&bytes, &e)))?;
        match value["v"].as_str().unwrap_or_default() {
            "meta.k8s.io/v1" => {}
            other => return Err(wrong(&format!("server does not recognize this encoded version {other}"))),
        }
        let revision = match value["rv"].as_i64().unwrap_or(0) {
            0 => return Err(wrong("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")),
            revision => Revision::try_from(revision).ok(),
        };
        let start = value["start"].as_str().filter(|s| !s.is_empty());
        let start = start.ok_or_else(|| wrong("encoded start key empty (version meta.k8s.io/v1)"))?;
        let start = start.strip_prefix('/').unwrap_or(start);
        let mut elements = start.split('/');
        // Names have no slash: a token of a list over all namespaces is for no other.
        if elements.any(|element| matches!(element, "" | "." | "..")) || (!prefix.is_empty() && start.contains('/')) {
            return Err(wrong(start));
        }
        Ok(Self { revision, start: format!("{prefix}{start}") })
    }
}

/// What goes wrong with a list of the past.
fn list_error(error: StoreError) -> ApiError {
    match error {
        StoreError::Compacted { .. } => ApiError::expired("The resourceVersion for the provided list is too old."),
        other => store_error(other),
    }
}

/// As Go reads tokens: without padding, and whatever the last bits are.
const TOKEN_FORM: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

fn base64_error(token: &str, error: &DecodeError) -> String {
    let at = match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => *at,
        _ => token.len(),
    };
    format!("illegal base64 data at input byte {at}")
}

/// In Go's words, as far as they are about how a document begins.
fn json_error(bytes: &[u8], error: &serde_json::Error) -> String {
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => "unexpected end of JSON input".into(),
        Some(first) if !matches!(first, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
            let shown = match first {
                b'\'' => "\\'".to_string(),
                0x20..=0x7e => char::from(*first).to_string(),
                other => format!("\\u{other:04x}"),
            };
            format!("invalid character '{shown}' looking for beginning of value")
        }
        Some(_) => error.to_string(),
    }
}

impl Registry {
    pub(super) async fn get(&self, call: &Call, served: &Arc<Served>) -> Result<Reply, ApiError> {
        let object = self.get_object(call, served).await?;
        Ok(object_reply(StatusCode::OK, served, object))
    }

    pub(super) async fn get_object(&self, call: &Call, served: &Served) -> Result<Arc<Object>, ApiError> {
        let info = &call.info;
        match Freshness::from_call(call)? {
            Freshness::Newest => self.cluster.cache.wait_until_fresh().await?,
            Freshness::NotOlderThan(revision) | Freshness::Exact(revision) => {
                self.cluster.cache.wait_for(revision).await?;
            }
            Freshness::Any => {}
        }
        let key = storage::local_key(&served.resource, &info.namespace, &info.name);
        let entry = self.cluster.cache.resource(&served.prefix).get(&key);
        let entry = entry.filter(|e| !(call.hides_uninitialized && initializers::is_uninitialized(&e.object)));
        let entry = entry.ok_or_else(|| ApiError::not_found(&served.group, &served.plural, &info.name))?;
        self.view(served, &entry.object).await
    }

    pub(super) async fn list(&self, call: &Call, served: &Arc<Served>) -> Result<Reply, ApiError> {
        check_options(call)?;
        let selection = Selection::from_call(call, served)?;
        let limit = call.query.number("limit")?.unwrap_or(0).max(0) as usize;
        let continued =
            call.query.text("continue").map(|token| Continue::decode(token, &selection.prefix)).transpose()?;
        if let Some(token) = continued {
            if call.query.text("resourceVersion").is_some_and(|v| v != "0") {
                return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
            }
            return self.page(served, &selection, limit, token).await;
        }
        let cache = &self.cluster.cache;
        let limit = match Freshness::from_call(call)? {
            Freshness::Newest => {
                cache.wait_until_fresh().await?;
                limit
            }
            Freshness::NotOlderThan(revision) => {
                cache.wait_for(revision).await?;
                limit
            }
            // Any age is fine: upstream then sends everything and ignores the limit.
            Freshness::Any => 0,
            Freshness::Exact(revision) => {
                let token = Continue { revision: Some(revision), start: selection.prefix.clone() };
                return self.page(served, &selection, limit, token).await;
            }
        };
        let applied = cache.revision();
        let resource = cache.resource(&served.prefix);
        let snapshot = resource.list(&selection.prefix, None, limit, applied, |e| selection.matches(served, e));
        let next = snapshot.next.map(|start| Continue { revision: Some(snapshot.revision), start });
        self.list_reply(served, &selection, snapshot.entries, snapshot.revision, next, snapshot.remaining).await
    }

    /// One page of the past: from the cache if nothing changed since, from the store's history otherwise.
    async fn page(
        &self,
        served: &Arc<Served>,
        selection: &Selection,
        limit: usize,
        token: Continue,
    ) -> Result<Reply, ApiError> {
        let cache = &self.cluster.cache;
        let resource = cache.resource(&served.prefix);
        let Some(revision) = token.revision else {
            cache.wait_until_fresh().await?;
            let keep = |e: &Entry| selection.matches(served, e);
            let snapshot = resource.list(&selection.prefix, Some(&token.start), limit, cache.revision(), keep);
            let next = snapshot.next.map(|start| Continue { revision: Some(snapshot.revision), start });
            let (entries, revision, remaining) = (snapshot.entries, snapshot.revision, snapshot.remaining);
            return self.list_reply(served, selection, entries, revision, next, remaining).await;
        };
        if revision > cache.revision() {
            cache.wait_for(revision).await.map_err(|_| too_large(revision, cache.revision()))?;
        }
        let end = store::prefix_end(&format!("{}{}", served.prefix, selection.prefix));
        let mut start = format!("{}{}", served.prefix, token.start);
        let continued = token.start != selection.prefix;
        if resource.unchanged_since(revision) {
            // What the store has forgotten is over for everyone, or tokens would expire only where something changed.
            let one = Range { start: start.clone(), end: format!("{start}\0"), limit: 1, revision: Some(revision) };
            match self.cluster.store.range(one).await {
                Err(StoreError::Compacted { .. }) if continued => return Ok(expired_page(token, &selection.prefix)),
                found => drop(found.map_err(list_error)?),
            }
            let keep = |e: &Entry| selection.matches(served, e);
            let snapshot = resource.list(&selection.prefix, Some(&token.start), limit, revision, keep);
            // Checked again: a change in between would have mixed two moments.
            if resource.unchanged_since(revision) {
                let next = snapshot.next.map(|start| Continue { revision: Some(revision), start });
                let (entries, remaining) = (snapshot.entries, snapshot.remaining);
                return self.list_reply(served, selection, entries, revision, next, remaining).await;
            }
        }
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        loop {
            let range = Range { start, end: end.clone(), limit: limit.max(1000), revision: Some(revision) };
            let page = match self.cluster.store.range(range).await {
                Ok(page) => page,
                Err(StoreError::Compacted { .. }) if continued => return Ok(expired_page(token, &selection.prefix)),
                Err(e) => return Err(list_error(e)),
            };
            for (index, record) in page.records.iter().enumerate() {
                let entry = Arc::new(Entry::new(storage::decode(&record.value, record.mod_revision)?));
                if !selection.matches(served, &entry) {
                    continue;
                }
                if limit > 0 && entries.len() == limit {
                    let next =
                        Continue { revision: Some(revision), start: record.key[served.prefix.len()..].to_string() };
                    let remaining = page.records.len() - index + page.remaining as usize;
                    return self.list_reply(served, selection, entries, revision, Some(next), remaining).await;
                }
                entries.push(entry);
            }
            match page.records.last() {
                Some(last) if page.remaining > 0 => start = format!("{}\0", last.key),
                _ => return self.list_reply(served, selection, entries, revision, None, 0).await,
            }
        }
    }

    async fn list_reply(
        &self,
        served: &Arc<Served>,
        selection: &Selection,
        entries: Vec<Arc<Entry>>,
        revision: Revision,
        next: Option<Continue>,
        remaining: usize,
    ) -> Result<Reply, ApiError> {
        let mut objects = self.views(served, entries.iter().map(|e| e.object.clone()).collect()).await?;
        objects.retain(|object| selection.matches_view(served, object));
        // With selectors nobody knows how many are left without looking at them.
        let remaining = (next.is_some() && selection.is_everything()).then_some(remaining);
        let next = next.map(|n| n.encode(&selection.prefix));
        Ok(Reply::List(ListReply { served: served.clone(), objects, revision, next, remaining }))
    }
}

/// The moment of the first page is no longer known: the client may go on with things as they are now.
fn expired_page(token: Continue, prefix: &str) -> Reply {
    let error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    let mut status = error.to_status();
    status["metadata"]["continue"] = Continue { revision: None, ..token }.encode(prefix).into();
    Reply::Value(StatusCode::GONE, status)
}
