//! A host that sends forged packets with the source LID of another host, and any answers to the subnet
//! manager.

use ib_wire::smp::{DATA_LEN, NodeInfo, NodeType};

use super::*;

/// A request to subnet administration from `slid`, as a packet.
fn sa_packet(request: &SaMad, slid: Lid, dlid: Lid) -> Vec<u8> {
    let bth = Bth {
        opcode: Opcode::UdSendOnly,
        solicited: false,
        migrated: true,
        pkey: PKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: Qpn::GSI,
        ack_request: false,
        psn: Psn::new(0),
    };
    let headers = Headers {
        lrh: Lrh { vl: VirtualLane::new(0), sl: ServiceLevel::new(0), dlid, slid },
        grh: None,
        bth,
        extended: Extended::Deth(Deth { qkey: QKey::GSI, src_qpn: Qpn::GSI }),
    };
    let mut packet = vec![0; headers.packet_len(MAD_LEN)];
    headers.write_packet(&request.to_bytes()[..], &mut packet).unwrap();
    packet
}

/// ICRC and VCRC.
const CRCS_LEN: usize = 6;

/// The host's answer to a query of its NodeInfo.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    Truth,
    Nothing,
    Switch,
    Garbage,
}

/// A host at port 1 that is a member of the broadcast group, and an attacker at port 2.
struct Pair {
    bench: Bench,
    /// The end of the attacker's cable.
    outside: CableEnd,
    /// The end that its adapter's cable leads to.
    inside: CableEnd,
    answer: Answer,
    member: McMemberRecord,
}

const JOIN: McMask = McMask::MGID
    .union(McMask::PORT_GID)
    .union(McMask::JOIN_STATE)
    .union(McMask::QKEY)
    .union(McMask::TRAFFIC_CLASS)
    .union(McMask::PKEY)
    .union(McMask::SL)
    .union(McMask::FLOW_LABEL);

impl Pair {
    fn new() -> Self {
        Self::with("")
    }

    fn with(keys: &str) -> Self {
        let mut bench = Bench::with(keys, 1, Faults::default());
        let (near, outside) = CableEnd::pair().unwrap();
        let (inside, far) = CableEnd::pair().unwrap();
        bench.fabric.plug(Place { switch: 0, port: 2 }, "p2", near).unwrap();
        bench.adapters.push(adapter(2, Some(far)));
        let member = McMemberRecord {
            mgid: broadcast_gid(PKey::DEFAULT, GroupScope::new(2)),
            join_state: JoinState::FULL_MEMBER,
            qkey: QKey(0xb1b),
            pkey: PKey::DEFAULT,
            ..McMemberRecord::default()
        };
        let mut this = Self { bench, outside, inside, answer: Answer::Truth, member };
        this.run(|pair| pair.bench.all_active());
        this.member.port_gid = this.bench.adapters[0].gid(PORT, 0).unwrap();
        let peer = MadAddress::gsi(this.victim().sm_lid, ServiceLevel::new(0));
        let bytes = SaMad::request(Method::Set, Tid(1), JOIN.bits(), &this.member).to_bytes();
        this.bench.adapters[0].send_mad(PORT, &Mad { peer, bytes }).unwrap();
        this.run(|pair| pair.members() == 1);
        this
    }

    fn turn_at(&mut self, now: Instant) {
        let (outside, inside, answer) = (&mut self.outside, &mut self.inside, self.answer);
        outside.receive(32, |p| inside.send_with(p.len(), |out| out.copy_from_slice(p)).unwrap());
        inside.receive(32, |p| {
            let smp = Packet::parse(p).ok().and_then(|p| Smp::from_mad(p.payload().try_into().ok()?).ok());
            let smp = smp.filter(|smp| smp.header.method == Method::GetResp);
            let mut packet = p.to_vec();
            if let Some((mut smp, info)) = smp.and_then(|smp| Some((smp, smp.attribute::<NodeInfo>()?))) {
                match answer {
                    Answer::Truth => {}
                    Answer::Nothing => return,
                    Answer::Switch => smp.set_attribute(&NodeInfo { node_type: NodeType::Switch, ..info }),
                    Answer::Garbage => smp.data = [0; DATA_LEN],
                }
                // CRCs are not checked between ports of one process.
                let start = packet.len() - CRCS_LEN - MAD_LEN;
                packet[start..start + MAD_LEN].copy_from_slice(&smp.to_bytes()[..]);
            }
            outside.send_with(packet.len(), |out| out.copy_from_slice(&packet)).unwrap();
        });
        self.bench.turn_at(now);
    }

    fn run(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < DEADLINE, "not done in {DEADLINE:?}");
            self.turn_at(Instant::now());
        }
    }

    /// Returns the attributes of the first host's port.
    fn victim(&self) -> pmd::hca::PortAttributes {
        self.bench.adapters[0].port(PORT).unwrap()
    }

    fn members(&self) -> usize {
        let mut groups = self.bench.fabric.manager().unwrap().groups();
        groups.find(|group| group.0 == self.member.mgid).unwrap().2
    }

    /// Returns how many of the attacker's packets were dropped for their source LID.
    fn dropped(&self) -> u64 {
        let port = self.bench.fabric.switch().ports().find(|port| port.number.0 == 2).unwrap();
        port.switch.dropped(crate::switch::DropReason::SourceLid)
    }

    fn requests(&self) -> u64 {
        self.bench.fabric.manager().unwrap().counters().sa_requests
    }

    /// Sends a leave in the first host's name from the attacker's port.
    fn forge(&mut self) {
        self.leave_from(self.victim().lid);
    }

    /// Sends a leave of the first host from the attacker's port with this source LID.
    fn leave_from(&mut self, slid: Lid) {
        let leave = SaMad::request(Method::Delete, Tid(2), JOIN.bits(), &self.member);
        let forged = sa_packet(&leave, slid, self.victim().sm_lid);
        self.outside.send_with(forged.len(), |out| out.copy_from_slice(&forged)).unwrap();
        let before = self.dropped() + self.requests();
        self.run(|pair| pair.dropped() + pair.requests() == before + 1);
    }
}

