use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    DefaultNla, DoneMessage, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    BondMode, InfoBond, InfoData, InfoKind, InfoVlan, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use proptest::prelude::*;

use super::message::{Meaning, Messages};
use super::session::{Notice, Session};
use crate::entry::{IfIndex, VlanId};
use crate::rules::{Address, Bond, Event, Interface, Kind};

const PORT: u32 = 77;

fn index(number: u32) -> IfIndex {
    IfIndex::new(number).unwrap()
}

/// Encodes a message with another implementation.
fn bytes(
    sequence: u32,
    port: u32,
    flags: u16,
    payload: impl Into<NetlinkPayload<RouteNetlinkMessage>>,
) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.sequence_number = sequence;
    header.port_number = port;
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, payload.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn link(number: u32, name: &str, more: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = number;
    message.header.link_layer_type = LinkLayerType::Ether;
    message.attributes = vec![
        LinkAttribute::IfName(name.into()),
        LinkAttribute::Mtu(1500),
        LinkAttribute::Address(vec![2, 0, 0, 0, 0, number as u8]),
    ];
    message.attributes.extend(more);
    message
}

fn interface(number: u32, name: &str) -> Interface {
    Interface {
        index: index(number),
        name: name.into(),
        mac: Some([2, 0, 0, 0, 0, number as u8]),
        kind: Kind::Other,
        master: None,
        lower: None,
    }
}

fn address(number: u32, prefix: u8, attributes: Vec<AddressAttribute>) -> AddressMessage {
    let mut message = AddressMessage::default();
    let v6 = attributes.iter().any(|attribute| matches!(attribute, AddressAttribute::Address(IpAddr::V6(_))));
    message.header.family = if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    message.header.prefix_len = prefix;
    message.header.scope = AddressScope::Universe;
    message.header.index = number;
    message.attributes = attributes;
    message
}

fn one(bytes: &[u8]) -> Meaning {
    let messages: Vec<_> = Messages::new(bytes).collect();
    assert_eq!(messages.len(), 1);
    messages.into_iter().next().unwrap().meaning.expect("a valid message")
}

fn new_link(message: LinkMessage) -> Meaning {
    one(&bytes(0, 0, 0, RouteNetlinkMessage::NewLink(message)))
}

#[test]
fn plain_interfaces() {
    let meaning = new_link(link(3, "eth0", vec![]));
    assert_eq!(meaning, Meaning::Event(Event::Interface(interface(3, "eth0"))));
    let mut message = link(3, "ib0", vec![]);
    message.header.link_layer_type = LinkLayerType::Infiniband;
    message.attributes.retain(|attribute| !matches!(attribute, LinkAttribute::Address(_)));
    message.attributes.push(LinkAttribute::Address(vec![1; 20]));
    let ib0 = Interface { mac: None, ..interface(3, "ib0") };
    assert_eq!(new_link(message), Meaning::Event(Event::Interface(ib0)));
    let gone = one(&bytes(0, 0, 0, RouteNetlinkMessage::DelLink(link(3, "eth0", vec![]))));
    assert_eq!(gone, Meaning::Event(Event::InterfaceGone(index(3))));
}

