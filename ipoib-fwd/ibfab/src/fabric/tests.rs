use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use connectx::cable::Faults;
use ib_wire::ipoib::{GroupScope, broadcast_gid, multicast_gid};
use ib_wire::mad::{MAD_LEN, Mad, MadAddress, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::packet::{Bth, Deth, Extended, Headers, Lrh, Opcode, Packet, VirtualLane};
use ib_wire::sa::{JoinState, McMask, McMemberRecord, SaMad};
use ib_wire::smp::{DirectedPath, LinearForwardingBlock, PKeyBlock, Smp, attribute};
use ib_wire::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn, ServiceLevel, Tid};
use pmd::hca::{AsyncEvent, Control, PortNumber, PortState};
use pmd::soft::SoftHca;

use super::*;
use adapter::adapter;

#[path = "../../tests/adapter/mod.rs"]
mod adapter;
mod budget;
mod sources;

const PORT: PortNumber = PortNumber(1);
/// Limit for any wait, on a machine that may be busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// A fabric with software channel adapters.
struct Bench {
    fabric: Fabric,
    adapters: Vec<SoftHca>,
}

impl Bench {
    fn new(adapters: u64, faults: Faults) -> Self {
        Self::with("", adapters, faults)
    }

    /// Creates it with keys of `[fabric]`.
    fn with(keys: &str, adapters: u64, faults: Faults) -> Self {
        let text = format!("[fabric]\n{keys}\n[[switch]]\nname = \"s\"\nports = 8");
        let config = FabricConfig::parse(Path::new("t.toml"), &text).unwrap();
        let mut this = Self {
            fabric: Fabric::new(Instant::now(), &config, 1, Management::Embedded),
            adapters: Vec::new(),
        };
        for n in 1..=adapters {
            let (mut near, far) = CableEnd::pair().unwrap();
            near.inject(faults);
            this.fabric.plug(Place { switch: 0, port: n as u8 }, &format!("p{n}"), near).unwrap();
            this.adapters.push(adapter(n, Some(far)));
        }
        this
    }

    fn turn(&mut self) {
        self.turn_at(Instant::now());
    }

    fn turn_at(&mut self, now: Instant) {
        self.fabric.step(now);
        for hca in &self.adapters {
            hca.engine().lock().step(now);
        }
    }

    fn run(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < DEADLINE, "not done in {DEADLINE:?}");
            self.turn();
        }
    }

    fn all_active(&self) -> bool {
        self.fabric.manager().unwrap().is_up()
            && self.adapters.iter().all(|hca| hca.port(PORT).unwrap().state == PortState::Active)
    }
}

#[test]
fn adapters_are_configured_by_subnet_management_alone() {
    let mut bench = Bench::new(3, Faults::default());
    bench.run(|b| b.all_active());
    let mut lids = vec![bench.fabric.switch().lid()];
    for hca in &bench.adapters {
        let port = hca.port(PORT).unwrap();
        assert_eq!((port.active_mtu, port.sm_lid), (Mtu::B4096, bench.fabric.switch().lid()));
        assert_eq!(hca.gid(PORT, 0).unwrap(), Gid::new(Gid::DEFAULT_PREFIX, port.guid));
        assert_eq!(hca.pkey(PORT, 0).unwrap(), PKey::DEFAULT);
        lids.push(port.lid);
    }
    lids.sort();
    lids.dedup();
    assert!(lids.len() == 4 && !lids.contains(&Lid(0)), "{lids:?}");
    assert!(bench.fabric.switch().ports().all(|p| p.state == ib_wire::smp::PortState::Active));
}

