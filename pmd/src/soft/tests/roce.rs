//! Tests of a device with an Ethernet port.

use connectx::PortConfig;
use connectx::cable::CableEnd;
use connectx::engine::EngineConfig;
use connectx::ethernet::guid_of_mac;
use gidcache::{Attributes, GidType, Key};
use ib_wire::mad::{Mad, MadAddress, MadHeader, Method, MgmtClass, Route};
use ib_wire::{Gid, Lid, Mtu, QKey, Qpn, ServiceLevel, Tid};

use super::PORT;
use crate::hca::{Control, LinkLayer};
use crate::soft::SoftHca;

/// Indices in the GID table: link-local, IPv4.
const SIX: u8 = 0;
const FOUR: u8 = 1;

fn mac(id: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, id as u8]
}

fn v4(id: u16) -> Gid {
    gidcache::gid_of_address([10, 0, 0, id as u8].into())
}

fn entry(gid: Gid, gid_type: GidType) -> Attributes {
    Attributes { key: Key { gid, gid_type, ifindex: None }, vlan: None }
}

/// Queue pair 1: a received datagram contains the return address.
#[test]
fn management_datagrams_can_be_answered() {
    let (left, right) = CableEnd::ethernet_pair().unwrap();
    let device = |id: u16, cable| {
        let guid = guid_of_mac(mac(id));
        let link_layer = LinkLayer::Ethernet;
        let mut hca = SoftHca::with_ports(EngineConfig {
            node_guid: guid,
            description: format!("roce{id}"),
            ports: vec![PortConfig { guid, max_mtu: Mtu::B1024, link_layer, gid_table: 4 }],
            seed: id.into(),
        })
        .unwrap();
        for (index, gid) in [(SIX, gidcache::link_local_gid(mac(id))), (FOUR, v4(id))] {
            let entry = Some(entry(gid, GidType::RoceV2));
            hca.engine().lock().set_gid(PORT, index.into(), entry).unwrap();
        }
        hca.set_cable(PORT, Some(cable)).unwrap();
        hca
    };
    let (mut a, mut b) = (device(1, left), device(2, right));
    for index in [SIX, FOUR] {
        let gid = b.gid(PORT, index.into()).unwrap();
        let route = Route { gid, sgid_index: index, flow_label: 0, hop_limit: 5, traffic_class: 9 };
        let mut bytes = Box::new([0; 256]);
        MadHeader::new(MgmtClass::ComMgt, 2, Method::Send, Tid(7), 0x10).put(&mut bytes);
        let peer = MadAddress { route: Some(route), ..MadAddress::gsi(Lid(0), ServiceLevel::new(0)) };
        a.send_mad(PORT, &Mad { peer, bytes }).unwrap();
        let mut got = None;
        for _ in 0..10 {
            assert!(a.receive_mad(PORT).unwrap().is_none());
            got = got.or(b.receive_mad(PORT).unwrap());
        }
        let got = got.expect("a datagram");
        assert_eq!(got.peer.route, Some(Route { gid: a.gid(PORT, index.into()).unwrap(), ..route }));
        assert_eq!((got.peer.qpn, got.peer.sl), (Qpn::GSI, ServiceLevel::new(0)));
        let answer = Mad { peer: MadAddress { qkey: QKey::GSI, ..got.peer }, ..got };
        b.send_mad(PORT, &answer).unwrap();
        let mut back = None;
        for _ in 0..10 {
            assert!(b.receive_mad(PORT).unwrap().is_none());
            back = back.or(a.receive_mad(PORT).unwrap());
        }
        assert_eq!(back.expect("an answer").header().tid, Tid(7));
    }
}
