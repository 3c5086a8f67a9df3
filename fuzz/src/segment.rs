//! The host tables of the control lcore, with hostile hosts on both sides and a hostile subnet
//! administration: ARP, unresolved packets and management datagrams in any order, and time. Tables stay
//! bounded, no queue pair or slot is used twice, and every pending packet is released once.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_wire::ipoib::{AddressFlags, Arp, ArpOperation as InfiniBandOperation, HardwareAddress};
use ib_wire::mad::{MAD_LEN, Mad, MadAddress};
use ib_wire::sa::{LifeTime, McMemberRecord, PathRecord, SaMad, attribute};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Qpn, Rate, ServiceLevel};
use ipoib::link::{Action, ConnKey, LinkIndex, LinkSettings, WorkerIndex, WorkerNote, WorkerSettings};
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::MacAddress;
use ipoib::port::{Facts, Port, PortSettings, WorkerSlots};
use ipoib_fwd::forward::{GatewayAddress, Settings, Side};
use ipoib_fwd::segment::{Ageing, Arrival, Origin, Output, Own, Packet, Segment, SegmentSettings};
use pmd::hca::{PortState, QpTransition, RcSlot, UdSource};

const LINK: LinkIndex = LinkIndex(0);
const OWN_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);
const MANAGER: Lid = Lid(1);
const WORKERS: u8 = 2;
/// Limits of the link, and of pending packets.
const NEIGHBOURS: usize = 8;
const SLOTS: u16 = 4;
const PARKED: usize = 32;
/// Maximum of records of an input.
const RECORDS: usize = 128;

/// A pending packet, with a reference that counts it.
struct Held(Vec<u8>, #[allow(dead_code)] Arc<()>);

impl Packet for Held {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn read(&self, skip: usize, to: &mut [u8]) -> usize {
        let from = self.0.get(skip..).unwrap_or_default();
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        n
    }
}

struct World {
    now: Instant,
    port: Port,
    segment: Segment<Held>,
    /// The newest sent messages.
    sent: VecDeque<Mad>,
    pairs: BTreeMap<ConnKey, Qpn>,
    slots: BTreeMap<(u8, RcSlot), ConnKey>,
    next: u32,
    living: Arc<()>,
}

fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, n)
}

fn mac(n: u8) -> MacAddress {
    match n {
        0xff => MacAddress::BROADCAST,
        n => MacAddress([2, 0, 0, 0, 0, n]),
    }
}

fn gid(n: u8) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(0x1000 + u64::from(n)))
}

fn hardware(n: u8) -> HardwareAddress {
    let flags = if n & 0x80 == 0 { AddressFlags::RC } else { AddressFlags::default() };
    HardwareAddress { flags, qpn: Qpn::new(0x48 + u32::from(n)), gid: gid(n) }
}

impl World {
    fn new() -> Option<Self> {
        let now = Instant::now();
        let node_guid = Guid(0x1000);
        let slots = vec![WorkerSlots { first: 0, count: SLOTS }; WORKERS.into()];
        let mut port = Port::new(&PortSettings { node_guid, workers: slots, seed: 7 }, now);
        let mut settings = LinkSettings::new(PKey::DEFAULT, Qpn::new(0x48), 1);
        settings.workers =
            (0..WORKERS).map(|w| WorkerSettings { ud_qpn: Qpn::new(0x48 + 0x1000 * u32::from(w)) }).collect();
        (settings.max_neighbours, settings.max_passive, settings.max_groups) = (NEIGHBOURS, 3, 3);
        settings.max_passive_from_lid = 2;
        port.add(now, settings).ok()?;
        let facts = Facts {
            state: PortState::Active,
            lid: Lid(2),
            lmc: 0,
            gid: gid(0),
            sm_lid: MANAGER,
            sm_sl: ServiceLevel::new(0),
            mtu: Mtu::B4096,
            grh_required: false,
            pkeys: vec![PKey::DEFAULT],
        };
        port.handle_port(now, facts);
        let mut own = Settings::new(OWN_MAC);
        own.address = GatewayAddress::new(host(254), 24);
        let settings = SegmentSettings {
            own: Own { settings: own, workers: WORKERS },
            ageing: Ageing::default(),
            most_parked: PARKED,
            seed: 3,
        };
        let segment = Segment::new(now, &settings);
        let mut world = Self {
            now,
            port,
            segment,
            sent: VecDeque::new(),
            pairs: BTreeMap::new(),
            slots: BTreeMap::new(),
            next: 0x1_0000,
            living: Arc::new(()),
        };
        world.settle();
        // Join the broadcast group first.
        world.answer(0, &[]);
        world.settle();
        Some(world)
    }

