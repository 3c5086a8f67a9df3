//! The fast path against the slow path: both forward in the same way, and the fast path accepts all plain
//! packets.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::*;
use ipoib::drop_reason::DropReason;
use ipoib::link::RcPath;

/// Subnets. The first is plain. The others are too small for most of their hosts, or loopback, or at the end
/// of the host addresses.
const SUBNETS: [([u8; 3], u8); 5] =
    [([10, 77, 0], 24), ([192, 168, 1], 30), ([127, 0, 0], 8), ([223, 255, 255], 24), ([10, 0, 0], 31)];

/// A segment with all 256 values of the last byte as hosts: with a connection, for datagrams, without a path,
/// on either side or unknown.
fn segment(subnet: [u8; 3], prefix: u8) -> SegmentTable<u8> {
    let [a, b, c] = subnet;
    let address = |n| Ipv4Addr::new(a, b, c, n);
    let mut all = Settings::new(GATEWAY_MAC);
    all.address = GatewayAddress::new(address(254), prefix);
    all.broadcast = Some(0);
    let mut draft = Draft::new(3, all, 256, 1);
    for n in 0..=255_u8 {
        let path = |mtu| Some(RcPath { slot: RcSlot(n.into()), mtu });
        let (ud, rc) = match n % 8 {
            0 => (Some(n), rc(path(65_524))),
            1 => (Some(n), rc(path(100))),
            2 => (None, rc(path(3))),
            3 => (Some(n), rc(None)),
            4 => (None, rc(None)),
            5 | 6 => {
                draft.set_eth(address(n), EthNeighbour { mac: MacAddress([2, 0, 0, 1, 0, n]) }).unwrap();
                continue;
            }
            _ => continue,
        };
        draft.set_ib(address(n), IbNeighbour { ud, rc, dial: n & 16 == 0 }).unwrap();
    }
    SegmentTable::clone(draft.table())
}

static SEGMENTS: LazyLock<[SegmentTable<u8>; 5]> =
    LazyLock::new(|| SUBNETS.map(|(subnet, prefix)| segment(subnet, prefix)));

/// The ports of all tables here.
const PORTS: (EthernetIndex, EndpointIndex) = (EthernetIndex(1), EndpointIndex(1));
const LINK: u8 = 3;
/// The VLANs of a segment, and its index. Untagged frames belong to it, too. `GONE` is a VLAN whose segment
/// does not exist.
const VLANS: [u16; 4] = [0, 1, 77, 4094];
const ITS: SegmentIndex = SegmentIndex(2);
const GONE: (u16, SegmentIndex) = (9, SegmentIndex(7));

/// The VLAN information of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tag {
    None,
    /// Tag control information in the frame.
    InFrame(u16),
    /// The port removed the tag.
    Taken(u16),
    /// The port reports several tags.
    Stacked,
    /// Two tags in the frame, with these ethertypes.
    Double(u16, u16),
    /// One tag in the frame with the ethertype of a provider (IEEE 802.1ad).
    Service(u16),
    /// The port removed one tag, and another one is in the frame.
    Both(u16),
}

fn tag() -> impl Strategy<Value = Tag> {
    // Priorities and the drop eligibility bit, with the identifier of a VLAN, of none (0), or the reserved
    // one (4095).
    let control = (
        0u16..16,
        prop_oneof![12 => prop::sample::select(&VLANS[..]), 1 => Just(GONE.0), 1 => Just(4095), 1 => 0u16..4096],
    )
        .prop_map(|(priority, vid)| priority << 12 | vid);
    let kind = prop::sample::select(&[0x8100u16, 0x88a8][..]);
    prop_oneof![
        6 => Just(Tag::None),
        6 => control.clone().prop_map(Tag::InFrame),
        3 => control.clone().prop_map(Tag::Taken),
        1 => Just(Tag::Stacked),
        1 => (kind.clone(), kind).prop_map(|(outer, inner)| Tag::Double(outer, inner)),
        1 => control.clone().prop_map(Tag::Service),
        1 => control.prop_map(Tag::Both),
    ]
}