#[test]
fn a_host_with_another_ones_source_lid_does_not_end_its_membership() {
    let mut pair = Pair::new();
    pair.forge();
    assert_eq!((pair.members(), pair.dropped()), (1, 1), "it is still a member");
}

#[test]
fn a_host_that_the_manager_does_not_know_any_more_gets_no_other_source_lid() {
    for answer in [Answer::Nothing, Answer::Switch, Answer::Garbage] {
        let mut pair = Pair::new();
        pair.answer = answer;
        let mut now = Instant::now();
        let end = now + Duration::from_secs(60);
        pair.bench.fabric.manager.as_mut().unwrap().handle_port_change(now);
        while pair.bench.fabric.manager().unwrap().ports().count() > 2 {
            now += Duration::from_millis(5);
            assert!(now < end, "{answer:?}: still known after 60 s of the test's clock");
            pair.turn_at(now);
        }
        pair.forge();
        assert_eq!((pair.members(), pair.dropped()), (1, 1), "{answer:?}");
    }
}

#[test]
fn a_host_sends_from_each_of_its_lids_and_from_no_other() {
    let mut pair = Pair::with("lmc = 2");
    let (own, other) = (pair.bench.adapters[1].port(PORT).unwrap().lid, pair.victim().lid);
    for offset in 0..4 {
        pair.leave_from(Lid(own.0 + offset));
        assert_eq!(pair.dropped(), 0, "its own LID {}", own.0 + offset);
    }
    for offset in 0..4 {
        pair.leave_from(Lid(other.0 + offset));
        assert_eq!(pair.dropped(), u64::from(offset) + 1, "the honest host's LID {}", other.0 + offset);
    }
    assert_eq!(pair.members(), 1, "no host leaves for another one");
}

/// Switches of another owner behind a link with `trunk = true`, with a host that sends forged packets.
struct Far {
    bench: Bench,
    far: Fabric,
    /// The end of the far host's cable, and the one that its adapter's cable leads to.
    outside: CableEnd,
    inside: CableEnd,
}

impl Far {
    fn new() -> Self {
        let own = "[[switch]]\nname = \"own\"\nports = 8\n\
            [[link]]\nname = \"trunk\"\nurl = \"shm:/nowhere.sock\"\ntrunk = true";
        let own = FabricConfig::parse(Path::new("t.toml"), own).unwrap();
        let far = FabricConfig::parse(Path::new("t.toml"), "[[switch]]\nname = \"far\"\nports = 8").unwrap();
        let now = Instant::now();
        let mut bench = Bench::new(1, Faults::default());
        bench.fabric = Fabric::new(now, &own, 1, Management::Embedded);
        bench.adapters.clear();
        let mut far = Fabric::new(now, &far, 2, Management::Elsewhere);
        let (near, end) = CableEnd::pair().unwrap();
        bench.fabric.plug(Place { switch: 0, port: 2 }, "p2", near).unwrap();
        bench.adapters.push(adapter(1, Some(end)));
        let (near, end) = CableEnd::pair().unwrap();
        bench.fabric.plug(Place { switch: 0, port: 1 }, "trunk", near).unwrap();
        far.plug(Place { switch: 0, port: 1 }, "trunk", end).unwrap();
        let (near, outside) = CableEnd::pair().unwrap();
        let (inside, end) = CableEnd::pair().unwrap();
        far.plug(Place { switch: 0, port: 2 }, "p2", near).unwrap();
        bench.adapters.push(adapter(2, Some(end)));
        let mut this = Self { bench, far, outside, inside };
        this.run(|far| far.bench.all_active());
        this
    }

    fn run(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < DEADLINE, "not done in {DEADLINE:?}");
            let Self { outside, inside, .. } = self;
            outside.receive(32, |p| inside.send_with(p.len(), |out| out.copy_from_slice(p)).unwrap());
            inside.receive(32, |p| outside.send_with(p.len(), |out| out.copy_from_slice(p)).unwrap());
            self.far.step(Instant::now());
            self.bench.turn();
        }
    }

    /// Returns the packets that were dropped for their source LID at the trunk, and the requests that reached
    /// subnet administration.
    fn outcome(&self) -> (u64, u64) {
        let fabric = &self.bench.fabric;
        let trunk = fabric.switch().ports().find(|port| port.number.0 == 1).unwrap();
        let dropped = trunk.switch.dropped(crate::switch::DropReason::SourceLid);
        (dropped, fabric.manager().unwrap().counters().sa_requests)
    }
}

#[test]
fn a_host_behind_switches_of_others_does_not_send_as_a_host_of_ours() {
    let mut far = Far::new();
    let port = |far: &Far, n: usize| far.bench.adapters[n].port(PORT).unwrap();
    let (victim, own) = (port(&far, 0), port(&far, 1));
    let query = SaMad::request(Method::Get, Tid(3), 0, &McMemberRecord::default());
    for (slid, refused) in [(victim.lid, true), (victim.sm_lid, true), (own.lid, false)] {
        let before = far.outcome();
        let packet = sa_packet(&query, slid, victim.sm_lid);
        far.outside.send_with(packet.len(), |out| out.copy_from_slice(&packet)).unwrap();
        far.run(|far| far.outcome() != before);
        let (dropped, requests) = (u64::from(refused), u64::from(!refused));
        assert_eq!(far.outcome(), (before.0 + dropped, before.1 + requests), "{slid}");
    }
}