#[test]
fn another_prefix_reaches_every_port_and_nothing_else_changes() {
    let mut bench = Bench::new(3, Faults::default());
    bench.run(|b| b.all_active());
    for hca in &mut bench.adapters {
        while hca.next_event().is_some() {}
    }
    let prefix = 0xfec0_0000_0000_0007;
    let before: Vec<_> = bench.adapters.iter().map(|hca| hca.port(PORT).unwrap()).collect();
    bench.fabric.set_prefix(Instant::now(), prefix);
    bench.run(|b| b.adapters.iter().all(|hca| hca.gid(PORT, 0).unwrap().prefix() == prefix));
    bench.run(|b| b.all_active());
    for (hca, before) in bench.adapters.iter_mut().zip(before) {
        assert_eq!(hca.port(PORT).unwrap(), before);
        assert_eq!(
            std::iter::from_fn(|| hca.next_event()).collect::<Vec<_>>(),
            [AsyncEvent::GidChange(PORT)]
        );
    }
    assert!(bench.fabric.manager().unwrap().ports().all(|(_, gid)| gid.prefix() == prefix));
}

#[test]
fn lost_management_packets_are_sent_again() {
    let mut bench = Bench::new(2, Faults { loss: 0.1, seed: 11, ..Faults::default() });
    bench.run(|b| b.all_active());
}

#[test]
fn an_adapter_that_goes_and_comes_back_is_configured_again() {
    let mut bench = Bench::new(2, Faults::default());
    bench.run(|b| b.all_active());
    bench.adapters.remove(1);
    bench.run(|b| b.fabric.switch().ports().nth(1).unwrap().state == ib_wire::smp::PortState::Down);
    let (near, far) = CableEnd::pair().unwrap();
    bench.fabric.plug(Place { switch: 0, port: 3 }, "p3", near).unwrap();
    bench.adapters.push(adapter(2, Some(far)));
    bench.run(|b| b.all_active());
}

#[test]
fn subnet_administration_answers_over_the_switch() {
    let mut bench = Bench::new(1, Faults::default());
    bench.run(|b| b.all_active());
    let hca = &mut bench.adapters[0];
    let port = hca.port(PORT).unwrap();
    // ClassPortInfo, the simplest query.
    let mut bytes = Box::new([0; MAD_LEN]);
    MadHeader::new(MgmtClass::SubnAdm, 2, Method::Get, Tid(0x77), ib_wire::mad::attribute::CLASS_PORT_INFO)
        .put(&mut bytes);
    let peer = MadAddress::gsi(port.sm_lid, ServiceLevel::new(0));
    hca.send_mad(PORT, &Mad { peer, bytes }).unwrap();
    let mut answer = None;
    bench.run(|b| {
        answer = b.adapters[0].receive_mad(PORT).unwrap();
        answer.is_some()
    });
    let answer = answer.unwrap();
    let header = answer.header();
    assert_eq!((header.method, header.tid.0 as u32, header.status), (Method::GetResp, 0x77, MadStatus::OK));
    assert_eq!(answer.peer.lid, port.sm_lid);
}

