//! The embedded subnet manager with its subnet administration, without I/O: MADs in, MADs out, `now` as an
//! argument.
//!
//! It is behind port 0 of a switch, as in a managed switch:
//!
//! - A packet from QP0 with the permissive LID is a directed-route SMP with hop pointer 0. The switch's SMI
//!   forwards it, and answers it if the hop count is 0. SMPs use VL15.
//! - Packets from QP1 are routed by LID.
//!
//! A sweep goes through the phases of `sweep::Phase`. It compares the discovered state with the desired one
//! and writes only the differences. A sweep over a healthy subnet only reads.

mod discovery;
mod duplicates;
mod mute;
mod program;
mod read_back;
mod routing;
mod step;
mod sweep;
#[cfg(test)]
mod tests;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadStatus, Method, MgmtClass};
use ib_wire::sa::{Notice, trap};
use ib_wire::smp::{PortState, SmInfo, SmState, Smp, attribute};
use ib_wire::{Gid, Lid, Qpn};

use crate::sa::{Output, Server};
use crate::subnet::{Counters, LidBlock, Partition, PortId, SmConfig};
use step::Step;
use sweep::{Phase, Sweep};

/// Most datagrams that wait to be sent; further answers are dropped and counted.
const MAX_QUEUED: usize = 4096;

/// Time after a sweep in which a node did not answer. It doubles after every [`RETRIES`] such sweeps in a
/// row, up to 4 s.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Sweeps before the pause doubles.
const RETRIES: u32 = 4;
/// Time until interrupted reading back starts again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Subnet manager and subnet administration.
#[derive(Debug)]
pub struct SubnetManager {
    config: SmConfig,
    sweep: Sweep,
    sa: Server,
    /// When the next sweep, light or full, starts.
    next_sweep: Instant,
    /// When a sweep next reads back what was written.
    next_read_back: Instant,
    /// Reading back was interrupted.
    interrupted: bool,
    /// Joins may interrupt reading back: they did not the last time.
    may_interrupt: bool,
    /// Sweeps in a row in which a node did not answer.
    incomplete_sweeps: u32,
    /// Multicast tables differ from the groups.
    groups_changed: bool,
    /// A discovery has ended since [`Self::take_sources`].
    sources_changed: bool,
    /// The first full sweep is done.
    up: bool,
    act_count: u32,
    counters: Counters,
    out: VecDeque<Mad>,
}

impl SubnetManager {
    /// Creates the subnet manager; its first sweep is due at once.
    #[must_use]
    pub fn new(now: Instant, config: SmConfig) -> Self {
        let mut manager = Self {
            sweep: Sweep::new(&config),
            sa: Server::new(&config),
            next_sweep: now,
            next_read_back: now,
            interrupted: false,
            may_interrupt: true,
            incomplete_sweeps: 0,
            groups_changed: false,
            sources_changed: false,
            up: false,
            act_count: 0,
            counters: Counters::default(),
            out: VecDeque::new(),
            config,
        };
        manager.handle_timeout(now);
        manager
    }

