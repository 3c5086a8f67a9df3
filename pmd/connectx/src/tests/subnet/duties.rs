//! Duties of an agent towards its subnet manager: it protects the port, reports changes, and leaves queries
//! for another manager to one behind the port.

use std::time::Duration;

use ib_wire::mad::MadHeader;
use ib_wire::sa::{Notice, trap};
use ib_wire::smp::{
    ArbitrationEntry, ArbitrationTables, Capabilities, LaneMap, NodeType, SmInfo, VlArbitrationBlock,
};

use super::*;
use crate::tests::rig::{Memory, Pair};
use crate::{MKeyCheck, QpKind};
use hca::QpTransition;

impl Manager {
    /// The packets received, each a subnet management packet, with their LIDs.
    fn heard(&mut self) -> Vec<(Lid, Lid, Smp)> {
        let mut heard = Vec::new();
        self.cable.receive(100, |bytes| {
            let packet = Packet::parse(bytes).unwrap();
            let lrh = packet.lrh();
            heard.push((lrh.slid, lrh.dlid, Smp::from_mad(packet.payload().try_into().unwrap()).unwrap()));
        });
        heard
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        while self.host.engine.step(self.now) {}
    }

    /// Numbers of the traps received in one second.
    fn wait_and_hear(&mut self) -> Vec<u16> {
        self.wait(1);
        let number = |smp: &Smp| smp.attribute::<Notice>().map(|notice| notice.trap_number);
        self.heard().iter().filter_map(|(.., smp)| number(smp)).collect()
    }

    fn by_lid(&mut self, smp: &Smp) {
        self.put(&headers(15, Lid(0x21), Lid(1), Qpn::SMI), &smp.to_bytes()[..]);
    }
}

#[test]
fn a_manager_without_the_key_changes_nothing_until_the_lease_expires() {
    let mut m = Manager::new();
    m.bring_up();
    let info = PortInfo { state: Wire::NoChange, mkey: 7, mkey_lease: 10, ..m.get() };
    let protected = {
        let mut data = [0; 64];
        info.to_data(&mut data);
        data[34] |= 0b1000_0000;
        PortInfo::from_data(&data)
    };
    assert_eq!(m.set(&protected), MadStatus::OK);
    let get = Manager::request(Method::Get, attribute::PORT_INFO, 0);
    let set = Manager::request(Method::Set, attribute::PORT_INFO, 0);
    let stolen = set.with(&PortInfo { lid: Lid(0x99), mkey: 0, ..info });
    assert!(m.ask(&stolen).is_none() && m.ask(&get).is_none());
    assert_eq!(m.host.drops(DropReason::MKey), 2);
    assert_eq!(m.host.engine.port_attributes(PORT).unwrap().lid, Lid(0x21));
    let owner = |smp: Smp| Smp { mkey: 7, ..smp };
    let seen = m.ask(&owner(get)).unwrap().attribute::<PortInfo>().unwrap();
    assert_eq!((seen.mkey, seen.mkey_lease, seen.mkey_violations), (7, 10, 2));
    // The host itself may have to prove that it knows the key, or not.
    let own = Smp::lid_routed(Method::Get, Tid(1), attribute::NODE_INFO, 0).to_bytes();
    assert!(m.host.engine.management(PORT, &own, MKeyCheck::Due).is_none());
    assert!(m.host.engine.management(PORT, &own, MKeyCheck::Waived).is_some());
    m.wait(1);
    m.wait(11);
    let shown = m.ask(&get).unwrap().attribute::<PortInfo>().unwrap();
    assert_eq!(shown.mkey, 7, "its owner was absent for ten seconds");
    assert!(m.ask(&stolen).is_none());
    assert_eq!(m.ask(&owner(stolen)).unwrap().status(), MadStatus::OK);
}

#[test]
fn the_host_itself_writes_nothing_without_the_key() {
    let mut m = Manager::new();
    m.bring_up();
    let guarded = PortInfo { state: Wire::NoChange, mkey: 7, ..m.get() };
    assert_eq!(m.set(&guarded), MadStatus::OK);
    let keys = m.get::<PKeyBlock>();
    let mut more = keys;
    more.keys[5] = PKey(0x8005);
    let mut set = Smp::lid_routed(Method::Set, Tid(1), attribute::PKEY_TABLE, 0).with(&more);
    for check in [MKeyCheck::Due, MKeyCheck::Waived] {
        assert!(m.host.engine.management(PORT, &set.to_bytes(), check).is_none());
    }
    assert_eq!(m.get::<PKeyBlock>(), keys);
    set.mkey = 7;
    assert!(m.host.engine.management(PORT, &set.to_bytes(), MKeyCheck::Waived).is_some());
    assert_eq!(m.get::<PKeyBlock>(), more);
}