#[test]
fn a_host_without_the_m_key_changes_neither_switches_nor_ports() {
    let mut bench = Bench::new(2, Faults::default());
    let (near, mut attacker) = CableEnd::pair().unwrap();
    bench.fabric.plug(Place { switch: 0, port: 3 }, "p3", near).unwrap();
    // The manager discovers nothing at the attacker's port, and tries repeatedly.
    let active = |hca: &SoftHca| hca.port(PORT).unwrap().state == PortState::Active;
    bench.run(|b| b.adapters.iter().all(active));
    let victim = bench.adapters[0].port(PORT).unwrap().lid;
    let switch = bench.fabric.switch().lid();
    let here = DirectedPath::LOCAL.then(1).unwrap();
    let next = here.then(1).unwrap();
    let mut keys = PKeyBlock::default();
    keys.keys[0] = PKey(0x8666);
    let table = LinearForwardingBlock { ports: [3; 64] };
    let set = |id, modifier, path| Smp::directed(Method::Set, Tid(5), id, modifier, path);
    let by_lid = |id, modifier| Smp::lid_routed(Method::Set, Tid(5), id, modifier);
    let port3 = PKeyBlock::modifier(0, 3);
    for (smp, dlid) in [
        (set(attribute::PKEY_TABLE, port3, &here).with(&keys), Lid::PERMISSIVE),
        (by_lid(attribute::PKEY_TABLE, port3).with(&keys), switch),
        (set(attribute::LINEAR_FORWARDING, 0, &here).with(&table), Lid::PERMISSIVE),
        (set(attribute::PKEY_TABLE, 0, &next).with(&keys), Lid::PERMISSIVE),
        (by_lid(attribute::PKEY_TABLE, 0).with(&keys), victim),
    ] {
        let mut smp = smp;
        if smp.is_directed() {
            smp.set_hop_pointer(1);
        }
        send_smp(&mut attacker, &smp, dlid);
    }
    let refused = |b: &Bench| {
        let port = b.fabric.switch().ports().find(|port| port.number.0 == 3).unwrap();
        let adapter = b.adapters[0].engine().lock().counters().drops(connectx::DropReason::MKey);
        (port.switch.dropped(crate::switch::DropReason::MKey), adapter)
    };
    bench.run(|b| refused(b) == (3, 2));
    assert_eq!(bench.adapters[0].pkey(PORT, 0).unwrap(), PKey::DEFAULT);
    // Every host may read everything but the key itself.
    let mut get = Smp::directed(Method::Get, Tid(6), attribute::PORT_INFO, 0, &here);
    get.set_hop_pointer(1);
    send_smp(&mut attacker, &get, Lid::PERMISSIVE);
    let mut shown = None;
    bench.run(|_| {
        attacker.receive(100, |bytes| {
            let smp =
                Packet::parse(bytes).ok().and_then(|p| Smp::from_mad(p.payload().try_into().ok()?).ok());
            shown = smp.filter(|smp| smp.header.tid == Tid(6)).or(shown);
        });
        shown.is_some()
    });
    let shown = shown.unwrap().attribute::<ib_wire::smp::PortInfo>().unwrap();
    assert_eq!((shown.mkey, shown.mkey_protect.get(), shown.mkey_violations), (0, 1, 3));
}

/// Sends a subnet management packet into a cable, from a port without a LID.
fn send_smp(cable: &mut CableEnd, smp: &Smp, dlid: Lid) {
    let bth = Bth {
        opcode: Opcode::UdSendOnly,
        solicited: false,
        migrated: true,
        pkey: PKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: Qpn::SMI,
        ack_request: false,
        psn: Psn::new(0),
    };
    let headers = Headers {
        lrh: Lrh { vl: VirtualLane::MANAGEMENT, sl: ServiceLevel::new(0), dlid, slid: Lid(99) },
        grh: None,
        bth,
        extended: Extended::Deth(Deth { qkey: QKey(0), src_qpn: Qpn::SMI }),
    };
    let bytes = smp.to_bytes();
    let packet = |out: &mut [u8]| headers.write_packet(&bytes[..], out).map(drop).unwrap();
    cable.send_with(headers.packet_len(MAD_LEN), packet).unwrap();
}

