//! The few netlink operations the plugin needs, on a socket bound to one network namespace.
//! Used by `attach` and `cleanup`.
//! Every operation that creates is safe to repeat.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::RawFd,
};

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        AddressFamily,
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::{InfoData, InfoVeth, LinkAttribute, LinkMessage},
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType},
    },
};

use crate::types::Error;

pub struct Links(Handle);

/// What is worth knowing about a link.
#[derive(Debug, Clone, Default)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub mac: String,
    pub mtu: u32,
    pub controller: Option<u32>,
    /// Of a veth: the index of its other end, in the namespace of that one.
    pub peer: Option<u32>,
}

const ENODEV: i32 = -19;
const EEXIST: i32 = -17;

impl Links {
    /// A connection to the namespace this thread is in; it stays there when the thread moves on. Needs a runtime.
    pub fn open() -> Result<Self, Error> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|error| Error::io(format!("failed to open netlink: {error}")))?;
        env::spawn(connection);
        Ok(Self(handle))
    }

    pub async fn find(&self, name: &str) -> Result<Option<Link>, Error> {
        match self.0.link().get().match_name(name).execute().try_next().await {
            Ok(found) => Ok(found.map(|message| Link::from_message(&message))),
            Err(error) if code(&error) == Some(ENODEV) => Ok(None),
            Err(error) => Err(failed("find", name, &error)),
        }
    }

    pub async fn expect(&self, name: &str) -> Result<Link, Error> {
        self.find(name).await?.ok_or_else(|| Error::internal(format!("link {name} does not exist")))
    }

    pub async fn all(&self) -> Result<Vec<Link>, Error> {
        let messages: Vec<LinkMessage> =
            self.0.link().get().execute().try_collect().await.map_err(|error| failed("list", "links", &error))?;
        Ok(messages.iter().map(Link::from_message).collect())
    }

    /// The bridge, made when missing and still down. Its MAC is fixed, so it does not change as ports come and go.
    pub async fn ensure_bridge(&self, name: &str, mac: [u8; 6], mtu: Option<u32>) -> Result<Link, Error> {
        if let Some(link) = self.find(name).await? {
            // From before the network's kind was changed.
            if let Some(mtu) = mtu.filter(|mtu| *mtu != link.mtu) {
                let message = LinkMessageBuilder::<LinkUnspec>::new().index(link.index).mtu(mtu).build();
                let set = self.0.link().set(message).execute().await;
                set.map_err(|error| failed("set the MTU of", name, &error))?;
            }
            return Ok(link);
        }
        let mut builder = LinkBridge::new(name).address(mac.to_vec());
        if let Some(mtu) = mtu {
            builder = builder.mtu(mtu);
        }
        match self.0.link().add(builder.build()).execute().await {
            Ok(()) => {}
            // Another ADD was faster.
            Err(error) if code(&error) == Some(EEXIST) => {}
            Err(error) => return Err(failed("create bridge", name, &error)),
        }
        self.expect(name).await
    }

    /// A veth pair whose other end appears directly in the container's namespace under its final name.
    pub async fn add_veth(
        &self,
        name: &str,
        mtu: Option<u32>,
        peer: &str,
        peer_mac: [u8; 6],
        peer_netns: RawFd,
    ) -> Result<(), Error> {
        let mut inner = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer.to_owned())
            .address(peer_mac.to_vec())
            .setns_by_fd(peer_netns);
        let mut outer = LinkVeth::new(name, peer);
        if let Some(mtu) = mtu {
            inner = inner.mtu(mtu);
            outer = outer.mtu(mtu);
        }
        let message = outer.set_info_data(InfoData::Veth(InfoVeth::Peer(inner.build()))).build();
        self.0.link().add(message).execute().await.map_err(|error| failed("create veth", name, &error))
    }

    /// Plugs `port` into the bridge and brings it up. Hairpin lets a pod reach itself through its Service.
    pub async fn plug(&self, port: &Link, bridge: &Link, hairpin: bool) -> Result<(), Error> {
        let message = LinkMessageBuilder::<LinkUnspec>::new().index(port.index).controller(bridge.index).up().build();
        self.0.link().set(message).execute().await.map_err(|error| failed("plug", &port.name, &error))?;
        let message = LinkBridgePort::new(port.index).hairpin(hairpin).build();
        self.0
            .link()
            .set_port(message)
            .execute()
            .await
            .map_err(|error| failed("set hairpin mode of", &port.name, &error))
    }

    /// Whether it takes packets that are for others.
    pub async fn set_promiscuous(&self, link: &Link) -> Result<(), Error> {
        let message = LinkMessageBuilder::<LinkUnspec>::new().index(link.index).promiscuous(true).build();
        self.0.link().set(message).execute().await.map_err(|error| failed("make promiscuous", &link.name, &error))
    }

    pub async fn up(&self, link: &Link) -> Result<(), Error> {
        let message = LinkMessageBuilder::<LinkUnspec>::new().index(link.index).up().build();
        self.0.link().set(message).execute().await.map_err(|error| failed("bring up", &link.name, &error))
    }

    /// Gone already is fine.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let Some(link) = self.find(name).await? else { return Ok(()) };
        match self.0.link().del(link.index).execute().await {
            Err(error) if code(&error) != Some(ENODEV) => Err(failed("delete", name, &error)),
            _ => Ok(()),
        }
    }

    pub async fn add_address(&self, link: &Link, address: IpNet) -> Result<(), Error> {
        let mut request = self.0.address().add(link.index, address.addr(), address.prefix_len()).replace();
        if address.addr().is_ipv6() {
            // Addresses are unique by construction: waiting a second for duplicate detection helps nobody.
            request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await.map_err(|error| failed(&format!("add address {address} to"), &link.name, &error))
    }

    pub async fn remove_address(&self, link: &Link, address: IpNet) -> Result<(), Error> {
        for message in
            self.address_messages(link).await?.into_iter().filter(|message| network(message) == Some(address))
        {
            let removed = self.0.address().del(message).execute().await;
            removed.map_err(|error| failed(&format!("remove address {address} from"), &link.name, &error))?;
        }
        Ok(())
    }

    pub async fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, Error> {
        Ok(self.address_messages(link).await?.iter().filter_map(network).collect())
    }

    async fn address_messages(&self, link: &Link) -> Result<Vec<AddressMessage>, Error> {
        let listed = self.0.address().get().set_link_index_filter(link.index).execute();
        listed.try_collect().await.map_err(|error| failed("list addresses of", &link.name, &error))
    }

    /// Every address of the namespace with the index of its link.
    pub async fn all_addresses(&self) -> Result<Vec<(u32, IpAddr)>, Error> {
        let messages: Vec<_> = self
            .0
            .address()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(|error| failed("list", "addresses", &error))?;
        let found = messages.iter().filter_map(|message| Some((message.header.index, network(message)?.addr())));
        Ok(found.collect())
    }

    /// The unicast routes through `link`: where to, and by which gateway.
    pub async fn routes(&self, link: &Link) -> Result<Vec<(IpNet, Option<IpAddr>)>, Error> {
        let mut found = Vec::new();
        for everything in
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
        {
            let any = if everything.header.address_family == AddressFamily::Inet {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            } else {
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            };
            let messages: Vec<RouteMessage> = self
                .0
                .route()
                .get(everything)
                .execute()
                .try_collect()
                .await
                .map_err(|error| failed("list routes of", &link.name, &error))?;
            found.extend(messages.iter().filter_map(|message| route(message, link, any)));
        }
        Ok(found)
    }

    /// A route through `link`: on the link itself when there is no gateway.
    pub async fn add_route(&self, link: &Link, destination: IpNet, via: Option<IpAddr>) -> Result<(), Error> {
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.addr(), destination.prefix_len())
            .map_err(|error| Error::internal(error.to_string()))?
            .output_interface(link.index);
        builder = match via {
            Some(gateway) => builder.gateway(gateway).map_err(|error| Error::internal(error.to_string()))?,
            None if destination.addr().is_ipv4() => builder.scope(RouteScope::Link),
            None => builder,
        };
        self.0
            .route()
            .add(builder.build())
            .replace()
            .execute()
            .await
            .map_err(|error| failed(&format!("add route {destination} through"), &link.name, &error))
    }
}

