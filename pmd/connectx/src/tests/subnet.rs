//! The agent, queried over a raw cable as a subnet manager does.

use std::time::Instant;

use ib_wire::mad::{MadStatus, Method};
use ib_wire::packet::{Bth, Deth, Extended, Headers, Lrh, Opcode, Packet, VirtualLane};
use ib_wire::smp::{
    Attribute, DirectedPath, GuidBlock, NodeDescription, NodeInfo, PKeyBlock, PortInfo, PortState as Wire,
    Smp, attribute,
};
use ib_wire::{Gid, Guid, Lid, PKey, Psn, QKey, Qpn, ServiceLevel, Tid};

use super::rig::*;
use crate::cable::CableEnd;
use crate::{DeviceEvent, DropReason};
use hca::{AsyncEvent, PortState};

mod duties;

struct Manager {
    host: Host,
    cable: CableEnd,
    now: Instant,
}

pub(super) fn headers(lane: u8, dlid: Lid, slid: Lid, qpn: Qpn) -> Headers {
    let bth = Bth {
        opcode: Opcode::UdSendOnly,
        solicited: false,
        migrated: true,
        pkey: PKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: qpn,
        ack_request: false,
        psn: Psn::new(0),
    };
    Headers {
        lrh: Lrh { vl: VirtualLane::new(lane), sl: ServiceLevel::new(0), dlid, slid },
        grh: None,
        bth,
        extended: Extended::Deth(Deth { qkey: QKey(0), src_qpn: Qpn::SMI }),
    }
}

impl Manager {
    fn new() -> Self {
        let (ours, theirs) = CableEnd::pair().unwrap();
        let mut host = Host::new(9);
        host.engine.set_cable(PORT, Some(theirs)).unwrap();
        let now = Instant::now();
        host.engine.step(now);
        Self { host, cable: ours, now }
    }

    fn put(&mut self, headers: &Headers, payload: &[u8]) {
        let len = headers.packet_len(payload.len());
        self.cable
            .send_with(len, |out| {
                headers.write_packet(payload, out).unwrap();
            })
            .unwrap();
        self.host.engine.step(self.now);
        self.host.engine.step(self.now);
    }

    /// Queries by directed route through one switch, in the form in which the switch leaves the packet.
    fn ask(&mut self, smp: &Smp) -> Option<Smp> {
        let mut smp = *smp;
        smp.set_hop_pointer(1);
        self.put(&headers(15, Lid::PERMISSIVE, Lid::PERMISSIVE, Qpn::SMI), &smp.to_bytes()[..]);
        self.answer()
    }

    fn answer(&mut self) -> Option<Smp> {
        let mut answer = None;
        self.cable.receive(10, |bytes| {
            assert!(ib_wire::crc::verify(bytes));
            let packet = Packet::parse(bytes).unwrap();
            assert_eq!(packet.lrh().vl, VirtualLane::MANAGEMENT);
            let smp = Smp::from_mad(packet.payload().try_into().unwrap()).unwrap();
            answer = Some(smp).filter(|smp| smp.header.method == Method::GetResp).or(answer);
        });
        answer
    }

    fn request(method: Method, id: u16, modifier: u32) -> Smp {
        Smp::directed(method, Tid(0x77), id, modifier, &DirectedPath::LOCAL.then(1).unwrap())
    }

    fn get<A: Attribute>(&mut self) -> A {
        let answer = self.ask(&Self::request(Method::Get, A::ID, 0)).unwrap();
        assert_eq!(
            (answer.header.method, answer.header.tid, answer.status()),
            (Method::GetResp, Tid(0x77), MadStatus::OK)
        );
        assert!(answer.is_returning());
        assert_eq!((answer.hop_pointer(), answer.hop_count()), (1, 1));
        answer.attribute().unwrap()
    }

    fn set<A: Attribute>(&mut self, value: &A) -> MadStatus {
        let answer = self.ask(&Self::request(Method::Set, A::ID, 0).with(value)).unwrap();
        answer.status()
    }

    fn events(&mut self) -> Vec<DeviceEvent> {
        std::iter::from_fn(|| self.host.engine.next_event()).collect()
    }