    /// Handles a MAD for the subnet manager's port: SMPs (responses, traps) that the switch's own agent does
    /// not answer, and everything for QP1. `mad.peer` is the sender; its class identifies the receiving queue
    /// pair.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) {
        match mad.header().class {
            MgmtClass::SubnLid | MgmtClass::SubnDirected => self.handle_smp(now, mad),
            MgmtClass::SubnAdm if mad.peer.qpn != Qpn::SMI => {
                let subnet = &self.sweep.subnet;
                let limit = self.sweep.multicast_limit();
                let mut to =
                    Output { now, config: &self.config, counters: &mut self.counters, out: &mut self.out };
                self.groups_changed |= self.sa.handle(mad, subnet, limit, &mut to);
            }
            _ => self.counters.unknown += 1,
        }
        self.progress(now);
    }

    fn handle_smp(&mut self, now: Instant, mad: &Mad) {
        let Ok(smp) = Smp::from_mad(&mad.bytes) else {
            self.counters.unknown += 1;
            return;
        };
        match (smp.header.method, smp.header.attribute) {
            (Method::GetResp, _) => match self.sweep.smps.answer(&smp) {
                Some((step, repeats)) => {
                    self.sweep.waited(now, &step, repeats);
                    self.sweep.answered(step, &smp, &self.config, &mut self.counters);
                }
                None if self.sweep.mute.answer(&smp) => self.want_sweep(now),
                None => self.counters.unasked += 1,
            },
            (Method::Trap, attribute::NOTICE) => {
                self.counters.traps += 1;
                // The repress returns the notice (IBA 13.4.9), if there is a path back.
                let from = self.sweep.subnet.by_lid(mad.peer.lid).filter(|_| !smp.is_directed());
                if let Some(from) = from {
                    let mut repress = smp;
                    repress.mkey =
                        self.config.m_keys.and_then(|keys| keys.of_port(from.node, from.id.1)).unwrap_or(0);
                    repress.header.method = Method::TrapRepress;
                    self.out.push_back(repress.to_mad(mad.peer.lid));
                }
                // A trap of a host that does not know the key changes nothing.
                let is_change =
                    smp.attribute::<Notice>().is_none_or(|notice| notice.trap_number != trap::BAD_MKEY);
                if is_change {
                    self.want_sweep(now);
                }
            }
            (Method::Get, attribute::SM_INFO) => {
                let info = SmInfo {
                    guid: self.config.port_guid,
                    sm_key: 0,
                    act_count: self.act_count,
                    priority: ib_wire::smp::SmPriority::new(0),
                    state: SmState::Master,
                };
                let mut answer = smp.answer(MadStatus::OK);
                answer.set_attribute(&info);
                self.out.push_back(answer.to_mad(mad.peer.lid));
            }
            _ => self.counters.unknown += 1,
        }
    }

    /// Returns the next MAD to send; `peer.qpn` is 0 for SMPs (VL15, from QP0) and 1 for others (from QP1).
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.out.pop_front()
    }

    /// Returns the switch ports with a channel adapter at their other end, and its LIDs; `None` if nothing
    /// changed since the last call.
    pub(crate) fn take_sources(&mut self) -> Option<BTreeMap<PortId, LidBlock>> {
        std::mem::take(&mut self.sources_changed).then(|| self.sweep.subnet.sources())
    }

    /// Returns the source LIDs that ports to switches of another owner must not accept.
    pub(crate) fn elsewhere(&self) -> BTreeMap<PortId, BTreeSet<Lid>> {
        self.sweep.subnet.elsewhere(&self.config.own)
    }

    /// Returns the number of pairs of ports, groups, members and ports that requests to subnet administration
    /// examined since the last call.
    pub(crate) const fn take_examined(&mut self) -> usize {
        self.sa.take_examined()
    }

    /// Returns when [`Self::handle_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let idle = self.sweep.phase == Phase::Rest && self.sweep.smps.is_idle();
        let sweep = idle.then_some(self.next_sweep);
        [sweep, self.sweep.smps.due(), self.sweep.mute.due(), self.sa.due()].into_iter().flatten().min()
    }

    /// Does the work that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        for step in self.sweep.smps.expire(now, &mut self.out) {
            self.counters.smp_lost += 1;
            self.sweep.lost(now, step);
        }
        if self.sweep.mute.expire(now, &mut self.out) {
            self.want_sweep(now);
        }
        self.sweep.mute.query(now, false, &mut self.out);
        let config = &self.config;
        let subnet = &self.sweep.subnet;
        self.sa.expire(subnet, &mut Output { now, config, counters: &mut self.counters, out: &mut self.out });
        self.progress(now);
    }

    /// Handles a change of state of a port of the switch at port 0; equivalent to trap 128, without a MAD.
    pub fn handle_port_change(&mut self, now: Instant) {
        self.want_sweep(now);
        self.progress(now);
    }

    /// Changes the subnet's prefix: a sweep sets it on every port. Members remain in their groups, which
    /// identify them by port GUID.
    pub fn set_prefix(&mut self, now: Instant, prefix: u64) {
        if self.config.subnet_prefix != prefix {
            self.config.subnet_prefix = prefix;
            self.sweep.subnet.prefix = prefix;
            self.want_sweep(now);
            self.progress(now);
        }
    }

    /// Sets the hop limit of paths that subnet administration returns from now on.
    pub const fn set_hop_limit(&mut self, hop_limit: u8) {
        self.config.hop_limit = hop_limit;
    }

    /// Changes the partitions: a sweep writes every port's keys and the switches', and creates and deletes
    /// broadcast groups.
    pub fn set_partitions(&mut self, now: Instant, partitions: Vec<Partition>) {
        if self.config.partitions != partitions {
            self.config.partitions = partitions;
            self.want_sweep(now);
            self.progress(now);
        }
    }

    /// True once every discovered port is configured and no change is in progress.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up && self.sweep.phase == Phase::Rest && !self.sweep.wanted && !self.sweep.incomplete
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns LID and GID of every port that has a LID, in the order of the LIDs.
    pub fn ports(&self) -> impl Iterator<Item = (Lid, Gid)> + '_ {
        let subnet = &self.sweep.subnet;
        subnet.end_ports().map(|e| (e.port.lid, e.gid(subnet)))
    }

    /// Returns MGID, MLID and number of members of every group.
    pub fn groups(&self) -> impl Iterator<Item = (Gid, Lid, usize)> + '_ {
        self.sa.groups()
    }

    fn want_sweep(&mut self, now: Instant) {
        self.sweep.wanted = true;
        if self.sweep.phase == Phase::Rest && self.up {
            self.next_sweep = self.next_sweep.min(now + self.config.sweep_hold_off);
        }
    }

    /// Sends what the window allows, and enters the next phase when one is complete.
    fn progress(&mut self, now: Instant) {
        // Joins and links do not wait for the answers of a host that is only read back. But an endless series
        // of joins must not keep the subnet manager from reading: its reads renew the leases of the keys.
        let is_urgent = self.groups_changed && self.may_interrupt || self.sweep.wanted;
        if self.sweep.phase == Phase::Rest && is_urgent && self.sweep.smps.abandon(Step::reads_back) {
            self.interrupted = true;
            self.next_read_back = now;
            self.next_sweep = self.next_sweep.min(now + READ_AGAIN);
        }
        loop {
            self.sweep.smps.send(now, &mut self.out);
            if !self.sweep.smps.is_idle() || !self.next_phase(now) {
                break;
            }
        }
        while self.out.len() > MAX_QUEUED {
            self.out.pop_back();
            self.counters.out_dropped += 1;
        }
    }

    /// Enters the next phase after all answers. True if there is something to send now, or yet another phase
    /// to check.
    fn next_phase(&mut self, now: Instant) -> bool {
        match self.sweep.phase {
            Phase::Rest if now >= self.next_sweep => {
                if self.sweep.wanted || self.sweep.incomplete || !self.up {
                    let reads_back = now >= self.next_read_back;
                    self.sweep.start(reads_back);
                    self.sweep.mute.query(now, true, &mut self.out);
                    if reads_back {
                        self.next_read_back = now + self.config.sweep_interval;
                    }
                } else {
                    self.next_sweep = now + self.config.sweep_interval;
                    self.next_read_back = self.next_sweep;
                    self.may_interrupt = !std::mem::take(&mut self.interrupted);
                    self.sweep.probe();
                }
                true
            }
            Phase::Rest if self.sweep.wanted && self.next_sweep > now + self.config.sweep_hold_off => {
                // A probe found a change.
                self.next_sweep = now + self.config.sweep_hold_off;
                false
            }
            // A branch that must be cut may still exist, so joins wait for the next sweep.
            Phase::Rest if self.sweep.unpruned => false,
            Phase::Rest => {
                if !std::mem::take(&mut self.groups_changed) {
                    return false;
                }
                let blocks = self.sa.take_changed();
                let receivers = self.sa.receivers_of(&blocks, &self.sweep.subnet);
                self.sweep.program_multicast(&receivers, Some(&blocks));
                true
            }
            Phase::Discover => {
                if self.sweep.settle_moved(&self.config, &mut self.counters) {
                    return true;
                }
                let changes = self.sweep.decide(&self.config, &mut self.counters);
                self.sources_changed = true;
                let subnet = &self.sweep.subnet;
                let config = &self.config;
                let mut to = Output { now, config, counters: &mut self.counters, out: &mut self.out };
                let limit = self.sweep.multicast_limit();
                let informed = self.sa.ports_changed(&changes, subnet, limit, &mut to);
                self.sweep.subnet.reregister(&informed);
                self.groups_changed = false;
                self.sweep.prune(&self.sa.receivers(&self.sweep.subnet));
                true
            }
            Phase::Prune => {
                // This includes members that joined or left in the meantime.
                self.groups_changed = false;
                self.sa.take_changed();
                let receivers = self.sa.receivers(&self.sweep.subnet);
                self.sweep.configure(&self.config, &receivers, &mut self.counters);
                true
            }
            Phase::Configure => {
                self.sweep.take_unconfigured_down(now, &mut self.counters);
                self.sweep.advance_links(Phase::Arm, PortState::Init, PortState::Armed);
                true
            }
            Phase::Arm => {
                self.sweep.advance_links(Phase::Activate, PortState::Armed, PortState::Active);
                true
            }
            Phase::Activate => {
                self.sweep.phase = Phase::Rest;
                self.sweep.end(now);
                self.up = true;
                self.act_count = self.act_count.wrapping_add(1);
                self.counters.sweeps += 1;
                let repeats = if self.sweep.retry { self.incomplete_sweeps + 1 } else { 0 };
                self.incomplete_sweeps = repeats;
                let retry = RETRY_PAUSE * (1 << (repeats.saturating_sub(1) / RETRIES).min(4));
                let pause = match (self.sweep.wanted, self.sweep.retry) {
                    (true, _) => self.config.sweep_hold_off,
                    (_, true) => self.config.sweep_interval.min(retry),
                    _ => self.config.sweep_interval,
                };
                self.next_sweep = now + pause;
                true
            }
        }
    }
}