#[test]
fn a_port_without_its_link_forgets_the_key() {
    let mut m = Manager::new();
    m.bring_up();
    let wanted = PortInfo { state: Wire::NoChange, mkey: 7, ..m.get() };
    assert_eq!(m.set(&wanted), MadStatus::OK);
    let set = Manager::request(Method::Set, attribute::PORT_INFO, 0).with(&wanted);
    assert!(m.ask(&set).is_none());
    let (ours, theirs) = CableEnd::pair().unwrap();
    m.cable = ours;
    m.wait(1);
    m.host.engine.set_cable(PORT, Some(theirs)).unwrap();
    m.wait(1);
    assert_eq!(m.set(&PortInfo { mkey: 8, ..wanted }), MadStatus::OK, "another subnet manager configures it");
    assert!(m.ask(&Smp { mkey: 7, ..set }).is_none());
}

#[test]
fn a_request_with_a_wrong_key_raises_trap_256() {
    let mut m = Manager::new();
    m.bring_up();
    let mut data = [0; 64];
    PortInfo { state: Wire::NoChange, mkey: 7, ..m.get() }.to_data(&mut data);
    data[34] |= 0b1000_0000;
    assert_eq!(m.set(&PortInfo::from_data(&data)), MadStatus::OK);
    let mut wrong = Manager::request(Method::Set, attribute::PKEY_TABLE, 3);
    wrong.mkey = 8;
    wrong.set_hop_pointer(1);
    m.put(&headers(15, Lid::PERMISSIVE, Lid::PERMISSIVE, Qpn::SMI), &wrong.to_bytes()[..]);
    m.wait(0);
    let (slid, dlid, raised) = m.heard()[0];
    assert_eq!((slid, dlid, raised.header.method), (Lid(0x21), Lid(1), Method::Trap));
    // The return path has the port that received the packet.
    wrong.return_path[1] = 1;
    assert_eq!(
        raised.attribute(),
        Some(Notice::bad_mkey(NodeType::ChannelAdapter, Lid(0x21), Lid::PERMISSIVE, &wrong))
    );
    // Another trap while this one is pending, and a thousand more violations, displace none.
    m.host.engine.set_description("another".to_owned());
    for _ in 0..1000 {
        let wrong = Smp { mkey: 9, ..Smp::lid_routed(Method::Get, Tid(1), attribute::NODE_INFO, 0) };
        m.by_lid(&wrong);
        m.heard();
    }
    let mut numbers = m.wait_and_hear();
    numbers.extend(m.wait_and_hear());
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, [trap::CAPABILITY_CHANGE, trap::BAD_MKEY]);
    // A repress without the key has no effect and raises no trap.
    let mut heard = raised;
    heard.header.method = Method::TrapRepress;
    heard.mkey = 0;
    m.by_lid(&heard);
    m.heard();
    assert_eq!(m.host.drops(DropReason::MKey), 1002);
    assert!(m.wait_and_hear().contains(&trap::BAD_MKEY));
    m.by_lid(&Smp { mkey: 7, ..heard });
    m.heard();
    assert!(!m.wait_and_hear().contains(&trap::BAD_MKEY));
    // The next violation raises a trap with the LID that it came from; a request of the host itself, with its
    // own LID.
    m.by_lid(&Smp { mkey: 9, ..Smp::lid_routed(Method::Get, Tid(1), attribute::NODE_INFO, 5) });
    m.wait(0);
    let heard = m.heard()[0].2;
    let question = Smp { mkey: 9, ..Smp::lid_routed(Method::Get, Tid(1), attribute::NODE_INFO, 5) };
    assert_eq!(
        heard.attribute(),
        Some(Notice::bad_mkey(NodeType::ChannelAdapter, Lid(0x21), Lid(1), &question))
    );
    m.by_lid(&Smp {
        mkey: 7,
        ..Smp { header: MadHeader { method: Method::TrapRepress, ..heard.header }, ..heard }
    });
    assert!(m.host.engine.management(PORT, &question.to_bytes(), MKeyCheck::Due).is_none());
    m.wait(0);
    let (.., heard) = m.heard()[0];
    assert_eq!(
        heard.attribute(),
        Some(Notice::bad_mkey(NodeType::ChannelAdapter, Lid(0x21), Lid(0x21), &question))
    );
}

