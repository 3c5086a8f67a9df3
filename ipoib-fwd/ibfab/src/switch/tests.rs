use connectx::cable::Crcs;
use connectx::trap::INTERVAL;
use ib_wire::mad::{MadAddress, MadStatus, Method};
use ib_wire::packet::{Bth, Deth, Extended, Grh, Headers, Lrh, Opcode, Packet, VirtualLane};
use ib_wire::smp::{
    DirectedPath, LinearForwardingBlock, MulticastForwardingBlock, NodeInfo, NodeType, PKeyBlock, PortInfo,
    Smp, attribute,
};
use ib_wire::{Gid, PKey, QKey, Qpn, ServiceLevel, Tid};

use super::*;

mod full;
mod management;

const GUID: Guid = Guid(0x0002_c900_0000_0001);

/// A switch with the far ends of its links in our hands.
struct Bench {
    switch: Switch,
    ends: Vec<CableEnd>,
    now: Instant,
    tid: u64,
}

impl Bench {
    fn new(ports: usize) -> Self {
        let name = "test switch".to_owned();
        let config = SwitchConfig { guid: GUID, name, mtu: Mtu::B4096, ports: ports as u8 };
        let mut switch = Switch::new(&config);
        let mut ends = Vec::new();
        for i in 0..ports {
            let (near, far) = CableEnd::pair().unwrap();
            switch.plug(SwitchPort(i as u8 + 1), &format!("p{i}"), near).unwrap();
            ends.push(far);
        }
        let mut bench = Self { switch, ends, now: Instant::now(), tid: 1 };
        bench.step();
        bench
    }

    /// As [`Bench::new`], with all ports active, LID 1 for the switch and LID 10 + n behind port n.
    fn active(ports: usize) -> Self {
        let mut bench = Self::new(ports);
        let own = bench.get::<PortInfo>(attribute::PORT_INFO, 0);
        let own = PortInfo { lid: Lid(1), sm_lid: Lid(1), state: PortState::NoChange, ..own };
        assert!(bench.set(0, &own).is_ok());
        let mut block = LinearForwardingBlock { ports: [255; 64] };
        block.ports[1] = 0;
        for port in 1..=ports as u8 {
            for state in [PortState::Armed, PortState::Active] {
                assert!(bench.set(u32::from(port), &PortInfo { state, ..port_info() }).is_ok());
            }
            block.ports[10 + usize::from(port)] = port;
        }
        assert!(bench.set(0, &block).is_ok());
        bench
    }

    fn step(&mut self) {
        while self.switch.step(self.now) {}
    }

    /// A directed-route request of zero hops from behind port 0, and its answer.
    fn ask(&mut self, smp: Smp) -> Smp {
        self.switch.send_mad(&smp.to_mad(Lid::PERMISSIVE));
        Smp::from_mad(&self.switch.next_mad().expect("an answer").bytes).unwrap()
    }

    fn get<A: ib_wire::smp::Attribute>(&mut self, id: u16, modifier: u32) -> A {
        let tid = self.next_tid();
        let answer = self.ask(Smp::directed(Method::Get, tid, id, modifier, &DirectedPath::LOCAL));
        assert_eq!((answer.status(), answer.header.method), (MadStatus::OK, Method::GetResp));
        answer.attribute().unwrap()
    }

    fn set<A: ib_wire::smp::Attribute>(&mut self, modifier: u32, to: &A) -> Result<(), MadStatus> {
        let tid = self.next_tid();
        let smp = Smp::directed(Method::Set, tid, A::ID, modifier, &DirectedPath::LOCAL).with(to);
        let answer = self.ask(smp);
        assert_eq!(answer.header.tid, tid);
        if answer.status().is_ok() { Ok(()) } else { Err(answer.status()) }
    }

    fn next_tid(&mut self) -> Tid {
        self.tid += 1;
        Tid(self.tid)
    }

    /// Sends by the link behind port `from` and lets the switch work.
    fn send(&mut self, from: usize, packet: &[u8]) {
        self.ends[from - 1].send_with(packet.len(), |out| out.copy_from_slice(packet)).unwrap();
        self.step();
    }

    fn received(&mut self, at: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        self.ends[at - 1].receive(usize::MAX, |p| packets.push(p.to_vec()));
        packets
    }

