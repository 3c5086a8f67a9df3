//! The short way against the long one: what it takes, the long way forwards likewise; and it takes what is plain.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use ipoib::link::RcPath;

/// Subnets: the first is plain, the others are too small for most of their hosts, or of loopback, or at the edge of what hosts have.
const SUBNETS: [([u8; 3], u8); 5] =
    [([10, 77, 0], 24), ([192, 168, 1], 30), ([127, 0, 0], 8), ([223, 255, 255], 24), ([10, 0, 0], 31)];

/// A segment with all hosts that the last byte can tell: with connections, for datagrams, without a path; of either side or none.
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

/// What is not as in a plain packet.
#[derive(Clone, Debug)]
struct Oddities {
    subnet: usize,
    hosts: [u8; 2],
    payload: usize,
    padding: usize,
    edits: Vec<(usize, u8)>,
    mended: bool,
    cut: Option<usize>,
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
    let settings = (any::<u8>(), any::<u8>(), any::<u8>(), prop_oneof![4 => Just(1500u16), 1 => 0u16..200]);
    (packet, settings).prop_map(
        |((subnet, hosts, payload, padding, edits, mended, cut), (facts, role, down, mtu))| Oddities {
            subnet,
            hosts,
            payload,
            padding,
            edits,
            mended,
            cut,
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

    fn checksum(&self) -> Checksum {
        match self.facts % 8 {
            0 => Checksum::Good,
            1 => Checksum::Missing,
            _ => Checksum::Unknown,
        }
    }

    /// The first bytes of a packet behind `front`, with what is odd in them, and how long all of it is.
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

    /// True if the short way should take it: nothing about it is odd.
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
    fn a_frame_that_the_short_way_takes_goes_the_long_way_likewise(odd in oddities()) {
        let table = &odd.table();
        let (bytes, len) = odd.bytes(&frame(GATEWAY_MAC, 0x0800, &[]));
        let facts = FrameFacts { tag: FrameTag::InFrame, checksum: odd.checksum() };
        let long = match FrameHead::parse(&bytes, facts) {
            Ok(front) => eth_to_ib(&bytes, &front, len, table, WORKER),
            Err(reason) => EthVerdict::Drop(reason),
        };
        let short = Short::new(&table.settings).eth_to_ib(&bytes, len, facts.checksum, table, WORKER);
        if let Some(ToInfiniBand { via, ip_len, neighbour, dial }) = short {
            prop_assert_eq!(long, EthVerdict::Forward { via, ip_len, neighbour, dial });
        } else if odd.is_plain() {
            // By another way than that of first choice is not plain.
            let by_choice = match long {
                EthVerdict::Forward { via: Via::Rc(_), .. } => true,
                EthVerdict::Forward { via: Via::Ud(_), .. } => odd.hosts[1] % 8 == 3,
                _ => false,
            };
            prop_assert!(!by_choice, "{:?}", long);
        }
    }

    #[test]
    fn a_message_that_the_short_way_takes_goes_the_long_way_likewise(odd in oddities(), came in 0u8..4) {
        let table = &odd.table();
        let (bytes, len) = odd.bytes(&message(&[]));
        let source = if came == 0 { ud(true) } else if came == 1 { ud(false) } else { Source::Rc };
        let long = ib_to_eth(&bytes, len, &source, odd.checksum(), table);
        let short = Short::new(&table.settings).ib_to_eth(&bytes, len, &source, odd.checksum(), table);
        if let Some(ToEthernet { to, ip_len, neighbour }) = short {
            prop_assert_eq!(long, IbVerdict::Forward { to, ip_len, neighbour });
        } else if odd.is_plain() && came > 0 {
            prop_assert!(!matches!(long, IbVerdict::Forward { .. }), "{:?}", long);
        }
    }
}

#[test]
fn plain_packets_go_the_short_way() {
    let table = &SEGMENTS[0];
    let short = Short::new(&table.settings);
    let (eth, ib) = (Ipv4Addr::new(10, 77, 0, 5), Ipv4Addr::new(10, 77, 0, 8));
    let f = frame(GATEWAY_MAC, 0x0800, &ip(eth, ib, 60));
    let taken = short.eth_to_ib(&f, f.len(), Checksum::Unknown, table, WORKER).unwrap();
    assert_eq!((taken.via, taken.ip_len, taken.dial), (Via::Rc(RcSlot(8)), 60, None));
    let m = message(&ip(ib, eth, 60));
    let taken = short.ib_to_eth(&m, m.len(), &Source::Rc, Checksum::Unknown, table).unwrap();
    assert_eq!((taken.to, taken.ip_len), (MacAddress([2, 0, 0, 1, 0, 5]), 60));
}