#[test]
fn lanes_are_kept_and_a_service_level_without_one_sends_nothing() {
    let mut m = Manager::new();
    m.bring_up();
    assert_eq!(m.get::<PortInfo>().vl_arb_high_cap, ArbitrationTables::CAP);
    let mut block = VlArbitrationBlock::default();
    block.entries[0] = ArbitrationEntry { lane: VirtualLane::new(0), weight: 9 };
    let ask =
        |method, number: u32| Manager::request(method, attribute::VL_ARBITRATION, number << 16).with(&block);
    assert_eq!(m.ask(&ask(Method::Set, 3)).unwrap().status(), MadStatus::OK);
    assert_eq!(m.ask(&ask(Method::Get, 3)).unwrap().attribute(), Some(block));
    assert_eq!(m.ask(&ask(Method::Get, 1)).unwrap().attribute(), Some(VlArbitrationBlock::default()));
    for number in [0, 5] {
        assert_eq!(m.ask(&ask(Method::Set, number)).unwrap().status(), MadStatus::INVALID_FIELD);
    }
    let mut qp = m.host.ud(3, 1);
    let (memory, key) = m.host.memory(64);
    let mut send = |m: &mut Manager| {
        let to = To { lid: Lid(2), qpn: Qpn::new(0x77), qkey: 3, grh: None };
        m.host.send_ud(&mut qp, &to, &[data(32, key, memory.address())]);
        m.wait(0);
        let mut packets = 0;
        m.cable.receive(10, |_| packets += 1);
        packets
    };
    assert_eq!(send(&mut m), 1);
    let mut map = LaneMap::default();
    map.lanes[0] = VirtualLane::MANAGEMENT;
    assert_eq!(m.set(&map), MadStatus::OK);
    assert_eq!(m.get::<LaneMap>(), map);
    assert_eq!((send(&mut m), m.host.drops(DropReason::ServiceLevel)), (0, 1));
    assert_eq!(m.set(&LaneMap::default()), MadStatus::OK);
    assert_eq!(send(&mut m), 1);
}

#[test]
fn changes_raise_trap_144_until_it_is_repressed() {
    let mut m = Manager::new();
    let capabilities = m.get::<PortInfo>().capabilities;
    assert!(capabilities.contains(Capabilities::TRAP | Capabilities::CAPABILITY_NOTICE));
    // No subnet manager is known yet.
    m.host.engine.set_capabilities(PORT, Capabilities::SM, Capabilities::all()).unwrap();
    m.wait(1);
    assert!(m.heard().is_empty());
    m.bring_up();
    m.wait(1);
    assert!(m.heard().is_empty());
    m.host.engine.set_capabilities(PORT, Capabilities::SM, Capabilities::all()).unwrap();
    m.wait(1);
    assert!(m.heard().is_empty(), "nothing changed");
    m.host.engine.set_capabilities(PORT, Capabilities::SM, Capabilities::empty()).unwrap();
    let mut raised = Vec::new();
    for _ in 0..8 {
        m.wait(1);
        raised.append(&mut m.heard());
    }
    assert_eq!(raised.len(), 4, "and then it gives up");
    assert_eq!(m.get::<PortInfo>().capabilities, capabilities);
    let (slid, dlid, smp) = raised[0];
    assert_eq!((slid, dlid, smp.header.method), (Lid(0x21), Lid(1), Method::Trap));
    assert!(raised.iter().all(|(.., again)| *again == smp));
    let notice = smp.attribute::<Notice>().unwrap();
    assert_eq!(notice.trap_number, trap::CAPABILITY_CHANGE);
    assert_eq!(notice, Notice::capability_change(Lid(0x21), capabilities));
    m.host.engine.set_description("another".to_owned());
    m.wait(0);
    let (.., smp) = m.heard()[0];
    assert_eq!(smp.attribute(), Some(Notice::description_change(Lid(0x21), capabilities)));
    assert_eq!(m.get::<NodeDescription>().name(), "another");
    let mut heard = smp;
    heard.header.method = Method::TrapRepress;
    m.by_lid(&heard);
    m.wait(5);
    assert!(m.heard().is_empty());
    // A second repress has no trap left to end.
    m.by_lid(&heard);
    assert_eq!(m.host.drops(DropReason::NoQueuePair), 0);
}