impl Tag {
    /// The headers of a frame with the tag.
    fn front(self) -> Vec<u8> {
        let bare = frame(GATEWAY_MAC, 0x0800, &[]);
        let (addresses, ethertype) = bare.split_at(12);
        let tag = |kind: u16, control: u16| [kind.to_be_bytes(), control.to_be_bytes()].concat();
        let tags = match self {
            Self::None | Self::Taken(_) | Self::Stacked => Vec::new(),
            Self::InFrame(control) | Self::Both(control) => tag(0x8100, control),
            Self::Service(control) => tag(0x88a8, control),
            Self::Double(outer, inner) => [tag(outer, 77), tag(inner, 77)].concat(),
        };
        [addresses, &tags, ethertype].concat()
    }

    /// The offload metadata from the port.
    fn offload_tag(self) -> FrameTag {
        match self {
            Self::None | Self::InFrame(_) | Self::Double(..) | Self::Service(_) => FrameTag::InFrame,
            Self::Taken(control) | Self::Both(control) => FrameTag::Taken(control),
            Self::Stacked => FrameTag::Stacked,
        }
    }

    /// True if the fast path should accept an otherwise plain frame with it.
    fn is_plain(self) -> bool {
        match self {
            Self::None => true,
            // Priority tags are rare and take the slow path.
            Self::InFrame(control) => control & 0xfff != 0 && VLANS.contains(&(control & 0xfff)),
            Self::Taken(control) => VLANS.contains(&(control & 0xfff)),
            Self::Stacked | Self::Double(..) | Self::Service(_) | Self::Both(_) => false,
        }
    }
}

/// Deviations from a plain packet.
#[derive(Clone, Debug)]
struct Oddities {
    subnet: usize,
    hosts: [u8; 2],
    payload: usize,
    padding: usize,
    edits: Vec<(usize, u8)>,
    mended: bool,
    cut: Option<usize>,
    tag: Tag,
    facts: u8,
    role: u8,
    down: u8,
    mtu: u16,
}

fn oddities() -> impl Strategy<Value = Oddities> {
    let packet = (
        prop_oneof![6 => Just(0usize), 1 => 0..SUBNETS.len()],
        any::<[u8; 2]>(),
        prop_oneof![8 => 0usize..80, 1 => 80usize..3000],
        0usize..20,
        prop::collection::vec((0usize..40, any::<u8>()), 0..3),
        prop::bool::weighted(0.8),
        prop::option::weighted(0.1, 0usize..60),
    );
    let mtu = prop_oneof![4 => Just(1500u16), 1 => 0u16..200];
    let settings = (tag(), any::<u8>(), any::<u8>(), any::<u8>(), mtu);
    (packet, settings).prop_map(
        |((subnet, hosts, payload, padding, edits, mended, cut), (tag, facts, role, down, mtu))| Oddities {
            subnet,
            hosts,
            payload,
            padding,
            edits,
            mended,
            cut,
            tag,
            facts,
            role,
            down,
            mtu,
        },
    )
}

impl Oddities {
    fn table(&self) -> SegmentTable<u8> {
        let mut table = SEGMENTS[self.subnet].clone();
        let settings = &mut table.settings;
        settings.role = match self.role {
            0..10 => Role::Standby,
            10..20 => Role::Blocked,
            20..40 => Role::HandingOver,
            _ => Role::Forwarding,
        };
        settings.broadcast = settings.broadcast.filter(|_| self.down & 15 != 0);
        settings.eth_up = self.down & 0xf0 != 0;
        (settings.eth_mtu, settings.ud_mtu) = (self.mtu, self.mtu.saturating_add(4));
        table
    }

    /// Tables with the segment.
    fn tables(&self) -> Tables<u8> {
        let mut tables = Tables::default();
        tables.set_segment(ITS, Some(Arc::new(self.table())));
        for vid in VLANS {
            tables.join_vlan(PORTS.0, vid, Some(ITS));
        }
        tables.join_vlan(PORTS.0, GONE.0, Some(GONE.1));
        tables.join_link(PORTS.1, LINK, Some(ITS));
        tables
    }