/// The address that a message tells of, with its network.
fn network(message: &AddressMessage) -> Option<IpNet> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    })?;
    IpNet::new(address, message.header.prefix_len).ok()
}

/// What a message says of a route through `link`; a destination that is not named is everything.
fn route(message: &RouteMessage, link: &Link, any: IpAddr) -> Option<(IpNet, Option<IpAddr>)> {
    let (mut destination, mut gateway, mut through) = (any, None, None);
    let address = |address: &RouteAddress| match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(to) => destination = address(to)?,
            RouteAttribute::Gateway(via) => gateway = address(via),
            RouteAttribute::Oif(index) => through = Some(*index),
            _ => {}
        }
    }
    let unicast = message.header.kind == RouteType::Unicast && through == Some(link.index);
    IpNet::new(destination, message.header.destination_prefix_length).ok().filter(|_| unicast).map(|to| (to, gateway))
}

impl Link {
    fn from_message(message: &LinkMessage) -> Self {
        let mut link = Self { index: message.header.index, ..Self::default() };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(bytes) => link.mac = mac_text(bytes),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Controller(index) => link.controller = Some(*index),
                LinkAttribute::Link(index) => link.peer = Some(*index),
                _ => {}
            }
        }
        link
    }
}

fn mac_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// A locally administered MAC that follows the address, so neighbour tables stay right when an address is reused.
pub fn mac_of(ip: IpAddr) -> [u8; 6] {
    let tail = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            [octets[12], octets[13], octets[14], octets[15]]
        }
    };
    [0x0a, 0x58, tail[0], tail[1], tail[2], tail[3]]
}

fn code(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(i32::from),
        _ => None,
    }
}

fn failed(attempt: &str, name: &str, error: &rtnetlink::Error) -> Error {
    let cause = match code(error) {
        Some(code) => std::io::Error::from_raw_os_error(-code).to_string(),
        None => error.to_string(),
    };
    Error::io(format!("failed to {attempt} {name}: {cause}"))
}
