//! Places for connections: so many in all, so many for one peer.
//! A `Slot` lives as long as its connection, upgraded or not.
//! Invariant: a peer without connections is not remembered (test: `a_peer_has_its_share_and_no_more`).

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

/// Whose connections count together: an IPv4 address, an IPv6 network of 64 bits (one machine has as many addresses there
/// as it likes), this machine as a whole.
type PeerKey = u64;

#[derive(Clone)]
pub struct Slots {
    shared: Arc<Shared>,
}

struct Shared {
    total_max: usize,
    per_peer_max: usize,
    taken: Mutex<SlotCounts>,
}

#[derive(Default)]
struct SlotCounts {
    total: usize,
    by_peer: HashMap<PeerKey, usize>,
}

/// One place, given back when it is dropped.
pub struct Slot {
    shared: Arc<Shared>,
    peer: Option<PeerKey>,
}

impl Slots {
    pub fn new(total_max: usize, per_peer_max: usize) -> Self {
        Self { shared: Arc::new(Shared { total_max, per_peer_max, taken: Mutex::default() }) }
    }

    /// As many as `limits` say, and never so many that no file descriptors are left for the rest of the process.
    pub fn with_limits(limits: &super::Limits) -> Self {
        let descriptors = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
        let half = descriptors.map_or(usize::MAX, |(soft, _)| usize::try_from(soft / 2).unwrap_or(usize::MAX));
        Self::new(limits.connections.min(half), limits.connections_per_peer.min(half))
    }

    /// A place for one more of `peer`'s; peers without an address (Unix sockets) only count in all.
    pub fn take(&self, peer: Option<IpAddr>) -> Option<Slot> {
        let peer = peer.map(peer_key);
        let mut taken = self.shared.taken.lock();
        if taken.total >= self.shared.total_max {
            return None;
        }
        if let Some(peer) = peer {
            let count = taken.by_peer.entry(peer).or_default();
            if *count >= self.shared.per_peer_max {
                if *count == 0 {
                    taken.by_peer.remove(&peer);
                }
                return None;
            }
            *count += 1;
        }
        taken.total += 1;
        Some(Slot { shared: self.shared.clone(), peer })
    }

    pub fn in_use(&self) -> usize {
        self.shared.taken.lock().total
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.shared.taken.lock();
        taken.total -= 1;
        let Some(peer) = self.peer else { return };
        if let Some(count) = taken.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                taken.by_peer.remove(&peer);
            }
        }
    }
}

fn peer_key(peer: IpAddr) -> PeerKey {
    let network = |address: Ipv6Addr| (u128::from(address) >> 64) as u64;
    match peer.to_canonical() {
        // All of 127.0.0.0/8 is this machine, and so is ::1.
        address if address.is_loopback() => u64::from(u32::from(Ipv4Addr::LOCALHOST)),
        IpAddr::V4(address) => u64::from(u32::from(address)),
        IpAddr::V6(address) => network(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_share_and_no_more() {
        let slots = Slots::new(3, 2);
        let take = |peer: &str| slots.take(Some(peer.parse().unwrap()));
        let first = take("10.0.0.1").unwrap();
        let _second = take("::ffff:10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none(), "two is its share, in either form");
        let _third = take("10.0.0.2").unwrap();
        assert!(take("10.0.0.3").is_none(), "three in all");
        drop(first);
        assert!(take("10.0.0.1").is_some());
        assert_eq!(slots.in_use(), 2);
    }

    #[test]
    fn addresses_that_cost_nothing_count_together() {
        for [one, other] in [["2001:db8::1", "2001:db8::2:0:0:7"], ["127.0.0.1", "127.9.9.9"], ["127.0.0.1", "::1"]] {
            let slots = Slots::new(10, 1);
            let _one = slots.take(Some(one.parse().unwrap())).unwrap();
            assert!(slots.take(Some(other.parse().unwrap())).is_none(), "{one} {other}");
            drop(_one);
            assert!(slots.shared.taken.lock().by_peer.is_empty());
        }
        let slots = Slots::new(2, 0);
        assert!(slots.take(Some("10.0.0.1".parse().unwrap())).is_none());
        assert!(slots.shared.taken.lock().by_peer.is_empty());
        assert!(slots.take(None).is_some(), "a Unix socket has no address");
    }
}
