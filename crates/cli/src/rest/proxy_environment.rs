//! The proxy that the environment names for a server: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.
//! Asked by `connect` where the kubeconfig has no `proxy-url`.
//! As Go reads them: this machine itself is never asked through a proxy.

use std::net::IpAddr;

use super::connect::host_of;

/// Either case, the upper one first.
fn named(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    set(name).or_else(|| set(&name.to_lowercase()))
}

pub fn proxy_of(server: &str, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let secure = server.starts_with("https://");
    let proxy = named(&variable, if secure { "HTTPS_PROXY" } else { "HTTP_PROXY" })?;
    let authority = host_of(server).to_lowercase();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority.as_str(), if secure { "443" } else { "80" }),
    };
    let host = host.trim_matches(['[', ']']);
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return None;
    }
    let exceptions = named(&variable, "NO_PROXY").unwrap_or_default().to_lowercase();
    let mut exceptions = exceptions.split(',').map(str::trim).filter(|exception| !exception.is_empty());
    if exceptions.any(|exception| is_excepted(exception, host, address, port)) {
        return None;
    }
    Some(if proxy.contains("://") { proxy } else { format!("http://{proxy}") })
}

fn is_excepted(exception: &str, host: &str, address: Option<IpAddr>, port: &str) -> bool {
    if exception == "*" {
        return true;
    }
    if let Some((network, bits)) = exception.split_once('/') {
        let (network, bits) = (network.parse::<IpAddr>().ok(), bits.parse::<u32>().ok());
        return address.zip(network).zip(bits).is_some_and(|((address, network), bits)| within(address, network, bits));
    }
    let (name, wanted) = match exception.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        _ => (exception, None),
    };
    if wanted.is_some_and(|wanted| wanted != port) {
        return false;
    }
    let name = name.trim_matches(['[', ']']);
    if let (Ok(excepted), Some(address)) = (name.parse::<IpAddr>(), address) {
        return excepted == address;
    }
    // A leading dot means what is below the name, not the name itself.
    match name.strip_prefix("*.").or_else(|| name.strip_prefix('.')) {
        Some(parent) => is_below(host, parent),
        None => host == name || is_below(host, name),
    }
}

fn is_below(host: &str, parent: &str) -> bool {
    host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

fn within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let same = |one: u128, other: u128, width: u32| match width.checked_sub(bits) {
        None => false,
        Some(free) => one.checked_shr(free).unwrap_or(0) == other.checked_shr(free).unwrap_or(0),
    };
    match (address, network) {
        (IpAddr::V4(one), IpAddr::V4(other)) => same(one.to_bits().into(), other.to_bits().into(), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => same(one.to_bits(), other.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_proxy_and_its_exceptions() {
        let check = |server: &str, exceptions: &str, proxied: bool| {
            let set = |name: &str| match name {
                "https_proxy" => Some("proxy.test:3128".to_string()),
                "NO_PROXY" => Some(exceptions.to_string()),
                _ => None,
            };
            let found = proxy_of(server, set);
            assert_eq!(found.as_deref(), proxied.then_some("http://proxy.test:3128"), "{server} {exceptions}");
        };
        check("https://a.test:6443", "", true);
        check("http://a.test:8080", "", false);
        check("https://localhost:6443", "", false);
        check("https://127.0.0.1:6443", "", false);
        check("https://[::1]:6443", "", false);
        check("https://10.1.2.3:6443", "10.0.0.0/8", false);
        check("https://11.1.2.3:6443", "10.0.0.0/8", true);
        check("https://10.1.2.3", "0.0.0.0/0", false);
        check("https://[fd00::1]:6443", "fd00::/8", false);
        check("https://[fd00::1]:6443", "fd00::1", false);
        check("https://10.1.2.3:6443", "10.1.2.3:6443", false);
        check("https://10.1.2.3:6443", "10.1.2.3:443", true);
        check("https://a.test", "b.test, A.test", false);
        check("https://x.a.test", "a.test", false);
        check("https://xa.test", "a.test", true);
        check("https://a.test", ".a.test", true);
        check("https://x.a.test", "*.a.test", false);
        check("https://a.test", "*", false);
    }

    #[test]
    fn a_proxy_may_have_a_scheme_of_its_own() {
        let set = |name: &str| (name == "HTTPS_PROXY").then(|| "socks5://p.test:1080".to_string());
        assert_eq!(proxy_of("https://a.test", set).as_deref(), Some("socks5://p.test:1080"));
    }
}