/// A queue pair 0 with buffers for three packets.
fn smi(m: &mut Manager) -> (Pair, Memory) {
    let mut qp = m.host.qp(QpKind::Smi, 8, None, 4);
    for to in [
        QpTransition::UdToInit { pkey_index: 0, qkey: QKey(0) },
        QpTransition::UdToReceive,
        QpTransition::UdToSend { sq_psn: Psn::new(0) },
    ] {
        m.host.engine.modify_qp(qp.qpn, &to).unwrap();
    }
    let (memory, key) = m.host.memory(3 * 512);
    for n in 0..3 {
        m.host.receive(&mut qp, &[data(512, key, memory.address() + n * 512)]);
    }
    (qp, memory)
}

#[test]
fn the_host_does_not_see_the_key_in_a_repress_of_a_trap_of_its_own() {
    let mut m = Manager::new();
    m.bring_up();
    let guarded = PortInfo { state: Wire::NoChange, mkey: 7, ..m.get() };
    assert_eq!(m.set(&guarded), MadStatus::OK);
    let (_qp, memory) = smi(&mut m);
    let mut repress = Notice::link_state_change(Lid(0x21)).to_trap(Tid(0x666));
    repress.header.method = Method::TrapRepress;
    repress.mkey = 7;
    m.by_lid(&repress);
    // For comparison, a packet for queue pair 0 takes the first buffer.
    let answer = Smp::lid_routed(Method::GetResp, Tid(0x55), PortInfo::ID, 0);
    m.by_lid(&answer);
    assert_eq!(Smp::from_mad(memory.get(40, 256)[..].try_into().unwrap()), Ok(answer));
    assert_eq!(memory.get(512 + 40, 256), vec![0; 256]);
}

#[test]
fn a_manager_behind_the_port_is_asked_for_itself_and_hears_its_own_port() {
    let mut m = Manager::new();
    m.bring_up();
    let question = Smp::lid_routed(Method::Get, Tid(9), SmInfo::ID, 0);
    m.by_lid(&question);
    assert_eq!(m.heard()[0].2.status(), MadStatus::UNSUPPORTED_ATTRIBUTE, "there is none");
    let (mut qp, memory) = smi(&mut m);
    let arrived = |n: usize| Smp::from_mad(memory.get(n * 512 + 40, 256)[..].try_into().unwrap()).unwrap();
    m.host.engine.set_capabilities(PORT, Capabilities::SM, Capabilities::SM).unwrap();
    m.by_lid(&question);
    assert_eq!(arrived(0).header, question.header);
    // The trap about the change goes to the manager that the port knows, which shall be this one.
    m.wait(0);
    assert_eq!(m.heard().len(), 1);
    let info = PortInfo { sm_lid: Lid(0x21), state: Wire::NoChange, ..m.get() };
    assert_eq!(m.set(&info), MadStatus::OK);
    m.wait(1);
    m.wait(0);
    assert!(m.heard().is_empty());
    assert_eq!(arrived(1).header.method, Method::Trap);
    // A request to its own port does not use the cable.
    let mut mad = [0; 256];
    Smp::lid_routed(Method::Get, Tid(0x55), PortInfo::ID, 0).write(&mut mad);
    let (from, from_key) = m.host.memory(256);
    from.put(0, &mad);
    let to = To { lid: Lid(0x21), qpn: Qpn::SMI, qkey: 0, grh: None };
    m.host.send_ud(&mut qp, &to, &[data(256, from_key, from.address())]);
    m.wait(0);
    assert!(m.heard().is_empty());
    let answer = arrived(2);
    assert_eq!((answer.header.tid, answer.header.method), (Tid(0x55), Method::GetResp));
    assert_eq!(MadHeader::of(&mad).attribute, answer.header.attribute);
}
