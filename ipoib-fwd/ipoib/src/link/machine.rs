//! The link itself: its parts, its queues, its clock, and its publications.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca::UdDestination;
use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Lid, PKey};

use super::action::{Action, Event, LinkState, Publication};
use super::connections::{self, Connections};
use super::ground::{Ground, Stage};
use super::groups::{self, Groups};
use super::neighbours::NeighbourMap;
use super::outbox::{Outbox, Word};
use super::paths::{self, Paths, Reason};
use super::request::Request;
use super::settings::{LinkIndex, LinkSettings, Mode, WorkerIndex};
use super::statistics::{CloseReason, GroupInfo, LinkCounters};
use super::table::{NeighbourChange, Neighbours};
use super::timers::Timer;
use super::waiting::Waiting;
use super::{LinkError, MAX_MESSAGE};

/// Upper limit of durations in the settings: a year.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The control side of one IPoIB link. See the [module's documentation](super).
#[derive(Debug)]
pub struct Link {
    pub(super) ground: Ground,
    pub(super) groups: Groups,
    pub(super) paths: Paths,
    pub(super) neighbours: NeighbourMap,
    pub(super) conns: Connections,
    pub(super) out: Outbox,
    /// The last reported condition that the link waits for.
    pub(super) waiting: Option<Waiting>,
    state: Arc<LinkState>,
    table: Neighbours,
}

