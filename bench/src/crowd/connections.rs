//! Connections of the hosts: accepted and opened ones, their end, and the packets on them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use cm::Path;
use cm::connection::{AcceptParams, ConnId, ConnectRequest, DisconnectCause, Event, RequestInfo};
use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::cm::{FlowLabel, RejectReason};
use ib_wire::sa::LifeTime;
use ib_wire::{PKey, Psn, Qpn, Rate, ServiceLevel};
use pmd::hca::{Control as _, Queues as _, RcSlot};

use crate::Error;
use crate::hosts::{Hosts, PATIENCE, PORT};
use crate::pairs::{self, Pair, Pairs};

/// The largest message that hosts announce.
const LARGEST: u32 = 65_524;
/// Queue pair numbers of connections without queue pairs, for benchmarks that do not measure this end.
const CONNECTED: u32 = 0x0030_0000;
/// Maximum of connections that hosts open or close at once: the MAD ring of the other end has 1,024 entries.
const WINDOW: usize = 256;
/// Silence after which missing connections are reported; it doubles each time, so that the reader keeps up.
const SILENCE: Duration = Duration::from_millis(300);
/// Packet lifetime of hosts: short for those that soon open another connection, as queue pair numbers stay
/// reserved for this time.
const LIFE_TIMES: [LifeTime; 2] = [LifeTime::new(18), LifeTime::new(14)];

/// The number of opened connections, and the time for them.
pub(crate) struct Made {
    pub(crate) connections: usize,
    pub(crate) time: Duration,
}

/// The connections to close, and the side that closes them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    /// All, by the hosts, which then accept no others.
    All,
    /// All: each side closes those that it has opened.
    Ours,
    /// The same for connections of earlier rounds.
    Old,
}

/// A connection in any state.
#[derive(Debug)]
struct Connection {
    host: usize,
    /// The host has opened it.
    ours: bool,
    qpn: Qpn,
    /// Its queue pair, if there are any, until it is closed.
    pair: Option<Pair>,
    /// Opened before the present round.
    old: bool,
    ended: bool,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Connections {
    pairs: Option<Pairs>,
    all: HashMap<ConnId, Connection>,
    /// Number of open connections, of this round and of earlier ones.
    standing: usize,
    old: usize,
    /// The connection that a host has opened.
    opened: HashMap<usize, ConnId>,
    /// Hosts to which the gateway has confirmed a connection in this round, and connections that it has
    /// accepted.
    confirmed: HashSet<usize>,
    accepted: usize,
    /// The gateway has requested a connection.
    asked: bool,
    /// Hosts have closed theirs, and accept none before the next round.
    closed: bool,
    /// Hosts that must send a request, perhaps again, and the number of outstanding requests.
    asking: VecDeque<usize>,
    under_way: usize,
    failed: Vec<String>,
    /// Totals: answered packets, and connections that the gateway has closed.
    pub(crate) answered: u64,
    pub(crate) lost: u64,
}

impl Connections {
    /// Creates queue pairs for groups of hosts, or none.
    pub(crate) fn new(groups: Option<usize>) -> Self {
        Self {
            pairs: groups.map(Pairs::new),
            all: HashMap::new(),
            standing: 0,
            old: 0,
            opened: HashMap::new(),
            confirmed: HashSet::new(),
            accepted: 0,
            asked: false,
            closed: false,
            asking: VecDeque::new(),
            under_way: 0,
            failed: Vec::new(),
            answered: 0,
            lost: 0,
        }
    }

    fn add(&mut self, id: ConnId, connection: Connection) {
        self.standing += 1;
        self.all.insert(id, connection);
    }
}

impl Hosts {
    /// Accepts a connection for each host. Returns the time from the gateway's first request to its last
    /// confirmation. Repeatedly reports hosts without a request for a while.
    pub(crate) fn listen(
        &mut self,
        mut missing: impl FnMut(&[usize]) -> Result<(), Error>,
    ) -> Result<Made, Error> {
        let (begin, all) = (Instant::now(), self.hosts.len());
        let (mut first, mut last) = (None, begin);
        let (mut before, mut silent, mut told) = (self.connections.confirmed.len(), begin, begin);
        let mut silence = SILENCE;
        while self.connections.confirmed.len() < all {
            self.turn()?;
            let now = Instant::now();
            if first.is_none() && self.connections.asked {
                first = Some(now);
            }
            if self.connections.confirmed.len() > before {
                (before, last, silent, told) = (self.connections.confirmed.len(), now, now, now);
            }
            if now - silent > PATIENCE {
                break;
            }
            if now - told > silence {
                (told, silence) = (now, 2 * silence);
                let which: Vec<_> = (0..all).filter(|n| !self.connections.confirmed.contains(n)).collect();
                missing(&which)?;
            }
        }
        let time = last.saturating_duration_since(first.unwrap_or(last));
        self.told(Made { connections: self.connections.confirmed.len(), time }, "of the gateway")
    }

