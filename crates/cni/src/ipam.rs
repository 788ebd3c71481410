//! Addresses on disk: one file per address, named by it, holding "containerID\r\nifname", as upstream's host-local has it.
//! Used by `attach`, `cleanup` and `standard/`; knows nothing of links.
//! Invariant: an address is held by whoever its file names; a file that names nobody holds nothing (test:
//! `a_torn_file_holds_nothing`). Such are left by a power loss, since nothing here waits for the disk: what tears a
//! file also ends the pod that it was written for.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::Stdio,
};

use ipnet::IpNet;
use nix::fcntl::{Flock, FlockArg};

use crate::types::Error;

/// The address book of one network, locked against every other process for as long as it lives.
pub struct Ipam {
    dir: PathBuf,
    lock: Flock<File>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub container_id: String,
    pub ifname: String,
}

impl Owner {
    fn parse(text: &str) -> Option<Self> {
        let (id, ifname) = text.split_once('\n')?;
        let owner = Self { container_id: id.trim().to_owned(), ifname: ifname.trim().to_owned() };
        (!owner.container_id.is_empty() && !owner.ifname.is_empty()).then_some(owner)
    }
}

impl Ipam {
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::io(format!("failed to open address store {}: {error}", dir.display()));
        fs::create_dir_all(dir).map_err(failed)?;
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock")).map_err(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))?;
        Ok(Self { dir: dir.to_owned(), lock })
    }

    /// The directory, for others that keep state under the same lock.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The lock for a child process: it holds until both of us are done with it.
    pub fn shared(&self) -> Result<Stdio, Error> {
        let copy = self.lock.try_clone();
        copy.map(Stdio::from).map_err(|error| Error::io(format!("failed to share the address store's lock: {error}")))
    }

    /// One address per network for `owner`. What the owner already holds is returned again: a repeated ADD is safe.
    pub fn allocate(&self, networks: &[IpNet], owner: &Owner) -> Result<Vec<IpAddr>, Error> {
        let sets: Vec<Vec<AddressRange>> = networks.iter().map(|net| vec![AddressRange::of_pods(net)]).collect();
        let found = self.allocate_from_sets(&sets, &[], owner)?;
        Ok(found.into_iter().map(|(ip, _)| ip).collect())
    }

    /// One address of each set, with the range that it is of; of a set that has one of the `wanted`, that one.
    pub fn allocate_from_sets(
        &self,
        sets: &[Vec<AddressRange>],
        wanted: &[IpAddr],
        owner: &Owner,
    ) -> Result<Vec<(IpAddr, AddressRange)>, Error> {
        let entries = self.entries()?;
        let held: Vec<IpAddr> = entries.iter().filter(|(_, holder)| holder == owner).map(|(ip, _)| *ip).collect();
        let taken: HashSet<IpAddr> = entries.into_iter().map(|(ip, _)| ip).collect();
        let mut addresses = Vec::with_capacity(sets.len());
        for (index, set) in sets.iter().enumerate() {
            let range_of = |ip: &IpAddr| set.iter().find(|range| range.network.contains(ip));
            let asked = wanted.iter().find(|ip| set.iter().any(|range| range.contains(**ip)));
            let found = match held.iter().find_map(|ip| Some((*ip, range_of(ip)?.clone()))) {
                Some((ip, range)) if asked.is_none_or(|asked| *asked == ip) => (ip, range),
                _ => self.allocate_from(index, set, asked.copied(), &taken, owner)?,
            };
            addresses.push(found);
        }
        Ok(addresses)
    }

    fn allocate_from(
        &self,
        index: usize,
        set: &[AddressRange],
        asked: Option<IpAddr>,
        taken: &HashSet<IpAddr>,
        owner: &Owner,
    ) -> Result<(IpAddr, AddressRange), Error> {
        let free = |ip: IpAddr, range: &AddressRange| !taken.contains(&ip) && range.gateway != ip;
        let found = match asked {
            Some(ip) => {
                let range = set.iter().find(|range| range.contains(ip) && free(ip, range));
                let range =
                    range.ok_or_else(|| Error::new(11, format!("requested IP address {ip} is not available")))?;
                Some((ip, range))
            }
            None => {
                let last_file = self.dir.join(format!("last_reserved_ip.{index}"));
                let last = fs::read_to_string(&last_file).ok().and_then(|text| text.trim().parse::<IpAddr>().ok());
                next_free(set, last, free)
            }
        };
        let Some((ip, range)) = found else {
            let names: Vec<String> = set.iter().map(|range| range.network.to_string()).collect();
            let count: u128 = set.iter().map(|range| (range.end - range.first).saturating_add(1)).sum();
            return Err(Error::new(11, format!("no address left in {}: {count} are in use", names.join(", "))));
        };
        self.write(&ip.to_string(), &format!("{}\r\n{}", owner.container_id, owner.ifname))?;
        self.write(&format!("last_reserved_ip.{index}"), &ip.to_string())?;
        Ok((ip, range.clone()))
    }

    /// Frees all that `owner` holds and tells what it was. Nothing held is fine.
    pub fn release(&self, owner: &Owner) -> Result<Vec<IpAddr>, Error> {
        self.release_where(|holder| holder == Some(owner))
    }

    /// The same of everybody's; `None` is a file that names nobody.
    pub fn release_where(&self, doomed: impl Fn(Option<&Owner>) -> bool) -> Result<Vec<IpAddr>, Error> {
        let mut freed = Vec::new();
        for (ip, holder) in self.files()? {
            if doomed(holder.as_ref()) {
                fs::remove_file(self.dir.join(ip.to_string()))
                    .map_err(|error| Error::io(format!("failed to free address {ip}: {error}")))?;
                freed.push(ip);
            }
        }
        Ok(freed)
    }

    /// The addresses that somebody holds.
    pub fn entries(&self) -> Result<Vec<(IpAddr, Owner)>, Error> {
        Ok(self.files()?.into_iter().filter_map(|(ip, holder)| Some((ip, holder?))).collect())
    }

    fn files(&self) -> Result<Vec<(IpAddr, Option<Owner>)>, Error> {
        let failed = |error: io::Error| Error::io(format!("failed to read {}: {error}", self.dir.display()));
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(ip) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let text = fs::read(entry.path()).map_err(failed)?;
            files.push((ip, Owner::parse(&String::from_utf8_lossy(&text))));
        }
        Ok(files)
    }

    /// Whole or not at all, even when killed: written beside, then renamed. The lock makes the temporary name ours.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let temporary = self.dir.join(".new");
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, self.dir.join(name)))
            .map_err(|error| Error::io(format!("failed to write {name} in {}: {error}", self.dir.display())))
    }
}

