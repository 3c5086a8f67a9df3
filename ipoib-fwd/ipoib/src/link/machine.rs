//! The link itself: its parts, its queues, its clock, and what it publishes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca::PortState;
use ib_wire::ipoib::{AddressFlags, HardwareAddress};
use ib_wire::{Lid, PKey, QKey};

use super::action::{Action, Event, LinkState, Publication};
use super::connections::Connections;
use super::groups::Group;
use super::neighbours::NeighbourMap;
use super::own_address::OwnAddress;
use super::paths::Paths;
use super::random::Random;
use super::request::Request;
use super::settings::{LinkIndex, LinkSettings, Mode, PortFacts, WorkerIndex};
use super::statistics::{CloseReason, LinkCounters};
use super::table::{NeighbourChange, Neighbours};
use super::timers::{Timer, Timers};
use super::waiting::Waiting;
use super::{LinkError, MAX_MESSAGE};

/// Longest time that a setting means: a year.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// How far a shutdown has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// None was asked for.
    Running,
    /// Connections are being closed.
    Closing,
    /// Groups are being left.
    Leaving,
    /// Complete.
    Stopped,
}

/// The control side of one IPoIB link. See the [module's documentation](super).
#[derive(Debug)]
pub struct Link {
    pub(super) settings: LinkSettings,
    pub(super) port: PortFacts,
    pub(super) own: OwnAddress,
    pub(super) stage: Stage,
    /// It asks in the name of those whom its owner stands for.
    pub(super) speaks: bool,
    /// Broadcast group joined, port active.
    pub(super) up: bool,
    /// What the datagram queue pairs were opened with.
    pub(super) opened: Option<(u16, QKey)>,
    pub(super) random: Random,
    pub(super) timers: Timers,
    /// What the port's services are to do.
    pub(super) requests: VecDeque<Request>,
    /// Groups whose leaving has not been answered.
    pub(super) leaving: usize,
    pub(super) groups: HashMap<Ipv4Addr, Group>,
    pub(super) paths: Paths,
    pub(super) neighbours: NeighbourMap,
    pub(super) conns: Connections,
    pub(super) actions: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: LinkCounters,
    /// What the owner was last told that the link waits for.
    pub(super) waiting: Option<Waiting>,
    /// Neighbours whose table entry has to be made anew.
    pub(super) dirty: BTreeSet<Ipv4Addr>,
    /// The link's state has to be published anew.
    pub(super) state_dirty: bool,
    /// The last publication, and the last that all workers have taken up.
    pub(super) generation: u64,
    pub(super) quiescent: u64,
    state: Arc<LinkState>,
    table: Neighbours,
}

impl Link {
    /// A link that waits for [`Link::handle_port`].
    pub(crate) fn new(index: LinkIndex, mut settings: LinkSettings, now: Instant) -> Result<Self, LinkError> {
        check(&settings)?;
        // Deadlines are reckoned without looking for an overflow.
        for span in [&mut settings.passive_idle, &mut settings.neighbour_idle, &mut settings.teardown_timeout]
        {
            *span = (*span).min(LONGEST);
        }
        let random = Random::new(settings.seed);
        let state = LinkState {
            up: false,
            mode: settings.mode,
            ud_mtu: 0,
            broadcast: None,
            groups: Vec::new(),
            addresses: Vec::new(),
            lid: Lid(0),
        };
        let groups = std::mem::take(&mut settings.groups);
        let mut link = Self {
            port: PortFacts::DOWN,
            own: OwnAddress::default(),
            stage: Stage::Running,
            speaks: true,
            up: false,
            opened: None,
            timers: Timers::default(),
            requests: VecDeque::new(),
            leaving: 0,
            groups: HashMap::new(),
            paths: Paths::default(),
            neighbours: NeighbourMap::new(now),
            conns: Connections::new(index),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            counters: LinkCounters::default(),
            waiting: None,
            dirty: BTreeSet::new(),
            state_dirty: true,
            generation: 0,
            quiescent: 0,
            state: Arc::new(state),
            table: Neighbours::default(),
            random,
            settings,
        };
        for group in groups {
            link.join(now, group);
        }
        Ok(link)
    }