    fn bring_up(&mut self) {
        let info = self.get::<PortInfo>();
        let info = PortInfo { lid: Lid(0x21), sm_lid: Lid(1), state: Wire::NoChange, ..info };
        assert_eq!(self.set(&info), MadStatus::OK);
        assert_eq!(self.set(&PortInfo { state: Wire::Armed, ..info }), MadStatus::OK);
        assert_eq!(self.set(&PortInfo { state: Wire::Active, ..info }), MadStatus::OK);
    }
}

#[test]
fn a_port_is_found_and_configured_by_packets_alone() {
    let mut m = Manager::new();
    assert_eq!(m.host.engine.port_attributes(PORT).unwrap().state, PortState::Init);
    let node = m.get::<NodeInfo>();
    assert_eq!((node.num_ports, node.local_port, node.node_guid), (2, 1, Guid(0x1009)));
    assert_eq!(m.get::<NodeDescription>().name(), "host 9");
    let info = m.get::<PortInfo>();
    assert_eq!((info.state, info.lid, info.local_port), (Wire::Init, Lid(0), 1));
    m.bring_up();
    let port = m.host.engine.port_attributes(PORT).unwrap();
    assert_eq!((port.state, port.lid, port.sm_lid), (PortState::Active, Lid(0x21), Lid(1)));
    let events = m.events();
    for event in [AsyncEvent::LidChange(PORT), AsyncEvent::SmChange(PORT), AsyncEvent::PortActive(PORT)] {
        assert_eq!(events.iter().filter(|e| **e == DeviceEvent::Async(event)).count(), 1, "{event:?}");
    }
    // The same, LID routed.
    let smp = Smp::lid_routed(Method::Get, Tid(5), attribute::PORT_INFO, 1);
    m.put(&headers(15, Lid(0x21), Lid(1), Qpn::SMI), &smp.to_bytes()[..]);
    let answer = m.answer().unwrap();
    assert_eq!(answer.attribute::<PortInfo>().unwrap().state, Wire::Active);
    assert!(!answer.is_directed());
}

#[test]
fn tables_and_prefix_are_set() {
    let mut m = Manager::new();
    m.bring_up();
    m.events();
    let mut keys = m.get::<PKeyBlock>();
    keys.keys[1] = PKey(0x8005);
    assert_eq!(m.set(&keys), MadStatus::OK);
    assert_eq!(m.host.engine.pkey(PORT, 1).unwrap(), PKey(0x8005));
    // 128 entries are four blocks, according to NodeInfo.
    assert_eq!(m.get::<NodeInfo>().partition_cap, 128);
    keys.keys = [PKey(0); 32];
    keys.keys[31] = PKey(0x8006);
    let set = |block| Manager::request(Method::Set, attribute::PKEY_TABLE, block).with(&keys);
    assert_eq!(m.ask(&set(3)).unwrap().attribute::<PKeyBlock>().unwrap(), keys);
    assert_eq!(m.host.engine.pkey(PORT, 127).unwrap(), PKey(0x8006));
    assert_eq!(m.host.engine.pkey(PORT, 1).unwrap(), PKey(0x8005), "another block");
    assert_eq!(m.ask(&set(4)).unwrap().status(), MadStatus::INVALID_FIELD);
    let mut guids = m.get::<GuidBlock>();
    let own = guids.guids[0];
    guids.guids[0] = Guid(1);
    guids.guids[3] = Guid(0xabc);
    assert_eq!(m.set(&guids), MadStatus::OK);
    assert_eq!(m.get::<GuidBlock>().guids[0], own);
    // 20 entries are two blocks and a half, according to PortInfo.
    assert_eq!(m.get::<PortInfo>().guid_cap, 20);
    let beyond = GuidBlock { guids: [Guid(0xdef); 8] };
    let set = |block| Manager::request(Method::Set, attribute::GUID_INFO, block).with(&beyond);
    let answer = m.ask(&set(2)).unwrap().attribute::<GuidBlock>().unwrap();
    assert_eq!((answer.guids[3], answer.guids[4]), (Guid(0xdef), Guid(0)));
    assert_eq!(m.ask(&set(3)).unwrap().status(), MadStatus::INVALID_FIELD);
    let info = PortInfo {
        gid_prefix: 0xfec0_0000_0000_0001,
        client_reregister: true,
        state: Wire::NoChange,
        ..m.get()
    };
    assert_eq!(m.set(&info), MadStatus::OK);
    assert_eq!(m.host.engine.gid(PORT, 3).unwrap(), Gid::new(0xfec0_0000_0000_0001, Guid(0xabc)));
    let indices: Vec<u16> = m.host.engine.gids().iter().filter(|e| e.port == PORT).map(|e| e.index).collect();
    assert_eq!(indices, [0, 3, 16, 17, 18, 19]);
    let events = m.events();
    assert_eq!(
        events,
        [
            DeviceEvent::Async(AsyncEvent::PKeyChange(PORT)),
            DeviceEvent::Async(AsyncEvent::PKeyChange(PORT)),
            DeviceEvent::Async(AsyncEvent::GidChange(PORT)),
            DeviceEvent::Async(AsyncEvent::GidChange(PORT)),
            DeviceEvent::Async(AsyncEvent::GidChange(PORT)),
            DeviceEvent::Async(AsyncEvent::ClientReregister(PORT))
        ]
    );
}