/// A part of a network that pods get addresses of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRange {
    pub network: IpNet,
    /// Nobody's.
    pub gateway: IpAddr,
    first: u128,
    end: u128,
}

impl AddressRange {
    /// All of a network but the gateway.
    pub fn of_pods(network: &IpNet) -> Self {
        let (first, end) = pod_range(network);
        Self { network: *network, gateway: gateway(network), first, end }
    }

    /// From `first` to `last`, both in it. `None` if they are not of the network.
    pub fn part(network: IpNet, first: Option<IpAddr>, last: Option<IpAddr>, gateway: IpAddr) -> Option<Self> {
        let whole = pod_range(&network);
        if first.iter().chain(&last).any(|ip| !network.contains(ip)) {
            return None;
        }
        let range =
            Self { network, gateway, first: first.map_or(whole.0 - 1, number), end: last.map_or(whole.1, number) };
        (range.first <= range.end).then_some(range)
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        self.network.contains(&ip) && (self.first..=self.end).contains(&number(ip))
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        let of_one_family = self.network.addr().is_ipv4() == other.network.addr().is_ipv4();
        of_one_family && self.first <= other.end && other.first <= self.end
    }

    /// An address of it with the network's prefix.
    pub fn interface_address(&self, ip: IpAddr) -> IpNet {
        IpNet::new(ip, self.network.prefix_len()).unwrap_or_else(|_| IpNet::from(ip))
    }
}

impl std::fmt::Display for AddressRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, last] = [self.first, self.end].map(|number| address(number, &self.network));
        write!(f, "{} {first}-{last}", self.network)
    }
}