    fn checksum(&self) -> Checksum {
        match self.facts % 8 {
            0 => Checksum::Good,
            1 => Checksum::Missing,
            _ => Checksum::Unknown,
        }
    }

    /// The first bytes of a packet behind `front`, with its deviations, and the packet's total length.
    fn bytes(&self, front: &[u8]) -> (Vec<u8>, usize) {
        let ([a, b, c], _) = SUBNETS[self.subnet];
        let [from, to] = self.hosts.map(|n| Ipv4Addr::new(a, b, c, n));
        let mut bytes = [front, &ip(from, to, 28 + self.payload)].concat();
        bytes.resize(bytes.len() + self.padding, 0xaa);
        for (at, value) in &self.edits {
            if let Some(byte) = bytes.get_mut(*at) {
                *byte = *value;
            }
        }
        if self.mended {
            let packet = &mut bytes[front.len()..];
            packet[10..12].fill(0);
            let header = 20.max(usize::from(packet[0] & 0xf) * 4).min(packet.len());
            let sum =
                etherparse::checksum::Sum16BitWords::new().add_slice(&packet[..header]).ones_complement();
            packet[10..12].copy_from_slice(&sum.to_ne_bytes());
        }
        let len = bytes.len();
        if let Some(cut) = self.cut {
            bytes.truncate(cut);
        }
        (bytes, if self.facts & 0x80 == 0 { len } else { len.min(self.cut.unwrap_or(len)) })
    }

