//! Hosts of one port: a datagram queue pair each, with which they ask and are asked for addresses, and one table of connections for all.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use cm::Path;
use cm::connection::{AcceptParams, Config, ConnectRequest, ConnectionTable, Event};
use connectx::cable::CableEnd;
use ib_wire::cm::FlowLabel;
use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::ipoib::{AddressFlags, Arp, ArpOperation, HardwareAddress};
use ib_wire::mad::Mad;
use ib_wire::sa::LifeTime;
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, Rate, ServiceLevel};
use pmd::hca::{
    AddressVector, BURST, Backend, Control as _, PortNumber, PortState, QpEvent, QpTransition, Queues,
    QueuesConfig, QueuesId, RxBurst, UdConfig, UdDestination, UdSlot,
};
use pmd::mem::Pool;
use pmd::soft::{SoftConfig, SoftHca};

use crate::{Error, Options};

type DriverQueues = <SoftHca as Backend>::Queues;

const PORT: PortNumber = PortNumber(1);
/// Of the IPoIB broadcast domain.
const QKEY: QKey = QKey(0x0b1b);
/// Datagram queue pairs that share queues: places there are counted in a byte.
const GROUP: usize = 250;
const SENDS: u32 = 16;
const RECEIVES: u32 = 512;
/// The largest message that hosts say they take.
const LARGEST: u32 = 65_524;
/// Numbers of the queue pairs that connections are for, which are not made here: what this end of a connection costs is another's matter.
const CONNECTED: u32 = 0x0030_0000;
/// Hosts that are on their way at once where they begin: the ring of management datagrams at the other end has 1,024.
const WINDOW: usize = 256;
/// In front of an ARP packet.
const ENCAPSULATION: [u8; 4] = [0x08, 0x06, 0, 0];
/// Time for a stage.
const PATIENCE: Duration = Duration::from_secs(30);

/// One host.
struct Host {
    address: Ipv4Addr,
    qpn: Qpn,
    group: usize,
    slot: UdSlot,
}

/// How many connections came to be, and how long that took.
pub(crate) struct Made {
    pub(crate) connections: usize,
    pub(crate) time: Duration,
}

/// All of them.
pub(crate) struct Hosts {
    hca: SoftHca,
    queues: Vec<DriverQueues>,
    pool: Pool,
    hosts: Vec<Host>,
    by_qpn: HashMap<Qpn, usize>,
    table: ConnectionTable,
    waiting: VecDeque<Mad>,
    gateway: HardwareAddress,
    gateway_lid: Lid,
    target: Ipv4Addr,
    /// Those whose question was answered.
    known: HashSet<usize>,
    /// Connections that the gateway has asked for, that it has confirmed, and those of ours that it has accepted.
    asked: usize,
    established: usize,
    accepted: usize,
    failed: Vec<String>,
    burst: RxBurst,
    events: ArrayVec<QpEvent, BURST>,
}