    fn dropped(&self, port: usize, reason: DropReason) -> u64 {
        self.switch.ports().nth(port - 1).unwrap().switch.dropped(reason)
    }
}

/// What a subnet manager writes of an external port.
fn port_info() -> PortInfo {
    PortInfo { neighbor_mtu: Mtu::B4096.into(), ..PortInfo::default() }
}

fn packet(vl: u8, slid: u16, dlid: Lid, qpn: Qpn, qkey: QKey, payload: &[u8]) -> Vec<u8> {
    routed(None, vl, slid, dlid, qpn, qkey, payload)
}

fn routed(grh: Option<Grh>, vl: u8, slid: u16, dlid: Lid, qpn: Qpn, qkey: QKey, payload: &[u8]) -> Vec<u8> {
    let headers = Headers {
        lrh: Lrh { vl: VirtualLane::new(vl), sl: ServiceLevel::new(0), dlid, slid: Lid(slid) },
        grh,
        bth: Bth {
            opcode: Opcode::UdSendOnly,
            solicited: false,
            migrated: true,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: qpn,
            ack_request: false,
            psn: Psn::new(5),
        },
        extended: Extended::Deth(Deth { qkey, src_qpn: Qpn::new(77) }),
    };
    let mut bytes = vec![0; headers.packet_len(payload.len())];
    headers.write_packet(payload, &mut bytes).unwrap();
    bytes
}

fn data(slid: u16, dlid: u16, len: usize) -> Vec<u8> {
    packet(0, slid, Lid(dlid), Qpn::new(0x123), QKey(1), &vec![0xa5; len])
}

fn smp(smp: &Smp, slid: Lid, dlid: Lid) -> Vec<u8> {
    packet(15, slid.0, dlid, Qpn::SMI, QKey(0), &smp.to_bytes()[..])
}

#[test]
fn unicast_goes_by_the_linear_table_unchanged() {
    let mut bench = Bench::active(3);
    let p = data(11, 13, 4096);
    bench.send(1, &p);
    assert_eq!(bench.received(3), [p]);
    assert!(bench.received(2).is_empty());
    assert_eq!(bench.switch.ports().next().unwrap().switch.forwarded, 1);
}

#[test]
fn crcs_are_made_where_a_packet_leaves_by_a_link_that_can_damage_it() {
    let whole = data(11, 13, 1000);
    let mut bare = whole.clone();
    bare[whole.len() - 6..].fill(0);
    for keeps in [false, true] {
        let mut bench = Bench::active(3);
        if keeps {
            bench.ends[2].keep_crcs();
        }
        bench.ends[0]
            .send(bare.len(), |out, crcs| {
                assert_eq!(crcs, Crcs::Absent);
                out.copy_from_slice(&bare);
            })
            .unwrap();
        bench.step();
        let mut got = Vec::new();
        bench.ends[2].receive_as_sent(8, |p, crcs| {
            got.push((p.to_vec(), crcs));
            true
        });
        let expected = if keeps { (whole.clone(), Crcs::Present) } else { (bare.clone(), Crcs::Absent) };
        assert_eq!(got, [expected]);
    }
}

#[test]
fn crcs_that_a_packet_has_go_with_it_to_its_receiver() {
    // The variant CRC is right, the invariant one is for the receiver to check.
    let mut p = data(11, 13, 1000);
    let end = p.len();
    p[end - 6] ^= 1;
    let vcrc = ib_wire::crc::vcrc(&p[..end - 2]);
    p[end - 2..].copy_from_slice(&vcrc);
    let mut bench = Bench::active(3);
    bench.send(1, &p);
    let mut got = Vec::new();
    bench.ends[2].receive_as_sent(8, |p, crcs| {
        got.push((p.to_vec(), crcs));
        true
    });
    assert_eq!(got, [(p.clone(), Crcs::Present)]);
    // A packet that a link damaged is dropped and counted where it came in.
    p[40] ^= 1;
    bench.send(1, &p);
    assert!(bench.received(3).is_empty());
    assert_eq!(bench.dropped(1, DropReason::Vcrc), 1);
}

