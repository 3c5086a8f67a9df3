use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;
use crate::{Gid, Guid, PKey, Qpn};

fn address() -> impl Strategy<Value = HardwareAddress> {
    any::<[u8; 20]>().prop_map(|b| HardwareAddress::from_bytes(&b))
}

fn arp() -> impl Strategy<Value = Arp> {
    (any::<u16>(), address(), any::<[u8; 4]>(), address(), any::<[u8; 4]>()).prop_map(|(op, s, si, t, ti)| {
        let mut bytes = Arp::request(s, si.into(), ti.into()).to_bytes();
        bytes[6..8].copy_from_slice(&op.to_be_bytes());
        bytes[32..52].copy_from_slice(&t.to_bytes());
        Arp::parse(&bytes).unwrap()
    })
}

proptest! {
    #[test]
    fn addresses_keep_every_bit(bytes in any::<[u8; 20]>()) {
        prop_assert_eq!(HardwareAddress::from_bytes(&bytes).to_bytes(), bytes);
    }

    #[test]
    fn arp_is_read_back(arp in arp()) {
        prop_assert_eq!(Arp::parse(&arp.to_bytes()), Ok(arp));
    }

    #[test]
    fn link_option_is_read_back(address in address(), target in any::<bool>()) {
        let kind = if target { LinkOptionKind::Target } else { LinkOptionKind::Source };
        let option = LinkOption { kind, address };
        prop_assert_eq!(LinkOption::parse(&option.to_bytes()), Some(option));
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..100), gid in any::<[u8; 16]>()) {
        let _ = Arp::parse(&bytes);
        let _ = decapsulate(&bytes);
        let mut options = NdOptions::new(&bytes);
        let total: usize = options.by_ref().map(<[u8]>::len).sum();
        prop_assert!(total <= bytes.len());
        prop_assert_eq!(options.is_sound(), total == bytes.len());
        let _ = IpoibGroup::from_gid(Gid(gid)).map(|g| g.to_string());
    }

    #[test]
    fn ipv4_groups_come_back(ip in 0xe000_0000u32..0xf000_0000, pkey in 1u16.., scope in 0u8..16) {
        let ip = Ipv4Addr::from(ip);
        let gid = multicast_gid(IpAddr::V4(ip), PKey(pkey), GroupScope::new(scope)).unwrap();
        prop_assert_eq!(IpoibGroup::from_gid(gid), Some(IpoibGroup::Ipv4(ip)));
        prop_assert_eq!(IpoibGroup::link_of(gid), (PKey(pkey | 0x8000), GroupScope::new(scope)));
    }
}

#[test]
fn groups_of_the_rfc() {
    let map = |ip: &str, pkey| {
        multicast_gid(ip.parse().unwrap(), PKey(pkey), GroupScope::LINK_LOCAL).map(|g| g.to_string())
    };
    assert_eq!(map("224.0.0.2", 0x8000).unwrap(), "ff12:401b:8000::2");
    assert_eq!(map("ff02::2", 0x8000).unwrap(), "ff12:601b:8000::2");
    assert_eq!(map("255.255.255.255", 0x7fff).unwrap(), "ff12:401b:ffff::ffff:ffff");
    assert_eq!(map("239.255.255.255", 0xffff).unwrap(), "ff12:401b:ffff::fff:ffff");
    assert_eq!(map("10.0.0.1", 0xffff), None);
    assert_eq!(map("fe80::1", 0xffff), None);
    let broadcast = broadcast_gid(PKey::DEFAULT, GroupScope::LINK_LOCAL);
    assert_eq!(IpoibGroup::from_gid(broadcast), Some(IpoibGroup::Broadcast));
    assert_eq!(
        HardwareAddress::multicast(broadcast).to_string(),
        "00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff"
    );
}

#[test]
fn flags_do_not_make_another_address() {
    let a = HardwareAddress { flags: AddressFlags::RC, qpn: Qpn::new(0x404), gid: Gid([1; 16]) };
    let b = HardwareAddress { flags: AddressFlags::NONE, ..a };
    assert!(a != b && a.is_same_as(b) && a.flags.has_rc() && !a.flags.has_uc());
    assert!(!a.is_same_as(HardwareAddress { qpn: Qpn::new(0x405), ..a }));
}

#[test]
fn wrong_arp_is_refused_for_its_reason() {
    let good =
        Arp::request(HardwareAddress::default(), [10, 0, 0, 1].into(), [10, 0, 0, 2].into()).to_bytes();
    let broken = |at: usize, v: u8| {
        let mut b = good;
        b[at] = v;
        Arp::parse(&b).unwrap_err()
    };
    assert_eq!(broken(1, 1), ArpError::HardwareType(1));
    assert_eq!(broken(2, 0x86), ArpError::Protocol(0x8600));
    assert_eq!(broken(4, 6), ArpError::AddressLength { hardware: 6, protocol: 4 });
    assert_eq!(Arp::parse(&good[..55]), Err(ArpError::TooShort(55)));
    let reply = Arp::parse(&good).unwrap().reply(HardwareAddress::from_bytes(&[3; 20]));
    assert_eq!(reply.sender_ip, Ipv4Addr::new(10, 0, 0, 2));
    assert_eq!(reply.target_ip, Ipv4Addr::new(10, 0, 0, 1));
}

#[test]
fn broken_options_end_the_walk() {
    let option = LinkOption { kind: LinkOptionKind::Source, address: HardwareAddress::default() }.to_bytes();
    let mut bytes = option.to_vec();
    bytes.extend([5, 1, 0, 0, 0, 0, 5, 0xdc]);
    let mut options = NdOptions::new(&bytes);
    assert_eq!(options.by_ref().count(), 2);
    assert!(options.is_sound());
    bytes.extend([1, 0, 0, 0]);
    let mut options = NdOptions::new(&bytes);
    assert_eq!(options.by_ref().count(), 2);
    assert!(!options.is_sound());
    assert_eq!(LinkOption::parse(&option[..23]), None);
}

#[test]
fn interface_id_has_the_universal_bit() {
    assert_eq!(interface_id(Guid(0x0002_c903_0000_0a01)), [0x02, 2, 0xc9, 3, 0, 0, 0x0a, 1]);
}

#[test]
fn encapsulation_types() {
    for code in [0x0800, 0x0806, 0x8035, 0x86dd, 0x88ca] {
        let header = encapsulation(EtherType::from_code(code));
        let message = [&header[..], &[9, 9]].concat();
        assert_eq!(decapsulate(&message), Some((EtherType::from_code(code), &[9u8, 9][..])));
    }
    assert_eq!(decapsulate(&[8, 0, 0]), None);
}