#[test]
fn invalid_requests_change_nothing() {
    let mut m = Manager::new();
    let info = PortInfo { lid: Lid(5), sm_lid: Lid(1), ..m.get() };
    for bad in [
        PortInfo { state: Wire::Active, ..info },
        PortInfo { state: Wire::NoChange, lid: Lid(0xc001), ..info },
        PortInfo { state: Wire::NoChange, lid: Lid(0), ..info },
        PortInfo { state: Wire::NoChange, neighbor_mtu: ib_wire::smp::PortMtu::new(9), ..info },
    ] {
        assert_eq!(m.set(&bad), MadStatus::INVALID_FIELD);
    }
    assert_eq!(m.host.engine.port_attributes(PORT).unwrap().lid, Lid(0));
    let other = m.ask(&Manager::request(Method::Get, attribute::PORT_INFO, 2)).unwrap();
    assert_eq!(other.status(), MadStatus::INVALID_FIELD);
    let other = m.ask(&Manager::request(Method::Get, attribute::SWITCH_INFO, 0)).unwrap();
    assert_eq!(other.status(), MadStatus::UNSUPPORTED_ATTRIBUTE);
    assert!(m.events().is_empty());
}

#[test]
fn packets_in_the_wrong_lane_or_state_are_dropped() {
    let mut m = Manager::new();
    let smp = Manager::request(Method::Get, attribute::NODE_INFO, 0);
    m.put(&headers(0, Lid::PERMISSIVE, Lid::PERMISSIVE, Qpn::SMI), &smp.to_bytes()[..]);
    m.put(&headers(15, Lid::PERMISSIVE, Lid::PERMISSIVE, Qpn::GSI), &smp.to_bytes()[..]);
    assert_eq!(m.host.drops(DropReason::VirtualLane), 2);
    m.put(&headers(0, Lid(1), Lid(2), Qpn::GSI), &[0; 256]);
    assert_eq!(m.host.drops(DropReason::PortState), 1);
    m.put(&headers(15, Lid::PERMISSIVE, Lid::PERMISSIVE, Qpn::SMI), &smp.to_bytes()[..100]);
    assert_eq!(m.host.drops(DropReason::BadSmp), 1);
    // A path that would continue behind us.
    let far = DirectedPath::LOCAL.then(1).unwrap().then(2).unwrap();
    assert!(m.ask(&Smp::directed(Method::Get, Tid(1), attribute::NODE_INFO, 0, &far)).is_none());
    assert!(m.answer().is_none());
}

#[test]
fn a_pulled_link_takes_the_port_down_and_a_new_one_brings_it_to_init() {
    let mut m = Manager::new();
    m.bring_up();
    m.events();
    let (ours, theirs) = CableEnd::pair().unwrap();
    m.cable = ours;
    m.host.engine.step(m.now);
    assert_eq!(m.host.engine.port_attributes(PORT).unwrap().state, PortState::Down);
    assert_eq!(m.events(), [DeviceEvent::Async(AsyncEvent::PortError(PORT))]);
    m.host.engine.set_cable(PORT, Some(theirs)).unwrap();
    m.host.engine.step(m.now);
    assert_eq!(m.host.engine.port_attributes(PORT).unwrap().state, PortState::Init);
    m.bring_up();
}