impl Hosts {
    /// Plugs the port in, and waits until the subnet manager has made it active.
    pub(crate) fn new(options: &Options, pool: Pool) -> Result<Self, Error> {
        let mut hca = SoftHca::new(&SoftConfig {
            name: "crowd".to_owned(),
            node_guid: Guid(0x0200_0000_00c0_0000),
            port_guids: vec![Guid(0x0200_0000_00c0_0001)],
            max_mtu: Mtu::B4096,
            gid_table: 8,
            seed: options.seed,
        })?;
        hca.set_cable(PORT, Some(CableEnd::connect(&options.link)?))?;
        hca.register_pool(&pool)?;
        let (mut queues, mut hosts) = (Vec::new(), Vec::new());
        for first in (0..options.hosts).step_by(GROUP) {
            let group = queues.len();
            let id = QueuesId(group as u16);
            let count = GROUP.min(options.hosts - first);
            let mut of_group = hca.create_queues(&sizes(id, count as u16), &pool)?;
            for n in 0..count {
                let ud = hca.create_ud(&UdConfig { queues: id, port: PORT, send_depth: SENDS })?;
                let (qpn, slot) = (SoftHca::ud_qpn(&ud), UdSlot(n as u8));
                of_group.insert_ud(slot, ud).map_err(|_| Error::Slot)?;
                for to in [
                    QpTransition::UdToInit { pkey_index: 0, qkey: QKEY },
                    QpTransition::UdToReceive,
                    QpTransition::UdToSend { sq_psn: Psn::new(0) },
                ] {
                    hca.modify_qp(qpn, &to)?;
                }
                of_group.open_ud(slot);
                let address = Ipv4Addr::from_bits(options.first.to_bits() + (first + n) as u32);
                hosts.push(Host { address, qpn, group, slot });
            }
            of_group.refill();
            queues.push(of_group);
        }
        let config = Config {
            max_connections: 4 * options.hosts.max(64),
            max_listeners: options.hosts,
            max_transmit: 2 * options.hosts.max(64),
            ..Config::new(options.seed, Guid(0x0200_0000_00c0_0000))
        };
        let mut table = ConnectionTable::new(config);
        for host in &hosts {
            table.listen(ServiceIdForm::Linux.service_id(host.qpn))?;
        }
        let by_qpn = hosts.iter().enumerate().map(|(n, host)| (host.qpn, n)).collect();
        let mut all = Self {
            hca,
            queues,
            pool,
            hosts,
            by_qpn,
            table,
            waiting: VecDeque::new(),
            gateway: options.gateway,
            gateway_lid: Lid(options.gateway_lid),
            target: options.target,
            known: HashSet::new(),
            asked: 0,
            established: 0,
            accepted: 0,
            failed: Vec::new(),
            burst: RxBurst::new(),
            events: ArrayVec::new(),
        };
        let begin = Instant::now();
        while all.hca.port(PORT)?.state != PortState::Active {
            all.turn()?;
            if begin.elapsed() > PATIENCE {
                return Err(Error::Down);
            }
        }
        Ok(all)
    }

    /// Every host asks the gateway for the target's address, again where no answer comes, so that the gateway knows it.
    pub(crate) fn introduce(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        while self.known.len() < self.hosts.len() {
            let mut missing: Vec<usize> = (0..self.hosts.len()).filter(|n| !self.known.contains(n)).collect();
            missing.truncate(64);
            for n in missing {
                let Some(host) = self.hosts.get(n) else { continue };
                let arp = Arp::request(self.hardware(host.qpn)?, host.address, self.target);
                self.send_arp(n, self.gateway.qpn, &arp)?;
            }
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_millis(10) {
                self.turn()?;
            }
            if begin.elapsed() > PATIENCE {
                return Err(Error::Unknown(self.known.len(), self.hosts.len()));
            }
        }
        Ok(())
    }

    /// Accepts a connection for each host: the time from the gateway's first request to its last confirmation.
    pub(crate) fn listen(&mut self) -> Result<Made, Error> {
        let (begin, all) = (Instant::now(), self.hosts.len());
        let (mut first, mut last) = (None, begin);
        let (mut before, mut silent) = (self.established, begin);
        while self.established < all {
            self.turn()?;
            let now = Instant::now();
            if first.is_none() && self.asked > 0 {
                first = Some(now);
            }
            if self.established > before {
                (before, last, silent) = (self.established, now, now);
            }
            if now - silent > PATIENCE {
                break;
            }
        }
        let time = last.saturating_duration_since(first.unwrap_or(last));
        self.told(Made { connections: self.established, time }, "of the gateway")
    }

    /// Asks for a connection from each host: the time from the first request to the last one that is in use.
    pub(crate) fn dial(&mut self) -> Result<Made, Error> {
        let begin = Instant::now();
        let (mut last, mut dialled) = (begin, 0);
        while self.accepted < self.hosts.len() {
            while dialled < self.hosts.len() && dialled - self.accepted < WINDOW {
                self.request(dialled)?;
                dialled += 1;
            }
            let before = self.accepted;
            self.turn()?;
            let now = Instant::now();
            if self.accepted > before {
                last = now;
            }
            if now - last > PATIENCE || !self.failed.is_empty() {
                break;
            }
        }
        self.told(Made { connections: self.accepted, time: last - begin }, "of the hosts")
    }