#[test]
fn management_packets_need_no_crcs_between_ports_of_this_process() {
    let mut bench = Bench::active(3);
    let ask = Smp::directed(Method::Get, Tid(77), attribute::NODE_INFO, 0, &DirectedPath::LOCAL);
    let mut bare = smp(&ask, Lid::PERMISSIVE, Lid::PERMISSIVE);
    let end = bare.len();
    bare[end - 6..].fill(0);
    bench.ends[0].send(bare.len(), |out, _| out.copy_from_slice(&bare)).unwrap();
    bench.step();
    assert_eq!(bench.dropped(1, DropReason::Icrc), 0);
    // By LID to another port, with CRCs again.
    let mut routed = smp(&ask, Lid(11), Lid(13));
    let whole = routed.clone();
    routed[end - 6..].fill(0);
    bench.ends[0].send(routed.len(), |out, _| out.copy_from_slice(&routed)).unwrap();
    bench.step();
    assert_eq!(bench.received(3), [whole]);
}

#[test]
fn multicast_goes_to_the_group_but_not_back() {
    let mut bench = Bench::active(20);
    for (position, mask) in [(0, 0b1110), (1, 0b1)] {
        let mut block = MulticastForwardingBlock::default();
        block.masks[5] = mask;
        assert!(bench.set(MulticastForwardingBlock::modifier(1, position), &block).is_ok());
        let read: MulticastForwardingBlock =
            bench.get(attribute::MULTICAST_FORWARDING, MulticastForwardingBlock::modifier(1, position));
        assert_eq!(read, block);
    }
    let p = data(12, 0xc000 + 32 + 5, 100);
    bench.send(2, &p);
    for port in 1..=20 {
        assert_eq!(bench.received(port).len(), usize::from([1, 3, 16].contains(&port)), "port {port}");
    }
    bench.send(2, &data(12, 0xc000, 100));
    assert_eq!(bench.dropped(2, DropReason::NoRoute), 1);
}

/// What a subnet manager writes of a port that guards its partitions.
fn guarded() -> PortInfo {
    let enforce = PortInfo { pkey_enforce_in: true, pkey_enforce_out: true, ..port_info() };
    PortInfo { filter_raw_in: true, filter_raw_out: true, ..enforce }
}

/// As [`data`], of another partition.
fn of_partition(pkey: u16, slid: u16, dlid: u16) -> Vec<u8> {
    let mut bytes = data(slid, dlid, 64);
    bytes[10..12].copy_from_slice(&pkey.to_be_bytes());
    seal(bytes)
}

/// With right CRCs.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len();
    let icrc = ib_wire::crc::icrc(&bytes[..end - 6]);
    bytes[end - 6..end - 2].copy_from_slice(&icrc);
    let vcrc = ib_wire::crc::vcrc(&bytes[..end - 2]);
    bytes[end - 2..].copy_from_slice(&vcrc);
    bytes
}