#[test]
fn without_a_subnet_manager_one_at_a_link_configures_all_and_hears_of_links_that_go() {
    let config = FabricConfig::parse(Path::new("t.toml"), "[[switch]]\nname = \"s\"\nports = 8").unwrap();
    let now = Instant::now();
    let mut bench = Bench::new(2, Faults::default());
    bench.fabric = Fabric::new(now, &config, 1, Management::Elsewhere);
    bench.adapters.clear();
    for n in 1..=2 {
        let (near, far) = CableEnd::pair().unwrap();
        bench.fabric.plug(Place { switch: 0, port: n as u8 }, &format!("p{n}"), near).unwrap();
        bench.adapters.push(adapter(n, Some(far)));
    }
    let state = |hca: &SoftHca| hca.port(PORT).unwrap().state;
    bench.run(|b| b.adapters.iter().all(|hca| state(hca) == PortState::Init));
    for n in 0..1000 {
        bench.fabric.step(now + Duration::from_millis(n));
        bench.turn();
    }
    assert!(bench.adapters.iter().all(|hca| state(hca) == PortState::Init), "no manager configures them");
    assert!(bench.fabric.manager().is_none() && bench.fabric.switch().lid() == Lid(0));
    // A managed switch is one that has a subnet manager. The other fabric has one, under another name.
    let other = "[[switch]]\nname = \"other\"\nports = 2\n\
        [[link]]\nname = \"trunk\"\nurl = \"shm:/nowhere.sock\"\ntrunk = true";
    let other = FabricConfig::parse(Path::new("t.toml"), other).unwrap();
    let mut manager = Fabric::new(now, &other, 2, Management::Embedded);
    let (near, far) = CableEnd::pair().unwrap();
    bench.fabric.plug(Place { switch: 0, port: 8 }, "trunk", near).unwrap();
    manager.plug(Place { switch: 0, port: 1 }, "trunk", far).unwrap();
    bench.run(|b| {
        manager.step(Instant::now());
        manager.manager().unwrap().is_up() && b.adapters.iter().all(|hca| state(hca) == PortState::Active)
    });
    assert_eq!(manager.manager().unwrap().ports().count(), 4);
    assert_ne!(bench.fabric.switch().lid(), Lid(0));
    // A datagram from one to the other is forwarded by the table that the manager wrote.
    let to = bench.adapters[1].port(PORT).unwrap().lid;
    let mut bytes = Box::new([0; MAD_LEN]);
    MadHeader::new(MgmtClass::SubnAdm, 2, Method::Get, Tid(0x42), 1).put(&mut bytes);
    let peer = MadAddress::gsi(to, ServiceLevel::new(0));
    bench.adapters[0].send_mad(PORT, &Mad { peer, bytes }).unwrap();
    bench.run(|b| b.adapters[1].receive_mad(PORT).unwrap().is_some_and(|mad| mad.header().tid == Tid(0x42)));
    // One goes down: the switch sends trap 128, long before the next sweep is due.
    let traps = manager.manager().unwrap().counters().traps;
    bench.adapters.pop();
    bench.run(|_| {
        manager.step(Instant::now());
        manager.manager().unwrap().counters().traps > traps && manager.manager().unwrap().ports().count() == 3
    });
    // Another manager replaces it and does not know its keys: it configures the ports with these keys when
    // their lease is over.
    let mut now = Instant::now();
    let before = bench.adapters[0].port(PORT).unwrap();
    let mut manager = Fabric::new(now, &other, 3, Management::Embedded);
    let (near, far) = CableEnd::pair().unwrap();
    bench.fabric.plug(Place { switch: 0, port: 8 }, "trunk", near).unwrap();
    manager.plug(Place { switch: 0, port: 1 }, "trunk", far).unwrap();
    let prefix = 0xfec0_0000_0000_0007;
    manager.set_prefix(now, prefix);
    let end = now + Duration::from_secs(60);
    while bench.adapters[0].gid(PORT, 0).unwrap().prefix() != prefix || !manager.manager().unwrap().is_up() {
        now += Duration::from_millis(5);
        assert!(now < end, "not configured within 60 s of the test's clock");
        manager.step(now);
        bench.turn_at(now);
    }
    let after = bench.adapters[0].port(PORT).unwrap();
    assert_eq!((after.state, after.guid), (PortState::Active, before.guid));
    assert_eq!(manager.manager().unwrap().ports().count(), 3);
}