    /// True if the fast path should accept the packet: it has no deviation.
    fn is_plain(&self) -> bool {
        let whole = self.edits.is_empty()
            && self.cut.is_none()
            && (self.mended || self.checksum() == Checksum::Unknown);
        let host = |n: u8| n != 0 && n < 254;
        whole
            && self.subnet == 0
            && self.role >= 20
            && self.down & 15 != 0
            && self.down & 0xf0 != 0
            && self.hosts.iter().all(|n| host(*n))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 20_000 } else { 200_000 }))]

    #[test]
    fn both_paths_forward_a_frame_alike(odd in oddities(), before in tag()) {
        let tables = odd.tables();
        let (bytes, len) = odd.bytes(&odd.tag.front());
        let facts = FrameFacts { tag: odd.tag.offload_tag(), checksum: odd.checksum() };
        // As a worker does it.
        let mut at = None;
        let long = match FrameHead::parse(&bytes, facts) {
            Ok(head) => match tables.of_vlan(PORTS.0, head.vid) {
                Some((segment, table)) => {
                    at = Some((segment, head.len));
                    eth_to_ib(&bytes, &head, len, table, WORKER)
                }
                None => EthVerdict::Drop(DropReason::VlanUnknown),
            },
            Err(reason) => EthVerdict::Drop(reason),
        };
        // The result does not depend on the frame before it in the burst, however similar the two are.
        let taken = |mut burst: ShortWay<'_, u8>| {
            let taken = burst.frame(PORTS.0, &bytes, len, facts)?;
            Some((taken.segment, taken.front, taken.marks.is_some(), taken.how.ip_len, taken.how.neighbour))
        };
        let mut burst = ShortWay::new(&tables, WORKER);
        let (first, first_len) = odd.bytes(&before.front());
        let first_facts = FrameFacts { tag: before.offload_tag(), ..facts };
        let _ = burst.frame(PORTS.0, &first, first_len, first_facts);
        prop_assert_eq!(taken(burst), taken(ShortWay::new(&tables, WORKER)), "behind {:?}", before);
        if let Some(short) = ShortWay::new(&tables, WORKER).frame(PORTS.0, &bytes, len, facts) {
            let ToInfiniBand { via, ip_len, neighbour, dial } = short.how;
            prop_assert_eq!(long, EthVerdict::Forward { via, ip_len, neighbour, dial });
            prop_assert_eq!(at, Some((short.segment, short.front)));
            // The lookahead returns the same.
            let (table, [source, destination]) =
                ShortWay::new(&tables, WORKER).addresses(PORTS.0, &bytes, facts).unwrap();
            prop_assert!(std::ptr::eq(table, short.table) && table.ib(source.into()).is_none());
            prop_assert_eq!(table.ib(destination.into()).map(|(index, _)| index), neighbour);
            prop_assert!(std::ptr::eq(short.table, tables.segment(short.segment).unwrap()));
        } else if odd.is_plain() && odd.tag.is_plain() {
            // A packet that does not use the preferred transport is not plain.
            let by_choice = match long {
                EthVerdict::Forward { via: Via::Rc(_), .. } => true,
                EthVerdict::Forward { via: Via::Ud(_), .. } => odd.hosts[1] % 8 == 3,
                _ => false,
            };
            prop_assert!(!by_choice, "{:?}", long);
        }
    }

    #[test]
    fn both_paths_forward_a_message_alike(odd in oddities(), came in 0u8..4) {
        let tables = odd.tables();
        let (bytes, len) = odd.bytes(&message(&[]));
        let source = if came == 0 { ud(true) } else if came == 1 { ud(false) } else { Source::Rc };
        let (segment, table) = tables.of_link(PORTS.1, LINK).unwrap();
        let long = ib_to_eth(&bytes, len, &source, odd.checksum(), table);
        let unknown = ShortWay::new(&tables, WORKER).message((PORTS.1, LINK + 1), &bytes, len, &source, odd.checksum());
        prop_assert!(unknown.is_none());
        let short = ShortWay::new(&tables, WORKER).message((PORTS.1, LINK), &bytes, len, &source, odd.checksum());
        if let Some(short) = short {
            let ToEthernet { to, ip_len, neighbour } = short.how;
            prop_assert_eq!(long, IbVerdict::Forward { to: *to, ip_len, neighbour });
            prop_assert_eq!((short.segment, short.front), (segment, IPOIB_HEADER_LEN));
            let (table, [source, destination]) =
                ShortWay::new(&tables, WORKER).message_addresses((PORTS.1, LINK), &bytes).unwrap();
            prop_assert!(std::ptr::eq(table, short.table) && table.eth(source.into()).is_none());
            prop_assert_eq!(table.eth(destination.into()).map(|(index, _)| index), neighbour);
        } else if odd.is_plain() && came > 0 {
            prop_assert!(!matches!(long, IbVerdict::Forward { .. }), "{:?}", long);
        }
    }
}

#[test]
fn plain_packets_take_the_fast_path() {
    let plain = Oddities {
        subnet: 0,
        hosts: [5, 8],
        payload: 32,
        padding: 0,
        edits: Vec::new(),
        mended: true,
        cut: None,
        tag: Tag::None,
        facts: 7,
        role: 255,
        down: 255,
        mtu: 1500,
    };
    let tables = plain.tables();
    // Without a tag, with a tag of any priority in the frame, and with a tag that the port removed.
    for (tag, front) in [
        (Tag::None, 14),
        (Tag::InFrame(77), 18),
        (Tag::InFrame(0xf001), 18),
        (Tag::Taken(4094), 14),
        (Tag::Taken(0), 14),
    ] {
        let (f, len) = plain.bytes(&tag.front());
        let facts = FrameFacts { tag: tag.offload_tag(), checksum: Checksum::Unknown };
        let taken = ShortWay::new(&tables, WORKER).frame(PORTS.0, &f, len, facts).unwrap();
        assert_eq!((taken.segment, taken.front), (ITS, front), "{tag:?}");
        assert_eq!((taken.how.via, taken.how.ip_len, taken.how.dial), (Via::Rc(RcSlot(8)), 60, None));
        assert!(
            ShortWay::new(&tables, WORKER).frame(EthernetIndex(0), &f, len, facts).is_none(),
            "another port"
        );
    }
    let (eth, ib) = (Ipv4Addr::new(10, 77, 0, 5), Ipv4Addr::new(10, 77, 0, 8));
    let m = message(&ip(ib, eth, 60));
    let taken = ShortWay::new(&tables, WORKER)
        .message((PORTS.1, LINK), &m, m.len(), &Source::Rc, Checksum::Unknown)
        .unwrap();
    assert_eq!((*taken.how.to, taken.how.ip_len), (MacAddress([2, 0, 0, 1, 0, 5]), 60));
}