    fn told(&self, made: Made, whose: &'static str) -> Result<Made, Error> {
        if made.connections == self.hosts.len() {
            return Ok(made);
        }
        let why = self.failed.first().cloned().unwrap_or_else(|| "no answer".to_owned());
        Err(Error::Missing { made: made.connections, all: self.hosts.len(), whose, why })
    }

    fn hardware(&self, qpn: Qpn) -> Result<HardwareAddress, Error> {
        Ok(HardwareAddress { flags: AddressFlags::RC, qpn, gid: self.hca.gid(PORT, 0)? })
    }

    fn request(&mut self, n: usize) -> Result<(), Error> {
        let Some(host) = self.hosts.get(n) else { return Ok(()) };
        let port = self.hca.port(PORT)?;
        let path = Path {
            sgid: self.hca.gid(PORT, 0)?,
            dgid: self.gateway.gid,
            slid: port.lid,
            dlid: self.gateway_lid,
            pkey: PKey::DEFAULT,
            sl: ServiceLevel::new(0),
            mtu: port.active_mtu,
            rate: Rate::new(3),
            life_time: LifeTime::new(18),
            flow_label: FlowLabel::new(0),
            hop_limit: 0,
            traffic_class: 0,
        };
        let private = PrivateData { ud_qpn: host.qpn, receive_mtu: LARGEST }.to_bytes();
        let service = ServiceIdForm::Linux.service_id(self.gateway.qpn);
        let own = Qpn::new(CONNECTED + 2 * n as u32);
        self.table.connect(Instant::now(), ConnectRequest::ipoib(service, own, path, &private))?;
        Ok(())
    }

    /// Sends an ARP packet of host `n` to a queue pair of the gateway's.
    fn send_arp(&mut self, n: usize, qpn: Qpn, arp: &Arp) -> Result<(), Error> {
        let (dlid, sl, rate) = (self.gateway_lid, ServiceLevel::new(0), Rate::default());
        let av = AddressVector { dlid, sl, src_path_bits: 0, rate, grh: None };
        let to = self.hca.destination(PORT, &UdDestination { av, qpn, qkey: Some(QKEY) })?;
        let message = [ENCAPSULATION.as_slice(), &arp.to_bytes()].concat();
        let buf = self.pool.copy_from_slice(&message).ok_or(Error::Empty)?;
        let Some(host) = self.hosts.get(n) else { return Ok(()) };
        if let Some(queues) = self.queues.get_mut(host.group) {
            // What finds no room is asked for again.
            let _ = queues.send_ud(host.slot, &to, buf);
        }
        Ok(())
    }

