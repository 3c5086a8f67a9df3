//! Hosts of one port: datagram queue pairs for address resolution, and one table of connections for all.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use cm::connection::{Config, ConnectionTable};
use connectx::cable::CableEnd;
use ib_wire::cm::ipoib::ServiceIdForm;
use ib_wire::ipoib::{AddressFlags, Arp, ArpOperation, HardwareAddress};
use ib_wire::mad::Mad;
use ib_wire::{Gid, Guid, Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};
use pmd::hca::{
    AddressVector, BURST, Backend, Control as _, PortNumber, PortState, QpEvent, QpTransition, Queues,
    QueuesConfig, QueuesId, RcSlot, RxBurst, UdConfig, UdDestination, UdSlot,
};
use pmd::mem::Pool;
use pmd::soft::{SoftConfig, SoftHca};

use crate::connections::Connections;
use crate::pairs::PLACES;
use crate::{Error, Options};

pub(crate) type DriverQueues = <SoftHca as Backend>::Queues;

pub(crate) const PORT: PortNumber = PortNumber(1);
/// Q_Key of the IPoIB broadcast domain.
const QKEY: QKey = QKey(0x0b1b);
/// Datagram queue pairs that share queues: a slot number has one byte.
const GROUP: usize = 250;
const SENDS: u32 = 16;
const RECEIVES: u32 = 512;
/// Maximum of connections of hosts that close and open them repeatedly, including those in TIMEWAIT.
const CYCLES: usize = 1 << 16;
/// Encapsulation header of an ARP packet.
const ENCAPSULATION: [u8; 4] = [0x08, 0x06, 0, 0];
/// Timeout of a stage.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One host.
pub(crate) struct Host {
    address: Ipv4Addr,
    pub(crate) group: usize,
    /// Its datagram queue pairs, and the active one: a host that switches has another link-layer address.
    pairs: ArrayVec<(Qpn, UdSlot), 2>,
    used: usize,
}

impl Host {
    /// The active datagram queue pair.
    pub(crate) fn pair(&self) -> (Qpn, UdSlot) {
        self.pairs.get(self.used).copied().unwrap_or_default()
    }

    /// Switches to another queue pair, if there is one.
    fn change(&mut self) {
        self.used = (self.used + 1) % self.pairs.len().max(1);
    }
}

/// All hosts.
pub(crate) struct Hosts {
    pub(crate) hca: SoftHca,
    pub(crate) queues: Vec<DriverQueues>,
    pub(crate) pool: Pool,
    pub(crate) hosts: Vec<Host>,
    pub(crate) by_qpn: HashMap<Qpn, usize>,
    pub(crate) table: ConnectionTable,
    waiting: VecDeque<Mad>,
    pub(crate) gateway: HardwareAddress,
    pub(crate) gateway_lid: Lid,
    target: Ipv4Addr,
    /// Hosts whose query was answered.
    known: HashSet<usize>,
    pub(crate) connections: Connections,
    burst: RxBurst,
    events: ArrayVec<QpEvent, BURST>,
}

impl Hosts {
    /// Connects the port, and waits until the subnet manager has activated it.
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
        // A host that switches needs two datagram queue pairs.
        let each = if options.orders { 2 } else { 1 };
        for first in (0..options.hosts).step_by(GROUP / each) {
            let group = queues.len();
            let id = QueuesId(group as u16);
            let count = (GROUP / each).min(options.hosts - first);
            let mut of_group = hca.create_queues(&sizes(id, (count * each) as u16, options.orders), &pool)?;
            for n in 0..count {
                let address = Ipv4Addr::from_bits(options.first.to_bits() + (first + n) as u32);
                let mut pairs = ArrayVec::new();
                for slot in (n * each..(n + 1) * each).map(|slot| UdSlot(slot as u8)) {
                    let ud = hca.create_ud(&UdConfig { queues: id, port: PORT, send_depth: SENDS })?;
                    let qpn = SoftHca::ud_qpn(&ud);
                    of_group.insert_ud(slot, ud).map_err(|_| Error::Slot)?;
                    for to in [
                        QpTransition::UdToInit { pkey_index: 0, qkey: QKEY },
                        QpTransition::UdToReceive,
                        QpTransition::UdToSend { sq_psn: Psn::new(0) },
                    ] {
                        hca.modify_qp(qpn, &to)?;
                    }
                    of_group.open_ud(slot);
                    pairs.push((qpn, slot));
                }
                hosts.push(Host { address, group, pairs, used: 0 });
            }
            of_group.refill();
            queues.push(of_group);
        }
        let config = Config {
            max_connections: if options.orders { CYCLES } else { 4 * options.hosts.max(64) },
            max_listeners: each * options.hosts,
            max_transmit: 4 * options.hosts.max(64),
            ..Config::new(options.seed, Guid(0x0200_0000_00c0_0000))
        };
        let mut table = ConnectionTable::new(config);
        let mut by_qpn = HashMap::new();
        for (n, host) in hosts.iter().enumerate() {
            for (qpn, _) in &host.pairs {
                table.listen(ServiceIdForm::Linux.service_id(*qpn))?;
                by_qpn.insert(*qpn, n);
            }
        }
        let connections = Connections::new(options.orders.then_some(queues.len()));
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
            connections,
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