    /// Requests a connection from each host. Returns the time from the first request to the last established
    /// connection.
    pub(crate) fn dial(&mut self) -> Result<Made, Error> {
        let begin = Instant::now();
        let mut last = begin;
        self.connections.asking = (0..self.hosts.len()).collect();
        while self.connections.accepted < self.hosts.len() {
            while self.connections.under_way < WINDOW
                && let Some(host) = self.connections.asking.pop_front()
            {
                self.request(host)?;
            }
            let before = self.connections.accepted;
            self.turn()?;
            let now = Instant::now();
            if self.connections.accepted > before {
                last = now;
            }
            // A host that opens connections in succession may be rejected.
            let refused = self.connections.pairs.is_none() && !self.connections.failed.is_empty();
            if now - last > PATIENCE || refused {
                break;
            }
        }
        self.told(Made { connections: self.connections.accepted, time: last - begin }, "of the hosts")
    }

    /// Finishes a round, so that another one can start.
    pub(crate) fn forget_round(&mut self) {
        let connections = &mut self.connections;
        connections.confirmed.clear();
        connections.failed.clear();
        connections.asking.clear();
        (connections.accepted, connections.under_way) = (0, 0);
        (connections.asked, connections.closed) = (false, false);
        connections.all.values_mut().for_each(|connection| connection.old = true);
        connections.old += std::mem::take(&mut connections.standing);
    }

    /// Closes connections; returns their number, and the time until the last one was closed.
    pub(crate) fn end(&mut self, which: Which) -> Result<Made, Error> {
        let count = |hosts: &Self| match which {
            Which::Old => hosts.connections.old,
            Which::All | Which::Ours => hosts.connections.old + hosts.connections.standing,
        };
        let wanted = |c: &Connection| match which {
            Which::All => true,
            Which::Ours => c.ours,
            Which::Old => c.ours && c.old,
        };
        self.connections.closed = matches!(which, Which::All);
        let all = self.connections.all.iter();
        let mut to_end: VecDeque<ConnId> =
            all.filter(|(_, c)| !c.ended && wanted(c)).map(|(id, _)| *id).collect();
        let mut ending: Vec<ConnId> = Vec::new();
        let (begin, all) = (Instant::now(), count(self));
        let (mut last, mut left) = (begin, all);
        while left > 0 {
            let now = Instant::now();
            ending.retain(|id| self.connections.all.get(id).is_some_and(|c| !c.ended));
            while ending.len() < WINDOW
                && let Some(id) = to_end.pop_front()
            {
                // The gateway may have closed it meanwhile.
                if self.table.disconnect(now, id).is_ok() {
                    ending.push(id);
                }
            }
            self.turn()?;
            if count(self) < left {
                last = Instant::now();
            }
            left = count(self);
            if last.elapsed() > PATIENCE {
                return Err(Error::Left(left));
            }
        }
        Ok(Made { connections: all, time: last - begin })
    }

    fn told(&self, made: Made, whose: &'static str) -> Result<Made, Error> {
        if made.connections == self.hosts.len() {
            return Ok(made);
        }
        let why = self.connections.failed.first().cloned().unwrap_or_else(|| "no answer".to_owned());
        Err(Error::Missing { made: made.connections, all: self.hosts.len(), whose, why })
    }

    /// Creates a queue pair for a connection of a host, or only a number for it.
    fn pair(&mut self, at: usize, ours: bool) -> Result<(Qpn, Option<Pair>), Error> {
        let (Some(pairs), Some(host)) = (&mut self.connections.pairs, self.hosts.get(at)) else {
            return Ok((Qpn::new(CONNECTED + 2 * at as u32 + u32::from(!ours)), None));
        };
        let queues = self.queues.get_mut(host.group).ok_or(Error::Slot)?;
        let pair = pairs.make(&mut self.hca, (host.group, queues), (at, host.pair().1), !ours)?;
        Ok((pair.qpn, Some(pair)))
    }

    fn request(&mut self, at: usize) -> Result<(), Error> {
        let Some(host) = self.hosts.get(at) else { return Ok(()) };
        let (port, (ud_qpn, _)) = (self.hca.port(PORT)?, host.pair());
        let [long, short] = LIFE_TIMES;
        let path = Path {
            sgid: self.hca.gid(PORT, 0)?,
            dgid: self.gateway.gid,
            slid: port.lid,
            dlid: self.gateway_lid,
            pkey: PKey::DEFAULT,
            sl: ServiceLevel::new(0),
            mtu: port.active_mtu,
            rate: Rate::new(3),
            life_time: if self.connections.pairs.is_some() { short } else { long },
            flow_label: FlowLabel::new(0),
            hop_limit: 0,
            traffic_class: 0,
        };
        let private = PrivateData { ud_qpn, receive_mtu: LARGEST }.to_bytes();
        let service = ServiceIdForm::Linux.service_id(self.gateway.qpn);
        let (qpn, pair) = self.pair(at, true)?;
        let request = ConnectRequest::ipoib(service, qpn, path, &private);
        let id = self.table.connect(Instant::now(), request)?;
        self.connections.add(id, Connection { host: at, ours: true, qpn, pair, old: false, ended: false });
        self.connections.under_way += 1;
        Ok(())
    }