#[test]
fn partitions_are_enforced_against_whoever_sends() {
    let mut bench = Bench::active(4);
    // 1 and 2 in partition 5, 2 as a limited member; 3 in partition 6; 4 is not guarded and may forge what it likes.
    for (port, keys) in [(1u8, [0x8005u16, 0]), (2, [0x0005, 0x8007]), (3, [0x8006, 0])] {
        let mut block = PKeyBlock::default();
        block.keys[3] = PKey(keys[0]);
        assert!(bench.set(PKeyBlock::modifier(0, port), &block).is_ok());
        block.keys = [PKey(0); 32];
        block.keys[0] = PKey(keys[1]);
        assert!(bench.set(PKeyBlock::modifier(3, port), &block).is_ok());
        assert_eq!(bench.get::<PKeyBlock>(attribute::PKEY_TABLE, PKeyBlock::modifier(3, port)), block);
        assert!(bench.set(port.into(), &guarded()).is_ok());
    }
    let beyond = PKeyBlock::default();
    assert_eq!(bench.set(PKeyBlock::modifier(4, 1), &beyond), Err(MadStatus::INVALID_FIELD));
    assert_eq!(bench.set(PKeyBlock::modifier(0, 9), &beyond), Err(MadStatus::INVALID_FIELD));
    let mut group = MulticastForwardingBlock::default();
    group.masks[5] = 0b11110;
    assert!(bench.set(MulticastForwardingBlock::modifier(0, 0), &group).is_ok());
    let (inn, out) = (Some(DropReason::PartitionIn), Some(DropReason::PartitionOut));
    let cases = [
        // From the full member to the limited one, and back by its own key.
        (0x8005, 1, 2, None),
        (0x0005, 2, 1, None),
        // A limited member's key reaches no limited one, and does not pass for a full one.
        (0x0005, 4, 2, out),
        (0x8005, 2, 1, inn),
        // Keys that the sender does not have, or nobody.
        (0x8006, 1, 3, inn),
        (0xffff, 1, 2, inn),
        (0x0000, 1, 2, inn),
        (0x8000, 1, 2, inn),
        // Keys that the receiver does not have.
        (0x8005, 4, 3, out),
        (0x8007, 2, 1, out),
        (0x8007, 2, 4, None),
    ];
    for (pkey, from, to, reason) in cases {
        let before = reason.map(|reason| bench.dropped(from, reason));
        bench.send(from, &of_partition(pkey, 10 + from as u16, 10 + to as u16));
        assert_eq!(bench.received(to).len(), usize::from(reason.is_none()), "{pkey:#06x} {from} to {to}");
        let after = reason.map(|reason| bench.dropped(from, reason));
        assert_eq!(after, before.map(|n| n + 1), "{pkey:#06x} {from} to {to}");
    }
    // Multicast: only to those of the partition.
    for (pkey, from, receivers) in [
        (0x8005, 1, &[2, 4][..]),
        (0x0005, 2, &[1, 4]),
        (0x8006, 1, &[]),
        (0x8006, 3, &[4]),
        (0x8006, 4, &[3]),
        (0x8005, 4, &[1, 2]),
        (0x0005, 4, &[1]),
    ] {
        bench.send(from, &of_partition(pkey, 10 + from as u16, 0xc005));
        let got: Vec<usize> = (1..=4).filter(|&port| !bench.received(port).is_empty()).collect();
        assert_eq!(got, receivers, "{pkey:#06x} from {from}");
    }
    // Packets without a P_Key.
    for (lnh, from) in [(0, 1), (1, 1), (0, 4)] {
        let mut raw = data(10 + from as u16, 12, 64);
        raw[1] = raw[1] & 0xfc | lnh;
        bench.send(from, &seal(raw));
        assert!(bench.received(2).is_empty());
    }
    assert_eq!((bench.dropped(1, DropReason::Raw), bench.dropped(4, DropReason::Raw)), (2, 1));
    // The counter in PortInfo, cleared by writing it.
    let violations = |bench: &mut Bench| bench.get::<PortInfo>(attribute::PORT_INFO, 1).pkey_violations;
    assert!(violations(&mut bench) > 0);
    assert!(bench.set(1, &guarded()).is_ok());
    assert_eq!(violations(&mut bench), 0);
    // Management has a lane of its own, and answers from port 0 are looked at as well.
    let ask = Smp::lid_routed(Method::Get, Tid(4), attribute::NODE_INFO, 0);
    bench.send(1, &smp(&ask, Lid(11), Lid(1)));
    assert_eq!(bench.received(1).len(), 1);
    let mad = Mad { peer: MadAddress::gsi(Lid(11), ServiceLevel::new(0)), bytes: Box::new([3; 256]) };
    bench.switch.send_mad(&mad);
    assert!(bench.received(1).is_empty());
    assert_eq!(bench.switch.own_counters().dropped(DropReason::PartitionOut), 1);
    // Off again: everything passes.
    assert!(bench.set(1, &port_info()).is_ok());
    bench.send(1, &of_partition(0x8009, 11, 14));
    assert_eq!(bench.received(4).len(), 1);
}