#[test]
fn vlans_bonds_slaves_and_veths() {
    let info = |kind, data| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)]);
    let vlan = info(InfoKind::Vlan, InfoData::Vlan(vec![InfoVlan::Id(42)]));
    let vlan = link(5, "eth0.42", vec![LinkAttribute::Link(3), vlan]);
    let meant = Interface {
        kind: Kind::Vlan(VlanId::new(42).unwrap()),
        lower: Some(index(3)),
        ..interface(5, "eth0.42")
    };
    assert_eq!(new_link(vlan.clone()), Meaning::Event(Event::Interface(meant.clone())));

    // Its lower interface is in another namespace, where the number has a different meaning.
    let mut elsewhere = vlan;
    elsewhere.attributes.push(LinkAttribute::LinkNetNsId(1));
    let meant = Interface { lower: None, ..meant };
    assert_eq!(new_link(elsewhere), Meaning::Event(Event::Interface(meant)));

    for (mode, active, bond) in [
        (BondMode::ActiveBackup, Some(3), Bond::Active(Some(index(3)))),
        (BondMode::ActiveBackup, None, Bond::Active(None)),
        (BondMode::BalanceAlb, Some(4), Bond::Active(Some(index(4)))),
        (BondMode::Ieee8023Ad, None, Bond::AllSlaves),
    ] {
        let mut data = vec![InfoBond::Mode(mode)];
        data.extend(active.map(InfoBond::ActivePort));
        let message = link(9, "bond0", vec![info(InfoKind::Bond, InfoData::Bond(data))]);
        let meant = Interface { kind: Kind::Bond(bond), ..interface(9, "bond0") };
        assert_eq!(new_link(message), Meaning::Event(Event::Interface(meant)));
    }

    let slave = Interface { master: Some(index(9)), ..interface(3, "eth0") };
    let message = link(3, "eth0", vec![LinkAttribute::Controller(9)]);
    assert_eq!(new_link(message), Meaning::Event(Event::Interface(slave)));

    let veth = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)]);
    let message = link(3, "eth0", vec![LinkAttribute::Link(4), veth]);
    assert_eq!(new_link(message), Meaning::Event(Event::Interface(interface(3, "eth0"))));
}

#[test]
fn parts_of_interfaces_are_not_interfaces() {
    for family in [AddressFamily::Bridge, AddressFamily::Inet6] {
        let mut message = link(3, "eth0", vec![]);
        message.header.interface_family = family;
        assert_eq!(one(&bytes(0, 0, 0, RouteNetlinkMessage::DelLink(message))), Meaning::Nothing);
    }
    let mut message = link(3, "eth0", vec![]);
    message.attributes = vec![
        LinkAttribute::IfName("eth0".into()),
        LinkAttribute::Other(DefaultNla::new(11, vec![1, 2, 3, 4])),
    ];
    assert_eq!(new_link(message), Meaning::Nothing);
}

#[test]
fn addresses() {
    let v4: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
    let peer: IpAddr = Ipv4Addr::new(10, 0, 0, 2).into();
    let v6: IpAddr = Ipv6Addr::from([0xfe80, 0, 0, 0, 0, 0, 0, 7]).into();
    let new = |message| one(&bytes(0, 0, 0, RouteNetlinkMessage::NewAddress(message)));
    let there =
        |local, prefix, peer| Meaning::Event(Event::Address(index(3), Address { local, prefix, peer }));
    let gone =
        |local, prefix, peer| Meaning::Event(Event::AddressGone(index(3), Address { local, prefix, peer }));
    let flags = |flags| address(3, 64, vec![AddressAttribute::Address(v6), AddressAttribute::Flags(flags)]);

    // With a peer, the local address is this host's.
    let message = address(3, 32, vec![AddressAttribute::Address(peer), AddressAttribute::Local(v4)]);
    assert_eq!(new(message.clone()), there(v4, 32, peer));
    assert_eq!(one(&bytes(0, 0, 0, RouteNetlinkMessage::DelAddress(message))), gone(v4, 32, peer));
    assert_eq!(new(flags(AddressFlags::Permanent)), there(v6, 64, v6));
    assert_eq!(new(flags(AddressFlags::Tentative)), there(v6, 64, v6));
    assert_eq!(new(flags(AddressFlags::Tentative | AddressFlags::Optimistic)), there(v6, 64, v6));
    assert_eq!(new(flags(AddressFlags::Dadfailed | AddressFlags::Permanent)), there(v6, 64, v6));
}

