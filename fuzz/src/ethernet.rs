//! Frames received by an Ethernet port: RoCEv2, ARP, neighbour discovery, anything. The port answers the
//! sender, and counts dropped frames.

use std::time::Instant;

use connectx::cable::{CableEnd, MAX_PACKET};
use connectx::engine::{Engine, EngineConfig};
use connectx::ethernet::guid_of_mac;
use connectx::{DropReason, PortConfig};
use gidcache::{Attributes, GidType, Key};
use hca::LinkLayer;
use ib_wire::packet::RocePacket;
use ib_wire::{Mtu, PortNumber};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PORT: PortNumber = PortNumber(1);

/// One input.
pub fn run(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let mut frame = bytes.to_vec();
    frame.truncate(MAX_PACKET);
    if frame.len() < 14 {
        return;
    }
    if how & 1 == 1 {
        frame[..6].copy_from_slice(&MAC);
    }
    // A correct ICRC gets it further.
    if how & 2 == 2
        && let Ok(packet) = RocePacket::parse(&frame[14..])
    {
        let (headers, payload) = (packet.headers(), packet.transport().payload.to_vec());
        headers.write_packet(&payload, &mut frame[14..]).expect("as long as it was");
    }
    let (mut wire, end) = CableEnd::ethernet_pair().expect("memory");
    let guid = guid_of_mac(MAC);
    let mut engine = Engine::new(EngineConfig {
        node_guid: guid,
        description: String::new(),
        ports: vec![PortConfig { guid, max_mtu: Mtu::B4096, link_layer: LinkLayer::Ethernet, gid_table: 2 }],
        seed: 1,
    });
    let gids = [gidcache::link_local_gid(MAC), gidcache::gid_of_address([10, 0, 0, 1].into())];
    for (index, gid) in (0..).zip(gids) {
        let key = Key { gid, gid_type: GidType::RoceV2, ifindex: None };
        engine.set_gid(PORT, index, Some(Attributes { key, vlan: None })).expect("there is room");
    }
    engine.set_cable(PORT, Some(end)).expect("of its kind");
    let now = Instant::now();
    engine.step(now);
    wire.send_with(frame.len(), |out| out.copy_from_slice(&frame)).expect("there is room");
    engine.step(now);
    engine.step(now);
    wire.poll(now);
    let mut answers = 0;
    wire.receive(8, |answer| {
        assert_eq!(answer[6..12], MAC);
        answers += 1;
    });
    let dropped: u64 = DropReason::ALL.iter().map(|&r| engine.counters().drops(r)).sum();
    assert!(answers + dropped <= 1, "one frame has one result");
}
