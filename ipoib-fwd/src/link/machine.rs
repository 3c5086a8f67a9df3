//! The link itself.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use ib_wire::Qpn;
use ib_wire::mad::Mad;
use pmd::hca::UdSource;

use super::action::{Action, ConnKey, Event, LinkState, WorkerNote};
use super::settings::{LinkSettings, Mode, PortEvent, PortFacts, WorkerIndex};
use super::statistics::{ConnectionInfo, GroupInfo, LinkCounters, NeighbourInfo};
use super::table::Neighbours;
use super::{LinkError, MAX_MESSAGE};
use ib_wire::ipoib::Arp;
use ib_wire::ipoib::HardwareAddress;

/// The control side of one IPoIB link. See the [module's documentation](super).
#[derive(Debug)]
pub struct Link {
    settings: LinkSettings,
    port: PortFacts,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    table: Neighbours,
    state: Arc<LinkState>,
    counters: LinkCounters,
}

impl Link {
    /// A link that waits for [`Link::handle_port`].
    pub fn new(settings: LinkSettings, _now: Instant) -> Result<Self, LinkError> {
        let workers = settings.workers.len();
        if workers == 0 || workers > 255 {
            return Err(LinkError::Workers(workers));
        }
        if !(5..=MAX_MESSAGE).contains(&settings.receive_mtu) {
            return Err(LinkError::ReceiveMtu(settings.receive_mtu));
        }
        let state = Arc::new(LinkState {
            up: false,
            mode: settings.mode,
            ud_mtu: 0,
            broadcast: None,
            groups: Vec::new(),
            addresses: Vec::new(),
        });
        Ok(Self {
            port: PortFacts::DOWN,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            table: Neighbours::default(),
            counters: LinkCounters::default(),
            settings,
            state,
        })
    }

    /// Tells what the port is now, at start and when in doubt; differences to what was told before have the effect of
    /// the events that would have announced them.
    pub fn handle_port(&mut self, _now: Instant, facts: PortFacts) {
        self.port = facts;
    }

    /// Tells of an asynchronous event of the port (see [`PortEvent::from_async`]) and what the port is after it.
    pub fn handle_port_event(&mut self, now: Instant, _event: PortEvent, facts: PortFacts) {
        self.handle_port(now, facts);
    }

    /// Takes a management datagram that the port's QP1 received. Returns false if it is of no use to this link.
    pub fn handle_mad(&mut self, _now: Instant, _mad: &Mad) -> bool {
        false
    }

    /// Takes an ARP packet that a worker received.
    pub fn handle_arp(&mut self, _now: Instant, _worker: WorkerIndex, _from: &UdSource, _packet: Arp) {}

    /// Asks for the address of `ip` on behalf of `source`, an address that is reached by `worker`'s link-layer address:
    /// forwarding found no entry. Rate limited; the answer is an event and a publication.
    pub fn resolve(&mut self, _now: Instant, _worker: WorkerIndex, _source: Ipv4Addr, _ip: Ipv4Addr) {}

    /// Tells in bulk what a worker has seen in use, about once a second: its passive queue pairs that received, and the
    /// neighbours that it sent to. The latter also at once, with a rate limit, where [`super::Neighbour::dial`] is set.
    pub fn handle_used(
        &mut self,
        _now: Instant,
        _worker: WorkerIndex,
        _received: &[Qpn],
        _sent: &[Ipv4Addr],
    ) {
    }

    /// Tells what befell a connected queue pair. Unknown numbers are ignored.
    pub fn handle_note(&mut self, _now: Instant, _qpn: Qpn, _note: WorkerNote) {}

    /// Answers [`Action::CreateRc`]: the queue pair's number, or `None` if the device refused.
    pub fn handle_created(&mut self, _now: Instant, _conn: ConnKey, _qpn: Option<Qpn>) {}

    /// Answers the connection's outstanding action: done, or failed.
    pub fn handle_done(&mut self, _now: Instant, _conn: ConnKey, _ok: bool) {}

    /// Answers [`Action::Publish`]: every worker has taken up `generation` or a later one.
    pub fn handle_quiescent(&mut self, _now: Instant, _generation: u64) {}

    /// Sends an ARP reply: `ip` is at `worker`'s link-layer address. Whoever asked becomes a neighbour.
    pub fn reply(
        &mut self,
        _now: Instant,
        _worker: WorkerIndex,
        _ip: Ipv4Addr,
        _to: HardwareAddress,
        _to_ip: Ipv4Addr,
    ) {
    }

    /// Sends an ARP request for `target` by broadcast, from `source` at `worker`'s link-layer address, without any state.
    pub fn request(&mut self, _now: Instant, _worker: WorkerIndex, _source: Ipv4Addr, _target: Ipv4Addr) {}

    /// Tells all that `ip` is at `worker`'s link-layer address: a gratuitous ARP request by broadcast.
    pub fn announce(&mut self, now: Instant, worker: WorkerIndex, ip: Ipv4Addr) {
        self.request(now, worker, ip, ip);
    }

    /// Joins an IPv4 group for as long as the link lives; false if it is none or there are too many.
    pub fn join(&mut self, _now: Instant, group: Ipv4Addr) -> bool {
        group.is_multicast()
    }

    /// Leaves a group.
    pub fn leave(&mut self, _now: Instant, _group: Ipv4Addr) {}

    /// Switches between datagram and connected mode.
    pub fn set_mode(&mut self, _now: Instant, _mode: Mode) {}

    /// Closes everything: connections by DREQ, groups by leaving them. Complete when [`Link::is_stopped`].
    pub fn shutdown(&mut self, _now: Instant) {}

    /// True once a shutdown is complete: nothing of the link is left on the device or in the fabric.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        false
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Link::handle_timeout`] wants to be called, if nothing else happens before.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, _now: Instant) {}

    /// True if `qpn` is a connected queue pair of this link.
    #[must_use]
    pub const fn owns(&self, _qpn: Qpn) -> bool {
        false
    }

    /// The link-layer address of a worker.
    #[must_use]
    pub fn address(&self, _worker: WorkerIndex) -> Option<HardwareAddress> {
        None
    }

    /// State, mode, MTU and groups as last published.
    #[must_use]
    pub const fn state(&self) -> &Arc<LinkState> {
        &self.state
    }

    /// The neighbour table as last published.
    #[must_use]
    pub const fn table(&self) -> &Neighbours {
        &self.table
    }

    /// What the link was told at its start; the mode is the one now in force.
    #[must_use]
    pub const fn settings(&self) -> &LinkSettings {
        &self.settings
    }

    /// Counters.
    #[must_use]
    pub const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// All connections.
    #[must_use]
    pub fn connections(&self, _now: Instant) -> Vec<ConnectionInfo> {
        Vec::new()
    }

    /// All neighbours.
    #[must_use]
    pub fn neighbours(&self, _now: Instant) -> Vec<NeighbourInfo> {
        Vec::new()
    }

    /// All groups.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupInfo> {
        Vec::new()
    }
}