    /// Switches every host to its other datagram queue pair, and announces it to the gateway.
    pub(crate) fn change(&mut self) -> Result<(), Error> {
        self.hosts.iter_mut().for_each(Host::change);
        self.known.clear();
        self.introduce()
    }

    /// Every host queries the gateway for the target's address, with retries, so that the gateway learns it.
    pub(crate) fn introduce(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        while self.known.len() < self.hosts.len() {
            let mut missing: Vec<usize> = (0..self.hosts.len()).filter(|n| !self.known.contains(n)).collect();
            missing.truncate(64);
            for n in missing {
                let Some(host) = self.hosts.get(n) else { continue };
                let arp = Arp::request(self.hardware(host.pair().0)?, host.address, self.target);
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

    fn hardware(&self, qpn: Qpn) -> Result<HardwareAddress, Error> {
        Ok(HardwareAddress { flags: AddressFlags::RC, qpn, gid: self.hca.gid(PORT, 0)? })
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
            // A query without room is repeated later.
            let _ = queues.send_ud(host.pair().1, &to, buf);
        }
        Ok(())
    }

    /// Answers queries for the hosts' addresses, and handles replies.
    fn take_arp(&mut self, at: usize, qpn: Qpn, message: &[u8]) -> Result<(), Error> {
        let Some(arp) = message.strip_prefix(&ENCAPSULATION) else { return Ok(()) };
        let Ok(arp) = Arp::parse(arp) else { return Ok(()) };
        let Some(host) = self.hosts.get(at).filter(|host| host.pair().0 == qpn) else { return Ok(()) };
        match arp.operation {
            ArpOperation::Reply => {
                self.known.insert(at);
            }
            ArpOperation::Request if arp.target_ip == host.address => {
                let reply = arp.reply(self.hardware(qpn)?);
                self.send_arp(at, arp.sender.qpn, &reply)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs one iteration. Sleeps for a moment if there was nothing to do.
    pub(crate) fn turn(&mut self) -> Result<(), Error> {
        let mut busy = false;
        for group in 0..self.queues.len() {
            let Some(queues) = self.queues.get_mut(group) else { continue };
            queues.ring();
            busy |= queues.turn();
            queues.poll_receive(&mut self.burst, &mut self.events);
            queues.poll_send(&mut self.events);
            queues.refill();
            let came: Vec<(Qpn, Option<RcSlot>, Vec<u8>)> = self
                .burst
                .drain(..)
                .map(|received| (received.qpn, received.rc, received.buf.data().to_vec()))
                .collect();
            for (qpn, rc, message) in came {
                busy = true;
                if let Some(slot) = rc {
                    self.answer(group, slot, &message);
                } else if let Some(at) = self.by_qpn.get(&qpn).copied() {
                    self.take_arp(at, qpn, &message)?;
                }
            }
            self.events.clear();
        }
        // Communication management reports failures of queue pairs.
        while self.hca.next_event().is_some() {}
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
            // The ring is full: retry later.
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
}

fn sizes(id: QueuesId, datagrams: u16, connected: bool) -> QueuesConfig {
    QueuesConfig {
        id,
        ud_recv_depth: RECEIVES,
        ud_recv_most: u32::MAX,
        srq_depth: if connected { RECEIVES } else { 0 },
        srq_message: 2048,
        srq_limit: 0,
        max_ud: datagrams,
        likely_ud: datagrams,
        max_rc: if connected { PLACES.into() } else { 1 },
        max_sends: 4096,
        signal_every: 1,
    }
}

/// Parses a link-layer address: 20 bytes with colons between them, as printed by `ipoib-fwd ctl links`.
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
