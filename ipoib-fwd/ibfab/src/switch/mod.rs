//! The switch: packets between its ports by linear and multicast forwarding tables, subnet management packets by
//! directed route, and port 0 with the switch's own agent and the subnet manager behind it.
//!
//! Store and forward. A packet whose egress is full stays in its link, which holds the sender
//! back; if the receiver takes nothing for the head-of-queue life time, packets to it are
//! dropped until it does (IBA 18.2.5.4). What comes in by a link between switches waits for slow receivers for
//! a ninth of the time at most.

mod agent;
mod forward;
mod inbox;
mod management;
mod port;
mod tables;
mod wait_budget;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use connectx::cable::{CableCounters, CableEnd};
use connectx::pma::Counted;
use connectx::trap::Traps;
use ib_wire::mad::Mad;
use ib_wire::smp::{PortInfo, PortState, SwitchInfo};
use ib_wire::{Guid, Lid, Mtu, Psn};

use agent::Agent;
use inbox::Inbox;
use port::Port;
use tables::{LinearTable, MulticastTable};
use wait_budget::WaitBudget;

use crate::subnet::LidBlock;
use crate::subnet::MKeys;

pub use port::{DropReason, PortCounters};

/// Most external ports; 255 means "no port" in a linear forwarding table.
pub const MAX_PORTS: usize = 254;
/// Packets that one port is given per turn.
const BURST: usize = 32;
/// Time that a packet may wait for receivers that take nothing.
const HEAD_OF_QUEUE_LIFE: Duration = Duration::from_millis(250);
/// Time that a packet waits before management packets pass it: data of a receiver that
/// is only slow stays in the link.
const PASSING: Duration = Duration::from_millis(1);
/// Data packets that management packets pass.
const MAX_WAITING: usize = 64;
/// After a multicast packet that waited for a receiver for at least this long, the following ones do not wait for that one for a time.
/// Where packets come in by a link between switches, [`PASSING`] is enough.
const LONG_WAIT: Duration = Duration::from_millis(10);
/// That time, in waits; those of several receivers add up. So receivers that take a packet from time to time hold up a sender of
/// multicasts for at most a ninth of the time.
const HURRY: u32 = 8;

/// What a switch is at its start.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// GUID of the node, its system and its port 0.
    pub guid: Guid,
    /// Name, shown as NodeDescription.
    pub name: String,
    /// Largest MTU of its ports.
    pub mtu: Mtu,
    /// External ports, at most [`MAX_PORTS`].
    pub ports: u8,
}

/// Number of a port; 0 is the switch itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwitchPort(pub u8);

/// A switch with a management port.
#[derive(Debug)]
pub struct Switch {
    agent: Agent,
    info: SwitchInfo,
    linear: LinearTable,
    multicast: MulticastTable,
    /// External ports; index 0 is port 1.
    ports: Vec<Port>,
    /// Index of the port that is served first of those that do not wait: after one that was.
    first: usize,
    /// Indexes of all ports in the order in which they are served.
    order: Vec<usize>,
    /// For whoever sits behind port 0.
    inbox: Inbox,
    /// Of packets that port 0 sends.
    psn: Psn,
    port_changed: bool,
    /// For a subnet manager elsewhere.
    traps: Traps,
    /// A port changed before there was a subnet manager to tell.
    untold: bool,
    /// Of port 0: what came to it and was dropped.
    own: PortCounters,
    /// Of port 0, for performance management.
    cleared0: Counted,
    /// Requests of performance management that came in with the burst at hand.
    questions: Vec<Mad>,
    /// Management packets that leave as soon as all links are in their places; at most one for each packet of a burst.
    postponed: Vec<(u8, Box<[u8]>)>,
}

/// Why nothing can be plugged in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the switch has no port {0}")]
pub struct NoSuchPort(pub u8);

impl Switch {
    /// A switch with nothing plugged in.
    #[must_use]
    pub fn new(config: &SwitchConfig) -> Self {
        let info = SwitchInfo {
            linear_cap: tables::LINEAR_CAP,
            multicast_cap: tables::MULTICAST_CAP,
            lids_per_port: 1,
            enhanced_port0: true,
            partition_enforcement_cap: tables::PARTITION_CAP,
            enforce_in: true,
            enforce_out: true,
            filter_raw_in: true,
            filter_raw_out: true,
            ..SwitchInfo::default()
        };
        Self {
            agent: Agent::new(config),
            info,
            linear: LinearTable::new(),
            multicast: MulticastTable::new(),
            ports: (0..config.ports).map(|_| Port::new(config.mtu, config.ports)).take(MAX_PORTS).collect(),
            first: 0,
            order: Vec::new(),
            inbox: Inbox::new(config.ports),
            psn: Psn::default(),
            port_changed: false,
            traps: Traps::default(),
            untold: false,
            own: PortCounters::default(),
            cleared0: Counted::default(),
            questions: Vec::new(),
            postponed: Vec::new(),
        }
    }