#[test]
fn every_drop_has_its_reason() {
    let mut bench = Bench::active(3);
    let mut bad = data(11, 12, 64);
    bad[40] ^= 1;
    let mut long = data(11, 12, 64);
    long.push(0);
    let cases: [(Vec<u8>, DropReason); 9] = [
        (bad, DropReason::Vcrc),
        (long, DropReason::Malformed),
        (vec![0; 7], DropReason::Malformed),
        (data(11, 40, 64), DropReason::NoRoute),
        (data(11, 11, 64), DropReason::SamePort),
        (data(11, 1, 64), DropReason::NotForUs),
        (packet(15, 11, Lid::PERMISSIVE, Qpn::SMI, QKey(0), &[0; 256]), DropReason::BadManagement),
        (packet(15, 11, Lid(12), Qpn::new(9), QKey(0), &[0; 256]), DropReason::BadManagement),
        (packet(0, 11, Lid(1), Qpn::GSI, QKey(5), &[0; 256]), DropReason::NotForUs),
    ];
    for (p, reason) in cases {
        let before = bench.dropped(1, reason);
        bench.send(1, &p);
        assert_eq!(bench.dropped(1, reason), before + 1, "{reason:?}");
    }
    assert!(bench.set(2, &PortInfo { neighbor_mtu: Mtu::B256.into(), ..port_info() }).is_ok());
    bench.send(1, &data(11, 12, 2048));
    assert_eq!(bench.dropped(1, DropReason::TooLong), 1);
    // Port 3 starts anew: nothing in, nothing out.
    assert!(bench.set(3, &PortInfo { state: PortState::Down, ..port_info() }).is_ok());
    bench.send(1, &data(11, 13, 64));
    bench.send(3, &data(13, 11, 64));
    assert_eq!(bench.dropped(1, DropReason::EgressState), 1);
    assert_eq!(bench.dropped(3, DropReason::PortState), 1);
    assert!((1..=3).all(|port| bench.received(port).is_empty()));
}

#[test]
fn the_agent_says_what_the_switch_is() {
    let mut bench = Bench::new(2);
    let info: NodeInfo = bench.get(attribute::NODE_INFO, 0);
    assert_eq!(
        (info.node_type, info.num_ports, info.node_guid, info.local_port),
        (NodeType::Switch, 2, GUID, 0)
    );
    let name: ib_wire::smp::NodeDescription = bench.get(attribute::NODE_DESCRIPTION, 0);
    assert_eq!(name.name(), "test switch");
    let guids: ib_wire::smp::GuidBlock = bench.get(attribute::GUID_INFO, 0);
    assert_eq!(guids.guids[0], GUID);
    assert_eq!(bench.get::<PortInfo>(attribute::PORT_INFO, 1).state, PortState::Init);
    let mut keys: PKeyBlock = bench.get(attribute::PKEY_TABLE, 0);
    assert_eq!(keys.keys[0], PKey::DEFAULT);
    keys.keys[1] = PKey(0x8005);
    assert!(bench.set(0, &keys).is_ok());
    assert_eq!(bench.get::<PKeyBlock>(attribute::PKEY_TABLE, 0), keys);
    let switch: SwitchInfo = bench.get(attribute::SWITCH_INFO, 0);
    assert!(switch.port_state_change, "links came up");
    assert!(bench.set(0, &SwitchInfo { linear_top: 100, ..switch }).is_ok());
    let switch: SwitchInfo = bench.get(attribute::SWITCH_INFO, 0);
    assert_eq!((switch.linear_top, switch.port_state_change), (100, false));
}

#[test]
fn bad_requests_get_a_status() {
    let mut bench = Bench::new(1);
    let cases = [
        (Method::Get, attribute::PORT_INFO, 2, MadStatus::INVALID_FIELD),
        (Method::Get, attribute::LINEAR_FORWARDING, 768, MadStatus::INVALID_FIELD),
        (Method::Get, attribute::MULTICAST_FORWARDING, 511, MadStatus::INVALID_FIELD),
        (Method::Get, attribute::VL_ARBITRATION, 0, MadStatus::INVALID_FIELD),
        (Method::Get, 0x7777, 0, MadStatus::UNSUPPORTED_ATTRIBUTE),
        (Method::Set, attribute::NODE_INFO, 0, MadStatus::UNSUPPORTED_ATTRIBUTE),
        (Method::Set, attribute::PORT_INFO, 1, MadStatus::INVALID_FIELD),
    ];
    for (method, id, modifier, status) in cases {
        let answer = bench.ask(Smp::directed(method, Tid(1), id, modifier, &DirectedPath::LOCAL));
        assert_eq!(answer.status(), status, "{method:?} {id:#x} {modifier}");
    }
    let jump = PortInfo { state: PortState::Active, ..port_info() };
    assert_eq!(bench.set(1, &jump), Err(MadStatus::INVALID_FIELD), "Init to Active skips Armed");
    let multicast = PortInfo { lid: Lid(0xc000), ..PortInfo::default() };
    assert_eq!(bench.set(0, &multicast), Err(MadStatus::INVALID_FIELD));
}