#[test]
fn truncated_and_unknown_tags_take_the_slow_path() {
    let plain = frame(GATEWAY_MAC, 0x0800, &ip(Ipv4Addr::new(10, 77, 0, 5), Ipv4Addr::new(10, 77, 0, 8), 60));
    let mut draft = Draft::new(3, SEGMENTS[0].settings.clone(), 16, 1);
    let rc = rc(Some(RcPath { slot: RcSlot(1), mtu: 2044 }));
    draft.set_ib(Ipv4Addr::new(10, 77, 0, 8), IbNeighbour { ud: None, rc, dial: false }).unwrap();
    let mut tables = Tables::default();
    tables.set_segment(ITS, Some(draft.table().clone()));
    for vid in [0, 100] {
        tables.join_vlan(PORTS.0, vid, Some(ITS));
    }
    let tagged = |vid: u16| [&plain[..12], &[0x81, 0], &vid.to_be_bytes(), &plain[12..]].concat();
    let takes = |frame: &[u8]| {
        ShortWay::new(&tables, WORKER).frame(PORTS.0, frame, frame.len(), FrameFacts::default()).is_some()
    };
    assert!(takes(&plain) && takes(&tagged(100)));
    assert!(!takes(&tagged(0)), "a priority tag");
    assert!(!takes(&tagged(101)) && !takes(&tagged(4095)));
    let whole = tagged(100);
    for len in 0..whole.len() {
        assert!(!takes(&whole[..len]), "{len} bytes");
    }
}

/// A burst has one fast path, which caches the segment of the last packet's VLAN or link.
#[test]
fn a_burst_of_many_segments_uses_the_segment_of_each_packet() {
    let (from, to) = (Ipv4Addr::new(10, 77, 0, 5), Ipv4Addr::new(10, 77, 0, 8));
    let plain = frame(GATEWAY_MAC, 0x0800, &ip(from, to, 60));
    let tagged = |vid: u16| [&plain[..12], &[0x81, 0], &vid.to_be_bytes(), &plain[12..]].concat();
    let came = message(&ip(to, from, 60));
    let mut tables = Tables::default();
    // Two segments with the same hosts, one that does not exist, and one unknown VLAN.
    let segments =
        [(77, SegmentIndex(2)), (78, SegmentIndex(3)), (79, SegmentIndex(4)), (80, SegmentIndex(5))];
    for (vid, segment) in &segments[..3] {
        tables.set_segment(*segment, (*vid != 79).then(|| Arc::new(SEGMENTS[0].clone())));
        tables.join_vlan(PORTS.0, *vid, Some(*segment));
        tables.join_link(PORTS.1, *vid as u8, Some(*segment));
    }
    let at = |vid: u16| segments.iter().find(|(v, _)| *v == vid && vid < 79).map(|(_, segment)| *segment);
    let vids = segments.map(|(vid, _)| vid);
    for order in (0..64).map(|n| [vids[n % 4], vids[n / 4 % 4], vids[n / 16], vids[n % 4]]) {
        let (mut frames, mut messages) = (ShortWay::new(&tables, WORKER), ShortWay::new(&tables, WORKER));
        for vid in order {
            let f = tagged(vid);
            let taken = frames.frame(PORTS.0, &f, f.len(), FrameFacts::default());
            assert_eq!(taken.map(|plain| plain.segment), at(vid), "{vid} of {order:?}");
            let taken =
                messages.message((PORTS.1, vid as u8), &came, came.len(), &Source::Rc, Checksum::Unknown);
            assert_eq!(taken.map(|plain| plain.segment), at(vid), "{vid} of {order:?}");
        }
    }
}