    /// A link that is over: what is asked of it has no effect.
    pub fn over(settings: LinkSettings, now: Instant) -> Result<Self, LinkError> {
        let mut link = Self::new(LinkIndex::default(), LinkSettings { groups: Vec::new(), ..settings }, now)?;
        link.stage = Stage::Stopped;
        Ok(link)
    }

    /// The next thing to do, other than to publish.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to know.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Link::handle_timeout`] wants to be called, if nothing else happens before.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Lets time pass.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.expired(now) {
            match timer {
                Timer::Group(ip) => self.group_timeout(ip),
                Timer::Neighbour(ip) => self.neighbour_timeout(now, ip),
                Timer::Conn(key) => self.connection_timeout(now, key),
                Timer::Dial(gid, qpn, worker) => self.dial_timeout(now, (gid, qpn), worker),
                Timer::PassiveExpiry => self.expire_passive(now),
                Timer::PathSweep => self.path_sweep_timeout(now),
                Timer::Shutdown => self.finish_leaving(),
            }
        }
    }

    /// Answers [`Action::Publish`]: every worker has taken up `generation` or a later one.
    pub fn handle_quiescent(&mut self, now: Instant, generation: u64) {
        // A generation that was never published cannot have been taken up.
        self.quiescent = self.quiescent.max(generation.min(self.generation));
        self.release_slots();
        self.retire_quiescent(now, self.quiescent);
    }

    /// Whether it is for the owner to speak for others. If not, the link asks in nobody's name, and does not ask again for those who have
    /// not answered: another gateway answers for them.
    pub const fn speak(&mut self, speaks: bool) {
        self.speaks = speaks;
    }

    /// Switches between datagram and connected mode.
    pub fn set_mode(&mut self, now: Instant, mode: Mode) {
        if mode == self.settings.mode || self.is_shutting_down() {
            return;
        }
        self.settings.mode = mode;
        self.state_dirty = true;
        // Addresses announce the mode in their flags, entries say whether to ask for a dial.
        self.republish_all();
        match mode {
            // Passive connections stay until their peers let go of them.
            Mode::Datagram => {
                self.close_all(now, Some(false), CloseReason::ModeChanged);
                self.forget_dials();
            }
            Mode::Connected => self.dial_all(now),
        }
    }

    /// Closes everything: connections by DREQ, groups by leaving them. Complete when [`Link::is_stopped`].
    pub fn shutdown(&mut self, now: Instant) {
        if self.stage != Stage::Running {
            return;
        }
        self.stage = Stage::Closing;
        self.forget_all(now, CloseReason::Shutdown);
        self.close_all(now, None, CloseReason::Shutdown);
        self.forget_dials();
        self.state_dirty = true;
        self.connection_gone(now);
    }

    /// A connection is no more; perhaps it was the last that a shutdown waits for.
    pub(super) fn connection_gone(&mut self, now: Instant) {
        if self.stage != Stage::Closing || !self.conns.map.is_empty() {
            return;
        }
        self.stage = Stage::Leaving;
        self.leave_all();
        self.drop_paths();
        if self.up {
            self.up = false;
            self.events.push_back(Event::Down);
        }
        self.state_dirty = true;
        self.timers.set(Timer::Shutdown, now + self.settings.teardown_timeout);
        self.check_left();
    }

    /// Nobody owes us an answer any more: a shutdown is complete.
    pub(super) fn check_left(&mut self) {
        if self.stage == Stage::Leaving && self.leaving == 0 {
            self.finish_leaving();
        }
    }

    fn finish_leaving(&mut self) {
        if self.stage == Stage::Leaving {
            self.stage = Stage::Stopped;
            self.timers.cancel(Timer::Shutdown);
            self.events.push_back(Event::Stopped);
        }
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.stage != Stage::Running
    }

    /// True once a shutdown is complete: nothing of the link is left on the device or in the fabric.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stage == Stage::Stopped
    }

    /// True if it is stopped and no worker looks at anything of it: its index may be used again.
    pub(crate) fn is_settled(&self) -> bool {
        let waits =
            !self.conns.quarantine.is_empty() || !self.actions.is_empty() || !self.requests.is_empty();
        let unpublished = self.state_dirty || !self.dirty.is_empty() || self.quiescent < self.generation;
        self.is_stopped() && !waits && !unpublished
    }

    /// True if management datagrams can be sent and the P_Key is there.
    pub(super) fn port_usable(&self) -> bool {
        self.port.state == PortState::Active && self.port.pkey_index.is_some()
    }

    /// Indices of all workers.
    pub(super) fn worker_indices(&self) -> impl Iterator<Item = WorkerIndex> + use<> {
        // `new` has checked that there are no more than 255.
        (0..self.settings.workers.len().min(255) as u8).map(WorkerIndex)
    }

    /// The link-layer address of a worker, with the flag of connected mode if it is in force.
    #[must_use]
    pub fn address(&self, worker: WorkerIndex) -> Option<HardwareAddress> {
        let qpn = self.settings.workers.get(usize::from(worker.0))?.ud_qpn;
        let flags = match self.settings.mode {
            Mode::Datagram => AddressFlags::NONE,
            Mode::Connected => AddressFlags::RC,
        };
        Some(HardwareAddress { flags, qpn, gid: self.port.gid })
    }

    /// True for a link-layer address of ours.
    pub(super) fn is_own(&self, address: HardwareAddress) -> bool {
        self.own.is(address.gid) && self.settings.workers.iter().any(|w| w.ud_qpn == address.qpn)
    }

    /// The generation that has no entry of before this moment.
    pub(super) fn unpublished_since(&self) -> u64 {
        if self.dirty.is_empty() && !self.state_dirty { self.generation } else { self.generation + 1 }
    }

    /// Makes a publication of what has changed, if anything has.
    pub(crate) fn publish(&mut self) -> Option<Publication> {
        if self.dirty.is_empty() && !self.state_dirty {
            return None;
        }
        let dirty = std::mem::take(&mut self.dirty);
        let changes: Vec<NeighbourChange> = dirty
            .into_iter()
            .map(|ip| self.table_entry(ip))
            .filter(|change| match change {
                NeighbourChange::Set(new) => self.table.get(new.ip) != Some(new),
                NeighbourChange::Remove(ip) => self.table.get(*ip).is_some(),
            })
            .collect();
        if std::mem::take(&mut self.state_dirty) {
            let up = self.up;
            self.state = Arc::new(LinkState {
                up,
                mode: self.settings.mode,
                ud_mtu: self.ud_mtu(),
                broadcast: if up { self.broadcast_destination() } else { None },
                groups: if up { self.group_destinations() } else { Vec::new() },
                addresses: self.worker_indices().filter_map(|w| self.address(w)).collect(),
                lid: self.port.lid,
            });
        } else if changes.is_empty() {
            return None;
        }
        self.table = self.table.with(changes.iter().cloned());
        self.generation += 1;
        Some(Publication { generation: self.generation, state: Arc::clone(&self.state), changes })
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
}

/// Refuses settings that no link can have.
fn check(settings: &LinkSettings) -> Result<(), LinkError> {
    let workers = settings.workers.len();
    if workers == 0 || workers > 255 {
        return Err(LinkError::Workers(workers));
    }
    if !(5..=MAX_MESSAGE).contains(&settings.receive_mtu) {
        return Err(LinkError::ReceiveMtu(settings.receive_mtu));
    }
    for retries in [settings.retry_count, settings.rnr_retry] {
        if retries > 7 {
            return Err(LinkError::Retry(retries));
        }
    }
    if settings.pkey.base() == 0 {
        return Err(LinkError::PKey(PKey(settings.pkey.0)));
    }
    let bounds = [
        ("max_passive", settings.max_passive == 0),
        ("max_passive_from_lid", settings.max_passive_from_lid == 0),
        ("max_neighbours", settings.max_neighbours == 0),
        ("passive_idle", settings.passive_idle.is_zero()),
        ("neighbour_idle", settings.neighbour_idle.is_zero()),
        ("teardown_timeout", settings.teardown_timeout.is_zero()),
    ];
    match bounds.iter().find(|(_, zero)| *zero) {
        Some((name, _)) => Err(LinkError::Zero(name)),
        None => Ok(()),
    }
}
