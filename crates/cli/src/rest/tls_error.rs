//! What is wrong with a server's certificate, in the words of Go's x509.
//! Used by `connect`.
//! Nothing is verified here: rustls has, and refused.

use rustls::{CertificateError, pki_types::UnixTime};

/// `host` is the name or address that was asked for.
pub fn words(error: &rustls::Error, host: &str) -> Option<String> {
    let rustls::Error::InvalidCertificate(problem) = error else { return None };
    let said = match problem {
        CertificateError::UnknownIssuer => "certificate signed by unknown authority".to_string(),
        CertificateError::NotValidForNameContext { presented, .. } => not_for_name(presented, host),
        CertificateError::ExpiredContext { time, not_after } => {
            format!(
                "certificate has expired or is not yet valid: current time {} is after {}",
                at(*time),
                at(*not_after)
            )
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            format!(
                "certificate has expired or is not yet valid: current time {} is before {}",
                at(*time),
                at(*not_before)
            )
        }
        _ => return None,
    };
    Some(format!("tls: failed to verify certificate: x509: {said}"))
}

fn at(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// `presented` is as rustls writes it: `DnsName("kubernetes")`, `IpAddress(127.0.0.1)`.
fn not_for_name(presented: &[String], host: &str) -> String {
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    let kind = if is_address { "IpAddress(" } else { "DnsName(" };
    let inside = |name: &String| Some(name.strip_prefix(kind)?.strip_suffix(')')?.trim_matches('"').to_string());
    let names: Vec<String> = presented.iter().filter_map(inside).collect();
    match (names.is_empty(), is_address) {
        (false, _) => format!("certificate is valid for {}, not {host}", names.join(", ")),
        (true, true) => format!("cannot validate certificate for {host} because it doesn't contain any IP SANs"),
        (true, false) => format!("certificate is not valid for any names, but wanted to match {host}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn certificates_are_refused_in_gos_words() {
        let check = |problem: CertificateError, host: &str, wanted: &str| {
            let found = words(&rustls::Error::InvalidCertificate(problem), host);
            assert_eq!(found, Some(format!("tls: failed to verify certificate: x509: {wanted}")));
        };
        let expected = ServerName::try_from("a.test").expect("a name");
        let named = |presented: &[&str]| CertificateError::NotValidForNameContext {
            expected: expected.clone(),
            presented: presented.iter().map(|name| name.to_string()).collect(),
        };
        let both = ["DnsName(\"kubernetes\")", "IpAddress(10.0.0.1)", "DnsName(\"localhost\")"];
        check(CertificateError::UnknownIssuer, "a.test", "certificate signed by unknown authority");
        check(named(&both), "a.test", "certificate is valid for kubernetes, localhost, not a.test");
        check(named(&both), "10.0.0.2", "certificate is valid for 10.0.0.1, not 10.0.0.2");
        check(
            named(&[]),
            "10.0.0.2",
            "cannot validate certificate for 10.0.0.2 because it doesn't contain any IP SANs",
        );
        check(named(&[]), "a.test", "certificate is not valid for any names, but wanted to match a.test");
        let time = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        check(
            CertificateError::ExpiredContext { time: time(86_400), not_after: time(0) },
            "a.test",
            "certificate has expired or is not yet valid: current time 1970-01-02T00:00:00Z is after 1970-01-01T00:00:00Z",
        );
    }
}