#[test]
fn directed_routes_pass_through_and_back() {
    let mut bench = Bench::new(2);
    // From the host behind port 1 through the switch to the one behind port 2.
    let path = DirectedPath::LOCAL.then(1).unwrap().then(2).unwrap();
    let mut request = Smp::directed(Method::Get, Tid(3), attribute::NODE_INFO, 0, &path);
    request.set_hop_pointer(1);
    bench.send(1, &smp(&request, Lid::PERMISSIVE, Lid::PERMISSIVE));
    let out = bench.received(2);
    let arrived = Packet::parse(&out[0]).unwrap();
    assert!(arrived.vcrc_is_right() && arrived.icrc_is_right());
    assert_eq!(arrived.lrh().vl, VirtualLane::MANAGEMENT);
    let mut request = Smp::from_mad(arrived.payload().try_into().unwrap()).unwrap();
    assert_eq!((request.hop_pointer(), request.return_path[1]), (2, 1));
    // The host behind port 2 answers as a channel adapter does.
    let end = ib_wire::smp::step(&mut request, NodeType::ChannelAdapter, ib_wire::smp::Origin::Port(1));
    assert_eq!(end, ib_wire::smp::DirectedStep::Deliver);
    let mut answer = request.answer(MadStatus::OK);
    let out = ib_wire::smp::step(&mut answer, NodeType::ChannelAdapter, ib_wire::smp::Origin::Local);
    assert_eq!(out, ib_wire::smp::DirectedStep::Send(1));
    bench.send(2, &smp(&answer, Lid::PERMISSIVE, Lid::PERMISSIVE));
    let back = bench.received(1);
    let answer = Smp::from_mad(Packet::parse(&back[0]).unwrap().payload().try_into().unwrap()).unwrap();
    assert_eq!((answer.hop_pointer(), answer.is_returning()), (1, true));
    // A port that is not there.
    let path = DirectedPath::LOCAL.then(1).unwrap().then(9).unwrap();
    let mut request = Smp::directed(Method::Get, Tid(3), attribute::NODE_INFO, 0, &path);
    request.set_hop_pointer(1);
    bench.send(1, &smp(&request, Lid::PERMISSIVE, Lid::PERMISSIVE));
    assert_eq!(bench.dropped(1, DropReason::BadRoute), 1);
}

#[test]
fn a_host_asks_the_switch_by_directed_route_and_by_lid() {
    let mut bench = Bench::active(2);
    let path = DirectedPath::LOCAL.then(1).unwrap();
    let mut request = Smp::directed(Method::Get, Tid(3), attribute::NODE_INFO, 0, &path);
    request.set_hop_pointer(1);
    bench.send(1, &smp(&request, Lid::PERMISSIVE, Lid::PERMISSIVE));
    let request = Smp::lid_routed(Method::Get, Tid(4), attribute::NODE_INFO, 0);
    bench.send(1, &smp(&request, Lid(11), Lid(1)));
    let answers = bench.received(1);
    assert_eq!(answers.len(), 2);
    for bytes in &answers {
        let packet = Packet::parse(bytes).unwrap();
        let answer = Smp::from_mad(packet.payload().try_into().unwrap()).unwrap();
        assert_eq!(answer.attribute::<NodeInfo>().unwrap().local_port, 1);
    }
    let by_lid = *Packet::parse(&answers[1]).unwrap().lrh();
    assert_eq!((by_lid.slid, by_lid.dlid), (Lid(1), Lid(11)));
}

