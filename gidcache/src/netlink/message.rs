//! Conversion of an rtnetlink message to an event for the rules.
//!
//! Only the relevant attributes are read; unknown ones of later kernels are ignored. A message with
//! inconsistent attributes is malformed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN, NetlinkBuffer, NlasIterator};

use crate::entry::{IfIndex, VlanId};
use crate::rules::{Address, Bond, Event, Interface, Kind};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
pub(super) const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
pub(super) const RTM_GETADDR: u16 = 22;

const ARPHRD_ETHER: u16 = 1;
const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_WIRELESS: u16 = 11;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_BOND_MODE: u16 = 1;
const IFLA_BOND_ACTIVE_SLAVE: u16 = 2;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const BOND_MODE_ACTIVE_BACKUP: u8 = 1;
const BOND_MODE_TLB: u8 = 5;
const BOND_MODE_ALB: u8 = 6;

/// Length of `struct ifinfomsg`.
pub(super) const IFINFOMSG: usize = 16;
/// Length of `struct ifaddrmsg`.
pub(super) const IFADDRMSG: usize = 8;

/// Meaning of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// An interface or address was added, changed or removed.
    Event(Event),
    /// Not relevant.
    Nothing,
    /// The response to a dump is complete.
    Done,
    /// A request failed with this positive error number; 0 is an acknowledgment.
    Error(u32),
    /// Messages were lost.
    Overrun,
}

/// A message in a datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Sequence number of the request that this answers, or that caused the event.
    pub sequence: u32,
    /// Socket that sent the request or caused the event; 0 for the kernel itself.
    pub port: u32,
    /// Flags `NLM_F_…`.
    pub flags: u16,
    /// Meaning; `None` if the message is malformed.
    pub meaning: Option<Meaning>,
}

/// Iterates over the messages of a datagram. Ends at the first invalid header, with one malformed message.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Parses the messages of a datagram.
    #[must_use]
    pub const fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl Iterator for Messages<'_> {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        if self.rest.is_empty() {
            return None;
        }
        let Ok(buffer) = NetlinkBuffer::new_checked(self.rest) else {
            self.rest = &[];
            return Some(Message { sequence: 0, port: 0, flags: 0, meaning: None });
        };
        let payload = buffer.payload();
        let message = Message {
            sequence: buffer.sequence_number(),
            port: buffer.port_number(),
            flags: buffer.flags(),
            meaning: meaning(buffer.message_type(), payload),
        };
        let length = (buffer.length() as usize).next_multiple_of(4);
        self.rest = self.rest.get(length..).unwrap_or_default();
        Some(message)
    }
}

/// Parses a message of this type. Returns `None` if it is malformed.
#[must_use]
pub fn meaning(message_type: u16, payload: &[u8]) -> Option<Meaning> {
    match message_type {
        RTM_NEWLINK | RTM_DELLINK => link(message_type == RTM_NEWLINK, payload),
        RTM_NEWADDR | RTM_DELADDR => address(message_type == RTM_NEWADDR, payload),
        NLMSG_DONE => Some(Meaning::Done),
        NLMSG_ERROR => {
            let (code, _) = payload.split_first_chunk()?;
            Some(Meaning::Error(i32::from_ne_bytes(*code).unsigned_abs()))
        }
        NLMSG_OVERRUN => Some(Meaning::Overrun),
        _ => Some(Meaning::Nothing),
    }
}

fn link(new: bool, payload: &[u8]) -> Option<Meaning> {
    let (&header, attributes) = payload.split_first_chunk::<IFINFOMSG>()?;
    let [family, _, hard0, hard1, i0, i1, i2, i3, ..] = header;
    if family != AF_UNSPEC {
        // A message of a bridge or of IPv6 about its own part of the interface.
        return Some(Meaning::Nothing);
    }
    let index = IfIndex::new(u32::from_ne_bytes([i0, i1, i2, i3]))?;
    let ether = u16::from_ne_bytes([hard0, hard1]) == ARPHRD_ETHER;
    let mut interface =
        Interface { index, name: String::new(), mac: None, kind: Kind::Other, master: None, lower: None };
    let mut link = None;
    let mut elsewhere = false;
    let mut on_lower = false;
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute.ok()?;
        let value = attribute.value();
        match attribute.kind() {
            IFLA_ADDRESS if ether => interface.mac = Some(value.try_into().ok()?),
            IFLA_IFNAME => interface.name = name(value)?,
            IFLA_LINK => link = IfIndex::new(number(value)?),
            IFLA_MASTER => interface.master = IfIndex::new(number(value)?),
            IFLA_LINK_NETNSID => elsewhere = true,
            // A wireless event does not contain the other attributes of the interface.
            IFLA_WIRELESS => return Some(Meaning::Nothing),
            IFLA_LINKINFO => (interface.kind, on_lower) = link_info(value)?,
            _ => {}
        }
    }
    if !new {
        return Some(Meaning::Event(Event::InterfaceGone(index)));
    }
    if interface.name.is_empty() {
        return None;
    }
    // The link of a veth is its other end. Interfaces in other namespaces are unknown.
    interface.lower = link.filter(|lower| on_lower && !elsewhere && *lower != index);
    interface.master = interface.master.filter(|master| *master != index);
    Some(Meaning::Event(Event::Interface(interface)))
}

