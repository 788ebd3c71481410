//! Ranges of addresses, for what an ipBlock admits: its network without its exceptions.
//! Used by `model`; written into rules by `isolation_class`.
//! Invariant: pure (tidy: `pure_files`).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use netfilter::Family;

/// From the first to the last, both in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressRange {
    pub family: Family,
    first: u128,
    last: u128,
}

impl AddressRange {
    pub fn of(network: IpNet) -> Self {
        Self { family: Family::of_ip(network.addr()), first: bits(network.network()), last: bits(network.broadcast()) }
    }

    /// What is left without `others`.
    pub fn without(self, others: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut left = vec![self];
        for other in others.filter(|other| other.family == self.family) {
            left = left.into_iter().flat_map(|range| range.minus(other)).collect();
        }
        left
    }

    fn minus(self, other: Self) -> impl Iterator<Item = Self> {
        let below = (self.first < other.first).then(|| Self { last: self.last.min(other.first - 1), ..self });
        let above = (self.last > other.last).then(|| Self { first: self.first.max(other.last + 1), ..self });
        below.into_iter().chain(above)
    }

    /// The same addresses in ranges that do not touch: nftables refuses others in one set.
    pub fn union(mut ranges: Vec<Self>) -> Vec<Self> {
        ranges.sort();
        let mut united: Vec<Self> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match united.last_mut() {
                Some(last) if last.family == range.family && range.first <= last.last.saturating_add(1) => {
                    last.last = last.last.max(range.last);
                }
                _ => united.push(range),
            }
        }
        united
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = |bits: u128| match self.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        match self.first == self.last {
            true => write!(f, "{}", ip(self.first)),
            false => write!(f, "{}-{}", ip(self.first), ip(self.last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(block: &str, except: &[&str], expected: &[&str]) {
        let range = |text: &str| AddressRange::of(text.parse().unwrap());
        let left = range(block).without(except.iter().map(|text| range(text)));
        let texts: Vec<String> = AddressRange::union(left).iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected, "{block} without {except:?}");
    }

    #[test]
    fn exceptions_are_cut_out() {
        check("10.0.0.0/8", &[], &["10.0.0.0-10.255.255.255"]);
        check("10.0.0.1/32", &[], &["10.0.0.1"]);
        check("10.0.0.0/24", &["10.0.0.0/25"], &["10.0.0.128-10.0.0.255"]);
        check("10.0.0.0/24", &["10.0.0.128/25"], &["10.0.0.0-10.0.0.127"]);
        check("10.0.0.0/24", &["10.0.0.7/32", "10.0.0.8/32"], &["10.0.0.0-10.0.0.6", "10.0.0.9-10.0.0.255"]);
        check("10.0.0.0/24", &["10.0.0.0/24"], &[]);
        check("10.0.0.0/24", &["10.0.0.0/8", "fd00::/8"], &[]);
        check("0.0.0.0/0", &["128.0.0.0/1"], &["0.0.0.0-127.255.255.255"]);
        check(
            "::/0",
            &["fd00::/8"],
            &["::-fcff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fe00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
        );
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let all = ["10.0.1.0/24", "10.0.0.0/24", "10.0.0.0/25", "fd00::/64", "10.0.3.0/24"];
        let united = AddressRange::union(all.iter().map(|text| AddressRange::of(text.parse().unwrap())).collect());
        let texts: Vec<String> = united.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.0-10.0.1.255", "10.0.3.0-10.0.3.255", "fd00::-fd00::ffff:ffff:ffff:ffff"]);
    }
}
