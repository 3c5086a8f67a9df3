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

mod agent;
mod full;
mod management;
mod partitions;

const GUID: Guid = Guid(0x0002_c900_0000_0001);

/// A switch, and the far ends of its links under the test's control.
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

    /// Sends a directed-route request of zero hops from behind port 0; returns the answer.
    fn query(&mut self, smp: Smp) -> Smp {
        self.switch.send_mad(&smp.to_mad(Lid::PERMISSIVE));
        Smp::from_mad(&self.switch.next_mad().expect("an answer").bytes).unwrap()
    }

    fn get<A: ib_wire::smp::Attribute>(&mut self, id: u16, modifier: u32) -> A {
        let tid = self.next_tid();
        let answer = self.query(Smp::directed(Method::Get, tid, id, modifier, &DirectedPath::LOCAL));
        assert_eq!((answer.status(), answer.header.method), (MadStatus::OK, Method::GetResp));
        answer.attribute().unwrap()
    }

    fn set<A: ib_wire::smp::Attribute>(&mut self, modifier: u32, to: &A) -> Result<(), MadStatus> {
        let tid = self.next_tid();
        let smp = Smp::directed(Method::Set, tid, A::ID, modifier, &DirectedPath::LOCAL).with(to);
        let answer = self.query(smp);
        assert_eq!(answer.header.tid, tid);
        if answer.status().is_ok() { Ok(()) } else { Err(answer.status()) }
    }

    fn next_tid(&mut self) -> Tid {
        self.tid += 1;
        Tid(self.tid)
    }

    /// Sends by the link behind port `from` and runs the switch.
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

/// Returns the settings that a subnet manager writes to an external port.
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
    // The variant CRC is valid; the receiver checks the invariant one.
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
    // A packet that a link damaged is dropped and counted at its ingress.
    p[40] ^= 1;
    bench.send(1, &p);
    assert!(bench.received(3).is_empty());
    assert_eq!(bench.dropped(1, DropReason::Vcrc), 1);
}

#[test]
fn management_packets_need_no_crcs_between_ports_of_this_process() {
    let mut bench = Bench::active(3);
    let query = Smp::directed(Method::Get, Tid(77), attribute::NODE_INFO, 0, &DirectedPath::LOCAL);
    let mut bare = smp(&query, Lid::PERMISSIVE, Lid::PERMISSIVE);
    let end = bare.len();
    bare[end - 6..].fill(0);
    bench.ends[0].send(bare.len(), |out, _| out.copy_from_slice(&bare)).unwrap();
    bench.step();
    assert_eq!(bench.dropped(1, DropReason::Icrc), 0);
    // By LID to another port, with CRCs again.
    let mut routed = smp(&query, Lid(11), Lid(13));
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

#[test]
fn every_drop_has_a_reason() {
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
    // Port 3 restarts: nothing enters or leaves.
    assert!(bench.set(3, &PortInfo { state: PortState::Down, ..port_info() }).is_ok());
    bench.send(1, &data(11, 13, 64));
    bench.send(3, &data(13, 11, 64));
    assert_eq!(bench.dropped(1, DropReason::EgressState), 1);
    assert_eq!(bench.dropped(3, DropReason::PortState), 1);
    assert!((1..=3).all(|port| bench.received(port).is_empty()));
}

#[test]
fn a_link_change_is_reported_behind_port_0_and_to_a_manager_elsewhere() {
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
    // Other traffic still passes.
    let q = data(13, 11, 64);
    bench.send(3, &q);
    assert_eq!(bench.received(1), [q]);
    // The receiver accepts some packets: all held-back packets follow, nothing is lost.
    let mut got = 0;
    for _ in 0..10 {
        got += bench.received(2).len();
        bench.step();
    }
    got += bench.received(2).len();
    assert_eq!(got, sent);
    assert_eq!(bench.dropped(1, DropReason::HeadOfQueue), 0);
    // It stops for good: after the head-of-queue life time its packets are dropped and the sender continues.
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
            // Mostly the headers, which determine the result; the length in the LRH remains valid.
            let at = roll() as usize % if roll() % 2 == 0 { 100.min(bytes.len()) } else { bytes.len() };
            if !(4..6).contains(&at) {
                bytes[at] = roll() as u8;
            }
        }
        // Usually with CRCs that match the changed packet.
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
    // It still works. A hostile Set may have changed any setting, so the check starts over.
    assert_eq!(bench.get::<NodeInfo>(attribute::NODE_INFO, 0).node_type, NodeType::Switch);
}