/// Returns the kind, and true if the interface is on top of the one that it is linked to.
fn link_info(value: &[u8]) -> Option<(Kind, bool)> {
    let mut kind = String::new();
    let mut data: &[u8] = &[];
    let nested: Vec<_> = NlasIterator::new(value).collect::<Result<_, _>>().ok()?;
    for attribute in &nested {
        match attribute.kind() {
            IFLA_INFO_KIND => kind = name(attribute.value())?,
            IFLA_INFO_DATA => data = attribute.value(),
            _ => {}
        }
    }
    Some(match kind.as_str() {
        "vlan" => (Kind::Vlan(vlan(data)?), true),
        "bond" => (Kind::Bond(bond(data)?), false),
        "macvlan" | "macvtap" | "ipvlan" | "ipvtap" | "macsec" => (Kind::Other, true),
        _ => (Kind::Other, false),
    })
}

fn vlan(data: &[u8]) -> Option<VlanId> {
    for attribute in NlasIterator::new(data) {
        let attribute = attribute.ok()?;
        if attribute.kind() == IFLA_VLAN_ID {
            return VlanId::new(u16::from_ne_bytes(attribute.value().try_into().ok()?));
        }
    }
    None
}

fn bond(data: &[u8]) -> Option<Bond> {
    let mut mode = None;
    let mut active = None;
    for attribute in NlasIterator::new(data) {
        let attribute = attribute.ok()?;
        match attribute.kind() {
            IFLA_BOND_MODE => mode = attribute.value().first().copied(),
            IFLA_BOND_ACTIVE_SLAVE => active = IfIndex::new(number(attribute.value())?),
            _ => {}
        }
    }
    Some(match mode? {
        BOND_MODE_ACTIVE_BACKUP | BOND_MODE_TLB | BOND_MODE_ALB => Bond::Active(active),
        _ => Bond::AllSlaves,
    })
}

fn address(new: bool, payload: &[u8]) -> Option<Meaning> {
    let (&header, attributes) = payload.split_first_chunk::<IFADDRMSG>()?;
    let [family, prefix, _, _, i0, i1, i2, i3] = header;
    if family != AF_INET && family != AF_INET6 {
        return Some(Meaning::Nothing);
    }
    let index = IfIndex::new(u32::from_ne_bytes([i0, i1, i2, i3]))?;
    let mut local = None;
    let mut peer = None;
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute.ok()?;
        let value = attribute.value();
        match attribute.kind() {
            IFA_LOCAL => local = Some(ip(family, value)?),
            IFA_ADDRESS => peer = Some(ip(family, value)?),
            _ => {}
        }
    }
    // For IPv6, IFA_LOCAL is present only if there is a peer.
    let local = local.or(peer)?;
    let address = Address { local, prefix, peer: peer.unwrap_or(local) };
    // Ignore the flags: the kernel's own tables include tentative and duplicate addresses.
    Some(Meaning::Event(if new {
        Event::Address(index, address)
    } else {
        Event::AddressGone(index, address)
    }))
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    if family == AF_INET {
        <[u8; 4]>::try_from(value).ok().map(|v4| IpAddr::V4(Ipv4Addr::from(v4)))
    } else {
        <[u8; 16]>::try_from(value).ok().map(|v6| IpAddr::V6(Ipv6Addr::from(v6)))
    }
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// Parses a null-terminated name. The kernel allows any byte except `/` and white space.
fn name(value: &[u8]) -> Option<String> {
    let name = value.strip_suffix(&[0]).unwrap_or(value);
    let good = name.len() < 64 && !name.contains(&0);
    good.then(|| String::from_utf8_lossy(name).into_owned())
}
