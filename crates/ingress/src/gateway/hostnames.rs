//! The hosts of a route on a listener.
//! Asked by `attachment`.
//! Pure (tidy: `pure_files`). A wildcard stands for one label or more.

/// What both stand for, if anything: the closer of two names. Empty is any host.
pub fn intersection<'a>(listener: &'a str, route: &'a str) -> Option<&'a str> {
    if listener.is_empty() || covers(listener, route) {
        return Some(route).filter(|route| !route.is_empty()).or(Some(listener));
    }
    (route.is_empty() || covers(route, listener)).then_some(listener)
}

fn covers(wide: &str, name: &str) -> bool {
    if wide == name {
        return true;
    }
    let Some(domain) = wide.strip_prefix('*') else { return false };
    let name = name.strip_prefix('*').unwrap_or(name);
    // The domain begins with its dot.
    name.len() > domain.len() && name.ends_with(domain)
}

/// All hosts of a route on a listener; one that is empty for any host. None where they have nothing in common.
pub fn on_listener(listener: &str, route: &[String]) -> Option<Vec<String>> {
    if route.is_empty() {
        return Some(vec![listener.to_string()]);
    }
    let lower: Vec<String> = route.iter().map(|host| host.to_ascii_lowercase()).collect();
    let hosts: Vec<String> = lower.iter().filter_map(|host| intersection(listener, host)).map(String::from).collect();
    (!hosts.is_empty()).then_some(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_route_are_those_that_the_listener_has() {
        for (listener, route, expected) in [
            ("", "", Some("")),
            ("", "a.com", Some("a.com")),
            ("a.com", "", Some("a.com")),
            ("a.com", "a.com", Some("a.com")),
            ("a.com", "b.com", None),
            ("*.a.com", "b.a.com", Some("b.a.com")),
            ("*.a.com", "c.b.a.com", Some("c.b.a.com")),
            ("*.a.com", "a.com", None),
            ("*.a.com", "ba.com", None),
            ("b.a.com", "*.a.com", Some("b.a.com")),
            ("a.com", "*.a.com", None),
            ("*.a.com", "*.a.com", Some("*.a.com")),
            ("*.a.com", "*.b.a.com", Some("*.b.a.com")),
            ("*.b.a.com", "*.a.com", Some("*.b.a.com")),
            ("*.a.com", "*.b.com", None),
        ] {
            assert_eq!(intersection(listener, route), expected, "{listener:?} and {route:?}");
        }
        let route = ["x.a.com".to_string(), "Y.a.com".to_string(), "z.b.com".to_string()];
        assert_eq!(on_listener("*.a.com", &route).unwrap(), ["x.a.com", "y.a.com"]);
        assert_eq!(on_listener("*.c.com", &route), None);
    }
}