/// From behind the last one given, once around: an address rests before it is used again.
fn next_free(
    set: &[AddressRange],
    last: Option<IpAddr>,
    free: impl Fn(IpAddr, &AddressRange) -> bool,
) -> Option<(IpAddr, &AddressRange)> {
    let began = last.and_then(|last| Some((set.iter().position(|range| range.contains(last))?, number(last))));
    let (start, after) = began.map_or((0, None), |(at, last)| (at, Some(last)));
    let search = |range: &'_ AddressRange, from: u128, to: u128| {
        (from..=to).map(|candidate| address(candidate, &range.network)).find(|ip| free(*ip, range))
    };
    for offset in 0..=set.len() {
        let range = &set[(start + offset) % set.len()];
        let from = after.filter(|_| offset == 0).map_or(range.first, |last| last + 1);
        let to = after.filter(|_| offset == set.len()).map_or(range.end, |last| last);
        if let Some(ip) = search(range, from, to) {
            return Some((ip, range));
        }
    }
    None
}

/// The first address of a network is the gateway: it sits on the bridge.
pub fn gateway(network: &IpNet) -> IpAddr {
    address(number(network.network()) + 1, network)
}

/// First and last address for pods. IPv4 keeps the broadcast address out.
fn pod_range(network: &IpNet) -> (u128, u128) {
    let last = number(network.broadcast());
    (number(network.network()) + 2, if network.addr().is_ipv4() { last - 1 } else { last })
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

fn address(number: u128, like: &IpNet) -> IpAddr {
    match like {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from(number as u32)),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(id: &str) -> Owner {
        Owner { container_id: id.into(), ifname: "eth0".into() }
    }

    fn check(network: &str, steps: &[(&str, &str)]) {
        let dir = tempfile::tempdir().unwrap();
        let networks = [network.parse().unwrap()];
        for (id, expected) in steps {
            let ipam = Ipam::open(dir.path()).unwrap();
            let got = match id.strip_prefix('-') {
                Some(id) => ipam.release(&owner(id)),
                None => ipam.allocate(&networks, &owner(id)),
            };
            let got = match got {
                Ok(ips) => ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                Err(error) => format!("error {}", error.code),
            };
            assert_eq!(&got, expected, "{network} {id}");
        }
    }

    #[test]
    fn addresses_rest_before_reuse_and_run_out_cleanly() {
        check(
            "10.0.0.0/29",
            &[
                ("a", "10.0.0.2"),
                ("b", "10.0.0.3"),
                ("b", "10.0.0.3"),
                ("-a", "10.0.0.2"),
                ("-a", ""),
                ("c", "10.0.0.4"),
                ("d", "10.0.0.5"),
                ("e", "10.0.0.6"),
                ("f", "10.0.0.2"),
                ("g", "error 11"),
                ("-d", "10.0.0.5"),
                ("g", "10.0.0.5"),
            ],
        );
        check("fd00::/126", &[("a", "fd00::2"), ("b", "fd00::3"), ("c", "error 11")]);
    }
    #[test]
    fn a_torn_file_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let networks = ["10.0.0.0/29".parse().unwrap()];
        let ipam = Ipam::open(dir.path()).unwrap();
        for id in ["a", "b", "c", "d", "e"] {
            ipam.allocate(&networks, &owner(id)).unwrap();
        }
        for (address, torn) in
            [("10.0.0.3", &b""[..]), ("10.0.0.4", b"c"), ("10.0.0.5", b"\0\0\xff\0"), ("10.0.0.6", b"e\n")]
        {
            fs::write(dir.path().join(address), torn).unwrap();
        }
        assert_eq!(ipam.entries().unwrap(), [("10.0.0.2".parse().unwrap(), owner("a"))]);
        for (id, expected) in [("f", "10.0.0.3"), ("c", "10.0.0.4"), ("g", "10.0.0.5"), ("h", "10.0.0.6")] {
            assert_eq!(ipam.allocate(&networks, &owner(id)).unwrap(), [expected.parse::<IpAddr>().unwrap()], "{id}");
        }
        assert_eq!(ipam.allocate(&networks, &owner("i")).unwrap_err().code, 11);
        fs::write(dir.path().join("10.0.0.4"), "").unwrap();
        let freed = ipam.release_where(|holder| holder != Some(&owner("a"))).unwrap();
        assert_eq!(freed.len(), 4, "{freed:?}");
        assert!(!dir.path().join("10.0.0.4").exists());
    }
}