    /// Handles a connection request of the gateway: a host accepts it, if it has this address now and accepts
    /// any.
    fn accept(&mut self, now: Instant, id: ConnId, request: &RequestInfo) -> Result<(), Error> {
        let asked = ServiceIdForm::of(request.service_id).map(|(_, qpn)| qpn);
        let at = asked.and_then(|qpn| self.by_qpn.get(&qpn).copied());
        let host = at.and_then(|at| self.hosts.get(at)).map(|host| host.pair().0);
        let takes = |qpn: &Qpn| Some(*qpn) == asked && !self.connections.closed;
        let (Some(at), Some(ud_qpn)) = (at, host.filter(takes)) else {
            let _ = self.table.reject(now, id, RejectReason::InvalidServiceId, &[]);
            return Ok(());
        };
        self.connections.asked = true;
        let (qpn, pair) = self.pair(at, false)?;
        if pair.is_some() {
            pairs::open(&mut self.hca, qpn, &request.qp_attributes(Psn::new(0)))?;
        }
        self.connections.add(id, Connection { host: at, ours: false, qpn, pair, old: false, ended: false });
        let private = PrivateData { ud_qpn, receive_mtu: LARGEST }.to_bytes();
        let with = AcceptParams::ipoib(qpn, Psn::new(0), request, &private);
        if self.table.accept(now, id, &with).is_err() {
            // The gateway has already given up.
            self.ended(id)?;
        }
        Ok(())
    }

    /// Handles a closed or failed connection: it carries no more packets.
    fn ended(&mut self, id: ConnId) -> Result<(), Error> {
        let Some(connection) = self.connections.all.get_mut(&id).filter(|c| !c.ended) else { return Ok(()) };
        connection.ended = true;
        *if connection.old { &mut self.connections.old } else { &mut self.connections.standing } -= 1;
        if self.connections.opened.get(&connection.host) == Some(&id) {
            self.connections.opened.remove(&connection.host);
        }
        let group = self.hosts.get(connection.host).map(|host| host.group);
        if let (Some(pair), Some(pairs), Some(group)) =
            (connection.pair.take(), &mut self.connections.pairs, group)
            && let Some(queues) = self.queues.get_mut(group)
        {
            pairs.fail(&mut self.hca, (group, queues), pair)?;
        }
        Ok(())
    }

    /// Handles a rejected connection: a host of ours sends another request.
    fn refused(&mut self, id: ConnId, why: String) -> Result<(), Error> {
        self.connections.failed.push(why);
        if let Some(connection) = self.connections.all.get(&id).filter(|c| c.ours && !c.ended) {
            self.connections.asking.push_back(connection.host);
            self.connections.under_way = self.connections.under_way.saturating_sub(1);
        }
        self.ended(id)
    }

    /// Answers a message on a connection by the connection that its host has opened.
    pub(crate) fn answer(&mut self, group: usize, slot: RcSlot, message: &[u8]) {
        let host = self.connections.pairs.as_ref().and_then(|pairs| pairs.host(group, slot));
        let opened = host.and_then(|at| self.connections.all.get(self.connections.opened.get(&at)?));
        let (Some(pair), Some(answer)) = (opened.and_then(|c| c.pair), pairs::answer(message)) else {
            return;
        };
        if let (Some(queues), Some(buf)) = (self.queues.get_mut(group), self.pool.copy_from_slice(&answer)) {
            self.connections.answered += u64::from(queues.send_rc(pair.slot, buf).is_ok());
        }
    }

    pub(crate) fn take_event(&mut self, now: Instant, event: Event) -> Result<(), Error> {
        match event {
            Event::Requested { id, request } => self.accept(now, id, &request)?,
            Event::Replied { id, reply } => {
                if let Some(connection) = self.connections.all.get(&id) {
                    if connection.pair.is_some() {
                        pairs::open(&mut self.hca, connection.qpn, &reply.attributes)?;
                    }
                    self.connections.opened.insert(connection.host, id);
                }
                // The gateway may have withdrawn it in the same iteration: the next event reports that.
                if self.table.ready(now, id).is_ok() {
                    self.connections.accepted += 1;
                    self.connections.under_way = self.connections.under_way.saturating_sub(1);
                }
            }
            Event::Established { id } => {
                if let Some(connection) = self.connections.all.get(&id).filter(|c| !c.old) {
                    self.connections.confirmed.insert(connection.host);
                }
            }
            Event::Rejected { id, reject } => self.refused(id, format!("rejected: {reject:?}"))?,
            Event::TimedOut { id } => self.refused(id, "a message was never answered".to_owned())?,
            Event::Disconnected { id, cause } => {
                if cause != DisconnectCause::Us {
                    self.connections.lost += 1;
                    self.connections.failed.push("the gateway closed a connection".to_owned());
                }
                self.ended(id)?;
            }
            Event::Released { id } => {
                self.ended(id)?;
                if let Some(connection) = self.connections.all.remove(&id)
                    && let Some(pairs) = &mut self.connections.pairs
                {
                    pairs.unmake(&mut self.hca, connection.qpn)?;
                }
            }
        }
        Ok(())
    }
}