#[test]
fn malformed_messages() {
    let good = bytes(0, 0, 0, RouteNetlinkMessage::NewLink(link(3, "eth0", vec![])));
    for length in 1..good.len() {
        let mut cut = good[..length].to_vec();
        assert!(Messages::new(&cut).all(|message| message.meaning.is_none()), "cut at {length}");
        if length >= 16 {
            // The header has the correct length, but the attributes are incomplete or the name is missing.
            cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
            let _ = one_or_none(&cut);
        }
    }
    // A MAC address of five bytes, an interface without a number, and a message longer than the datagram.
    let mut message = link(3, "eth0", vec![]);
    message.attributes.push(LinkAttribute::Address(vec![1; 5]));
    assert_eq!(one_or_none(&bytes(0, 0, 0, RouteNetlinkMessage::NewLink(message))), None);
    assert_eq!(one_or_none(&bytes(0, 0, 0, RouteNetlinkMessage::NewLink(link(0, "eth0", vec![])))), None);
    let mut long = good.clone();
    long[0] += 4;
    assert_eq!(one_or_none(&long), None);
    let mut none = good;
    none[..4].fill(0);
    assert_eq!(one_or_none(&none), None);
}

fn one_or_none(bytes: &[u8]) -> Option<Meaning> {
    let mut messages = Messages::new(bytes);
    let first = messages.next().unwrap();
    assert_eq!(messages.next(), None);
    first.meaning
}

struct Kernel {
    now: Instant,
    session: Session,
}

impl Kernel {
    fn new() -> Self {
        let now = Instant::now();
        Self { now, session: Session::new(now, PORT) }
    }

    /// Advances time until the session sends a request. Returns the type and the number of the request.
    fn next_request(&mut self) -> (u16, u32) {
        let request = self.session.poll_transmit().unwrap_or_else(|| {
            self.now = self.now.max(self.session.poll_timeout().unwrap());
            self.session.handle_timeout(self.now);
            self.session.poll_transmit().expect("a request")
        });
        assert_eq!(request.len(), u32::from_ne_bytes(request[..4].try_into().unwrap()) as usize);
        (
            u16::from_ne_bytes(request[4..6].try_into().unwrap()),
            u32::from_ne_bytes(request[8..12].try_into().unwrap()),
        )
    }

    fn say(
        &mut self,
        sequence: u32,
        port: u32,
        flags: u16,
        payload: impl Into<NetlinkPayload<RouteNetlinkMessage>>,
    ) {
        self.session.handle_datagram(self.now, &bytes(sequence, port, flags, payload));
    }

    fn done(&mut self, sequence: u32) {
        let done = NetlinkPayload::Done(DoneMessage::default());
        self.say(sequence, PORT, NLM_F_MULTIPART, done);
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.session.poll_notice()).collect()
    }
}

fn eth(number: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewLink(link(number, "eth", vec![]))
}

#[test]
fn lists_interfaces_then_addresses_and_follows() {
    let mut kernel = Kernel::new();
    let (message_type, links) = kernel.next_request();
    assert_eq!(message_type, 18);
    kernel.say(links, PORT, NLM_F_MULTIPART, eth(1));
    // Another process uses the same number by coincidence.
    kernel.say(links, 5, 0, eth(2));
    kernel.done(links);
    let (message_type, addresses) = kernel.next_request();
    assert_eq!(message_type, 22);
    assert!(!kernel.session.is_settled());
    kernel.done(addresses);
    assert!(kernel.session.is_settled());
    assert_eq!(kernel.session.poll_timeout(), None);
    let event = |number| Event::Interface(interface(number, "eth"));
    assert_eq!(
        kernel.notices(),
        [Notice::ScanBegins, Notice::Scanned(event(1)), Notice::Event(event(2)), Notice::ScanEnds]
    );
    kernel.say(0, 0, 0, eth(3));
    assert_eq!(kernel.notices(), [Notice::Event(event(3))]);
}