#[test]
fn a_host_cannot_give_a_switch_a_key_before_the_first_sweep() {
    let config = FabricConfig::parse(Path::new("t.toml"), "[[switch]]\nname = \"s\"\nports = 8").unwrap();
    let mut fabric = Fabric::new(Instant::now(), &config, 1, Management::Embedded);
    let (near, mut attacker) = CableEnd::pair().unwrap();
    fabric.plug(Place { switch: 0, port: 3 }, "p3", near).unwrap();
    attacker.poll(Instant::now());
    let here = DirectedPath::LOCAL.then(1).unwrap();
    let info = ib_wire::smp::PortInfo { mkey: 0x42, lid: Lid(7), ..Default::default() };
    let mut smp = Smp::directed(Method::Set, Tid(5), attribute::PORT_INFO, 0, &here).with(&info);
    smp.set_hop_pointer(1);
    send_smp(&mut attacker, &smp, Lid::PERMISSIVE);
    let mut bench = Bench { fabric, adapters: vec![] };
    let refused = |b: &Bench| {
        let port = b.fabric.switch().ports().find(|port| port.number.0 == 3).unwrap();
        port.switch.dropped(crate::switch::DropReason::MKey)
    };
    bench.turn();
    assert_eq!(refused(&bench), 1);
    bench.run(|b| b.fabric.manager().unwrap().counters().sweeps > 0);
    assert_eq!(bench.fabric.switch().lid(), Lid(1));
}

#[test]
fn a_healthy_fabric_is_swept_once() {
    let mut bench = Bench::new(3, Faults::default());
    bench.run(|b| b.all_active());
    let mut now = Instant::now();
    let counters = *bench.fabric.manager().unwrap().counters();
    for _ in 0..6000 {
        now += Duration::from_millis(5);
        bench.turn_at(now);
    }
    assert!(bench.all_active());
    let after = *bench.fabric.manager().unwrap().counters();
    assert_eq!((after.sweeps, after.found_changed), (counters.sweeps, counters.found_changed));
    assert_eq!(after.smp_lost, counters.smp_lost);
}

/// Groups that an IPoIB link joins at its start: the broadcast group and twelve link-local ones.
fn groups_of_a_segment(pkey: PKey) -> Vec<Gid> {
    let scope = GroupScope::new(2);
    let link_local =
        (1..=12).map(|n| multicast_gid(Ipv4Addr::new(224, 0, 0, n).into(), pkey, scope).unwrap());
    std::iter::once(broadcast_gid(pkey, scope)).chain(link_local).collect()
}

#[test]
fn as_many_segments_as_a_gateway_has_join_all_their_groups() {
    const SEGMENTS: u16 = 128;
    let mut text = "[[switch]]\nname = \"s\"\nports = 2\n".to_owned();
    for n in 1..SEGMENTS {
        text += &format!("[[partition]]\nname = \"p{n}\"\npkey = {}\nmembers = [\"all\"]\n", 0x8000 | n);
    }
    let config = FabricConfig::parse(Path::new("t.toml"), &text).unwrap();
    let mut fabric = Fabric::new(Instant::now(), &config, 1, Management::Embedded);
    let (near, far) = CableEnd::pair().unwrap();
    fabric.plug(Place { switch: 0, port: 1 }, "p1", near).unwrap();
    let mut bench = Bench { fabric, adapters: vec![adapter(1, Some(far))] };
    bench.run(|b| b.all_active());
    let port = bench.adapters[0].port(PORT).unwrap();
    let port_gid = bench.adapters[0].gid(PORT, 0).unwrap();
    let mask = McMask::MGID
        | McMask::PORT_GID
        | McMask::JOIN_STATE
        | McMask::QKEY
        | McMask::TRAFFIC_CLASS
        | McMask::PKEY
        | McMask::SL
        | McMask::FLOW_LABEL;
    let pkeys = (0..SEGMENTS).map(|n| if n == 0 { PKey::DEFAULT } else { PKey(0x8000 | n) });
    let wanted: Vec<(PKey, Gid)> =
        pkeys.flat_map(|pkey| groups_of_a_segment(pkey).into_iter().map(move |mgid| (pkey, mgid))).collect();
    assert_eq!(wanted.len(), 1664);
    let mut lids = std::collections::BTreeSet::new();
    for (n, &(pkey, mgid)) in wanted.iter().enumerate() {
        let record = McMemberRecord {
            mgid,
            port_gid,
            join_state: JoinState::FULL_MEMBER,
            qkey: QKey(0xb1b),
            pkey,
            ..McMemberRecord::default()
        };
        let tid = Tid(0x1_0000 + n as u64);
        let bytes = SaMad::request(Method::Set, tid, mask.bits(), &record).to_bytes();
        let peer = MadAddress::gsi(port.sm_lid, ServiceLevel::new(0));
        bench.adapters[0].send_mad(PORT, &Mad { peer, bytes }).unwrap();
        let mut answer = None;
        bench.run(|b| {
            answer = b.adapters[0].receive_mad(PORT).unwrap();
            answer.is_some()
        });
        let answer = SaMad::parse(&answer.unwrap().bytes);
        assert_eq!(answer.header.status, MadStatus::OK, "group {n}");
        lids.insert(answer.record::<McMemberRecord>().unwrap().mlid);
    }
    assert_eq!(lids.len(), wanted.len(), "each group has a LID of its own");
    // The switch's tables have all of them: nothing is refused, and nothing remains to be written.
    bench.run(|b| b.all_active());
    let counters = *bench.fabric.manager().unwrap().counters();
    assert_eq!((counters.smp_refused, counters.groups_left_out, counters.sa_refused), (0, 0, 0));
}

