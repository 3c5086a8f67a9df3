//! The switch. It forwards packets between its ports by linear and multicast forwarding tables, and subnet
//! management packets by directed route. Behind its port 0 are the switch's own agent and the subnet manager.
//!
//! It stores and forwards. A packet whose egress is full stays in its link, which holds the sender back. If
//! the receiver accepts nothing for the head-of-queue life time, packets to it are dropped until it does (IBA
//! 18.2.5.4). Packets from a link between switches wait for slow receivers for at most a ninth of the time.

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

/// Largest number of external ports; 255 means "no port" in a linear forwarding table.
pub const MAX_PORTS: usize = 254;
/// Most packets of one port in an iteration.
const BURST: usize = 32;
/// Longest time for which a packet waits for receivers that accept nothing.
const HEAD_OF_QUEUE_LIFE: Duration = Duration::from_millis(250);
/// Time after which management packets pass a waiting packet. Data for a receiver that is only slow stays in
/// the link.
const PASSING: Duration = Duration::from_millis(1);
/// Most data packets that management packets pass.
const MAX_WAITING: usize = 64;
/// Length of a multicast packet's wait for a receiver after which the next packets do not wait for that
/// receiver for a time. Where packets arrive by a link between switches, [`PASSING`] is enough.
const LONG_WAIT: Duration = Duration::from_millis(10);
/// That time, in multiples of the wait; the waits for several receivers add up. So receivers that accept a
/// packet only now and then delay a sender of multicasts for at most a ninth of the time.
const HURRY: u32 = 8;

/// Initial configuration of a switch.
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
    /// Index of the port that is served first among those that do not wait: the one after the last served.
    first: usize,
    /// Indexes of all ports in the order in which they are served.
    order: Vec<usize>,
    /// Datagrams for the subnet manager behind port 0.
    inbox: Inbox,
    /// Sequence number of packets that port 0 sends.
    psn: Psn,
    port_changed: bool,
    /// Traps for a subnet manager elsewhere.
    traps: Traps,
    /// A port changed before there was a subnet manager to notify.
    unreported: bool,
    /// Counters of packets that reached port 0 and were dropped.
    own: PortCounters,
    /// Performance counters of port 0.
    cleared0: Counted,
    /// Performance management requests that arrived with the present burst.
    requests: Vec<Mad>,
    /// Management packets that are sent once all links are back in their ports; at most one for each packet
    /// of a burst.
    postponed: Vec<(u8, Box<[u8]>)>,
}

/// The switch has no such port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the switch has no port {0}")]
pub struct NoSuchPort(pub u8);

impl Switch {
    /// Creates a switch with nothing plugged in.
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
            unreported: false,
            own: PortCounters::default(),
            cleared0: Counted::default(),
            requests: Vec::new(),
            postponed: Vec::new(),
        }
    }

    /// Sets the M_Key of port 0 before a subnet manager does.
    pub(crate) fn protect(&mut self, keys: MKeys) {
        let guid = self.agent.guid();
        self.agent.guard.set(&MKeys::protect(PortInfo::default(), keys.of(None, guid, guid), true));
    }

    /// Checks that there is such a port.
    pub(crate) fn has_port(&self, port: SwitchPort) -> Result<(), NoSuchPort> {
        let at = usize::from(port.0).checked_sub(1);
        at.and_then(|at| self.ports.get(at)).map(|_| ()).ok_or(NoSuchPort(port.0))
    }

    /// Plugs the end of a link into a port. It replaces the previous link, which goes down; `name` is for
    /// reports.
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

    /// Unplugs the link of a port; the link goes down at both ends.
    pub fn unplug(&mut self, port: SwitchPort) {
        if let Some(place) = usize::from(port.0).checked_sub(1).and_then(|at| self.ports.get_mut(at)) {
            place.link = None;
        }
    }

    /// Sets the ports with a channel adapter, and its LIDs: packets with another source are dropped there. A
    /// port whose adapter is no longer known keeps its LIDs while its link is up: an adapter that does not
    /// answer gets no other source.
    pub(crate) fn set_sources(&mut self, sources: impl Fn(SwitchPort) -> Option<LidBlock>) {
        for (port, number) in self.ports.iter_mut().zip(1..) {
            port.source = sources(SwitchPort(number)).or(port.source);
        }
    }

    /// Sets the LIDs of ports elsewhere: packets with such a source are dropped. A port without LIDs to set
    /// keeps those that it has while its link is up: behind a switch that does not answer, a host gets no
    /// other source.
    pub(crate) fn set_elsewhere(&mut self, mut lids: impl FnMut(SwitchPort) -> Option<BTreeSet<Lid>>) {
        for (port, number) in self.ports.iter_mut().zip(1..) {
            if let Some(lids) = lids(SwitchPort(number)) {
                port.elsewhere = lids;
            }
        }
    }

    /// Requests a wakeup from the other ends of its cables when they send.
    pub(crate) fn rest(&mut self) {
        for link in self.ports.iter_mut().filter_map(|port| port.link.as_mut()) {
            link.rest();
        }
    }

    /// Returns the descriptors that then become readable.
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

    /// Polls one port's link and handles a change of its state.
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

    /// Notes that a port changed its state.
    fn note_change(&mut self) {
        self.port_changed = true;
        self.info.port_state_change = true;
        self.report_change();
    }

    /// Receives a burst from one port and forwards it.
    fn take_from(&mut self, at: usize, now: Instant) -> bool {
        // The link is taken out while its packets are passed to the others; no packet leaves by the port that
        // it arrived by.
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

    /// Returns the next datagram for the subnet manager behind port 0: SMPs that the switch's own agent does
    /// not answer, and all datagrams for QP1.
    pub fn next_mad(&mut self) -> Option<Mad> {
        self.inbox.pop()
    }

    /// Returns the next of these datagrams that is an SMP.
    pub(crate) fn next_smp(&mut self) -> Option<Mad> {
        self.inbox.pop_smp()
    }

    /// Drops the datagrams for a subnet manager behind port 0, if there is none.
    pub fn discard_mads(&mut self) {
        while self.inbox.pop().is_some() {
            self.own.drop(DropReason::NotForUs);
        }
    }

    /// True once after a port's link came up or went down.
    pub fn take_port_change(&mut self) -> bool {
        std::mem::take(&mut self.port_changed)
    }

    /// Returns the LID of port 0; 0 before it has one.
    #[must_use]
    pub const fn lid(&self) -> Lid {
        self.agent.port0.lid
    }

    /// Returns the switch's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.agent.name()
    }

    /// Returns the GUID of the node.
    #[must_use]
    pub const fn guid(&self) -> Guid {
        self.agent.guid()
    }

    /// Returns names, states and counters of the external ports that have or had a link.
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

    /// Returns the counters of packets that reached port 0 and were dropped.
    #[must_use]
    pub const fn own_counters(&self) -> &PortCounters {
        &self.own
    }
}

/// State of one external port for reports.
#[derive(Clone, Copy, Debug)]
pub struct PortReport<'s> {
    /// Its number.
    pub number: SwitchPort,
    /// Its name.
    pub name: &'s str,
    /// Its logical state.
    pub state: PortState,
    /// Why its link is down, if known.
    pub trouble: Option<connectx::cable::CableTrouble>,
    /// The switch's counters of its packets.
    pub switch: &'s PortCounters,
    /// The counters of its link.
    pub link: CableCounters,
}