    /// Hosts answer for their addresses, and take answers.
    fn take_arp(&mut self, at: usize, message: &[u8]) -> Result<(), Error> {
        let Some(arp) = message.strip_prefix(&ENCAPSULATION) else { return Ok(()) };
        let Ok(arp) = Arp::parse(arp) else { return Ok(()) };
        let Some(host) = self.hosts.get(at) else { return Ok(()) };
        match arp.operation {
            ArpOperation::Reply => {
                self.known.insert(at);
            }
            ArpOperation::Request if arp.target_ip == host.address => {
                let reply = arp.reply(self.hardware(host.qpn)?);
                self.send_arp(at, arp.sender.qpn, &reply)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything once. Rests for a moment if there was nothing.
    pub(crate) fn turn(&mut self) -> Result<(), Error> {
        let mut busy = false;
        for group in 0..self.queues.len() {
            let Some(queues) = self.queues.get_mut(group) else { continue };
            queues.ring();
            busy |= queues.turn();
            queues.poll_receive(&mut self.burst, &mut self.events);
            queues.poll_send(&mut self.events);
            queues.refill();
            let came: Vec<(Qpn, Vec<u8>)> =
                self.burst.drain(..).map(|received| (received.qpn, received.buf.data().to_vec())).collect();
            for (qpn, message) in came {
                busy = true;
                if let Some(at) = self.by_qpn.get(&qpn).copied() {
                    self.take_arp(at, &message)?;
                }
            }
            self.events.clear();
        }
        let now = Instant::now();
        while let Some(mad) = self.hca.receive_mad(PORT)? {
            busy = true;
            self.table.handle_mad(now, &mad);
        }
        if self.table.poll_timeout().is_some_and(|at| at <= now) {
            self.table.handle_timeout(now);
        }
        while let Some(event) = self.table.poll_event() {
            self.take_event(now, event)?;
        }
        while let Some(mad) = self.table.poll_transmit() {
            self.waiting.push_back(mad);
        }
        while let Some(mad) = self.waiting.pop_front() {
            // Its ring is full: later.
            if self.hca.send_mad(PORT, &mad).is_err() {
                self.waiting.push_front(mad);
                break;
            }
            busy = true;
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn take_event(&mut self, now: Instant, event: Event) -> Result<(), Error> {
        match event {
            Event::Requested { id, request } => {
                let host = ServiceIdForm::of(request.service_id).map(|(_, qpn)| qpn);
                let Some(at) = host.and_then(|qpn| self.by_qpn.get(&qpn).copied()) else { return Ok(()) };
                let Some(host) = self.hosts.get(at) else { return Ok(()) };
                self.asked += 1;
                let private = PrivateData { ud_qpn: host.qpn, receive_mtu: LARGEST }.to_bytes();
                let own = Qpn::new(CONNECTED + 2 * at as u32 + 1);
                let with = AcceptParams::ipoib(own, Psn::new(0), &request, &private);
                self.table.accept(now, id, &with)?;
            }
            Event::Replied { id, .. } => {
                self.table.ready(now, id)?;
                self.accepted += 1;
            }
            Event::Established { .. } => self.established += 1,
            Event::Rejected { reject, .. } => self.failed.push(format!("rejected: {reject:?}")),
            Event::TimedOut { .. } => self.failed.push("a message was never answered".to_owned()),
            Event::Disconnected { .. } => self.failed.push("the gateway ended a connection".to_owned()),
            Event::Released { .. } => {}
        }
        Ok(())
    }
}

fn sizes(id: QueuesId, hosts: u16) -> QueuesConfig {
    QueuesConfig {
        id,
        ud_recv_depth: RECEIVES,
        ud_recv_most: u32::MAX,
        srq_depth: 0,
        srq_message: 2048,
        srq_limit: 0,
        max_ud: hosts,
        likely_ud: hosts,
        max_rc: 1,
        max_sends: 4096,
        signal_every: 1,
    }
}

/// The link-layer address that a text names: 20 bytes with colons between, as `ipoib-fwd ctl links` tells it.
pub(crate) fn parse_hardware(text: &str) -> Result<HardwareAddress, String> {
    let bytes: Result<Vec<u8>, _> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    let bytes: [u8; 20] = bytes
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or("a link-layer address is 20 bytes in hexadecimal, with colons between them")?;
    let [flags, a, b, c, gid @ ..] = bytes;
    Ok(HardwareAddress {
        flags: AddressFlags::from_byte(flags),
        qpn: Qpn::new(u32::from_be_bytes([0, a, b, c])),
        gid: Gid(gid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_layer_address_is_read_as_it_is_told() {
        let text = "80:00:00:48:fe:80:00:00:00:00:00:00:02:00:00:00:00:00:00:c1";
        let address = parse_hardware(text).unwrap();
        assert_eq!(address.to_string(), text);
        assert_eq!(address.qpn, Qpn::new(0x48));
        assert!(address.flags.has_rc());
        for wrong in ["", "80:00", "80:00:00:48:fe:80:00:00:00:00:00:00:02:00:00:00:00:00:00:xx", "80-00"] {
            assert!(parse_hardware(wrong).is_err(), "{wrong}");
        }
        assert!(parse_hardware(&format!("{text}:00")).is_err());
    }
}