#[test]
fn trunks_that_cannot_all_be_plugged_in_leave_everything_as_it_was() {
    let text = "[[switch]]\nname = \"a\"\nports = 4\n[[switch]]\nname = \"b\"\nports = 4\n\
                [[trunk]]\nbetween = [\"a\", \"b\"]";
    let config = FabricConfig::parse(Path::new("t.toml"), text).unwrap();
    let mut fabric = Fabric::new(Instant::now(), &config, 1, Management::Embedded);
    let trunk = |port, up| TrunkConfig {
        ends: [0, 1].map(|switch| Place { switch, port }),
        names: ["near", "far"].map(str::to_owned),
        up,
    };
    let up = |fabric: &mut Fabric| {
        fabric.step(Instant::now());
        let ports = fabric.switch().ports().filter(|p| p.state != ib_wire::smp::PortState::Down);
        ports.map(|port| port.number.0).collect::<Vec<u8>>()
    };
    fabric.set_trunks(&[trunk(1, true)], || None).unwrap();
    assert_eq!(up(&mut fabric), [1]);
    // The switches have no port 9.
    let wrong = fabric.set_trunks(&[trunk(1, false), trunk(2, true), trunk(9, true)], || None);
    assert!(matches!(wrong, Err(TrunkError::Port(NoSuchPort(9)))));
    assert_eq!(up(&mut fabric), [1]);
    fabric.set_trunks(&[trunk(1, false), trunk(2, true)], || None).unwrap();
    assert_eq!(up(&mut fabric), [2]);
}

/// Measurements that an idle machine must pass.
mod timing {
    use super::*;

    #[test]
    #[ignore = "timing: measured by scripts/test --full timing"]
    fn a_fabric_is_configured_and_renamed_within_a_second() {
        const LIMIT: Duration = Duration::from_secs(1);
        let mut bench = Bench::new(3, Faults::default());
        let begin = Instant::now();
        bench.run(|b| b.all_active());
        assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
        let prefix = 0xfec0_0000_0000_0007;
        let begin = Instant::now();
        bench.fabric.set_prefix(begin, prefix);
        bench.run(|b| b.adapters.iter().all(|hca| hca.gid(PORT, 0).unwrap().prefix() == prefix));
        assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    }
}

#[test]
fn answers_that_came_while_the_process_stood_still_are_not_late() {
    let mut bench = Bench::new(2, Faults::default());
    bench.run(|b| b.all_active());
    let counters = |b: &Bench| *b.fabric.manager().unwrap().counters();
    let before = counters(&bench);
    let mut now = Instant::now();
    bench.fabric.manager.as_mut().unwrap().handle_port_change(now);
    while counters(&bench).sweeps == before.sweeps {
        // Longer than the timeout of an answer.
        now += Duration::from_millis(300);
        bench.turn_at(now);
    }
    assert_eq!(counters(&bench).unasked, before.unasked, "no request was repeated");
}
