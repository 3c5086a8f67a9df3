use super::world::World;
use crate::segment::pair::message::{
    Body, Heard, LONGEST, MAX_PEERS, MAX_QPNS, Message, MessageError, PER_PAGE,
};
use crate::segment::pair::{Hello, Identity, Key, Neighbour, Place, Role, SegmentId, Side, SideSet};
use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Guid, Qpn};
use ipoib::net::ethernet::MacAddress;
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::time::Duration;

fn hello(peers: usize, qpns: usize) -> Message {
    let station = World::station(0);
    let heard = (0..peers as u64)
        .map(|n| Heard {
            who: Identity { guid: Guid(n), instance: !n },
            sides: SideSet::NONE.with(Side::InfiniBand, true),
        })
        .collect();
    let hello = Hello {
        priority: 200,
        role: Role::Standby,
        up: SideSet::BOTH,
        claims: true,
        leaves: false,
        interval: Duration::from_millis(300),
        lease: Duration::from_millis(1000),
        mac: station.mac,
        lid: station.lid,
        gid: station.gid,
        qpns: (0..qpns as u32).map(Qpn::new).collect(),
        heard,
    };
    message(Body::Hello(hello))
}

fn message(body: Body) -> Message {
    let from = Identity { guid: Guid(0x0002_c903_0012_3456), instance: 77 };
    Message { segment: SegmentId(5), from, sequence: 9, side: Side::InfiniBand, body }
}

fn neighbours(n: usize) -> Message {
    let list = (0..n as u32)
        .map(|n| Neighbour {
            ip: Ipv4Addr::from_bits(0x0a00_0000 + n).into(),
            place: if n % 2 == 0 {
                Place::Ethernet(MacAddress([2, 0, 0, 0, 0, n as u8]))
            } else {
                Place::InfiniBand(HardwareAddress { qpn: Qpn::new(n), ..HardwareAddress::default() })
            },
        })
        .collect();
    message(Body::Neighbours(list))
}

#[test]
fn the_largest_messages_fit_and_are_read_as_they_were_written() {
    let key = Some(Key::new([3; 16]));
    for m in [hello(0, 0), hello(MAX_PEERS, MAX_QPNS), neighbours(0), neighbours(PER_PAGE)] {
        for key in [None, key] {
            let mut bytes = m.to_bytes(key);
            assert!(bytes.len() <= LONGEST);
            // An Ethernet frame may be padded.
            bytes.extend_from_slice(&[0; 20]);
            assert_eq!(Message::parse(&bytes, key), Ok(m.clone()));
        }
        assert_eq!(Message::parse(&m.to_bytes(None), key), Err(MessageError::Key));
        assert_eq!(Message::parse(&m.to_bytes(key), None), Err(MessageError::Key));
        assert_eq!(Message::parse(&m.to_bytes(key), Some(Key::new([4; 16]))), Err(MessageError::Key));
    }
}

#[test]
fn segments_of_one_partition_and_subnet_are_one_whatever_the_membership_and_own_address() {
    let of = |pkey, a, len| SegmentId::of(pkey, Some((Ipv4Addr::new(10, 77, 0, a), len)));
    assert_eq!(of(0x8001, 1, 24), of(0x0001, 254, 24));
    assert_ne!(of(0x8001, 1, 24), of(0x8002, 1, 24));
    assert_ne!(of(0x8001, 1, 24), of(0x8001, 1, 23));
    assert_ne!(SegmentId::of(0x8001, None), of(0x8001, 1, 24));
    assert!(SegmentId::of(0x8001, None).is_same_partition(of(0x0001, 1, 24)));
    assert!(!SegmentId::of(0x8001, None).is_same_partition(of(0x8002, 1, 24)));
}

#[test]
fn a_key_is_no_text_for_logs() {
    assert_eq!(format!("{:?}", Key::new([1; 16])), "Key(…)");
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read_whole(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        let _ = Message::parse(&bytes, None);
    }

    #[test]
    fn any_change_of_a_signed_message_is_noticed(at in 0usize..500, by in 1u8..) {
        let key = Some(Key::new([3; 16]));
        let mut bytes = hello(3, 4).to_bytes(key);
        let at = at % bytes.len();
        bytes[at] ^= by;
        prop_assert!(Message::parse(&bytes, key).is_err());
    }

    #[test]
    fn a_changed_message_is_refused_or_encodes_to_the_same_bytes(at in 0usize..2000, by in 1u8.., page: bool) {
        let mut bytes = if page { neighbours(7) } else { hello(3, 4) }.to_bytes(None);
        let at = at % bytes.len();
        bytes[at] ^= by;
        if let Ok(read) = Message::parse(&bytes, None) {
            prop_assert_eq!(Message::parse(&read.to_bytes(None), None), Ok(read));
        }
    }
}
