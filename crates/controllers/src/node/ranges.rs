//! The core of address ranges: which part of the cluster's range a node gets.
//! Called by `ipam`.
//! No part is handed out twice; a part that touches the services' range is never handed out.

use std::collections::HashMap;

use ipnet::IpNet;

/// Parts of one family's range, all of one size.
pub struct Range {
    net: IpNet,
    prefix: u8,
    /// By how many: ranges smaller than a part may share one.
    used: HashMap<u128, usize>,
    /// Where to look next: parts are reused as late as possible.
    next: u128,
    /// Parts that were found taken when one was last asked for.
    pub in_vain: u128,
}

impl Range {
    pub fn new(net: IpNet, prefix: u8, reserved: &[IpNet]) -> Self {
        let mut range = Self { net, prefix: prefix.max(net.prefix_len()), used: HashMap::new(), next: 0, in_vain: 0 };
        for other in reserved {
            range.occupy(other);
        }
        range
    }

    pub fn net(&self) -> IpNet {
        self.net
    }

    /// How many parts are taken.
    pub fn used(&self) -> usize {
        self.used.len()
    }

    pub fn count(&self) -> u128 {
        1 << (self.prefix - self.net.prefix_len()).min(32)
    }

    fn bits(&self) -> u8 {
        self.net.max_prefix_len()
    }

    fn start(net: &IpNet) -> u128 {
        match net {
            IpNet::V4(v4) => u128::from(u32::from(v4.network())),
            IpNet::V6(v6) => u128::from(v6.network()),
        }
    }

    fn part(&self, index: u128) -> IpNet {
        let start = Self::start(&self.net) + (index << (self.bits() - self.prefix));
        let address = match self.net {
            IpNet::V4(_) => std::net::IpAddr::V4((start as u32).into()),
            IpNet::V6(_) => std::net::IpAddr::V6(start.into()),
        };
        IpNet::new_assert(address, self.prefix)
    }

    fn parts(&self, net: &IpNet) -> Option<(u128, u128)> {
        if net.max_prefix_len() != self.bits() || (!self.net.contains(net) && !net.contains(&self.net)) {
            return None;
        }
        if net.contains(&self.net) {
            return Some((0, self.count() - 1));
        }
        let shift = self.bits() - self.prefix;
        let first = (Self::start(net) - Self::start(&self.net)) >> shift;
        let length = if net.prefix_len() >= self.prefix { 1 } else { 1u128 << (self.prefix - net.prefix_len()) };
        Some((first, first + length - 1))
    }

    pub fn contains(&self, net: &IpNet) -> bool {
        self.net.contains(net)
    }

    /// Whether any of it is taken, by a node or from the beginning.
    pub fn is_used(&self, net: &IpNet) -> bool {
        self.parts(net).is_some_and(|(first, last)| (first..=last).any(|index| self.used.contains_key(&index)))
    }

    pub fn occupy(&mut self, net: &IpNet) {
        if let Some((first, last)) = self.parts(net) {
            (first..=last).for_each(|index| *self.used.entry(index).or_default() += 1);
        }
    }

    pub fn release(&mut self, net: &IpNet) {
        if let Some((first, last)) = self.parts(net) {
            for index in first..=last {
                match self.used.get_mut(&index) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => drop(self.used.remove(&index)),
                }
            }
        }
    }

    /// `None` when all parts are taken.
    pub fn allocate(&mut self) -> Option<IpNet> {
        let count = self.count();
        self.in_vain = (0..count).take_while(|i| self.used.contains_key(&((self.next + i) % count))).count() as u128;
        let index = Some((self.next + self.in_vain) % count).filter(|_| self.in_vain < count)?;
        self.used.insert(index, 1);
        self.next = (index + 1) % count;
        Some(self.part(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_handed_out_once() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let mut range = Range::new(net("10.42.0.0/22"), 24, &[net("10.42.1.0/25")]);
        range.occupy(&net("10.42.0.0/24"));
        assert_eq!(range.allocate(), Some(net("10.42.2.0/24")));
        assert_eq!((range.used(), range.count(), range.in_vain), (3, 4, 2));
        assert_eq!(range.allocate(), Some(net("10.42.3.0/24")));
        assert_eq!(range.in_vain, 0);
        assert_eq!(range.allocate(), None);
        range.release(&net("10.42.2.0/24"));
        assert_eq!(range.allocate(), Some(net("10.42.2.0/24")));
        range.occupy(&net("10.42.2.0/26"));
        range.release(&net("10.42.2.0/26"));
        assert_eq!(range.allocate(), None, "still in use by the other");
        let mut six = Range::new(net("fd00::/56"), 64, &[]);
        assert_eq!((six.allocate(), six.allocate()), (Some(net("fd00::/64")), Some(net("fd00:0:0:1::/64"))));
    }
}