impl Link {
    /// A link that waits for [`Link::handle_port`].
    pub(crate) fn new(index: LinkIndex, mut settings: LinkSettings, now: Instant) -> Result<Self, LinkError> {
        check(&settings)?;
        // Deadlines are computed without overflow checks.
        for span in [&mut settings.passive_idle, &mut settings.neighbour_idle, &mut settings.teardown_timeout]
        {
            *span = (*span).min(LONGEST);
        }
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
            groups: Groups::default(),
            paths: Paths::default(),
            neighbours: NeighbourMap::new(now, &settings),
            conns: Connections::new(index),
            out: Outbox::new(settings.seed),
            ground: Ground::new(settings),
            waiting: None,
            state: Arc::new(state),
            table: Neighbours::default(),
        };
        for group in groups {
            link.join(now, group);
        }
        Ok(link)
    }

    /// A stopped link: requests to it have no effect.
    pub fn over(settings: LinkSettings, now: Instant) -> Result<Self, LinkError> {
        let mut link = Self::new(LinkIndex::default(), LinkSettings { groups: Vec::new(), ..settings }, now)?;
        link.ground.stage = Stage::Stopped;
        Ok(link)
    }

    /// The next action, other than a publication.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.out.actions.pop_front()
    }

    /// The next request to the port's services.
    pub(crate) fn poll_request(&mut self) -> Option<Request> {
        self.out.requests.pop_front()
    }

    /// The next event.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// The time at which [`Link::handle_timeout`] must be called, if nothing else happens before.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.out.timers.next().into_iter().chain(self.neighbours.poll_timeout()).min()
    }

    // -- the parts, with the state that they borrow

    pub(super) fn at_groups(&mut self) -> groups::Work<'_> {
        groups::Work { groups: &mut self.groups, ground: &self.ground, out: &mut self.out }
    }

    pub(super) fn at_paths(&mut self) -> paths::Work<'_> {
        let Self { paths, ground, groups, neighbours, out, .. } = self;
        paths::Work { paths, ground, groups, neighbours, out }
    }

    /// Runs an operation on the connections, and delivers the resulting messages.
    pub(super) fn with_conns<R>(
        &mut self,
        now: Instant,
        work: impl FnOnce(&mut connections::Work<'_>) -> R,
    ) -> R {
        let Self { conns, ground, paths, out, .. } = self;
        let result = work(&mut connections::Work { conns, ground, paths, out });
        self.pass_on(now);
        result
    }

    /// Delivers the messages between the parts.
    pub(super) fn pass_on(&mut self, now: Instant) {
        while let Some(word) = self.out.words.pop_front() {
            match word {
                Word::Suspect(peer) => self.suspect(now, peer),
                Word::Republish(peer) => self.republish(peer),
                Word::RepublishAll => self.republish_all(),
                Word::WantPath(gid, lid) => {
                    self.at_paths().want(now, gid, Reason::Named(lid));
                }
                Word::ProvePath(gid, lid) => {
                    self.at_paths().want(now, gid, Reason::Accepted(lid));
                }
                Word::RefreshPath(gid) => self.at_paths().refresh(gid),
                Word::CheckLid(gid, lid) => self.at_paths().check_lid(gid, lid),
                Word::Joined => self.link_up(),
                Word::Excluded => self.link_down(now),
                Word::ConnectionGone => self.connection_gone(now),
            }
        }
    }

    // -- time and shutdown

    /// Handles the deadlines that have passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.neighbours_timeout(now);
        while let Some(timer) = self.out.timers.expired(now) {
            match timer {
                Timer::Group(ip) => self.at_groups().timeout(ip),
                Timer::Conn(key) => self.with_conns(now, |conns| conns.timeout(now, key)),
                Timer::Dial(gid, qpn, worker) => self.dial_timeout(now, (gid, qpn), worker),
                Timer::Left(gid, qpn) => self.left_timeout(now, gid, qpn),
                Timer::Moved(gid, qpn) => self.moved_timeout(now, gid, qpn),
                Timer::PassiveExpiry => self.with_conns(now, |conns| conns.expire_passive(now)),
                Timer::PathSweep => self.at_paths().sweep_timeout(now),
                Timer::Shutdown => self.finish_leaving(),
            }
        }
    }

    /// Answers [`Action::Publish`]: every worker has taken up `generation` or a later one.
    pub fn handle_quiescent(&mut self, now: Instant, generation: u64) {
        // A generation that was never published cannot have been taken up.
        self.out.quiescent = self.out.quiescent.max(generation.min(self.out.generation));
        let quiescent = self.out.quiescent;
        self.with_conns(now, |conns| {
            conns.release_slots();
            conns.retire_quiescent(now, quiescent);
        });
    }

    /// Sets whether the owner represents other hosts. If not, another gateway represents them: the link then
    /// queries without a source address, and does not repeat unanswered queries.
    pub const fn speak(&mut self, speaks: bool) {
        self.ground.speaks = speaks;
    }

    /// Applies the settings that may change while the link is running. Changes nothing if the settings are
    /// invalid.
    ///
    /// These are the parameters of new connections ([`LinkSettings::receive_mtu`], which must not exceed the
    /// room of the device's receives, and the retries), and the idle limits.
    pub fn follow(&mut self, now: Instant, settings: &LinkSettings) -> Result<(), LinkError> {
        check(settings)?;
        let own = &mut self.ground.settings;
        own.receive_mtu = settings.receive_mtu;
        own.retry_count = settings.retry_count;
        own.rnr_retry = settings.rnr_retry;
        own.passive_idle = settings.passive_idle.min(LONGEST);
        own.neighbour_idle = settings.neighbour_idle.min(LONGEST);
        self.neighbours.follow(&self.ground.settings);
        // The next expiry may be earlier now.
        self.with_conns(now, |conns| conns.expire_passive(now));
        Ok(())
    }

    /// Switches between datagram and connected mode.
    pub fn set_mode(&mut self, now: Instant, mode: Mode) {
        if mode == self.ground.settings.mode || self.ground.is_shutting_down() {
            return;
        }
        self.ground.settings.mode = mode;
        self.out.state_dirty = true;
        // Addresses announce the mode in their flags, and entries say whether to report use for a dial.
        self.republish_all();
        match mode {
            // Passive connections stay until their peers close them.
            Mode::Datagram => {
                self.with_conns(now, |conns| {
                    conns.close_all(now, Some(false), CloseReason::ModeChanged);
                    conns.forget_dials();
                });
            }
            Mode::Connected => self.dial_all(now),
        }
    }

    /// Closes everything: connections by DREQ, groups by leaving them. Complete when [`Link::is_stopped`].
    pub fn shutdown(&mut self, now: Instant) {
        if self.ground.stage != Stage::Running {
            return;
        }
        self.ground.stage = Stage::Closing;
        self.forget_all(now, CloseReason::Shutdown);
        self.with_conns(now, |conns| {
            conns.close_all(now, None, CloseReason::Shutdown);
            conns.forget_dials();
        });
        self.out.state_dirty = true;
        self.connection_gone(now);
    }

    /// Continues a shutdown if the last connection is gone.
    pub(super) fn connection_gone(&mut self, now: Instant) {
        if self.ground.stage != Stage::Closing || !self.conns.map.is_empty() {
            return;
        }
        self.ground.stage = Stage::Leaving;
        self.at_groups().leave_all();
        self.at_paths().drop_all();
        if self.ground.up {
            self.ground.up = false;
            self.out.events.push_back(Event::Down);
        }
        self.out.state_dirty = true;
        self.out.timers.set(Timer::Shutdown, now + self.ground.settings.teardown_timeout);
        self.check_left();
    }

    /// Completes a shutdown once all answers have come.
    pub(super) fn check_left(&mut self) {
        if self.ground.stage == Stage::Leaving && !self.groups.is_leaving() {
            self.finish_leaving();
        }
    }

    fn finish_leaving(&mut self) {
        if self.ground.stage == Stage::Leaving {
            self.ground.stage = Stage::Stopped;
            self.out.timers.cancel(Timer::Shutdown);
            self.out.events.push_back(Event::Stopped);
        }
    }

    /// True once a shutdown is complete: nothing of the link is left on the device or in the fabric.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.ground.stage == Stage::Stopped
    }

    /// True if the link is stopped and no worker uses any of its state: its index may be reused.
    pub(crate) fn is_settled(&self) -> bool {
        let waits = !self.conns.quarantine.is_empty()
            || !self.out.actions.is_empty()
            || !self.out.requests.is_empty();
        let unpublished = self.out.is_dirty() || self.out.quiescent < self.out.generation;
        self.is_stopped() && !waits && !unpublished
    }

    /// The link-layer address of a worker, with the flag of connected mode if it is in force.
    #[must_use]
    pub fn address(&self, worker: WorkerIndex) -> Option<HardwareAddress> {
        self.ground.address(worker)
    }

    /// Builds a publication of the changes; `None` if nothing has changed.
    pub(crate) fn publish(&mut self) -> Option<Publication> {
        if !self.out.is_dirty() {
            return None;
        }
        let dirty = std::mem::take(&mut self.out.dirty);
        let changes: Vec<NeighbourChange> = dirty
            .into_iter()
            .map(|ip| self.table_entry(ip))
            .filter(|change| match change {
                NeighbourChange::Set(new) => self.table.get(new.ip) != Some(new),
                NeighbourChange::Remove(ip) => self.table.get(*ip).is_some(),
            })
            .collect();
        if std::mem::take(&mut self.out.state_dirty) {
            let up = self.ground.up;
            self.state = Arc::new(LinkState {
                up,
                mode: self.ground.settings.mode,
                ud_mtu: self.groups.ud_mtu(self.ground.port.mtu),
                broadcast: if up { self.groups.broadcast_destination() } else { None },
                groups: if up { self.groups.group_destinations() } else { Vec::new() },
                addresses: self.ground.worker_indices().filter_map(|w| self.ground.address(w)).collect(),
                lid: self.ground.port.lid,
            });
        } else if changes.is_empty() && !self.out.is_owed() {
            return None;
        }
        self.table = self.table.with(changes.iter().cloned());
        self.out.generation += 1;
        Some(Publication { generation: self.out.generation, state: Arc::clone(&self.state), changes })
    }

    /// Joins an IPv4 group for as long as the link exists; false if `group` is no group or the limit is
    /// reached.
    pub fn join(&mut self, _now: Instant, group: Ipv4Addr) -> bool {
        self.at_groups().join(group)
    }

    /// Leaves a group.
    pub fn leave(&mut self, _now: Instant, group: Ipv4Addr) {
        self.at_groups().leave(group);
    }

    /// All groups.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupInfo> {
        self.groups.list()
    }

    /// The destination of broadcasts.
    #[must_use]
    pub fn broadcast_destination(&self) -> Option<UdDestination> {
        self.groups.broadcast_destination()
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

    /// The settings at the link's start; the mode is the present one.
    #[must_use]
    pub const fn settings(&self) -> &LinkSettings {
        &self.ground.settings
    }

    /// Counters.
    #[must_use]
    pub const fn counters(&self) -> &LinkCounters {
        &self.out.counters
    }
}

/// Rejects invalid settings.
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