    /// Gives port 0 its M_Key before a subnet manager does.
    pub(crate) fn protect(&mut self, keys: MKeys) {
        let guid = self.agent.guid();
        self.agent.guard.set(&MKeys::protect(PortInfo::default(), keys.of(None, guid, guid), true));
    }

    /// Succeeds if there is such a port.
    pub(crate) fn has_port(&self, port: SwitchPort) -> Result<(), NoSuchPort> {
        let at = usize::from(port.0).checked_sub(1);
        at.and_then(|at| self.ports.get(at)).map(|_| ()).ok_or(NoSuchPort(port.0))
    }

    /// Plugs the end of a link into a port, in place of what was there, whose link is down then; `name` is for reports.
    pub fn plug(&mut self, port: SwitchPort, name: &str, link: CableEnd) -> Result<(), NoSuchPort> {
        let at = usize::from(port.0).checked_sub(1);
        let place = at.and_then(|at| self.ports.get_mut(at)).ok_or(NoSuchPort(port.0))?;
        name.clone_into(&mut place.name);
        place.link = Some(Box::new(link));
        if place.is_linked() {
            place.go_down();
            self.note_change();
        }
        Ok(())
    }

    /// Notes that a port leads to another switch.
    pub(crate) fn set_trunk(&mut self, port: SwitchPort) {
        if let Some(port) = usize::from(port.0).checked_sub(1).and_then(|at| self.ports.get_mut(at)) {
            port.wait_budget = Some(WaitBudget::new());
        }
    }

    /// Takes what is plugged into a port out of it; the link is down at both ends.
    pub fn unplug(&mut self, port: SwitchPort) {
        if let Some(place) = usize::from(port.0).checked_sub(1).and_then(|at| self.ports.get_mut(at)) {
            place.link = None;
        }
    }

    /// Sets the ports where a channel adapter is, and its LIDs: packets with another source are dropped there. A port whose
    /// adapter is not known any more keeps its LIDs while its link is up: an adapter that does not answer gets no other source.
    pub(crate) fn set_sources(&mut self, sources: impl Fn(SwitchPort) -> Option<LidBlock>) {
        for (port, number) in self.ports.iter_mut().zip(1..) {
            port.source = sources(SwitchPort(number)).or(port.source);
        }
    }

    /// Sets the LIDs of ports elsewhere: packets with such a source are dropped. A port for which there are none to set keeps what it has while
    /// its link is up: behind a switch that does not answer no host gets another source.
    pub(crate) fn set_elsewhere(&mut self, mut lids: impl FnMut(SwitchPort) -> Option<BTreeSet<Lid>>) {
        for (port, number) in self.ports.iter_mut().zip(1..) {
            if let Some(lids) = lids(SwitchPort(number)) {
                port.elsewhere = lids;
            }
        }
    }

    /// Asks the other ends of its cables to wake.
    pub(crate) fn rest(&mut self) {
        for link in self.ports.iter_mut().filter_map(|port| port.link.as_mut()) {
            link.rest();
        }
    }

