//! The addresses that load balancers may have, as CIDRs and ranges.
//! Read by `assignment`; set by the operator.
//! Invariant: pure (tidy: `pure_files`).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::IpNet;

/// From the first to the last, both in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl FromStr for AddressRange {
    type Err = String;

    /// `192.0.2.0/28`, `192.0.2.1-192.0.2.9` or `192.0.2.1`. Of an IPv4 network, its own address and the one for all of it
    /// are left out.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong =
            || format!("{text:?} is neither a CIDR nor a range of addresses (192.0.2.0/28, 192.0.2.1-192.0.2.9)");
        if let Ok(network) = text.parse::<IpNet>() {
            let whole = !network.addr().is_ipv4() || network.prefix_len() > 30;
            let (first, last) = (bits(network.network()), bits(network.broadcast()));
            let (first, last) = if whole { (first, last) } else { (first + 1, last - 1) };
            let like = network.addr();
            return Ok(Self { first: address(first, like), last: address(last, like) });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let read = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| wrong());
        let (first, last) = (read(first)?, read(last)?);
        if first.is_ipv4() != last.is_ipv4() || bits(first) > bits(last) {
            return Err(wrong());
        }
        Ok(Self { first, last })
    }
}

impl AddressRange {
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.first.is_ipv4() && (bits(self.first)..=bits(self.last)).contains(&bits(ip))
    }
}

/// The first of one family that is not `taken`.
pub fn first_free(pool: &[AddressRange], ipv4: bool, taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let ours = pool.iter().filter(|range| range.first.is_ipv4() == ipv4);
    let mut all = ours.flat_map(|range| (bits(range.first)..=bits(range.last)).map(|b| address(b, range.first)));
    all.find(|ip| !taken(*ip))
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(bits: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from_bits(bits as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_handed_out_in_order() {
        let check = |text: &str, expected: &[&str]| {
            let pool = [text.parse::<AddressRange>().unwrap()];
            let mut taken = Vec::new();
            for ipv4 in [true, false] {
                while let Some(ip) = first_free(&pool, ipv4, |ip| taken.contains(&ip)) {
                    assert!(pool[0].contains(ip));
                    taken.push(ip);
                }
            }
            assert_eq!(taken.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{text}");
        };
        check("192.0.2.0/30", &["192.0.2.1", "192.0.2.2"]);
        check("192.0.2.7/32", &["192.0.2.7"]);
        check("192.0.2.9 - 192.0.2.11", &["192.0.2.9", "192.0.2.10", "192.0.2.11"]);
        check("fd00::/127", &["fd00::", "fd00::1"]);
        for wrong in ["", "x", "192.0.2.9-192.0.2.1", "192.0.2.1-fd00::1", "192.0.2.0/33"] {
            assert!(wrong.parse::<AddressRange>().is_err(), "{wrong}");
        }
    }
}