    /// Executes the effects of a call; each worker acts immediately.
    fn settle(&mut self) {
        let now = self.now;
        while let Some((_, action)) = self.port.poll_action(now) {
            self.perform(action);
        }
        while let Some(mad) = self.port.poll_transmit(now) {
            self.sent.push_back(mad);
            if self.sent.len() > 64 {
                self.sent.pop_front();
            }
        }
        while let Some((_, event)) = self.port.poll_event() {
            if let Some(link) = self.port.link_mut(LINK) {
                self.segment.handle_link_event(now, link, &event);
            }
        }
        while let Some(output) = self.segment.poll_output() {
            if let Output::Frame { bytes, .. } = output {
                assert!(bytes.len() >= 14);
            }
        }
    }

    fn perform(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Publish(publication) => {
                let found: Vec<IpAddr> = publication.changes.iter().map(|change| change.ip()).collect();
                if let Some(link) = self.port.link_mut(LINK) {
                    link.handle_quiescent(now, publication.generation);
                    self.segment.handle_published(now, link, found);
                }
            }
            Action::CreateRc { conn, .. } => {
                self.next += 1;
                // Sometimes the device has no resources.
                let qpn = (!self.next.is_multiple_of(16)).then(|| Qpn::new(self.next));
                if let Some(qpn) = qpn {
                    assert!(self.pairs.insert(conn, qpn).is_none(), "a key is used once");
                    assert!(self.pairs.len() <= 4 * usize::from(SLOTS), "more queue pairs than slots");
                }
                self.port.handle_created(now, conn, qpn);
            }
            Action::ModifyRc { conn, qpn, to } => {
                assert_eq!(self.pairs.get(&conn), Some(&qpn));
                self.port.handle_done(now, conn, true);
                if matches!(to, QpTransition::ToError) {
                    self.port.handle_note(now, qpn, WorkerNote::LastWqeReached);
                }
            }
            Action::InsertRc { conn, worker, slot } => {
                assert!(self.slots.insert((worker.0, slot), conn).is_none(), "a slot is used twice");
                self.port.handle_done(now, conn, true);
            }
            Action::PostDrain { conn, .. } => {
                if let Some(qpn) = self.pairs.get(&conn) {
                    self.port.handle_note(now, *qpn, WorkerNote::Drained);
                }
            }
            Action::RemoveRc { conn, worker, slot } => {
                assert_eq!(self.slots.remove(&(worker.0, slot)), Some(conn));
                self.port.handle_done(now, conn, true);
            }
            Action::DestroyRc { conn, qpn } => assert_eq!(self.pairs.remove(&conn), Some(qpn)),
            _ => {}
        }
    }

    /// Answers a sent query as subnet administration, with changed bytes: pairs of an offset and a value.
    fn answer(&mut self, which: u8, changes: &[u8]) {
        if self.sent.is_empty() {
            return;
        }
        let Some(mad) = self.sent.remove(usize::from(which) % self.sent.len()) else { return };
        let request = SaMad::parse(&mad.bytes);
        let answer = match request.header.attribute {
            attribute::MC_MEMBER_RECORD => request.record().map(|asked: McMemberRecord| {
                let (mlid, mtu, rate) = (Lid(0xc001), Mtu::B4096.into(), Rate::new(3));
                SaMad::answer(&request, &McMemberRecord { qkey: QKey(0xb1b), mlid, mtu, rate, ..asked })
            }),
            _ => request.record().map(|asked: PathRecord| {
                let (mtu, rate, life_time) = (Mtu::B4096.into(), Rate::new(3), LifeTime::new(14));
                SaMad::answer(
                    &request,
                    &PathRecord { dlid: Lid(3), slid: Lid(2), mtu, rate, life_time, ..asked },
                )
            }),
        };
        let Some(mut bytes) = answer.map(|answer| answer.to_bytes()) else { return };
        for change in changes.chunks_exact(2) {
            bytes[usize::from(change[0])] = change[1];
        }
        self.hear(MANAGER, bytes);
    }

    fn hear(&mut self, lid: Lid, bytes: Box<[u8; MAD_LEN]>) {
        let peer = MadAddress::gsi(lid, ServiceLevel::new(0));
        self.port.handle_mad(self.now, &Mad { peer, bytes });
    }

    /// A message of communication management: sender, kind and the rest.
    fn connect(&mut self, data: &[u8]) {
        let [from, attribute, rest @ ..] = data else { return };
        let mut mad = Box::new([0; MAD_LEN]);
        // A reply has the transaction of its request.
        if let Some(asked) = self.sent.get(usize::from(attribute >> 4)).filter(|_| attribute & 0x80 != 0) {
            mad.copy_from_slice(&asked.bytes[..]);
            mad[28..32].copy_from_slice(&asked.bytes[24..28]);
        }
        for change in rest.chunks_exact(2) {
            mad[usize::from(change[0])] = change[1];
        }
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&[0, 0x10 + (attribute & 0xf) % 11]);
        self.hear(Lid(u16::from(from & 7)), mad);
    }

    fn arrival(&self, kind: u8, from: u8) -> Arrival {
        let worker = WorkerIndex(kind >> 5 & 1);
        if kind & 0x40 == 0 {
            return Arrival { side: Side::Ethernet, worker, origin: None };
        }
        let source = UdSource {
            qpn: hardware(from).qpn,
            slid: Lid(u16::from(from & 7)),
            sl: ServiceLevel::new(0),
            dlid_path_bits: 0,
            pkey_index: 0,
            has_grh: true,
            multicast: kind & 0x80 != 0,
        };
        Arrival { side: Side::InfiniBand, worker, origin: Some(Origin::Datagram(source)) }
    }

    fn arp(&mut self, kind: u8, data: &[u8]) {
        let &[operation, from, sender, at, target, ..] = data else { return };
        let arrival = self.arrival(kind, from);
        let now = self.now;
        let Some(link) = self.port.link_mut(LINK) else { return };
        if arrival.side == Side::Ethernet {
            let operation = if operation & 1 == 0 { ArpOperation::Request } else { ArpOperation::Reply };
            let arp = EthernetArp {
                operation,
                sender_mac: mac(from),
                sender_ip: host(sender),
                target_mac: mac(at),
                target_ip: host(target),
            };
            let frame = arp.to_frame(if data.len() > 5 { OWN_MAC } else { MacAddress::BROADCAST });
            self.segment.handle_ethernet_arp(now, link, &frame);
        } else {
            let operation =
                if operation & 1 == 0 { InfiniBandOperation::Request } else { InfiniBandOperation::Reply };
            // Most have the sender's real address.
            let own = if data.len() > 5 { hardware(data[5]) } else { hardware(from) };
            let arp = Arp {
                operation,
                sender: own,
                sender_ip: host(sender),
                target: hardware(at),
                target_ip: host(target),
            };
            let message = [&[8, 6, 0, 0][..], &arp.to_bytes()[..]].concat();
            self.segment.handle_infiniband_arp(now, link, &arrival, &message);
        }
    }

    fn record(&mut self, kind: u8, data: &[u8]) {
        let byte = |at: usize| data.get(at).copied().unwrap_or_default();
        let now = self.now;
        match kind % 8 {
            0 | 1 => self.arp(kind, data),
            2 => {
                let arrival = self.arrival(kind, byte(0));
                let skip = arrival.side.header_len();
                let mut packet = vec![0; skip + 20];
                packet[skip..].copy_from_slice(&[
                    0x45,
                    0,
                    0,
                    20,
                    0,
                    0,
                    0,
                    0,
                    64,
                    17,
                    0,
                    0,
                    10,
                    77,
                    0,
                    byte(1),
                    10,
                    77,
                    0,
                    byte(2),
                ]);
                let packet = Held(packet, Arc::clone(&self.living));
                let Some(link) = self.port.link_mut(LINK) else { return };
                let ip = IpAddr::V4(host(byte(2)));
                match byte(3) % 4 {
                    0 => self.segment.handle_too_big(now, link, arrival, 2044, Some(ip), packet),
                    1 => self.segment.handle_local(now, link, &arrival, &packet),
                    _ => self.segment.handle_unresolved(now, link, ip, arrival, packet, false),
                }
            }
            3 => self.answer(byte(0), data.get(1..).unwrap_or_default()),
            4 => self.connect(data),
            5 => self.pass(Duration::from_millis(u64::from(byte(0)) * 50)),
            6 => {
                let Some(link) = self.port.link_mut(LINK) else { return };
                let worker = WorkerIndex(byte(0) & 1);
                link.handle_used(now, worker, &[], &[IpAddr::V4(host(byte(1)))]);
                self.segment.handle_used(now, link, IpAddr::V4(host(byte(2))));
            }
            _ => {
                let Some(facts) = self.port.facts().cloned() else { return };
                let state = if byte(0) & 1 == 0 { PortState::Active } else { PortState::Down };
                self.port.handle_port(now, Facts { state, gid: gid(byte(0) >> 1 & 1), ..facts });
            }
        }
        self.settle();
        self.check();
    }

    /// Advances from deadline to deadline.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let next = self.port.poll_timeout().into_iter().chain(self.segment.poll_timeout()).min();
            let next = next.unwrap_or(end).max(self.now + Duration::from_millis(1));
            self.now = next.min(end);
            self.port.handle_timeout(self.now);
            if let Some(link) = self.port.link_mut(LINK) {
                self.segment.handle_timeout(self.now, link);
            }
            self.settle();
            if self.now >= end {
                return;
            }
        }
    }

    fn check(&self) {
        let link = self.port.link(LINK).expect("it is not removed");
        assert!(link.neighbour_count() <= NEIGHBOURS && self.segment.hosts().count() <= 256);
        assert!(self.slots.len() <= usize::from(SLOTS) * usize::from(WORKERS));
        assert!(Arc::strong_count(&self.living) - 1 <= PARKED, "pending packets");
    }
}