#[test]
fn lists_again_after_a_loss_with_growing_pauses() {
    let mut kernel = Kernel::new();
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let (_, links) = kernel.next_request();
        kernel.done(links);
        let (_, addresses) = kernel.next_request();
        kernel.done(addresses);
        assert!(kernel.session.is_settled());
        kernel.session.handle_overrun(kernel.now);
        pauses.push(kernel.session.poll_timeout().unwrap() - kernel.now);
    }
    assert_eq!(pauses[0], Duration::from_millis(20));
    assert_eq!(pauses[1], Duration::from_millis(40));
    assert_eq!(*pauses.last().unwrap(), Duration::from_secs(5));
    assert_eq!(kernel.session.counters().scans, 12);
    // After a calm period, the next loss is repaired immediately.
    let (_, links) = kernel.next_request();
    kernel.done(links);
    let (_, addresses) = kernel.next_request();
    kernel.done(addresses);
    kernel.now += Duration::from_secs(60);
    kernel.session.handle_overrun(kernel.now);
    assert_eq!(kernel.session.poll_timeout().unwrap() - kernel.now, Duration::from_millis(20));
}

#[test]
fn gives_up_a_list_that_is_interrupted_or_does_not_come() {
    let mut kernel = Kernel::new();
    let (_, links) = kernel.next_request();
    kernel.say(links, PORT, NLM_F_MULTIPART | NLM_F_DUMP_INTR, eth(1));
    assert_eq!(kernel.notices(), [Notice::ScanBegins, Notice::ScanAborted]);
    let (_, again) = kernel.next_request();
    assert_ne!(links, again);
    // The rest of the first list does not count.
    kernel.say(links, PORT, NLM_F_MULTIPART, eth(1));
    kernel.done(links);
    assert_eq!(kernel.notices(), [Notice::ScanBegins]);
    // Without a response, the request is repeated when the response is overdue, after the pause.
    kernel.now = kernel.session.poll_timeout().unwrap();
    kernel.session.handle_timeout(kernel.now);
    assert_eq!(kernel.notices(), [Notice::ScanAborted]);
    let (message_type, _) = kernel.next_request();
    assert_eq!(message_type, 18);
    assert_eq!(kernel.session.counters().aborted_scans, 2);
}

#[test]
fn a_malformed_event_is_healed_by_a_list_but_a_malformed_line_is_not() {
    let mut kernel = Kernel::new();
    let (_, links) = kernel.next_request();
    kernel.say(links, PORT, NLM_F_MULTIPART, RouteNetlinkMessage::NewLink(link(1, "", vec![])));
    kernel.done(links);
    let (_, addresses) = kernel.next_request();
    kernel.done(addresses);
    assert!(kernel.session.is_settled());
    kernel.say(0, 0, 0, RouteNetlinkMessage::NewLink(link(1, "", vec![])));
    assert!(!kernel.session.is_settled());
    assert_eq!(kernel.session.counters().malformed, 2);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(datagram in prop::collection::vec(any::<u8>(), 0..200)) {
        let count = Messages::new(&datagram).count();
        prop_assert!(count <= datagram.len() / 16 + 1);
    }

    #[test]
    fn any_change_of_a_message_is_survived(at in 0usize..200, value: u8, cut in 0usize..200) {
        let info = LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(42)]));
        let info = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vlan), info]);
        let mut datagram = bytes(0, 0, 0, RouteNetlinkMessage::NewLink(link(3, "eth0", vec![info])));
        datagram.extend(bytes(0, 0, 0, RouteNetlinkMessage::NewAddress(
            address(3, 8, vec![AddressAttribute::Address(Ipv4Addr::LOCALHOST.into())]))));
        if let Some(byte) = datagram.get_mut(at) {
            *byte = value;
        }
        datagram.truncate(datagram.len().saturating_sub(cut));
        let now = Instant::now();
        let mut session = Session::new(now, PORT);
        session.handle_timeout(now);
        session.handle_datagram(now, &datagram);
        let mut rules = crate::rules::Rules::new();
        while let Some(notice) = session.poll_notice() {
            notice.tell(&mut rules);
        }
    }
}