    /// What then tells.
    pub(crate) fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().filter_map(|port| port.link.as_ref()?.waker())
    }

    /// Does a bounded amount of work; true if there was any.
    pub fn step(&mut self, now: Instant) -> bool {
        let mut worked = false;
        self.agent.guard.follow(now);
        let first = self.first;
        let mut taken = false;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((first..self.ports.len()).chain(0..first));
        // Ports alternate at a full egress: the one whose packet has waited longest is served first.
        let since = |at: usize| self.ports.get(at).and_then(|port| port.blocked).map(|blocked| blocked.since);
        order.sort_by_key(|&at| since(at).map_or((true, now), |since| (false, since)));
        for &at in &order {
            worked |= self.keep_up(at, now);
            if self.take_from(at, now) && !taken {
                taken = true;
                self.first = (at + 1) % self.ports.len();
            }
        }
        self.order = order;
        worked |= taken;
        for port in &mut self.ports {
            if let Some(link) = &mut port.link {
                link.flush();
            }
        }
        self.send_traps(now);
        worked
    }

    /// Link upkeep of one port and its change of state.
    fn keep_up(&mut self, at: usize, now: Instant) -> bool {
        let Some(port) = self.ports.get_mut(at) else { return false };
        let changed = port.poll(now);
        let woken = std::mem::take(&mut port.woken);
        if !changed {
            return woken;
        }
        self.note_change();
        true
    }

    /// A port changed its state.
    fn note_change(&mut self) {
        self.port_changed = true;
        self.info.port_state_change = true;
        self.tell_of_change();
    }

    /// Takes a burst from one port and forwards it.
    fn take_from(&mut self, at: usize, now: Instant) -> bool {
        // Out of its place while we hand its packets to the others; no packet leaves by the port that it came in by.
        let Some(mut link) = self.ports.get_mut(at).and_then(|port| port.link.take()) else { return false };
        let mut waiting =
            self.ports.get_mut(at).map(|port| std::mem::take(&mut port.waiting)).unwrap_or_default();
        let mut taken = 0;
        if !self.is_still_blocked(at, now) {
            while let Some((packet, crcs)) = waiting.front().filter(|_| taken < BURST) {
                if !self.take(at, packet, *crcs, now) {
                    break;
                }
                waiting.pop_front();
                taken += 1;
            }
        }
        let may_pass = self.has_waited(at, now) || !waiting.is_empty();
        if may_pass || !self.is_still_blocked(at, now) {
            taken += link.receive_as_sent(BURST, |packet, crcs| {
                let next = waiting.is_empty() && !(may_pass && self.is_still_blocked(at, now));
                if (next || forward::is_management(packet)) && self.take(at, packet, crcs, now) {
                    return true;
                }
                let kept = may_pass && waiting.len() < MAX_WAITING;
                if kept {
                    waiting.push_back((packet.into(), crcs));
                }
                kept
            });
        }
        if let Some(port) = self.ports.get_mut(at) {
            port.link = Some(link);
            port.waiting = waiting;
        }
        self.send_postponed();
        taken > 0
    }

    /// The next datagram for whoever sits behind port 0: SMPs that the switch's own agent does not answer, and all for
    /// QP1.
    pub fn next_mad(&mut self) -> Option<Mad> {
        self.inbox.pop()
    }

    /// The next of them that is an SMP.
    pub(crate) fn next_smp(&mut self) -> Option<Mad> {
        self.inbox.pop_smp()
    }

    /// Drops what waits for whoever sits behind port 0, where nobody does.
    pub fn discard_mads(&mut self) {
        while self.inbox.pop().is_some() {
            self.own.drop(DropReason::NotForUs);
        }
    }

    /// True once after a port's link came up or went down.
    pub fn take_port_change(&mut self) -> bool {
        std::mem::take(&mut self.port_changed)
    }

    /// LID of port 0; 0 before it has one.
    #[must_use]
    pub const fn lid(&self) -> Lid {
        self.agent.port0.lid
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.agent.name()
    }

    /// GUID of the node.
    #[must_use]
    pub const fn guid(&self) -> Guid {
        self.agent.guid()
    }

    /// Names, states and counters of the external ports where something is or was plugged in.
    pub fn ports(&self) -> impl Iterator<Item = PortReport<'_>> {
        self.ports.iter().zip(1..).filter(|(port, _)| !port.name.is_empty()).map(|(port, number)| {
            PortReport {
                number: SwitchPort(number),
                name: &port.name,
                state: port.info.state,
                trouble: port.link.as_ref().and_then(|link| link.trouble()),
                switch: &port.counters,
                link: port.link.as_ref().map(|link| link.counters()).unwrap_or_default(),
            }
        })
    }

    /// What came to port 0 and was dropped.
    #[must_use]
    pub const fn own_counters(&self) -> &PortCounters {
        &self.own
    }
}

/// One external port as reports show it.
#[derive(Clone, Copy, Debug)]
pub struct PortReport<'s> {
    /// Its number.
    pub number: SwitchPort,
    /// Its name.
    pub name: &'s str,
    /// Its logical state.
    pub state: PortState,
    /// Why its link is down, as far as is known.
    pub trouble: Option<connectx::cable::CableTrouble>,
    /// What the switch did with its packets.
    pub switch: &'s PortCounters,
    /// What its link did.
    pub link: CableCounters,
}