/// One input: records, each after its kind and length.
pub fn run(bytes: &[u8]) {
    let Some(mut world) = World::new() else { return };
    let mut rest = bytes;
    for _ in 0..RECORDS {
        let Some((&[kind, len], more)) = rest.split_first_chunk::<2>() else { break };
        let (data, more) = more.split_at(usize::from(len).min(more.len()));
        rest = more;
        world.record(kind, data);
    }
    // Without further answers, no packet stays pending.
    world.pass(Duration::from_secs(60));
    assert_eq!(Arc::strong_count(&world.living), 1, "a packet stays pending");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_both_sides_find_each_other_in_this_world() {
        let mut world = World::new().unwrap();
        assert!(world.port.link(LINK).unwrap().state().up, "the broadcast group was joined");
        // 10.77.0.1 on Ethernet queries 10.77.0.2, which is on InfiniBand and answers.
        world.record(0, &[0, 1, 1, 0, 2]);
        world.record(2, &[0, 1, 2, 2]);
        assert_eq!(Arc::strong_count(&world.living), 2, "the packet is pending");
        world.record(0x40, &[1, 2, 2, 0, 1]);
        world.record(3, &[0]);
        assert_eq!(world.port.link(LINK).unwrap().neighbour_count(), 1);
        world.pass(Duration::from_millis(100));
        assert_eq!(Arc::strong_count(&world.living), 1, "the pending packet was sent");
        assert_eq!(world.segment.hosts().count(), 0, "the sender of the query is not proven yet");
        world.pass(Duration::from_millis(300));
        assert_eq!(world.segment.hosts().count(), 1);
    }
}