#[test]
fn datagrams_for_qp1_go_up_and_answers_go_out() {
    let mut bench = Bench::active(2);
    bench.send(2, &packet(0, 12, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
    let mad = bench.switch.next_mad().expect("for QP1");
    assert_eq!(
        mad.peer,
        MadAddress { qpn: Qpn::new(77), qkey: QKey(0), ..MadAddress::gsi(Lid(12), ServiceLevel::new(0)) }
    );
    assert_eq!(*mad.bytes, [3; 256]);
    bench.switch.send_mad(&Mad { peer: MadAddress::gsi(Lid(12), ServiceLevel::new(0)), bytes: mad.bytes });
    let out = bench.received(2);
    let answer = Packet::parse(&out[0]).unwrap();
    assert_eq!((answer.bth().dest_qpn, answer.lrh().dlid, answer.lrh().slid), (Qpn::GSI, Lid(12), Lid(1)));
    assert_eq!(answer.payload(), [3; 256]);
}

/// The port of the subnet manager has two GIDs; a datagram to any other is somebody else's (IBA 8.3.3).
#[test]
fn datagrams_with_a_grh_are_for_the_switch_or_for_subnet_administration() {
    let mut bench = Bench::active(2);
    let to = |id, prefix| Grh {
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
        sgid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x77)),
        dgid: Gid::new(prefix, id),
    };
    let own = Gid::DEFAULT_PREFIX;
    let port: PortInfo = bench.get(attribute::PORT_INFO, 0);
    assert!(bench.set(0, &PortInfo { gid_prefix: own, state: PortState::NoChange, ..port }).is_ok());
    for (grh, ours) in [
        (to(GUID, own), true),
        (to(Gid::SUBNET_ADMINISTRATION, own), true),
        (to(Guid(0x99), own), false),
        (to(GUID, own + 1), false),
        (to(Gid::SUBNET_ADMINISTRATION, own + 1), false),
    ] {
        bench.send(2, &routed(Some(grh), 0, 12, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
        let arrived = bench.switch.next_mad();
        assert_eq!(arrived.is_some(), ours, "{}", grh.dgid);
        let Some(mad) = arrived else { continue };
        assert_eq!(mad.peer.route.map(|route| route.gid), Some(grh.sgid));
        bench.switch.send_mad(&Mad { peer: mad.peer.reply(), bytes: mad.bytes });
        let answer = bench.received(2);
        let answer = Packet::parse(&answer[0]).unwrap();
        assert_eq!(answer.grh().map(|g| (g.sgid, g.dgid)), Some((Gid::new(own, GUID), grh.sgid)));
    }
    assert_eq!(bench.dropped(2, DropReason::NotForUs), 3);
    // With the subnet manager elsewhere its GUID is not here.
    let port: PortInfo = bench.get(attribute::PORT_INFO, 0);
    assert!(bench.set(0, &PortInfo { sm_lid: Lid(12), state: PortState::NoChange, ..port }).is_ok());
    let to_sa = to(Gid::SUBNET_ADMINISTRATION, own);
    bench.send(2, &routed(Some(to_sa), 0, 12, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
    assert!(bench.switch.next_mad().is_none());
}

#[test]
fn a_link_that_goes_is_told_behind_port_0_and_to_a_manager_elsewhere() {
    let mut bench = Bench::active(2);
    assert!(bench.switch.take_port_change());
    assert!(!bench.switch.take_port_change());
    let own: PortInfo = bench.get(attribute::PORT_INFO, 0);
    assert!(bench.set(0, &PortInfo { sm_lid: Lid(12), state: PortState::NoChange, ..own }).is_ok());
    bench.ends.remove(0);
    bench.step();
    assert!(bench.switch.take_port_change());
    let traps = |bench: &mut Bench| {
        let mut packets = Vec::new();
        bench.ends[0].receive(99, |p| packets.push(p.to_vec()));
        packets
    };
    let out = traps(&mut bench);
    let trap = Smp::from_mad(Packet::parse(&out[0]).unwrap().payload().try_into().unwrap()).unwrap();
    assert_eq!(trap.header.method, Method::Trap);
    assert_eq!(trap.attribute::<ib_wire::sa::Notice>().unwrap().trap_number, 128);
    bench.now += INTERVAL;
    bench.step();
    assert_eq!(traps(&mut bench).len(), 1, "repeated");
    let repress = Smp::lid_routed(Method::TrapRepress, trap.header.tid, attribute::NOTICE, 0);
    let repress = smp(&repress, Lid(12), Lid(1));
    bench.ends[0].send_with(repress.len(), |out| out.copy_from_slice(&repress)).unwrap();
    bench.step();
    bench.now += INTERVAL;
    bench.step();
    assert!(traps(&mut bench).is_empty(), "repressed");
}

#[test]
fn a_slow_receiver_holds_its_sender_back_and_a_dead_one_only_for_a_while() {
    let mut bench = Bench::active(3);
    let p = data(11, 12, 4000);
    let mut sent = 0;
    loop {
        bench.switch.step(bench.now);
        if bench.ends[0].send_with(p.len(), |out| out.copy_from_slice(&p)).is_err() {
            break;
        }
        sent += 1;
        assert!(sent < 10_000, "nothing holds the sender back");
    }
    // Others still get through.
    let q = data(13, 11, 64);
    bench.send(3, &q);
    assert_eq!(bench.received(1), [q]);
    // The receiver takes some: all that was held back follows, nothing is lost.
    let mut got = 0;
    for _ in 0..10 {
        got += bench.received(2).len();
        bench.step();
    }
    got += bench.received(2).len();
    assert_eq!(got, sent);
    assert_eq!(bench.dropped(1, DropReason::HeadOfQueue), 0);
    // It stops for good: after the head-of-queue life time its packets are dropped and the sender goes on.
    while bench.ends[0].send_with(p.len(), |out| out.copy_from_slice(&p)).is_ok() {
        bench.switch.step(bench.now);
    }
    bench.now += HEAD_OF_QUEUE_LIFE;
    bench.step();
    assert!(bench.dropped(1, DropReason::HeadOfQueue) > 50);
    assert!(bench.ends[0].has_room(p.len()));
}

#[test]
fn no_packet_harms_the_switch() {
    let mut bench = Bench::active(4);
    let mut dice = 0x5eed_5eed_5eed_5eedu64;
    let mut roll = move || {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice
    };
    let path = DirectedPath::LOCAL.then(1).unwrap().then(2).unwrap();
    let mut directed = Smp::directed(Method::Set, Tid(3), attribute::PORT_INFO, 2, &path);
    directed.set_hop_pointer(1);
    let by_lid = Smp::lid_routed(Method::Get, Tid(4), attribute::MULTICAST_FORWARDING, 0);
    let seeds = [
        smp(&directed, Lid::PERMISSIVE, Lid::PERMISSIVE),
        smp(&by_lid, Lid(11), Lid(1)),
        packet(0, 12, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]),
        data(11, 0xc000, 300),
        data(11, 12, 300),
    ];
    let mut sent = 0u64;
    for _ in 0..20_000 {
        let mut bytes = seeds[roll() as usize % seeds.len()].clone();
        for _ in 0..roll() % 6 {
            // Mostly the headers, where everything is decided; the length in the LRH stays right.
            let at = roll() as usize % if roll() % 2 == 0 { 100.min(bytes.len()) } else { bytes.len() };
            if !(4..6).contains(&at) {
                bytes[at] = roll() as u8;
            }
        }
        // With right CRCs for what is in them now, most of the time.
        if roll() % 8 != 0 {
            let end = bytes.len();
            let icrc = ib_wire::crc::icrc(&bytes[..end - 6]);
            bytes[end - 6..end - 2].copy_from_slice(&icrc);
            let vcrc = ib_wire::crc::vcrc(&bytes[..end - 2]);
            bytes[end - 2..].copy_from_slice(&vcrc);
        }
        let port = 1 + roll() as usize % 4;
        bench.send(port, &bytes);
        sent += 1;
        while bench.switch.next_mad().is_some() {}
        for at in 1..=4 {
            bench.received(at);
        }
    }
    let received: u64 = bench.switch.ports().map(|p| p.link.rx_packets).sum();
    assert_eq!(received, sent, "all were taken, none is stuck");
    let reasons =
        DropReason::ALL.into_iter().filter(|&r| (1..=4).any(|port| bench.dropped(port, r) > 0)).count();
    assert!(reasons >= 8, "{reasons} reasons");
    // It still works (a hostile Set may have put it anywhere, so from the start).
    assert_eq!(bench.get::<NodeInfo>(attribute::NODE_INFO, 0).node_type, NodeType::Switch);
}
