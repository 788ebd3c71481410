//! The API servers of one cluster, of which one is in use until it can't be reached or says that it can't serve.
//! Kept by `https`; an agent fills it with the endpoints of the `kubernetes` Service.
//! Always has a server; who left one is not led back to it before the others were tried.

use std::sync::Arc;

use parking_lot::RwLock;

/// Shared by the transport that uses it and by whoever keeps it fresh.
#[derive(Debug)]
pub struct ServerList(RwLock<Servers>);

#[derive(Debug)]
struct Servers {
    urls: Vec<Arc<str>>,
    current: usize,
}

fn normalized(url: &str) -> Arc<str> {
    url.trim_end_matches('/').into()
}

impl ServerList {
    pub fn new(url: &str) -> Self {
        Self(RwLock::new(Servers { urls: vec![normalized(url)], current: 0 }))
    }

    /// The one to ask now.
    pub fn current(&self) -> Arc<str> {
        let servers = self.0.read();
        servers.urls[servers.current].clone()
    }

    pub fn count(&self) -> usize {
        self.0.read().urls.len()
    }

    pub fn urls(&self) -> Vec<String> {
        self.0.read().urls.iter().map(ToString::to_string).collect()
    }

    /// From now on these. The one in use stays in use while it is among them; an empty list changes nothing.
    pub fn replace(&self, urls: &[String]) {
        if urls.is_empty() {
            return;
        }
        let mut servers = self.0.write();
        let used = servers.urls[servers.current].clone();
        servers.urls = urls.iter().map(|url| normalized(url)).collect();
        servers.urls.dedup();
        servers.current = servers.urls.iter().position(|url| *url == used).unwrap_or(0);
    }

    /// `failed` did not answer: the next one is asked from now on, unless somebody has changed over already.
    pub fn leave(&self, failed: &str) {
        let mut servers = self.0.write();
        if &*servers.urls[servers.current] == failed && servers.urls.len() > 1 {
            servers.current = (servers.current + 1) % servers.urls.len();
            let next = &servers.urls[servers.current];
            tracing::warn!(server = failed, %next, "the API server does not answer; changing over");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_left_once_and_the_others_are_tried_first() {
        let list = ServerList::new("https://a:6443/");
        list.leave("https://a:6443");
        assert_eq!(&*list.current(), "https://a:6443", "there is no other");
        list.replace(&["https://a:6443".into(), "https://b:6443".into(), "https://c:6443".into()]);
        assert_eq!(&*list.current(), "https://a:6443");
        list.leave("https://a:6443");
        // Requests that were under way there say so too.
        list.leave("https://a:6443");
        assert_eq!(&*list.current(), "https://b:6443");
        list.replace(&["https://c:6443".into(), "https://b:6443".into()]);
        assert_eq!((&*list.current(), list.count()), ("https://b:6443", 2));
        list.replace(&[]);
        list.replace(&["https://d:6443".into()]);
        assert_eq!(list.urls(), ["https://d:6443"]);
    }
}
